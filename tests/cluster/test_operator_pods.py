"""The chart as users install it: two operator Pods from the product's own image, a coordinator outside, fail-over."""

import json
from collections.abc import Iterator

import pytest

from tests.cluster import operating
from tests.cluster.operating import HOME, TOKEN, Served, holder, phase
from tests.cluster.stand import chart, product
from tests.cluster.stand.kubectl import Kubectl, Object
from tests.cluster.stand.layout import ADDRESS, StandError
from tests.cluster.stand.waiting import command, until
from tests.support.hub.limits import Limits
from tests.support.hub.server import Hub
from tests.support.publishing import good_model

GROUP = "ai.deckhouse.io/v1alpha1"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A coordinator that Pods reach, and the chart installed with its address."""
    with Hub(limits=Limits.unlimited()) as hub:
        hub.add(good_model("org/good"))
        made = Served(tmp_path_factory.mktemp("pods"), hub, ADDRESS)
        made.start()
        chart.namespaces()
        Kubectl(HOME).apply(*made.secrets())
        try:
            install(made)
            yield made
        finally:
            operating.install()
            made.stop()


def install(served: Served) -> None:
    """Install the chart with operators, and wait until they run; what they logged is in the error otherwise."""
    image = product.image_name("operator")
    operating.install("operator.enabled=true", f"coordinator.url={served.url}", f"images.operator={image}", wait=False)
    try:
        Kubectl(HOME).rolled_out("deployment/ai-models-operator", seconds=90)
    except StandError as error:
        words = Kubectl(HOME).attempt("logs", "--selector=app=ai-models-operator", "--tail=20").stdout
        raise StandError(f"{error}\n{words}") from error


def model(name: str) -> Object:
    source = {"url": "https://huggingface.co/org/good"}
    return {"apiVersion": GROUP, "kind": "Model", "metadata": {"name": name}, "spec": {"source": source}}


def pods() -> list[str]:
    return [pod["metadata"]["name"] for pod in Kubectl(HOME).items("pods", "app=ai-models-operator")]


def test_two_pods_run_and_one_leads(served: Served, space: Kubectl) -> None:
    assert len(pods()) == 2
    space.apply(model("m"))
    space.until("model", "m", phase("Ready"))

    assert holder() in pods()


def test_a_leader_that_is_told_to_stop_hands_over(served: Served, space: Kubectl) -> None:
    old = until(holder, what="a leader", seconds=30)
    Kubectl(HOME)("delete", "pod", old, "--wait=false")
    space.apply(model("m"))
    until(lambda: holder() not in ("", old), what="another leader", seconds=20)
    space.until("model", "m", phase("Ready"))


def test_secrets_are_out_of_sight(served: Served) -> None:
    found = json.dumps(Kubectl(HOME).items("pods", "app=ai-models-operator"))
    logs = "".join(Kubectl(HOME)("logs", pod, "--tail=-1") for pod in pods())

    assert TOKEN not in found
    assert TOKEN not in logs


def test_uninstall_keeps_definitions_and_models(served: Served, space: Kubectl) -> None:
    space.apply(model("m"))
    space.until("model", "m", phase("Ready"))
    command("helm", f"--namespace={HOME}", "uninstall", "ai-models", "--wait")
    assert space.get("model", "m")["status"]["phase"] == "Ready"
    install(served)
    space("delete", "model", "m", "--timeout=40s")
