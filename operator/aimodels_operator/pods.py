"""Pods that models are delivered to, and what they wait for: as the operator reads them. Pure."""

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from aimodels_core import names
from aimodels_core.api import CLUSTER_MODEL, MODEL, ConditionType, Kind, ModelObject, Phase
from aimodels_operator import status

MAX_MODELS = 32
"""Most models of one Pod."""
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_ANNOTATIONS = ((names.ANNOTATION_MODEL, MODEL), (names.ANNOTATION_CLUSTER_MODEL, CLUSTER_MODEL))
_MAX_WORDS = 300

Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Named:
    """A model that a Pod names.

    Args:
        kind: Model or ClusterModel.
        namespace: empty for a ClusterModel.
        name: in that namespace.
    """

    kind: Kind
    namespace: str
    name: str

    @property
    def words(self) -> str:
        """For people.

        >>> Named(MODEL, "demo", "bge-m3").words
        'Model demo/bge-m3'
        """
        return f"{self.kind.name} {self.namespace}/{self.name}" if self.namespace else f"{self.kind.name} {self.name}"


@dataclass(frozen=True, slots=True)
class Delivered:
    """A Model as delivery sees it.

    Args:
        uid: names it for ever.
        digest: of its manifest, `sha256:<hex>`; empty while it is not Ready.
        size_bytes: of its artifact; 0 when it cannot be told.
        family: empty when it is not known.
        scope: repository that it is read from.
        ready_at: Unix seconds since when it is Ready.
        trouble: why it is not Ready, for people.
        version: resource version of the object.
        prewarm: which nodes should have it ahead of time; empty for none.
    """

    uid: str
    digest: str
    size_bytes: int
    family: str
    scope: str
    ready_at: float
    trouble: str
    version: str
    prewarm: str = ""

    @classmethod
    def of(cls, model: ModelObject) -> Self:
        """Take what matters out of an object."""
        artifact, resolved = _mapping(model.status, "artifact"), _mapping(model.status, "resolved")
        ready = model.condition(ConditionType.READY)
        digest = "" if model.deleting else status.ready_digest(model)
        size = artifact.get("sizeBytes")
        return cls(
            uid=model.uid,
            digest=digest,
            size_bytes=size if isinstance(size, int) and size > 0 else 0,
            family=str(resolved.get("family") or "")[:256],
            scope=model.scope,
            ready_at=unix_seconds(ready.transitioned_at) if ready is not None else 0.0,
            trouble="" if digest else _trouble(model),
            version=model.resource_version,
            prewarm=model.prewarm,
        )


@dataclass(frozen=True, slots=True)
class Owner:
    """A controller of a Pod, or of its controller.

    Args:
        api_version: such as `apps/v1`.
        kind: such as `ReplicaSet`.
        namespace: of the Pod.
        name: of the object.
        uid: of the object.
        annotations: of its metadata, as far as they are ours.
    """

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pod:
    """A Pod that models are delivered to.

    Args:
        uid: names it for ever.
        namespace: of the Pod.
        name: of the Pod.
        version: resource version.
        annotations: of ours.
        gates: names of its scheduling gates, in order.
        node: where it runs; empty before it is scheduled.
        phase: of Kubernetes.
        deleting: whether it has a deletion timestamp.
        created_at: Unix seconds.
        owner: its controller; None when it has none.
        revision: of its StatefulSet; empty for others.
        selector: node labels that it asks for.
        affinity: its node affinity, as it is.
    """

    uid: str
    namespace: str
    name: str
    version: str
    annotations: Mapping[str, str]
    gates: tuple[str, ...]
    node: str
    phase: str
    deleting: bool
    created_at: float
    owner: Owner | None
    revision: str
    selector: Mapping[str, str]
    affinity: Raw

    @classmethod
    def from_raw(cls, raw: Raw) -> Self:
        """Parse a Pod as the API server returned it."""
        meta, spec = raw["metadata"], raw.get("spec") or {}
        namespace = str(meta.get("namespace", ""))
        return cls(
            uid=str(meta.get("uid", "")),
            namespace=namespace,
            name=str(meta.get("name", "")),
            version=str(meta.get("resourceVersion", "")),
            annotations=own_annotations(meta),
            gates=tuple(str(gate.get("name", "")) for gate in spec.get("schedulingGates") or ()),
            node=str(spec.get("nodeName") or ""),
            phase=str((raw.get("status") or {}).get("phase") or ""),
            deleting=bool(meta.get("deletionTimestamp")),
            created_at=unix_seconds(meta.get("creationTimestamp")),
            owner=controller_of(meta, namespace),
            revision=str((meta.get("labels") or {}).get("controller-revision-hash", "")),
            selector=dict(spec.get("nodeSelector") or {}),
            affinity=(spec.get("affinity") or {}).get("nodeAffinity") or {},
        )

    @property
    def gated(self) -> bool:
        """Whether it has our gate."""
        return names.SCHEDULING_GATE in self.gates

    @property
    def resolved(self) -> bool:
        """Whether it was told which artifacts it gets."""
        return names.ANNOTATION_RESOLVED_MODELS in self.annotations

    @property
    def waits(self) -> bool:
        """Whether something has still to be decided about it."""
        ended = self.deleting or self.phase in ("Succeeded", "Failed")
        return not ended and (self.gated or (bool(self.node) and not self.resolved))


