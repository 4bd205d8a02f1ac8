"""Collections for space: one begins at once when it is asked for, but not one after another without a pause."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from aimodels_core.errors import AiModelsError

log = logging.getLogger(__name__)

_SHARE_OF_TIME = 10.0


class Sweeper:
    """Runs collections one at a time.

    Args:
        collect: collects the store.
        pause_seconds: between two of them, at least; a long one is followed by ten times its own time.
        still_needed: whether one that failed is to be tried again.
    """

    def __init__(
        self, collect: Callable[[], Awaitable[object]], pause_seconds: float, still_needed: Callable[[], bool]
    ) -> None:
        self._collect = collect
        self._pause_seconds = pause_seconds
        self._still_needed = still_needed
        self._next = 0.0
        self._pass: asyncio.Task[None] | None = None
        self._asked = False
        self._pausing = False

    def ask(self) -> asyncio.Task[None] | None:
        """Have a collection made; its task if one runs or begins at once, None when it comes later by itself."""
        self._asked = True
        if self._pass is None or self._pass.done():
            self._begin()
        return None if self._pausing else self._pass

    async def close(self) -> None:
        """End what runs or waits."""
        if self._pass is not None:
            self._pass.cancel()
            await asyncio.gather(self._pass, return_exceptions=True)

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._pausing = loop.time() < self._next
        self._pass = loop.create_task(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._next - loop.time()))
        self._asked, self._pausing, began = False, False, time.monotonic()
        try:
            await self._collect()
        except AiModelsError as error:
            log.warning("no collection for space", extra={"error": error.code})
            self._asked = self._asked or self._still_needed()
        self._next = loop.time() + max(self._pause_seconds, (time.monotonic() - began) * _SHARE_OF_TIME)
        if self._asked:
            self._begin()
