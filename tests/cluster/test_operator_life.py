"""The operator on a real API server, with the rights of the chart's roles alone: from a manifest to Ready and away.

The coordinator is the product's, over a folder, with its API over TLS; the hub is a simulator at the administrator's
endpoint, so that manifests name https://huggingface.co as users do.
"""

import json
import signal
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from aimodels_core import names
from tests.cluster import operating
from tests.cluster.operating import HUB_TOKEN, Operators, Served, phase, stage, wait_for_holder
from tests.cluster.stand.kubectl import Kubectl, Object
from tests.cluster.stand.layout import CHECKOUT
from tests.cluster.stand.waiting import until
from tests.support import models
from tests.support.hub.faults import Fault
from tests.support.hub.repository import Access, Repository
from tests.support.hub.server import Hub
from tests.support.publishing import good_model

World = tuple[Hub, Served, Operators]
GROUP = "ai.deckhouse.io/v1alpha1"
HUB_URL = "https://huggingface.co"


@pytest.fixture(scope="module", autouse=True)
def _chart() -> None:
    operating.install()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with operating.world(tmp_path_factory.mktemp("world")) as made:
        hub, _, operators = made
        hub.add(good_model("org/good"))
        hub.add(models.bge_m3())
        operators.start("replica-0")
        wait_for_holder("replica-0")
        yield made
        leaks = [word for word in (operating.TOKEN, HUB_TOKEN) if word in operators.logs()]
        assert leaks == []


@pytest.fixture
def hub(world: World) -> Hub:
    return world[0]


@pytest.fixture
def served(world: World) -> Served:
    return world[1]


@pytest.fixture
def operators(world: World) -> Operators:
    return world[2]


def model(url: str, *, name: str = "m", secret: str = "") -> Object:
    source: dict[str, Any] = {"url": url} | ({"authSecretRef": {"name": secret}} if secret else {})
    return {"apiVersion": GROUP, "kind": "Model", "metadata": {"name": name}, "spec": {"source": source}}


def secret(name: str, token: str) -> Object:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"token": token}}


def condition(found: Object, kind: str) -> dict[str, Any]:
    (one,) = [c for c in found["status"]["conditions"] if c["type"] == kind]
    return dict(one)


def events(space: Kubectl, name: str) -> list[str]:
    """Reasons of the Events about an object."""
    return [e["reason"] for e in space.items("events") if e["involvedObject"]["name"] == name]


def test_example_of_the_guide_becomes_ready(space: Kubectl, served: Served) -> None:
    document = yaml.safe_load((CHECKOUT / "examples" / "model.yaml").read_text())
    document["metadata"]["namespace"] = space.namespace
    space.apply(document)
    found = space.until("model", "bge-m3", phase("Ready"))
    status = found["status"]

    assert found["metadata"]["finalizers"] == [names.FINALIZER]
    assert status["observedGeneration"] == found["metadata"]["generation"]
    assert status["resolved"]["format"] == "PyTorch"
    assert status["source"]["resolvedType"] == "HuggingFace"
    assert condition(found, "PickleWeights")["status"] == "True"
    assert served.desk is not None
    tagged = served.desk.store.resolve_tag(f"ns/{space.namespace}", found["metadata"]["uid"])
    assert status["artifact"]["digest"] == str(tagged)
    until(lambda: "PublicationSucceeded" in events(space, "bge-m3"), what="events", seconds=20, pause=0.5)
    assert "PyTorch" in space("get", "models")


def test_cluster_model_becomes_ready_in_the_repository_of_the_cluster(served: Served) -> None:
    name = "life-cluster"
    source = {"url": f"{HUB_URL}/org/good"}
    kubectl = Kubectl()
    kubectl.apply({"apiVersion": GROUP, "kind": "ClusterModel", "metadata": {"name": name}, "spec": {"source": source}})
    try:
        found = kubectl.until("clustermodel", name, phase("Ready"))
        assert served.desk is not None
        assert (
            str(served.desk.store.resolve_tag("cluster", found["metadata"]["uid"]))
            == found["status"]["artifact"]["digest"]
        )
    finally:
        kubectl("delete", "clustermodel", name, "--timeout=30s")


