"""Counters of one publication, and the rate and estimate derived from them. No I/O; the clock is passed in."""

import collections
import time
from collections.abc import Callable
from typing import Protocol

_WINDOW_SECONDS = 10.0


class InFlight(Protocol):
    """Something that has received bytes which are not counted yet."""

    @property
    def received_bytes(self) -> int:
        """Payload bytes so far."""
        ...


class Meter:
    """Counts what a publication has moved.

    Args:
        bytes_transferred: what earlier attempts moved.
        tell: told of the payload bytes of each transfer.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        bytes_transferred: int = 0,
        tell: Callable[[int], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tell = tell
        self._clock = clock
        self.started = clock()
        self.bytes_total = 0
        self.bytes_reused = 0
        self.bytes_transferred = bytes_transferred
        self._hashed = 0
        self._flights: set[InFlight] = set()
        self._samples: collections.deque[tuple[float, int]] = collections.deque()

    def add_transferred(self, size_bytes: int) -> None:
        """Count payload bytes that came over the wire, repeats included."""
        self.bytes_transferred += size_bytes
        self._tell(size_bytes)

    def add_hashed(self, size_bytes: int) -> None:
        """Count bytes that were verified, or were kept from an earlier process."""
        self._hashed += size_bytes

    def watch(self, flight: InFlight) -> None:
        """Count what a flight has received until it is hashed."""
        self._flights.add(flight)

    def forget(self, flight: InFlight) -> None:
        """Stop counting a flight."""
        self._flights.discard(flight)

    @property
    def bytes_done(self) -> int:
        """Bytes reused, hashed, or received by movers."""
        done = self.bytes_reused + self._hashed + sum(f.received_bytes for f in self._flights)
        return min(done, self.bytes_total)

    @property
    def seconds(self) -> float:
        """Since the start."""
        return self._clock() - self.started

    def rate(self) -> float:
        """Bytes per second over the last seconds; call it regularly."""
        now, done = self._clock(), self.bytes_done
        self._samples.append((now, done))
        while len(self._samples) > 2 and now - self._samples[0][0] > _WINDOW_SECONDS:
            self._samples.popleft()
        then, before = self._samples[0]
        return max(0.0, (done - before) / (now - then)) if now > then else 0.0

    def eta_seconds(self, rate: float) -> float | None:
        """Estimate the seconds that are left at that rate; None when unknown."""
        left = self.bytes_total - self.bytes_done
        if not left:
            return 0.0
        return left / rate if rate > 0 else None
