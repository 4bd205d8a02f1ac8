"""The definitions and policies on a real API server: what is admitted, what is refused, and with which words."""

import json
from typing import Any

import pytest
import yaml

from tests.cluster import operating
from tests.cluster.stand.kubectl import Kubectl, Object
from tests.cluster.stand.layout import CHECKOUT
from tests.cluster.stand.waiting import until

URL = "https://huggingface.co/BAAI/bge-m3"
GROUP = "ai.deckhouse.io/v1alpha1"
EXAMPLES = sorted(
    set((CHECKOUT / "examples").glob("*.yaml")) - set((CHECKOUT / "examples").glob("moduleconfig-*.yaml"))
)
"""Those that a cluster without Deckhouse takes."""


@pytest.fixture(scope="module", autouse=True)
def _chart() -> None:
    operating.install()
    policies_act()


def policies_act() -> None:
    """Wait until the API server has learnt of the admission policies."""
    long = {
        "apiVersion": GROUP,
        "kind": "ClusterModel",
        "metadata": {"name": "a" * 240},
        "spec": {"source": {"url": URL}},
    }

    def refused() -> bool:
        done = Kubectl().attempt("create", "--dry-run=server", "--filename=-", stdin=json.dumps(long))
        return done.returncode != 0 and "at most 200" in done.stderr

    until(refused, what="policies in force", seconds=30, pause=0.5)


def model(source: Any, *, kind: str = "Model", name: str = "m") -> Object:
    return {"apiVersion": GROUP, "kind": kind, "metadata": {"name": name}, "spec": {"source": source}}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_admitted(path: Any, space: Kubectl) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        if "namespace" in document["metadata"]:
            document["metadata"]["namespace"] = space.namespace
        words = ("create", "--dry-run=server", "--validate=strict", "--filename=-")
        Kubectl()(*words, stdin=json.dumps(document))


@pytest.mark.parametrize(
    ("source", "kind", "words"),
    [
        pytest.param({}, "Model", "want exactly one of url", id="none"),
        pytest.param({"url": URL, "upload": {}}, "Model", "want exactly one of url", id="two"),
        pytest.param({"upload": {}, "authSecretRef": {"name": "s"}}, "Model", "only beside url", id="upload-secret"),
        pytest.param({"url": URL, "authSecretRef": {"name": "s"}}, "ClusterModel", "names no Secret", id="cluster"),
        pytest.param({"url": URL, "authSecretRef": {}}, "Model", "Required value", id="secret-without-name"),
        pytest.param({"url": "x" * 2049}, "Model", "may not be more than 2048", id="long-url"),
        pytest.param({"url": ""}, "Model", "should be at least 1", id="empty-url"),
        pytest.param({"catalog": {}}, "Model", "Required value", id="catalog-without-name"),
        pytest.param(None, "Model", "source", id="null"),
    ],
)
def test_wrong_structure_is_refused_with_what_to_write(source: Any, kind: str, words: str, space: Kubectl) -> None:
    assert words in space.refusal(model(source, kind=kind, name="wrong"))


def test_any_bounded_url_is_admitted(space: Kubectl) -> None:
    space.apply(model({"url": "ftp://nowhere"}))


def test_unknown_fields_are_told(space: Kubectl) -> None:
    done = space.attempt("create", "--filename=-", stdin=json.dumps(model({"url": URL, "magic": 1})))

    assert done.returncode != 0
    assert "magic" in done.stderr


def test_names_too_long_for_what_is_derived_are_refused(space: Kubectl) -> None:
    space.apply(model({"url": URL}, name="a" * 200))
    assert "at most 200" in space.refusal(model({"url": URL}, name="a" * 201))


def test_source_is_mended_until_it_was_published_and_kept_afterwards(space: Kubectl) -> None:
    space.apply(model({"url": "https://huggingface.co/a/typo"}))
    space.apply(model({"url": URL}))
    published = {"status": {"artifact": {"digest": "sha256:" + "a" * 64}}}
    space("patch", "model", "m", "--subresource=status", "--type=merge", f"--patch={json.dumps(published)}")
    space.apply(model({"url": URL, "authSecretRef": {"name": "mended"}}))
    changed = json.dumps(model({"url": "https://huggingface.co/a/other"}))
    done = space.attempt("apply", "--filename=-", stdin=changed)

    assert done.returncode != 0
    assert "delete the object and create it again" in done.stderr


def test_an_object_older_than_a_rule_still_gets_status_labels_and_loses_its_finalizer(space: Kubectl) -> None:
    definition = Kubectl().get("crd", "models.ai.deckhouse.io")
    source = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/source/x-kubernetes-validations"
    rules = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][
        "source"
    ]["x-kubernetes-validations"]
    patch = [{"op": "remove", "path": source}]
    Kubectl()("patch", "crd", "models.ai.deckhouse.io", "--type=json", f"--patch={json.dumps(patch)}")
    old = model({"url": URL, "upload": {}}, name="old")
    old["metadata"]["finalizers"] = ["ai.deckhouse.io/model-cleanup"]
    try:
        until(lambda: _created(space, old), what="admitted without the rule", seconds=30, pause=0.5)
    finally:
        back = [{"op": "add", "path": source, "value": rules}]
        Kubectl()("patch", "crd", "models.ai.deckhouse.io", "--type=json", f"--patch={json.dumps(back)}")
    until(lambda: _refused(space), what="rule in force again", seconds=30, pause=0.5)

    space("patch", "model", "old", "--subresource=status", "--type=merge", '--patch={"status":{"phase":"Failed"}}')
    space("label", "model", "old", "team=ml")
    space("delete", "model", "old", "--wait=false")
    space("patch", "model", "old", "--type=merge", '--patch={"metadata":{"finalizers":null}}')
    space("wait", "--for=delete", "model/old", "--timeout=20s")


def _created(space: Kubectl, content: Object) -> bool:
    return space.attempt("create", "--filename=-", stdin=json.dumps(content)).returncode == 0


def _refused(space: Kubectl) -> bool:
    words = ("create", "--dry-run=server", "--filename=-")
    return space.attempt(*words, stdin=json.dumps(model({"url": URL, "upload": {}}, name="new"))).returncode != 0


def test_explain_and_short_names_and_categories_work(space: Kubectl) -> None:
    space.apply(model({"url": URL}))

    assert "exactly one of url" in " ".join(Kubectl()("explain", "model.spec.source").split())
    assert "m " in space("get", "mdl")
    assert "model.ai.deckhouse.io/m" in space("get", "ai-models", "--output=name")
    assert space("get", "models").split()[:6] == ["NAME", "PHASE", "PROGRESS", "FORMAT", "SIZE", "AGE"]


def test_server_side_apply_twice_changes_nothing(space: Kubectl) -> None:
    words = ("apply", "--server-side", "--filename=-")
    space(*words, stdin=json.dumps(model({"url": URL})))
    before = space.get("model", "m")["metadata"]["resourceVersion"]
    space(*words, stdin=json.dumps(model({"url": URL})))
    done = space.attempt("diff", "--server-side", "--filename=-", stdin=json.dumps(model({"url": URL})))

    assert space.get("model", "m")["metadata"]["resourceVersion"] == before
    assert (done.returncode, done.stdout) == (0, "")
