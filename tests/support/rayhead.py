"""The operator beside a real Ray: `ray start` of a head and a worker with a token, its Jobs API, the coordinator in it.

`HeadArena` plays it in namespaces of its own, as `tests.support.raycluster` does; what was seen comes as plain values.
"""

import asyncio
import contextlib
import datetime
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from aimodels_core import names, serving
from aimodels_core.errors import AiModelsError
from aimodels_core.messages import PublicationState, Stage, Want
from aimodels_operator.bootstrap import ID_PREFIX, Job, Start, words_of
from aimodels_operator.coordinator import Access, CoordinatorClient
from aimodels_operator.dataplane import TOKEN_KEY, Dataplane, RayJobs
from tests.support import raycluster, weights
from tests.support.certificates import Certificates, certificates
from tests.support.coordinators import TOKEN, listener
from tests.support.hub.limits import Limits
from tests.support.hub.repository import Repository
from tests.support.hub.server import Hub
from tests.support.processes import HOST, wait_for
from tests.support.publishing import good_model

RAY_TOKEN = "token-of-ray-in-a-test-0123456789abcdef"
JOBS_PORT, COORDINATOR_PORT = 8265, 18270
REPOSITORY, OTHER = "org/tiny", "org/other"
HEAD_ADDRESS, WORKER_ADDRESS = "10.77.0.1", "10.77.0.2"
_CHART = Path(__file__).parents[2] / "charts" / "ai-models"
_FAILING = Start("one-that-fails", "python3 -m aimodels_jobs.host --store ftp://x --token-file none")
_KUBELET = 'while :; do "$@"; sleep 1; done'
"""A container that ended is started again."""
_APART = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
_WAIT_FOR_NETWORK = "until ip -4 address show dev eth0 up 2>/dev/null | grep -q inet; do sleep 0.1; done"


class HeadArena(raycluster.Arena):
    """An arena whose process is this module."""

    def _command(self, folder: Path) -> tuple[str, ...]:
        self._nodes_logs = [folder / "head.log", folder / "worker.log"]
        return (sys.executable, "-m", __name__, str(folder), str(self._short))

    def printed(self) -> str:
        """The end of what was printed inside, by the head and by the worker."""
        return "\n".join([super().printed(), *(raycluster.ending(log) for log in self._nodes_logs if log.exists())])


# Inside


class Secrets:
    """An API server that has one Secret."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def read_secret(self, namespace: str, name: str) -> Mapping[str, str]:
        """Read it."""
        assert (namespace, name) == ("home", "ai-models-ray")
        return {TOKEN_KEY: self._token}


def charted() -> dict[str, str]:
    """The variables of Ray's containers that the chart sets whatever its values are."""
    text = (_CHART / "templates" / "_ray.tpl").read_text()
    return dict(re.findall(r'^ *- {name: (RAY_\w+), value: "?([\w/.]+)"?}', text, re.MULTILINE))


