"""The coordinator as the operator sees it: a client of its HTTP API (design 4.12), and its last snapshot.

Nothing is decided here. Tokens of sources travel in bodies over TLS only, and never into logs or errors.
"""

import asyncio
import dataclasses
import datetime
import json
import logging
import ssl
import urllib.parse
from collections.abc import Callable, Iterable
from typing import Any

import aiohttp

from aimodels_core.errors import CoordinatorUnavailable, UsageError
from aimodels_core.messages import PublicationState, Snapshot, Want
from aimodels_core.nodes import NodeReport, NodeWant
from aimodels_operator.model import Link
from aimodels_operator.pacing import back_off

log = logging.getLogger(__name__)

_WAIT_SECONDS = 30
_CALL_SECONDS = 30.0
_COLLECT_SECONDS = 600.0
_CONNECT_SECONDS = 5.0
_MAX_BYTES = 64 * 1024 * 1024
_MOST_SILENT_SECONDS = 10.0
_BREATH_SECONDS = 0.2
"""Between two snapshots: while hundreds of publications run, something changes all the time."""

Changed = Callable[[Iterable[str] | None], None]
"""Told which uids may look different now; None for all."""


@dataclasses.dataclass(frozen=True, slots=True)
class Access:
    """How the coordinator is talked to.

    Args:
        token: bearer token; never shown.
        authority: PEM of the authority of its certificate.
    """

    token: str = dataclasses.field(repr=False)
    authority: str


class CoordinatorClient:
    """Tells the coordinator what is wanted, and follows what it does.

    Args:
        url: `https://…`; plain http only on the loopback.
        access: asked before every call, so that a new token or authority is followed; raises CoordinatorUnavailable.
        changed: called on the event loop.
        now: aware.

    Raises:
        UsageError: a URL that would send tokens in the clear.
    """

    def __init__(
        self, url: str, access: Callable[[], Access], changed: Changed, *, now: Callable[[], datetime.datetime]
    ) -> None:
        self._url = checked_url(url)
        self._access = access
        self._authority = ""
        self._changed = changed
        self._now = now
        self._session: aiohttp.ClientSession | None = None
        self._etag = ""
        self._words = ""
        self._blame = ""
        self.states: dict[str, PublicationState] = {}
        self.nodes: dict[str, NodeReport] | None = None
        self.link = Link()

    def silent_seconds(self) -> float | None:
        """How long it has not answered; None while it does."""
        since = self.link.silent_since
        return None if since is None else (self._now() - since).total_seconds()

    def blame(self, words: str) -> None:
        """Take in why it may not answer, from whoever starts it; shown while it does not. Empty: nothing is known."""
        self._blame = words
        if self.link.silent_since is not None:
            self._take_link(dataclasses.replace(self.link, trouble=words or self._words))

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

    @property
    def epoch(self) -> str:
        """Of the coordinator that answers; empty while none does."""
        return self.link.epoch if self.link.silent_since is None else ""

    async def put_node(self, want: NodeWant) -> None:
        """Send what the cache of a node should hold.

        Raises:
            CoordinatorUnavailable: it may be sent again.
            UsageError: it was refused.
        """
        await self._call("PUT", f"/v1/nodes/{urllib.parse.quote(want.node, safe='')}", data=want.to_json())

    async def remove(self, uid: str, scope: str) -> None:
        """Have a model removed from the store; what is gone already is not an error.

        Raises:
            CoordinatorUnavailable: it may be asked again.
            UsageError: it was refused.
        """
        await self._call("DELETE", f"/v1/models/{uid}?scope={urllib.parse.quote(scope, safe='')}")

    async def collect(self) -> int:
        """Have the coordinator remove what nobody names; returns the bytes that were freed.

        Raises:
            CoordinatorUnavailable: it may be asked again.
            UsageError: it was refused.
        """
        body = b'{"now": false}'
        _, data = await self._call("POST", "/v1/collect", data=body, seconds=_COLLECT_SECONDS)
        try:
            return int(json.loads(data)["size_bytes"])
        except (KeyError, TypeError, ValueError) as error:
            words = f"collection: not understood: {type(error).__name__}"
            raise CoordinatorUnavailable(words, code="Answer") from error

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
            self._take_link(Link(self.link.epoch, holder=self.link.holder))
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
        self.nodes = {report.node: report for report in snapshot.nodes}
        self._etag = snapshot.etag
        self._take_link(Link(snapshot.epoch, holder="" if snapshot.writing else snapshot.holder or "another process"))
        different = [uid for uid, state in self.states.items() if before.get(uid) != state]
        self._changed([*different, *(before.keys() - self.states.keys())])

    def _take_link(self, link: Link) -> None:
        if link == self.link:
            return
        self.link = link
        if link.silent_since is None:
            log.info("coordinator answers", extra={"epoch": link.epoch, "holder": link.holder})
        else:
            log.warning("coordinator does not answer", extra={"error": link.trouble})
        self._changed(None)

    def _silent(self, trouble: str) -> None:
        self._etag = ""
        if self.link.silent_since is None:
            self._words = trouble
            self._take_link(Link(self.link.epoch, self._now(), self._blame or trouble))

    async def _call(
        self,
        method: str,
        path: str,
        *,
        data: bytes | None = None,
        headers: dict[str, str] | None = None,
        seconds: float = _CALL_SECONDS,
    ) -> tuple[int, bytes]:
        access = self._access()
        session = await self._open(access.authority)
        shown = {"Authorization": f"Bearer {access.token}", **(headers or {})}
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

    async def _open(self, authority: str) -> aiohttp.ClientSession:
        """Return connections that trust an authority; those that trusted another one are closed."""
        if self._session is not None and self._authority == authority:
            return self._session
        try:
            context = ssl.create_default_context(cadata=authority)
        except (ssl.SSLError, ValueError) as error:
            raise CoordinatorUnavailable(f"authority: not usable: {type(error).__name__}", code="Authority") from error
        old, self._authority = self._session, authority
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, limit=32), trust_env=False)
        opened = self._session
        if old is not None:
            await old.close()
        return opened


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
