"""The operator when the API server misbehaves and when many Models come at once."""

import os
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kubernetes import client

from aimodels_operator import kube
from tests.cluster import operating
from tests.cluster.operating import Operators, Replica, Served, phase, stage, wait_for_holder
from tests.cluster.stand.cluster import Cluster
from tests.cluster.stand.kubectl import Kubectl, Object
from tests.cluster.stand.waiting import until
from tests.support.hub.server import Hub
from tests.support.publishing import good_model

World = tuple[Hub, Served, Operators]
GROUP = "ai.deckhouse.io/v1alpha1"
URL = "https://huggingface.co/org/good"
MANY = 1000


@pytest.fixture(scope="module", autouse=True)
def _chart() -> None:
    operating.install()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with operating.world(tmp_path_factory.mktemp("load")) as made:
        made[0].add(good_model("org/good", weights_bytes=1 << 20))
        yield made


@pytest.fixture
def leader(world: World) -> Replica:
    """The replica that leads; another one is started when there is none."""
    _, _, operators = world
    living = [replica for replica in operators.replicas if replica.process.poll() is None]
    living = living or [operators.start(f"replica-{len(operators.replicas)}")]
    holder = wait_for_holder(*(replica.identity for replica in living), seconds=40)
    return next(replica for replica in living if replica.identity == holder)


def model(name: str, url: str = URL) -> Object:
    return {"apiVersion": GROUP, "kind": "Model", "metadata": {"name": name}, "spec": {"source": {"url": url}}}


def metrics(replica: Replica) -> dict[str, float]:
    """All numbers of a replica."""
    with urllib.request.urlopen(f"http://127.0.0.1:{replica.port}/metrics", timeout=5) as answer:
        lines = answer.read(1 << 20).decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def memory_mib(replica: Replica) -> float:
    """Resident memory of a replica."""
    lines = Path(f"/proc/{replica.process.pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))


def create_all(items: list[Object], namespace: str) -> None:
    """Create objects as fast as the API server takes them."""
    found = kube.configuration(os.environ["KUBECONFIG"])
    with client.ApiClient(found) as api, ThreadPoolExecutor(16) as pool:
        create = client.CustomObjectsApi(api).create_namespaced_custom_object
        group, version = GROUP.split("/")
        for made in [pool.submit(create, group, version, namespace, "models", item) for item in items]:
            made.result()


def test_a_slow_api_server_is_lived_through(space: Kubectl, leader: Replica, stand: Cluster) -> None:
    space.apply(model("before"))
    space.until("model", "before", phase("Ready"))
    stand.control_plane.apiserver.freeze()
    time.sleep(4)  # what is tested is four seconds without an answer, less than the lease allows
    stand.control_plane.apiserver.thaw()
    space.apply(model("after"))
    space.until("model", "after", phase("Ready"))

    assert leader.process.poll() is None


@pytest.mark.usefixtures("leader")
def test_api_server_that_restarts_is_followed(space: Kubectl, world: World, stand: Cluster) -> None:
    """The leader goes on, or its standby does when the API server was away for longer than a lease bears."""
    _, _, operators = world
    operators.start(f"replica-{len(operators.replicas)}")
    stand.control_plane.apiserver.kill()
    stand.control_plane.apiserver.start()
    stand.control_plane.wait()
    until(lambda: space.attempt("get", "models").returncode == 0, what="an API server", seconds=30, pause=0.5)
    space.apply(model("after"))
    space.until("model", "after", phase("Ready"), seconds=90)


def test_operator_waits_for_a_coordinator_that_comes_later(space: Kubectl, world: World, leader: Replica) -> None:
    _, served, _ = world
    served.stop()
    try:
        space.apply(model("m"))
        space.until("model", "m", stage("Waiting"))
        urllib.request.urlopen(f"http://127.0.0.1:{leader.port}/readyz", timeout=5).close()
    finally:
        served.start()

    space.until("model", "m", phase("Ready"))


@pytest.mark.timeout(400)
def test_a_thousand_models_at_once_become_ready_within_the_rate(space: Kubectl, leader: Replica) -> None:
    before = metrics(leader)
    began = time.monotonic()
    items = [model(f"m-{number}") for number in range(MANY)]
    create_all(items, space.namespace)
    created = time.monotonic() - began

    def all_ready() -> bool:
        lines = space("get", "models", "--no-headers", seconds=60).splitlines()
        return sum(" Ready " in line for line in lines) == MANY

    until(all_ready, what=f"{MANY} models Ready", seconds=300, pause=3)
    seconds = time.monotonic() - began
    until(lambda: metrics(leader)["aimodels_queue_depth"] == 0, what="an empty queue", seconds=60, pause=0.5)
    after = metrics(leader)
    written = after["aimodels_status_writes_total"] - before["aimodels_status_writes_total"]
    print(f"{MANY} models: created {created:.1f} s, ready {seconds:.1f} s, {written:.0f} status writes, ", end="")
    print(f"{memory_mib(leader):.0f} MiB")

    assert written <= 6 * MANY
    assert written / seconds <= 200
    assert memory_mib(leader) <= 500
    versions = [item["metadata"]["resourceVersion"] for item in space.items("models")]
    until(lambda: metrics(leader)["aimodels_queue_depth"] == 0, what="an empty queue", seconds=60, pause=0.5)
    assert [item["metadata"]["resourceVersion"] for item in space.items("models")] == versions
