"""Which Events a new status is worth: they tell the story of a model to people. Pure."""

from collections.abc import Mapping
from typing import Any

from aimodels_core.api import ConditionType, ModelObject, Phase
from aimodels_core.messages import Stage
from aimodels_operator.writes import Emit


def of_change(model: ModelObject, new: Mapping[str, Any]) -> list[Emit]:
    """Tell people of a change of phase, of the reason of a failure, and of what delays a publication."""
    before = model.condition(ConditionType.READY)
    after = next((c for c in new.get("conditions", ()) if c["type"] == ConditionType.READY.value), None)
    if after is None:
        return []
    reason, message = str(after["reason"]), str(after["message"])
    phase = Phase(new["phase"])
    changed = model.status.get("phase") != phase.value or before is None or before.reason != reason
    if phase is Phase.PUBLISHING:
        waiting = new.get("publication", {}).get("stage") == Stage.WAITING.value
        if waiting and (before is None or before.message != message):
            return [Emit(warning=True, reason="PublicationDelayed", message=message)]
        return [Emit(warning=False, reason="PublicationStarted", message=message)] if changed else []
    if not changed:
        return []
    if phase is Phase.READY:
        artifact = new.get("artifact", {})
        words = f"{artifact.get('digest', '')}, {artifact.get('sizeBytes', 0)} bytes"
        return [Emit(warning=False, reason="PublicationSucceeded", message=words)]
    if phase is Phase.FAILED:
        return [Emit(warning=True, reason=reason, message=message)]
    return [Emit(warning=False, reason="Deleting", message=message)] if phase is Phase.DELETING else []
