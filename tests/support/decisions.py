"""Looking at decisions about a Model: what is observed, the status that comes of it, that a second look is quiet."""

import dataclasses
import datetime
from typing import Any

from aimodels_core.api import MODEL, Kind, ModelObject, UrlSource
from aimodels_core.errors import NotPublished
from aimodels_core.messages import PublicationState, Published, Stage, Trouble, Want
from aimodels_operator import model as decisions
from aimodels_operator.model import Link, Observed
from aimodels_operator.readings import Reading
from aimodels_operator.writes import Emit, PatchStatus, SetFinalizers
from tests.support import definitions
from tests.support.modelobjects import NOW, written

LINK = Link(epoch="e1")
DIGEST = "sha256:" + "a" * 64
FULL = {
    "format": "Safetensors",
    "family": "bert",
    "architecture": "BertModel",
    "parameterCount": 5,
    "supportedEndpointTypes": ["Embeddings"],
}
PUBLISHED = Published(DIGEST, "application/x", 42, "HuggingFace", FULL)
UNAVAILABLE = Trouble("PublicationFailed", "SourceUnavailable", "huggingface.co: answered 503", retryable=True)


def want_of(found: ModelObject, token: str = "") -> Want:
    """The want of an object that names a url."""
    assert isinstance(found.source, UrlSource)
    return decisions.want_of(found, found.source, token)


def state_of(found: ModelObject, stage: Stage, **fields: Any) -> PublicationState:
    """What the coordinator says of an object."""
    return PublicationState(found.uid, found.generation, want_of(found).spec_hash, stage, **fields)


def seen(raw: dict[str, Any], *, kind: Kind = MODEL, stage: Stage | None = None, **fields: Any) -> Observed:
    """Look at an object; `stage` and the fields of a publication say what the coordinator says."""
    found = ModelObject.from_raw(kind, raw)
    own = {field.name for field in dataclasses.fields(Observed)}
    about = {name: fields.pop(name) for name in list(fields) if name not in own}
    state = state_of(found, stage, **about) if stage else None
    return Observed(found, **{"now": NOW, "link": LINK, "publication": state, **fields})


def after(raw: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The status after one decision; it is valid, and a second decision changes nothing."""
    kind = fields.get("kind", MODEL)
    new = written(raw, decisions.decide(seen(raw, **fields)))
    node = definitions.schema(kind.plural)["properties"]["status"]
    assert list(definitions.problems(new["status"], node)) == []
    again = decisions.decide(seen(new, **fields))
    assert [write for write in again if isinstance(write, PatchStatus | SetFinalizers | Emit)] == []
    status: dict[str, Any] = new["status"]
    return status


def condition(status: dict[str, Any], kind: str) -> tuple[str, str, str]:
    """Status, reason and message of a condition."""
    (found,) = [c for c in status["conditions"] if c["type"] == kind]
    return found["status"], found["reason"], found["message"]


def of_kind(writes: list[Any], kind: type[Any]) -> list[Any]:
    """The writes of one kind."""
    return [write for write in writes if isinstance(write, kind)]


def seconds_ago(seconds: float) -> float:
    """A time, in Unix seconds."""
    return NOW.timestamp() - seconds


def unreadable(*, first_seconds_ago: float, next_in_seconds: float, digest: str = DIGEST) -> Reading:
    """What is known after two failures."""
    first = NOW - datetime.timedelta(seconds=first_seconds_ago)
    error = NotPublished("blob sha256:b: not in the registry", code="StoresDiffer")
    return Reading().failed(digest, error, first, 1.0).failed(digest, error, NOW, next_in_seconds)
