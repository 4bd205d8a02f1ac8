"""What is decided about Pods that wait for models: who is let go, with what, and what the others say."""

import json
from typing import Any

import pytest

from aimodels_core import names
from aimodels_core.api import CLUSTER_MODEL, MODEL, Kind, ModelObject
from aimodels_core.nodes import Device, Held, NodeReport, Warming
from aimodels_operator import blocked, delivery, placement, pods
from aimodels_operator.delivery import Decision, LetGo, Options, Remake, Seen
from aimodels_operator.placement import Node
from aimodels_operator.pods import Delivered, Named, Owner, Pod
from aimodels_operator.sharedpvc_values import Answer, Blocked, Open
from tests.support.modelobjects import raw_model

NOW = 1_800_000_000.0
DIGEST, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64
BGE = Named(MODEL, "demo", "bge-m3")
SIZE = 1000
CACHED = {names.LABEL_CACHE: "true"}


def pod(**changes: Any) -> Pod:
    """A gated Pod that names a Model; `spec` and `meta` go into it."""
    spec = {"schedulingGates": [{"name": names.SCHEDULING_GATE}], "nodeSelector": CACHED, **changes.get("spec", {})}
    meta = {
        "name": "web-0",
        "namespace": "demo",
        "uid": "u",
        "resourceVersion": "7",
        "annotations": {names.ANNOTATION_MODEL: "bge-m3"},
        "creationTimestamp": "2027-01-15T08:00:00Z",
        **changes.get("meta", {}),
    }
    return Pod.from_raw({"metadata": meta, "spec": spec, "status": {"phase": changes.get("phase", "Pending")}})


def delivered(**changes: Any) -> Delivered:
    fields = {"uid": "m", "digest": DIGEST, "size_bytes": SIZE, "family": "bge", "scope": "ns/demo", "version": "1"}
    return Delivered(**{**fields, "ready_at": NOW - 10, "trouble": "", **changes})


def node(name: str = "n1", *, driver: bool = True, cordoned: bool = False, **labels: str) -> Node:
    return Node(name, {**CACHED, "kubernetes.io/hostname": f"host-{name}", **labels}, cordoned, driver)


def report(name: str = "n1", *held: str, used: int = 0, at: float = NOW, **more: Any) -> NodeReport:
    kept = [Held(digest, SIZE) for digest in held] + ([Held(OTHER, used, used=True)] if used else [])
    return NodeReport(name, at, held=tuple(kept), **{"cache_bytes": 10 * SIZE, **more})


def seen(one: Pod | None = None, **changes: Any) -> Seen:
    reports = changes.pop("reports", [report()])
    by_name = {found.node: found for found in reports} if reports is not None else None
    fields: dict[str, Any] = {"models": {BGE: delivered()}, "nodes": (node(),), "options": Options(), "now": NOW}
    return Seen(**{"pod": one or pod(), "reports": by_name, **fields, **changes})


def patch_of(decision: Decision) -> dict[str, Any]:
    assert isinstance(decision.write, LetGo), decision
    assert decision.blocked is None
    return dict(decision.write.patch)


def why(decision: Decision) -> str:
    assert decision.write is None
    assert decision.blocked is not None
    return f"{decision.blocked.reason}: {decision.blocked.message}"


def preferred(decision: Decision) -> list[Any]:
    affinity = patch_of(decision)["spec"].get("affinity", {}).get("nodeAffinity", {})
    return list(affinity.get("preferredDuringSchedulingIgnoredDuringExecution", []))


def test_pod_whose_model_is_on_a_node_is_let_go_in_one_patch() -> None:
    decision = delivery.decide(seen(reports=[report("n1", DIGEST)]))
    entry = {"name": "bge-m3", "path": "/data/modelcache/models/bge-m3", "digest": DIGEST}
    match = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["host-n1"]}
    patch = patch_of(decision)
    told = patch["metadata"]["annotations"].pop(names.ANNOTATION_RESOLVED_MODELS)

    assert json.loads(told) == [{**entry, "family": "bge", "sizeBytes": SIZE}]
    assert patch == {
        "metadata": {"uid": "u", "resourceVersion": "7", "annotations": {}},
        "spec": {
            "schedulingGates": [{"$patch": "delete", "name": names.SCHEDULING_GATE}],
            "affinity": {
                "nodeAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {"weight": 100, "preference": {"matchExpressions": [match]}}
                    ]
                }
            },
        },
    }


