"""Publications of which something is killed or frozen on the way. Runs inside an arena (`tests.support.raycluster`).

Everything that is killed is a process of its own: the command line, a mover, a raylet, the coordinator, the head. The
points are drawn from a seed, as a share of the payload. What was seen is returned as plain values; tests judge it.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from aimodels_core import names
from aimodels_core.messages import Want
from aimodels_jobs.headers import FIRST_WINDOW_BYTES
from tests.support import auditing, raycluster, victim
from tests.support.coordinators import TOKEN, Api
from tests.support.hub.limits import Limits
from tests.support.hub.server import Hub
from tests.support.processes import free_port, wait_for
from tests.support.publishing import Place, bucket_place, folder_place
from tests.support.servers import S3Server, versitygw
from tests.support.victim import FILES, REPOSITORY

MIB = 1024 * 1024
CONNECTIONS = 4
CONNECTION_BYTES_PER_SECOND = 14 * MIB
MOVERS = 2
_CLI = Path(sys.executable).with_name("ai-models")
_FINISH_SECONDS = 110.0


class Stage:
    """The cluster, the hub, and what can be played on them."""

    def __init__(self, folder: Path, cluster: raycluster.RayCluster) -> None:
        self._folder = folder
        self.cluster = cluster
        self._count = 0
        self._closing = contextlib.ExitStack()
        self._s3: S3Server | None = None

    def __enter__(self) -> Self:
        self.hub = self._closing.enter_context(Hub(limits=Limits.unlimited()))
        self.repository = self.hub.add(victim.repository())
        self.cluster.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def play(self, kind: str, seed: int) -> dict[str, Any]:
        """Play one scenario on a store of its own."""
        self._count += 1
        self.hub.log.clear()
        self.hub.throttle(CONNECTION_BYTES_PER_SECOND)
        target, _, where = kind.partition("@")
        play = Play(self, self._place(where), random.Random(seed), self._folder / f"work-{self._count}")
        scenario: Callable[[], None] = getattr(play, target)
        began = time.monotonic()
        try:
            scenario()
            seen = play.seen(time.monotonic() - began)
        finally:
            play.close()
            self.cluster.complete()
        for name in ("store", "work"):  # hundreds of them would fill the disk
            shutil.rmtree(self._folder / f"{name}-{self._count}", ignore_errors=True)
        return seen

    def _place(self, where: str) -> Place:
        if where != "s3":
            return folder_place(self._folder / f"store-{self._count}")
        if self._s3 is None:
            self._s3 = self._closing.enter_context(versitygw(self._folder / "s3"))
        return bucket_place(self._s3, f"store-{self._count}")


class Play:
    """One publication, and what happens to it."""

    def __init__(self, stage: Stage, place: Place, chance: random.Random, folder: Path) -> None:
        self._stage = stage
        self._place = place
        self._chance = chance
        self._folder = folder
        folder.mkdir()
        self._log = (folder / "log").open("ab")
        self._facts: dict[str, Any] = {}
        self._api: Api | None = None
        self._processes: list[subprocess.Popen[bytes]] = []
        self._stopped: set[int] = set()

    # What is killed

    def driver(self) -> None:
        """The command line is killed, and run again."""
        process = self._begin()
        self._reach()
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        self._note(quiet=True)
        self._end(self._begin())

    def interrupt(self) -> None:
        """The command line gets Ctrl-C, and is run again."""
        process = self._begin()
        self._reach()
        process.send_signal(signal.SIGINT)
        self._facts["interrupted"] = process.wait(30)
        self._note(quiet=True)
        self._end(self._begin())

    def own_ray(self) -> None:
        """The command line with a Ray of its own gets Ctrl-C, is run again and killed, and is run to its end."""
        left = {}
        for sign in (signal.SIGINT, signal.SIGKILL, None):
            before = raycluster.processes()
            process = self._begin(RAY_ADDRESS="")
            if sign is None:
                self._end(process)
            else:
                self._reach()
                process.send_signal(sign)
                self._facts[f"code_{sign.name}"] = process.wait(40)
                self._note(quiet=True)
            left[str(sign)] = self._left(before)
        self._facts["left"] = left

    def worker(self) -> None:
        """A mover is killed."""
        process = self._begin()
        self._reach()
        os.kill(self._chance.choice(raycluster.workers("Mover")), signal.SIGKILL)
        self._note()
        self._end(process)

    def frozen(self) -> None:
        """A mover is frozen, and thawed before anybody could notice, or when it has been replaced."""
        process = self._begin()
        self._reach()
        pid = self._chance.choice(raycluster.workers("Mover"))
        self._freeze(pid)
        self._note()
        time.sleep(self._chance.choice([2.0, 16.0]))
        self._thaw(pid)
        self._end(process)

    def cut_off(self) -> None:
        """A raylet and its workers are frozen, as behind a cut cable, and thawed when the model is published."""
        process = self._begin()
        self._reach()
        raylet = raycluster.parent(self._chance.choice(raycluster.workers("Mover")))
        pids = [raylet, *(pid for pid in raycluster.workers("") if raycluster.parent(pid) == raylet)]
        for pid in pids:
            self._freeze(pid)
        self._note()
        self._end(process)
        for pid in pids:
            self._thaw(pid)
        self._stage.cluster.kill_raylet(raylet)

    def raylet(self) -> None:
        """A raylet is killed, and with it a mover; its place is taken on the other one."""
        process = self._begin()
        self._reach()
        mover = self._chance.choice(raycluster.workers("Mover"))
        self._stage.cluster.kill_raylet(raycluster.parent(mover))
        wait_for(lambda: mover not in raycluster.workers("Mover"), "no mover without its raylet", seconds=20)
        self._note()
        self._end(process)

    def coordinator(self) -> None:
        """The coordinator is killed; Ray brings it back, and the want is put again."""
        api = self._host()
        epoch = api.writing()
        api.put(self._want)
        self._reach()
        [pid] = raycluster.workers("Host")
        os.kill(pid, signal.SIGKILL)
        self._note(quiet=True)
        began = time.monotonic()
        api.writing(other_than=epoch)
        self._facts["back_seconds"] = round(time.monotonic() - began, 1)
        self._go_on(api)

    def head(self) -> None:
        """The head is lost and everything with it; a new cluster goes on when the want is put again."""
        api = self._host()
        epoch = api.writing()
        api.put(self._want)
        self._reach()
        self._stage.cluster.kill_all()
        self._note(quiet=True)
        self._stage.cluster.start()
        api = self._host()
        api.writing(other_than=epoch)
        self._go_on(api)

    # How it is published

    @property
    def _want(self) -> Want:
        return Want("model", "model", 1, f"{self._stage.hub.url}/{REPOSITORY}", names.LOCAL)

    def _left(self, before: set[int]) -> list[str]:
        """What is still there of the processes that came, after some seconds."""
        with contextlib.suppress(TimeoutError):
            wait_for(lambda: raycluster.processes() <= before, "none left", seconds=20)
        return [raycluster.command_line(pid) for pid in raycluster.processes() - before]

    def _begin(self, **environment: str) -> subprocess.Popen[bytes]:
        options = ("--workers", str(MOVERS), "--connections", str(CONNECTIONS), "--json", "-v")
        words = ("publish", REPOSITORY, "--name", "model", "--endpoint", self._stage.hub.url)
        process = subprocess.Popen(
            [_CLI, *words, *options, *self._place.words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **self._place.environment, "RAY_ADDRESS": self._stage.cluster.address, **environment},
        )
        self._processes.append(process)
        return process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        out, _ = process.communicate(timeout=_FINISH_SECONDS)
        self._facts["code"] = process.returncode
        if process.returncode:
            raise RuntimeError(f"publish: ended with {process.returncode}:\n{self._printed()}")
        self._facts["published"] = json.loads(out)["digest"]

    def _host(self) -> Api:
        port = free_port()
        self._run_host(port)
        self._api = Api(port)
        return self._api

    def _run_host(self, port: int, *more: str) -> None:
        token = self._folder / "token"
        token.write_text(TOKEN)
        keys = self._keys()
        options = {
            "--token-file": str(token),
            "--hub-endpoint": self._stage.hub.url,
            "--port": str(port),
            "--movers": str(MOVERS),
            "--connections": str(CONNECTIONS),
            "--ray-address": self._stage.cluster.address,
            **({"--s3-credentials": str(keys)} if keys else {}),
        }
        words = [word for pair in options.items() for word in pair]
        command = [sys.executable, "-m", "aimodels_jobs.host", *self._place.words, *words, *more]
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, timeout=90, check=True)

    def _keys(self) -> Path | None:
        """The credentials as a mounted Secret has them."""
        found = self._place.environment
        if not found:
            return None
        keys = self._folder / "keys"
        keys.mkdir(exist_ok=True)
        (keys / "accessKey").write_text(found["AWS_ACCESS_KEY_ID"])
        (keys / "secretKey").write_text(found["AWS_SECRET_ACCESS_KEY"])
        return keys

    def _go_on(self, api: Api) -> None:
        self._facts["epoch_empty"] = not api.snapshot().publications
        api.put(self._want)
        state = api.ready("model", seconds=_FINISH_SECONDS)
        assert state.published is not None
        self._facts["published"] = state.published.digest

    # What is seen

    def _sent(self) -> int:
        return self._stage.hub.log.payload_bytes()

    def _reach(self) -> None:
        """Wait for the point."""
        share = self._chance.uniform(0.1, 0.95)
        self._facts["share"] = round(share, 3)
        wait_for(lambda: self._sent() >= share * sum(FILES.values()), "the point", seconds=90)

    def _freeze(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        self._stopped.add(pid)

    def _thaw(self, pid: int) -> None:
        self._stopped.discard(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def _note(self, *, quiet: bool = False) -> None:
        """Take down what had been sent, recorded and shown at the kill; `quiet` waits for the movers to be gone."""
        if quiet:
            began = time.monotonic()
            wait_for(lambda: not raycluster.workers("Mover"), "no mover without its owner", seconds=20)
            self._facts["movers_gone_seconds"] = round(time.monotonic() - began, 1)
        self._facts["sent_at_kill"] = self._sent()
        store = self._place.store
        self._facts["recorded"] = victim.recorded(store, self._stage.repository)
        self._facts["tags_at_kill"] = store.tagged(names.LOCAL) and sorted(store.tagged(names.LOCAL))
        auditing.audit(store)

    def seen(self, seconds: float) -> dict[str, Any]:
        """Everything that was taken down."""
        store = self._place.store
        known: Mapping[str, int] = self._facts["recorded"]
        log = self._stage.hub.log
        repeated = [log.most_often(path, start=FIRST_WINDOW_BYTES, stop=stop) for path, stop in known.items()]
        return {
            **self._facts,
            "seconds": round(seconds, 1),
            "size": sum(FILES.values()),
            "sent": self._sent(),
            "recorded_bytes": sum(known.values()),
            "recorded_sent_times": max(repeated),
            "found": auditing.audit(store),
            "content": auditing.content(store, names.LOCAL, "model"),
            "uploads": auditing.uploads(store),
            "checkpoints": auditing.checkpoints(store),
        }

    def _printed(self) -> str:
        self._log.flush()
        return (self._folder / "log").read_bytes()[-3000:].decode("utf-8", "replace")

    def close(self) -> None:
        """End what is left."""
        for pid in tuple(self._stopped):
            self._thaw(pid)
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait(10)
            if process.stdout:
                process.stdout.close()
        if self._api is not None:
            self._run_host(self._api.port, "--remove")
        wait_for(lambda: not raycluster.workers("Mover") + raycluster.workers("Host"), "no actor left", seconds=30)
        self._log.close()
