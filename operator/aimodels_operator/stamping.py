"""What the templates of workloads get so that their Pods are given models: annotations and our label. Pure.

Level-triggered: a template follows from the workload alone. Our label in it says that it was stamped, so a workload
without annotations and with the label loses both. Stamped again it is the same, so there is never a needless rollout.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aimodels_core import names
from aimodels_operator import inject, pods
from aimodels_operator.blocked import INVALID_SPEC

Raw = Mapping[str, Any]

ASKED = (names.ANNOTATION_MODEL, names.ANNOTATION_CLUSTER_MODEL)
CREATE, UPDATE = "CREATE", "UPDATE"
_SAID = (names.ANNOTATION_BLOCKED_REASON, names.ANNOTATION_BLOCKED_MESSAGE)


@dataclass(frozen=True, slots=True)
class Request:
    """What somebody wants to do to a workload.

    Args:
        operation: CREATE or UPDATE.
        namespace: of the workload.
        new: the workload as it is to be.
        old: as it is; None when it is created.
    """

    operation: str
    namespace: str
    new: Raw
    old: Raw | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a request.

    Args:
        made: the workload as it shall be.
        refused: why it shall not be, for people; empty when it may.
        warning: for people; empty for none.
    """

    made: Raw
    refused: str = ""
    warning: str = ""


def decide(request: Request, *, shared: bool) -> Verdict:
    """Stamp a workload, or say why not.

    What it had wrong before is no reason to refuse something else; what comes now is.
    """
    new, old = request.new, request.old if request.operation == UPDATE else None
    if is_left_alone(new):
        return Verdict(new)
    if words := fault(new, request.namespace, shared=shared):
        before = fault(old, request.namespace, shared=shared) if old is not None else ""
        if old is None or before != words or asked(old) != asked(new):
            return Verdict(new, refused=words)
        return Verdict(new, warning=words)
    made = stamped(new)
    if made != new and old is not None and not may_be_stamped(old):
        changed = asked(old) != asked(new)
        words = "a Job that has started keeps its models: create it again for others" if changed else ""
        return Verdict(new, warning=words)
    return Verdict(made)


def is_left_alone(workload: Raw) -> bool:
    """Whether a workload is being deleted, or belongs to another object, which makes its template."""
    meta = workload.get("metadata") or {}
    return bool(meta.get("deletionTimestamp")) or pods.controller_of(meta, "") is not None


def may_be_stamped(workload: Raw) -> bool:
    """Whether a workload's template may change; that of a Job only before it starts (Kubernetes: job/strategy.go)."""
    if workload.get("kind") != "Job":
        return True
    suspended = (workload.get("spec") or {}).get("suspend") is True
    return suspended and not (workload.get("status") or {}).get("startTime")


def fault(workload: Raw, namespace: str, *, shared: bool) -> str:
    """Say why the Pods of a workload cannot be given the models that it names; empty when they can."""
    models = pods.named_in(asked(workload), namespace)
    if isinstance(models, str):
        return f"{INVALID_SPEC}: metadata.annotations: {models}"
    words = inject.fault(_template(workload).get("spec") or {}, models, shared=shared) if models else ""
    return f"{INVALID_SPEC}: template: {words}" if words else ""


def asked(workload: Raw) -> dict[str, str]:
    """What of a workload's own annotations names models."""
    found = (workload.get("metadata") or {}).get("annotations") or {}
    return {key: str(found[key]) for key in ASKED if key in found}


def is_stamped(workload: Raw) -> bool:
    """Whether our label is in the template."""
    labels = (_template(workload).get("metadata") or {}).get("labels") or {}
    return names.LABEL_DELIVERY in labels


def stamped(workload: Raw) -> Raw:
    """Make a workload's template what its annotations say; the workload itself when it is."""
    wanted = asked(workload)
    if not wanted and not is_stamped(workload):
        return workload
    template = _template(workload)
    meta = template.get("metadata") or {}
    labels, annotations = dict(meta.get("labels") or {}), dict(meta.get("annotations") or {})
    labels.pop(names.LABEL_DELIVERY, None)
    left = {key: value for key, value in annotations.items() if key not in ASKED}
    if wanted:
        labels[names.LABEL_DELIVERY] = "true"
    changed = {"labels": labels, "annotations": {**left, **wanted}}
    if all((meta.get(key) or {}) == value for key, value in changed.items()):
        return workload
    made = copy.deepcopy(dict(workload))
    target = _template(made)
    target["metadata"] = {**meta, **changed}
    _take_back(made)
    return made


def _take_back(made: dict[str, Any]) -> None:
    """Take away what was said about a fault: a workload that is stamped now has none, and no Pods by this template."""
    notes = made["metadata"].get("annotations") or {}
    if notes.get(names.ANNOTATION_BLOCKED_REASON) == INVALID_SPEC:
        made["metadata"]["annotations"] = {key: value for key, value in notes.items() if key not in _SAID}


def _template(workload: Raw) -> Any:
    spec = workload.get("spec") or {}
    if "jobTemplate" in spec:
        spec = (spec["jobTemplate"] or {}).get("spec") or {}
    return spec.get("template") or {}
