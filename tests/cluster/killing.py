"""Publications of an installed product, of which something is killed on the way.

Processes are killed from the node, as by the kernel; a Pod that is lost loses all of its at once. The points are
drawn from a seed, as a share of the payload. What was seen is returned as plain values; tests judge it.
"""

import itertools
import json
import random
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Self

from aimodels_jobs.headers import FIRST_WINDOW_BYTES
from tests.cluster import installed, operating
from tests.cluster.operating import phase
from tests.cluster.stand import chart
from tests.cluster.stand.chart import HOME
from tests.cluster.stand.cluster import Cluster
from tests.cluster.stand.kubectl import Kubectl, Object
from tests.cluster.stand.process import alive
from tests.cluster.stand.waiting import until
from tests.support import auditing
from tests.support.hub.repository import Repository
from tests.support.hub.server import Hub
from tests.support.victim import FILES, recorded

NAME = "victim"
POINT_SECONDS = 180.0
READY_SECONDS = 360.0
MOVERS_SECONDS = 60.0


class History:
    """Every status of a Model, as a watch tells them; over restarts of the API server.

    Args:
        space: its namespace.
        name: its name.
        published: whether the store has it; asked at once when a status says that it is Ready.
    """

    def __init__(self, space: Kubectl, name: str, published: Callable[[], bool]) -> None:
        self._words = ("kubectl", f"--namespace={space.namespace}", "get", "model", name, "--watch", "--output=json")
        self._published = published
        self._closing = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._follow, daemon=True, name="history")
        self.statuses: list[Object] = []
        self.lies: list[Object] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        while self._thread.is_alive():
            if self._process is not None:
                self._process.kill()
            self._thread.join(0.2)

    def _follow(self) -> None:
        while not self._closing.wait(0.2):
            with subprocess.Popen(
                self._words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            ) as self._process:
                assert self._process.stdout is not None
                text = ""
                for line in self._process.stdout:
                    text += line
                    if line == "}\n":
                        self._note(json.loads(text).get("status", {}))
                        text = ""

    def _note(self, status: Object) -> None:
        self.statuses.append(status)
        ready = status.get("phase") == "Ready"
        if ready != ("artifact" in status) or (ready and not self._published()):
            self.lies.append(status)

    @property
    def phases(self) -> list[str]:
        """Phases in the order of their coming."""
        return [name for name, _ in itertools.groupby(str(status.get("phase", "")) for status in self.statuses)]

    @property
    def attempts(self) -> int:
        """The highest attempt that was shown."""
        return max((int(status.get("publication", {}).get("attempt", 0)) for status in self.statuses), default=0)


class Play:
    """One publication, and what happens to it.

    Args:
        stand: where the product is installed.
        hub: that has the model.
        made: the model.
        space: a fresh namespace.
        chance: draws the point and the victim.
    """

    def __init__(self, stand: Cluster, hub: Hub, made: Repository, space: Kubectl, chance: random.Random) -> None:
        self._stand = stand
        self._hub = hub
        self._made = made
        self._space = space
        self._chance = chance
        self._store = installed.store()
        self._scope = f"ns/{space.namespace}"
        self._facts: dict[str, Any] = {}

    def play(self, kind: str, number: int) -> dict[str, Any]:
        """Publish, kill at the point, wait until it is published; what was seen."""
        self._hub.log.clear()
        began = time.monotonic()
        with History(self._space, NAME, self._tagged) as history:
            find: Callable[[int], Callable[[], None]] = getattr(self, kind)
            strike = find(number)
            self._space.apply(installed.model(NAME, self._made.id))
            self._reach()
            strike()
            killed = time.monotonic()
            found = self._space.until("model", NAME, phase("Ready"), seconds=READY_SECONDS)
            until(lambda: history.phases[-1:] == ["Ready"], what="a watch that tells of Ready", seconds=30)
        log = self._hub.log
        known: Mapping[str, int] = self._facts["recorded"]
        repeated = [log.most_often(path, start=FIRST_WINDOW_BYTES, stop=stop) for path, stop in known.items()]
        return {
            **self._facts,
            "seconds": round(time.monotonic() - began, 1),
            "ready_seconds": round(time.monotonic() - killed, 1),
            "size": sum(FILES.values()),
            "sent": log.payload_bytes(),
            "recorded_bytes": sum(known.values()),
            "recorded_sent_times": max(repeated),
            "published": found["status"]["artifact"]["digest"],
            "phases": history.phases,
            "attempts": history.attempts,
            "lies": history.lies,
            "found": auditing.audit(self._store).get(f"{self._scope}:{found['metadata']['uid']}"),
            "uploads": auditing.uploads(self._store),
            "checkpoints": auditing.checkpoints(self._store),
        }

    # What is killed: each method finds its victim, and returns what kills it at the point.

    def operator(self, _: int) -> Callable[[], None]:
        """The operator that leads."""
        leader = Kubectl(HOME).get("pod", operating.holder())
        return lambda: self._lose(leader)

    def coordinator(self, _: int) -> Callable[[], None]:
        """The coordinator's process; its movers end with it."""
        (head,) = chart.pods("ray-head")
        workers = chart.pods("ray-worker")

        def strike() -> None:
            movers = self._movers(*workers)
            installed.kill(*installed.processes(self._stand, head, "ray::Host"))
            self._note(gone=movers)

        return strike

    def head(self, _: int) -> Callable[[], None]:
        """Ray's head and everything in it."""
        (head,) = chart.pods("ray-head")
        workers = chart.pods("ray-worker")
        return lambda: self._lose(head, gone=self._movers(*workers))

    def worker(self, _: int) -> Callable[[], None]:
        """A worker with a mover that fetches."""
        workers = chart.pods("ray-worker")
        return lambda: self._lose(self._chance.choice([pod for pod in workers if self._movers(pod)]))

    def api_server(self, number: int) -> Callable[[], None]:
        """The API server; it comes back at once, or only when the model is published."""
        plane = self._stand.control_plane

        def strike() -> None:
            plane.apiserver.kill()
            try:
                self._note()
                if number % 2 == 0:
                    until(self._tagged, what="a publication without an API server", seconds=POINT_SECONDS, pause=0.2)
            finally:
                plane.apiserver.start()
                plane.wait()

        return strike

    def _lose(self, pod: Object, *, gone: Collection[int] = ()) -> None:
        installed.kill(*installed.processes(self._stand, pod))
        self._note(gone=gone)
        installed.bury(pod)

    # What is seen

    def _tagged(self) -> bool:
        return bool(self._store.tagged(self._scope))

    def _movers(self, *pods: Object) -> set[int]:
        return {pid for pod in pods for pid in installed.processes(self._stand, pod, "ray::Mover")}

    def _reach(self) -> None:
        """Wait for the point."""
        share = self._chance.uniform(0.1, 0.95)
        self._facts["share"] = round(share, 3)
        wanted = share * sum(FILES.values())
        until(lambda: self._hub.log.payload_bytes() >= wanted, what="the point", seconds=POINT_SECONDS)

    def _note(self, *, gone: Collection[int] = ()) -> None:
        """Take down what was recorded and shown at the kill, and what was sent until those who fetched were gone."""
        self._facts["recorded"] = recorded(self._store, self._made)
        self._facts["tags_at_kill"] = sorted(self._store.tagged(self._scope))
        until(lambda: not any(map(alive, gone)), what="the end of movers without an owner", seconds=MOVERS_SECONDS)
        self._facts["sent_at_kill"] = self._hub.log.payload_bytes()
