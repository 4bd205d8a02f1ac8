"""Which Pod gets which artifact: decided from what kubelet asks, what the API server says, what is remembered. Pure.

An attribute names a model and opens nothing: only what our operator wrote into the live Pod does, or, while the API
server does not answer, the record that was made from it.
"""

import dataclasses
import enum
import json
import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from aimodels_core import names
from aimodels_core.digest import Digest
from aimodels_nodecache.podrecords import PodRecord, RecordedModel

POD_NAME = "csi.storage.k8s.io/pod.name"
POD_NAMESPACE = "csi.storage.k8s.io/pod.namespace"
POD_UID = "csi.storage.k8s.io/pod.uid"
EPHEMERAL = "csi.storage.k8s.io/ephemeral"

_MAX_MODELS = 256
_MAX_RESOLVED_CHARS = 256 * 1024
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_UID = re.compile(r"[A-Za-z0-9][-A-Za-z0-9]{0,63}")
_VOLUMES = ("volumes", "kubernetes.io~csi")


class Code(enum.Enum):
    """Answers of this driver other than OK; names are those of gRPC's codes."""

    INVALID_ARGUMENT = "wrong in itself"
    NOT_FOUND = "there is no such Pod"
    PERMISSION_DENIED = "the Pod does not get it"
    UNAVAILABLE = "not yet: ask again"
    ABORTED = "asked for already"
    INTERNAL = "the node cannot do it"


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """No, and why.

    Args:
        code: for kubelet.
        words: for the Events of the Pod.
    """

    code: Code
    words: str


