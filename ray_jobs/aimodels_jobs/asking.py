"""A source asked from an event loop: calls in threads, patient while the source limits its rate, cancelled at once.

A rate limit is no failure: it uses up no attempt and loses nothing that is under way. Whoever waits says so.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import ParamSpec, TypeVar

from aimodels_core.errors import RateLimited
from aimodels_core.source import ReadTicket, ResolvedSource, Source, SourceFile
from aimodels_jobs.threads import Threads

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_LEAST_SECONDS = 1.0
_MOST_SECONDS = 300.0
_IN_ALL_SECONDS = 3600.0

OnLimit = Callable[[RateLimited | None], Awaitable[None]]


class Asking:
    """A source behind a thread pool.

    Args:
        source: the source.
        threads: where its calls block.
        on_limit: told when a call begins to wait for the source's rate limit, and with None when it goes on.
    """

    def __init__(self, source: Source, threads: Threads, on_limit: OnLimit) -> None:
        self._source = source
        self._threads = threads
        self._on_limit = on_limit

    async def resolve(self) -> ResolvedSource:
        """See `Source.resolve`."""
        return await self._ask(self._source.resolve)

    async def ticket(self, file: SourceFile) -> ReadTicket:
        """See `Source.ticket`."""
        return await self._ask(self._source.ticket, file)

    async def renew(self, file: SourceFile, refused: ReadTicket) -> ReadTicket:
        """See `Source.renew`."""
        return await self._ask(self._source.renew, file, refused)

    async def read(self, file: SourceFile, start: int, stop: int) -> bytes:
        """See `Source.read`."""
        return await self._ask(self._source.read, file, start, stop)

    def requests_made(self) -> Mapping[str, int]:
        """See `Source.requests_made`."""
        return self._source.requests_made()

    def abort(self) -> None:
        """See `Source.abort`."""
        self._source.abort()

    async def _ask(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        waited = 0.0
        while True:
            try:
                answer = await self._threads.run(call, *args, **kwargs)
            except RateLimited as error:
                pause = min(max(error.retry_after_seconds or 0.0, _LEAST_SECONDS), _MOST_SECONDS)
                pause += random.uniform(0.0, 1.0)  # noqa: S311 - jitter
                waited += pause
                if waited > _IN_ALL_SECONDS:
                    raise
                log.info("source limits its rate", extra={"seconds": round(pause, 1)})
                await self._on_limit(error)
                await asyncio.sleep(pause)
            else:
                if waited:
                    await self._on_limit(None)
                return answer
