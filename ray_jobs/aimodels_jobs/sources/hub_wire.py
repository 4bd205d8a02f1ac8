"""Requests to one hub: each passes the gate, is counted, and is tried again within one budget.

The token is put on here and goes to the endpoint's own origin only. What the answers mean is decided in `hub_answers`.
"""

import dataclasses
import hashlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

from aimodels_core import hosts
from aimodels_core.answers import retry_after
from aimodels_core.errors import RateLimited, SourceUnavailable, TransientError
from aimodels_core.source import Gate
from aimodels_core.transport import Answer, Transport, location, redact

API = "api"
RESOLVE = "resolve"

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_USABLE = frozenset({200, 206, 408, 425, 429, 500, 502, 503, 504, *_REDIRECTS})
_RETRIED = frozenset({408, 425})
_FINAL = frozenset({"AddressRefused", "TlsFailed", "ForeignRedirect", "RedirectLoop"})
_UNSAID_SECONDS = 1.0
_ASKED_TO_WAIT = "TooManyRequests"
_MAX_REDIRECTS = 5
_SMALL_BYTES = 64 * 1024
_USER_AGENT = "ai-models"


@dataclasses.dataclass(frozen=True, slots=True)
class Patience:
    """How long and how often to try one thing.

    Args:
        attempts: tries; those that were asked to wait do not count.
        budget_seconds: no try starts later than this after the first, waits that were asked for not counted.
        waits_seconds: longest sum of the waits that the other side asked for. A hub counts in windows of 300 s.
        first_pause_seconds: pause before the second try; it doubles.
    """

    attempts: int = 5
    budget_seconds: float = 60.0
    waits_seconds: float = 330.0
    first_pause_seconds: float = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class Clock:
    """Time, as the source sees it.

    Args:
        now: Unix seconds.
        monotonic: seconds that never jump.
        sleep: wait that many seconds.
        jitter: a number in [0, 1).
    """

    now: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = random.random


class Tries:
    """The tries of one thing: pauses between them, or raises what ended the last when the budget is spent.

    Waits that a host asked for are kept by the gate and by `HubWire`, for all callers together; here they are counted.
    """

    def __init__(self, patience: Patience, clock: Clock) -> None:
        self._patience, self._clock = patience, clock
        self._started = clock.monotonic()
        self._failed = 0
        self._waited_seconds = 0.0

    def again(self, error: TransientError) -> None:
        """Pause before the next try.

        Raises:
            TransientError: `error` itself, when there is no next try.
        """
        if isinstance(error, RateLimited):
            self._count(error)
            return
        self._failed += 1
        pause = self._patience.first_pause_seconds * 2.0 ** (self._failed - 1) * (0.5 + self._clock.jitter() / 2)
        pause = max(pause, error.retry_after_seconds or 0.0)
        spent = self._clock.monotonic() - self._started - self._waited_seconds + pause
        if error.code in _FINAL or self._failed >= self._patience.attempts or spent > self._patience.budget_seconds:
            raise error
        self._clock.sleep(pause)

    def _count(self, error: RateLimited) -> None:
        """Count a wait that was asked for; the next request to that host keeps it."""
        if error.code != _ASKED_TO_WAIT:
            raise error  # the gate said that the wait is too long; it knows of everybody's requests
        self._waited_seconds += _asked_seconds(error)
        if self._waited_seconds > self._patience.waits_seconds:
            raise error


