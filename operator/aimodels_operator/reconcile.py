"""The loop: what may have changed is observed anew, decided on, and written, each object by one worker at a time.

Decisions are made in `model`; this module only gathers what they look at and carries out what they ask for. No write
passes without the fence of the leader and the one rate limit.
"""

import asyncio
import datetime
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from aimodels_core.api import MODEL_KINDS, Kind, ModelObject
from aimodels_core.errors import AiModelsError, ClusterUnavailable, LeadershipLost, UsageError
from aimodels_core.messages import PublicationState, Want
from aimodels_operator import model as decisions
from aimodels_operator.credentials import Tokens
from aimodels_operator.dirty import Dirty
from aimodels_operator.known import Known, Memory
from aimodels_operator.kube import Kube
from aimodels_operator.meters import Meters
from aimodels_operator.model import Link, Observed, Sent
from aimodels_operator.pacing import Bucket, back_off
from aimodels_operator.posting import Poster
from aimodels_operator.readback import ReadBacks, Source
from aimodels_operator.writes import Again, Emit, PatchStatus, PutWant, ReadBack, Remove, SetFinalizers, Urgency, Write

log = logging.getLogger(__name__)

WORKERS = 16
WRITES_PER_SECOND = 200.0
PROGRESS_EVERY_SECONDS = 5.0
RESYNC_EVERY_SECONDS = 600.0
_SENT_SECONDS = 30.0
"""A want that a snapshot does not show after this was lost."""


class Coordinator(Protocol):
    """The coordinator, as far as this module uses it."""

    states: dict[str, PublicationState]
    link: Link

    async def put(self, want: Want) -> None:
        """Send a want.

        Raises:
            CoordinatorUnavailable, UsageError.
        """
        ...

    async def remove(self, uid: str, scope: str) -> None:
        """Have a model removed.

        Raises:
            CoordinatorUnavailable, UsageError.
        """
        ...


