"""Each ModuleConfig of the examples, one after the other in one cluster; caches of nodes are in test_delivery.py."""

import json
from collections.abc import Iterator

import pytest

from aimodels_core import names
from tests.cluster import installed, moduleconfigs, operating
from tests.cluster.installed import digests
from tests.cluster.operating import phase
from tests.cluster.stand import chart
from tests.cluster.stand.chart import HOME
from tests.cluster.stand.cluster import Cluster
from tests.cluster.stand.kubectl import Kubectl
from tests.cluster.test_delivery import SECONDS, available, example, published, variable
from tests.support import models
from tests.support.hub.server import Hub

pytestmark = pytest.mark.timeout(900)

CONFIGS = ("moduleconfig-capacity.yaml", "moduleconfig-publiccatalog.yaml", "moduleconfig-sharedpvc.yaml")


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with operating.hub_under_its_names({}) as made:
        made.add(models.bge_m3())
        yield made


@pytest.fixture(scope="module", autouse=True)
def demo(stand: Cluster, hub: Hub) -> Iterator[Kubectl]:
    """The namespace that the examples name, in a product by the smallest ModuleConfig."""
    with (
        moduleconfigs.installed(stand, hub, "moduleconfig-minimal.yaml"),
        installed.namespace("ai-demo") as space,
    ):
        yield space


def test_model_of_the_smallest_configuration_is_in_the_bucket(demo: Kubectl, stand: Cluster) -> None:
    example("model.yaml")
    found = demo.until("model", "bge-m3", phase("Ready"), seconds=SECONDS)
    algorithm, _, hexadecimal = found["status"]["artifact"]["digest"].partition(":")
    stored = list((stand.layout.root / "s3" / moduleconfigs.BUCKET).glob(f"**/{algorithm}/*/{hexadecimal}/data"))

    assert len(stored) == 1


def test_every_other_configuration_keeps_what_is_there_and_the_last_delivers_by_shared_claims(
    demo: Kubectl, hub: Hub
) -> None:
    example("model.yaml")
    before = demo.until("model", "bge-m3", phase("Ready"), seconds=SECONDS)["status"]["artifact"]
    asked = sum(each.payload for each in hub.log)
    for config in CONFIGS:
        chart.install_whole(*installed.HUB, *moduleconfigs.AUTHORITY, config=moduleconfigs.values(config))
        demo("delete", "model", "bge-m3", "--timeout=60s", seconds=70)
        example("model.yaml")
        after = demo.until("model", "bge-m3", phase("Ready"), seconds=SECONDS)["status"]["artifact"]

        assert after["digest"] == before["digest"], config
        assert Kubectl().get("moduleconfig", "ai-models")["spec"]["enabled"] is True
    assert sum(each.payload for each in hub.log) == asked
    example("embedder.yaml")
    for pod in available(demo, "embedder"):
        name = pod["metadata"]["name"]
        found = digests(demo, name, "bge-m3")
        (said,) = json.loads(variable(demo, name, names.VARIABLE_MODELS))

        assert "config.json" in found
        assert found == published(models.bge_m3(), found)
        assert said["digest"] == before["digest"]
    assert [one["spec"]["storageClassName"] for one in demo.items("pvc")] == ["rwx-storage-class"]
    assert Kubectl(HOME).attempt("get", "pvc", installed.CLAIM).returncode != 0, "the bucket is the store"
