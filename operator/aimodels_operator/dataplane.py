"""The coordinator is had in Ray: a client of Ray's Jobs API, and the loop of the leader that has it started.

What is to be done is decided in `bootstrap`. The token of Ray is read from its Secret for every look, and is in no log
or error; the coordinator itself is spoken to by `coordinator`.
"""

import asyncio
import json
import logging
import time
import urllib.parse
from collections.abc import Callable

import aiohttp

from aimodels_core.errors import AiModelsError, ClusterUnavailable, CoordinatorUnavailable, LeadershipLost, UsageError
from aimodels_operator.bootstrap import Job, Move, Past, Seen, Start, decide
from aimodels_operator.credentials import Secrets

log = logging.getLogger(__name__)

TOKEN_KEY = "auth_token"  # noqa: S105 - the key's name, Ray's own word
_LOOK_SECONDS = 5.0
_AFTER_MOVE_SECONDS = 1.0
_CALL_SECONDS = 30.0
"""Ray's head waits up to 10 s for the agent that starts submissions."""
_CONNECT_SECONDS = 5.0
_MAX_BYTES = 16 * 1024 * 1024
_MAX_ERROR_CHARS = 200
_MAX_TOKEN_CHARS = 8192


class RayJobs:
    """A client of the Jobs API of a Ray head.

    Args:
        url: `http://<host>:<port>` of the head's dashboard.
        session: makes the requests.
    """

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._session = session

    async def all(self, token: str) -> list[Job]:
        """List all submissions.

        Raises:
            CoordinatorUnavailable: as every call here; code RayDenied for a token that is not Ray's.
        """
        data = await self._call("GET", "", token)
        try:
            found = [raw for raw in json.loads(data) if raw["submission_id"]]
            return [Job(str(raw["submission_id"]), str(raw["status"]), str(raw["message"] or "")) for raw in found]
        except (ValueError, KeyError, TypeError) as error:
            words = f"Ray's head: list of submissions not understood: {type(error).__name__}"
            raise CoordinatorUnavailable(words, code="RayAnswer") from error

    async def submit(self, start: Start, token: str) -> None:
        """Make a submission; refused when there is one of that id.

        Raises:
            CoordinatorUnavailable.
        """
        body = {"submission_id": start.id, "entrypoint": start.entrypoint}
        await self._call("POST", "", token, json.dumps(body).encode())

    async def stop(self, name: str, token: str) -> None:
        """Ask a submission to end; harmless when there is none.

        Raises:
            CoordinatorUnavailable.
        """
        await self._call("POST", f"{urllib.parse.quote(name, safe='')}/stop", token, b"")

    async def delete(self, name: str, token: str) -> None:
        """Remove a submission that has ended; harmless when there is none.

        Raises:
            CoordinatorUnavailable.
        """
        await self._call("DELETE", urllib.parse.quote(name, safe=""), token)

    async def _call(self, method: str, path: str, token: str, data: bytes | None = None) -> bytes:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        timeout = aiohttp.ClientTimeout(total=_CALL_SECONDS, sock_connect=_CONNECT_SECONDS)
        url = f"{self._url}/api/jobs/{path}"
        try:
            async with self._session.request(
                method, url, data=data, headers=headers, timeout=timeout, allow_redirects=False
            ) as answer:
                body, status = await _read(answer), answer.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            words = f"Ray's head does not answer ({type(error).__name__})"
            raise CoordinatorUnavailable(words, code="RayUnanswered") from error
        if status == 200 or (status == 404 and path):
            return body
        if status in (401, 403):
            raise CoordinatorUnavailable("Ray's head refuses the token", code="RayDenied")
        last = body.decode("utf-8", "replace").strip().rpartition("\n")[2][:_MAX_ERROR_CHARS]
        raise CoordinatorUnavailable(f"Ray's head: {method} jobs: status {status}: {last}", code="RayRefused")


class Dataplane:
    """Has the coordinator run in Ray for as long as this replica leads.

    Args:
        url: of the Jobs API.
        start: what is to run.
        secret: namespace and name of the Secret with Ray's token.
        secrets: where it is read.
        check: the fence; raises LeadershipLost.
        silent_seconds: how long the coordinator has not answered; None while it answers.
        blame: told why the coordinator may not answer; empty when nothing is known.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        url: str,
        start: Start,
        secret: tuple[str, str],
        secrets: Secrets,
        *,
        check: Callable[[], None],
        silent_seconds: Callable[[], float | None],
        blame: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = url
        self._start = start
        self._secret = secret
        self._secrets = secrets
        self._check = check
        self._silent_seconds = silent_seconds
        self._blame = blame
        self._clock = clock
        self._past = Past()
        self._told = ""
        self.answers = False

    async def run(self) -> None:
        """Look and act until cancelled.

        Raises:
            LeadershipLost.
        """
        async with aiohttp.ClientSession(trust_env=False) as session:
            jobs = RayJobs(self._url, session)
            while True:
                moved = False
                try:
                    moved = await self.look(jobs)
                except LeadershipLost:
                    raise
                except AiModelsError as error:
                    self.answers = False
                    self._tell(error.message)
                await asyncio.sleep(_AFTER_MOVE_SECONDS if moved else _LOOK_SECONDS)

    async def look(self, jobs: RayJobs) -> bool:
        """Look once and do what is to be done; tells whether that was anything.

        Raises:
            AiModelsError: what was in the way; nothing was done.
            LeadershipLost.
        """
        token = await self._token()
        found = await jobs.all(token)
        self.answers = True
        step = decide(Seen(self._start, found, self._silent_seconds(), self._clock(), self._past))
        if step.move is not Move.NOTHING:
            self._check()
            log.info("coordinator's submission", extra={"move": step.move.value, "id": step.id, "why": step.trouble})
        match step.move:
            case Move.SUBMIT:
                await jobs.submit(self._start, token)
            case Move.STOP:
                await jobs.stop(step.id, token)
            case Move.DELETE:
                await jobs.delete(step.id, token)
            case Move.NOTHING:
                pass
        self._past = step.past
        self._tell(step.trouble)
        return step.move is not Move.NOTHING

    def _tell(self, words: str) -> None:
        if words == self._told:
            return
        self._told = words
        if words:
            log.warning("coordinator in Ray", extra={"trouble": words})
        self._blame(words)

    async def _token(self) -> str:
        where = "/".join(self._secret)
        try:
            values = await self._secrets.read_secret(*self._secret)
        except ClusterUnavailable as error:
            if error.code != "NotFound":
                raise
            raise CoordinatorUnavailable(f"Secret {where}: not found", code="RayToken") from error
        token = values.get(TOKEN_KEY, "").strip()
        if not token or len(token) > _MAX_TOKEN_CHARS or not all(0x21 <= ord(c) <= 0x7E for c in token):
            words = f"Secret {where}: want a token of visible ASCII characters in key {TOKEN_KEY}"
            raise CoordinatorUnavailable(words, code="RayToken")
        return token


def checked_url(url: str) -> str:
    """Return the URL of Ray's head without a trailing slash.

    Raises:
        UsageError: not of the form `http(s)://<host>[:<port>]`.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.path.strip("/"):
        raise UsageError("Ray: want http://<host>:<port> of its head's dashboard")
    return url.rstrip("/")


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for piece in answer.content.iter_chunked(1 << 16):
        data += piece
        if len(data) > _MAX_BYTES:
            raise CoordinatorUnavailable(f"Ray's head: want at most {_MAX_BYTES} bytes, got more", code="RayAnswer")
    return bytes(data)