def named(pod: Pod) -> tuple[Named, ...] | str:
    """Read which models a Pod names, Models first; words of what is wrong with that instead."""
    found = named_in(pod.annotations, pod.namespace)
    return found or f"want {names.ANNOTATION_MODEL} or {names.ANNOTATION_CLUSTER_MODEL} on the Pod, got neither"


def named_in(annotations: Raw, namespace: str) -> tuple[Named, ...] | str:
    """Read which models annotations name, Models first, none at all among them; words of what is wrong instead.

    >>> named_in({names.ANNOTATION_MODEL: "bge-m3, "}, "demo")
    "ai.deckhouse.io/model: want names of Models, divided by commas, got ' '"
    """
    found: dict[str, Named] = {}
    for annotation, kind in _ANNOTATIONS:
        text = annotations.get(annotation)
        for part in [] if text is None else str(text).split(","):
            name = part.strip()
            if not _NAME.fullmatch(name):
                return f"{annotation}: want names of {kind.name}s, divided by commas, got {part[:80]!r}"
            if name in found:
                return f"{annotation}: want every name once over both annotations, got {name[:80]} twice"
            found[name] = Named(kind, namespace if kind.namespaced else "", name)
            if len(found) > MAX_MODELS:
                return f"{annotation}: want at most {MAX_MODELS} models in a Pod, got more"
    return tuple(found.values())


def as_object(pod: Pod) -> Owner:
    """A Pod as an object that carries annotations and that Events are about."""
    return Owner("v1", "Pod", pod.namespace, pod.name, pod.uid, pod.annotations)


def own_annotations(meta: Raw) -> dict[str, str]:
    """Take our annotations out of an object's metadata."""
    found = meta.get("annotations") or {}
    return {key: str(value) for key, value in found.items() if key.startswith(f"{names.GROUP}/")}


def controller_of(meta: Raw, namespace: str) -> Owner | None:
    """Find the controller that an object's metadata names."""
    references: Iterable[Any] = meta.get("ownerReferences") or ()
    for one in references:
        if one.get("controller"):
            found = [str(one.get(key, "")) for key in ("apiVersion", "kind", "name", "uid")]
            return Owner(found[0], found[1], namespace, found[2], found[3])
    return None


def unix_seconds(text: object) -> float:
    """Seconds of a time as Kubernetes writes it (RFC 3339); 0 for anything else."""
    try:
        return datetime.datetime.fromisoformat(text).timestamp() if isinstance(text, str) else 0.0
    except (ValueError, OverflowError):
        return 0.0


def older(new: str, kept: str) -> bool:
    """Compare resource versions of one object (Kubernetes 1.35: numbers that grow); odd ones count as newer."""
    return new.isdigit() and kept.isdigit() and int(new) < int(kept)


def listed(parts: Sequence[str], most: int = 5) -> str:
    """Join some of many for people."""
    more = f" and {len(parts) - most} more" if len(parts) > most else ""
    return ", ".join(parts[:most]) + more


def _trouble(model: ModelObject) -> str:
    if model.deleting:
        return "is being deleted"
    phase = str(model.status.get("phase") or Phase.PENDING.value)[:64]
    ready = model.condition(ConditionType.READY)
    if phase != Phase.FAILED.value or ready is None:
        return f"is {phase}"
    return f"has failed: {ready.reason}: {ready.message[:_MAX_WORDS]}"


def _mapping(raw: Raw, key: str) -> Raw:
    found = raw.get(key)
    return found if isinstance(found, Mapping) else {}
