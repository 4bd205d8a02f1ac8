"""What a Pod gets so that it can be given models: volumes, mounts, variables, label, gate, node selector. Pure.

A Pod may be created long before its models are there, and its volumes never change; so all that is added here follows
from names. What belongs to the user is never touched: where that and ours cannot both be, the Pod is refused.
"""

import copy
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aimodels_core import names
from aimodels_operator import pods
from aimodels_operator.blocked import INVALID_SPEC
from aimodels_operator.pods import Named

Raw = Mapping[str, Any]

_MIRROR = "kubernetes.io/config.mirror"
_OS = "kubernetes.io/os"
# kubelet mounts these read-only, whatever the mount says (Kubernetes: pkg/volume, Attributes.ReadOnly).
_READ_ONLY = ("configMap", "secret", "downwardAPI", "projected", "image")
_CONTAINERS = ("containers", "initContainers")


@dataclass(frozen=True, slots=True)
class Refused:
    """A Pod that cannot be given what it asks for.

    Args:
        words: for people; they begin with the reason.
    """

    words: str


@dataclass(frozen=True, slots=True)
class Gift:
    """What is added to a Pod.

    Args:
        volumes: one for each model.
        mounts: one for each model, in every container.
        variables: of every container, before its own.
        selector: labels of nodes that it may run on.
    """

    volumes: tuple[Raw, ...]
    mounts: tuple[Raw, ...]
    variables: tuple[Raw, ...]
    selector: Mapping[str, str]

    @classmethod
    def of(cls, models: Sequence[Named], *, shared: bool) -> "Gift":
        """Say what is added for these models, in this order; from shared claims or from caches of nodes."""
        volumes, mounts = [], []
        variables: list[Raw] = [{"name": names.VARIABLE_MODELS_DIR, "value": names.MODELS_DIR}]
        variables += [_from_annotation(names.VARIABLE_MODELS, names.ANNOTATION_RESOLVED_MODELS)]
        for n, model in enumerate(models):
            name = volume_name(n, model.name)
            mount: dict[str, Any] = {
                "name": name,
                "mountPath": f"{names.MODELS_DIR}/{model.name}",
                "readOnly": True,
            }
            if shared:
                digest = f"{names.VARIABLE_DIGEST}{n}"
                claim = names.shared_claim(model.kind.singular, model.name)
                volumes.append({"name": name, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}})
                mount["subPathExpr"] = f"{names.BY_DIGEST}/$({digest})"
                variables.append(_from_annotation(digest, f"{names.ANNOTATION_RESOLVED_DIGEST}{n}"))
            else:
                told = {names.ATTRIBUTE_MODEL: model.name}
                csi = {"driver": names.CSI_DRIVER, "readOnly": True, "volumeAttributes": told}
                volumes.append({"name": name, "csi": csi})
            mounts.append(mount)
        selector = {} if shared else {names.LABEL_CACHE: "true"}
        return cls(tuple(volumes), tuple(mounts), tuple(variables), selector)


def volume_name(n: int, name: str) -> str:
    """Name the volume of the n-th model.

    >>> volume_name(0, "qwen2.5-7b")
    'ai-models-0-qwen2-5-7b'
    """
    return f"{names.VOLUME_PREFIX}{n}-{name.replace('.', '-')}"[: names.MAX_LABEL_CHARS].rstrip("-")


def injected(pod: Raw, namespace: str, *, shared: bool) -> Raw | Refused:
    """Add to a Pod that is being created what it needs; the Pod itself when it names no model. Again adds nothing.

    Args:
        pod: as the API server has it.
        namespace: of the request: the Pod need not say it yet.
        shared: models come from shared claims, not from caches of nodes.
    """
    meta = pod.get("metadata") or {}
    annotations = meta.get("annotations") or {}
    models = pods.named_in(annotations, namespace)
    if isinstance(models, str):
        return Refused(f"{INVALID_SPEC}: {models}")
    if not models or _MIRROR in annotations or meta.get("deletionTimestamp"):
        return pod
    if words := fault(pod.get("spec") or {}, models, shared=shared):
        return Refused(f"{INVALID_SPEC}: {words}")
    return _filled(pod, Gift.of(models, shared=shared))


def fault(spec: Raw, models: Sequence[Named], *, shared: bool) -> str:
    """Say why a Pod, or the Pods of a template, cannot be given models; empty when they can."""
    gift = Gift.of(models, shared=shared)
    return next(_faults(spec, gift, shared=shared), "")


