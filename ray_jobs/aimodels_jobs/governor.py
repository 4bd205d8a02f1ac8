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
_WINDOW_SECONDS = 0.8
_REST_SECONDS = 0.2
_LOOK_AGAIN_SECONDS = 30.0
_WORTH_IT = 1.3
_FIRST_PER_MOVER = 4
_MOST_PER_MOVER = 16
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


@dataclasses.dataclass(slots=True)
class Throttled:
    """What a class of requests to sources was held up by.

    Args:
        seconds: that requests waited, or that a host was left alone.
        refusals: answers that asked to slow down.
    """

    seconds: float = 0.0
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
        self.throttled: dict[str, Throttled] = {}
        """By kind of request, since the start."""

    def _window(self, host: str, kind: str, identity: str) -> _Window:
        return self._windows.setdefault((host, kind, identity), _Window())

    def wait(self, host: str, kind: str, identity: str) -> None:
        """Block until a request may be sent (see `aimodels_core.source.Gate`)."""
        started = self._clock()
        with self._changed:
            while (pause := self._pause(self._window(host, kind, identity))) > 0:
                left = started + self._longest - self._clock()
                if pause > left:
                    self._throttled(kind).seconds += pause + self._clock() - started
                    raise RateLimited(
                        f"{host}: {kind} requests are limited for {pause:.0f} s more", retry_after_seconds=pause
                    )
                self._changed.wait(pause)
            window = self._window(host, kind, identity)
            if window.remaining is not None:
                window.remaining -= 1
            self.waited_seconds += self._clock() - started
            self._throttled(kind).seconds += self._clock() - started

    def _throttled(self, kind: str) -> Throttled:
        return self.throttled.setdefault(kind, Throttled())

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
                self._throttled(kind).refusals += 1
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


class Climb:
    """Finds how many connections to a host are worth having, by how many bytes came in a window of time.

    Each connection costs memory and a thread, so a near source gets few and a slow one many: the number doubles while
    that brings clearly more, and goes to the most at once where not even one run came within a window. What was found
    is looked at again after a while.

    Args:
        first: connections to begin with.
        most: never more.
    """

    def __init__(self, first: int, most: int) -> None:
        self._most = most
        self.allowed = min(first, most)
        self._began: float | None = None
        self._bytes = 0
        self._before = 0.0
        self._settled_until = 0.0
        self._resting_since: float | None = None

    def rest(self, now: float) -> None:
        """Nothing is under way from now on: a longer rest says nothing about the host."""
        self._resting_since = now

    def look(self, now: float, moved_bytes: int = 0) -> None:
        """Take in that a run of so many bytes has ended, or just that time has passed."""
        rested = self._resting_since is not None and now - self._resting_since > _REST_SECONDS
        if self._began is None or rested:
            self._began, self._bytes = now, 0
        self._resting_since = None
        self._bytes += moved_bytes
        if self.ends_after(now) != 0.0:
            return
        rate = self._bytes / (now - self._began)
        self._began, self._bytes = now, 0
        if not rate:
            self.allowed = self._most
        elif self.allowed < self._most and rate >= self._before * _WORTH_IT:
            self.allowed, self._before = min(self._most, self.allowed * 2), rate
            return
        elif self._before and rate < self._before * _WORTH_IT:
            self.allowed = max(1, self.allowed // 2)
        self._before, self._settled_until = 0.0, now + _LOOK_AGAIN_SECONDS

    def ends_after(self, now: float) -> float | None:
        """Say in how many seconds the window ends; None when there is none."""
        if self._began is None or now < self._settled_until:
            return None
        return max(0.0, self._began + _WINDOW_SECONDS - now)


@dataclasses.dataclass(slots=True)
class _Host:
    limit: float
    climb: Climb
    used: int = 0
    cooled_until: float = 0.0
    next_start: float = 0.0


class Connections:
    """Connections and bytes per second to each payload host. Not thread-safe: lives in the coordinator's loop.

    What may be used is the smaller of two: what the host bears (trouble halves it, at most once a second; each clean
    run gives one eighth of a connection back), and what is worth having (`Climb`).

    Args:
        most: connections per host, for all movers together.
        first: how many to try first; 0 for the most at once.
        bytes_per_second: cap per host; 0 for none.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        most: int,
        *,
        first: int = 0,
        bytes_per_second: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._first = first or most
        self._rate = bytes_per_second
        self._clock = clock
        self._hosts: dict[str, _Host] = {}
        self.throttled = Throttled()
        """Of all hosts, since the start."""

    @classmethod
    def of(cls, asked: int, *, movers: int) -> "Connections":
        """What a number of movers may have: as many as were asked for, or what proves worth having when 0."""
        return cls(asked) if asked else cls(_MOST_PER_MOVER * movers, first=_FIRST_PER_MOVER * movers)

    def _host(self, host: str) -> _Host:
        known = self._hosts.get(host)
        if known is None:
            known = self._hosts[host] = _Host(float(self._most), Climb(self._first, self._most))
        return known

    def grant(self, host: str, wanted: int, size_bytes: int) -> int:
        """Grant up to `wanted` connections for `size_bytes`; 0 when none is free now."""
        state = self._host(host)
        now = self._clock()
        state.climb.look(now)
        granted = min(wanted, self.limit(host) - state.used)
        if granted <= 0 or now < state.cooled_until or now < state.next_start:
            return 0
        if self._rate:
            state.next_start = max(now, state.next_start) + size_bytes / self._rate
        state.used += granted
        return granted

    def give_back(self, host: str, granted: int) -> None:
        """Return granted connections."""
        state = self._host(host)
        state.used -= granted
        if not state.used:
            state.climb.rest(self._clock())

    def went_well(self, host: str, size_bytes: int) -> None:
        """A run of `size_bytes` ended without trouble: creep back up."""
        state = self._host(host)
        state.climb.look(self._clock(), size_bytes)
        state.limit = min(float(self._most), state.limit + 0.125)

    def had_trouble(self, host: str, *, pause_seconds: float = 0.0) -> None:
        """The host refused (429, 503) or stalled: halve, and leave it alone for a while."""
        state = self._host(host)
        now = self._clock()
        if now >= state.cooled_until:
            state.limit = max(1.0, state.limit / 2)
        until = max(state.cooled_until, now + max(1.0, min(pause_seconds, _BACK_OFF_MAX_SECONDS)))
        self.throttled.refusals += 1
        self.throttled.seconds += until - max(state.cooled_until, now)
        state.cooled_until = until

    def limit(self, host: str) -> int:
        """Say how many connections the host may have now."""
        state = self._host(host)
        return min(int(state.limit), state.climb.allowed)

    def wake_after(self, host: str) -> float | None:
        """Say in how many seconds `grant` may succeed without anything being given back; None when never."""
        state = self._host(host)
        now = self._clock()
        if self.limit(host) <= state.used:
            return state.climb.ends_after(now) if state.climb.allowed < int(state.limit) else None
        return max(0.0, max(state.cooled_until, state.next_start) - now)
