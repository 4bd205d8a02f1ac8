"""The status of a Model, rendered from what is known; and how two statuses differ. Pure.

What is known, and what is done about it, is decided in `model`.
"""

import dataclasses
import datetime
from collections.abc import Mapping
from typing import Any

from aimodels_core import api
from aimodels_core.api import Condition, ConditionType, ModelObject, Phase, Reason
from aimodels_core.messages import PublicationState, Published, Stage
from aimodels_operator.writes import Urgency

_CONDITIONS_MOST = 32
_NOTES_MOST = 32
_NOTE_CHARS = 1024
_TEXT_CHARS = 256
_TASKS_MOST = 32
_PICKLE = f"{api.PICKLE_REASON}: "

_IN_PROGRESS = {
    Reason.PENDING: Phase.PENDING,
    Reason.WAITING_FOR_USER_UPLOAD: Phase.WAIT_FOR_UPLOAD,
    Reason.PUBLISHING: Phase.PUBLISHING,
    Reason.ARTIFACT_PUBLISHED: Phase.READY,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Told:
    """What a status should say of a model that is not Ready.

    Args:
        reason: of ArtifactResolved and Ready.
        message: for people.
        publication: what the coordinator says of it, when it says something of this very spec.
        stage: what `publication.stage` shows; None for nothing.
        revision: the resolved revision, as far as it is known.
    """

    reason: Reason
    message: str
    publication: PublicationState | None = None
    stage: Stage | None = None
    revision: str = ""


def unfinished(model: ModelObject, told: Told, now: datetime.datetime) -> dict[str, Any]:
    """Render the status of a model that is not Ready."""
    message = told.message[: api.MAX_MESSAGE_CHARS]
    conditions = [
        _condition(model, ConditionType.ARTIFACT_RESOLVED, told.reason.value, message, now, holds=False),
        _condition(model, ConditionType.READY, told.reason.value, message, now, holds=False),
    ]
    source = {
        "resolvedRevision": told.revision,
        "resolvedType": _kept(model, "source", "resolvedType") if told.revision else "",
    }
    phase = Phase.DELETING if model.deleting else _IN_PROGRESS.get(told.reason, Phase.FAILED)
    status = {
        "observedGeneration": model.generation,
        "phase": phase.value,
        "progress": _progress(told.publication) if phase is Phase.PUBLISHING else "",
        "conditions": _with_others(model, conditions),
        "source": _without_empty(source),
        "publication": _publication(model, told),
    }
    return _without_empty(status)


def ready(model: ModelObject, state: PublicationState, now: datetime.datetime) -> dict[str, Any]:
    """Render the status of a model that was just published.

    Raises:
        ValueError: the state is not READY.
    """
    published = state.published
    if published is None:
        raise ValueError(f"{model.path}: want a published model, got stage {state.stage.value}")
    resolved = _resolved(published.resolved)
    status = {
        "observedGeneration": model.generation,
        "phase": Phase.READY.value,
        "conditions": _with_others(model, _ready_conditions(model, published, resolved, now)),
        "source": _without_empty({"resolvedType": published.kind, "resolvedRevision": state.revision}),
        "artifact": {
            "kind": "OCI",
            "digest": published.digest,
            "mediaType": published.media_type,
            "sizeBytes": max(1, published.size_bytes),
        },
        "resolved": resolved,
        "publication": _publication(model, Told(Reason.READY, "", state, Stage.READY)),
    }
    return _without_empty(status)


def repaired(model: ModelObject, phase: Phase) -> dict[str, Any]:
    """Render the status of a model about which nothing is new: as it is, with what follows from it set right."""
    status = {name: value for name, value in model.status.items() if name not in ("progress", "upload")}
    return status | {"observedGeneration": model.generation, "phase": phase.value}


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON merge patch (RFC 7396) that makes `new` of `old`; empty when they are equal.

    >>> difference({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": 2, "d": 4}})
    {'a': None, 'b': {'d': 4}}
    """
    patch: dict[str, Any] = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if inner := difference(before, value):
                patch[name] = inner
        elif before != value:
            patch[name] = value
    return patch


def urgency(old: Mapping[str, Any], patch: Mapping[str, Any]) -> Urgency:
    """Say whether a patch tells something new of the model, or only how far it is."""
    if patch.keys() - {"progress", "publication", "conditions"}:
        return Urgency.PHASE
    if "conditions" in patch and _gist(patch["conditions"]) != _gist(old.get("conditions")):
        return Urgency.PHASE
    return Urgency.PROGRESS


def _gist(conditions: Any) -> list[tuple[Any, ...]]:
    entries = conditions if isinstance(conditions, list) else []
    return [(c.get("type"), c.get("status"), c.get("reason")) for c in entries if isinstance(c, Mapping)]


def is_ready(model: ModelObject) -> bool:
    """Whether the status tells of an artifact and that it was ready: the record that outlives every process."""
    return bool(ready_digest(model))


def ready_digest(model: ModelObject) -> str:
    """Digest of the artifact that the status calls ready; empty when there is none."""
    found = model.condition(ConditionType.READY)
    return _kept(model, "artifact", "digest") if found is not None and found.status == "True" else ""


def has_failed_for_good(model: ModelObject) -> bool:
    """Whether the status tells that this very spec, at this value of the retry annotation, cannot be published."""
    found = model.condition(ConditionType.ARTIFACT_RESOLVED)
    failed = found is not None and found.status == "False" and found.reason in {r.value for r in api.FAILURES}
    return failed and _same_try(model) and _kept(model, "publication", "stage") == Stage.FAILED.value


def has_begun(model: ModelObject) -> bool:
    """Whether the status tells that this very spec is being published: that stays so when a coordinator is lost."""
    found = model.conditions().get(ConditionType.ARTIFACT_RESOLVED.value)
    return found is not None and found.reason == Reason.PUBLISHING.value and _same_try(model)


def kept_revision(model: ModelObject) -> str:
    """Revision that was resolved for this very spec and value of the retry annotation, or nothing."""
    return _kept(model, "source", "resolvedRevision") if _same_try(model) else ""


def _same_try(model: ModelObject) -> bool:
    known = model.status.get("observedGeneration") == model.generation
    return known and _kept(model, "publication", "retry") == model.retry


def timestamp(at: datetime.datetime) -> str:
    """Render a time as Kubernetes does (RFC 3339, whole seconds)."""
    return at.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _kept(model: ModelObject, group: str, name: str) -> str:
    found = model.status.get(group)
    value = found.get(name) if isinstance(found, Mapping) else None
    return value if isinstance(value, str) else ""


def _condition(
    model: ModelObject, kind: ConditionType, reason: str, message: str, now: datetime.datetime, *, holds: bool
) -> Condition:
    """Make a condition; the time of its last transition stays while its status does."""
    status = "True" if holds else "False"
    before = model.condition(kind)
    same = before is not None and before.status == status and before.transitioned_at
    at = before.transitioned_at if before is not None and same else timestamp(now)
    return Condition(kind.value, status, reason, message, at, model.generation)


def _ready_conditions(
    model: ModelObject, published: Published, resolved: Mapping[str, Any], now: datetime.datetime
) -> list[Condition]:
    wanted = ("family", "architecture", "parameterCount", "supportedEndpointTypes")
    missing = [name for name in wanted if name not in resolved]
    metadata = Reason.METADATA_PARTIAL if missing else Reason.METADATA_CALCULATED
    unknown = f"not known: {', '.join(missing)}" if missing else ""
    stored = "verified and stored"
    found = [
        _condition(model, ConditionType.ARTIFACT_RESOLVED, Reason.ARTIFACT_PUBLISHED.value, stored, now, holds=True),
        _condition(model, ConditionType.METADATA_RESOLVED, metadata.value, unknown, now, holds=True),
        _condition(model, ConditionType.READY, Reason.READY.value, "", now, holds=True),
    ]
    for note in published.notes:
        if note.startswith(_PICKLE):
            words = note.removeprefix(_PICKLE)[: api.MAX_MESSAGE_CHARS]
            pickled = _condition(model, ConditionType.PICKLE_WEIGHTS, api.PICKLE_REASON, words, now, holds=True)
            return [*found, pickled]
    return found


def _with_others(model: ModelObject, ours: list[Condition]) -> list[dict[str, Any]]:
    own = {kind.value for kind in ConditionType}
    others = [condition.to_raw() for name, condition in model.conditions().items() if name not in own]
    return [*(condition.to_raw() for condition in ours), *others][:_CONDITIONS_MOST]


def _progress(state: PublicationState | None) -> str:
    if state is None or state.bytes_total <= 0:
        return "0%"
    return f"{min(99, 100 * state.bytes_done // state.bytes_total)}%"


def _publication(model: ModelObject, told: Told) -> dict[str, Any]:
    shown: dict[str, Any] = {"retry": model.retry, "stage": told.stage.value if told.stage else ""}
    state = told.publication
    if state is None:
        return _without_empty(shown)
    shown |= {"bytesTotal": state.bytes_total, "bytesDone": state.bytes_done, "bytesReused": state.bytes_reused}
    shown["attempt"] = max(1, state.attempt)
    if state.next_retry_at is not None:
        shown["nextRetryTime"] = timestamp(datetime.datetime.fromtimestamp(state.next_retry_at, datetime.UTC))
    if state.stage.running:
        shown |= {"bytesPerSecond": int(state.bytes_per_second), "workers": state.workers}
        shown["etaSeconds"] = None if state.eta_seconds is None else int(state.eta_seconds)
    if state.published is not None:
        shown["notes"] = [note[:_NOTE_CHARS] for note in state.published.notes[:_NOTES_MOST]]
    return _without_empty(shown)


def _resolved(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Keep what the definition allows: one odd value must not make the API server refuse every status."""
    numbers = {name: raw.get(name) for name in ("parameterCount", "contextWindowTokens")}
    texts = {name: _cut(raw.get(name)) for name in ("family", "architecture", "quantization")}
    capabilities = raw.get("sourceCapabilities")
    declared = capabilities if isinstance(capabilities, Mapping) else {}
    shown = {
        "format": raw.get("format") if raw.get("format") in api.FORMATS else None,
        **texts,
        **{name: value for name, value in numbers.items() if isinstance(value, int) and 1 <= value < 2**63},
        "supportedEndpointTypes": _known(raw.get("supportedEndpointTypes"), api.ENDPOINT_TYPES),
        "supportedFeatures": _known(raw.get("supportedFeatures"), api.FEATURES),
        "sourceCapabilities": _without_empty(
            {"provider": _cut(declared.get("provider"), 128), "tasks": _texts(declared.get("tasks"))}
        ),
    }
    return _without_empty(shown)


def _cut(raw: Any, most: int = _TEXT_CHARS) -> str:
    return raw[:most] if isinstance(raw, str) else ""


def _known(raw: Any, closed: tuple[str, ...]) -> list[str]:
    given = raw if isinstance(raw, (list, tuple)) else ()
    return [name for name in closed if name in given]


def _texts(raw: Any) -> list[str]:
    given = raw if isinstance(raw, (list, tuple)) else ()
    cut = (entry[:128] for entry in given if isinstance(entry, str) and entry)
    return list(dict.fromkeys(cut))[:_TASKS_MOST]


def _without_empty(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what is not known; numbers stay, zero too."""
    return {name: value for name, value in fields.items() if value is not None and value not in ("", [], {})}