def test_what_the_user_prefers_stays_and_our_label_is_asked_for() -> None:
    mine = {"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [mine]}}
    decision = delivery.decide(
        seen(pod(spec={"affinity": affinity, "nodeSelector": {}}), reports=[report("n1", DIGEST)])
    )

    assert preferred(decision)[0] == mine
    assert len(preferred(decision)) == 2
    assert patch_of(decision)["spec"]["nodeSelector"] == CACHED


def test_a_reason_on_the_pod_goes_with_the_gate() -> None:
    notes = {names.ANNOTATION_MODEL: "bge-m3", names.ANNOTATION_BLOCKED_REASON: "ModelNotReady"}
    decision = delivery.decide(seen(pod(meta={"annotations": notes}), reports=[report("n1", DIGEST)]))

    assert patch_of(decision)["metadata"]["annotations"][names.ANNOTATION_BLOCKED_REASON] is None


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({names.ANNOTATION_MODEL: "a,,b"}, "want names of Models, divided by commas, got ''"),
        ({names.ANNOTATION_MODEL: "other/bge"}, "got 'other/bge'"),
        ({names.ANNOTATION_MODEL: "a", names.ANNOTATION_CLUSTER_MODEL: "a"}, "got a twice"),
        ({names.ANNOTATION_MODEL: ",".join(f"m{n}" for n in range(33))}, "at most 32 models"),
        ({}, "got neither"),
    ],
)
def test_list_that_is_none_is_an_invalid_spec(annotations: dict[str, str], words: str) -> None:
    said = why(delivery.decide(seen(pod(meta={"annotations": annotations}))))

    assert said.startswith("InvalidSpec: ")
    assert words in said


def test_models_come_first_and_all_that_lack_are_named() -> None:
    notes = {names.ANNOTATION_CLUSTER_MODEL: "shared", names.ANNOTATION_MODEL: " b , a "}
    both = pod(meta={"annotations": notes})

    assert pods.named(both) == (
        Named(MODEL, "demo", "b"),
        Named(MODEL, "demo", "a"),
        Named(CLUSTER_MODEL, "", "shared"),
    )
    assert (
        why(delivery.decide(seen(both, models={Named(MODEL, "demo", "b"): delivered()})))
        == "ModelNotFound: Model demo/a, ClusterModel shared: not found"
    )


@pytest.mark.parametrize(
    ("status", "deleting", "words"),
    [
        ({}, False, "Model demo/bge-m3 is Pending"),
        ({"phase": "Publishing"}, False, "Model demo/bge-m3 is Publishing"),
        ({"phase": "Failed", "conditions": [{"type": "Ready", "status": "False", "reason": "UnsupportedSource",
          "message": "no such host"}]}, False, "Model demo/bge-m3 has failed: UnsupportedSource: no such host"),
        ({"phase": "Ready", "artifact": {"digest": DIGEST}, "conditions": [{"type": "Ready", "status": "True"}]}, True,
         "Model demo/bge-m3 is being deleted"),
    ],
)  # fmt: skip
def test_model_that_is_not_ready_says_why(status: dict[str, Any], deleting: bool, words: str) -> None:
    model = Delivered.of(ModelObject.from_raw(MODEL, raw_model(status=status, deleting=deleting)))

    assert why(delivery.decide(seen(models={BGE: model}))) == f"ModelNotReady: {words}"


def test_ready_model_is_read_off_its_status() -> None:
    conditions = [{"type": "Ready", "status": "True", "lastTransitionTime": "2027-01-15T08:00:00Z"}]
    artifact = {"digest": DIGEST, "sizeBytes": 5}
    status = {"conditions": conditions, "artifact": artifact, "resolved": {"family": "bert"}}
    kind: Kind = CLUSTER_MODEL
    found = Delivered.of(ModelObject.from_raw(kind, raw_model(kind=kind, status=status)))

    assert (found.digest, found.size_bytes, found.family, found.scope) == (DIGEST, 5, "bert", "cluster")
    assert found.ready_at == NOW


