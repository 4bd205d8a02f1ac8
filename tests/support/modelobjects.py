"""Model objects as an API server would return them, and what it does with writes: for tests of decisions."""

import copy
import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from aimodels_core import names
from aimodels_core.api import MODEL, Kind, ModelObject
from aimodels_operator.writes import PatchStatus, SetFinalizers, Write

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
URL = "https://huggingface.co/BAAI/bge-m3"
UID = "01234567-89ab-cdef-0123-456789abcdef"


def raw_model(
    source: Mapping[str, Any] | None = None,
    *,
    kind: Kind = MODEL,
    status: Mapping[str, Any] | None = None,
    generation: int = 1,
    finalizers: Sequence[str] = (names.FINALIZER,),
    retry: str = "",
    deleting: bool = False,
) -> dict[str, Any]:
    """One object."""
    meta: dict[str, Any] = {"uid": UID, "name": "bge-m3", "generation": generation, "resourceVersion": "1"}
    meta["finalizers"] = list(finalizers)
    if kind.namespaced:
        meta["namespace"] = "ai-demo"
    if retry:
        meta["annotations"] = {names.ANNOTATION_RETRY: retry}
    if deleting:
        meta["deletionTimestamp"] = "2026-01-02T03:04:00Z"
    chosen = {"url": URL} if source is None else dict(source)
    return {"metadata": meta, "spec": {"source": chosen}, "status": copy.deepcopy(dict(status or {}))}


def model(source: Mapping[str, Any] | None = None, *, kind: Kind = MODEL, **fields: Any) -> ModelObject:
    """One object, parsed."""
    return ModelObject.from_raw(kind, raw_model(source, kind=kind, **fields))


def merged(old: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Apply a JSON merge patch (RFC 7396)."""
    new = dict(old)
    for name, value in patch.items():
        if value is None:
            new.pop(name, None)
        elif isinstance(value, Mapping):
            before = new.get(name)
            new[name] = merged(before if isinstance(before, Mapping) else {}, value)
        else:
            new[name] = value
    return new


def written(raw: Mapping[str, Any], writes: Sequence[Write]) -> dict[str, Any]:
    """The object after the writes that concern it."""
    new = copy.deepcopy(dict(raw))
    for write in writes:
        if isinstance(write, PatchStatus):
            new["status"] = merged(new["status"], write.patch)
        if isinstance(write, SetFinalizers):
            new["metadata"]["finalizers"] = list(write.finalizers)
    return new
