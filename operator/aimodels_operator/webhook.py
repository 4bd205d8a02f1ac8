"""`python -m aimodels_operator.webhook`: the server that others are sent to, for registry tokens and for admission.

    GET /token?service=ai-models-dmcr&scope=repository:<name>:pull    Basic or Bearer; over TLS
    POST /mutate/workloads, /mutate/pods                              of the API server, see `admission`

It keeps no state that another replica would need. What an identity may read is decided in `tokens`.
0 asked to stop; 1 broken; 2 wrong settings.
"""

import asyncio
import base64
import contextlib
import dataclasses
import datetime
import hashlib
import logging
import os
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from aimodels_core import serving
from aimodels_core.errors import AiModelsError, ClusterUnavailable, UsageError
from aimodels_core.watched import Certificate, Followed, read_bytes
from aimodels_operator import admission, kube, tokens
from aimodels_operator.admission import Admission
from aimodels_operator.kube import Kube
from aimodels_operator.settings import SHARED_PVC
from aimodels_operator.tokens import Grant, Homes, Identity, Signer
from aimodels_operator.webhook_settings import WebhookSettings, from_env

log = logging.getLogger("aimodels_webhook")

EXIT_DONE, EXIT_BROKEN, EXIT_USAGE = 0, 1, 2
_KNOWN_SECONDS = 60.0
_KNOWN_MOST = 10_000
_ASKED_MOST = 64
_ASKED_SECONDS = 15.0
_MAX_TOKEN_CHARS = 6 * 1024
_UNKEPT = {"Cache-Control": "no-store"}
_REFUSALS: Mapping[str, tuple[int, str, Mapping[str, str]]] = {
    "unknown": (401, "UNAUTHORIZED", {"WWW-Authenticate": 'Basic realm="ai-models"'}),
    "refused": (400, "BAD_REQUEST", {}),
    "unavailable": (503, "UNAVAILABLE", {"Retry-After": "2"}),
}


class Reviewer(Protocol):
    """Who says whose token it is."""

    async def review_token(self, token: str, audience: str) -> Mapping[str, Any]:
        """Return the status of a TokenReview.

        Raises:
            ClusterUnavailable.
        """
        ...


class Identities:
    """Finds out whose a token is; a good answer is remembered for a minute, by the hash of the token.

    Args:
        reviewer: is asked.
        clock: monotonic seconds.
    """

    def __init__(self, reviewer: Reviewer, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._reviewer = reviewer
        self._clock = clock
        self._known: dict[bytes, tuple[float, Identity]] = {}
        self._asking = 0

    async def of(self, token: str) -> Identity | None:
        """Say whose a token is; None when it is nobody's.

        Raises:
            ClusterUnavailable: the API server does not answer, or is asked too much already.
        """
        key = hashlib.sha256(token.encode()).digest()
        until, found = self._known.get(key, (0.0, None))
        if found is not None and self._clock() < until:
            return found
        self._known.pop(key, None)
        identity = tokens.reviewed(await self._ask(token))
        if identity is not None:
            if len(self._known) >= _KNOWN_MOST:
                self._known.pop(next(iter(self._known)))
            self._known[key] = (self._clock() + _KNOWN_SECONDS, identity)
        return identity

    async def _ask(self, token: str) -> Mapping[str, Any]:
        if self._asking >= _ASKED_MOST:
            raise ClusterUnavailable(f"tokenreviews: {self._asking} wait for an answer already", code="Busy")
        self._asking += 1
        try:
            async with asyncio.timeout(_ASKED_SECONDS):
                return await self._reviewer.review_token(token, tokens.SERVICE)
        except TimeoutError as error:
            raise ClusterUnavailable(f"tokenreviews: no answer in {_ASKED_SECONDS:.0f} s", code="Unanswered") from error
        finally:
            self._asking -= 1


@dataclasses.dataclass(frozen=True, slots=True)
class Issuer:
    """Answers `/token`.

    Args:
        identities: who asks.
        signer: signs now.
        homes: namespaces of our own.
        now: aware.
        results: counts answers by their kind.
    """

    identities: Identities
    signer: Callable[[], Signer]
    homes: Homes
    now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC)
    results: Counter[str] = dataclasses.field(default_factory=Counter)

    @property
    def ready(self) -> bool:
        """Whether tokens that are signed now will be trusted."""
        return self.signer().usable(self.now())

    def route(self, router: web.UrlDispatcher) -> None:
        """Add our path."""
        router.add_get("/token", self._answer)

    async def _answer(self, request: web.Request) -> web.Response:
        if not self.ready:
            log.warning("signer expires", extra={"not_after": self.signer().not_after})
            return self._refuse("unavailable", "no token can be issued now: try again")
        try:
            asked = _asked(request)
            token = shown_token(request.headers.get("Authorization", ""))
            identity = await self.identities.of(token) if token else None
            if identity is None:
                return self._refuse("unknown", f"want the token of a ServiceAccount with audience {tokens.SERVICE}")
        except UsageError as error:
            return self._refuse("refused", error.message)
        except ClusterUnavailable as error:
            log.warning("no registry token", extra={"error": error.code, "detail": error.message})
            return self._refuse("unavailable", "no token can be issued now: try again")
        repositories = tuple(name for name in asked if tokens.may_pull(identity, name, self.homes))
        grant = Grant(identity, repositories, self.now(), uuid.uuid4().hex)
        self.results["granted" if repositories else "empty"] += 1
        who = {"namespace": identity.namespace, "service_account": identity.name}
        log.info("registry token issued", extra={**who, "repositories": repositories, "id": grant.number})
        return web.json_response(grant.answer(self.signer()), headers=_UNKEPT)

    def _refuse(self, result: str, message: str) -> web.Response:
        """Refuse as a registry does (distribution-spec, "Error Codes"), so that its clients show why."""
        self.results[result] += 1
        status, code, headers = _REFUSALS[result]
        body = {"errors": [{"code": code, "message": message}]}
        return web.json_response(body, status=status, headers={**_UNKEPT, **headers})

    def metrics(self, calls: Mapping[tuple[str, str, int], int]) -> str:
        """Render what was counted in Prometheus' text format."""
        lines = ["# HELP aimodels_registry_tokens_total Requests for registry tokens by their answer."]
        lines += ["# TYPE aimodels_registry_tokens_total counter"]
        for result in ("granted", "empty", *_REFUSALS):
            lines.append(f'aimodels_registry_tokens_total{{result="{result}"}} {self.results[result]}')
        lines += ["# TYPE aimodels_api_calls_total counter"]
        for (verb, resource, status), n in sorted(calls.items()):
            lines.append(f'aimodels_api_calls_total{{verb="{verb}",resource="{resource}",status="{status}"}} {n}')
        left = (self.signer().not_after - self.now()).total_seconds()
        lines += ["# HELP aimodels_token_signer_seconds_left Until the signer's certificate expires."]
        lines += ["# TYPE aimodels_token_signer_seconds_left gauge", f"aimodels_token_signer_seconds_left {left:.0f}"]
        return "\n".join(lines) + "\n"


