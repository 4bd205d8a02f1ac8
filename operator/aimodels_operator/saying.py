"""Says on workloads and Pods why they wait, takes it back, and posts Events. What is said is in `blocked`."""

import asyncio
import datetime
import logging
import weakref
from collections.abc import Awaitable, Callable

from aimodels_core import names
from aimodels_core.errors import ClusterUnavailable
from aimodels_operator import blocked, pods
from aimodels_operator.kube_pods import PodCalls
from aimodels_operator.meters import Meters
from aimodels_operator.owners import Owners
from aimodels_operator.pods import Owner, Pod
from aimodels_operator.sharedpvc_values import Blocked
from aimodels_operator.writes import Urgency

log = logging.getLogger(__name__)

_WAITING_MOST = 1000

Note = tuple[str, str, str]


class Saying:
    """What is said about all Pods that wait.

    Args:
        calls: the API server.
        owners: who is above Pods.
        admit: waits for the rate limit and passes the fence; raises LeadershipLost.
        meters: counts.
        now: aware.
    """

    def __init__(
        self,
        calls: PodCalls,
        owners: Owners,
        admit: Callable[[Urgency], Awaitable[None]],
        meters: Meters,
        now: Callable[[], datetime.datetime],
    ) -> None:
        self._calls = calls
        self._owners = owners
        self._admit = admit
        self._meters = meters
        self._now = now
        self._said: dict[str, dict[str, Blocked]] = {}
        self._carriers: dict[str, Owner] = {}
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._events: asyncio.Queue[tuple[Owner, Note]] = asyncio.Queue(_WAITING_MOST)

    async def say(self, pod: Pod, why: Blocked | None) -> None:
        """Have it said why a Pod waits, or that it does not.

        Raises:
            ClusterUnavailable, LeadershipLost.
        """
        carrier = blocked.carrier(pod, await self._owners.of(pod))
        before = self._carriers.get(pod.uid)
        if before is not None and before.uid != carrier.uid:
            await self.gone(pod)
        known = self._said.get(carrier.uid, {}).get(pod.uid)
        if why is not None:
            self._said.setdefault(carrier.uid, {})[pod.uid] = why
            self._carriers[pod.uid] = carrier
            if (known is None or known.reason != why.reason) and carrier.uid != pod.uid:
                self.post(pods.as_object(pod), ("Warning", why.reason, why.message))
        else:
            self._drop(pod.uid, carrier)
        await self._show(carrier)

    async def gone(self, pod: Pod) -> None:
        """Take back what was said because of a Pod that is not there any more.

        Raises:
            ClusterUnavailable, LeadershipLost.
        """
        carrier = self._carriers.get(pod.uid)
        if carrier is None:
            return
        self._drop(pod.uid, carrier)
        if carrier.uid != pod.uid:
            looked = next((one for one in await self._owners.of(pod) if one.uid == carrier.uid), carrier)
            await self._show(looked)

    def post(self, about: Owner, note: Note) -> None:
        """Have an Event posted, when nothing more urgent has to be written."""
        try:
            self._events.put_nowait((about, note))
        except asyncio.QueueFull:
            self._meters.count("EventDropped")

    async def run(self) -> None:
        """Post Events until cancelled.

        Raises:
            LeadershipLost.
        """
        while True:
            about, note = await self._events.get()
            await self._admit(Urgency.EVENT)
            try:
                await self._calls.post(about, note, self._now())
            except ClusterUnavailable as error:
                self._meters.count("EventRefused")
                log.info("event not posted", extra={"object": f"{about.kind} {about.name}", "error": error.message})

    def _drop(self, uid: str, carrier: Owner) -> None:
        self._carriers.pop(uid, None)
        waiting = self._said.get(carrier.uid)
        if waiting is not None:
            waiting.pop(uid, None)
            if not waiting:
                del self._said[carrier.uid]

    async def _show(self, carrier: Owner) -> None:
        """Bring an object's annotations and what it should say together; one writer per object at a time."""
        lock = self._locks.setdefault(carrier.uid, asyncio.Lock())
        async with lock:
            carrier = self._owners.newest(carrier)
            said = blocked.first(self._said.get(carrier.uid, {}))
            changes = blocked.change(carrier.annotations, said)
            if not changes:
                return
            await self._admit(Urgency.PHASE)
            try:
                await self._calls.annotate(carrier, changes)
            except ClusterUnavailable as error:
                self._owners.forget(carrier)
                if error.code in ("NotFound", "Conflict"):
                    return
                raise
            self._owners.changed(carrier, changes)
        if said is not None and names.ANNOTATION_BLOCKED_REASON in changes:
            self.post(carrier, ("Warning", said.reason, said.message))
