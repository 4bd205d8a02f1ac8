"""Which workloads are admitted again, and what they are told."""

from typing import Any

import pytest

from aimodels_core import names
from aimodels_operator import readmission, stamping
from aimodels_operator.readmission import Due

MODEL = names.ANNOTATION_MODEL
REASON, MESSAGE = names.ANNOTATION_BLOCKED_REASON, names.ANNOTATION_BLOCKED_MESSAGE
SAID = {REASON: "InvalidSpec", MESSAGE: "a twice"}
Object = dict[str, Any]


def workload(notes: Object, kind: str = "Deployment", *, meta: Object | None = None, **fields: Any) -> Object:
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "main"}]}}
    spec = {"template": template, **fields.pop("spec", {})}
    return {"kind": kind, "metadata": {"name": "web", "annotations": notes, **(meta or {})}, "spec": spec, **fields}


def stamped(content: Object) -> Object:
    return dict(stamping.stamped(content))


def left(notes: Object) -> Object:
    """A stamped workload whose annotations became others while nobody was asked."""
    found = stamped(workload({MODEL: "m"}))
    return {**found, "metadata": {**found["metadata"], "annotations": notes}}


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(workload({MODEL: "m"}), id="never-asked-about"),
        pytest.param(left({}), id="annotation-gone"),
        pytest.param(left({MODEL: "other"}), id="annotation-changed"),
        pytest.param(workload({MODEL: "m"}, "Job", spec={"suspend": True}), id="job-that-waits"),
        pytest.param(workload({MODEL: "a", **SAID}), id="mended"),
    ],
)
def test_admitted_again(content: Object) -> None:
    assert readmission.decide(content, "demo", shared=False) == Due({})


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(workload({}), id="names-none"),
        pytest.param(stamped(workload({MODEL: "m"})), id="stamped"),
        pytest.param(stamped(workload({MODEL: "m", **SAID})) | {"metadata": {"annotations": {MODEL: "m"}}}, id="told"),
        pytest.param(workload({MODEL: "m"}, meta={"deletionTimestamp": "t"}), id="deleted"),
        pytest.param(workload({MODEL: "m"}, meta={"ownerReferences": [{"controller": True}]}), id="controlled"),
        pytest.param(workload({MODEL: "m"}, "Job"), id="job-that-runs"),
        pytest.param(
            workload({MODEL: "m"}, "Job", spec={"suspend": True}, status={"startTime": "t"}), id="job-that-ran"
        ),
        pytest.param(left({MODEL: "m", REASON: "InvalidSpec"}), id="said-by-pods"),
    ],
)
def test_left_alone(content: Object) -> None:
    assert readmission.decide(content, "demo", shared=False) is None


def test_faults_are_said_once_and_taken_back() -> None:
    bad = workload({MODEL: "a,a"})
    found = readmission.decide(bad, "demo", shared=False)
    assert found is not None
    assert found.changes[REASON] == "InvalidSpec"
    words = str(found.changes[MESSAGE])
    assert words.startswith("metadata.annotations: ai.deckhouse.io/model: want every name once")

    told = workload({MODEL: "a,a", **{key: str(value) for key, value in found.changes.items()}})
    assert readmission.decide(told, "demo", shared=False) is None
    assert readmission.decide(workload(SAID), "demo", shared=False) == Due({REASON: None, MESSAGE: None})
    pinned = workload({MODEL: "m"}, spec={"template": {"spec": {"nodeName": "n1", "containers": []}}})
    assert readmission.decide(pinned, "demo", shared=False) == Due({})
    assert readmission.decide(pinned, "demo", shared=True) != Due({})