class Reconciler:
    """Brings every Model and what is known of it together.

    Args:
        kube: the API server.
        check: the fence; raises LeadershipLost.
        meters: counts.
        registry: where published artifacts are read back from; None for nowhere.
        node_cache_bytes: what the cache of a node may hold; 0 where that does not matter.
        clock: seconds, monotonic.
        now: aware.
    """

    def __init__(
        self,
        kube: Kube,
        check: Callable[[], None],
        meters: Meters,
        *,
        registry: Source | None = None,
        node_cache_bytes: int = 0,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        self._kube = kube
        self._check = check
        self._meters = meters
        self._node_cache_bytes = node_cache_bytes
        self._clock = clock
        self._now = now
        self._coordinator: Coordinator | None = None
        self._readbacks = ReadBacks(registry, meters, clock=clock, now=now) if registry is not None else None
        self._tokens = Tokens(kube, clock=clock)
        self._bucket = Bucket(WRITES_PER_SECOND, 20.0, clock=clock)
        self._poster = Poster(kube, self.admit, meters, now)
        self.dirty = Dirty(clock=clock)
        self.known = Known()

    def see(self, kind: Kind, raw: dict[str, Any], gone: bool) -> None:  # noqa: FBT001 - the informer's call-back
        """Take in what the informer saw."""
        found = ModelObject.from_raw(kind, raw)
        if gone:
            self._forget(found.uid)
        elif self.known.take(found):
            self.dirty.add(found.uid)

    def changed(self, uids: Iterable[str] | None) -> None:
        """Have some objects looked at, or all."""
        for uid in self.known.uids() if uids is None else uids:
            if uid in self.known:
                self.dirty.add(uid)

    async def run(self, coordinator: Coordinator) -> None:
        """Work until cancelled.

        Raises:
            LeadershipLost.
        """
        self._coordinator = coordinator
        async with asyncio.TaskGroup() as group:
            group.create_task(self._poster.run())
            group.create_task(self._resync())
            slots = asyncio.Semaphore(WORKERS)
            while True:
                await slots.acquire()
                uid = await self.dirty.get()
                task = group.create_task(self._work(uid))
                task.add_done_callback(lambda _: slots.release())

    async def _work(self, uid: str) -> None:
        began = self._clock()
        memory = self.known.get(uid)
        try:
            if memory is not None:
                await self._reconcile(memory)
                memory.failures = 0
        except LeadershipLost:
            raise
        except ClusterUnavailable as error:
            await self._later(memory, uid, error)
        except AiModelsError as error:
            self._back_off(memory, uid, error.code)
        except Exception:
            log.exception("decision broke", extra={"model": memory.model.path if memory else uid})
            self._back_off(memory, uid, "Internal")
        finally:
            self.dirty.done(uid)
            self._meters.observe(self._clock() - began)

    async def _later(self, memory: Memory | None, uid: str, error: ClusterUnavailable) -> None:
        """Look at the object again: at its newest version after a conflict, with patience after other trouble."""
        if memory is None:
            return
        if error.code == "NotFound":
            self._forget(uid)
            return
        if error.code == "Conflict":
            self._meters.count("Conflict")
            try:
                model = memory.model
                memory.model = await self._kube.get_model(model.kind, model.namespace, model.name)
                self.dirty.add(uid, 0.05)
            except ClusterUnavailable as again:
                self._back_off(memory, uid, again.code)
            return
        log.warning("write refused", extra={"model": memory.model.path, "error": error.message})
        self._back_off(memory, uid, error.code)

    def _back_off(self, memory: Memory | None, uid: str, code: str) -> None:
        self._meters.count(code)
        if memory is not None:
            memory.failures += 1
            self.dirty.add(uid, back_off(memory.failures))

    async def _reconcile(self, memory: Memory) -> None:
        if self._coordinator is None:
            return
        observed = await self._observe(memory, self._coordinator)
        trouble: AiModelsError | None = None
        for write in decisions.decide(observed):
            try:
                if not await self._apply(memory, write, self._coordinator):
                    break
            except (LeadershipLost, ClusterUnavailable):
                raise
            except AiModelsError as error:
                trouble = error
        if trouble is not None:
            raise trouble

    async def _observe(self, memory: Memory, coordinator: Coordinator) -> Observed:
        model = memory.model
        state = coordinator.states.get(model.uid)
        if state is None and memory.sent is not None and self._clock() - memory.sent_at > _SENT_SECONDS:
            memory.sent = None
        credential = await self._tokens.of(model)
        memory.withheld = credential is not None and bool(credential.trouble)
        return Observed(
            model=model,
            now=self._now(),
            link=coordinator.link,
            publication=state,
            credential=credential,
            sent=memory.sent,
            refused=memory.refused,
            removed=memory.removed,
            remove_trouble=memory.remove_trouble,
            reading=memory.reading if self._readbacks is not None else None,
            node_cache_bytes=self._node_cache_bytes,
        )

    async def _apply(self, memory: Memory, write: Write, coordinator: Coordinator) -> bool:
        """Carry out one write; False when what follows it has to wait."""
        match write:
            case SetFinalizers():
                await self.admit(Urgency.PHASE)
                memory.model = await self._kube.set_finalizers(memory.model, write.finalizers)
                self.dirty.add(memory.model.uid)
            case PatchStatus():
                return await self._patch(memory, write)
            case PutWant():
                await self._put(memory, write, coordinator)
            case Remove():
                await self._remove(memory, write, coordinator)
            case ReadBack():
                self._read_back(memory, write)
            case Emit():
                self._poster.add(memory.model, write)
            case Again():
                self.dirty.add(memory.model.uid, write.after.total_seconds())
        return True

    async def admit(self, urgency: Urgency) -> None:
        """Wait for the rate limit of all writes, then make sure that this replica still leads.

        Raises:
            LeadershipLost.
        """
        await self._bucket.take(urgency)
        self._check()

    async def _patch(self, memory: Memory, write: PatchStatus) -> bool:
        rest = PROGRESS_EVERY_SECONDS - (self._clock() - memory.written_at)
        if write.urgency is Urgency.PROGRESS and rest > 0:
            self.dirty.add(memory.model.uid, rest)
            return False
        await self.admit(write.urgency)
        memory.written_at = self._clock()
        memory.model = await self._kube.patch_status(memory.model, write.patch)
        self._meters.writes += 1
        return True

    async def _put(self, memory: Memory, write: PutWant, coordinator: Coordinator) -> None:
        self._check()
        epoch = coordinator.link.epoch
        try:
            await coordinator.put(write.want)
            memory.refused = ""
        except UsageError as error:
            log.warning("want refused", extra={"model": memory.model.path, "error": error.code})
            memory.refused = error.message
            self.dirty.add(memory.model.uid)
        memory.sent, memory.sent_at = Sent.of(write.want, epoch), self._clock()

    async def _remove(self, memory: Memory, write: Remove, coordinator: Coordinator) -> None:
        self._check()
        try:
            await coordinator.remove(write.uid, write.scope)
        except AiModelsError as error:
            memory.remove_trouble = f"coordinator: {error.message}"
            raise
        memory.removed = True
        self.dirty.add(memory.model.uid)

    def _read_back(self, memory: Memory, write: ReadBack) -> None:
        if self._readbacks is not None:
            self._readbacks.begin(memory, write, lambda: self.changed((memory.model.uid,)))

    async def _resync(self) -> None:
        """Now and then look at everything anew, and forget what vanished unseen (O-79)."""
        while True:
            await asyncio.sleep(RESYNC_EVERY_SECONDS)
            before = self.known.uids()
            found: set[str] = set()
            try:
                for kind in MODEL_KINDS:
                    async for model in self._kube.list_models(kind):
                        found.add(model.uid)
                        self.known.take(model)
                        self.dirty.add(model.uid)
            except ClusterUnavailable as error:
                log.warning("list failed", extra={"error": error.message})
                continue
            for uid in before - found:
                self._forget(uid)

    def _forget(self, uid: str) -> None:
        self.known.drop(uid)
        self.dirty.drop(uid)
        self._tokens.forget(uid)
