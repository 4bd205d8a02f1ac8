"""The simulated hub: an API host, a CDN host and a second CDN host, with a log and faults on demand.

with Hub() as hub:
    hub.add(Repository("org/name", {"model.safetensors": content}))
    hub.fault(Fault.TRUNCATE, on=On.CDN, path="model.safetensors", after_bytes=1000, times=2)
    …
    assert hub.log.times_sent("model.safetensors") == {1: size}
"""

import functools
import ipaddress
import json
import secrets
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import trustme

from tests.support.hub import answers, api, cdn, faults
from tests.support.hub.bodies import BytesBody
from tests.support.hub.cdn import Cdn, Target
from tests.support.hub.faults import Fault, Rule, Rules
from tests.support.hub.limits import Limits, RateLimiter
from tests.support.hub.log import Exchange, Log
from tests.support.hub.repository import Access, Commit, File, Repository
from tests.support.hub.routes import On, Route, parse
from tests.support.hub.signing import Signer, Style
from tests.support.hub.wire import Answer, Request, Sent, Server

_PAYLOAD = frozenset({On.CDN, On.RESOLVE, On.CACHE, On.RAW})


class Hub:
    """A running simulator. `tokens` maps accepted tokens to account names; `moved` maps old repository ids to new ones.

    `host` and the CDN names are what URLs say; an IP address is also what the host binds to, any other name is
    served on 127.0.0.1. `port` is that of the API host (0: any free one). `clock` gives unix seconds and rules the
    expiry of URLs and the windows of rate limits.
    """

    def __init__(
        self,
        *,
        tokens: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        page_size: int = 1000,
        url_lifetime_seconds: float = 3600,
        url_style: Style = Style.EXPIRES,
        max_rangeless_bytes: int = 50 * 1000**3,
        resolve_cache: bool = False,
        host: str = "127.0.0.1",
        cdn_host: str = "127.0.0.1",
        other_cdn_host: str = "127.0.0.1",
        tls: bool = False,
        port: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.tokens: dict[str, str] = dict(tokens or {})
        self.page_size = page_size
        self.resolve_cache = resolve_cache
        self.cdn_bytes_per_second: float | None = None
        self.moved: dict[str, str] = {}
        self.log = Log()
        self.rules = Rules()
        self.limiter = RateLimiter(limits or Limits(), clock)
        self.signer = Signer(secrets.token_bytes(32), clock, url_lifetime_seconds, url_style)
        self.cdn = Cdn(self.signer, max_rangeless_bytes)
        self._repositories: dict[str, Repository] = {}
        names = [host, cdn_host, other_cdn_host]
        self._authority = trustme.CA() if tls else None
        context = self._context(names)
        respond = functools.partial(Server, tls=context)
        scheme = "http" if context is None else "https"
        self._api_server = respond(_address(host), self._on_api, port=port)
        throttle = functools.partial(getattr, self, "cdn_bytes_per_second")
        self.cdn_server = respond(_address(cdn_host), functools.partial(self._on_cdn, "cdn"), throttle=throttle)
        self.other_cdn_server = respond(
            _address(other_cdn_host), functools.partial(self._on_cdn, "other-cdn"), throttle=throttle
        )
        self.url = f"{scheme}://{host}:{self._api_server.port}"
        self.cdn_url = f"{scheme}://{cdn_host}:{self.cdn_server.port}"
        self.other_cdn_url = f"{scheme}://{other_cdn_host}:{self.other_cdn_server.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop all hosts and wait for their threads."""
        for server in (self._api_server, self.cdn_server, self.other_cdn_server):
            server.close()

    @property
    def ca_pem(self) -> bytes:
        """Certificate of the authority that signed the hosts' certificates (only with `tls`)."""
        assert self._authority is not None
        return bytes(self._authority.cert_pem.bytes())

    def add(self, repository: Repository) -> Repository:
        """Serve a repository (instead of another of the same name, in any letter case)."""
        self._repositories[repository.id.lower()] = repository
        return repository

    def remove(self, repository_id: str) -> None:
        """Serve a repository no longer."""
        del self._repositories[repository_id.lower()]

    def rename(self, old: str, new: str) -> None:
        """Give a repository another name; the old one redirects."""
        repository = self._repositories.pop(old.lower())
        repository.id = new
        self.add(repository)
        self.moved[old.lower()] = new

    def fault(self, kind: Fault | str, *, on: On | str | None = None, **fields: Any) -> Rule:
        """Make requests go wrong; the fields are those of `Rule`. Rules act in the order in which they came."""
        return self.rules.add(Rule(Fault(kind), None if on is None else On(on), **fields))

    def throttle(self, bytes_per_second: float | None) -> None:
        """Limit what each connection to a CDN host may carry (None: no limit)."""
        self.cdn_bytes_per_second = bytes_per_second

    @property
    def cdn_connections(self) -> int:
        """Connections that the CDN hosts have accepted."""
        return self.cdn_server.connections + self.other_cdn_server.connections

    @property
    def api_connections(self) -> int:
        """Connections that the API host has accepted."""
        return self._api_server.connections

    def _context(self, names: Sequence[str]) -> ssl.SSLContext | None:
        if self._authority is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        every = dict.fromkeys([*names, "localhost", "127.0.0.1", "::1"])
        self._authority.issue_cert(*every).configure_cert(context)
        return context

    # The API host

    def _on_api(self, request: Request) -> tuple[Answer, Sent]:
        if request.path.startswith("/-/"):
            return self._control(request), lambda _: None
        route = parse(request.segments)
        rules = self.rules.take(route.on, request, route.repository, route.path)
        answer = self._limited(request, route, rules)
        for rule in rules:
            answer = self._spoil_api(answer, rule, request, route)
        return answer, self._record("hub", request, route.on, route.repository, route.path, answer)

    def _control(self, request: Request) -> Answer:
        """What a test in another process needs: totals, and the speed of the CDN."""
        if request.path == "/-/throttle" and request.method == "POST":
            self.throttle(json.loads(request.body)["bytesPerSecond"])
        elif request.path == "/-/reset" and request.method == "POST":
            self.log.clear()
            self.rules.clear()
        elif request.path == "/-/fault" and request.method == "POST":
            self.fault(**json.loads(request.body))
        return api.document({**self.log.summary(), "cdnConnections": self.cdn_connections})

    def _limited(self, request: Request, route: Route, rules: Sequence[Rule]) -> Answer:
        token = answers.token_of(request)
        kind = "resolvers" if route.on in (On.RESOLVE, On.CACHE, On.RAW) else "api"
        verdict = self.limiter.take(kind, token or request.caller, token=token is not None)
        if not verdict.allowed:
            after = (("Retry-After", str(verdict.reset_seconds)),) if self.limiter.limits.retry_after else ()
            message = "We had to rate limit you: create an account or pass a token"
            return api.error(429, message, None, *verdict.headers, *after)
        try:
            answer = self._routed(request, route, token, rules)
        except (ValueError, KeyError):
            answer = api.error(400, "Bad request")
        for name, value in verdict.headers:
            answer = faults.with_header(answer, name, value)
        return answer

    def _routed(self, request: Request, route: Route, token: str | None, rules: Sequence[Rule]) -> Answer:
        if request.method not in ("GET", "HEAD", "POST"):
            return api.error(405, "Method not allowed")
        if token is not None and token not in self.tokens:
            return api.error(401, "Invalid credentials in Authorization header")
        if route.on is On.WHOAMI:
            return api.whoami(self.tokens[token]) if token else api.error(401, "Invalid username or password.")
        if (new := self.moved.get(route.repository.lower())) is not None:
            return answers.moved(request, route, new)
        repository = self._repositories.get(route.repository.lower())
        if repository is None or (repository.access is Access.PRIVATE and token not in repository.granted):
            return answers.unknown_repository(token)
        if repository.access is Access.DISABLED:
            return api.error(403, "Access to this resource is disabled.")
        commit = repository.find(route.revision or "main")
        if commit is None:
            return api.error(404, f"Invalid rev id: {route.revision}", "RevisionNotFound")
        return self._answer(request, route, repository, commit, token, rules)

    def _answer(
        self,
        request: Request,
        route: Route,
        repository: Repository,
        commit: Commit,
        token: str | None,
        rules: Sequence[Rule],
    ) -> Answer:
        query = request.query
        match route.on:
            case On.INFO:
                return api.info(repository, commit, blobs=query.get("blobs", "").lower() in ("true", "1"), rules=rules)
            case On.TREE:
                url = f"{self.url}{request.path}"
                return api.tree(commit, route.path, query, url=url, page_size=self.page_size, rules=rules)
            case On.REFS:
                return api.refs(repository, pull_requests="include_prs" in query)
            case On.PATHS_INFO:
                return api.paths_info(commit, request.body)
            case On.RESOLVE | On.RAW | On.CACHE:
                return self._file(request, route, repository, commit, token, rules)
            case _:
                return api.error(404, "Sorry, we can't find the page you are looking for.")

    def _file(
        self,
        request: Request,
        route: Route,
        repository: Repository,
        commit: Commit,
        token: str | None,
        rules: Sequence[Rule],
    ) -> Answer:
        if repository.access is Access.GATED and token not in repository.granted:
            return answers.gated(repository, token)
        file = commit.files.get(route.path)
        if file is None:
            return api.error(404, "Entry not found", "EntryNotFound", ("X-Repo-Commit", commit.hex))
        headers = (("X-Repo-Commit", commit.hex),)
        if route.on is On.RAW or faults.find(rules, Fault.POINTER) is not None:
            shown = File(file.path, BytesBody(file.pointer), lfs=False) if file.is_lfs else file
            return cdn.ranged(request, shown, (*headers, ("ETag", f'"{shown.git_hex}"')))
        if file.is_lfs:
            other = faults.find(rules, Fault.OTHER_CDN) is not None
            location = self.cdn.publish(repository, file, self.other_cdn_url if other else self.cdn_url)
            linked = (("X-Linked-Size", str(file.size_bytes)), ("X-Linked-Etag", f'"{file.sha256_hex}"'))
            return Answer(302, (*headers, *linked, ("Accept-Ranges", "bytes"), ("Location", location)))
        if self.resolve_cache and route.on is On.RESOLVE:
            return answers.to_cache(repository, commit, file)
        return cdn.ranged(request, file, (*headers, ("ETag", f'"{file.git_hex}"'), ("Content-Type", "text/plain")))

    def _spoil_api(self, answer: Answer, rule: Rule, request: Request, route: Route) -> Answer:
        if rule.kind is Fault.REDIRECT_LOOP and route.on is On.RESOLVE:
            return Answer(302, (("Location", f"{self.url}{request.target}"),))
        return faults.spoil(answer, rule, request)

    # The CDN hosts

    def _on_cdn(self, host: str, request: Request) -> tuple[Answer, Sent]:
        target = self.cdn.targets.get(request.path)
        repository, path = ("", "") if target is None else (target.repository, target.file.path)
        rules = self.rules.take(On.CDN, request, repository, path)
        answer = self.cdn.answer(request, target)
        if answer.status in (200, 206, 416):
            for rule in rules:
                answer = self._spoil_cdn(answer, rule, request, target)
        return answer, self._record(host, request, On.CDN, repository, path, answer)

    def _spoil_cdn(self, answer: Answer, rule: Rule, request: Request, target: Target | None) -> Answer:
        if rule.kind is Fault.EXPIRED:
            self.signer.revoke(request.query)
            if not rule.after_bytes:
                return cdn.denied(403, "Request has expired")
            return faults.spoil(answer, Rule(Fault.TRUNCATE, after_bytes=rule.after_bytes), request)
        if rule.kind is Fault.POINTER and target is not None:
            return Answer(200, answer.headers[:1], BytesBody(target.file.pointer))
        return faults.spoil(answer, rule, request)

    def _record(self, host: str, request: Request, on: On, repository: str, path: str, answer: Answer) -> Sent:
        payload = on in _PAYLOAD and answer.status in (200, 206) and request.method == "GET"
        exchange = Exchange(
            number=0,
            host=host,
            connection=request.connection,
            method=request.method,
            target=request.path,
            on=on,
            repository=repository,
            path=path,
            range=request.headers.get("range"),
            token="authorization" in request.headers,
            status=answer.status,
            start=answer.start,
            at=time.monotonic(),
            payload=payload,
        )
        self.log.add(exchange)

        def sent(size: int) -> None:
            exchange.sent_bytes += size

        return sent


def _address(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return "127.0.0.1"
