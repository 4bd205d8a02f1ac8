"""Loads for the operator beside a stand's API server: `python -m perf.support.operator_loads FOLDER MODELS ROUNDS`.

Runs inside a stand; the result is FOLDER/samples.json, which perf.bench_operator makes goals of. Operators are real
processes with the rights of the chart's roles. Which coordinator they talk to is said with each load.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from aimodels_core import api
from perf.support import spent
from perf.support.admin import MODELS, Admin, Object, most_in, most_progress, shortest_gap, writes
from perf.support.lean_coordinator import LeanCoordinator
from perf.support.replicas import Spending, answers, looked_at, metrics, peak_bytes, resident_bytes
from perf.support.report import Sample, say
from tests.cluster import operating
from tests.cluster.operating import Operators, Replica, Served
from tests.cluster.stand.kubectl import Kubectl
from tests.cluster.stand.waiting import until
from tests.support.hub.server import Hub
from tests.support.publishing import good_model

SPACE = "load"
PODS = "foreign"
_HUB_URL = "https://huggingface.co"
_WEIGHTS_BYTES = 1024 * 1024
_PODS_PER_MODEL = 2
_WINDOW_SECONDS = 30.0
"""Of an idle operator; it looks at its Secrets once in that time."""
_CHURN_PER_SECOND = 20
_AT_ONCE = 500
_MOVE_SECONDS = 60.0
_CREATED_PER_SECOND = 10.0
_SLOW = 24
_LOOK_SECONDS = 0.2
"""Between two looks at the metrics of an operator, which are not free."""
_SLOW_SECONDS = 15.0
"""That the weights of a Model take over one connection."""


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """How much load."""

    models: int
    rounds: int

    @property
    def at_once(self) -> int:
        """How many publish at once."""
        return min(_AT_ONCE, self.models)

    @property
    def creations(self) -> int:
        """How many Models are created one after another."""
        return min(300, self.models)


class Loads:
    """All loads, in the order in which they build on each other.

    Args:
        size: how much.
        hub: that the product's coordinator publishes from.
        served: the product's coordinator, and the address and the certificate of any.
        operators: starts replicas.
    """

    def __init__(self, size: Size, hub: Hub, served: Served, operators: Operators) -> None:
        self._size, self._hub, self._served, self._operators = size, hub, served, operators
        self._admin = Admin(os.environ["KUBECONFIG"])
        self._models = f"{MODELS}/namespaces/{SPACE}/models"
        self._names = (f"operator-{number}" for number in itertools.count())
        self._churned = 0
        self.samples: list[tuple[str, Sample]] = []

    def run(self) -> None:
        """Apply them all."""
        for name in (SPACE, PODS):
            Kubectl()("create", "namespace", name)
        self._prepare()
        with self._lean() as lean:
            for _ in range(self._size.rounds):
                self._resync()
            with self._leader() as leader:
                self._beside_pods(leader)
            with self._leader() as leader:
                self._created(leader, lean)
                self._at_once(leader, lean)
        self._served.start()
        self._fail_over()

    def add(self, variant: str, sample: Sample) -> None:
        """Keep a sample, and say so."""
        self.samples.append((variant, sample))
        more = "".join(f"  {name} {value:.4g}" for name, value in sample.more.items())
        say(f"  {variant}: {sample.seconds:.2f} s  {sample.rss_bytes >> 20} MiB{more}  (foreign {sample.foreign:.0%})")

    def _prepare(self) -> None:
        """Publish one Model in earnest, and give many others the status that it was left with."""
        self._hub.add(good_model("org/first", weights_bytes=_WEIGHTS_BYTES))
        first = self._operators.start(next(self._names))
        self._admin.call("POST", self._models, model("first", "org/first"))
        found = Kubectl(SPACE).until("model", "first", operating.phase("Ready"), seconds=120)
        first.stop()
        self._served.stop()
        names = [f"ready-{number}" for number in range(self._size.models)]
        meta = {"finalizers": found["metadata"]["finalizers"]}
        self._admin.each(("POST", self._models, model(name, "org/first", **meta)) for name in names)
        status = {"status": found["status"]}
        self._admin.each(("PATCH", f"{self._models}/{name}/status", status) for name in names)
        say(f"  {len(names)} Models are Ready")

    def _resync(self) -> None:
        before = self._admin.versions(f"{MODELS}/models")
        spending = Spending()
        with self._leader(spending) as leader:
            counts = metrics(leader)
            looked_at = spending.sample()
            time.sleep(1.0)  # what it would still write, it writes now
            changed = set(self._admin.versions(f"{MODELS}/models").items()) ^ set(before.items())
            written = max(counts["aimodels_status_writes_total"], len(changed))
            more = {"models": len(before), "writes": written, "CPU s": spent.tree_cpu_seconds(leader.process.pid)}
            self.add("resync", dataclasses.replace(looked_at, rss_bytes=peak_bytes(leader), more=more))

    def _beside_pods(self, leader: Replica) -> None:
        """The leader, which has nothing to do, without foreign Pods and with them."""
        path = f"/api/v1/namespaces/{PODS}/pods"
        for _ in range(self._size.rounds):
            self._idle("no foreign Pods", leader)
        count = self._size.models * _PODS_PER_MODEL
        self._admin.each(("POST", path, pod(f"pod-{number}")) for number in range(count))
        self._idle("foreign Pods", leader)
        over = threading.Event()
        churning = threading.Thread(target=self._churn, args=(path, count, over), daemon=True)
        churning.start()
        for _ in range(self._size.rounds):
            self._idle("foreign Pods, churn", leader)
        over.set()
        churning.join()

    def _idle(self, variant: str, leader: Replica) -> None:
        spending, churned = Spending(leader), self._churned
        time.sleep(_WINDOW_SECONDS)
        more = {"resident MiB": resident_bytes(leader) / 2**20, "Pods churned": self._churned - churned}
        sample = spending.sample(**more)
        share = 100 * sample.more["CPU s"] / sample.seconds
        self.add(variant, dataclasses.replace(sample, more={**sample.more, "CPU %": share}))

    def _churn(self, path: str, count: int, over: threading.Event) -> None:
        """Delete Pods and create them anew, label others."""
        for number in itertools.cycle(range(count)):
            if over.wait(1 / _CHURN_PER_SECOND):
                return
            name = f"{path}/pod-{number}"
            self._admin.call("PATCH", name, {"metadata": {"labels": {"seen": "again"}}})
            self._admin.call("DELETE", f"{name}?gracePeriodSeconds=0")
            self._admin.call("POST", path, pod(f"pod-{number}"))
            self._churned += 1

    def _created(self, leader: Replica, lean: LeanCoordinator) -> None:
        """Models created one after another: seconds from before the creation to the PUT."""
        lean.move_seconds, began = 2.0, {}
        spending = Spending(leader)
        for number in range(self._size.creations):
            name = f"created-{number}"
            began[f"{SPACE}/{name}"] = time.monotonic()
            self._admin.call("POST", self._models, model(name, "org/first"))
            time.sleep(max(0.0, began[f"{SPACE}/{name}"] + 1 / _CREATED_PER_SECOND - time.monotonic()))
        waits = self._waits(leader, lean, began)
        self.add("created one by one", spending.sample(**percentiles(waits)))
        self._settled(leader)

    def _waits(self, leader: Replica, lean: LeanCoordinator, began: dict[str, float]) -> list[float]:
        """Seconds from the creation of each to its first PUT, ascending."""

        def arrived() -> dict[str, float]:
            if leader.process.poll() is not None:
                raise RuntimeError(f"{leader.identity}: want it to live, got exit code {leader.process.returncode}")
            found: dict[str, float] = {}
            for each in list(lean.arrivals):
                if each.name in began:
                    found.setdefault(each.name, each.at)
            return found

        until(lambda: len(arrived()) == len(began), what=f"{len(began)} wants", seconds=120, pause=0.2)
        return sorted(at - began[name] for name, at in arrived().items())

    def _at_once(self, leader: Replica, lean: LeanCoordinator) -> None:
        """Models that publish at once, from their creation until all are Ready."""
        lean.move_seconds = _MOVE_SECONDS
        watch, before = self._admin.watch(self._models), metrics(leader)
        names = [f"at-once-{number}" for number in range(self._size.at_once)]
        spending = Spending(leader)
        now = time.monotonic()
        self._admin.each(("POST", self._models, model(name, "org/first")) for name in names)
        waits = self._waits(leader, lean, {f"{SPACE}/{name}": now for name in names})
        time.sleep(_MOVE_SECONDS)
        self._settled(leader)
        found = writes(watch.stop())
        counted = metrics(leader)["aimodels_status_writes_total"] - before["aimodels_status_writes_total"]
        more = {
            "models": len(names),
            "writes": max(counted, len(found)),
            "most in 1 s": most_in((write.at for write in found), 1.0),
            "progress in 5 s": most_progress(found),
            "gap s": shortest_gap(found),
            "last PUT s": waits[-1],
        }
        self.add("publish at once", spending.sample(**more))

    def _settled(self, leader: Replica) -> None:
        """Wait until nothing publishes any more."""

        def idle() -> bool:
            counts = metrics(leader)
            return counts["aimodels_queue_depth"] == 0 and not any('phase="Publishing"' in name for name in counts)

        until(idle, what="all Models Ready", seconds=180, pause=0.5)

    def _fail_over(self) -> None:
        """Kill the leader, again and again, while the product's coordinator publishes from a slow hub."""
        self._hub.cdn_bytes_per_second = _WEIGHTS_BYTES / _SLOW_SECONDS
        rounds: list[tuple[list[str], Sample]] = []
        with self._leader() as first:
            leader = first
            for number in range(self._size.rounds):
                names = [f"slow-{number}-{each}" for each in range(_SLOW)]
                for each, name in enumerate(names, _SLOW * number + 1):
                    self._hub.add(good_model(f"org/{name}", weights_bytes=_WEIGHTS_BYTES, seed=each))
                standby = self._standby()
                self._admin.each(("POST", self._models, model(name, f"org/{name}")) for name in names)
                until(lambda names=names: self._moving(names), what="publications that move", seconds=60, pause=0.2)  # type: ignore[misc] # bound now
                rounds.append((names, self._killed(leader, standby, names)))
                leader = standby
            self._hub.cdn_bytes_per_second = None
            self._settled(leader)
            leader.stop()
        alone = self._sent("org/first")
        for names, sample in rounds:
            again = sum(self._sent(f"org/{name}") > alone for name in names)
            self.add("fail-over", dataclasses.replace(sample, more={**sample.more, "restarted": again}))

    def _standby(self) -> Replica:
        """Another replica, which has seen who has the lease."""
        standby = self._operators.start(next(self._names))
        until(lambda: answers(standby), what="a standby", seconds=30)
        time.sleep(3.0)
        return standby

    def _killed(self, leader: Replica, standby: Replica, names: list[str]) -> Sample:
        """Kill the leader and create a Model, so that there is something to write; until the other one has written."""
        moving = len(self._moving(names))
        spending = Spending(standby)
        leader.kill()
        self._admin.call("POST", self._models, model(f"after-{names[0]}", "org/first"))
        until(lambda: metrics(standby)["aimodels_leader"] == 1.0, what="a leader", seconds=60, pause=_LOOK_SECONDS)
        leads = time.monotonic() - spending.began
        until(
            lambda: metrics(standby)["aimodels_status_writes_total"] > 0,
            what="a write",
            seconds=60,
            pause=_LOOK_SECONDS,
        )
        return spending.sample(**{"models": len(names), "moving": moving, "leads after s": leads})

    def _moving(self, names: list[str]) -> list[str]:
        """Those of which the hub has sent a part."""
        alone = self._sent("org/first")
        return [name for name in names if 0 < self._sent(f"org/{name}") < alone]

    def _sent(self, repository: str) -> int:
        """Payload bytes that the hub has sent of a repository, each time counted."""
        return sum(each.sent_bytes for each in self._hub.log if each.payload and each.repository == repository)

    def _lean(self) -> LeanCoordinator:
        context = self._served.certificates.server_context()
        return LeanCoordinator(self._served.port, context, operating.TOKEN)

    @contextlib.contextmanager
    def _leader(self, spending: Spending | None = None) -> Iterator[Replica]:
        """A replica that has looked at everything; stopped at the end."""
        count = sum(1 for _ in self._admin.items(f"{MODELS}/models")) if spending is None else self._size.models
        replica = self._operators.start(next(self._names))
        until(lambda: looked_at(replica, count), what="a look at all Models", seconds=180, pause=_LOOK_SECONDS)
        try:
            yield replica
        finally:
            if replica.process.poll() is None:
                replica.stop()


