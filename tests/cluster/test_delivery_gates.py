"""Pods that wait for models on a real API server: who is let go, what workloads say, and who may tell Pods what.

The webhook is not part of it: Pods carry gate, label and annotation as it would write them. Nodes have neither driver
nor cache here, so Pods whose models are Ready go at once. The operator is the product's, with the chart's rights.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from aimodels_core import names
from tests.cluster import operating
from tests.cluster.operating import HOME, HUB_TOKEN, Operators, phase, wait_for_holder
from tests.cluster.stand.kubectl import Kubectl, Object, pod
from tests.cluster.stand.waiting import until
from tests.support.publishing import good_model

GATE = [{"name": names.SCHEDULING_GATE}]
RESOLVED = names.ANNOTATION_RESOLVED_MODELS
REASON = names.ANNOTATION_BLOCKED_REASON
OPERATOR = f"--as=system:serviceaccount:{HOME}:ai-models-operator"


@pytest.fixture(scope="module", autouse=True)
def operators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operators]:
    operating.install("delivery.enabled=true", "delivery.type=NodeCache")
    with operating.world(tmp_path_factory.mktemp("world")) as (hub, _, made):
        hub.add(good_model("org/good"))
        made.start("replica-0", DELIVERY_TYPE="NodeCache")
        wait_for_holder("replica-0")
        policies_act()
        yield made
        assert HUB_TOKEN not in made.logs()
        assert "decision broke" not in made.logs()
    operating.install()


def policies_act() -> None:
    """Wait until the API server has learnt of the admission policies."""

    def refused() -> bool:
        forged = pod("forged")
        forged["metadata"]["annotations"] = {RESOLVED: "[]"}
        done = Kubectl("default").attempt("create", "--dry-run=server", "--filename=-", stdin=json.dumps(forged))
        return done.returncode != 0 and "written by ai-models alone" in done.stderr

    until(refused, what="policies in force", seconds=30, pause=0.5)


def model(name: str = "bge") -> Object:
    source = {"url": "https://huggingface.co/org/good"}
    return {
        "apiVersion": "ai.deckhouse.io/v1alpha1",
        "kind": "Model",
        "metadata": {"name": name},
        "spec": {"source": source},
    }


def stamped(content: Object, asked: str = "bge") -> Object:
    """A Pod, or the template of one, as the webhook leaves it."""
    meta = content.setdefault("metadata", {})
    meta["labels"] = {**meta.get("labels", {}), names.LABEL_DELIVERY: "true"}
    meta["annotations"] = {names.ANNOTATION_MODEL: asked}
    return content


def waiting(name: str = "web", asked: str = "bge", **spec: Any) -> Object:
    return stamped(pod(name, command=("sleep", "600"), **{"schedulingGates": GATE, **spec}), asked)


def workload(kind: str, asked: str = "bge", **spec: Any) -> Object:
    template = waiting(asked=asked)
    for key in ("apiVersion", "kind"):
        del template[key]
    del template["metadata"]["name"]
    meta = {"name": "app", "annotations": {names.ANNOTATION_MODEL: asked}}
    body = {"selector": {"matchLabels": {"app": "web"}}, "template": template, **spec}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": meta, "spec": body}


def note(found: Object, key: str) -> str:
    return str((found["metadata"].get("annotations") or {}).get(key, ""))


def says(reason: str) -> Any:
    return lambda found: note(found, REASON) == reason


def gated(found: Object) -> bool:
    return bool(found["spec"].get("schedulingGates"))


def test_pod_waits_for_a_model_that_comes_later_and_keeps_what_it_got(space: Kubectl) -> None:
    mine = {"weight": 5, "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}}
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [mine]}}
    space.apply(waiting(affinity=affinity))
    missing = space.until("pod", "web", says("ModelNotFound"))
    assert f"Model {space.namespace}/bge: not found" in note(missing, names.ANNOTATION_BLOCKED_MESSAGE)
    space.apply(model())
    digest = space.until("model", "bge", phase("Ready"), seconds=60)["status"]["artifact"]["digest"]
    gone = space.until("pod", "web", lambda found: not gated(found))
    (told,) = json.loads(note(gone, RESOLVED))

    assert (told["name"], told["path"], told["digest"]) == ("bge", "/data/modelcache/models/bge", digest)
    assert note(gone, REASON) == ""
    assert gone["spec"]["nodeSelector"] == {names.LABEL_CACHE: "true"}
    assert gone["spec"]["affinity"] == affinity
    reasons = {"ModelNotFound", "ModelsDelivered"}
    until(lambda: reasons <= {one["reason"] for one in space.items("events")}, what="Events", seconds=20, pause=0.5)
    space("delete", "model", "bge", "--timeout=30s")
    space.apply(waiting("next"))
    space.until("pod", "next", says("ModelNotFound"))
    assert note(space.get("pod", "web"), RESOLVED) == note(gone, RESOLVED)


def test_deployment_says_what_its_pods_wait_for_and_takes_it_back(space: Kubectl) -> None:
    space.apply(workload("Deployment", replicas=2))
    space.until("deployment", "app", says("ModelNotFound"))
    before = space.get("deployment", "app")
    space.apply(model())
    space.until("deployment", "app", says(""), seconds=60)

    assert len(space.items("replicasets")) == 1, "no other rollout"
    assert space.get("deployment", "app")["spec"] == before["spec"]
    until(lambda: not any(map(gated, space.items("pods"))), what="Pods let go", seconds=20, pause=0.5)


def test_statefulset_whose_model_had_a_wrong_name_recovers(space: Kubectl) -> None:
    space.apply(model())
    space.until("model", "bge", phase("Ready"), seconds=60)
    space.apply(workload("StatefulSet", "beg", serviceName="app"))
    space.until("statefulset", "app", says("ModelNotFound"))
    space.apply(workload("StatefulSet", serviceName="app"))

    space.until("pod", "app-0", lambda found: not gated(found), seconds=60)
    space.until("statefulset", "app", says(""))


def test_pods_of_a_daemonset_wait_for_nodes_with_a_cache(space: Kubectl) -> None:
    space.apply(model())
    space.until("model", "bge", phase("Ready"), seconds=60)
    space.apply(workload("DaemonSet"))
    found = space.until("daemonset", "app", says("NodeNotInCache"))

    assert "is not labelled" in note(found, names.ANNOTATION_BLOCKED_MESSAGE)
    assert all(map(gated, space.items("pods")))


def test_gates_of_others_come_first(space: Kubectl) -> None:
    space.apply(model())
    space.until("model", "bge", phase("Ready"), seconds=60)
    space.apply(waiting("other", "nothing"), waiting(schedulingGates=[{"name": "example.com/theirs"}, *GATE]))
    space.until("pod", "other", says("ModelNotFound"))
    assert note(space.get("pod", "web"), RESOLVED) == ""
    space(
        "patch",
        "pod",
        "web",
        "--patch",
        json.dumps({"spec": {"schedulingGates": [{"$patch": "delete", "name": "example.com/theirs"}]}}),
    )

    space.until("pod", "web", lambda found: not gated(found))


def test_pod_that_was_created_on_a_node_is_told_once(space: Kubectl) -> None:
    node = Kubectl().items("nodes")[0]["metadata"]["name"]
    space.apply(waiting(schedulingGates=[], nodeName=node))
    space.until("pod", "web", says("ModelNotFound"))
    space.apply(model())
    told = space.until("pod", "web", lambda found: note(found, RESOLVED), seconds=60)

    assert space.get("model", "bge")["status"]["artifact"]["digest"] in note(told, RESOLVED)


def test_wrong_lists_are_said_so_and_models_of_other_namespaces_are_not_there(space: Kubectl) -> None:
    space.apply(waiting("twice", "a,a"), waiting("path", "default/bge"))

    for name in ("twice", "path"):
        space.until("pod", name, says("InvalidSpec"))


FORGED = {RESOLVED: '[{"name":"x","digest":"sha256:0"}]'}


def refused(space: Kubectl, *words: str, stdin: Object | None = None) -> str:
    """Words of the refusal; nothing when it was let through."""
    done = space.attempt(*words, stdin=json.dumps(stdin) if stdin is not None else None)
    return done.stderr if done.returncode != 0 else ""


def patched(space: Kubectl, name: str, content: Object, *more: str) -> str:
    return refused(space, "patch", "pod", name, "--type=merge", f"--patch={json.dumps(content)}", *more)


def test_nobody_but_the_operator_tells_pods_what_they_get(space: Kubectl) -> None:
    account = f"system:serviceaccount:{space.namespace}:default"
    space("create", "rolebinding", "admin", "--clusterrole=admin", f"--serviceaccount={space.namespace}:default")
    space.apply(waiting())
    words = "written by ai-models alone"
    notes = {"metadata": {"annotations": FORGED}}
    digests = {"metadata": {"annotations": {f"{names.ANNOTATION_RESOLVED_DIGEST}0": "0"}}}
    forged = waiting("forged")
    forged["metadata"]["annotations"] |= FORGED

    assert words in refused(space, "create", "--filename=-", f"--as={account}", stdin=forged)
    assert words in patched(space, "web", notes, f"--as={account}")
    assert words in patched(space, "web", digests, f"--as={account}")
    assert words in patched(space, "web", notes), "not even an administrator"
    assert words in patched(space, "web", notes, "--subresource=status")
    target = {"apiVersion": "v1", "kind": "Node", "name": Kubectl().items("nodes")[0]["metadata"]["name"]}
    free = waiting("free", schedulingGates=[], schedulerName="nobody")
    space.apply(free)
    meta = {"name": "free", "namespace": space.namespace, "annotations": FORGED}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}
    path = f"/api/v1/namespaces/{space.namespace}"
    assert words in refused(space, "create", f"--raw={path}/pods/free/binding", "--filename=-", stdin=binding)
    assert words in refused(space, "create", f"--raw={path}/bindings", "--filename=-", stdin=binding)
    assert patched(space, "web", {"metadata": {"annotations": {"theirs": "x"}}}, f"--as={account}") == ""
    assert patched(space, "web", notes, OPERATOR) == ""
    assert words in patched(space, "web", {"metadata": {"annotations": {RESOLVED: None}}})
    assert patched(space, "web", {"metadata": {"labels": {"theirs": "x"}}}) == "", "the rest can be changed"


def test_the_operator_may_only_do_what_it_has_to(space: Kubectl) -> None:
    node = Kubectl().items("nodes")[0]["metadata"]["name"]
    unlabelled = {"schedulerName": "nobody"}
    space.apply(
        pod("stranger", command=("sleep", "600"), **unlabelled), pod("bound", command=("sleep", "600"), nodeName=node)
    )
    gate = pod("gated", command=("sleep", "600"), schedulingGates=GATE)
    space.apply(gate)
    image = {"spec": {"containers": [{"name": "main", "image": "evil"}]}}
    notes = {"metadata": {"annotations": FORGED}}
    kind = "--type=strategic"

    def strategic(name: str, content: Object) -> str:
        return refused(space, "patch", "pod", name, kind, f"--patch={json.dumps(content)}", OPERATOR)

    for name in ("stranger", "bound", "gated"):
        assert "ai-models changes Pods that have its scheduling gate" in strategic(name, image), name
    assert "ai-models changes" in strategic("stranger", notes)
    assert "ai-models changes" in strategic("stranger", {"metadata": {"annotations": {"any": "x"}}})
    assert "ai-models changes" in strategic("stranger", {"metadata": {"labels": {"app": "other"}}})
    assert "ai-models changes" in strategic("bound", {"metadata": {"annotations": {"any": "x"}}})
    assert strategic("bound", notes) == ""
    assert "ai-models changes" in strategic("bound", {"metadata": {"annotations": {RESOLVED: "[]"}}}), "only once"
    assert strategic("stranger", {"metadata": {"annotations": {REASON: "ModelNotReady"}}}) == ""
    assert (
        strategic("gated", {"spec": {"schedulingGates": [{"$patch": "delete", "name": names.SCHEDULING_GATE}]}}) == ""
    )
    assert "deletes Pods that have its scheduling gate" in refused(space, "delete", "pod", "stranger", OPERATOR)
    space.apply(workload("Deployment", "nothing"))
    evil = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "evil"}]}}}}
    words = refused(space, "patch", "deployment", "app", kind, f"--patch={json.dumps(evil)}", OPERATOR)
    assert "changes nothing of what runs" in words
