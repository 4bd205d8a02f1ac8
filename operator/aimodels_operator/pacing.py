"""Rate limits: one bucket for all writes to the API server, urgent ones first; and back-off."""

import asyncio
import heapq
import itertools
import random
import time
from collections.abc import Callable


class Bucket:
    """A token bucket whose waiters are let through by urgency, then in order.

    Args:
        per_second: most tokens that are taken in any second, a burst included.
        burst: most tokens that wait; less than `per_second`.
        clock: seconds, monotonic.
    """

    def __init__(self, per_second: float, burst: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second - burst
        self._burst = burst
        self._clock = clock
        self._tokens = burst
        self._filled_at = clock()
        self._order = itertools.count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._timer: asyncio.TimerHandle | None = None

    async def take(self, urgency: int) -> None:
        """Wait for a token; a lower urgency number goes first."""
        self._fill()
        if not self._waiting and self._tokens >= 1.0:
            self._tokens -= 1.0
            return
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (urgency, next(self._order), future))
        self._arm()
        await future

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def _fill(self) -> None:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._per_second)
        self._filled_at = now

    def _arm(self) -> None:
        if self._timer is None and self._waiting:
            delay = max(0.0, (1.0 - self._tokens) / self._per_second)
            self._timer = asyncio.get_running_loop().call_later(delay, self._let_through)

    def _let_through(self) -> None:
        self._timer = None
        self._fill()
        while self._waiting and self._tokens >= 1.0:
            _, _, future = heapq.heappop(self._waiting)
            if not future.done():
                self._tokens -= 1.0
                future.set_result(None)
        self._arm()


def back_off(failures: int, *, first_seconds: float = 0.5, most_seconds: float = 60.0) -> float:
    """Seconds to wait after the n-th failure in a row, from 1: doubled each time, with jitter."""
    pause = min(most_seconds, first_seconds * 2.0 ** min(max(failures, 1) - 1, 16))
    return pause * random.uniform(0.7, 1.0)  # noqa: S311 - jitter
