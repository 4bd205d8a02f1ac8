"""Caches of nodes as the leader looks after them: what agents are told, and what NodeModelCache objects say of them."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from aimodels_core import names
from aimodels_core.errors import AiModelsError, ClusterUnavailable, LeadershipLost, UsageError
from aimodels_core.nodes import NodeReport, NodeWant
from aimodels_operator import warming
from aimodels_operator.kube import Kube, Raw
from aimodels_operator.placement import Node
from aimodels_operator.pods import Delivered, Pod
from aimodels_operator.writes import Urgency

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
SHOW_SECONDS = 5.0
_TIDY_SECONDS = 60.0
_TIME_SECONDS = 60.0
_RESOURCE = "nodemodelcaches"
_VERSION = "v1alpha1"


class Delivery(Protocol):
    """What delivery knows, as far as this module needs it."""

    def waiting(self) -> Iterable[tuple[Pod, Sequence[Delivered]]]:
        """Pods that wait, with those of their models that are Ready."""
        ...

    def ahead(self) -> Iterable[Delivered]:
        """Ready models that nodes should have ahead of time."""
        ...

    async def labelled(self) -> tuple[Node, ...]:
        """Nodes that carry our label, as they were a moment ago.

        Raises:
            ClusterUnavailable.
        """
        ...


class Coordinator(Protocol):
    """Who passes wants to agents."""

    @property
    def epoch(self) -> str:
        """Of the coordinator that answers; empty while none does."""
        ...

    async def put_node(self, want: NodeWant) -> None:
        """Send what a node should hold.

        Raises:
            CoordinatorUnavailable, UsageError.
        """
        ...


class Warmers:
    """Tells agents what to hold, and shows what they tell.

    Args:
        delivery: Pods, models and nodes.
        coordinator: passes wants on.
        kube: the API server.
        admit: waits for the rate limit and passes the fence.
        reports: of nodes, by name; None while they are not known.
        cache_bytes: how much a node may hold; 0 for what fits.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        delivery: Delivery,
        coordinator: Coordinator,
        kube: Kube,
        admit: Callable[[Urgency], Awaitable[None]],
        reports: Callable[[], Mapping[str, NodeReport] | None],
        *,
        cache_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._delivery, self._coordinator, self._kube = delivery, coordinator, kube
        self._admit, self._reports, self._cache_bytes, self._clock = admit, reports, cache_bytes, clock
        self._sent: dict[str, tuple[str, NodeWant]] = {}
        self._shown: dict[str, tuple[float, Mapping[str, Any]]] = {}
        self._tidied = float("-inf")

    async def run(self) -> None:
        """Work until cancelled.

        Raises:
            LeadershipLost.
        """
        while True:
            try:
                await self.look()
            except LeadershipLost:
                raise
            except AiModelsError as error:
                log.warning("caches of nodes not looked after", extra={"error": error.message})
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Look once: send what has changed, show what is new.

        Raises:
            AiModelsError: look again.
        """
        nodes, reports = await self._delivery.labelled(), self._reports() or {}
        found = warming.wants(
            self._delivery.waiting(), self._delivery.ahead(), nodes, reports, cache_bytes=self._cache_bytes
        )
        for name in self._sent.keys() - found.keys():
            found[name] = NodeWant(name, (), self._cache_bytes)
        epoch = self._coordinator.epoch
        for name, want in found.items() if epoch else ():
            if self._sent.get(name) != (epoch, want):
                await self._tell(want)
                self._sent[name] = (epoch, want)
        for name, report in reports.items():
            await self._show(name, report)
        if self._clock() - self._tidied >= _TIDY_SECONDS:
            self._tidied = self._clock()
            await self._tidy({node.name for node in nodes} | reports.keys())

    async def _tell(self, want: NodeWant) -> None:
        """Send what a node should hold; a refused one keeps others from nothing, and is not sent again as it is."""
        try:
            await self._coordinator.put_node(want)
        except UsageError as error:
            log.error("node not told what to warm", extra={"node": want.node, "error": error.message})  # noqa: TRY400 - no bug

    async def _show(self, name: str, report: NodeReport) -> None:
        status = warming.status_of(report)
        at, shown = self._shown.get(name, (float("-inf"), {}))
        age = self._clock() - at
        if age < SHOW_SECONDS or (warming.same(shown, status) and age < _TIME_SECONDS):
            return
        # A node whose object is refused comes again after the others, not before them for ever.
        self._shown[name] = (self._clock(), {})
        await self._admit(Urgency.PROGRESS)
        try:
            await self._patch(name, status)
        except ClusterUnavailable as error:
            if error.code != "NotFound":
                raise
            meta = {"name": name, "labels": {"module": "ai-models", "heritage": "deckhouse"}}
            body = {"apiVersion": f"{names.GROUP}/{_VERSION}", "kind": "NodeModelCache", "metadata": meta}
            await self._kube.call("create", names.GROUP, _RESOURCE, body=body)
            await self._patch(name, status)
        self._shown[name] = (self._clock(), status)

    async def _patch(self, name: str, status: Mapping[str, Any]) -> Raw:
        body = {"status": dict(status)}
        return await self._kube.call("patch", names.GROUP, f"{_RESOURCE}/status", name=name, body=body)

    async def _tidy(self, known: set[str]) -> None:
        """Delete what says something of nodes that have no cache any more."""
        async for raw in self._kube.list_raw(names.GROUP, _RESOURCE):
            name = str(raw["metadata"]["name"])
            if name not in known:
                await self._admit(Urgency.PROGRESS)
                with contextlib.suppress(ClusterUnavailable):
                    await self._kube.call("delete", names.GROUP, _RESOURCE, name=name)
                self._shown.pop(name, None)
