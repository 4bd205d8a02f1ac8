"""HTTP requests under one policy: deadlines, a retry budget, maximum lengths, careful redirects, redacted messages.

For small answers and bounded ranges from sources and registries. Movers take `connect` and read by themselves.
Which host may be reached is decided in `aimodels_core.hosts`; connections are opened in `aimodels_core.dial`.
"""

import dataclasses
import functools
import http.client
import logging
import random
import threading
import time
import urllib.parse
from collections.abc import Callable, Collection, Mapping

from aimodels_core import answers, hosts
from aimodels_core.answers import Answer, Request
from aimodels_core.connections import Connections
from aimodels_core.dial import connect
from aimodels_core.errors import Cancelled, RateLimited, SourceUnavailable, TransientError, UsageError
from aimodels_core.hosts import HostRules, redact
from aimodels_core.proxies import DIRECT, Proxies

__all__ = ["Answer", "HostRules", "Policy", "Transport", "connect", "redact"]

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_RETRIED = frozenset({408, 425, 429})
_BOUND_TO_ORIGIN = frozenset({"authorization", "cookie", "proxy-authorization", "x-auth-token"})
# A second try of the same request would give the same answer.
_FINAL = frozenset(
    {"AddressRefused", "Encoded", "ForeignRedirect", "RedirectLoop", "TlsFailed", "TooLong", "UnexpectedStatus"}
)
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 20.0

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Policy:
    """How long and how often to try.

    Args:
        connect_seconds: for the connection and its TLS handshake.
        read_seconds: longest silence of the other side.
        attempts: tries of one call; answers 429 do not count.
        budget_seconds: no new try starts later than this after the first one.
        max_redirects: followed within one try.
        slowest_bytes_per_second: a body that comes slower than this ends the try.
    """

    connect_seconds: float = 10.0
    read_seconds: float = 30.0
    attempts: int = 5
    budget_seconds: float = 60.0
    max_redirects: int = 5
    slowest_bytes_per_second: float = 64 * 1024


