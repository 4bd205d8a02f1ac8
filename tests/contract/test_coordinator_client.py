"""The operator's client of the coordinator, over TLS: a new token and a new authority are followed."""

import asyncio
import contextlib
import datetime
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

import pytest
from aiohttp import web

from aimodels_core.errors import CoordinatorUnavailable
from aimodels_core.messages import Snapshot
from aimodels_operator.coordinator import Access, CoordinatorClient
from tests.support.certificates import Certificates, certificates
from tests.support.processes import free_port

WAIT_SECONDS = 20.0


class Stub:
    """A coordinator that has nothing to do, at a port that it keeps."""

    def __init__(self) -> None:
        self.port = free_port()
        self.token = "t-0"
        self.asked = 0

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @contextlib.asynccontextmanager
    async def serving(self, context: ssl.SSLContext) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_get("/v1/state", self._state)
        app.router.add_delete("/v1/models/{uid}", self._remove)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port, ssl_context=context, reuse_address=True).start()
        try:
            yield
        finally:
            await runner.cleanup()

    async def _state(self, request: web.Request) -> web.Response:
        self._check(request)
        return web.Response(body=Snapshot("e", self.asked, True, "", ()).to_json(), content_type="application/json")

    async def _remove(self, request: web.Request) -> web.Response:
        self._check(request)
        return web.Response(status=204)

    def _check(self, request: web.Request) -> None:
        self.asked += 1
        if request.headers["Authorization"] != f"Bearer {self.token}":
            raise web.HTTPUnauthorized


class Home:
    """Where the client learns how to talk to the coordinator."""

    def __init__(self, made: Certificates) -> None:
        self.made = made
        self.token = "t-0"
        self.trouble = ""

    def __call__(self) -> Access:
        if self.trouble:
            raise CoordinatorUnavailable(self.trouble, code="Home")
        return Access(self.token, self.made.ca.read_text())


class Told:
    """What the client calls when something may look different; waits until it does."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def __call__(self, _: Iterable[str] | None) -> None:
        self._event.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while not condition():
                await self._event.wait()
                self._event.clear()


@contextlib.asynccontextmanager
async def client(stub: Stub, home: Home, told: Told | None = None) -> AsyncIterator[CoordinatorClient]:
    made = CoordinatorClient(stub.url, home, told or Told(), now=lambda: datetime.datetime.now(datetime.UTC))
    try:
        yield made
    finally:
        await made.close()


@pytest.mark.asyncio
async def test_a_new_token_is_used_at_once(tmp_path: Path) -> None:
    stub, home = Stub(), Home(certificates(tmp_path))
    async with stub.serving(home.made.server_context()), client(stub, home) as made:
        await made.remove("u", "ns/a")
        stub.token = "t-1"
        with pytest.raises(CoordinatorUnavailable):
            await made.remove("u", "ns/a")
        home.token = "t-1"
        await made.remove("u", "ns/a")

    assert stub.asked == 3


@pytest.mark.asyncio
async def test_a_new_authority_is_used_at_once_and_the_old_one_no_more(tmp_path: Path) -> None:
    (tmp_path / "next").mkdir()
    stub, home = Stub(), Home(certificates(tmp_path))
    second = certificates(tmp_path / "next")
    async with client(stub, home) as made:
        async with stub.serving(home.made.server_context()):
            await made.remove("u", "ns/a")
        async with stub.serving(second.server_context()):
            with pytest.raises(CoordinatorUnavailable, match="CertificateError"):
                await made.remove("u", "ns/a")
            home.made = second
            await made.remove("u", "ns/a")

    assert stub.asked == 2


@pytest.mark.asyncio
async def test_an_authority_that_is_none_is_told(tmp_path: Path) -> None:
    stub, home = Stub(), Home(certificates(tmp_path))
    home.made.ca.write_text("nothing")
    async with client(stub, home) as made:
        with pytest.raises(CoordinatorUnavailable, match="authority: not usable"):
            await made.remove("u", "ns/a")


@pytest.mark.asyncio
async def test_what_keeps_it_from_asking_is_the_trouble_of_the_link(tmp_path: Path) -> None:
    stub, home = Stub(), Home(certificates(tmp_path))
    home.trouble = "Secret d8-ai-models/ai-models-coordinator: not read"
    told = Told()
    async with stub.serving(home.made.server_context()), client(stub, home, told) as made:
        following = asyncio.create_task(made.follow())
        await told.until(lambda: made.link.silent_since is not None)
        assert made.link.trouble == home.trouble
        home.trouble = ""
        await told.until(lambda: made.link.silent_since is None)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    assert made.link.epoch == "e"
