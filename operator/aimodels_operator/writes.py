"""What a decision asks for, as data: the one executor in `reconcile` carries it out. Pure."""

import dataclasses
import datetime
import enum
from collections.abc import Mapping
from typing import Any

from aimodels_core.messages import Want


class Urgency(enum.IntEnum):
    """Order in which writes to the API server are let through (design 5)."""

    UNGATE = 0
    PHASE = 1
    PROGRESS = 2
    EVENT = 3


@dataclasses.dataclass(frozen=True, slots=True)
class SetFinalizers:
    """Replace the finalizers of the object."""

    finalizers: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class PatchStatus:
    """Merge something into the status of the object.

    Args:
        patch: JSON merge patch of the status (RFC 7396).
        urgency: PROGRESS may wait until the last write to the object is 5 s old.
    """

    patch: Mapping[str, Any]
    urgency: Urgency


@dataclasses.dataclass(frozen=True, slots=True)
class PutWant:
    """Tell the coordinator what should be published."""

    want: Want


@dataclasses.dataclass(frozen=True, slots=True)
class Remove:
    """Have the coordinator stop the publication and remove tag and manifest."""

    uid: str
    scope: str


@dataclasses.dataclass(frozen=True, slots=True)
class ReadBack:
    """Read a published artifact through the registry, as a node would; nothing when that goes on already.

    Args:
        scope: repository of the model.
        digest: of the manifest.
    """

    scope: str
    digest: str


@dataclasses.dataclass(frozen=True, slots=True)
class Emit:
    """Post an Event about the object.

    Args:
        warning: or normal.
        reason: CamelCase.
        message: for people.
    """

    warning: bool
    reason: str
    message: str


@dataclasses.dataclass(frozen=True, slots=True)
class Again:
    """Decide again after a time, even if nothing happens."""

    after: datetime.timedelta


Write = SetFinalizers | PatchStatus | PutWant | Remove | ReadBack | Emit | Again
