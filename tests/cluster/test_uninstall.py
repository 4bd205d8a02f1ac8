"""The whole product is uninstalled, installed again, rolled back: what is kept, can be deleted, can be restored."""

import json
from collections.abc import Iterator

import pytest

from aimodels_core import names
from tests.cluster import installed, operating, tenants
from tests.cluster.installed import model
from tests.cluster.operating import phase
from tests.cluster.stand import chart
from tests.cluster.stand.addons import STORAGE_CLASS
from tests.cluster.stand.chart import HOME
from tests.cluster.stand.cluster import Cluster
from tests.cluster.stand.kubectl import Kubectl, Object
from tests.cluster.stand.waiting import attempt, until
from tests.support.hub.server import Hub
from tests.support.publishing import good_model

pytestmark = pytest.mark.timeout(900)

DELIVERY = (f"delivery.sharedPVCStorageClassName={STORAGE_CLASS}",)
FOREIGN = "example.com/keep"
KINDS = "models,clustermodels,modelcatalogsources"
PUBLISHED_SECONDS = 180.0
SOON = "--timeout=5s"


@pytest.fixture(scope="module")
def hub(stand: Cluster) -> Iterator[Hub]:
    """The hub of the product, which is installed whole."""
    with operating.hub_under_its_names({}) as made:
        made.add(good_model("org/good"))
        with installed.whole(made, *DELIVERY):
            yield made


def cluster_model(name: str) -> Object:
    """The same for all namespaces."""
    return {**model(name, "org/good"), "kind": "ClusterModel"}


def finalizers(found: Object) -> list[str]:
    """What keeps an object from being deleted."""
    return list(found["metadata"].get("finalizers", []))


def payload_bytes(hub: Hub) -> int:
    """What the hub has sent of files."""
    return sum(each.sent_bytes for each in hub.log if each.payload)


def webhooks() -> list[Object]:
    """Webhooks that the API server asks about models."""
    found = Kubectl().items("mutatingwebhookconfigurations", "module=ai-models")
    return [hook for one in found for hook in one.get("webhooks", [])]


def test_uninstall_keeps_models_that_can_be_deleted_then_and_their_bytes(hub: Hub, space: Kubectl) -> None:
    space.apply(model("kept", "org/good"), model("gone", "org/good"), model("foreign", "org/good"))
    Kubectl().apply(cluster_model("wide"))
    before = space.until("model", "kept", phase("Ready"), seconds=PUBLISHED_SECONDS)
    for kind, name in (("model", "gone"), ("model", "foreign"), ("clustermodel", "wide")):
        space.until(kind, name, phase("Ready"))
    space("patch", "model", "foreign", "--type=json", "--patch", add_finalizer(FOREIGN))
    until(webhooks, what="webhooks registered", seconds=60)

    chart.uninstall()
    kept, foreign = space.get("model", "kept"), space.get("model", "foreign")
    hooks = Kubectl().items("mutatingwebhookconfigurations", "module=ai-models")
    left = {kind: Kubectl().items(kind, "module=ai-models") for kind in ("clusterroles", "clusterrolebindings")}
    space("delete", "model", "gone", SOON)
    Kubectl()("delete", "clustermodel", "wide", SOON)

    assert (finalizers(kept), finalizers(foreign)) == ([], [FOREIGN])
    assert kept["status"] == before["status"]
    assert hooks == []
    assert left == {"clusterroles": [], "clusterrolebindings": []}
    assert Kubectl(HOME).items("jobs") == []

    asked = len(hub.log)
    installed.again(*DELIVERY)
    after = space.until("model", "kept", lambda found: names.FINALIZER in finalizers(found))
    tenants.start(space)
    files, complaint = tenants.read(space, f"ns/{space.namespace}", before["status"]["artifact"]["digest"])
    space("patch", "model", "foreign", "--type=merge", '--patch={"metadata":{"finalizers":null}}')

    assert after["status"]["artifact"] == before["status"]["artifact"]
    assert after["status"]["phase"] == "Ready"
    assert complaint == ""
    assert "model.safetensors" in files
    assert len(hub.log) == asked


def add_finalizer(name: str) -> str:
    """A patch of an object that has finalizers."""
    return json.dumps([{"op": "add", "path": "/metadata/finalizers/-", "value": name}])


def test_catalog_comes_back_from_its_objects_and_its_store(hub: Hub, space: Kubectl) -> None:
    alone = f"only models of {space.namespace}"
    space.apply(model("m", "org/good"))
    Kubectl().apply(cluster_model("wide"))
    until(lambda: {one["metadata"]["namespace"] for one in all_models()} == {space.namespace}, what=alone, seconds=60)
    before = space.until("model", "m", phase("Ready"), seconds=PUBLISHED_SECONDS)
    wide = space.until("clustermodel", "wide", phase("Ready"))
    saved = Kubectl()("get", KINDS, "--all-namespaces", "--output=yaml")
    chart.uninstall()
    Kubectl()("delete", "crd", "--selector=module=ai-models", "--timeout=30s")
    sent = payload_bytes(hub)

    installed.again(*DELIVERY)
    Kubectl()("apply", "--filename=-", stdin=saved)
    after = space.until("model", "m", phase("Ready"), seconds=PUBLISHED_SECONDS)
    wide_after = space.until("clustermodel", "wide", phase("Ready"), seconds=PUBLISHED_SECONDS)
    Kubectl()("delete", "clustermodel", "wide", "--timeout=60s", seconds=70)

    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert after["status"]["artifact"] == before["status"]["artifact"]
    assert wide_after["status"]["artifact"] == wide["status"]["artifact"]
    assert payload_bytes(hub) - sent == 0


def all_models() -> list[Object]:
    """Models of all namespaces."""
    return list(json.loads(Kubectl()("get", "models", "--all-namespaces", "--output=json"))["items"])


def test_an_uninstall_that_could_not_begin_changes_no_model_and_may_be_repeated(hub: Hub, space: Kubectl) -> None:
    space.apply(model("m", "org/good"))
    space.until("model", "m", phase("Ready"), seconds=PUBLISHED_SECONDS)
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "full"}, "spec": {"hard": {"pods": "0"}}}
    Kubectl(HOME).apply(quota)
    failed = attempt("helm", f"--namespace={HOME}", "uninstall", "ai-models", "--timeout=10s")
    before = finalizers(space.get("model", "m"))
    running = chart.pods("operator")
    upgraded = attempt("helm", f"--namespace={HOME}", "upgrade", "--reuse-values", "ai-models", chart.CHART)
    Kubectl(HOME)("delete", "resourcequota", "full")
    chart.uninstall()

    assert failed.returncode != 0
    assert "has no deployed releases" in upgraded.stderr
    assert before == [names.FINALIZER]
    assert running != []
    assert finalizers(space.get("model", "m")) == []


def test_without_hooks_the_finalizer_stays_until_it_is_taken_by_hand(hub: Hub, space: Kubectl) -> None:
    installed.again(*DELIVERY)
    space.apply(model("m", "org/good"))
    space.until("model", "m", phase("Ready"), seconds=PUBLISHED_SECONDS)
    chart.uninstall("--no-hooks")
    before = finalizers(space.get("model", "m"))
    space("patch", "model", "m", "--type=merge", '--patch={"metadata":{"finalizers":null}}')
    space("delete", "model", "m", SOON)

    assert before == [names.FINALIZER]
    assert Kubectl().items("mutatingwebhookconfigurations", "module=ai-models") == []
