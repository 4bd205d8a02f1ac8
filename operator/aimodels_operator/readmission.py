"""Which workloads should have been stamped and were not: what is done about one of them. Pure.

They were annotated before our webhook was there, or while it was not asked. A change of nothing has the API server ask
it: then it is the webhook that stamps, as for everybody else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aimodels_core import names
from aimodels_operator import blocked, pods, stamping
from aimodels_operator.blocked import INVALID_SPEC
from aimodels_operator.sharedpvc_values import Blocked

Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Due:
    """What is written to a workload.

    Args:
        changes: of its annotations; None takes one away. Without any, nothing changes but what webhooks do.
    """

    changes: Mapping[str, str | None]


def decide(workload: Raw, namespace: str, *, shared: bool) -> Due | None:
    """Say what is to be written to a workload; None when nothing is.

    Args:
        workload: with its kind.
        namespace: of the workload.
        shared: models come from shared claims.
    """
    if stamping.is_left_alone(workload):
        return None
    notes = pods.own_annotations(workload.get("metadata") or {})
    words = stamping.fault(workload, namespace, shared=shared)
    if words:
        said = Blocked(INVALID_SPEC, words.removeprefix(f"{INVALID_SPEC}: "))
        changes = blocked.change(notes, said)
        return Due(changes) if changes else None
    if stamping.stamped(workload) != workload:
        return Due({}) if stamping.may_be_stamped(workload) else None
    says = notes.get(names.ANNOTATION_BLOCKED_REASON) == INVALID_SPEC
    # What was said about the annotations goes with them; what waiting Pods say is taken back by who said it.
    return Due(blocked.change(notes, None)) if says and not stamping.is_stamped(workload) else None