class Nodes:
    """A head and a worker, run by the chart's scripts as the first processes of namespaces, as in Pods.

    The head shares our network; the worker has one of its own, with a cable to ours.
    """

    def __init__(self, folder: Path, short: Path) -> None:
        self._folder = folder
        self._short = short
        token = folder / "ray-token"
        token.write_text(RAY_TOKEN)
        self._env = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            **charted(),
            "RAY_AUTH_TOKEN_PATH": str(token),
            "AI_MODELS_RAY_HEAD": HEAD_ADDRESS,
            "AI_MODELS_RAY_CPUS": "2",
            "AI_MODELS_RAY_LABELS": "ai-models/role=fetch",
        }
        script = f"{_WAIT_FOR_NETWORK}\n{(_CHART / 'files' / 'ray-worker.sh').read_text()}"
        self._worker = self._start("worker", [*_APART, "--net", "bash", "-c", script], WORKER_ADDRESS)
        self._head: subprocess.Popen[bytes] | None = None
        self._connect()

    def start_head(self) -> None:
        """Start a head; it takes about ten seconds until it answers."""
        script = (_CHART / "files" / "ray-head.sh").read_text()
        command = ["bash", "-c", _KUBELET, "kubelet", *_APART, "bash", "-c", script]
        self._head = self._start("head", command, HEAD_ADDRESS)

    def lose_head(self) -> None:
        """Kill the head and all that it started."""
        assert self._head is not None
        os.killpg(self._head.pid, signal.SIGKILL)
        self._head.wait(10)

    def is_of_head(self, pid: int) -> bool:
        """Whether a process is one of the head's."""
        assert self._head is not None
        [first] = _children(*_children(self._head.pid))
        return Path(f"/proc/{pid}/ns/pid").readlink() == Path(f"/proc/{first}/ns/pid").readlink()

    def _start(self, name: str, command: list[str], address: str) -> subprocess.Popen[bytes]:
        home = self._short / name
        home.mkdir(exist_ok=True)
        env = {**self._env, "HOME": str(home), "RAY_TMPDIR": str(home), "POD_IP": address}
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True
            )

    def _connect(self) -> None:
        pid = self._worker.pid
        ours = Path("/proc/self/ns/net").readlink()
        wait_for(lambda: Path(f"/proc/{pid}/ns/net").readlink() != ours, "a network of the worker")
        there = f"nsenter --target {pid} --net ip"
        for command in (
            f"ip link add cable type veth peer name eth0 netns {pid}",
            f"ip address add {HEAD_ADDRESS}/24 dev cable",
            "ip link set cable up",
            f"{there} link set lo up",
            f"{there} address add {WORKER_ADDRESS}/24 dev eth0",
            f"{there} link set eth0 up",
        ):
            subprocess.run(command.split(), check=True, timeout=10)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Told:
    """What the operator has: a client of the coordinator, and what starts it."""

    def __init__(self, made: Certificates, command: tuple[str, ...]) -> None:
        self.client = CoordinatorClient(
            f"https://{HOST}:{COORDINATOR_PORT}",
            lambda: Access(TOKEN, made.ca.read_text()),
            lambda _: None,
            now=lambda: datetime.datetime.now(datetime.UTC),
        )
        self.start = Start.of(command, "test")

    @contextlib.asynccontextmanager
    async def working(self, token: str = RAY_TOKEN) -> AsyncIterator[None]:
        """Follow the coordinator, and have it run."""
        plane = Dataplane(
            f"http://{HOST}:{JOBS_PORT}",
            self.start,
            ("home", "ai-models-ray"),
            Secrets(token),
            check=lambda: None,
            silent_seconds=self.client.silent_seconds,
            blame=self.client.blame,
        )
        tasks = [asyncio.create_task(self.client.follow()), asyncio.create_task(plane.run())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Close connections."""
        await self.client.close()

    async def answering(self, *, other_than: str = "", seconds: float = 150.0) -> str:
        """Wait for an answer of a coordinator that writes; returns its epoch."""

        def check() -> bool:
            link = self.client.link
            return link.silent_since is None and bool(link.epoch) and link.epoch != other_than and not link.holder

        await until(check, "a coordinator that answers", seconds)
        return self.client.link.epoch

    async def says(self, words: str, *, seconds: float = 60.0) -> str:
        """Wait until the reason for its silence begins with these words; returns all of them."""

        def check() -> bool:
            return self.client.link.silent_since is not None and self.client.link.trouble.startswith(words)

        await until(check, words, seconds)
        return self.client.link.trouble

    async def published(self, want: Want) -> PublicationState:
        """Have a model published."""
        await self.client.put(want)

        def check() -> bool:
            state = self.client.states.get(want.uid)
            return state is not None and state.stage is Stage.READY

        await until(check, "a model that is ready", 120.0)
        return self.client.states[want.uid]


async def until(check: Callable[[], bool], what: str, seconds: float) -> None:
    """Poll until `check` holds.

    Raises:
        TimeoutError.
    """
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            raise TimeoutError(f"want {what} within {seconds} s")
        await asyncio.sleep(0.05)


class Life:
    """A cluster from before its head until after the loss of it."""

    def __init__(self, folder: Path, nodes: Nodes, hub: Hub) -> None:
        self._folder = folder
        self._nodes = nodes
        self._hub = hub
        self._made = certificates(folder)
        self._began = time.monotonic()
        self._facts: dict[str, Any] = {"seconds": {}}
        (folder / "token").write_text(TOKEN)
        self._want = Want("m", "m", 1, f"{hub.url}/{REPOSITORY}", names.CLUSTER)

    def play(self, kind: str, seed: int) -> dict[str, Any]:
        """Play it; there is only one."""
        del kind, seed
        asyncio.run(self._play())
        return self._facts

    def _command(self, *more: str) -> tuple[str, ...]:
        options = {
            "--store": str(self._folder / "store"),
            "--token-file": str(self._folder / "token"),
            "--tls-cert": str(self._made.cert),
            "--tls-key": str(self._made.key),
            "--hub-endpoint": self._hub.url,
            "--on": "ai-models/role=head",
            "--movers": "1",
        }
        return (*(word for pair in options.items() for word in pair), *more)

    async def _play(self) -> None:
        told = Told(self._made, self._command())
        async with told.working():
            self._facts["before"] = await told.says("Ray's head")
            self._nodes.start_head()
            first = await self._answered("started", told)
            async with self._jobs() as jobs:
                await jobs.submit(_FAILING, RAY_TOKEN)
            await self._publish(told)
        async with told.working():  # another operator finds it
            self._facts["found_again"] = await told.answering() == first
            self._facts["submissions"] = [job.id == told.start.id for job in await self._submissions()]
        await told.close()
        await self._denied()
        await self._changed(first)

    async def _publish(self, told: Told) -> None:
        state = await told.published(self._want)
        assert state.published is not None
        self._facts["published"] = state.published.digest
        [mover] = raycluster.workers("Mover")
        self._facts["mover_on_head"] = self._nodes.is_of_head(mover)
        self._facts["coordinator_on_head"] = self._nodes.is_of_head(listener(COORDINATOR_PORT))

    async def _denied(self) -> None:
        async with self._jobs() as jobs:
            try:
                await jobs.all("another token")
            except AiModelsError as error:
                self._facts["denied"] = error.message

    async def _changed(self, first: str) -> None:
        told = Told(self._made, self._command("--log-level", "Debug"))
        async with told.working():
            second = await self._answered("replaced", told, other_than=first)
            self._facts["submissions_after"] = [job.id == told.start.id for job in await self._submissions()]
            async with self._jobs() as jobs:
                self._facts["failed"] = [words_of(j) for j in await jobs.all(RAY_TOKEN) if j.id == _FAILING.id]
            await asyncio.to_thread(self._nodes.lose_head)
            self._facts["lost"] = await told.says("Ray's head")
            self._nodes.start_head()
            await self._answered("back", told, other_than=second)
            state = await told.published(self._want)
            self._facts["moved_again"] = state.bytes_transferred
            other = Want("n", "n", 1, f"{self._hub.url}/{OTHER}", names.CLUSTER)
            self._facts["moved_then"] = (await told.published(other)).bytes_transferred
        await told.close()

    async def _answered(self, what: str, told: Told, *, other_than: str = "") -> str:
        epoch = await told.answering(other_than=other_than)
        self._facts["seconds"][what] = round(time.monotonic() - self._began, 1)
        return epoch

    async def _submissions(self) -> list[Job]:
        async with self._jobs() as jobs:
            return [job for job in await jobs.all(RAY_TOKEN) if job.id.startswith(ID_PREFIX)]

    @contextlib.asynccontextmanager
    async def _jobs(self) -> AsyncIterator[RayJobs]:
        async with aiohttp.ClientSession() as session:
            yield RayJobs(f"http://{HOST}:{JOBS_PORT}", session)


def main() -> int:
    """Answer requests until the other side closes."""
    answers = raycluster.answers_only()
    folder, short = Path(sys.argv[1]), Path(sys.argv[2])
    raycluster.set_environment(short)
    serving.log_json("Info")
    nodes = Nodes(folder, short)
    with Hub(limits=Limits.unlimited(), host=HEAD_ADDRESS, cdn_host=HEAD_ADDRESS) as hub:
        hub.add(Repository(REPOSITORY, weights.tiny_safetensors()))
        hub.add(good_model(OTHER))
        raycluster.answer_requests(Life(folder, nodes, hub).play, answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
