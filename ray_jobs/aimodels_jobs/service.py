"""The coordinator's HTTP API (design 4.12): wants in, snapshots out. Only translation; decisions are the coordinator's.

    PUT    /v1/models/{uid}           a want; 409 when its generation is older than the known one
    DELETE /v1/models/{uid}?scope=…   stop, remove tag and manifest; 204
    PUT    /v1/nodes/{name}           what the cache of a node should hold; 204
    GET    /v1/state                  snapshot; ETag, If-None-Match, ?wait=seconds
    POST   /v1/collect                {"now": bool}; what was freed
    GET    /healthz                   no token
    GET    /metrics                   no token, no names of models

Every other path wants `Authorization: Bearer <token>`.
"""

import asyncio
import dataclasses
import hmac
import json
import logging
import math
import re
from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from aimodels_core import nodes
from aimodels_core.errors import AiModelsError, UsageError
from aimodels_core.messages import MAX_WANT_BYTES, Snapshot, Want
from aimodels_core.nodes import NodeWant
from aimodels_jobs.coordinator import Coordinator

log = logging.getLogger(__name__)

MAX_WAIT_SECONDS = 60.0
_UID = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}")
_SCOPE = re.compile(r"[a-z0-9][a-z0-9/-]{0,127}")
_NODE = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_OPEN = frozenset({"/healthz", "/metrics"})


def application(coordinator: Coordinator, token: str | Callable[[], str]) -> web.Application:
    """Make the application.

    Args:
        coordinator: started by the caller.
        token: what callers must show, or what gives it when it may change; never empty.

    Raises:
        UsageError: an empty token.
    """
    if not token:
        raise UsageError("service: want a token, got none")
    app = web.Application(middlewares=[_guard(token), _errors], client_max_size=max(MAX_WANT_BYTES, nodes.MAX_BYTES))
    api = _Api(coordinator)
    app.router.add_put("/v1/models/{uid}", api.put)
    app.router.add_delete("/v1/models/{uid}", api.delete)
    app.router.add_put("/v1/nodes/{name}", api.put_node)
    app.router.add_get("/v1/state", api.state)
    app.router.add_post("/v1/collect", api.collect)
    app.router.add_get("/healthz", api.health)
    app.router.add_get("/metrics", api.metrics)
    app.on_shutdown.append(api.end_waits)
    return app


def _guard(token: str | Callable[[], str]) -> Middleware:
    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        wanted = f"Bearer {token if isinstance(token, str) else token()}".encode()
        shown = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if request.path not in _OPEN and not hmac.compare_digest(shown, wanted):
            return _problem(401, "Unauthorized", "want a bearer token that this coordinator knows")
        return await handler(request)

    return guard


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except UsageError as error:
        return _problem(409 if error.code == "StaleGeneration" else 400, error.code, error.message)
    except AiModelsError as error:
        return _problem(503 if error.retryable else 422, error.code, error.message)
    except (ValueError, RecursionError) as error:
        return _problem(400, "BadRequest", str(error)[:500])


def _problem(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"code": code, "message": message}, status=status)


class _Api:
    """The handlers."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._waiting: set[asyncio.Future[Snapshot]] = set()

    async def end_waits(self, _: web.Application) -> None:
        """Cut off those who wait for news: the server would stay for them."""
        for news in tuple(self._waiting):
            news.cancel()

    async def put(self, request: web.Request) -> web.Response:
        want = Want.from_json(_uid(request), await _body(request, MAX_WANT_BYTES))
        state = await self._coordinator.put(want)
        return web.json_response(state.to_raw(), status=202)

    async def put_node(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if not _NODE.fullmatch(name):
            raise UsageError("node: want its name in Kubernetes")
        self._coordinator.put_node(NodeWant.from_json(name, await _body(request, nodes.MAX_BYTES)))
        return web.Response(status=204)

    async def delete(self, request: web.Request) -> web.Response:
        scope = request.query.get("scope", "")
        if not _SCOPE.fullmatch(scope):
            raise UsageError("scope: want the model's repository, such as cluster or ns/<namespace>")
        await self._coordinator.delete(_uid(request), scope=scope)
        return web.Response(status=204)

    async def state(self, request: web.Request) -> web.Response:
        seen = request.headers.get("If-None-Match", "")
        wait = float(request.query.get("wait", "0"))
        if not math.isfinite(wait):
            raise UsageError("wait: want a number of seconds")
        wait = min(max(wait, 0.0), MAX_WAIT_SECONDS)
        snapshot = await self._news(seen, wait) if seen else self._coordinator.snapshot()
        headers = {"ETag": snapshot.etag, "Cache-Control": "no-store"}
        if snapshot.etag == seen:
            return web.Response(status=304, headers=headers)
        return web.Response(body=snapshot.to_json(), content_type="application/json", headers=headers)

    async def _news(self, seen: str, wait_seconds: float) -> Snapshot:
        news = asyncio.ensure_future(self._coordinator.changed(seen, wait_seconds=wait_seconds))
        self._waiting.add(news)
        news.add_done_callback(self._waiting.discard)
        return await news

    async def collect(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read() or b"{}")
        now = body.get("now", False) if isinstance(body, dict) else None
        if not isinstance(now, bool):
            raise UsageError('collect: want {"now": true} or {"now": false}')
        return web.json_response(dataclasses.asdict(await self._coordinator.collect(now=now)))

    async def health(self, _: web.Request) -> web.Response:
        snapshot = self._coordinator.snapshot()
        return web.json_response({"epoch": snapshot.epoch, "writing": snapshot.writing})

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=self._coordinator.metrics(), content_type="text/plain")


async def _body(request: web.Request, most_bytes: int) -> bytes:
    """Read a body that is not longer than that; the server itself lets the longest of all through."""
    data = await request.read()
    if len(data) > most_bytes:
        raise web.HTTPRequestEntityTooLarge(most_bytes, len(data))
    return data


def _uid(request: web.Request) -> str:
    uid = request.match_info["uid"]
    if not _UID.fullmatch(uid):
        raise UsageError("uid: want letters, digits, dots, dashes, at most 128")
    return uid
