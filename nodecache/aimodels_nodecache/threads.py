"""Where calls that block are made: in threads of this process, each to its end."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Protocol, TypeVar

T = TypeVar("T")


class Threads(Protocol):
    """Runs what blocks."""

    async def __call__(self, work: Callable[[], T]) -> T:
        """Run it to its end, though the caller is cancelled meanwhile."""
        ...


class InThreads:
    """Runs what blocks in an executor, to its end.

    Args:
        executor: of this process's mounts.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def __call__(self, work: Callable[[], T]) -> T:
        """Run it; a cancelled caller goes on only when it has ended, so that no two work at one volume."""
        running = asyncio.get_running_loop().run_in_executor(self._executor, work)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait({running})
            raise
