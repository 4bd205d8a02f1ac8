"""What the operator and the coordinator tell each other (design 4.12), as values and their JSON. Pure.

A want says what should be published; a snapshot says what is being published or has just ended. The coordinator keeps
wants in memory only, so a want that is missing from the snapshot is simply sent again.
"""

import dataclasses
import enum
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Self

from aimodels_core import names
from aimodels_core.nodes import NodeReport

MAX_WANT_BYTES = 256 * 1024
MAX_SECONDS = 1e12
"""Later than any time that is meant."""


class Stage(enum.Enum):
    """How far a publication is."""

    QUEUED = "Queued"
    RESOLVING = "Resolving"
    PLANNING = "Planning"
    MOVING = "Moving"
    COMMITTING = "Committing"
    READY = "Ready"
    WAITING = "Waiting"
    """A try failed for now; the next one is at `next_retry_at`."""
    FAILED = "Failed"
    """Terminal: only another want changes it."""

    @property
    def running(self) -> bool:
        """Whether work is going on or will by itself."""
        return self not in (Stage.READY, Stage.FAILED)


def _text(raw: Mapping[str, Any], key: str, *, default: str = "", limit: int = 4096) -> str:
    value = raw.get(key, default)
    if not isinstance(value, str) or len(value) > limit:
        raise ValueError(f"{key}: want a string of at most {limit} characters, got {type(value).__name__}")
    return value