@pytest.mark.parametrize(
    ("nodes", "reports", "words"),
    [
        ((), [], "no node is there"),
        ((node(driver=False),), [report("n1", DIGEST)], "no node is there"),
        ((node(cordoned=True),), [report("n1", DIGEST)], "no node is there"),
        ((node(),), [report(used=10 * SIZE)], "no node has room"),
        ((node(),), [report(warming=(Warming(DIGEST, no_room=True),))], "no node has room"),
        ((node(),), [report(trouble="no device")], "no node has room"),
        ((node(),), [report(cache_bytes=0, devices=(Device("d", SIZE - 1),))], "no node has room"),
        ((node(),), [report(at=NOW - 200)], "or tells of it"),
    ],
)
def test_pod_that_waiting_cannot_help_goes_at_once(nodes: Any, reports: Any, words: str) -> None:
    decision = delivery.decide(seen(nodes=nodes, reports=reports))

    assert preferred(decision) == []
    assert isinstance(decision.write, LetGo)
    assert words in decision.write.message


def test_cold_pod_waits_for_a_node_and_not_longer_than_it_should() -> None:
    decision = delivery.decide(seen())
    assert why(decision) == "ModelNotReady: models are on their way to n1"
    late = delivery.decide(seen(models={BGE: delivered(ready_at=NOW - 599)}, pod=pod(meta=OLD)))
    assert (why(late), late.again) == ("ModelNotReady: models are on their way to n1", 1.0)
    over = delivery.decide(seen(models={BGE: delivered(ready_at=NOW - 600)}, pod=pod(meta=OLD)))

    assert preferred(over) == []
    fresh = delivery.decide(seen(models={BGE: delivered(ready_at=NOW - 600)}))
    assert why(fresh), "the Pod itself is new"


OLD = {"creationTimestamp": "2026-01-15T08:00:00Z"}


def test_what_nodes_hold_is_waited_for() -> None:
    assert why(delivery.decide(seen(reports=None))) == "ModelNotReady: what nodes hold is not known yet"
    assert patch_of(delivery.decide(seen(pod(meta=OLD), reports=None, models={BGE: delivered(ready_at=0.0)})))


def test_models_that_no_node_may_hold_are_said_so() -> None:
    options = Options(cache_bytes=SIZE - 1)

    assert why(delivery.decide(seen(options=options))).startswith("InsufficientNodeCacheCapacity: its models have ")


def test_gates_of_others_come_first() -> None:
    gates = [{"name": "theirs"}, {"name": names.SCHEDULING_GATE}]
    decision = delivery.decide(seen(pod(spec={"schedulingGates": gates}), reports=[report("n1", DIGEST)]))

    assert (decision.write, decision.blocked) == (None, None)


