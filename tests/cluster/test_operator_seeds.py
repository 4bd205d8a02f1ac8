"""The users' manifests as they are, against a hub under its real names and on its real port.

The stand's DNS leads these names to an address that is not global; it is reached only because the administrator set the
endpoint (`sources.huggingFace.endpoint` and `caSecretName`).
"""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from aimodels_jobs.sources.hub_settings import HubSettings
from tests.cluster import operating
from tests.cluster.operating import Operators, Served, phase, wait_for_holder
from tests.cluster.stand.kubectl import Kubectl, Object
from tests.cluster.stand.layout import CHECKOUT, HUB_ADDRESS
from tests.support import models
from tests.support.hub.repository import Access, Repository
from tests.support.hub.server import Hub
from tests.support.publishing import good_model

USER_TOKEN = "hf_xxx"
"""As the example has it."""
ADMIN_TOKEN = "hf_administrator"
ENDPOINT = "https://huggingface.co"


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with operating.hub_under_its_names({USER_TOKEN: "user", ADMIN_TOKEN: "administrator"}) as made:
        made.add(models.bge_m3())
        made.add(models.gemma_3_4b(granted=[ADMIN_TOKEN]))
        granted = frozenset({USER_TOKEN})
        made.add(Repository("acme/private-model", good_model().files, access=Access.PRIVATE, granted=granted))
        yield made


@pytest.fixture(scope="module", autouse=True)
def served(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("seeds")
    authority = folder / "hub-ca.crt"
    authority.write_bytes(hub.ca_pem)
    operating.install()
    served = Served(folder, hub)
    served.start(settings(served))
    operators = Operators(folder, served)
    try:
        operators.start("replica-0")
        wait_for_holder("replica-0", seconds=40)
        yield served
        assert [token for token in (USER_TOKEN, ADMIN_TOKEN) if token in operators.logs()] == []
    finally:
        operators.close()
        served.stop()


def settings(served: Served, endpoint: str = ENDPOINT) -> HubSettings:
    """What the administrator set."""
    return HubSettings(endpoint=endpoint, ca_file=str(served.folder / "hub-ca.crt"), token=ADMIN_TOKEN)


@pytest.fixture
def demo() -> Iterator[Kubectl]:
    """The namespace that the examples name."""
    Kubectl()("create", "namespace", "ai-demo")
    yield Kubectl("ai-demo")
    Kubectl()("delete", "namespace", "ai-demo", "--timeout=60s", seconds=70)


def apply(name: str) -> list[Object]:
    """Apply an example as it is; returns its objects."""
    path: Path = CHECKOUT / "examples" / name
    Kubectl()("apply", f"--filename={path}")
    return list(yaml.safe_load_all(path.read_text()))


def test_names_of_the_hub_lead_to_an_address_that_is_not_global() -> None:
    assert {socket.gethostbyname(name) for name in ("huggingface.co", "cdn-lfs.hf.co")} == {HUB_ADDRESS}


def test_model_of_the_guide(demo: Kubectl) -> None:
    apply("model.yaml")
    found = demo.until("model", "bge-m3", phase("Ready"))

    assert found["status"]["resolved"]["family"] == "xlm-roberta"


def test_private_model_of_the_guide(demo: Kubectl) -> None:
    apply("private-model.yaml")

    demo.until("model", "private-model", phase("Ready"))


def test_gated_cluster_model_of_the_guide_by_the_administrators_token() -> None:
    apply("clustermodel.yaml")
    try:
        found = Kubectl().until("clustermodel", "gemma-small", phase("Ready"))
        assert found["status"]["resolved"]["format"] == "Safetensors"
    finally:
        Kubectl()("delete", "clustermodel", "gemma-small", "--timeout=30s")


def test_without_the_administrators_endpoint_the_address_is_refused(demo: Kubectl, served: Served, hub: Hub) -> None:
    served.stop()
    asked = len(hub.log)
    served.start(settings(served, endpoint=""))
    try:
        apply("model.yaml")
        demo.until("model", "bge-m3", lambda found: "want a public address" in str(found.get("status", {})), seconds=90)
        assert len(hub.log) == asked
    finally:
        served.stop()
        served.start(settings(served))