def model(name: str, repository: str, **meta: object) -> Object:
    """A Model."""
    spec = {"source": {"url": f"{_HUB_URL}/{repository}"}}
    return {"apiVersion": api.API_VERSION, "kind": "Model", "metadata": {"name": name, **meta}, "spec": spec}


def pod(name: str) -> Object:
    """A Pod that no node takes; its scheduler is nobody, so that only the API server has work with it."""
    spec = {"schedulerName": "nobody", "nodeSelector": {"no": "node"}, "automountServiceAccountToken": False}
    containers = [{"name": "main", "image": "localhost/busybox:1"}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {**spec, "containers": containers}}


def percentiles(ordered: list[float]) -> dict[str, float]:
    """Of waits, ascending."""
    count = len(ordered)
    return {
        "models": count,
        "p50 s": ordered[count // 2],
        "p99 s": ordered[min(count - 1, int(0.99 * count))],
        "most s": ordered[-1],
    }


def main() -> int:
    """Apply all loads; the exit code."""
    folder, size = Path(sys.argv[1]), Size(int(sys.argv[2]), int(sys.argv[3]))
    operating.install()
    with operating.world(folder) as made:
        loads = Loads(size, *made)
        try:
            loads.run()
        except Exception:
            say(made[2].logs()[-3000:])
            raise
        finally:
            found = [{"variant": name, "sample": dataclasses.asdict(sample)} for name, sample in loads.samples]
            (folder / "samples.json").write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
