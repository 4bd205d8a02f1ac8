"""The Kubernetes API of ai-models as types: kinds, phases, conditions, reasons, specs and objects (design 2.1). Pure.

The CRDs of the chart say the same to the API server; a test compares the two. What a status says about a publication is
decided by the operator.
"""

import dataclasses
import datetime
import enum
from collections.abc import Mapping, Sequence
from typing import Any, Self

from aimodels_core import names
from aimodels_core.errors import UsageError

VERSION = "v1alpha1"
API_VERSION = f"{names.GROUP}/{VERSION}"
CATEGORY = "ai-models"

MAX_URL_CHARS = 2048
MAX_NAME_CHARS = 253
MAX_SECRET_NAME_CHARS = 253
MAX_MESSAGE_CHARS = 4096
"""Of a condition; what is longer is cut, so that a status stays small (O-82)."""
MAX_RETRY_CHARS = 128
MAX_PREWARM_CHARS = 1100


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """One kind of the group.

    Args:
        name: CamelCase.
        plural: as in URLs.
        short_names: for kubectl.
        namespaced: or cluster-wide.
    """

    name: str
    plural: str
    short_names: tuple[str, ...]
    namespaced: bool

    @property
    def singular(self) -> str:
        """Lower-case name, as kubectl takes it."""
        return self.name.lower()

    @property
    def crd(self) -> str:
        """Name of the definition object."""
        return f"{self.plural}.{names.GROUP}"


MODEL = Kind("Model", "models", ("mdl",), namespaced=True)
CLUSTER_MODEL = Kind("ClusterModel", "clustermodels", ("cmdl",), namespaced=False)
CATALOG_SOURCE = Kind("ModelCatalogSource", "modelcatalogsources", ("mcs",), namespaced=False)
NODE_CACHE = Kind("NodeModelCache", "nodemodelcaches", ("nmc",), namespaced=False)

MODEL_KINDS = (MODEL, CLUSTER_MODEL)
KINDS = (MODEL, CLUSTER_MODEL, CATALOG_SOURCE, NODE_CACHE)


class Phase(enum.Enum):
    """`status.phase`: a one-word summary of the conditions, for people."""

    PENDING = "Pending"
    WAIT_FOR_UPLOAD = "WaitForUpload"
    PUBLISHING = "Publishing"
    READY = "Ready"
    FAILED = "Failed"
    DELETING = "Deleting"


class ConditionType(enum.Enum):
    """Conditions that ai-models writes; those of others are left alone."""

    ARTIFACT_RESOLVED = "ArtifactResolved"
    METADATA_RESOLVED = "MetadataResolved"
    READY = "Ready"
    PICKLE_WEIGHTS = "PickleWeights"
    """True when the published weights can run code when they are loaded; absent otherwise."""


class Reason(enum.Enum):
    """The closed set of reasons of `ArtifactResolved`, `MetadataResolved` and `Ready`."""

    PENDING = "Pending"
    WAITING_FOR_USER_UPLOAD = "WaitingForUserUpload"
    PUBLISHING = "Publishing"
    ARTIFACT_PUBLISHED = "ArtifactPublished"
    METADATA_CALCULATED = "ModelMetadataCalculated"
    METADATA_PARTIAL = "ModelMetadataPartial"
    READY = "Ready"
    PUBLICATION_FAILED = "PublicationFailed"
    UNSUPPORTED_SOURCE = "UnsupportedSource"
    MANIFEST_INVALID = "ManifestInvalid"
    INSUFFICIENT_STORAGE = "InsufficientStorage"
    CATALOG_AUTH_FAILED = "CatalogAuthFailed"
    CATALOG_TLS_INVALID = "CatalogTLSInvalid"
    CATALOG_SOURCE_NOT_READY = "CatalogSourceNotReady"


FAILURES = frozenset(
    {
        Reason.PUBLICATION_FAILED,
        Reason.UNSUPPORTED_SOURCE,
        Reason.MANIFEST_INVALID,
        Reason.INSUFFICIENT_STORAGE,
        Reason.CATALOG_AUTH_FAILED,
        Reason.CATALOG_TLS_INVALID,
        Reason.CATALOG_SOURCE_NOT_READY,
    }
)
"""Reasons that make the phase Failed."""

