"""The loop of delivery: Pods that may have something to wait for no more are looked at, decided on, and let go.

Decisions are made in `delivery`; no write passes without the fence of the leader and the one rate limit, where letting
Pods go comes first. Nothing here has to outlive the process: it is all in the API server.
"""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from aimodels_core import names
from aimodels_core.api import API_VERSION, Kind
from aimodels_core.digest import Digest
from aimodels_core.errors import AiModelsError, ClusterUnavailable, LeadershipLost
from aimodels_operator import delivery, pods, warming
from aimodels_operator.delivery import Decision, LetGo, Options, Remake, Seen
from aimodels_operator.dirty import Dirty
from aimodels_operator.kube_pods import PodCalls
from aimodels_operator.meters import Meters
from aimodels_operator.owners import Owners
from aimodels_operator.pacing import back_off
from aimodels_operator.placement import Node
from aimodels_operator.pods import Delivered, Named, Owner, Pod
from aimodels_operator.saying import Saying
from aimodels_operator.sharedpvc_values import Blocked, Need
from aimodels_operator.surroundings import NODES_SECONDS, Around, Models, Nodes, gist
from aimodels_operator.writes import Urgency

log = logging.getLogger(__name__)

WORKERS = 16
RESYNC_EVERY_SECONDS = 600.0
SET_SECONDS = 10.0
"""A Pod of a StatefulSet that waits is compared with it so often."""
_LOOK_SECONDS = 0.25


@dataclasses.dataclass(slots=True)
class _Memory:
    """One Pod; lost at a restart without harm.

    Args:
        pod: its newest version that was seen.
        gone: it is not there any more.
        failures: in a row.
    """

    pod: Pod
    gone: bool = False
    failures: int = 0


