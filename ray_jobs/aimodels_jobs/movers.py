"""The movers of one coordinator, started when the first publication has something to move."""

import asyncio
from collections.abc import Awaitable, Callable

from aimodels_jobs.dispatch import Dispatcher
from aimodels_jobs.executor import Executor
from aimodels_jobs.governor import Connections


class Movers:
    """The dispatcher, made on demand.

    Args:
        choose: makes the executor, told how many bytes are waiting to be moved.
        connections: the governor of payload hosts.
    """

    def __init__(self, choose: Callable[[int], Awaitable[Executor]], connections: Connections) -> None:
        self._choose = choose
        self.connections = connections
        self._lock = asyncio.Lock()
        self.executor: Executor | None = None
        self.dispatcher: Dispatcher | None = None

    @property
    def count(self) -> int:
        """How many movers there are now."""
        return len(self.dispatcher.slots) if self.dispatcher else 0

    async def get(self, bytes_to_move: int) -> Dispatcher:
        """Return the dispatcher, starting movers if there are none.

        Raises:
            MoverLost: movers do not start.
        """
        async with self._lock:
            if self.dispatcher is None:
                executor = await self._choose(bytes_to_move)
                dispatcher = Dispatcher(executor, self.connections)
                try:
                    await dispatcher.start()
                except BaseException:
                    await executor.close()
                    raise
                self.executor, self.dispatcher = executor, dispatcher
            return self.dispatcher

    async def close(self) -> None:
        """Stop the movers."""
        if self.dispatcher:
            await self.dispatcher.close()
        if self.executor:
            await self.executor.close()