def on_node(name: str) -> dict[str, Any]:
    fields = [{"key": "metadata.name", "operator": "In", "values": [name]}]
    required = {"nodeSelectorTerms": [{"matchFields": fields}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def test_pod_of_a_daemonset_waits_for_its_node() -> None:
    assert why(delivery.decide(seen(pod(spec=on_node("n9"))))).startswith("NodeNotInCache: node n9 is not labelled")
    old = pod(spec=on_node("n9"), meta=OLD)
    assert why(delivery.decide(seen(old, models={BGE: delivered(ready_at=0.0)}))), "for ever"
    late_driver = delivery.decide(seen(pod(spec=on_node("n1")), nodes=(node(driver=False),)))
    assert why(late_driver).startswith("NodeNotInCache: node n1 has no driver")
    assert patch_of(delivery.decide(seen(pod(spec=on_node("n1")), reports=[report("n1", DIGEST)])))


def test_pod_that_has_a_node_is_told_at_once_and_never_again() -> None:
    bound = {"schedulingGates": [], "nodeName": "n1"}
    patch = patch_of(delivery.decide(seen(pod(spec=bound), nodes=(), reports=None)))
    assert set(patch) == {"metadata"}
    notes = {names.ANNOTATION_MODEL: "bge-m3", names.ANNOTATION_RESOLVED_MODELS: "[]"}
    told = pod(spec=bound, meta={"annotations": notes})

    assert delivery.decide(seen(told, models={BGE: delivered(digest=OTHER)})).write is None


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_pod_that_has_ended_is_left_alone(phase: str) -> None:
    assert delivery.decide(seen(pod(phase=phase, spec={"nodeName": "n1", "schedulingGates": []}))) == Decision()


def test_pod_that_found_no_room_says_so_until_it_starts() -> None:
    told = json.dumps([{"name": "bge-m3", "digest": DIGEST, "sizeBytes": SIZE}])
    notes = {names.ANNOTATION_MODEL: "bge-m3", names.ANNOTATION_RESOLVED_MODELS: told}
    spec = {"schedulingGates": [], "nodeName": "n1"}
    gone = pod(spec=spec, meta={"annotations": notes})
    full = delivery.decide(seen(gone, nodes=(), reports=[report(used=10 * SIZE)]))

    assert why(full).startswith("InsufficientNodeCacheCapacity: no room for ")
    assert delivery.decide(seen(gone, nodes=(), reports=[report("n1", DIGEST, used=10 * SIZE)])).blocked is None
    assert delivery.decide(seen(pod(spec=spec, meta={"annotations": notes}, phase="Running"))) == Decision()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Blocked("SharedPVCClaimPending", "not bound"), "SharedPVCClaimPending: not bound"),
        (Open(), ""),
    ],
)
def test_shared_claims_decide_and_their_pods_get_folders(answer: Answer, said: str) -> None:
    decision = delivery.decide(seen(options=Options(shared=True), answer=answer, nodes=(), reports=None))

    if said:
        assert why(decision) == said
    else:
        patch = patch_of(decision)
        assert patch["metadata"]["annotations"]["ai.deckhouse.io/resolved-digest-0"] == "a" * 64
        assert set(patch["spec"]) == {"schedulingGates"}


def test_pod_of_an_old_revision_is_made_anew_only_while_it_waits() -> None:
    assert delivery.decide(seen(models={}, outdated=True)).write == Remake()
    assert patch_of(delivery.decide(seen(outdated=True, reports=[report("n1", DIGEST)])))


@pytest.mark.parametrize(
    ("operator", "values", "fits"),
    [
        ("In", ["v"], True),
        ("In", ["w"], False),
        ("NotIn", ["v"], False),
        ("Exists", [], True),
        ("DoesNotExist", [], False),
        ("Gt", ["1"], False),
        ("Future", [], True),
    ],
)
def test_required_terms_are_understood(operator: str, values: list[str], fits: bool) -> None:
    one = {"key": "k", "operator": operator, "values": values}
    required = {"nodeSelectorTerms": [{"matchExpressions": [one]}, {}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}

    assert bool(placement.candidates(pod(spec={"affinity": affinity}), [node(k="v")])) is fits


def test_numbers_are_compared_and_selectors_hold() -> None:
    one = {"key": "k", "operator": "Gt", "values": ["4"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [one]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}

    assert placement.candidates(pod(spec={"affinity": affinity}), [node(k="5"), node(k="4")]) == (node(k="5"),)
    assert placement.candidates(pod(spec={"nodeSelector": {"gpu": "yes"}}), [node()]) == ()


def test_topmost_owner_with_the_annotation_speaks_for_its_pods() -> None:
    asked = {names.ANNOTATION_CLUSTER_MODEL: "x"}
    set_ = Owner("apps/v1", "ReplicaSet", "demo", "web-1", "r", asked)
    deployment = Owner("apps/v1", "Deployment", "demo", "web", "d", asked)
    plain = Owner("example.com/v1", "App", "demo", "app", "a", {})

    assert blocked.carrier(pod(), [set_, deployment, plain]) == deployment
    assert blocked.carrier(pod(), [plain]).kind == "Pod"


def test_workload_says_what_its_owner_can_mend_first_and_takes_it_back() -> None:
    waiting = {"p1": Blocked("ModelNotReady", "soon"), "p2": Blocked("InvalidSpec", "wrong")}
    said = blocked.first(waiting)
    assert said == waiting["p2"]
    reason = {names.ANNOTATION_BLOCKED_REASON: "InvalidSpec", names.ANNOTATION_BLOCKED_MESSAGE: "wrong"}
    assert blocked.change({}, said) == reason
    assert blocked.change(reason, said) == {}
    assert blocked.change(reason, blocked.first({})) == dict.fromkeys(reason)
