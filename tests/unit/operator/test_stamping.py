"""What becomes of workloads that name models: what is stamped, what is refused, what is left alone."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aimodels_core import names
from aimodels_operator import jsonpatch, stamping
from aimodels_operator.stamping import Request, Verdict
from tests.support.patching import patched

MODEL, CLUSTER_MODEL = names.ANNOTATION_MODEL, names.ANNOTATION_CLUSTER_MODEL
LABEL = {names.LABEL_DELIVERY: "true"}
Object = dict[str, Any]


def workload(
    annotations: Object | None = None,
    *,
    kind: str = "Deployment",
    template: Object | None = None,
    meta: Object | None = None,
    **spec: Any,
) -> Object:
    """A workload; `template` is the metadata of its template."""
    made = {"metadata": template or {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "main"}]}}
    inner: Object = {"template": made, **spec}
    whole = {"jobTemplate": {"spec": inner}} if kind == "CronJob" else inner
    given = {} if annotations is None else {"annotations": annotations}
    return {"kind": kind, "metadata": {"name": "web", **given, **(meta or {})}, "spec": whole}


def template_of(found: Any) -> Any:
    spec = found["spec"]
    return (spec["jobTemplate"]["spec"] if "jobTemplate" in spec else spec)["template"]["metadata"]


def create(new: Object) -> Verdict:
    return stamping.decide(Request("CREATE", "demo", new), shared=False)


def update(old: Object, new: Object, *, shared: bool = False) -> Verdict:
    return stamping.decide(Request("UPDATE", "demo", new, old), shared=shared)


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"])
def test_templates_get_annotations_and_label(kind: str) -> None:
    before = workload({MODEL: "bge-m3", CLUSTER_MODEL: "shared", "theirs": "x"}, kind=kind)
    found = create(copy.deepcopy(before)).made

    assert template_of(found) == {
        "labels": {"app": "web", **LABEL},
        "annotations": {MODEL: "bge-m3", CLUSTER_MODEL: "shared"},
    }
    assert found["metadata"] == before["metadata"]
    assert create(dict(found)).made == found, "again is the same"


def test_the_workload_s_own_words_win_over_the_template_s() -> None:
    found = create(workload({MODEL: "new"}, template={"annotations": {MODEL: "old", CLUSTER_MODEL: "c", "k": "v"}}))

    assert template_of(found.made)["annotations"] == {MODEL: "new", "k": "v"}


def test_a_template_of_its_own_words_is_for_the_webhook_of_pods() -> None:
    content = workload(template={"annotations": {MODEL: "mine"}})

    assert create(content) == Verdict(content)


def test_without_its_annotation_a_workload_loses_all_that_it_got() -> None:
    before = workload({MODEL: "bge-m3"}, template={"labels": {"app": "web"}, "annotations": {"k": "v"}})
    stamped = dict(create(before).made)
    bare = copy.deepcopy(stamped)
    del bare["metadata"]["annotations"][MODEL]
    found = update(stamped, bare).made

    assert template_of(found) == {"labels": {"app": "web"}, "annotations": {"k": "v"}}


def test_rollback_to_a_template_from_before_is_stamped_again() -> None:
    old = dict(create(workload({MODEL: "bge-m3"})).made)
    undone = workload({MODEL: "bge-m3"})

    assert update(old, undone).made == old


@pytest.mark.parametrize(
    "meta",
    [
        pytest.param({"deletionTimestamp": "2027-01-01T00:00:00Z"}, id="deleted"),
        pytest.param({"ownerReferences": [{"kind": "Deployment", "controller": True, "uid": "u"}]}, id="controlled"),
    ],
)
@pytest.mark.parametrize("asked", ["bge-m3", "a,a"])
def test_what_goes_and_what_others_make_is_left_alone(meta: Object, asked: str) -> None:
    content = workload({MODEL: asked}, meta=meta)

    assert create(content) == update(content, content) == Verdict(content)


def test_an_owner_that_does_not_control_does_not_matter() -> None:
    found = create(workload({MODEL: "m"}, meta={"ownerReferences": [{"kind": "App", "uid": "u"}]}))

    assert stamping.is_stamped(found.made)


BAD = workload({MODEL: "a,a"})
TWICE = "InvalidSpec: metadata.annotations: ai.deckhouse.io/model: want every name once over both annotations"


def test_bad_lists_are_refused_when_they_come() -> None:
    assert create(BAD).refused.startswith(TWICE)
    assert update(workload({MODEL: "a"}), BAD).refused.startswith(TWICE)
    assert update(workload({MODEL: "b,b"}), BAD).refused.startswith(TWICE)


def test_bad_lists_that_were_there_are_not_in_the_way() -> None:
    scaled = {**BAD, "spec": {**BAD["spec"], "replicas": 5}}
    found = update(BAD, scaled)

    assert (found.made, found.refused) == (scaled, "")
    assert found.warning.startswith(TWICE)
    assert update(BAD, workload({MODEL: "a"})).refused == ""


def test_conflicts_are_refused_when_they_come() -> None:
    good, bad = workload({MODEL: "m"}), workload({MODEL: "m"})
    container = bad["spec"]["template"]["spec"]["containers"][0]
    container["volumeMounts"] = [{"name": "x", "mountPath": "/data", "readOnly": True}]
    words = "InvalidSpec: template: spec.containers[main].volumeMounts: /data is read-only"

    assert create(bad).refused.startswith(words)
    assert update(good, bad).refused.startswith(words)
    assert update(bad, bad).refused == ""
    assert update(bad, good).refused == ""


def test_pods_past_the_scheduler_are_refused_with_shared_claims_alone() -> None:
    pinned = workload({MODEL: "m"})
    pinned["spec"]["template"]["spec"]["nodeName"] = "n1"

    assert "spec.nodeName" in update(workload(), pinned, shared=True).refused
    assert update(workload(), pinned).refused == ""


def job(annotations: Object | None = None, **fields: Any) -> Object:
    return {**workload(annotations, kind="Job", suspend=fields.get("suspend")), "status": fields.get("status", {})}


@pytest.mark.parametrize(
    ("old", "new", "stamped"),
    [
        pytest.param(job(suspend=True), job({MODEL: "m"}, suspend=True), True, id="suspended"),
        pytest.param(job({MODEL: "m"}, suspend=True), job({MODEL: "m"}), True, id="resumed-now"),
        pytest.param(job(), job({MODEL: "m"}), False, id="runs"),
        pytest.param(
            job(suspend=True, status={"startTime": "t"}), job({MODEL: "m"}, suspend=True), False, id="ran-before"
        ),
    ],
)
def test_jobs_are_stamped_before_they_start(old: Object, new: Object, stamped: bool) -> None:
    found = update(old, new)

    assert found.refused == ""
    assert stamping.is_stamped(found.made) is stamped
    assert bool(found.warning) is not stamped


def test_status_of_a_job_that_runs_without_models_says_nothing_more() -> None:
    assert update(job({MODEL: "m"}), job({MODEL: "m"})).warning == ""


def test_what_was_said_about_a_fault_goes_with_it() -> None:
    said = {names.ANNOTATION_BLOCKED_REASON: "InvalidSpec", names.ANNOTATION_BLOCKED_MESSAGE: "a twice"}
    found = update(workload({MODEL: "a,a", **said}), workload({MODEL: "a", **said})).made

    assert found["metadata"]["annotations"] == {MODEL: "a"}
    other = {names.ANNOTATION_BLOCKED_REASON: "ModelNotFound"}
    assert create(workload({MODEL: "a", **other})).made["metadata"]["annotations"] == {MODEL: "a", **other}


TEXTS = st.sampled_from(["a", "b", "a,b", "a,a", "", "x/y"])
NOTES = st.dictionaries(st.sampled_from([MODEL, CLUSTER_MODEL, "k"]), TEXTS, max_size=3)
TEMPLATES = st.fixed_dictionaries(
    {},
    optional={
        "annotations": NOTES,
        "labels": st.sampled_from([{}, {"app": "web"}, LABEL, {**LABEL, "app": "web"}]),
    },
)


def workloads(kind: str) -> st.SearchStrategy[Object]:
    made = st.builds(
        lambda notes, template, suspend: workload(notes, kind=kind, template=template, suspend=suspend),
        NOTES,
        TEMPLATES,
        st.booleans(),
    )
    return st.builds(
        lambda content, start: {**content, "status": start}, made, st.sampled_from([{}, {"startTime": "t"}])
    )


CHANGES = st.sampled_from(["Deployment", "Job", "CronJob"]).flatmap(
    lambda kind: st.tuples(st.one_of(st.none(), workloads(kind)), workloads(kind))
)


@given(CHANGES)
def test_laws(change: tuple[Object | None, Object]) -> None:
    old, new = change
    before = copy.deepcopy(new)
    found = create(new) if old is None else update(old, new)
    assert new == before, "what is given is not changed"
    assert patched(new, jsonpatch.difference(new, found.made)) == found.made
    if found.refused:
        assert found.made == new
        return
    kept = dict(found.made)
    again = create(kept) if old is None else update(old, kept)
    assert (again.made, again.refused) == (kept, ""), "again is the same"
    if new["kind"] != "Job":
        stored = update(kept, kept)
        assert (stored.made, stored.refused) == (kept, ""), "what was let in is never changed again, nor refused"
    if kept != new:
        assert stamping.is_stamped(kept) is bool(stamping.asked(new))
