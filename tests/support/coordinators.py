"""Coordinators that serve: in this process, or as a detached actor of the Ray that a test runs; and their client."""

import asyncio
import dataclasses
import http.client
import json
import os
import signal
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from aimodels_core.messages import PublicationState, Snapshot, Stage, Want
from aimodels_jobs.fleet import detached
from aimodels_jobs.fleet.cluster import Ray
from aimodels_jobs.host_options import HostSettings
from aimodels_jobs.hosting import Host
from aimodels_jobs.retry import Retry
from tests.support.processes import HOST, wait_for

TOKEN = "coordinator-token-of-a-test"


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """An answer of the API."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclasses.dataclass(slots=True)
class Api:
    """A client of the HTTP API that knows nothing of our own one."""

    port: int
    token: str = TOKEN
    tls: ssl.SSLContext | None = None
    host: str = HOST

    def call(
        self, method: str, path: str, body: bytes | None = None, *, headers: Mapping[str, str] = {}, token: str = ""
    ) -> Reply:
        """Send one request over a connection of its own."""
        if self.tls:
            made: http.client.HTTPConnection = http.client.HTTPSConnection(
                self.host, self.port, timeout=40, context=self.tls
            )
        else:
            made = http.client.HTTPConnection(self.host, self.port, timeout=40)
        try:
            made.request(method, path, body, {"Authorization": f"Bearer {token or self.token}", **headers})
            answer = made.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read(8 * 1024 * 1024))
        finally:
            made.close()

    def put(self, want: Want) -> Reply:
        """Send a want."""
        return self.call("PUT", f"/v1/models/{want.uid}", want.to_json())

    def delete(self, uid: str, scope: str) -> Reply:
        """Ask for a model to be gone."""
        return self.call("DELETE", f"/v1/models/{uid}?scope={scope}")

    def snapshot(self) -> Snapshot:
        """What the coordinator knows now."""
        answer = self.call("GET", "/v1/state")
        assert answer.status == 200, answer
        return Snapshot.from_json(answer.body)

    def state(self, uid: str) -> PublicationState | None:
        """What it knows of one model."""
        return next((p for p in self.snapshot().publications if p.uid == uid), None)

    def until(
        self, uid: str, check: Callable[[PublicationState], bool], what: str, *, seconds: float = 40.0
    ) -> PublicationState:
        """Poll until a publication is as it should be.

        Raises:
            TimeoutError: it is not in time; the message has its state.
        """
        deadline = time.monotonic() + seconds
        while True:
            state = self.state(uid)
            if state is not None and check(state):
                return state
            if time.monotonic() > deadline:
                raise TimeoutError(f"{uid}: want {what} within {seconds} s, got {state}")
            time.sleep(0.05)

    def ready(self, uid: str, *, seconds: float = 40.0) -> PublicationState:
        """Wait until a publication has ended well."""
        state = self.until(uid, lambda s: not s.stage.running, "an end", seconds=seconds)
        assert state.stage is Stage.READY, state.trouble
        return state

    def writing(self, *, other_than: str = "", seconds: float = 40.0) -> str:
        """Wait until the coordinator, or another one than that of an epoch, may write; returns its epoch."""
        found = ""

        def check() -> bool:
            nonlocal found
            try:
                health = self.call("GET", "/healthz").json
            except (OSError, http.client.HTTPException, ValueError):
                return False
            found = str(health["epoch"])
            return bool(health["writing"]) and found != other_than

        wait_for(check, "a coordinator that writes", seconds=seconds, pause_seconds=0.05)
        return found


class Served(Protocol):
    """A coordinator that serves."""

    api: Api

    def restart(self) -> None:
        """End it, as roughly as its kind allows; it serves again by the time `api.writing` answers."""
        ...

    def close(self) -> None:
        """End it for good."""
        ...


class Here:
    """A coordinator in this process, on an event loop of its own."""

    def __init__(self, settings: HostSettings, *, ready_seconds: float = 20.0, retry: Retry | None = None) -> None:
        self._settings = settings
        self._retry = retry
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="host")
        self._thread.start()
        self._host = self._begin()
        try:
            self.api = Api(self._ready(ready_seconds))
        except BaseException:
            self.close()
            raise

    def restart(self) -> None:
        """Stop it cleanly and start another one on the same port."""
        self._run(self._host.stop())
        self._settings = dataclasses.replace(self._settings, port=self.api.port)
        self._host = self._begin()
        self._ready()

    def close(self) -> None:
        """Stop it cleanly."""
        self._run(self._host.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _begin(self) -> Host:
        async def make() -> Host:
            return Host(self._settings, self._retry)

        made: Host = self._run(make())
        return made

    def _ready(self, seconds: float = 20.0) -> int:
        port: int = self._run(self._host.ready(seconds))
        return port

    def _run(self, call: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(40)


class Detached:
    """A coordinator as a detached actor of the cluster that this process is part of."""

    def __init__(self, settings: HostSettings, name: str) -> None:
        self._settings = settings
        self.place = detached.Detached(Ray(""), name)
        self.api = Api(self.ensure())

    def ensure(self, settings: HostSettings | None = None) -> int:
        """Do what the entry point does."""
        return self.place.ensure(Host, settings or self._settings, ready_seconds=60.0)

    def restart(self) -> None:
        """Kill its process; Ray starts another one."""
        os.kill(self.pid(), signal.SIGKILL)

    def pid(self) -> int:
        """Process of the actor: the one that listens."""
        return listener(self.api.port)

    def close(self) -> None:
        """Remove the actor."""
        self.place.remove()
        self.place.close()


def listener(port: int) -> int:
    """Process that listens on a port of this machine.

    Raises:
        LookupError: there is none.
    """
    wanted = f":{port:04X}"
    inodes = {
        line.split()[9]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if line.split()[1].endswith(wanted) and line.split()[3] == "0A"
    }
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = str(link.readlink())
        except OSError:
            continue
        if target.startswith("socket:[") and target[8:-1] in inodes:
            return int(link.parts[2])
    raise LookupError(f"port {port}: want a process that listens, got none")