class Delivering:
    """Brings Pods and the models that they name together.

    Args:
        calls: the API server.
        admit: waits for the rate limit and passes the fence; raises LeadershipLost.
        meters: counts.
        options: of the administrator.
        around: what there is beside the API server.
    """

    def __init__(
        self,
        calls: PodCalls,
        admit: Callable[[Urgency], Awaitable[None]],
        meters: Meters,
        options: Options,
        around: Around,
    ) -> None:
        self._calls = calls
        self._admit = admit
        self._meters = meters
        self._options = options
        self._around = around
        self._models = Models(calls, around.lives, clock=around.clock)
        self._nodes = Nodes(calls, clock=around.clock)
        owners = Owners(calls, clock=around.clock)
        self._saying = Saying(calls, owners, admit, meters, around.now)
        self._known: dict[str, _Memory] = {}
        self._settled: set[str] = set()
        self._misread: dict[Named, tuple[str, str]] = {}
        self.dirty = Dirty(clock=around.clock)

    def see(self, raw: Mapping[str, Any], *, gone: bool) -> None:
        """Take in a version of a Pod."""
        pod = Pod.from_raw(raw)
        memory = self._known.get(pod.uid)
        if gone:
            self._settled.discard(pod.uid)
            if memory is not None:
                memory.gone = True
                self.dirty.add(pod.uid)
        elif pod.uid not in self._settled:
            self._take(pod)
            self.dirty.add(pod.uid)

    def see_model(self, kind: Kind, raw: Mapping[str, Any], *, gone: bool) -> None:
        """Take in a version of a Model."""
        named = self._models.see(kind, raw, gone=gone)
        self._say_of_prewarm(named, self._models.known(named))
        for uid, memory in self._known.items():
            if memory.pod.waits and named in _names(memory.pod):
                self.dirty.add(uid)

    def claims_changed(self, claims: Iterable[tuple[str, str]]) -> None:
        """Have Pods looked at that may wait for shared claims, by their namespaces and names."""
        spaces = {namespace for namespace, _ in claims}
        for uid, memory in self._known.items():
            if memory.pod.namespace in spaces and memory.pod.waits:
                self.dirty.add(uid)

    @property
    def gated(self) -> int:
        """How many Pods wait."""
        return sum(memory.pod.gated and not memory.gone for memory in self._known.values())

    def waiting(self) -> tuple[tuple[Pod, tuple[Delivered, ...]], ...]:
        """Pods that wait, and those of their models that are Ready: what their nodes should fetch first."""
        waiting = [memory.pod for memory in self._known.values() if memory.pod.waits and not memory.gone]
        found = ((pod, (self._models.known(named) for named in _names(pod))) for pod in waiting)
        return tuple((pod, tuple(one for one in models if one is not None and one.digest)) for pod, models in found)

    def ahead(self) -> tuple[Delivered, ...]:
        """Ready models that nodes should have ahead of time."""
        return tuple(model for model in self._models.all() if model.digest and model.prewarm)

    async def labelled(self) -> tuple[Node, ...]:
        """Nodes that carry our label, as they were a moment ago.

        Raises:
            ClusterUnavailable.
        """
        return await self._nodes.all()

    async def run(self) -> None:
        """Work until cancelled.

        Raises:
            LeadershipLost.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._saying.run())
            group.create_task(self._resync())
            if not self._options.shared:
                group.create_task(self._follow_nodes())
            slots = asyncio.Semaphore(WORKERS)
            while True:
                await slots.acquire()
                uid = await self.dirty.get()
                task = group.create_task(self._work(uid))
                task.add_done_callback(lambda _: slots.release())

    def _say_of_prewarm(self, named: Named, model: Delivered | None) -> None:
        """Have it said once that an annotation of a model warms nothing."""
        fault = warming.selector_fault(model.prewarm) if model is not None and not self._options.shared else ""
        if model is None or not fault:
            self._misread.pop(named, None)
        elif self._misread.get(named) != (model.uid, fault):
            self._misread[named] = model.uid, fault
            about = Owner(API_VERSION, named.kind.name, named.namespace, named.name, model.uid)
            self._saying.post(about, ("Warning", "PrewarmIgnored", f"{names.ANNOTATION_PREWARM}: {fault}"))

    def _take(self, pod: Pod) -> None:
        memory = self._known.get(pod.uid)
        if memory is None:
            self._known[pod.uid] = _Memory(pod)
        elif not pods.older(pod.version, memory.pod.version):
            memory.pod = pod

    async def _work(self, uid: str) -> None:
        memory = self._known.get(uid)
        try:
            if memory is not None:
                await self._reconcile(memory)
                memory.failures = 0
        except LeadershipLost:
            raise
        except AiModelsError as error:
            await self._later(uid, error)
        except Exception:
            log.exception("decision broke", extra={"pod": _path(memory)})
            self._back_off(uid, "Internal")
        finally:
            self.dirty.done(uid)

    async def _later(self, uid: str, error: AiModelsError) -> None:
        """Look at the Pod again: at its newest version after a conflict, with patience after other trouble."""
        memory = self._known.get(uid)
        if memory is None:
            return
        if error.code == "NotFound":
            memory.gone = True
            self.dirty.add(uid)
        elif error.code == "Conflict":
            self._meters.count("Conflict")
            try:
                found = Pod.from_raw(await self._calls.pod(memory.pod.namespace, memory.pod.name))
            except ClusterUnavailable as again:
                memory.gone = memory.gone or again.code == "NotFound"
                self._back_off(uid, again.code)
                return
            memory.gone = found.uid != uid
            memory.pod = memory.pod if memory.gone else found
            self.dirty.add(uid, 0.05)
        else:
            log.warning("pod not looked after", extra={"pod": _path(memory), "error": error.message})
            self._back_off(uid, error.code)

    def _back_off(self, uid: str, code: str) -> None:
        self._meters.count(code)
        memory = self._known.get(uid)
        if memory is not None:
            memory.failures += 1
            self.dirty.add(uid, back_off(memory.failures))

    async def _reconcile(self, memory: _Memory) -> None:
        if memory.gone:
            await self._saying.gone(memory.pod)
            self._known.pop(memory.pod.uid, None)
            return
        decision = await self._decide(memory.pod)
        match decision.write:
            case LetGo() as write:
                await self._let_go(memory, write)
            case Remake():
                await self._admit(Urgency.UNGATE)
                log.info("pod of an old revision is deleted", extra={"pod": _path(memory)})
                await self._calls.delete(memory.pod)
            case None:
                pass
        pod = memory.pod
        await self._saying.say(pod, decision.blocked)
        if delivery.settled(pod):
            self._known.pop(pod.uid, None)
            self._settled.add(pod.uid)
        elif decision.again is not None:
            of_set = pod.gated and pod.owner is not None and pod.owner.kind == "StatefulSet"
            self.dirty.add(pod.uid, min(decision.again, SET_SECONDS) if of_set else decision.again)

    async def _let_go(self, memory: _Memory, write: LetGo) -> None:
        await self._admit(Urgency.UNGATE)
        ready = [model.ready_at for model in map(self._models.known, _names(memory.pod)) if model is not None]
        raw = await self._calls.let_go(memory.pod, write.patch)
        self._meters.delivered(self._around.now().timestamp() - max([memory.pod.created_at, *ready]))
        memory.pod = Pod.from_raw(raw)
        log.info("pod let go", extra={"pod": _path(memory)})
        self._saying.post(pods.as_object(memory.pod), ("Normal", "ModelsDelivered", write.message))

    async def _decide(self, pod: Pod) -> Decision:
        seen = await self._observe(pod)
        decision = delivery.decide(seen)
        of_set = pod.owner is not None and pod.owner.kind == "StatefulSet"
        if decision.blocked is None or not (pod.gated and of_set) or not await self._calls.outdated(pod):
            return decision
        return delivery.decide(dataclasses.replace(seen, outdated=True))

    async def _observe(self, pod: Pod) -> Seen:
        """Look at all that a decision about a Pod wants."""
        seen = Seen(pod, self._options, self._around.now().timestamp())
        if delivery.settled(pod):
            return seen
        models: dict[Named, Delivered] = {}
        for named in _names(pod) if pod.waits else ():
            found = await self._models.of(named)
            if found is not None:
                models[named] = found
        seen = dataclasses.replace(seen, models=models)
        if not self._options.shared:
            nodes = () if pod.node else await self._nodes.all()
            return dataclasses.replace(seen, nodes=nodes, reports=self._around.reports())
        gets = delivery.resolved(pod, models)
        if self._around.shared is None or not pod.waits or isinstance(gets, Blocked):
            return seen
        needs = [self._need(pod, named, model) for named, model in gets.items()]
        return dataclasses.replace(seen, answer=await self._around.shared.answer(needs))

    def _need(self, pod: Pod, named: Named, model: Delivered) -> Need:
        claim = self._around.claim_name(named.kind, named.name)
        return Need(pod.namespace, claim, Digest.parse(model.digest).hex, model.size_bytes, model.scope)

    async def _follow_nodes(self) -> None:
        """Have all Pods that wait looked at when nodes have come, gone, or hold something else."""
        known: tuple[object, object] = (None, None)
        looked_at = float("-inf")
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            waiting = [uid for uid, memory in self._known.items() if memory.pod.gated]
            nodes = known[0]
            if waiting and self._around.clock() - looked_at >= NODES_SECONDS:
                looked_at = self._around.clock()
                with contextlib.suppress(ClusterUnavailable):
                    nodes = await self._nodes.all()
            found = (nodes, gist(self._around.reports()) if waiting else known[1])
            for uid in waiting if found != known else ():
                self.dirty.add(uid)
            known = found

    async def _resync(self) -> None:
        """Now and then look at everything anew, and forget what vanished unseen."""
        while True:
            await asyncio.sleep(RESYNC_EVERY_SECONDS)
            before = set(self._known) | self._settled
            try:
                found = [Pod.from_raw(raw) for raw in await self._calls.pods()]
            except ClusterUnavailable as error:
                log.warning("list failed", extra={"error": error.message})
                continue
            there = {pod.uid for pod in found}
            for pod in found:
                if pod.uid not in self._settled:
                    self._take(pod)
                    self.dirty.add(pod.uid)
            for uid in before - there:
                self._settled.discard(uid)
                if uid in self._known:
                    self._known[uid].gone = True
                    self.dirty.add(uid)


def _names(pod: Pod) -> tuple[Named, ...]:
    found = pods.named(pod)
    return () if isinstance(found, str) else found


def _path(memory: _Memory | None) -> str:
    return f"{memory.pod.namespace}/{memory.pod.name}" if memory is not None else ""