def _faults(spec: Raw, gift: Gift, *, shared: bool) -> Iterator[str]:
    selector = spec.get("nodeSelector") or {}
    if (spec.get("os") or {}).get("name") == "windows" or selector.get(_OS) == "windows":
        yield "models are given to Pods on Linux alone"
    if shared and spec.get("nodeName"):
        yield "spec.nodeName: want it empty, since a Pod that does not pass the scheduler cannot wait for its models"
    for key, value in gift.selector.items():
        if selector.get(key, value) != value:
            yield f"spec.nodeSelector: want {key} to be {value!r} or absent, got {str(selector[key])[:63]!r}"
    ours = {volume["name"]: volume for volume in gift.volumes}
    volumes = {str(volume.get("name")): volume for volume in spec.get("volumes") or ()}
    for name in sorted(ours.keys() & volumes.keys()):
        if volumes[name] != ours[name]:
            yield f"spec.volumes: {name} is the name of a volume of ai-models: want another"
    for where, container in _containers(spec):
        yield from _faults_of(where, container, gift, volumes)


def _faults_of(where: str, container: Raw, gift: Gift, volumes: Mapping[str, Raw]) -> Iterator[str]:
    ours = {variable["name"]: variable for variable in gift.variables}
    for variable in container.get("env") or ():
        name = str(variable.get("name"))
        if name in ours and variable != ours[name]:
            yield f"{where}.env: {name} is set by ai-models: want it absent"
    targets = [mount["mountPath"] for mount in gift.mounts]
    for mount in container.get("volumeMounts") or ():
        if mount in gift.mounts:
            continue
        path = _plain(mount.get("mountPath"))
        for target in targets:
            if path == target or path.startswith(f"{target}/"):
                yield f"{where}.volumeMounts: {path[:200]} is taken: a model is mounted at {target}"
            elif target.startswith(f"{path.rstrip('/')}/") and _is_read_only(mount, volumes):
                yield f"{where}.volumeMounts: {path[:200]} is read-only, so that no model can be mounted at {target}"
    for device in container.get("volumeDevices") or ():
        path = _plain(device.get("devicePath"))
        if any(path == target or path.startswith(f"{target}/") for target in targets):
            yield f"{where}.volumeDevices: {path[:200]} is taken: a model is mounted there"


def _filled(pod: Raw, gift: Gift) -> Raw:
    """Add what is not there yet."""
    made: dict[str, Any] = copy.deepcopy(dict(pod))
    labels = made["metadata"].get("labels") or {}
    made["metadata"]["labels"] = {**labels, names.LABEL_DELIVERY: "true"}
    spec = made["spec"]
    spec["volumes"] = _with(spec.get("volumes"), gift.volumes)
    for _, container in _containers(spec):
        own = container.get("env") or []
        container["env"] = [variable for variable in gift.variables if variable not in own] + own
        container["volumeMounts"] = _with(container.get("volumeMounts"), gift.mounts)
    if spec.get("nodeName"):
        return (
            made  # no scheduler looks at it: a gate would be refused, and a selector only make kubelet refuse the Pod
        )
    if gift.selector:
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **gift.selector}
    gates = spec.get("schedulingGates") or []
    if not any(gate.get("name") == names.SCHEDULING_GATE for gate in gates):
        spec["schedulingGates"] = [*gates, {"name": names.SCHEDULING_GATE}]
    return made


def _with(found: Sequence[Raw] | None, ours: Iterable[Raw]) -> list[Raw]:
    there = list(found or ())
    return there + [copy.deepcopy(one) for one in ours if one not in there]


def _containers(spec: Raw) -> Iterator[tuple[str, dict[str, Any]]]:
    for kind in _CONTAINERS:
        for container in spec.get(kind) or ():
            yield f"spec.{kind}[{str(container.get('name', ''))[:63]}]", container


def _is_read_only(mount: Raw, volumes: Mapping[str, Raw]) -> bool:
    volume = volumes.get(str(mount.get("name")), {})
    sources = [source for source in volume.values() if isinstance(source, Mapping)]
    return (
        bool(mount.get("readOnly"))
        or any(kind in volume for kind in _READ_ONLY)
        or any(source.get("readOnly") is True for source in sources)
    )


def _plain(path: Any) -> str:
    """A path without what does not matter; those that do not begin at the root are meant to.

    >>> _plain("//data/./x/../modelcache/")
    '/data/modelcache'
    """
    return posixpath.normpath(re.sub("^/*", "/", str(path or "")))


def _from_annotation(variable: str, annotation: str) -> Raw:
    field = {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{annotation}']"}
    return {"name": variable, "valueFrom": {"fieldRef": field}}
