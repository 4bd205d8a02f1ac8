"""Keys that something may have changed for: each once, when it is due, and never twice at the same time."""

import asyncio
import contextlib
import heapq
import itertools
import time
from collections.abc import Callable


class Dirty:
    """A set of keys with times, for one consumer on one event loop.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, int, str]] = []
        self._order = itertools.count()
        self._busy: set[str] = set()
        self._woken = asyncio.Event()

    def __len__(self) -> int:
        return len(self._due)

    def add(self, key: str, after: float = 0.0) -> None:
        """Have a key looked at, `after` seconds from now or earlier."""
        when = self._clock() + max(0.0, after)
        if self._due.get(key, when + 1.0) <= when:
            return
        self._due[key] = when
        if key not in self._busy:
            self._push(key, when)

    def drop(self, key: str) -> None:
        """Forget a key."""
        self._due.pop(key, None)

    def done(self, key: str) -> None:
        """Say that the work on a key has ended; it is due again if it was added meanwhile."""
        self._busy.discard(key)
        if key in self._due:
            self._push(key, self._due[key])

    async def get(self) -> str:
        """Wait for a key that is due; it stays away from others until `done`."""
        while True:
            self._woken.clear()
            wait = self._next_in()
            if wait is not None and wait <= 0.0:
                _, _, key = heapq.heappop(self._heap)
                del self._due[key]
                self._busy.add(key)
                return key
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._woken.wait()

    def _push(self, key: str, when: float) -> None:
        heapq.heappush(self._heap, (when, next(self._order), key))
        self._woken.set()

    def _next_in(self) -> float | None:
        """Seconds until the first key is due; entries that were overtaken are dropped."""
        while self._heap:
            when, _, key = self._heap[0]
            if self._due.get(key) == when and key not in self._busy:
                return when - self._clock()
            heapq.heappop(self._heap)
        return None