def test_nothing_is_written_when_nothing_changes(space: Kubectl, operators: Operators) -> None:
    space.apply(model(f"{HUB_URL}/org/good"))
    before = space.until("model", "m", phase("Ready"))["metadata"]["resourceVersion"]
    space("annotate", "model", "m", "touched=1")
    seen = space.get("model", "m")["metadata"]["resourceVersion"]
    until(lambda: metric(operators, "aimodels_queue_depth") == 0, what="an empty queue", seconds=20, pause=0.5)

    assert before != seen
    assert space.get("model", "m")["metadata"]["resourceVersion"] == seen


def metric(operators: Operators, name: str) -> float:
    """A number of the newest replica's metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{operators.replicas[-1].port}/metrics", timeout=5) as answer:
        lines = answer.read(1 << 20).decode().splitlines()
    return float(next(line.rpartition(" ")[2] for line in lines if line.startswith(name + " ")))


@pytest.mark.parametrize("url", ["ftp://nowhere", f"{HUB_URL}/datasets/org/data", "https://example.com/x"])
def test_source_that_is_not_served_fails_for_good(url: str, space: Kubectl) -> None:
    space.apply(model(url))
    found = space.until("model", "m", phase("Failed"))

    assert condition(found, "Ready")["reason"] == condition(found, "ArtifactResolved")["reason"] == "UnsupportedSource"


def test_a_mended_source_is_tried_at_once(space: Kubectl) -> None:
    space.apply(model("ftp://nowhere"))
    space.until("model", "m", phase("Failed"))
    space.apply(model(f"{HUB_URL}/org/good"))

    assert space.until("model", "m", phase("Ready"))["status"]["observedGeneration"] == 2


def test_private_model_waits_for_its_secret_and_takes_it_when_it_comes(space: Kubectl, hub: Hub) -> None:
    files = good_model(seed=2).files
    hub.add(Repository("acme/private-model", files, access=Access.PRIVATE, granted=frozenset({HUB_TOKEN})))
    space.apply(model(f"{HUB_URL}/acme/private-model", secret="hf-token"))
    found = space.until("model", "m", phase("Failed"))
    words = condition(found, "Ready")["message"]
    assert f"{space.namespace}/hf-token: not found" in words
    space.apply(secret("hf-token", HUB_TOKEN))

    done = space.until("model", "m", phase("Ready"), seconds=90)
    assert HUB_TOKEN not in json.dumps(done)
    assert HUB_TOKEN not in json.dumps(space.items("events"))


def test_no_weights_fails_for_good_and_the_annotation_tries_again(space: Kubectl, hub: Hub) -> None:
    hub.add(Repository("org/empty", {"README.md": b"nothing yet"}))
    space.apply(model(f"{HUB_URL}/org/empty"))
    found = space.until("model", "m", phase("Failed"))
    assert condition(found, "Ready")["reason"] == "PublicationFailed"
    hub.add(good_model("org/empty", seed=3))
    space("annotate", "model", "m", f"{names.ANNOTATION_RETRY}=1")

    space.until("model", "m", phase("Ready"))


def test_source_that_is_down_shows_publishing_and_comes_back(space: Kubectl, hub: Hub) -> None:
    hub.add(good_model("org/down", seed=4))
    rule = hub.fault(Fault.STATUS, status=503, repository="org/down")
    space.apply(model(f"{HUB_URL}/org/down"))
    found = space.until("model", "m", stage("Waiting"), seconds=90)
    assert found["status"]["phase"] == "Publishing"
    hub.rules.remove(rule)

    space.until("model", "m", phase("Ready"), seconds=90)


def test_deletion_removes_the_tag_and_making_it_again_moves_nothing(space: Kubectl, served: Served, hub: Hub) -> None:
    hub.add(good_model("org/again", seed=5))
    space.apply(model(f"{HUB_URL}/org/again"))
    uid = space.until("model", "m", phase("Ready"))["metadata"]["uid"]
    space("delete", "model", "m", "--timeout=30s")
    assert served.desk is not None
    assert uid not in served.desk.store.tags(f"ns/{space.namespace}")
    sent = hub.log.payload_bytes("model.safetensors")
    space.apply(model(f"{HUB_URL}/org/again"))
    again = space.until("model", "m", phase("Ready"))

    assert again["metadata"]["uid"] != uid
    assert hub.log.payload_bytes("model.safetensors") == sent


def test_o81_namespace_with_models_of_every_state_goes_away(world: World) -> None:
    space = Kubectl("life-o81")
    Kubectl()("create", "namespace", space.namespace)
    space.apply(
        model(f"{HUB_URL}/org/good", name="ready"),
        model("ftp://nowhere", name="failed"),
        model(f"{HUB_URL}/org/good", name="waiting", secret="absent"),
    )
    upload = model("", name="upload")
    upload["spec"]["source"] = {"upload": {}}
    space.apply(upload)
    space.until("model", "ready", phase("Ready"))
    space.until("model", "failed", phase("Failed"))
    Kubectl()("delete", "namespace", space.namespace, "--timeout=60s", seconds=70)


def test_status_edited_by_a_stranger_is_repaired(space: Kubectl) -> None:
    space.apply(model(f"{HUB_URL}/org/good"))
    space.until("model", "m", phase("Ready"))
    edit = '--patch={"status":{"phase":"Failed","progress":"3%"}}'
    space("patch", "model", "m", "--subresource=status", "--type=merge", edit)

    space.until("model", "m", lambda m: phase("Ready")(m) and "progress" not in m["status"], seconds=20)


def test_revoked_permission_says_which_verb_on_what_and_is_lived_through(space: Kubectl, operators: Operators) -> None:
    role = "d8:ai-models:operator"
    rules = Kubectl().get("clusterrole", role)["rules"]
    less = [rule for rule in rules if "secrets" not in rule["resources"]]
    Kubectl()("patch", "clusterrole", role, "--type=merge", f"--patch={json.dumps({'rules': less})}")
    try:
        space.apply(secret("s", "x"), model(f"{HUB_URL}/org/good", secret="s"))
        found = space.until("model", "m", phase("Failed"))
        assert "ClusterRole must allow get on secrets" in condition(found, "Ready")["message"]
    finally:
        Kubectl()("patch", "clusterrole", role, "--type=merge", f"--patch={json.dumps({'rules': rules})}")
    space("delete", "model", "m", "--timeout=30s")


def test_coordinator_that_dies_is_shown_and_its_work_goes_on_elsewhere(
    space: Kubectl, served: Served, hub: Hub
) -> None:
    hub.add(good_model("org/slow", weights_bytes=64 << 20, seed=6))
    hub.cdn_bytes_per_second = 1 << 20
    try:
        space.apply(model(f"{HUB_URL}/org/slow"))
        moving = space.until("model", "m", stage("Moving"))
        revision = moving["status"]["source"]["resolvedRevision"]
        served.stop()
        silent = space.until("model", "m", lambda m: "coordinator:" in condition(m, "Ready")["message"])
        assert silent["status"]["phase"] == "Publishing"
    finally:
        hub.cdn_bytes_per_second = None
        served.start()
    done = space.until("model", "m", phase("Ready"), seconds=90)

    assert done["status"]["source"]["resolvedRevision"] == revision


def test_leader_that_is_killed_or_frozen_is_followed_and_its_work_is_kept(
    space: Kubectl, operators: Operators, hub: Hub
) -> None:
    second = operators.start("replica-1")
    first = operators.replicas[0]
    hub.add(good_model("org/failover", seed=7))
    first.freeze()
    space.apply(model(f"{HUB_URL}/org/failover"))
    assert wait_for_holder("replica-1", seconds=30) == "replica-1"
    done = space.until("model", "m", phase("Ready"))
    first.thaw()
    assert first.process.wait(20) == 1
    third = operators.start("replica-2")
    assert second.process.poll() is None
    assert second.stop() == 0
    assert wait_for_holder("replica-2", seconds=8) == "replica-2"
    third.process.send_signal(signal.SIGKILL)
    third.process.wait(10)
    operators.start("replica-3")
    assert wait_for_holder("replica-3", seconds=30) == "replica-3"
    again = space.get("model", "m")

    assert again["metadata"]["resourceVersion"] == done["metadata"]["resourceVersion"]
    space("delete", "model", "m", "--timeout=30s")
