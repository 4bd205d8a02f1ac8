"""Which object says why Pods wait, and what it says. Pure.

The reason stands on the topmost object that carries the user's annotation, else on the Pod. One object may speak for
many Pods: it says what the first of them waits for, and nothing when none waits.
"""

from collections.abc import Mapping, Sequence

from aimodels_core import names
from aimodels_operator import pods
from aimodels_operator.pods import Owner, Pod
from aimodels_operator.sharedpvc_values import Blocked

INVALID_SPEC = "InvalidSpec"
NOT_FOUND = "ModelNotFound"
NOT_READY = "ModelNotReady"
NOT_IN_CACHE = "NodeNotInCache"
NO_CAPACITY = "InsufficientNodeCacheCapacity"

MAX_MESSAGE_CHARS = 1024
_ORDER = (INVALID_SPEC, NOT_FOUND, NO_CAPACITY, NOT_READY, NOT_IN_CACHE)


def carrier(pod: Pod, owners: Sequence[Owner]) -> Owner:
    """Choose who speaks for a Pod: the topmost owner with the user's annotation, or the Pod itself."""
    asked = (names.ANNOTATION_MODEL, names.ANNOTATION_CLUSTER_MODEL)
    for owner in reversed(owners):
        if any(annotation in owner.annotations for annotation in asked):
            return owner
    return pods.as_object(pod)


def first(waiting: Mapping[str, Blocked]) -> Blocked | None:
    """Choose what an object says for its Pods: what users can mend comes first."""
    ranked = sorted(waiting.values(), key=lambda one: (_rank(one.reason), one.message))
    return ranked[0] if ranked else None


def change(annotations: Mapping[str, str], said: Blocked | None) -> dict[str, str | None]:
    """Annotations that have to change for an object to say something, or nothing; None takes one away."""
    wanted: dict[str, str | None] = {
        names.ANNOTATION_BLOCKED_REASON: said.reason if said is not None else None,
        names.ANNOTATION_BLOCKED_MESSAGE: said.message[:MAX_MESSAGE_CHARS] if said is not None else None,
    }
    return {key: value for key, value in wanted.items() if annotations.get(key) != value}


def _rank(reason: str) -> int:
    return _ORDER.index(reason) if reason in _ORDER else len(_ORDER)
