"""The governor of sources (design 4.10): how fast and how wide a source may be asked, for all publications together.

`RateGate` paces requests to a hub by the hub's own RateLimit headers; `Connections` bounds and adapts the connections
and the bytes per second to each host that serves payload. Neither knows what is being fetched.
"""

import dataclasses
import random
import re
import threading
import time
from collections.abc import Callable, Mapping

from aimodels_core import answers
from aimodels_core.errors import RateLimited

_BACK_OFF_SECONDS = 5.0
_BACK_OFF_MAX_SECONDS = 300.0
_ITEM = re.compile(r';\s*([a-z]+)\s*=\s*"?(\d{1,9})(?!\d)"?')


def parse_rate_limit(value: str) -> dict[str, int]:
    """Parse the parameters of a RateLimit or RateLimit-Policy field (draft-ietf-httpapi-ratelimit-headers, section 4).

    >>> parse_rate_limit('"api";r=489;t=189')
    {'r': 489, 't': 189}
    """
    return {name: int(number) for name, number in _ITEM.findall(value[:512])}


@dataclasses.dataclass(slots=True)
class _Window:
    """What is known of one (host, kind, identity)."""

    remaining: int | None = None
    resets_at: float = 0.0
    blocked_until: float = 0.0
    refusals: int = 0


class RateGate:
    """Paces requests per (host, kind, identity); one refusal slows every task that shares the key.

    Args:
        longest_wait_seconds: a longer wait is refused with RateLimited, so that the caller waits where it can be shown
            and cancelled.
        clock: monotonic seconds.
        jitter: in [0, 1).
    """

    def __init__(
        self,
        *,
        longest_wait_seconds: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._longest = longest_wait_seconds
        self._clock = clock
        self._jitter = jitter
        self._windows: dict[tuple[str, str, str], _Window] = {}
        self._changed = threading.Condition()
        self.waited_seconds = 0.0

    def _window(self, host: str, kind: str, identity: str) -> _Window:
        return self._windows.setdefault((host, kind, identity), _Window())

    def wait(self, host: str, kind: str, identity: str) -> None:
        """Block until a request may be sent (see `aimodels_core.source.Gate`)."""
        started = self._clock()
        with self._changed:
            while (pause := self._pause(self._window(host, kind, identity))) > 0:
                left = started + self._longest - self._clock()
                if pause > left:
                    raise RateLimited(
                        f"{host}: {kind} requests are limited for {pause:.0f} s more", retry_after_seconds=pause
                    )
                self._changed.wait(pause)
            window = self._window(host, kind, identity)
            if window.remaining is not None:
                window.remaining -= 1
            self.waited_seconds += self._clock() - started

    def _pause(self, window: _Window) -> float:
        now = self._clock()
        if window.blocked_until > now:
            return window.blocked_until - now
        if window.remaining is not None and window.resets_at <= now:
            window.remaining = None
        if window.remaining is not None and window.remaining <= 0:
            return window.resets_at - now
        return 0.0

    def learn(self, host: str, kind: str, identity: str, status: int, headers: Mapping[str, str]) -> None:
        """Take in an answer (see `aimodels_core.source.Gate`)."""
        limit = parse_rate_limit(headers.get("ratelimit", ""))
        now = self._clock()
        with self._changed:
            window = self._window(host, kind, identity)
            if "r" in limit and "t" in limit:
                window.remaining, window.resets_at = limit["r"], now + min(limit["t"], _BACK_OFF_MAX_SECONDS)
            if status == 429:
                window.refusals += 1
                window.blocked_until = max(window.blocked_until, now + self._back_off(window, headers, limit))
            elif status < 500:
                window.refusals = 0
            self._changed.notify_all()

    def _back_off(self, window: _Window, headers: Mapping[str, str], limit: Mapping[str, int]) -> float:
        asked = answers.retry_after(headers)
        if asked is not None:
            return min(asked, _BACK_OFF_MAX_SECONDS) + self._jitter()
        if "t" in limit and not limit.get("r", 0):  # with requests left, another limit than the window's refused
            return min(float(limit["t"]), _BACK_OFF_MAX_SECONDS) + self._jitter()
        doubled = _BACK_OFF_SECONDS * 2.0 ** min(window.refusals - 1, 6)
        return float(min(doubled, _BACK_OFF_MAX_SECONDS) * (0.5 + self._jitter() / 2))


@dataclasses.dataclass(slots=True)
class _Host:
    limit: float
    used: int = 0
    cooled_until: float = 0.0
    next_start: float = 0.0


class Connections:
    """Connections and bytes per second to each payload host. Not thread-safe: lives in the coordinator's loop.

    A host starts at the most that is allowed; trouble halves it, at most once a second; each clean run gives one eighth
    of a connection back.

    Args:
        most: connections per host, for all movers together.
        bytes_per_second: cap per host; 0 for none.
        clock: monotonic seconds.
    """

    def __init__(
        self, most: int, *, bytes_per_second: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._rate = bytes_per_second
        self._clock = clock
        self._hosts: dict[str, _Host] = {}

    def _host(self, host: str) -> _Host:
        return self._hosts.setdefault(host, _Host(float(self._most)))

    def grant(self, host: str, wanted: int, size_bytes: int) -> int:
        """Grant up to `wanted` connections for `size_bytes`; 0 when none is free now."""
        state = self._host(host)
        now = self._clock()
        granted = min(wanted, int(state.limit) - state.used)
        if granted <= 0 or now < state.cooled_until or now < state.next_start:
            return 0
        if self._rate:
            state.next_start = max(now, state.next_start) + size_bytes / self._rate
        state.used += granted
        return granted

    def give_back(self, host: str, granted: int) -> None:
        """Return granted connections."""
        self._host(host).used -= granted

    def went_well(self, host: str) -> None:
        """A run ended without trouble: creep back up."""
        state = self._host(host)
        state.limit = min(float(self._most), state.limit + 0.125)

    def had_trouble(self, host: str, *, pause_seconds: float = 0.0) -> None:
        """The host refused (429, 503) or stalled: halve, and leave it alone for a while."""
        state = self._host(host)
        now = self._clock()
        if now >= state.cooled_until:
            state.limit = max(1.0, state.limit / 2)
        state.cooled_until = max(state.cooled_until, now + max(1.0, min(pause_seconds, _BACK_OFF_MAX_SECONDS)))

    def limit(self, host: str) -> int:
        """Say how many connections the host may have now."""
        return int(self._host(host).limit)

    def wake_after(self, host: str) -> float | None:
        """Say in how many seconds `grant` may succeed without anything being given back; None when never."""
        state = self._host(host)
        if int(state.limit) <= state.used:
            return None
        return max(0.0, max(state.cooled_until, state.next_start) - self._clock())
