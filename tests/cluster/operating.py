"""Operators and a coordinator beside the stand's API server: real processes, a real chart, a hub simulator.

The operators run as processes outside Pods, with the token of the chart's ServiceAccount and so with its rights alone.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from aimodels_jobs import service
from aimodels_jobs.sources.hub_settings import HubSettings
from aimodels_jobs.sourcing import Sourcing
from tests.cluster.stand import chart
from tests.cluster.stand.kubectl import Kubectl, Object
from tests.cluster.stand.layout import CHECKOUT, HUB_ADDRESS
from tests.cluster.stand.waiting import until
from tests.support.certificates import certificates
from tests.support.hub import server
from tests.support.hub.limits import Limits
from tests.support.hub.server import Hub
from tests.support.processes import free_port
from tests.support.publishing import Desk, folder_place

HOME = chart.HOME
TOKEN = "a-token-of-the-coordinator"
HUB_TOKEN = "hf_a-token-of-the-hub"


def install(*settings: str, wait: bool = True) -> None:
    """Install definitions, policies and roles of the chart, or upgrade it; processes only if the settings say so."""
    chart.install(*(f"{part}.enabled=false" for part in ("operator", "dataplane", "delivery")), *settings, wait=wait)


def operator_kubeconfig(folder: Path) -> Path:
    """A kubeconfig with the rights of the operator's ServiceAccount."""
    found = json.loads(Kubectl()("config", "view", "--raw", "--output=json"))
    token = Kubectl(HOME)("create", "token", "ai-models-operator").strip()
    for user in found["users"]:
        user["user"] = {"token": token}
    path = folder / "operator.kubeconfig"
    path.write_text(json.dumps(found))
    return path


def secret(name: str, values: Mapping[str, str]) -> Object:
    """A Secret of the namespace that it is applied in."""
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": dict(values)}


class Served:
    """A coordinator over a folder, with its API over TLS on a port that it keeps over restarts."""

    def __init__(self, folder: Path, hub: Hub, host: str = "127.0.0.1") -> None:
        self.folder = folder
        self.hub = hub
        self.host = host
        self.port = free_port()
        self.certificates = certificates(folder, host, "localhost")
        self.desk: Desk | None = None
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """Address of the API."""
        return f"https://{self.host}:{self.port}"

    def secrets(self) -> list[Object]:
        """What operators find at home: the authority of this coordinator's certificate, and its token."""
        authority = {"tls.crt": self.certificates.ca.read_text(), "tls.key": self.certificates.ca_key.read_text()}
        return [secret("ai-models-serving-root", authority), secret("ai-models-coordinator", {"token": TOKEN})]

    def start(self, settings: HubSettings | None = None) -> Desk:
        """Start anew, over the same store; the hub is at the administrator's endpoint if nothing else is said."""
        settings = settings or HubSettings(endpoint=self.hub.url)
        desk = Desk(folder_place(self.folder / "store"), hubs=Sourcing(settings))  # type: ignore[arg-type] # same port
        self.desk = desk
        desk.run(self._serve(desk))
        return desk

    async def _serve(self, desk: Desk) -> None:
        self._runner = web.AppRunner(
            service.application(desk.coordinator, TOKEN), access_log=None, shutdown_timeout=0.5
        )
        await self._runner.setup()
        context = self.certificates.server_context()
        await web.TCPSite(self._runner, self.host, self.port, ssl_context=context, reuse_address=True).start()

    def stop(self) -> None:
        """Stop it, as a lost head would."""
        if self.desk is not None and self._runner is not None:
            with contextlib.suppress(TimeoutError):
                self.desk.run(asyncio.wait_for(self._runner.cleanup(), 10))
            self.desk.close()
            self.desk = None


@dataclasses.dataclass(slots=True)
class Replica:
    """One operator process."""

    identity: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        """SIGKILL, and reap."""
        self.process.kill()
        self.process.wait(10)

    def freeze(self) -> None:
        """SIGSTOP."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
        return self.process.wait(20)


class Operators:
    """Starts replicas against one coordinator, and ends them all."""

    def __init__(self, folder: Path, served: Served) -> None:
        self.folder = folder
        self._served = served
        self._kubeconfig = operator_kubeconfig(folder)
        Kubectl(HOME).apply(*served.secrets())
        self.replicas: list[Replica] = []

    def start(self, identity: str, **more: str) -> Replica:
        """Start a replica, with more settings such as `S3_SECRET="s3"`; it may have to wait for the lease."""
        port = free_port()
        settings = {
            "IDENTITY": identity,
            "NAMESPACE": HOME,
            "COORDINATOR_URL": self._served.url,
            "LISTEN_HOST": "127.0.0.1",
            "LISTEN_PORT": str(port),
            **more,
        }
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AI_MODELS_")}
        environment |= {f"AI_MODELS_{name}": value for name, value in settings.items()}
        environment |= {"KUBECONFIG": str(self._kubeconfig)}
        log = self.folder / f"{identity}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "aimodels_operator"], env=environment, cwd=CHECKOUT, stdout=output, stderr=output
            )
        made = Replica(identity, port, process, log)
        self.replicas.append(made)
        return made

    def close(self) -> None:
        """Kill what still runs."""
        for replica in self.replicas:
            if replica.process.poll() is None:
                replica.thaw()
                replica.kill()

    def logs(self) -> str:
        """Everything that all replicas logged."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log")))


@contextlib.contextmanager
def hub_under_its_names(tokens: Mapping[str, str]) -> Iterator[Hub]:
    """The simulator where the stand's DNS leads the names of huggingface.co; tokens by whom they belong to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "_address", lambda _: HUB_ADDRESS)
        made = Hub(
            tokens=dict(tokens),
            limits=Limits.unlimited(),
            host="huggingface.co",
            cdn_host="cdn-lfs.hf.co",
            other_cdn_host="cas-bridge.xethub.hf.co",
            tls=True,
            port=443,
        )
    with made:
        yield made


@contextlib.contextmanager
def world(folder: Path) -> Iterator[tuple[Hub, Served, Operators]]:
    """A hub, a coordinator that serves, and a place to start operators."""
    with Hub(tokens={HUB_TOKEN: "user"}, limits=Limits.unlimited()) as hub:
        served = Served(folder, hub)
        served.start()
        operators = Operators(folder, served)
        try:
            yield hub, served, operators
        finally:
            operators.close()
            served.stop()


def holder() -> str:
    """Who has the lease."""
    done = Kubectl(HOME).attempt("get", "lease", "ai-models-operator", "--output=json")
    found: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
    return str(found.get("spec", {}).get("holderIdentity") or "")


def wait_for_holder(*identities: str, seconds: float = 30.0) -> str:
    """Wait until one of the replicas has the lease; returns which."""

    def look() -> str | None:
        found = holder()
        return found if found in identities else None

    return until(look, what="a leader", seconds=seconds, pause=0.2)


def phase(name: str) -> Any:
    """A condition of an object: its phase."""
    return lambda found: found.get("status", {}).get("phase") == name


def stage(name: str) -> Any:
    """A condition of an object: the stage of its publication."""
    return lambda found: found.get("status", {}).get("publication", {}).get("stage") == name


def moved(size_bytes: int) -> Any:
    """A condition of an object: so much of its publication is done."""
    return lambda found: found.get("status", {}).get("publication", {}).get("bytesDone", 0) >= size_bytes
