"""Every name that others read: annotations, labels, finalizers, repositories, tags, and keys within a store.

Nobody else formats one by hand. Nothing here reads or writes.
"""

import enum
import hashlib
import re

from aimodels_core.digest import Digest
from aimodels_core.errors import UsageError

GROUP = "ai.deckhouse.io"

# What users put on their workloads, and what they read there (design 2.3).
ANNOTATION_MODEL = f"{GROUP}/model"
ANNOTATION_CLUSTER_MODEL = f"{GROUP}/clustermodel"
ANNOTATION_RESOLVED_MODELS = f"{GROUP}/resolved-models"
ANNOTATION_BLOCKED_REASON = f"{GROUP}/model-delivery-blocked-reason"
ANNOTATION_BLOCKED_MESSAGE = f"{GROUP}/model-delivery-blocked-message"
ANNOTATION_RETRY = f"{GROUP}/retry"
ANNOTATION_PREWARM = f"{GROUP}/prewarm"
ANNOTATION_SHARED_CLASS = f"{GROUP}/shared"
LABEL_DELIVERY = f"{GROUP}/model-delivery"
LABEL_CACHE = f"{GROUP}/model-cache"
SCHEDULING_GATE = f"{GROUP}/model-delivery"
FINALIZER = f"{GROUP}/model-cleanup"
CSI_DRIVER = f"node-cache.ai-models.{GROUP.removeprefix('ai.')}"

# What a container finds (design 2.3).
CACHE_ROOT = "/data/modelcache"
MODELS_DIR = f"{CACHE_ROOT}/models"
VARIABLE_MODELS_DIR = "AI_MODELS_MODELS_DIR"
VARIABLE_MODELS = "AI_MODELS_MODELS"

# What webhook, operator and node driver tell each other through a Pod (design 6).
ATTRIBUTE_MODEL = f"{GROUP}/model"
ANNOTATION_RESOLVED_DIGEST = f"{GROUP}/resolved-digest-"
VARIABLE_DIGEST = "AI_MODELS_DIGEST_"
VOLUME_PREFIX = "ai-models-"
NODE_NAMESPACE = "d8-ai-models-node"
NODE_SECRET = "ai-models-node"  # noqa: S105 - the name of one
"""Secret in that namespace: what agents need to join Ray and to trust our servers."""
RAY_NODE_LABEL = "ai-models/node"

# On shared claims, and what fills them (design 6, "SharedPVC").
LABEL_SHARED = f"{GROUP}/shared-pvc"
LABEL_SHARED_CLAIM = f"{GROUP}/shared-claim"
ANNOTATION_SHARED_CONTENTS = f"{GROUP}/shared-contents"
ANNOTATION_SHARED_WORK = f"{GROUP}/shared-work"
BY_DIGEST = "by-digest"

# In a manifest: the rules by which it was made (design 4.11).
ANNOTATION_RECIPE = f"{GROUP}/recipe"

# Repositories are trust scopes (design 4.1).
CLUSTER = "cluster"
PUBLIC = "public"
LOCAL = "local"

