"""Models in Pods from shared claims: a user's workload as it is, the whole product from its chart."""

import json
from collections.abc import Iterator

import pytest

from aimodels_core import names
from tests.cluster import installed, operating
from tests.cluster.installed import digests
from tests.cluster.operating import phase
from tests.cluster.stand.addons import STORAGE_CLASS
from tests.cluster.stand.cluster import Cluster
from tests.cluster.stand.kubectl import Kubectl
from tests.cluster.stand.waiting import until
from tests.cluster.test_delivery import SECONDS, available, example, published, variable
from tests.support import models

pytestmark = pytest.mark.timeout(600)

SETTINGS = (
    "delivery.type=SharedPVC",
    "delivery.sharedPVCGraceSeconds=5",
)


@pytest.fixture(scope="module", autouse=True)
def demo(stand: Cluster) -> Iterator[Kubectl]:
    """The namespace that the examples name, in a product that delivers through shared claims."""
    with operating.hub_under_its_names({}) as hub:
        hub.add(models.bge_m3())
        with installed.whole(hub, *SETTINGS), installed.namespace("ai-demo") as space:
            yield space


def test_deployment_waits_for_a_class_that_is_shared_and_reads_its_model_then(demo: Kubectl) -> None:
    classes = Kubectl()
    reason = names.ANNOTATION_BLOCKED_REASON
    example("model.yaml", "embedder.yaml")
    demo.until("model", "bge-m3", phase("Ready"), seconds=SECONDS)
    demo.until("deployment", "embedder", lambda found: found["metadata"]["annotations"].get(reason), seconds=60)
    told = demo.get("deployment", "embedder")["metadata"]["annotations"][reason]
    classes("annotate", "storageclass", STORAGE_CLASS, "ai.deckhouse.io/shared=true", "--overwrite")
    try:
        pods = available(demo, "embedder")
    finally:
        classes("annotate", "storageclass", STORAGE_CLASS, "ai.deckhouse.io/shared-")
    for one in pods:
        name = one["metadata"]["name"]
        found = digests(demo, name, "bge-m3")
        (said,) = json.loads(variable(demo, name, names.VARIABLE_MODELS))

        assert "config.json" in found
        assert found == published(models.bge_m3(), found)
        assert said["digest"] == demo.get("model", "bge-m3")["status"]["artifact"]["digest"]
    assert told == "SharedPVCStorageClassMissing"
    assert [one["spec"]["accessModes"] for one in demo.items("pvc")] == [["ReadWriteMany"]], "one claim for both Pods"
    assert reason not in demo.get("deployment", "embedder")["metadata"]["annotations"]
    demo("delete", "deployment", "embedder", "--wait=false")
    demo("delete", "pod", "--all", "--grace-period=0", "--force")
    until(lambda: not demo.items("pvc"), what="an end of the claim", seconds=300, pause=2.0)
