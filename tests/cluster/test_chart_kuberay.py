"""The whole product with KubeRay as keeper of the Pods of Ray: models are published, one after a lost head."""

import json

import pytest

from aimodels_core import names
from tests.cluster import installed, operating
from tests.cluster.operating import phase, secret
from tests.cluster.stand import chart
from tests.cluster.stand.chart import HOME, SYSTEM
from tests.cluster.stand.cluster import Cluster
from tests.cluster.stand.kubectl import Kubectl
from tests.cluster.stand.waiting import attempt, until
from tests.support.publishing import good_model

pytestmark = pytest.mark.timeout(900)

DEFINITION = "rayclusters.ray.io"
IMAGES = ("operator", "jobs", "dmcr")
SETTINGS = (
    chart.KUBERAY,
    "sources.huggingFace.endpoint=https://huggingface.co",
    "sources.huggingFace.caSecretName=kuberay-hub-ca",
)


@pytest.fixture(scope="module", autouse=True)
def _kuberay(stand: Cluster) -> None:
    if not stand.addons.kuberay.running():
        stand.addons.start_kuberay()


def test_models_are_published_in_a_ray_cluster_of_kuberay(stand: Cluster, space: Kubectl) -> None:
    home = Kubectl(HOME)
    chart.namespaces()
    with operating.hub_under_its_names({}) as hub:
        hub.add(good_model("org/one", seed=1))
        hub.add(good_model("org/two", seed=2))
        Kubectl(SYSTEM).apply(secret("kuberay-hub-ca", {"ca.crt": hub.ca_pem.decode()}))
        try:
            chart.install_whole(*SETTINGS)
            space.apply(installed.model("one", "org/one"))
            space.until("model", "one", phase("Ready"), seconds=120)
            (head,) = chart.pods("ray-head")
            home("delete", "pod", head["metadata"]["name"], "--grace-period=0", "--force")
            space.apply(installed.model("two", "org/two"))
            space.until("model", "two", phase("Ready"), seconds=300)
            clusters = home.items("rayclusters")
        finally:
            operating.install()
            until(lambda: not chart.pods("ray-head"), what="an end of Ray's Pods", seconds=90, pause=1.0)
            home("delete", "secret", "--ignore-not-found", *names.HomeSecret)
            home("delete", "pvc", "--ignore-not-found", installed.CLAIM, "--wait=false")

    assert len(clusters) == 1


def test_definitions_of_an_older_kuberay_are_refused(stand: Cluster) -> None:
    versions = Kubectl().get("crd", DEFINITION)["spec"]["versions"]
    (number,) = [index for index, one in enumerate(versions) if one["name"] == "v1"]
    path = (
        f"/spec/versions/{number}/schema/openAPIV3Schema/properties/spec/properties/authOptions/properties/secretName"
    )
    Kubectl()("patch", "crd", DEFINITION, "--type=json", f"--patch={json.dumps([{'op': 'remove', 'path': path}])}")
    words = (
        f"--namespace={HOME}",
        "--dry-run=server",
        f"--set={chart.KUBERAY}",
        *(f"--set=images.{name}=x" for name in IMAGES),
    )
    try:
        refused = attempt("helm", "upgrade", "--install", "ai-models", chart.CHART, *words)
    finally:
        stand.addons.define_kuberay()
    accepted = attempt("helm", "upgrade", "--install", "ai-models", chart.CHART, *words)

    assert (refused.returncode, accepted.returncode) == (1, 0), (refused.stderr, accepted.stderr)
    assert "ray.provider: want KubeRay 1.6 or newer" in refused.stderr