PICKLE_REASON = "PickleWeights"

FORMATS = ("Safetensors", "GGUF", "Diffusers", "PyTorch")
SOURCE_TYPES = ("HuggingFace", "Ollama", "Upload", "Catalog")
ARTIFACT_KINDS = ("OCI",)
ENDPOINT_TYPES = (
    *("Chat", "TextGeneration", "Embeddings", "Rerank", "SpeechToText", "TextToSpeech", "Translation"),
    *("ImageClassification", "ObjectDetection", "ImageSegmentation", "ImageToText", "VisualQuestionAnswering"),
    *("ImageGeneration", "VideoGeneration", "AudioGeneration"),
)
FEATURES = (
    *("VisionInput", "AudioInput", "AudioOutput", "ImageOutput", "VideoInput", "VideoOutput", "MultiModalInput"),
    "ToolCalling",
)
PUBLICATION_STAGES = ("Queued", "Resolving", "Planning", "Moving", "Committing", "Waiting", "Failed", "Ready")
CATALOG_SOURCE_TYPES = ("cluster", "HuggingFace")
CATALOG_SOURCE_PHASES = ("Pending", "Ready", "Failed")
CACHED_MODEL_STATES = ("Held", "Warming")


@dataclasses.dataclass(frozen=True, slots=True)
class UrlSource:
    """A model at an address.

    Args:
        url: as the user wrote it.
        secret_name: of the Secret with a token, in the Model's namespace; empty for none.
    """

    url: str
    secret_name: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class UploadSource:
    """A model that its owner sends."""


@dataclasses.dataclass(frozen=True, slots=True)
class CatalogSource:
    """A model of another cluster's catalog.

    Args:
        name: of the model there.
        source_name: of the ModelCatalogSource; empty for the only one that is Ready.
    """

    name: str
    source_name: str = ""


ModelSource = UrlSource | UploadSource | CatalogSource


def parse_source(spec: Mapping[str, Any], kind: Kind) -> ModelSource:
    """Parse `spec.source`. The API server refuses what is refused here, but objects may be older than its rules.

    Raises:
        UsageError: says what to write instead.
    """
    raw = spec.get("source")
    source = raw if isinstance(raw, Mapping) else {}
    given = [name for name in ("url", "upload", "catalog") if name in source]
    if len(given) != 1:
        got = " and ".join(given) or "none"
        raise UsageError(f"spec.source: want exactly one of url, upload and catalog, got {got}")
    secret = _text(_mapping(source.get("authSecretRef")).get("name"), "spec.source.authSecretRef.name")
    if secret and (not kind.namespaced or given != ["url"]):
        raise UsageError("spec.source.authSecretRef: want it only beside url, and only in a Model")
    if given == ["upload"]:
        return UploadSource()
    if given == ["catalog"]:
        catalog = _mapping(source["catalog"])
        name = _text(catalog.get("name"), "spec.source.catalog.name")
        if not name:
            raise UsageError("spec.source.catalog.name: want the name of a model in the catalog, got none")
        return CatalogSource(name, _text(catalog.get("sourceName"), "spec.source.catalog.sourceName"))
    url = _text(source["url"], "spec.source.url", limit=MAX_URL_CHARS)
    if not url:
        raise UsageError("spec.source.url: want an address, got none")
    return UrlSource(url, secret)


