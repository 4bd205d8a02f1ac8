"""Caches of nodes as the coordinator knows them: what each should hold, what its agent tells. All of it is memory.

Wants come from the operator, which sends them again when they are missing; agents are asked every few seconds.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from aimodels_core.errors import AiModelsError, UsageError
from aimodels_core.nodes import NodeReport, NodeWant

log = logging.getLogger(__name__)

ASK_SECONDS = 2.0
WARMING_SECONDS = 0.5
"""While something is on its way: Pods wait for the news."""
_PROGRESS_SECONDS = 5.0
_FRESH_SECONDS = 30.0
_LOST_SECONDS = 600.0
_MAX_NODES = 10_000


class Agents(Protocol):
    """Agents of nodes, wherever they run."""

    async def exchange(self, wants: Mapping[str, NodeWant]) -> Mapping[str, NodeReport]:
        """Tell each node's agent what is wanted there; returns what those that answered tell, by node.

        Raises:
            AiModelsError: none can be asked now.
        """
        ...


class Nodes:
    """What nodes should hold, and what they tell.

    Args:
        agents: who is told and asked.
        changed: is awaited when there is something new to show.
        clock: monotonic seconds.
    """

    def __init__(
        self, agents: Agents, changed: Callable[[], Awaitable[None]], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._agents, self._changed, self._clock = agents, changed, clock
        self._wants: dict[str, NodeWant] = {}
        self._heard: dict[str, float] = {}
        self._latest: dict[str, NodeReport] = {}
        self._shown: tuple[NodeReport, ...] = ()
        self._told = asyncio.Event()
        self._shown_at = float("-inf")

    def put(self, want: NodeWant) -> None:
        """Take in what a node should hold.

        Raises:
            UsageError: more nodes than there can be.
        """
        if want.node not in self._wants and len(self._wants) >= _MAX_NODES:
            raise UsageError(f"nodes: want at most {_MAX_NODES}")
        self._wants[want.node] = want
        self._told.set()

    @property
    def reports(self) -> tuple[NodeReport, ...]:
        """What agents told, as it was last shown."""
        return self._shown

    async def run(self) -> None:
        """Ask for ever: soon when there is something new to tell or something is on its way, else now and then."""
        while True:
            self._told.clear()
            try:
                await self.ask()
            except AiModelsError as error:
                log.warning("agents of nodes not asked", extra={"error": error.code, "detail": error.message})
            warming = any(report.warming for report in self._latest.values())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WARMING_SECONDS if warming else ASK_SECONDS):
                    await self._told.wait()

    async def ask(self) -> None:
        """Ask all agents once.

        Raises:
            AiModelsError: none can be asked now.
        """
        found = await self._agents.exchange(dict(self._wants))
        now = self._clock()
        self._heard |= dict.fromkeys(found, now)
        self._latest |= found
        for node in [node for node, at in self._heard.items() if now - at > _LOST_SECONDS]:
            del self._heard[node], self._latest[node]
        latest = tuple(self._latest[node] for node in sorted(self._latest))
        age = now - self._shown_at
        due = _gist(latest) != _gist(self._shown) or (age >= _PROGRESS_SECONDS and _moved(latest, self._shown))
        if due or (latest and age >= _FRESH_SECONDS):
            self._shown, self._shown_at = latest, now
            await self._changed()


def _gist(reports: tuple[NodeReport, ...]) -> object:
    """What of reports matters at once: all but times, free bytes and progress."""
    return [
        (
            one.node,
            one.trouble,
            [(device.id, device.trouble) for device in one.devices],
            one.held,
            [(warming.digest, warming.trouble, warming.no_room) for warming in one.warming],
        )
        for one in reports
    ]


def _moved(new: tuple[NodeReport, ...], old: tuple[NodeReport, ...]) -> bool:
    return [one.warming for one in new] != [one.warming for one in old]