def _asked(request: web.Request) -> tuple[str, ...]:
    services = request.query.getall("service", [])
    if services != [tokens.SERVICE]:
        raise UsageError(f"service: want {tokens.SERVICE}, got {', '.join(services)[:80]!r}")
    return tokens.asked_repositories(request.query.getall("scope", []))


def shown_token(header: str) -> str:
    """Take the token out of an Authorization header: Bearer, or the password of Basic with any user name; else empty.

    >>> shown_token("Bearer a.b.c")
    'a.b.c'
    """
    scheme, _, value = header.partition(" ")
    token = ""
    if scheme.lower() == "bearer":
        token = value.strip()
    elif scheme.lower() == "basic":
        with contextlib.suppress(ValueError):
            token = base64.b64decode(value.strip(), validate=True).decode("ascii").partition(":")[2]
    fits = len(token) <= _MAX_TOKEN_CHARS and all(0x21 <= ord(c) <= 0x7E for c in token)
    return token if fits else ""


def follow_signer(folder: Path) -> Followed[Signer]:
    """Follow the signer's certificate and key in a folder.

    Raises:
        UsageError: they are no good to begin with.
    """
    cert, key = folder / "tls.crt", folder / "tls.key"
    return Followed((cert, key), lambda: Signer.from_pem(read_bytes(cert), read_bytes(key)))


async def serve(settings: WebhookSettings, stop: asyncio.Event) -> None:
    """Serve until asked to stop.

    Raises:
        UsageError: a file that cannot be used, or no way to the API server.
        TransientError: a port that is taken.
    """
    folder = Path(settings.tls_dir)
    certificate = Certificate(folder / "tls.crt", folder / "tls.key")
    signer = follow_signer(Path(settings.signer_dir))
    reviewer = Kube(kube.configuration(settings.kubeconfig))
    issuer = Issuer(Identities(reviewer), signer, Homes(settings.namespace, settings.node_namespace))
    admitting = Admission(shared=settings.delivery_type == SHARED_PVC if settings.delivery_type else None)
    app = web.Application(client_max_size=admission.MAX_BYTES)
    issuer.route(app.router)
    admitting.route(app.router)

    def metrics() -> str:
        return issuer.metrics(reviewer.calls) + "\n".join(admitting.metrics()) + "\n"

    health = serving.health(lambda: True, lambda: issuer.ready, metrics)
    host = settings.listen_host
    with contextlib.closing(reviewer):
        async with (
            serving.site(health, host, settings.health_port) as health_port,
            serving.site(app, host, settings.listen_port, certificate=certificate) as port,
        ):
            log.info("webhook serves", extra={"port": port, "health_port": health_port})
            following = asyncio.create_task(serving.follow(certificate, signer))
            stopping = asyncio.create_task(stop.wait())
            done, left = await asyncio.wait({following, stopping}, return_when=asyncio.FIRST_COMPLETED)
            for task in left:
                task.cancel()
            for task in done:
                task.result()


async def _run(settings: WebhookSettings) -> None:
    await serve(settings, serving.stop_event())


def main() -> int:
    """Run the process; returns the exit code."""
    try:
        settings = from_env(os.environ)
        serving.log_json(settings.log_level, quiet=("urllib3", "aiohttp"))
        asyncio.run(_run(settings))
    except UsageError as error:
        print(f"error: {error.message}", file=sys.stderr)  # noqa: T201 - logging may not be set up yet
        return EXIT_USAGE
    except AiModelsError as error:
        log.critical("webhook ended", extra={"error": error.code, "detail": error.message})
        return EXIT_BROKEN
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
