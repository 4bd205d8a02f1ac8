"""Which artifacts each node should hold: for Pods that wait first, then ahead of time. Pure."""

import datetime
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aimodels_core.nodes import MAX_MODELS, Device, NodeReport, NodeWant, Warm
from aimodels_operator import placement
from aimodels_operator.placement import Node
from aimodels_operator.pods import Delivered, Pod

_REQUIREMENT = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_./]{0,316})(?:(!?=|==)([-A-Za-z0-9_.]{0,63}))?")
_MAX_SELECTOR_CHARS = 1024
_MAX_DEVICES, _MAX_SHOWN, _MAX_WORDS = 64, 1024, 1024


def selects(selector: str, labels: Mapping[str, str]) -> bool:
    """Say whether a node is meant by the value of the prewarm annotation.

    `true` means every node with a cache; else requirements on labels that all must hold: `key`, `key=value`,
    `key!=value`.

    Raises:
        ValueError: not of that form; the message says what to write.

    >>> selects("gpu=a100,zone!=b", {"gpu": "a100"})
    True
    """
    if selector.strip() in ("true", "True"):
        return True
    if selector.strip() in ("", "false", "False"):
        return False
    wanted = 'want "true", or labels of nodes such as gpu=a100,zone'
    if len(selector) > _MAX_SELECTOR_CHARS:
        raise ValueError(f"{wanted}, got more than {_MAX_SELECTOR_CHARS} characters")
    held = True
    for part in selector.split(","):
        found = _REQUIREMENT.fullmatch(part.strip())
        if found is None:
            raise ValueError(f"{wanted}, got {part.strip()[:80]!r}")
        key, operator, value = found.groups()
        if operator is None:
            held &= key in labels
        else:
            held &= (labels.get(key) == value) is (operator != "!=")
    return held


def selector_fault(selector: str) -> str:
    """Say what is wrong with the value of the prewarm annotation; empty when nothing is."""
    try:
        selects(selector, {})
    except ValueError as error:
        return str(error)
    return ""


def wants(
    waiting: Iterable[tuple[Pod, Sequence[Delivered]]],
    ahead: Iterable[Delivered],
    nodes: Sequence[Node],
    reports: Mapping[str, NodeReport],
    *,
    cache_bytes: int,
) -> dict[str, NodeWant]:
    """Say what each labelled node should hold.

    A model goes to as many nodes as Pods wait for it, those that have it or begin to have it first, and not to all
    that they could go to.

    Args:
        waiting: Pods, with those of their models that are Ready.
        ahead: models with the prewarm annotation that are Ready.
        nodes: with our label.
        reports: of nodes, by name.
        cache_bytes: how much a node may hold; 0 for what fits.
    """
    chosen: dict[str, dict[str, Warm]] = {node.name: {} for node in nodes if node.labelled}
    pods: Counter[str] = Counter()
    models: dict[str, Delivered] = {}
    fits: dict[str, dict[str, Node]] = {}
    for pod, named in waiting:
        found = placement.candidates(pod, nodes)
        for model in named:
            models[model.digest] = model
            pods[model.digest] += 1
            fits.setdefault(model.digest, {}).update({node.name: node for node in found})
    for digest, count in pods.items():
        ranked = sorted(fits[digest], key=lambda name: _rank(name, digest, reports.get(name)))
        for name in ranked[:count]:
            chosen[name][digest] = _warm(models[digest], pods=True)
    for model in sorted(ahead, key=lambda one: one.ready_at):
        for node in nodes:
            if node.labelled and _selected(model, node):
                chosen[node.name].setdefault(model.digest, _warm(model, pods=False))
    return {name: NodeWant(name, tuple(found.values())[:MAX_MODELS], cache_bytes) for name, found in chosen.items()}


def status_of(report: NodeReport) -> dict[str, Any]:
    """Render what a NodeModelCache shows of a report."""
    sizes = [device.size_bytes for device in report.devices if not device.trouble]
    room = min(sum(sizes), report.cache_bytes) if report.cache_bytes else sum(sizes)
    devices = [_device(device) for device in report.devices[:_MAX_DEVICES]]
    held = [{"digest": one.digest, "state": "Held", "sizeBytes": one.size_bytes} for one in report.held]
    warming = [
        {"digest": one.digest, "state": "Warming", "sizeBytes": one.bytes_total, "bytesDone": one.bytes_done}
        | _message(one.trouble)
        for one in report.warming
    ]
    at = datetime.datetime.fromtimestamp(report.at, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "reportedAt": at,
        "capacityBytes": room,
        "usedBytes": sum(one.size_bytes for one in report.held),
        "devices": devices,
        "models": [*held, *warming][:_MAX_SHOWN],
        "message": report.trouble[:_MAX_WORDS],  # an empty one too: what is left out of a patch stays as it was
    }


def same(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Say whether two of these differ in nothing but their time."""
    return {**old, "reportedAt": ""} == {**new, "reportedAt": ""}


def _device(device: Device) -> dict[str, Any]:
    return {"name": device.id, "capacityBytes": device.size_bytes} | _message(device.trouble)


def _message(trouble: str) -> dict[str, Any]:
    return {"message": trouble[:_MAX_WORDS]} if trouble else {}


def _selected(model: Delivered, node: Node) -> bool:
    return not selector_fault(model.prewarm) and selects(model.prewarm, node.labels)


def _rank(name: str, digest: str, report: NodeReport | None) -> tuple[int, str]:
    """Nodes that hold an artifact first, then those that fetch it, then others in an order that is always the same."""
    if report is None or report.trouble:
        near = 3
    elif any(one.digest == digest for one in report.held):
        near = 0
    elif any(one.digest == digest and not one.no_room for one in report.warming):
        near = 1
    else:
        near = 2
    return near, hashlib.sha256(f"{name} {digest}".encode()).hexdigest()


def _warm(model: Delivered, *, pods: bool) -> Warm:
    return Warm(model.digest, model.scope, model.size_bytes, pods)
