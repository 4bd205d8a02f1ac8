"""Anything may be killed while models come to a node: Pods get them all the same, right, and readers keep theirs.

The whole chart in Pods on three nodes, two of them with block devices; their network is slow enough to hit a fetch.
Each point publishes a model, makes a Pod that wants it on each of these nodes, and kills something a moment later.
Points are drawn from a seed that failing tests show; AIMODELS_SEED sets another one.
"""

import os
import random
import time
import zlib
from collections.abc import Callable, Iterator

import pytest

from aimodels_core import names
from tests.cluster import installed, operating
from tests.cluster.installed import digests
from tests.cluster.operating import phase
from tests.cluster.stand import blockdevices, chart
from tests.cluster.stand.chart import HOME
from tests.cluster.stand.cluster import Cluster
from tests.cluster.stand.kubectl import Kubectl, Object, pod
from tests.cluster.stand.layout import StandError
from tests.cluster.stand.waiting import until
from tests.cluster.test_delivery import published, ready, told
from tests.support.hub.repository import Repository
from tests.support.hub.server import Hub
from tests.support.publishing import good_model

pytestmark = pytest.mark.timeout(900)

SEED = int(os.environ.get("AIMODELS_SEED", "2026"))
KINDS = ("driver", "raylet", "agent", "coordinator", "head", "operator", "kubelet", "api_server")
NODES = ("node-a", "node-b")
MIB = 1024 * 1024
WEIGHTS_BYTES = 48 * MIB
MEGABITS = 160
"""Of each of these nodes: a model takes some seconds."""
SECONDS = 300.0
KEPT = "kept"
"""A model that a Pod reads all the time."""
SETTINGS = (
    "delivery.type=NodeCache",
    "delivery.nodeCacheSize=300Mi",
    "delivery.maxGateWait=1m",
)


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with operating.hub_under_its_names({}) as made:
        yield made


@pytest.fixture(scope="module", autouse=True)
def reader(stand: Cluster, hub: Hub) -> Iterator[Kubectl]:
    """A namespace with a Pod that reads a model, in a product with two warm nodes."""
    with (
        blockdevices.labelled(stand, NODES, size_bytes=512 * MIB),
        installed.whole(hub, *SETTINGS),
        installed.namespace("reader") as space,
    ):
        hub.add(good_model(f"org/{KEPT}"))
        space.apply(installed.model(KEPT, f"org/{KEPT}"), wanting(KEPT, KEPT, NODES[0]))
        space.ready(KEPT, seconds=SECONDS)
        try:
            for name in NODES:
                stand.node(name).shape(MEGABITS)
            yield space
        finally:
            for name in NODES:
                stand.node(name).unshape()


def wanting(name: str, model: str, node: str) -> Object:
    """A Pod that wants a model on a node."""
    made = pod(name, command=["sleep", "infinity"], nodeSelector={"kubernetes.io/hostname": node})
    made["metadata"]["annotations"] = {names.ANNOTATION_MODEL: model}
    return made


def of_node(app: str, node: str) -> Object:
    """The Pod of a DaemonSet on a node."""
    found = Kubectl(names.NODE_NAMESPACE).items("pods", f"app=ai-models-{app}")
    here = [one for one in found if one["spec"]["nodeName"] == node]
    (one,) = (each for each in here if "deletionTimestamp" not in each["metadata"])
    return one


