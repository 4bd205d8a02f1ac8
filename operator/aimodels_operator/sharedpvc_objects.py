"""Objects of shared claims as the API server shows them. Pure.

A claim carries what lies in it as an annotation, so that nothing but the API server has to remember it.
"""

import dataclasses
import datetime
import enum
import json
import re
from collections.abc import Mapping
from typing import Any, Self

from aimodels_core import names
from aimodels_core.errors import UsageError
from aimodels_core.units import quantity_bytes

DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_HEX = re.compile(r"[0-9a-f]{64}")
_MAX_CONTENTS = 64


@dataclasses.dataclass(frozen=True, slots=True)
class StorageClass:
    """A class of storage.

    Args:
        name: of the object.
        provisioner: who makes its volumes.
        shared: what its annotation says about sharing; empty when it has none.
        default: whether it is the cluster's.
        expands: whether its claims may grow.
        waits: whether volumes are made only for a Pod that is scheduled.
    """

    name: str
    provisioner: str
    shared: str = ""
    default: bool = False
    expands: bool = False
    waits: bool = False

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self:
        """Parse what the API server returned."""
        notes = raw["metadata"].get("annotations") or {}
        return cls(
            name=raw["metadata"]["name"],
            provisioner=str(raw.get("provisioner", "")),
            shared=str(notes.get(names.ANNOTATION_SHARED_CLASS, "")).strip().lower(),
            default=notes.get(DEFAULT_CLASS) == "true",
            expands=raw.get("allowVolumeExpansion") is True,
            waits=raw.get("volumeBindingMode") == "WaitForFirstConsumer",
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Content:
    """A model in a claim: its size, and whether its folder is there whole."""

    size_bytes: int
    held: bool = False


Contents = Mapping[str, Content]
"""By the hex digits of the digest."""


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """A shared claim, as the API server shows it.

    Args:
        uid: names it for ever.
        version: for optimistic locking.
        ours: whether it carries our label; one that does not is never touched.
        deleting: whether it has a deletion timestamp.
        phase: Pending, Bound or Lost.
        class_name: of its storage.
        requested_bytes: by its spec.
        capacity_bytes: of its volume; 0 when it has none.
        contents: what lies in it.
        trouble: what its conditions say.
    """

    namespace: str
    name: str
    uid: str
    version: str
    ours: bool
    deleting: bool
    phase: str
    class_name: str
    requested_bytes: int
    capacity_bytes: int = 0
    contents: Contents = dataclasses.field(default_factory=dict)
    trouble: str = ""

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self:
        """Parse what the API server returned; what is odd counts as absent."""
        meta, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
        conditions = [entry for entry in status.get("conditions") or () if entry.get("message")]
        return cls(
            namespace=meta["namespace"],
            name=meta["name"],
            uid=meta["uid"],
            version=meta.get("resourceVersion", ""),
            ours=(meta.get("labels") or {}).get(names.LABEL_SHARED) == "true",
            deleting="deletionTimestamp" in meta,
            phase=str(status.get("phase", "Pending")),
            class_name=str(spec.get("storageClassName") or ""),
            requested_bytes=_bytes((spec.get("resources") or {}).get("requests")),
            capacity_bytes=_bytes(status.get("capacity")),
            contents=_contents((meta.get("annotations") or {}).get(names.ANNOTATION_SHARED_CONTENTS, "")),
            trouble="; ".join(str(entry["message"]) for entry in conditions)[:500],
        )

    @property
    def offered_bytes(self) -> int:
        """How much it holds, or will."""
        return self.capacity_bytes if self.phase == "Bound" and self.capacity_bytes else self.requested_bytes


class Work(enum.StrEnum):
    """What a Job does with a folder of a claim."""

    PULL = "pull"
    DROP = "drop"


class JobState(enum.Enum):
    """How far a Job is."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """A Job of ours, as the API server shows it.

    Args:
        claim: it works on.
        work: what it does there.
        digest: hex digits of the folder.
        state: how far it is.
        ended_at: Unix seconds of a failure; 0 otherwise.
        words: why it failed.
        deleting: whether it has a deletion timestamp.
    """

    namespace: str
    name: str
    uid: str
    claim: str
    work: Work
    digest: str
    state: JobState = JobState.RUNNING
    ended_at: float = 0.0
    words: str = ""
    deleting: bool = False

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self | None:
        """Parse what the API server returned; None when it is none of ours."""
        meta = raw["metadata"]
        work, _, digest = str((meta.get("annotations") or {}).get(names.ANNOTATION_SHARED_WORK, "")).partition(" ")
        if work not in tuple(Work) or not _HEX.fullmatch(digest):
            return None
        found = {entry.get("type"): entry for entry in (raw.get("status") or {}).get("conditions") or ()}
        ended = {kind: entry for kind, entry in found.items() if entry.get("status") == "True"}
        failure = ended.get("Failed", {})
        state = JobState.DONE if "Complete" in ended else JobState.FAILED if failure else JobState.RUNNING
        return cls(
            namespace=meta["namespace"],
            name=meta["name"],
            uid=meta["uid"],
            claim=str((meta.get("labels") or {}).get(names.LABEL_SHARED_CLAIM, "")),
            work=Work(work),
            digest=digest,
            state=state,
            ended_at=_seconds(failure.get("lastTransitionTime")),
            words=f"{failure.get('reason', '')}: {failure.get('message', '')}"[:500] if failure else "",
            deleting="deletionTimestamp" in meta,
        )


def _bytes(raw: object) -> int:
    value = raw.get("storage", "") if isinstance(raw, Mapping) else ""
    try:
        return quantity_bytes(str(value))
    except UsageError:
        return 0


def _contents(text: object) -> dict[str, Content]:
    """Read the annotation; users may write there too, so what is odd is left out."""
    try:
        raw = json.loads(str(text)[: _MAX_CONTENTS * 256]) if text else {}
    except (ValueError, RecursionError):
        raw = {}
    found: dict[str, Content] = {}
    for key, entry in list(raw.items())[:_MAX_CONTENTS] if isinstance(raw, dict) else ():
        size = entry.get("bytes") if isinstance(entry, dict) else None
        if _HEX.fullmatch(key) and isinstance(size, int) and 0 <= size < 1 << 63:
            found[key] = Content(size, entry.get("held") is True)
    return found


def _seconds(raw: object) -> float:
    try:
        return datetime.datetime.fromisoformat(str(raw)).timestamp()
    except ValueError:
        return 0.0
