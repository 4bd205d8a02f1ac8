"""The coordinator as the operator sees it: a client of its HTTP API (design 4.12), and its last snapshot.

Nothing is decided here. Tokens of sources travel in bodies over TLS only, and never into logs or errors.
"""

import asyncio
import datetime
import json
import logging
import ssl
import urllib.parse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import aiohttp

from aimodels_core.errors import CoordinatorUnavailable, UsageError
from aimodels_core.messages import PublicationState, Snapshot, Want
from aimodels_operator.model import Link
from aimodels_operator.pacing import back_off

log = logging.getLogger(__name__)

_WAIT_SECONDS = 30
_CALL_SECONDS = 30.0
_CONNECT_SECONDS = 5.0
_MAX_BYTES = 64 * 1024 * 1024
_MAX_TOKEN_BYTES = 64 * 1024
_MOST_SILENT_SECONDS = 10.0
_BREATH_SECONDS = 0.2
"""Between two snapshots: while hundreds of publications run, something changes all the time."""

Changed = Callable[[Iterable[str] | None], None]
"""Told which uids may look different now; None for all."""


class CoordinatorClient:
    """Tells the coordinator what is wanted, and follows what it does.

    Args:
        url: `https://…`; plain http only on the loopback.
        token_file: has the bearer token; read for every call, so that a new one is followed.
        ca_file: PEM of the authority of its certificate; empty for the system's.
        changed: called on the event loop.
        now: aware.

    Raises:
        UsageError: a URL that would send tokens in the clear.
    """

    def __init__(
        self, url: str, token_file: str, ca_file: str, changed: Changed, *, now: Callable[[], datetime.datetime]
    ) -> None:
        self._url = checked_url(url)
        self._token_file = Path(token_file)
        self._ca_file = ca_file
        self._changed = changed
        self._now = now
        self._session: aiohttp.ClientSession | None = None
        self._etag = ""
        self.states: dict[str, PublicationState] = {}
        self.link = Link()

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def put(self, want: Want) -> None:
        """Send a want.

        Raises:
            CoordinatorUnavailable: it may be sent again.
            UsageError: it was refused.
        """
        await self._call("PUT", f"/v1/models/{want.uid}", data=want.to_json())

    async def remove(self, uid: str, scope: str) -> None:
        """Have a model removed from the store; what is gone already is not an error.

        Raises:
            CoordinatorUnavailable: it may be asked again.
            UsageError: it was refused.
        """
        await self._call("DELETE", f"/v1/models/{uid}?scope={urllib.parse.quote(scope, safe='')}")

    async def follow(self) -> None:
        """Keep the snapshot up to date until cancelled."""
        failures = 0
        while True:
            try:
                await self._look()
                failures = 0
                await asyncio.sleep(_BREATH_SECONDS)
            except (CoordinatorUnavailable, UsageError) as error:
                failures += 1
                self._silent(error.message)
                await asyncio.sleep(back_off(failures, most_seconds=_MOST_SILENT_SECONDS))

    async def _look(self) -> None:
        wait = _WAIT_SECONDS if self._etag else 0
        headers = {"If-None-Match": self._etag} if self._etag else {}
        status, data = await self._call("GET", f"/v1/state?wait={wait}", headers=headers, seconds=_CALL_SECONDS + wait)
        if status == 304:
            self._take_link(self.link.epoch, self.link.holder)
            return
        try:
            snapshot = Snapshot.from_json(data)
        except (KeyError, TypeError, ValueError) as error:
            raise CoordinatorUnavailable(
                f"snapshot: not understood: {type(error).__name__}", code="Snapshot"
            ) from error
        self._take(snapshot)

    def _take(self, snapshot: Snapshot) -> None:
        before, self.states = self.states, {state.uid: state for state in snapshot.publications}
        self._etag = snapshot.etag
        self._take_link(snapshot.epoch, "" if snapshot.writing else snapshot.holder or "another process")
        different = [uid for uid, state in self.states.items() if before.get(uid) != state]
        self._changed([*different, *(before.keys() - self.states.keys())])

    def _take_link(self, epoch: str, holder: str) -> None:
        link = Link(epoch=epoch, holder=holder)
        if link != self.link:
            self.link = link
            log.info("coordinator answers", extra={"epoch": epoch, "holder": holder})
            self._changed(None)

    def _silent(self, trouble: str) -> None:
        self._etag = ""
        if self.link.silent_since is None:
            log.warning("coordinator does not answer", extra={"error": trouble})
            self.link = Link(self.link.epoch, self._now(), trouble)
            self._changed(None)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        data: bytes | None = None,
        headers: dict[str, str] | None = None,
        seconds: float = _CALL_SECONDS,
    ) -> tuple[int, bytes]:
        session = self._open()
        shown = {"Authorization": f"Bearer {self._token()}", **(headers or {})}
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=_CONNECT_SECONDS)
        try:
            async with session.request(
                method, self._url + path, data=data, headers=shown, timeout=timeout, allow_redirects=False
            ) as answer:
                body = await _read(answer)
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError, ssl.SSLError) as error:
            words = f"does not answer ({type(error).__name__})"
            raise CoordinatorUnavailable(words, code="Unanswered") from error
        if status in (200, 202, 204, 304):
            return status, body
        raise _refusal(status, body)

    def _token(self) -> str:
        try:
            with self._token_file.open("rb") as file:
                return file.read(_MAX_TOKEN_BYTES).decode("ascii").strip()
        except (OSError, ValueError) as error:
            raise CoordinatorUnavailable(f"token file: {type(error).__name__}", code="TokenFile") from error

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            try:
                context = ssl.create_default_context(cafile=self._ca_file or None)
            except OSError as error:
                raise CoordinatorUnavailable(f"certificate file: {type(error).__name__}", code="CaFile") from error
            connector = aiohttp.TCPConnector(ssl=context, limit=32)
            self._session = aiohttp.ClientSession(connector=connector, trust_env=False)
        return self._session


def checked_url(url: str) -> str:
    """Return the URL without a trailing slash.

    Raises:
        UsageError: not https, and not http on the loopback.
    """
    parts = urllib.parse.urlsplit(url)
    local = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1", "localhost")
    if not parts.hostname or not (parts.scheme == "https" or local) or parts.query or "@" in parts.netloc:
        raise UsageError("coordinator: want https://<host>[:<port>] (or http on the loopback)")
    return url.rstrip("/")


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for piece in answer.content.iter_chunked(1 << 16):
        data += piece
        if len(data) > _MAX_BYTES:
            raise CoordinatorUnavailable(f"answer: want at most {_MAX_BYTES} bytes, got more", code="TooLong")
    return bytes(data)


def _refusal(status: int, body: bytes) -> CoordinatorUnavailable | UsageError:
    try:
        raw: Any = json.loads(body)
        code, message = str(raw["code"])[:64], str(raw["message"])[:500]
    except (ValueError, KeyError, TypeError):
        code, message = "Status", f"status {status}"
    if status in (400, 409, 422):
        return UsageError(message, code=code)
    return CoordinatorUnavailable(message, code=code)
