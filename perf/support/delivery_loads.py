"""Pods with and without models, one after another: `python -m perf.support.delivery_loads FOLDER ROUNDS`.

Runs inside a stand with the product's images; the result is FOLDER/samples.json, of which perf.bench_delivery makes
goals.
"""

import contextlib
import dataclasses
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from aimodels_core import names
from perf.support import spent
from perf.support.admin import Admin, Change, Watch
from perf.support.report import Sample, say
from tests.cluster import installed, operating
from tests.cluster.operating import phase, secret
from tests.cluster.stand import blockdevices, chart
from tests.cluster.stand.chart import SYSTEM
from tests.cluster.stand.cluster import Cluster
from tests.cluster.stand.kubectl import Kubectl, Object, pod
from tests.cluster.stand.waiting import until
from tests.support.hub.server import Hub
from tests.support.publishing import good_model

SPACE = "load"
NODES = ("node-a", "node-b")
_GATE = "example.com/wait"
_MIB = 1024 * 1024
_WEIGHTS_BYTES = 8 * _MIB
_SECONDS = 180.0
_SETTINGS = (
    "sources.huggingFace.endpoint=https://huggingface.co",
    "sources.huggingFace.caSecretName=load-hub-ca",
    "delivery.type=NodeCache",
    "delivery.maxGateWait=2m",
)


class Loads:
    """Pods, one after another.

    Args:
        stand: where.
        hub: that has the models.
    """

    def __init__(self, stand: Cluster, hub: Hub) -> None:
        self._stand, self._hub = stand, hub
        self._space = Kubectl(SPACE)
        self._admin = Admin(os.environ["KUBECONFIG"])
        self._pods = f"/api/v1/namespaces/{SPACE}/pods"

    def run(self, rounds: int) -> Iterator[tuple[str, Sample]]:
        """Make all; yields variants and samples."""
        self._publish("warm")
        self._plain("first")
        self._warm("first-warm")
        for number in range(rounds):
            yield "no model", self._timed(lambda: self._plain(f"plain-{number}"))  # noqa: B023 - called at once
            yield "warm model", self._timed(lambda: self._warm(f"warm-{number}"))  # noqa: B023 - called at once
        for number in range(rounds):
            yield "cold model", self._timed(lambda: self._cold(number))  # noqa: B023 - called at once

    def _timed(self, work: Any) -> Sample:
        busy, own = spent.machine_busy_seconds(), spent.tree_cpu_seconds(1)
        began = time.monotonic()
        seconds = work()
        wall = time.monotonic() - began
        others = spent.machine_busy_seconds() - busy - (spent.tree_cpu_seconds(1) - own)
        foreign = max(0.0, others / (wall * (os.cpu_count() or 1)))
        return Sample(seconds, foreign=round(foreign, 3))

    def _publish(self, name: str) -> str:
        self._hub.add(good_model(f"org/{name}", weights_bytes=_WEIGHTS_BYTES, seed=hash(name) % 1000))
        self._space.apply(installed.model(name, f"org/{name}"))
        found = self._space.until("model", name, phase("Ready"), seconds=_SECONDS)
        return str(found["status"]["artifact"]["digest"]).removeprefix("sha256:")

    def _plain(self, name: str) -> float:
        """A Pod whose gate is taken away by us."""
        made = pod(name, command=["sleep", "infinity"], schedulingGates=[{"name": _GATE}])
        made["spec"]["nodeSelector"] = {names.LABEL_CACHE: "true"}
        with self._watched(made) as (watch, uid):
            until(lambda: _has(watch, uid, _is_gated), what="a gated Pod", seconds=_SECONDS, pause=0.05)
            self._admin.call("PATCH", f"{self._pods}/{name}", {"spec": {"schedulingGates": []}})
            return self._ready(watch, uid)

    def _warm(self, name: str) -> float:
        """A Pod whose gate the operator takes away."""
        with self._watched(wanting(name, "warm")) as (watch, uid):
            return self._ready(watch, uid)

    def _cold(self, number: int) -> float:
        """A Pod whose model comes to a node while it waits."""
        name = f"cold-{number}"
        with self._watched(wanting(name, name)) as (watch, uid):
            digest = self._publish(name)
            there = until(lambda: self._there(digest), what="the artifact", seconds=_SECONDS, pause=0.02)
            until(lambda: _has(watch, uid, _is_ready), what="a Pod that is Ready", seconds=_SECONDS, pause=0.05)
            self._space("delete", "model", name, "--wait=false")
            return next(change.at for change in watch.changes if change.uid == uid and _is_ready(change.status)) - there

    def _there(self, digest: str) -> float | None:
        for name in NODES:
            tree = f"/var/lib/ai-models/node-cache/devices/dev-{name}/trees/{digest}"
            node = self._stand.node(name)
            if Path(f"/proc/{node.holder.pid()}/root{tree}").is_dir():
                return time.monotonic()
        return None

    @contextlib.contextmanager
    def _watched(self, made: Object) -> Iterator[tuple[Watch, str]]:
        watch = self._admin.watch(self._pods)
        found = self._admin.call("POST", self._pods, made)
        try:
            yield watch, found["metadata"]["uid"]
        finally:
            self._admin.call("DELETE", f"{self._pods}/{made['metadata']['name']}?gracePeriodSeconds=0")
            watch.stop()

    def _ready(self, watch: Watch, uid: str) -> float:
        """Seconds from the first status without a gate until Ready."""
        until(lambda: _has(watch, uid, _is_ready), what="a Pod that is Ready", seconds=_SECONDS, pause=0.05)
        changes = [change for change in watch.changes if change.uid == uid]
        gated = max(index for index, change in enumerate(changes) if _is_gated(change.status))
        return next(change.at for change in changes if _is_ready(change.status)) - changes[gated + 1].at


def wanting(name: str, model: str) -> Object:
    """A Pod that wants a model."""
    made = pod(name, command=["sleep", "infinity"])
    made["metadata"]["annotations"] = {names.ANNOTATION_MODEL: model}
    return made


def _has(watch: Watch, uid: str, true: Any) -> bool:
    return any(change.uid == uid and true(change.status) for change in _copy(watch))


def _copy(watch: Watch) -> list[Change]:
    return list(watch.changes)


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return next((one for one in status.get("conditions", ()) if one["type"] == kind), {})


def _is_gated(status: Mapping[str, Any]) -> bool:
    return bool(_condition(status, "PodScheduled").get("reason") == "SchedulingGated")


def _is_ready(status: Mapping[str, Any]) -> bool:
    return bool(_condition(status, "Ready").get("status") == "True")


@contextlib.contextmanager
def product(stand: Cluster) -> Iterator[Hub]:
    """The product with two nodes that have block devices, and a hub."""
    with operating.hub_under_its_names({}) as hub:
        chart.namespaces()
        Kubectl(SYSTEM).apply(secret("load-hub-ca", {"ca.crt": hub.ca_pem.decode()}))
        Kubectl()("create", "namespace", SPACE)
        with blockdevices.labelled(stand, NODES, size_bytes=1024 * _MIB):
            chart.install_whole(*_SETTINGS)
            yield hub


def main(words: list[str]) -> int:
    """Run everything; 0 when it ran to its end."""
    folder, rounds = Path(words[0]), int(words[1])
    stand = Cluster.attach()
    samples = []
    with product(stand) as hub:
        for variant, sample in Loads(stand, hub).run(rounds):
            say(f"{variant}: {sample.seconds:.3f} s")
            samples.append({"variant": variant, "sample": dataclasses.asdict(sample)})
            (folder / "samples.json").write_text(json.dumps(samples), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