class Strikes:
    """What is killed: each method finds its victim, and returns what kills it."""

    def __init__(self, stand: Cluster, node: str) -> None:
        self._stand, self._node = stand, node

    def driver(self) -> Callable[[], None]:
        """The CSI driver of a node."""
        return self._of_pod(of_node("node-csi", self._node))

    def raylet(self) -> Callable[[], None]:
        """The agent's Pod, with its raylet."""
        return self._of_pod(of_node("node-agent", self._node))

    def agent(self) -> Callable[[], None]:
        """The agent's process alone."""
        return self._of_pod(of_node("node-agent", self._node), "ray::NodeAgent")

    def coordinator(self) -> Callable[[], None]:
        """The coordinator's process."""
        (head,) = chart.pods("ray-head")
        return self._of_pod(head, "ray::Host")

    def head(self) -> Callable[[], None]:
        """Ray's head and everything in it."""
        (head,) = chart.pods("ray-head")
        return self._of_pod(head)

    def operator(self) -> Callable[[], None]:
        """The operator that leads."""
        return self._of_pod(Kubectl(HOME).get("pod", operating.holder()))

    def kubelet(self) -> Callable[[], None]:
        """Kubelet of a node; it comes back a moment later."""
        part = self._stand.node(self._node).kubelet

        def strike() -> None:
            part.kill()
            part.start()

        return strike

    def api_server(self) -> Callable[[], None]:
        """The API server; it comes back at once."""
        plane = self._stand.control_plane

        def strike() -> None:
            plane.apiserver.kill()
            plane.apiserver.start()
            plane.wait()

        return strike

    def _of_pod(self, found: Object, title: str = "") -> Callable[[], None]:
        return lambda: installed.kill(*installed.processes(self._stand, found, title))


def play(stand: Cluster, hub: Hub, space: Kubectl, reader: Kubectl, kind: str, number: int) -> None:
    seed = zlib.crc32(f"{SEED} {kind} {number}".encode())
    chance = random.Random(seed)
    node = chance.choice(NODES)
    made = hub.add(good_model(f"org/{kind.replace('_', '-')}-{number}", weights_bytes=WEIGHTS_BYTES, seed=seed))
    settle()
    strike: Callable[[], None] = getattr(Strikes(stand, node), kind)()
    space.apply(installed.model("m", made.id))
    space.until("model", "m", phase("Ready"), seconds=SECONDS)
    space.apply(*(wanting(f"on-{each}", "m", each) for each in NODES))
    pause = chance.uniform(0.0, 4.0)
    print(f"{kind} {number}: seed {seed}, {node}, after {pause:.1f} s")
    time.sleep(pause)  # the point
    strike()
    judge(space, made)
    judge_reader(reader)
    space("delete", "pod", "--all", "--grace-period=0", "--force")
    space("delete", "model", "m", "--timeout=60s", seconds=70)


def settle() -> None:
    """Wait until what was killed before works again; kubelet would wait minutes before a third start of a container."""
    node = Kubectl(names.NODE_NAMESPACE)
    for home in (node, Kubectl(HOME)):
        for one in home.items("pods"):
            if any(status["restartCount"] for status in one["status"].get("containerStatuses", [])):
                home("delete", "pod", one["metadata"]["name"], "--grace-period=0", "--force")
    chart.wait_until_it_works()
    until(lambda: all(map(ready, node.items("pods"))), what="Pods of nodes", seconds=SECONDS, pause=1.0)


def judge(space: Kubectl, made: Repository) -> None:
    """What must hold whatever was killed."""
    wanted = [f"on-{each}" for each in NODES]
    try:
        space.ready(*wanted, seconds=SECONDS)
    except StandError as error:
        raise StandError(f"{error}\n{told(space)}") from error
    for name in wanted:
        found = digests(space, name, "m")
        assert "model.safetensors" in found
        assert found == published(made, found)


def judge_reader(reader: Kubectl) -> None:
    """Who has read all the time reads the same, in the same container."""
    found = digests(reader, KEPT, KEPT)

    assert found == published(good_model(f"org/{KEPT}"), found)
    assert reader.get("pod", KEPT)["status"]["containerStatuses"][0]["restartCount"] == 0


@pytest.mark.parametrize(("kind", "number"), [(kind, number) for kind in KINDS for number in (1, 2)])
def test_whatever_is_killed_pods_get_their_models(
    stand: Cluster, hub: Hub, space: Kubectl, reader: Kubectl, kind: str, number: int
) -> None:
    play(stand, hub, space, reader, kind, number)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(3, 23))
@pytest.mark.parametrize("kind", KINDS)
def test_twenty_points_of_each_kind(
    stand: Cluster, hub: Hub, space: Kubectl, reader: Kubectl, kind: str, number: int
) -> None:
    play(stand, hub, space, reader, kind, number)