@dataclasses.dataclass(frozen=True, slots=True)
class NotYet:
    """What is missing may come within the call.

    Args:
        words: what is waited for.
    """

    words: str


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a volume of a Pod is on its node, by kubelet's own layout.

    Args:
        uid: of the Pod.
        target: where the volume is mounted.
    """

    uid: str
    target: PurePosixPath


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """A volume that is to be published.

    Args:
        volume: its id.
        place: where.
        namespace: of the Pod.
        pod: its name.
        model: name of the model, as the Pod's volume has it.
    """

    volume: str
    place: Place
    namespace: str
    pod: str
    model: str

    @property
    def words(self) -> str:
        """The Pod, for people."""
        return f"Pod {self.namespace}/{self.pod}"


@dataclasses.dataclass(frozen=True, slots=True)
class LivePod:
    """A Pod as the API server has it now.

    Args:
        uid: of this very Pod.
        node: where it is bound to; empty for nowhere.
        deleting: whether it is to go.
        resolved: what our operator wrote that it gets; None before that.
    """

    uid: str
    node: str
    deleting: bool = False
    resolved: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Away:
    """The API server does not say.

    Args:
        words: why.
    """

    words: str


@dataclasses.dataclass(frozen=True, slots=True)
class Granted:
    """What a Pod gets.

    Args:
        digest: of the artifact that is mounted.
        record: what is to be remembered of the Pod.
        deleting: whether it is to go: nothing is worth waiting for then.
    """

    digest: Digest
    record: PodRecord
    deleting: bool = False


def place_of(target: str, kubelet_dir: str) -> Place | None:
    """Find the Pod of a target path; None when it is no volume of a CSI driver below kubelet's folder.

    >>> place_of("/k/pods/u-1/volumes/kubernetes.io~csi/m/mount", "/k").uid
    'u-1'
    >>> place_of("/k/pods/u-1/volumes/kubernetes.io~csi/../../etc", "/k") is None
    True
    """
    path = PurePosixPath(target)
    parts = path.parts
    root = PurePosixPath(kubelet_dir).parts
    rest = parts[len(root) :]
    if parts[: len(root)] != root or len(rest) != 6 or ".." in parts or "\0" in target:
        return None
    if rest[0] != "pods" or rest[2:4] != _VOLUMES or not _UID.fullmatch(rest[1]):
        return None
    return Place(rest[1], path)


def asked(
    volume: str, target: str, context: Mapping[str, str], *, mountable: bool, kubelet_dir: str
) -> Asked | Refusal:
    """Check a request to publish.

    Args:
        volume: the volume's id.
        target: where.
        context: of the volume: its attributes, and the Pod as kubelet has it.
        mountable: whether a file system is asked for, not a block device.
        kubelet_dir: kubelet's folder.
    """
    if not volume or not target or not mountable:
        missing = "volume_id" if not volume else "target_path" if not target else "volume_capability of a file system"
        return Refusal(Code.INVALID_ARGUMENT, f"{missing}: want one, got nothing")
    place = place_of(target, kubelet_dir)
    if place is None:
        return Refusal(Code.INVALID_ARGUMENT, f"target_path: want a volume of a Pod below {kubelet_dir}/pods")
    if context.get(EPHEMERAL) != "true":
        return Refusal(Code.INVALID_ARGUMENT, "volume: want an inline volume of a Pod, got another one")
    namespace, pod, uid = (context.get(key, "") for key in (POD_NAMESPACE, POD_NAME, POD_UID))
    model = context.get(names.ATTRIBUTE_MODEL, "")
    if not (_NAMESPACE.fullmatch(namespace) and _NAME.fullmatch(pod) and uid):
        return Refusal(Code.INVALID_ARGUMENT, "volume: want the Pod's namespace, name and uid from kubelet")
    if not _NAME.fullmatch(model):
        return Refusal(
            Code.INVALID_ARGUMENT, f"attribute {names.ATTRIBUTE_MODEL}: want a model's name, got {model[:80]!r}"
        )
    if uid != place.uid:
        return Refusal(Code.PERMISSION_DENIED, "target_path: it belongs to another Pod")
    return Asked(volume, place, namespace, pod, model)


def grant(wanted: Asked, live: LivePod | Away | None, known: PodRecord | None, node: str) -> Granted | Refusal | NotYet:
    """Say what a Pod gets.

    Args:
        wanted: what is asked for.
        live: the Pod of that name; None when there is none.
        known: what is remembered of the Pod with that uid.
        node: this node.
    """
    if isinstance(live, Away):
        return _remembered(wanted, live, known)
    if live is None:
        return Refusal(Code.NOT_FOUND, f"{wanted.words}: there is none")
    if live.uid != wanted.place.uid:
        return Refusal(Code.PERMISSION_DENIED, f"{wanted.words}: another one has this name now")
    if live.node != node:
        return Refusal(Code.PERMISSION_DENIED, f"{wanted.words}: it is not on node {node}")
    if live.resolved is None:
        words = f"{wanted.words}: it was not told yet what it gets"
        return Refusal(Code.UNAVAILABLE, f"{words}, and is being deleted") if live.deleting else NotYet(words)
    models = resolved(live.resolved)
    if models is None:
        return Refusal(Code.PERMISSION_DENIED, f"{wanted.words}: {names.ANNOTATION_RESOLVED_MODELS} cannot be read")
    record = PodRecord(live.uid, wanted.namespace, wanted.pod, models)
    return _of_record(wanted, record, deleting=live.deleting)


def resolved(text: str) -> tuple[RecordedModel, ...] | None:
    """Read what our operator wrote into a Pod; None when it cannot be read.

    >>> resolved('[{"name":"m","digest":"sha256:%s"}]' % ("0" * 64))[0].name
    'm'
    >>> resolved("[1]") is None
    True
    """
    if len(text) > _MAX_RESOLVED_CHARS:
        return None
    try:
        found = [(entry["name"], Digest.parse(entry["digest"])) for entry in json.loads(text)]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    good = all(isinstance(name, str) and _NAME.fullmatch(name) for name, _ in found)
    if not good or len(found) > _MAX_MODELS or len({name for name, _ in found}) < len(found):
        return None
    return tuple(RecordedModel(name, digest) for name, digest in found)


def _remembered(wanted: Asked, away: Away, known: PodRecord | None) -> Granted | Refusal | NotYet:
    if known is None or known.uid != wanted.place.uid or known.namespace != wanted.namespace:
        return NotYet(f"the API server does not say what {wanted.words} gets: {away.words}")
    return _of_record(wanted, known)


def _of_record(wanted: Asked, record: PodRecord, *, deleting: bool = False) -> Granted | Refusal:
    for model in record.models:
        if model.name == wanted.model:
            return Granted(model.digest, record, deleting)
    return Refusal(Code.PERMISSION_DENIED, f"{wanted.words}: it does not get model {wanted.model}")
