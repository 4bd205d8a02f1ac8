"""The product in a cluster that has neither bucket nor storage that nodes share, nor block devices, nor KubeRay.

Folders of nodes hold everything, and differ: the store is on one node, caches are on the other two.
"""

from collections.abc import Iterator

import pytest

from tests.cluster import installed
from tests.cluster.installed import digests
from tests.cluster.operating import hub_under_its_names, phase
from tests.cluster.stand import blockdevices, chart
from tests.cluster.stand.addons import LOCAL_CLASS
from tests.cluster.stand.chart import HOME
from tests.cluster.stand.cluster import Cluster
from tests.cluster.stand.kubectl import Kubectl
from tests.cluster.stand.layout import CHECKOUT
from tests.cluster.stand.waiting import attempt
from tests.support import models
from tests.support.hub.server import Hub

pytestmark = pytest.mark.timeout(900)

STORE_NODE = "node-c"
CACHE_NODES = {"node-a", "node-b"}
ONE_NODE = (f"embedded.storageClassName={LOCAL_CLASS}", "embedded.accessMode=ReadWriteOnce", "embedded.size=1Gi")
SETTINGS = (
    *ONE_NODE,
    f"ray.head.nodeSelector.kubernetes\\.io/hostname={STORE_NODE}",
    "delivery.type=NodeCache",
    "delivery.hostFolder=true",
    "delivery.nodeCacheSize=1Gi",
)
SECONDS = 180.0


@pytest.fixture(scope="module", autouse=True)
def hub(stand: Cluster) -> Iterator[Hub]:
    """The hub, and all of the product beside it."""
    nodes = Kubectl()
    for node in sorted(CACHE_NODES):
        nodes("label", "node", node, f"{blockdevices.LABEL}=true")
    try:
        with hub_under_its_names({}) as made:
            made.add(models.bge_m3())
            with installed.whole(made, *SETTINGS):
                yield made
    finally:
        nodes("label", "node", *CACHE_NODES, f"{blockdevices.LABEL}-")


@pytest.fixture
def demo() -> Iterator[Kubectl]:
    """The namespace that the examples name."""
    Kubectl()("create", "namespace", "ai-demo")
    yield Kubectl("ai-demo")
    Kubectl()("delete", "namespace", "ai-demo", "--timeout=90s", seconds=100)


def test_model_is_read_on_nodes_that_do_not_have_the_store(demo: Kubectl) -> None:
    for name in ("model.yaml", "embedder.yaml"):
        Kubectl()("apply", f"--filename={CHECKOUT / 'examples' / name}")
    demo.until("model", "bge-m3", phase("Ready"), seconds=SECONDS)
    demo.rolled_out("deployment/embedder", seconds=SECONDS)
    homes = {part: {pod["spec"]["nodeName"] for pod in chart.pods(part)} for part in ("dmcr", "ray-head", "ray-worker")}
    readers = demo.items("pods", "app=embedder")

    assert homes == {"dmcr": {STORE_NODE}, "ray-head": {STORE_NODE}, "ray-worker": {STORE_NODE}}
    assert {pod["spec"]["nodeName"] for pod in readers} <= CACHE_NODES
    for pod in readers:
        found = digests(demo, pod["metadata"]["name"], "bge-m3")
        assert found.items() <= {path: file.sha256_hex for path, file in models.bge_m3().head.files.items()}.items()
        assert "config.json" in found


def test_store_outlives_the_pods_that_use_it(hub: Hub, demo: Kubectl) -> None:
    Kubectl()("apply", f"--filename={CHECKOUT / 'examples' / 'model.yaml'}")
    before = demo.until("model", "bge-m3", phase("Ready"), seconds=SECONDS)
    home = Kubectl(HOME)
    home("rollout", "restart", *(f"deployment/ai-models-{part}" for part in ("ray-head", "ray-worker", "dmcr")))
    chart.wait_until_it_works()
    fetched = [each for each in hub.log if each.payload]
    demo("delete", "model", "bge-m3", "--timeout=60s", seconds=70)
    Kubectl()("apply", f"--filename={CHECKOUT / 'examples' / 'model.yaml'}")
    after = demo.until("model", "bge-m3", phase("Ready"), seconds=SECONDS)

    assert after["status"]["artifact"] == before["status"]["artifact"]
    assert [each for each in hub.log if each.payload] == fetched
    assert {pod["spec"]["nodeName"] for part in ("dmcr", "ray-head") for pod in chart.pods(part)} == {STORE_NODE}


def test_claim_whose_access_mode_would_change_is_refused_in_clear_words() -> None:
    images = [f"--set=images.{name}=x" for name in ("operator", "jobs", "dmcr")]
    words = ("upgrade", "--dry-run=server", "ai-models", str(chart.CHART), f"--namespace={HOME}", *images)
    refused = attempt("helm", *words)

    assert refused.returncode != 0
    assert "embedded.accessMode: want ReadWriteOnce, which the claim ai-models-store has" in refused.stderr
    assert attempt("helm", *words, *(f"--set={setting}" for setting in ONE_NODE)).returncode == 0