@dataclasses.dataclass(frozen=True, slots=True)
class Condition:
    """A condition of a status (Kubernetes API conventions, "Typical status properties").

    Args:
        type: CamelCase.
        status: `True`, `False` or `Unknown`.
        reason: CamelCase.
        message: for people.
        transitioned_at: when `status` changed last, as in the object.
        observed_generation: of the spec that was looked at.
    """

    type: str
    status: str
    reason: str
    message: str = ""
    transitioned_at: str = ""
    observed_generation: int = 0

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self:
        """Parse what the API server returned; what is missing or of another type is empty."""
        generation = raw.get("observedGeneration")
        return cls(
            type=_lenient(raw.get("type")),
            status=_lenient(raw.get("status")),
            reason=_lenient(raw.get("reason")),
            message=_lenient(raw.get("message")),
            transitioned_at=_lenient(raw.get("lastTransitionTime")),
            observed_generation=generation if isinstance(generation, int) else 0,
        )

    def to_raw(self) -> dict[str, Any]:
        """Render for the API server."""
        return {
            "type": self.type,
            "status": self.status,
            "reason": self.reason,
            "message": self.message,
            "lastTransitionTime": self.transitioned_at,
            "observedGeneration": self.observed_generation,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class ModelObject:
    """A Model or ClusterModel as the API server returned it, parsed once.

    Args:
        kind: which of the two.
        uid: names it for ever.
        name: in its namespace.
        namespace: empty for a ClusterModel.
        generation: of the spec.
        resource_version: for optimistic locking.
        deleting: whether it has a deletion timestamp.
        finalizers: in order.
        retry: value of the retry annotation, cut to a bounded length.
        prewarm: value of the prewarm annotation, cut to a bounded length.
        source: what the spec names, or why it cannot be told.
        status: as it is, not interpreted.
        created_at: Unix seconds; 0 when it cannot be told.
    """

    kind: Kind
    uid: str
    name: str
    namespace: str
    generation: int
    resource_version: str
    deleting: bool
    finalizers: tuple[str, ...]
    retry: str
    prewarm: str
    source: ModelSource | UsageError
    status: Mapping[str, Any]
    created_at: float = 0.0

    @classmethod
    def from_raw(cls, kind: Kind, raw: Mapping[str, Any]) -> Self:
        """Parse an object of the API server.

        Raises:
            KeyError, TypeError: no object of the API server.
        """
        meta = raw["metadata"]
        annotations = _mapping(meta.get("annotations"))
        try:
            source: ModelSource | UsageError = parse_source(_mapping(raw.get("spec")), kind)
        except UsageError as error:
            source = error
        return cls(
            kind=kind,
            uid=meta["uid"],
            name=meta["name"],
            namespace=meta.get("namespace", ""),
            generation=int(meta.get("generation", 0)),
            resource_version=meta.get("resourceVersion", ""),
            deleting="deletionTimestamp" in meta,
            finalizers=tuple(meta.get("finalizers") or ()),
            retry=str(annotations.get(names.ANNOTATION_RETRY, ""))[:MAX_RETRY_CHARS],
            prewarm=str(annotations.get(names.ANNOTATION_PREWARM, ""))[:MAX_PREWARM_CHARS],
            source=source,
            status=_mapping(raw.get("status")),
            created_at=_unix_seconds(meta.get("creationTimestamp")),
        )

    @property
    def scope(self) -> str:
        """Repository that the model belongs to (design 4.1)."""
        return names.namespace_repository(self.namespace) if self.kind.namespaced else names.CLUSTER

    @property
    def path(self) -> str:
        """Name for people: `namespace/name`, or the name alone."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    def conditions(self) -> dict[str, Condition]:
        """Conditions of the status by type, whoever wrote them."""
        raw = self.status.get("conditions")
        entries: Sequence[Any] = raw if isinstance(raw, list) else ()
        found = [Condition.from_raw(entry) for entry in entries if isinstance(entry, Mapping)]
        return {condition.type: condition for condition in found if condition.type}

    def condition(self, kind: ConditionType) -> Condition | None:
        """One condition of the status; None when it is not there."""
        raw = self.status.get("conditions")
        for entry in reversed(raw) if isinstance(raw, list) else ():
            if isinstance(entry, Mapping) and entry.get("type") == kind.value:
                return Condition.from_raw(entry)
        return None


def _mapping(raw: object) -> Mapping[str, Any]:
    return raw if isinstance(raw, Mapping) else {}


def _unix_seconds(raw: object) -> float:
    """Seconds of a time as Kubernetes writes it (RFC 3339); 0 for anything else."""
    try:
        return max(0.0, datetime.datetime.fromisoformat(_lenient(raw)).timestamp())
    except (ValueError, OverflowError):
        return 0.0


def _lenient(raw: object) -> str:
    return raw if isinstance(raw, str) else ""


def _text(raw: object, field: str, *, limit: int = MAX_NAME_CHARS) -> str:
    if raw is None:
        return ""
    if not isinstance(raw, str) or len(raw) > limit:
        raise UsageError(f"{field}: want a string of at most {limit} characters, got {type(raw).__name__}")
    return raw
