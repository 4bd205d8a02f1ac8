"""Ready only after reading back: operators beside a real API server, a real registry over the coordinator's store, and
the issuer of its tokens as it is.
"""

import urllib.request
from collections.abc import Iterator

import pytest

from tests.cluster import operating
from tests.cluster.operating import Operators, phase, secret, wait_for_holder
from tests.cluster.stand.kubectl import Kubectl, Object
from tests.cluster.stand.waiting import until
from tests.support import servers
from tests.support.issuing import Issuing, issuing
from tests.support.publishing import good_model

SYSTEM = "readback-system"
READ_BACK_SECONDS = 300.0
"""Five times the longest pause between two tries."""
pytestmark = pytest.mark.timeout(3 * READ_BACK_SECONDS)

World = tuple[Operators, Issuing, dict[str, str]]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    operating.install()
    folder = tmp_path_factory.mktemp("readback")
    kubectl = Kubectl(SYSTEM)
    Kubectl()("create", "namespace", SYSTEM)
    with issuing(folder / "issuing") as issuer, operating.world(folder) as (hub, served, operators):
        # The issuer's certificate is of another authority here than the coordinator's: it comes as that of the store.
        kubectl.apply(secret("store-ca", {"ca.crt": issuer.certificates.ca.read_text()}))
        hub.add(good_model("org/good"))
        token = folder / "token"
        token.write_text(issuer.accounts.add(operating.HOME, "ai-models-operator"))
        with servers.registry(served.folder / "store", more=issuer.auth) as url:
            settings = {"DMCR_URL": url, "DMCR_TOKEN_FILE": str(token)}
            settings |= {"SYSTEM_NAMESPACE": SYSTEM, "S3_CA_SECRET": "store-ca"}
            operators.start("readback-0", **settings)
            wait_for_holder("readback-0", seconds=40)
            yield operators, issuer, settings
            assert token.read_text() not in operators.logs()
    Kubectl()("delete", "namespace", SYSTEM, "--wait=false")


def model(name: str) -> Object:
    source = {"url": "https://huggingface.co/org/good"}
    meta = {"name": name}
    return {"apiVersion": "ai.deckhouse.io/v1alpha1", "kind": "Model", "metadata": meta, "spec": {"source": source}}


def metric(operators: Operators, name: str) -> float:
    """A number of the newest replica's metrics; 0 while there is none."""
    with urllib.request.urlopen(f"http://127.0.0.1:{operators.replicas[-1].port}/metrics", timeout=5) as answer:
        lines = answer.read(1 << 20).decode().splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + " ")), 0.0)


def message(found: Object) -> str:
    return next((c["message"] for c in found.get("status", {}).get("conditions", ()) if c["type"] == "Ready"), "")


def test_a_model_waits_for_the_registry_and_becomes_ready_when_it_answers(space: Kubectl, world: World) -> None:
    operators, issuer, _ = world
    issuer.accounts.down = True
    try:
        space.apply(model("m"))
        found = space.until("model", "m", lambda seen: message(seen).startswith("registry: "))
    finally:
        issuer.accounts.down = False

    assert found["status"]["phase"] == "Publishing"
    assert found["status"]["publication"]["stage"] == "Waiting"
    assert "artifact" not in found["status"]
    done = space.until("model", "m", phase("Ready"), seconds=READ_BACK_SECONDS)
    assert done["status"]["artifact"]["digest"].startswith("sha256:")
    assert metric(operators, 'aimodels_read_backs_total{result="good"}') == 1
    assert metric(operators, 'aimodels_read_backs_total{result="failed"}') >= 1


def test_a_ready_model_is_not_read_back_by_the_next_operator(space: Kubectl, world: World) -> None:
    operators, _, settings = world
    space.apply(model("m"))
    before = space.until("model", "m", phase("Ready"), seconds=READ_BACK_SECONDS)
    assert operators.replicas[-1].stop() == 0
    operators.start("readback-1", **settings)
    wait_for_holder("readback-1", seconds=40)
    ready = 'aimodels_models{kind="Model",phase="Ready",reason="Ready"}'
    until(lambda: metric(operators, ready) >= 1, what="a Ready model that was seen", seconds=60, pause=0.5)
    until(lambda: metric(operators, "aimodels_queue_depth") == 0, what="an empty queue", seconds=60, pause=0.5)

    assert space.get("model", "m")["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    assert metric(operators, 'aimodels_read_backs_total{result="good"}') == 0