# Keys under which a Secret may have the token of a source (design 2.2).
TOKEN_KEYS = ("token", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")

MAX_LABEL_CHARS = 63
MAX_TAG_CHARS = 128
MAX_NAME_CHARS = 512

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
# Lower case only: a folder store may lie on a file system that folds case.
_PLAIN_TAG = re.compile(r"[a-z0-9_][a-z0-9._-]{0,127}")
_MAPPED_TAG = re.compile(r".*--[0-9a-f]{32}")
_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_REGISTRY = "docker/registry/v2"
_OWN = "ai-models/v1"


class HomeSecret(enum.StrEnum):
    """Secrets of the module's namespace, all made by the leading operator; the last four mirror the administrator's."""

    SERVING_ROOT = "ai-models-serving-root"
    COORDINATOR_TLS = "ai-models-coordinator-tls"
    DMCR_TLS = "ai-models-dmcr-tls"
    WEBHOOK_TLS = "ai-models-webhook-tls"
    COORDINATOR = "ai-models-coordinator"
    ISSUER_ROOT = "ai-models-token-root"
    ISSUER = "ai-models-token-signer"
    RAY = "ai-models-ray"
    S3 = "ai-models-s3"
    S3_CA = "ai-models-s3-ca"
    HUB = "ai-models-hub"
    HUB_CA = "ai-models-hub-ca"


def namespace_repository(namespace: str) -> str:
    """Name the repository of a namespace's models.

    Raises:
        UsageError: not a namespace name.

    >>> namespace_repository("ai-demo")
    'ns/ai-demo'
    """
    if not _DNS_LABEL.fullmatch(namespace):
        raise UsageError(f"namespace: want a DNS label, got {namespace[:80]!r}")
    return f"ns/{namespace}"


def is_scope(repository: str) -> bool:
    """Say whether a model may belong to a repository; `public` belongs to nobody.

    >>> is_scope("ns/ai-demo"), is_scope("ns/../x"), is_scope("public")
    (True, False, False)
    """
    namespace = repository.removeprefix("ns/")
    named = namespace != repository and _DNS_LABEL.fullmatch(namespace) is not None
    return named or repository in (CLUSTER, LOCAL)


def shared_claim(kind: str, name: str) -> str:
    """Name the claim that a namespace shares for a model; its kind is `model` or `clustermodel`.

    >>> shared_claim("model", "bge-m3"), len(shared_claim("clustermodel", "m" * 200))
    ('ai-models-model-bge-m3', 63)
    """
    whole = f"{VOLUME_PREFIX}{kind}-{name}"
    if len(whole) <= MAX_LABEL_CHARS:
        return whole
    mark = hashlib.sha256(whole.encode()).hexdigest()[:16]
    return f"{whole[: MAX_LABEL_CHARS - 17].rstrip('-.')}-{mark}"


def uid_tag(uid: str) -> str:
    """Name the tag of a Model object.

    Raises:
        UsageError: not a Kubernetes uid.
    """
    if not _UID.fullmatch(uid):
        raise UsageError(f"uid: want a lower-case UUID, got {uid[:80]!r}")
    return uid


def model_tag(name: str) -> str:
    """Map the name a person gave to a tag; no two names share one.

    A lower-case name that is a valid tag is its own tag. Any other becomes a readable stem and half of the name's
    sha256; names that already look like that are mapped too, so the two kinds never meet. The original name is kept
    at `name_record(tag)`.

    Raises:
        UsageError: empty, too long, or with control characters.

    >>> model_tag("bge-m3")
    'bge-m3'
    >>> model_tag("Foo/Bar") == model_tag("foo/bar")
    False
    """
    if not name or len(name) > MAX_NAME_CHARS or any(ord(c) < 0x20 or ord(c) == 0x7F for c in name):
        raise UsageError(f"name: want 1 to {MAX_NAME_CHARS} printable characters, got {name[:80]!r}")
    if _PLAIN_TAG.fullmatch(name) and not _MAPPED_TAG.fullmatch(name):
        return name
    mark = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    stem = re.sub(r"[^a-z0-9._]+", "-", name.lower()).strip("-.")[: MAX_TAG_CHARS - 34]
    return f"{stem or 'model'}--{mark}"


def is_mapped(tag: str) -> bool:
    """Say whether a tag stands for a name that could not be a tag itself."""
    return bool(_MAPPED_TAG.fullmatch(tag))


def name_record(tag: str) -> str:
    """Key of the object that keeps the original name of a mapped tag."""
    return f"{_OWN}/names/{tag}"


# The layout of distribution's registry (distribution v3, registry/storage/paths.go, "pathFor").


def blobs_prefix() -> str:
    """Prefix of all blob data."""
    return f"{_REGISTRY}/blobs/sha256/"


def blob_data(digest: Digest) -> str:
    """Key of a blob's bytes.

    >>> blob_data(Digest.of(b""))[:37]
    'docker/registry/v2/blobs/sha256/e3/e3'
    """
    return f"{_REGISTRY}/blobs/sha256/{digest.hex[:2]}/{digest.hex}/data"


def blob_of_key(key: str) -> Digest | None:
    """Parse the key of a blob's bytes; None for any other key.

    >>> blob_of_key(blob_data(Digest.of(b"x"))) == Digest.of(b"x")
    True
    """
    parts = key.removeprefix(blobs_prefix()).split("/")
    if len(parts) != 3 or parts[2] != "data" or not re.fullmatch(r"[0-9a-f]{64}", parts[1]) or parts[0] != parts[1][:2]:
        return None
    return Digest(parts[1])


def repositories_prefix() -> str:
    """Prefix of all repositories."""
    return f"{_REGISTRY}/repositories/"


def layer_link(repository: str, digest: Digest) -> str:
    """Key that makes a blob readable within a repository."""
    return f"{layers_prefix(repository)}{digest.hex}/link"


def layers_prefix(repository: str) -> str:
    """Prefix of a repository's layer links."""
    return f"{_REGISTRY}/repositories/{repository}/_layers/sha256/"


def revision_link(repository: str, digest: Digest) -> str:
    """Key that makes a manifest readable by its digest within a repository."""
    return f"{revisions_prefix(repository)}{digest.hex}/link"


def revisions_prefix(repository: str) -> str:
    """Prefix of a repository's manifest links."""
    return f"{_REGISTRY}/repositories/{repository}/_manifests/revisions/sha256/"


def tags_prefix(repository: str) -> str:
    """Prefix of a repository's tags."""
    return f"{_REGISTRY}/repositories/{repository}/_manifests/tags/"


def tag_current_link(repository: str, tag: str) -> str:
    """Key of the commit point: what a tag names now."""
    return f"{tags_prefix(repository)}{tag}/current/link"


def tag_index_link(repository: str, tag: str, digest: Digest) -> str:
    """Key that records that a tag once named a manifest."""
    return f"{tags_prefix(repository)}{tag}/index/sha256/{digest.hex}/link"


# What ai-models keeps in the same store beside the registry.


def checkpoint(digest: Digest, scope: str, run: str) -> str:
    """Key of one checkpoint of a blob in transfer; `run` is one path component."""
    return f"{checkpoints_prefix(digest, scope)}{run}.json"


def checkpoints_prefix(digest: Digest | None = None, scope: str = "") -> str:
    """Prefix of a blob's checkpoints within one trust scope, of all that blob's, or of all."""
    if digest is None:
        return f"{_OWN}/checkpoints/"
    return f"{_OWN}/checkpoints/{digest.hex}/{scope}/" if scope else f"{_OWN}/checkpoints/{digest.hex}/"


def staging(name: str) -> str:
    """Key of bytes whose digest is not known yet; `name` is one path component."""
    return f"{staging_prefix()}{name}"


def staging_prefix() -> str:
    """Prefix of all staged bytes."""
    return f"{_OWN}/staging/"


def known_files(identity: str) -> str:
    """Key of what was learnt of the files of one source at one revision; `identity` names both."""
    return f"{_OWN}/known/{hashlib.sha256(identity.encode()).hexdigest()}.json"


def writer_lease(number: int) -> str:
    """Key of the n-th writer lease; sorted by number as text too."""
    return f"{writer_prefix()}{number:012d}"


def writer_prefix() -> str:
    """Prefix of all writer leases."""
    return f"{_OWN}/writer/"


def probe_prefix() -> str:
    """Prefix of the objects that a probe makes and removes."""
    return f"{_OWN}/probe/"


def probe_findings(identity: str) -> str:
    """Key of what a probe found; `identity` says where it looked."""
    return f"{probe_prefix()}{hashlib.sha256(identity.encode()).hexdigest()}.json"


TEMPORARY = "ai-models/tmp"
"""Folder for unfinished files of a folder store."""
