"""A coordinator that publishes nothing: it takes wants and shows publications that move by the clock alone.

It speaks the real API over TLS and is there for load only: hundreds of publications at once without their bytes. What
it says, and when, is all that it has in common with the product's coordinator.
"""

import asyncio
import dataclasses
import ssl
import threading
import time

from aiohttp import web

from aimodels_core.messages import PublicationState, Published, Snapshot, Stage, Want

TICK_SECONDS = 0.2
"""Something is new so often while anything is published."""
REMEMBERED_SECONDS = 20.0
"""What has ended is shown for so long."""
_TOTAL_BYTES = 10 * 10**9
_DIGEST = f"sha256:{'a1' * 32}"
_MEDIA_TYPE = "application/vnd.cncf.model.manifest.v1+json"
_PUBLISHED = Published(_DIGEST, _MEDIA_TYPE, _TOTAL_BYTES, "HuggingFace", {"format": "Safetensors"})


@dataclasses.dataclass(frozen=True, slots=True)
class Arrival:
    """A want that was sent: whose, and when (monotonic seconds)."""

    name: str
    at: float


class LeanCoordinator:
    """Serves from a thread of its own.

    Args:
        port: of 127.0.0.1.
        context: for TLS.
        token: what callers show.
        move_seconds: how long each publication moves.
    """

    def __init__(self, port: int, context: ssl.SSLContext, token: str, *, move_seconds: float = 2.0) -> None:
        self._port, self._context, self._token = port, context, token
        self._epoch = f"lean-{time.time_ns()}"
        self._wants: dict[str, tuple[Want, float]] = {}
        self._changes = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="lean-coordinator")
        self._runner: web.AppRunner | None = None
        self.move_seconds = move_seconds
        self.arrivals: list[Arrival] = []

    def __enter__(self) -> "LeanCoordinator":
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        if self._runner is not None:
            asyncio.run_coroutine_threadsafe(self._close(self._runner), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _serve(self) -> None:
        app = web.Application()
        app.router.add_put("/v1/models/{uid}", self._put)
        app.router.add_delete("/v1/models/{uid}", self._delete)
        app.router.add_get("/v1/state", self._state)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=self._context, reuse_address=True).start()

    @staticmethod
    async def _close(runner: web.AppRunner) -> None:
        await runner.cleanup()
        await asyncio.sleep(TICK_SECONDS)  # those who waited for news end by themselves

    async def _put(self, request: web.Request) -> web.Response:
        at = time.monotonic()
        self._check(request)
        want = Want.from_json(request.match_info["uid"], await request.read())
        self.arrivals.append(Arrival(want.name, at))
        kept = self._wants.get(want.uid)
        if kept is None or kept[0].spec_hash != want.spec_hash:
            kept = self._wants[want.uid] = (want, at)
            self._changes += 1
        return web.json_response(self._shown(*kept, at).to_raw(), status=202)

    async def _delete(self, request: web.Request) -> web.Response:
        self._check(request)
        self._wants.pop(request.match_info["uid"], None)
        self._changes += 1
        return web.Response(status=204)

    async def _state(self, request: web.Request) -> web.Response:
        self._check(request)
        deadline = time.monotonic() + float(request.query.get("wait", "0"))
        seen = request.headers.get("If-None-Match", "")
        while (snapshot := self._snapshot()).etag == seen:
            if time.monotonic() > deadline:
                return web.Response(status=304)
            await asyncio.sleep(TICK_SECONDS / 4)
        return web.Response(body=snapshot.to_json(), content_type="application/json")

    def _check(self, request: web.Request) -> None:
        if request.headers.get("Authorization") != f"Bearer {self._token}":
            raise web.HTTPUnauthorized

    def _snapshot(self) -> Snapshot:
        now = time.monotonic()
        ended = now - self.move_seconds - REMEMBERED_SECONDS
        for uid in [uid for uid, (_, began) in self._wants.items() if began < ended]:
            del self._wants[uid]
            self._changes += 1
        ticks = int(now / TICK_SECONDS) if self._wants else 0
        shown = tuple(self._shown(want, began, now) for want, began in self._wants.values())
        return Snapshot(self._epoch, self._changes + ticks, writing=True, holder="", publications=shown)

    def _shown(self, want: Want, began: float, now: float) -> PublicationState:
        """A publication after so much time: a quarter of a second for each of the first stages and the last one."""
        done = min(1.0, max(0.0, now - began - 0.75) / self.move_seconds)
        early = (Stage.QUEUED, Stage.RESOLVING, Stage.PLANNING)
        state = PublicationState(want.uid, want.generation, want.spec_hash)
        if now - began < 0.75:
            return dataclasses.replace(state, stage=early[int((now - began) / 0.25)])
        moved = int(_TOTAL_BYTES * done)
        state = dataclasses.replace(state, revision="f" * 40, bytes_total=_TOTAL_BYTES, bytes_done=moved)
        if done < 1.0:
            left = self.move_seconds * (1.0 - done)
            speed = _TOTAL_BYTES / self.move_seconds
            return dataclasses.replace(
                state, stage=Stage.MOVING, bytes_transferred=moved, bytes_per_second=speed, eta_seconds=left, workers=1
            )
        if now - began < self.move_seconds + 1.0:
            return dataclasses.replace(state, stage=Stage.COMMITTING)
        return dataclasses.replace(state, stage=Stage.READY, published=_PUBLISHED)
