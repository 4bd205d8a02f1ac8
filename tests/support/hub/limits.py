"""Rate limits of a hub: fixed windows per caller and kind of request. The clock is a parameter."""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self


@dataclass(frozen=True, slots=True)
class Limits:
    """Requests allowed in one window, for callers with and without a token, by kind ("api", "resolvers").

    The defaults are what the hub documents for anonymous callers and for free accounts (per five minutes).
    """

    api: int = 500
    resolvers: int = 3000
    api_with_token: int = 1000
    resolvers_with_token: int = 5000
    window_seconds: float = 300
    retry_after: bool = False
    """Whether a 429 also carries Retry-After (the hub itself relies on its RateLimit header)."""

    @classmethod
    def unlimited(cls) -> Self:
        """Limits that no test reaches, for load."""
        many = 10**9
        return cls(api=many, resolvers=many, api_with_token=many, resolvers_with_token=many)

    def quota(self, kind: str, *, token: bool) -> int:
        """Requests per window of one caller."""
        if kind == "api":
            return self.api_with_token if token else self.api
        return self.resolvers_with_token if token else self.resolvers


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a request may pass, and the headers that say how much is left."""

    allowed: bool
    headers: tuple[tuple[str, str], ...]
    reset_seconds: int


@dataclass(slots=True)
class RateLimiter:
    """Counts requests per caller and kind."""

    limits: Limits
    clock: Callable[[], float]
    _windows: dict[tuple[str, str], tuple[float, int]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, kind: str, caller: str, *, token: bool) -> Verdict:
        """Count one request of a caller."""
        quota = self.limits.quota(kind, token=token)
        now = self.clock()
        with self._lock:
            opened, used = self._windows.get((kind, caller), (now, 0))
            if now - opened >= self.limits.window_seconds:
                opened, used = now, 0
            self._windows[kind, caller] = (opened, min(used + 1, quota + 1))
        left = max(0, quota - used - 1)
        reset = max(0, math.ceil(opened + self.limits.window_seconds - now))
        window = math.ceil(self.limits.window_seconds)
        headers = (
            ("RateLimit", f'"{kind}";r={left};t={reset}'),
            ("RateLimit-Policy", f'"fixed window";"{kind}";q={quota};w={window}'),
        )
        return Verdict(used < quota, headers, reset)