def _seconds(raw: Mapping[str, Any], key: str) -> float:
    value = raw.get(key, 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_SECONDS:
        raise ValueError(f"{key}: want Unix seconds, got {type(value).__name__}")
    return float(value)


@dataclasses.dataclass(frozen=True, slots=True)
class Want:
    """A model that should be in the store.

    Args:
        uid: names the model for ever; the tag in the repository.
        name: for people.
        generation: of the spec; an older one is refused.
        url: the source as the user wrote it.
        revision: the revision resolved earlier, empty the first time.
        scope: the repository that the model belongs to: `cluster`, `ns/<namespace>`, `local`.
        credential: token for the source; kept in memory only and outside `spec_hash`.
        retry: anything new tries again what failed for good.
        created: Unix seconds; who is older gets space first; 0 for the time of its arrival. Outside `spec_hash`.
    """

    uid: str
    name: str
    generation: int
    url: str
    scope: str
    revision: str = ""
    credential: str = dataclasses.field(default="", repr=False)
    retry: str = ""
    created: float = 0.0

    @property
    def spec_hash(self) -> str:
        """Identify what was asked for, without the credential, the resolved revision and its age."""
        text = json.dumps([self.uid, self.name, self.generation, self.url, self.scope, self.retry])
        return hashlib.sha256(text.encode()).hexdigest()

    @classmethod
    def from_json(cls, uid: str, data: bytes) -> Self:
        """Parse the body of `PUT /v1/models/{uid}`.

        Raises:
            ValueError: not JSON, a field missing, of another type, too long or unknown.
        """
        raw = json.loads(data)
        if not isinstance(raw, dict):
            raise ValueError(f"want: want a JSON object, got {type(raw).__name__}")  # noqa: TRY004 - bad input, not a bug
        unknown = raw.keys() - {"name", "generation", "url", "scope", "revision", "credential", "retry", "created"}
        if unknown:
            raise ValueError(f"want: unknown fields {sorted(unknown)}")
        generation = raw.get("generation", 0)
        if not isinstance(generation, int) or isinstance(generation, bool) or generation < 0:
            raise ValueError("generation: want a number of at least 0")
        want = cls(
            uid=uid,
            name=_text(raw, "name", limit=256),
            generation=generation,
            url=_text(raw, "url", limit=2048),
            scope=_text(raw, "scope", limit=128),
            revision=_text(raw, "revision", limit=256),
            credential=_text(raw, "credential", limit=8192),
            retry=_text(raw, "retry", limit=128),
            created=_seconds(raw, "created"),
        )
        if not want.url:
            raise ValueError("url: want it not empty")
        if not names.is_scope(want.scope):
            raise ValueError("scope: want cluster, local or ns/<namespace>")
        if not all(0x21 <= ord(c) <= 0x7E for c in want.credential):
            raise ValueError("credential: want visible ASCII characters only")
        return want

    def to_json(self) -> bytes:
        """Render the body of the PUT, credential included: only for the wire."""
        raw = dataclasses.asdict(self)
        raw.pop("uid")
        return json.dumps(raw).encode()


@dataclasses.dataclass(frozen=True, slots=True)
class Trouble:
    """Why a publication does not go on: a reason of the closed set of design 2.1, a code, a message."""

    reason: str
    code: str
    message: str
    retryable: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Published:
    """A model that is in the store.

    Args:
        digest: of the manifest.
        media_type: the artifact type.
        size_bytes: of all blobs, the config included.
        resolved: what `status.resolved` shows.
        kind: resolved type of the source.
        notes: warnings and what was left out, for people; bounded.
    """

    digest: str
    media_type: str
    size_bytes: int
    kind: str
    resolved: Mapping[str, Any]
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class PublicationState:
    """One publication in a snapshot.

    Args:
        uid: of the want.
        generation: of the want.
        spec_hash: of the want.
        stage: how far it is.
        revision: resolved revision, as soon as it is known.
        bytes_total: of the selected files, as soon as they are known.
        bytes_done: moved, hashed or reused.
        bytes_reused: not read from the source.
        bytes_transferred: payload bytes that came over the wire, repeats included.
        bytes_per_second: over the last seconds.
        eta_seconds: None when unknown.
        attempt: from 1.
        next_retry_at: Unix seconds, while waiting.
        first_failed_at: Unix seconds of the first failure since the last progress, None when there was none.
        workers: movers that take part.
        trouble: why it waits or has failed.
        published: when ready.
    """

    uid: str
    generation: int
    spec_hash: str
    stage: Stage = Stage.QUEUED
    revision: str = ""
    bytes_total: int = 0
    bytes_done: int = 0
    bytes_reused: int = 0
    bytes_transferred: int = 0
    bytes_per_second: float = 0.0
    eta_seconds: float | None = None
    attempt: int = 1
    next_retry_at: float | None = None
    first_failed_at: float | None = None
    workers: int = 0
    trouble: Trouble | None = None
    published: Published | None = None

    def to_raw(self) -> dict[str, Any]:
        """Render as plain JSON values."""
        raw = dataclasses.asdict(self)
        raw["stage"] = self.stage.value
        return raw

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self:
        """Parse what `to_raw` made.

        Raises:
            KeyError, TypeError, ValueError: not of that shape.
        """
        fields = dict(raw)
        fields["stage"] = Stage(fields["stage"])
        fields["trouble"] = Trouble(**fields["trouble"]) if fields.get("trouble") else None
        if fields.get("published"):
            published = dict(fields["published"])
            published["notes"] = tuple(published["notes"])
            fields["published"] = Published(**published)
        return cls(**fields)


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """`GET /v1/state`: everything the coordinator knows.

    Args:
        epoch: changes with each start of the coordinator.
        version: grows with each change; with the epoch it is the ETag.
        writing: whether this coordinator is the writer of the store, and if not, who is.
        holder: who the writer is.
        publications: running and just ended.
        nodes: what agents tell of the caches of their nodes.
    """

    epoch: str
    version: int
    writing: bool
    holder: str
    publications: tuple[PublicationState, ...]
    nodes: tuple[NodeReport, ...] = ()

    @property
    def etag(self) -> str:
        """Render the entity tag (RFC 9110, section 8.8.3)."""
        return f'"{self.epoch}-{self.version}"'

    def to_json(self) -> bytes:
        """Render as JSON."""
        raw = {
            "epoch": self.epoch,
            "version": self.version,
            "writing": self.writing,
            "holder": self.holder,
            "publications": [p.to_raw() for p in self.publications],
            "nodes": [node.to_raw() for node in self.nodes],
        }
        return json.dumps(raw, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Parse what `to_json` made.

        Raises:
            KeyError, TypeError, ValueError: not of that shape.
        """
        raw = json.loads(data)
        publications = tuple(PublicationState.from_raw(p) for p in raw["publications"])
        nodes = tuple(NodeReport.from_raw(node) for node in raw.get("nodes", ()))
        writing, holder = bool(raw["writing"]), str(raw["holder"])
        return cls(str(raw["epoch"]), int(raw["version"]), writing, holder, publications, nodes)