class HubWire:
    """Asks one hub with one token. Safe from several threads."""

    def __init__(
        self, endpoint: str, *, token: str, transport: Transport, gate: Gate, patience: Patience, clock: Clock
    ) -> None:
        place = hosts.origin(endpoint)
        self.host = host_port(endpoint)
        self.with_token = bool(token)
        self._origin = place
        self._token = token
        self._identity = f"token-{hashlib.sha256(token.encode()).hexdigest()[:12]}" if token else "anonymous"
        self._transport, self._gate = transport, gate
        self._patience, self._clock = patience, clock
        self._made: Counter[str] = Counter({API: 0, RESOLVE: 0})
        self._not_before: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close idle connections; the wire can still be used."""
        self._transport.close()

    def requests_made(self) -> Mapping[str, int]:
        """Count the requests to the hub's own host so far, by class."""
        with self._lock:
            return dict(self._made)

    def is_own(self, url: str) -> bool:
        """Tell whether `url` has the endpoint's own origin, the only one that may see the token."""
        try:
            return hosts.origin(url) == self._origin
        except ValueError:
            return False

    def credentials(self) -> tuple[tuple[str, str], ...]:
        """Return the headers that open the endpoint's own origin."""
        return (("Authorization", f"Bearer {self._token}"),) if self._token else ()

    def tries(self) -> Tries:
        """Begin the tries of one thing."""
        return Tries(self._patience, self._clock)

    def ask(self, url: str, *, kind: str, headers: Mapping[str, str] | None = None, max_bytes: int) -> Answer:
        """GET a URL of the hub's own origin; redirects are returned, not followed.

        Args:
            url: absolute and escaped.
            kind: `api` or `resolve`.
            headers: besides the token.
            max_bytes: longest body that is accepted.

        Returns:
            An answer 200, 206, 3xx or 4xx (but 408, 425 and 429).

        Raises:
            SourceUnavailable, RateLimited: when the budget is spent.
        """
        tries = self.tries()
        while True:
            try:
                return self.ask_once(url, kind=kind, headers=headers, max_bytes=max_bytes)
            except TransientError as error:
                tries.again(error)

    def ask_once(self, url: str, *, kind: str, headers: Mapping[str, str] | None = None, max_bytes: int) -> Answer:
        """Do one try of `ask`.

        Raises:
            SourceUnavailable, RateLimited.
        """
        if not self.is_own(url):
            raise SourceUnavailable(f"{redact(url)}: want the host {self.host}, got another", code="ForeignRedirect")
        self._gate.wait(self.host, kind, self._identity)
        self._hold(self.host, kind)
        with self._lock:
            self._made[kind] += 1
        answer = self._send(url, {**(headers or {}), **dict(self.credentials())}, max_bytes)
        self._gate.learn(self.host, kind, self._identity, answer.status, answer.headers)
        return self._usable(answer, self.host, kind)

    def follow(self, url: str, *, kind: str, max_bytes: int) -> Answer:
        """Do as `ask`, and follow redirects that stay on the hub's own origin: renamed repositories answer so.

        Raises:
            SourceUnavailable: also codes ForeignRedirect and RedirectLoop.
            RateLimited: when the budget is spent.
        """
        for _ in range(_MAX_REDIRECTS + 1):
            answer = self.ask(url, kind=kind, max_bytes=max_bytes)
            target = redirect(answer)
            if target is None:
                return answer
            url = target
        raise SourceUnavailable(f"{redact(url)}: want at most {_MAX_REDIRECTS} redirects", code="RedirectLoop")

    def fetch_once(self, url: str, *, headers: Mapping[str, str], max_bytes: int) -> Answer:
        """GET a URL of any host once, without the token and past the gate; redirects are returned.

        Raises:
            SourceUnavailable, RateLimited.
        """
        host = host_port(url)
        self._hold(host, "")
        return self._usable(self._send(url, headers, max_bytes), host, "")

    def _hold(self, host: str, kind: str) -> None:
        """Wait as a host asked, for whoever asks it next. A gate that has waited already leaves nothing to wait for."""
        with self._lock:
            pause = self._not_before.get((host, kind), 0.0) - self._clock.monotonic()
        if pause > 0:
            self._clock.sleep(pause + self._clock.jitter())

    def _usable(self, answer: Answer, host: str, kind: str) -> Answer:
        try:
            return _usable(answer)
        except RateLimited as error:
            until = self._clock.monotonic() + _asked_seconds(error)
            with self._lock:
                self._not_before[host, kind] = max(until, self._not_before.get((host, kind), 0.0))
            raise

    def _send(self, url: str, headers: Mapping[str, str], max_bytes: int) -> Answer:
        return self._transport.call(
            "GET",
            url,
            headers={"User-Agent": _USER_AGENT, **headers},
            max_bytes=max(max_bytes, _SMALL_BYTES),
            ok=_USABLE,
            retry=False,
        )


def redirect(answer: Answer) -> str | None:
    """Return where an answer sends us, absolute; None when it does not.

    Raises:
        SourceUnavailable: code BadAnswer: a redirect to nowhere.
    """
    if answer.status not in _REDIRECTS:
        return None
    if not answer.headers.get("location"):
        raise SourceUnavailable(f"{redact(answer.url)}: want a Location, got none", code="BadAnswer")
    return location(answer.url, answer.headers["location"])


def host_port(url: str) -> str:
    """Return host and port of a URL, the port only where it is not the scheme's own.

    >>> host_port("https://cdn.hf.co/a"), host_port("http://127.0.0.1:8080/a")
    ('cdn.hf.co', '127.0.0.1:8080')
    """
    place = hosts.origin(url)
    host = f"[{place.host}]" if ":" in place.host else place.host
    return host if place.port == (443 if place.tls else 80) else f"{host}:{place.port}"


def _asked_seconds(error: RateLimited) -> float:
    return _UNSAID_SECONDS if error.retry_after_seconds is None else error.retry_after_seconds


def _usable(answer: Answer) -> Answer:
    """Raise for answers that another try may better."""
    status, wait = answer.status, retry_after(answer.headers)
    shown = redact(answer.url)
    if status == 429:
        raise RateLimited(f"{shown}: asked to wait, got status 429", code=_ASKED_TO_WAIT, retry_after_seconds=wait)
    if status >= 500 or status in _RETRIED:
        raise SourceUnavailable(f"{shown}: got status {status}", code="ServerError", retry_after_seconds=wait)
    return answer
