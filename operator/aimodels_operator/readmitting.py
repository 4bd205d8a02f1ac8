"""Looks now and then for workloads that should have been stamped and were not, and has them stamped.

What is done about which of them is decided in `readmission`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from aimodels_core.errors import ClusterUnavailable
from aimodels_operator import readmission, stamping
from aimodels_operator.kube import Kube
from aimodels_operator.readmission import Due

log = logging.getLogger(__name__)

EVERY_SECONDS = 300.0
PAUSE_SECONDS = 0.2
"""Between two of them: each makes new Pods."""
_PAGE = 100
_KINDS = (
    ("apps", "deployments", "Deployment"),
    ("apps", "statefulsets", "StatefulSet"),
    ("apps", "daemonsets", "DaemonSet"),
    ("batch", "jobs", "Job"),
    ("batch", "cronjobs", "CronJob"),
)


@dataclass(frozen=True, slots=True)
class Place:
    """A workload, and what is written to it.

    Args:
        group: of its kind.
        resource: plural of its kind.
        namespace: of the workload.
        name: of the workload.
        uid: of the workload.
        version: that was looked at.
        due: what is written.
    """

    group: str
    resource: str
    namespace: str
    name: str
    uid: str
    version: str
    due: Due


class Readmitting:
    """Has workloads admitted again.

    Args:
        kube: the API server.
        admit: waits for the rate limit and passes the fence; raises LeadershipLost.
        begun: set when our webhooks are asked.
        shared: models come from shared claims.
        left_out: namespaces that our webhooks never see.
        sleep: waits.
    """

    def __init__(
        self,
        kube: Kube,
        admit: Callable[[], Awaitable[None]],
        begun: asyncio.Event,
        *,
        shared: bool,
        left_out: Collection[str],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._kube = kube
        self._admit = admit
        self._begun = begun
        self._shared = shared
        self._left_out = frozenset(left_out)
        self._sleep = sleep
        self._done: set[tuple[str, str]] = set()

    async def run(self) -> None:
        """Work until cancelled.

        Raises:
            LeadershipLost.
        """
        await self._begun.wait()
        while True:
            try:
                await self.look()
            except ClusterUnavailable as error:
                log.warning("workloads not looked at", extra={"error": error.message})
            await self._sleep(EVERY_SECONDS)

    async def look(self) -> None:
        """Look at all workloads once, and have those admitted again that are to be; each version once.

        Raises:
            ClusterUnavailable: they cannot be listed; LeadershipLost.
        """
        found = [place for kind in _KINDS for place in await self._due(*kind)]
        fresh = [place for place in found if (place.uid, place.version) not in self._done]
        self._done = {(place.uid, place.version) for place in found}
        for place in fresh:
            await self._write(place)
            await self._sleep(PAUSE_SECONDS)

    async def _due(self, group: str, resource: str, kind: str) -> list[Place]:
        places = []
        async for raw in self._kube.list_raw(group, resource, page_size=_PAGE):
            meta = raw["metadata"]
            namespace = str(meta["namespace"])
            if namespace in self._left_out:
                continue
            due = readmission.decide({**raw, "kind": kind}, namespace, shared=self._shared)
            if due is not None:
                where = (group, resource, namespace, str(meta["name"]))
                places.append(Place(*where, str(meta["uid"]), str(meta["resourceVersion"]), due))
        return places

    async def _write(self, place: Place) -> None:
        await self._admit()
        meta = {"uid": place.uid, "resourceVersion": place.version}
        body = {"metadata": {**meta, **({"annotations": dict(place.due.changes)} if place.due.changes else {})}}
        where = (place.resource, place.namespace, place.name)
        extra = {"workload": "/".join(where)}
        try:
            made = await self._kube.call("patch", place.group, *where, body=body)
        except ClusterUnavailable as error:
            if error.code not in ("Conflict", "NotFound"):
                log.warning("workload not admitted again", extra={**extra, "error": error.message})
            self._done.discard((place.uid, place.version))
            return
        left = not place.due.changes and stamping.stamped(made) != made
        if left:
            self._done.discard((place.uid, place.version))
        log.log(
            logging.WARNING if left else logging.INFO, "workload admitted again", extra={**extra, "stamped": not left}
        )