class Transport:
    """Makes requests, keeps connections alive. Safe from several threads."""

    def __init__(
        self,
        rules: HostRules,
        *,
        policy: Policy = Policy(),
        ca_file: str = "",
        authorities: str = "",
        proxies: Proxies = DIRECT,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.rules = rules
        self.policy = policy
        self._proxies = proxies
        self._aborted = threading.Event()
        self._clock, self._sleep, self._jitter = clock, sleep or self._aborted.wait, jitter
        self._connections = Connections(functools.partial(self._open, ca_file, authorities), clock=clock)

    def _open(self, ca_file: str, authorities: str, place: hosts.Origin) -> http.client.HTTPConnection:
        return connect(
            place.host,
            place.port,
            tls=place.tls,
            ca_file=ca_file,
            trusted=self.rules.may_be_private(place.host),
            timeout_seconds=self.policy.connect_seconds,
            private_cidrs=self.rules.private_cidrs,
            authorities=authorities,
            proxy=self._proxies.find(place.host, place.port, tls=place.tls),
        )

    def call(  # noqa: PLR0913 - everything that a request may say
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] = {},
        body: bytes = b"",
        max_bytes: int,
        follow: bool = False,
        ok: Collection[int] = (200,),
        retry: bool = True,
        into: memoryview | None = None,
    ) -> Answer:
        """Make a request and return its answer, when its status is in `ok` or 4xx (but 408, 425 and 429).

        Args:
            method: such as GET.
            url: https, or http to a host that was set explicitly.
            headers: sent as they are; Authorization and cookies stay behind when a redirect changes the origin.
            body: sent with its length.
            max_bytes: longest body that is accepted; bodies of errors are cut.
            follow: follow redirects within the host rules (GET and HEAD only).
            ok: the statuses that the caller can use.
            retry: try again within the policy; False for one attempt.
            into: where a body of a status in `ok` goes; it must have exactly this length. `Answer.body` is then empty.

        Raises:
            RateLimited: the other side keeps asking to wait.
            SourceUnavailable: everything else; codes DnsFailed, AddressRefused, ConnectFailed, TlsFailed, TimedOut,
                Reset, ShortBody, TooLong, Encoded, BadAnswer, ForeignRedirect, RedirectLoop, UnexpectedStatus,
                ServerError, ProxyFailed.
            SourceDenied: code ProxyRefused: a proxy does not accept the credentials for it.
            UsageError: a URL or header that cannot be sent, or a CA file that cannot be read.
            Cancelled: after `abort`.
        """
        request = Request(method, _checked(url, self.rules), _clean(headers), body, max_bytes, frozenset(ok), into)
        started, tries, attempt = self._clock(), 0, 0
        while True:
            tries += 1
            try:
                return self._settled(request, follow=follow)
            except TransientError as error:
                if self._aborted.is_set():
                    raise Cancelled(f"{redact(url)}: cancelled") from error
                attempt += 0 if isinstance(error, RateLimited) else 1
                pause = self._pause(error, tries)
                late = self._clock() - started + pause > self.policy.budget_seconds
                if not retry or error.code in _FINAL or attempt >= self.policy.attempts or late:
                    raise
                log.debug("retried a request", extra={"url": redact(url), "attempt": attempt, "code": error.code})
            self._sleep(pause)

    def _pause(self, error: TransientError, tries: int) -> float:
        """Return the seconds to wait: what was asked for, else growing, both with jitter so that callers spread."""
        if error.retry_after_seconds is not None:
            return error.retry_after_seconds + self._jitter()
        ceiling = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** min(tries - 1, 10))
        return ceiling * (0.5 + self._jitter() / 2)

    def _settled(self, request: Request, *, follow: bool) -> Answer:
        """Make one try, redirects included, and raise for answers that the caller cannot use."""
        for _ in range(self.policy.max_redirects + 1):
            if self._aborted.is_set():
                raise Cancelled(f"{redact(request.url)}: cancelled")
            answer = self._connections.exchange(request, self._limits(request))
            if not (follow and answer.status in _REDIRECTS and "location" in answer.headers):
                return _usable(answer, request)
            request = self._redirected(request, answer)
        want = f"want at most {self.policy.max_redirects} redirects"
        raise SourceUnavailable(f"{redact(request.url)}: {want}, got more", code="RedirectLoop")

    def _limits(self, request: Request) -> answers.Limits:
        return answers.Limits(self.policy.read_seconds, self.policy.slowest_bytes_per_second, self._clock)

    def _redirected(self, request: Request, answer: Answer) -> Request:
        target = location(request.url, answer.headers["location"])
        if request.method not in {"GET", "HEAD"} or not self.rules.may_redirect(request.url, target):
            raise SourceUnavailable(
                f"{redact(request.url)}: want no redirect to this place, got one to {redact(target)}; "
                "its host can be allowed explicitly",
                code="ForeignRedirect",
            )
        kept = dict(request.headers)
        if hosts.origin(request.url) != hosts.origin(target):
            kept = {name: value for name, value in kept.items() if name.lower() not in _BOUND_TO_ORIGIN}
        return dataclasses.replace(request, url=target, headers=kept)

    def abort(self) -> None:
        """End all requests with Cancelled, at once or when the connection being opened is there; refuse later ones."""
        self._aborted.set()
        self._connections.abort()

    def close(self) -> None:
        """Close the idle connections; the transport can still be used."""
        self._connections.close()


def location(base: str, value: str) -> str:
    """Resolve the Location header `value` of an answer from `base`; characters no URL may have are escaped.

    >>> location("https://hub.example/a/b", "/c d?e=f%20g#h")
    'https://hub.example/c%20d?e=f%20g'
    """
    escaped = urllib.parse.quote(value.strip(), safe="%/:?#[]@!$&'()*+,;=~")
    return urllib.parse.urldefrag(urllib.parse.urljoin(base, escaped)).url


def _checked(url: str, rules: HostRules) -> str:
    try:
        usable = rules.may_use(url) and url.isascii() and url.isprintable() and " " not in url
    except ValueError as error:
        raise UsageError(str(error)) from error
    if not usable:
        raise UsageError(f"{redact(url)}: want an escaped https URL (http only for hosts that are set explicitly)")
    return url


def _clean(headers: Mapping[str, str]) -> dict[str, str]:
    """Check headers here, since http.client puts the values that it refuses into its exceptions."""
    for name, value in headers.items():
        if not value.isascii() or not value.isprintable() or not name.isascii() or not name.isprintable():
            raise UsageError(f"header {name[:40]!r}: want printable ASCII, got other characters")
    return {**headers, "Accept-Encoding": "identity"}


def _usable(answer: Answer, request: Request) -> Answer:
    status, shown = answer.status, redact(answer.url)
    if status in request.ok:
        return answer
    wait = answers.retry_after(answer.headers)
    if status == 429:
        raise RateLimited(f"{shown}: asked to wait, got status 429", retry_after_seconds=wait)
    if status >= 500 or status in _RETRIED:
        raise SourceUnavailable(f"{shown}: got status {status}", code="ServerError", retry_after_seconds=wait)
    if status >= 400:
        return answer
    want = " or ".join(map(str, sorted(request.ok)))
    raise SourceUnavailable(f"{shown}: want status {want}, got {status}", code="UnexpectedStatus")
