"""What is to be done about one Pod that waits for models: `decide(seen) -> decision`. Level-triggered and pure.

A gated Pod is let go in one patch that also tells it which artifacts it gets; nothing changes that afterwards. Who
looks and writes is `delivering`; nodes are compared in `placement`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aimodels_core import names
from aimodels_core.digest import Digest
from aimodels_core.nodes import NodeReport
from aimodels_core.units import human_bytes
from aimodels_operator import placement, pods
from aimodels_operator.blocked import INVALID_SPEC, NO_CAPACITY, NOT_FOUND, NOT_IN_CACHE, NOT_READY
from aimodels_operator.placement import Node
from aimodels_operator.pods import Delivered, Named, Pod
from aimodels_operator.sharedpvc_values import Answer, Blocked

LOOK_SECONDS = 60.0
"""Whoever waits is looked at again so often, though nothing happens."""
REPORT_SECONDS = 120.0
"""An older report does not say what a node has now."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the administrator says about delivery.

    Args:
        shared: models come from shared claims, not from caches of nodes.
        max_gate_seconds: how long a Pod is kept from nodes that do not have its models yet.
        cache_bytes: how much a node may hold; 0 for what fits.
    """

    shared: bool = False
    max_gate_seconds: float = 600.0
    cache_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """All that a decision looks at.

    Args:
        pod: the Pod.
        options: of the administrator.
        now: Unix seconds.
        models: what it names, as far as that is there.
        nodes: all that carry our label, and the one that the Pod is bound to; not looked at with shared claims.
        reports: of nodes, by name; None while they are not known.
        answer: of shared claims; None when they were not asked.
        outdated: its StatefulSet has another revision and would make it anew by that.
    """

    pod: Pod
    options: Options
    now: float
    models: Mapping[Named, Delivered] = field(default_factory=dict)
    nodes: Sequence[Node] = ()
    reports: Mapping[str, NodeReport] | None = None
    answer: Answer | None = None
    outdated: bool = False


@dataclass(frozen=True, slots=True)
class LetGo:
    """Tell a Pod what it gets, and take our gate away if it has it.

    Args:
        patch: a strategic merge patch of the very version that was looked at.
        message: for people.
    """

    patch: Mapping[str, Any]
    message: str


@dataclass(frozen=True, slots=True)
class Remake:
    """Delete a Pod that waits for what its workload does not want any more."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done.

    Args:
        write: to the Pod; None for nothing.
        blocked: why it waits, for its workload; None when it does not wait or when others keep it.
        again: seconds after which it is looked at again though nothing happens; None for never.
    """

    write: LetGo | Remake | None = None
    blocked: Blocked | None = None
    again: float | None = None


def settled(pod: Pod) -> bool:
    """Say whether nothing about a Pod can change any more that somebody should be told."""
    return not pod.waits and (pod.phase != "Pending" or pod.deleting)


def resolved(pod: Pod, models: Mapping[Named, Delivered]) -> dict[Named, Delivered] | Blocked:
    """Find what a Pod gets, or what is not there yet."""
    wanted = pods.named(pod)
    if isinstance(wanted, str):
        return Blocked(INVALID_SPEC, wanted)
    absent = [one.words for one in wanted if one not in models]
    if absent:
        return Blocked(NOT_FOUND, f"{pods.listed(absent)}: not found")
    troubles = [f"{one.words} {models[one].trouble}" for one in wanted if not models[one].digest]
    if troubles:
        return Blocked(NOT_READY, "; ".join(troubles[:5]))
    return {one: models[one] for one in wanted}


def decide(seen: Seen) -> Decision:
    """Say what is to be done now."""
    pod = seen.pod
    if settled(pod):
        return Decision()
    if not pod.waits:
        return _after(seen)
    found = resolved(pod, seen.models)
    if isinstance(found, Blocked):
        return _held(seen, found)
    if any(gate != names.SCHEDULING_GATE for gate in pod.gates):
        return Decision(again=LOOK_SECONDS)
    if seen.options.shared:
        if isinstance(seen.answer, Blocked):
            return _held(seen, seen.answer)
        return Decision(again=LOOK_SECONDS) if seen.answer is None else _let_go(seen, found, (), "in shared claims")
    return _let_go(seen, found, (), "") if pod.node else _placed(seen, found)


def _placed(seen: Seen, found: Mapping[Named, Delivered]) -> Decision:
    """Decide about a gated Pod whose models are Ready, by the nodes that there are."""
    sizes = {model.digest: model.size_bytes for model in found.values()}
    total, most = sum(sizes.values()), seen.options.cache_bytes
    if most and total > most:
        words = f"its models have {human_bytes(total)}, a node may hold {human_bytes(most)}"
        return _held(seen, Blocked(NO_CAPACITY, words))
    only = placement.pinned(seen.pod)
    if only and not any(node.name == only and node.labelled for node in seen.nodes):
        return _held(seen, Blocked(NOT_IN_CACHE, f"node {only} is not labelled {names.LABEL_CACHE}=true"))
    warm, why, words = _warmth(seen, sizes)
    ready_at = max(model.ready_at for model in found.values())
    left = seen.options.max_gate_seconds - (seen.now - max(seen.pod.created_at, ready_at))
    if why is not None and left > 0:
        return _held(seen, why, left)
    return _let_go(seen, found, warm, words)


def _warmth(seen: Seen, sizes: Mapping[str, int]) -> tuple[list[Node], Blocked | None, str]:
    """Say which nodes have all models; else what is worth waiting for, if anything; and how that ends, for people."""
    nodes = placement.candidates(seen.pod, seen.nodes)
    only = placement.pinned(seen.pod)
    if not nodes:
        why = Blocked(NOT_IN_CACHE, f"node {only} has no driver {names.CSI_DRIVER} yet") if only else None
        return [], why, "no node is there that gives models"
    if seen.reports is None:
        return [], Blocked(NOT_READY, "what nodes hold is not known yet"), "what nodes hold is not known"
    reports = [(node, _fresh(seen, node.name)) for node in nodes]
    warm = [node for node, report in reports if report is not None and placement.holds(report, sizes)]
    if warm:
        return warm, None, f"on {pods.listed(sorted(node.name for node in warm))}"
    takers = [node.name for node, report in reports if report is not None and placement.has_room(report, sizes)]
    if not takers:
        return [], None, "no node has room for them, or tells of it"
    why = Blocked(NOT_READY, f"models are on their way to {pods.listed(sorted(takers))}")
    return [], why, "no node had them in time; the one that the Pod goes to fetches them"


def _after(seen: Seen) -> Decision:
    """Decide about a Pod that was let go and has not started: it may lack room where it is, or everywhere."""
    sizes = told(seen.pod)
    if seen.options.shared or not sizes or not seen.reports:
        return Decision()
    where = [seen.pod.node] if seen.pod.node else [one.name for one in placement.candidates(seen.pod, seen.nodes)]
    reports = [report for name in where if (report := _fresh(seen, name)) is not None]
    full = [one.node for one in reports if not placement.holds(one, sizes) and not placement.has_room(one, sizes)]
    if not full or len(full) < len(where):
        return Decision(again=LOOK_SECONDS)
    words = f"no room for {human_bytes(sum(sizes.values()))} on {pods.listed(sorted(full))}"
    return Decision(blocked=Blocked(NO_CAPACITY, words), again=LOOK_SECONDS)


def _fresh(seen: Seen, node: str) -> NodeReport | None:
    report = (seen.reports or {}).get(node)
    return report if report is not None and seen.now - report.at <= REPORT_SECONDS else None


def _held(seen: Seen, blocked: Blocked, left: float = LOOK_SECONDS) -> Decision:
    """Keep the gate; but a Pod that its StatefulSet does not want any more is in the way of the one that it wants."""
    if seen.outdated and seen.pod.gated and not seen.pod.node and not seen.pod.deleting:
        return Decision(Remake())
    return Decision(blocked=blocked, again=min(left, LOOK_SECONDS))


def _let_go(seen: Seen, found: Mapping[Named, Delivered], warm: Sequence[Node], words: str) -> Decision:
    pod = seen.pod
    annotations: dict[str, str | None] = {names.ANNOTATION_RESOLVED_MODELS: rendered(found)}
    if seen.options.shared:
        digests = enumerate(model.digest for model in found.values())
        annotations |= {f"{names.ANNOTATION_RESOLVED_DIGEST}{n}": Digest.parse(digest).hex for n, digest in digests}
    said = (names.ANNOTATION_BLOCKED_REASON, names.ANNOTATION_BLOCKED_MESSAGE)
    annotations |= {key: None for key in said if key in pod.annotations}
    patch: dict[str, Any] = {
        "metadata": {"uid": pod.uid, "resourceVersion": pod.version, "annotations": annotations},
    }
    if pod.gated:
        patch["spec"] = _spec(seen, warm)
    message = f"{pods.listed([one.words for one in found])}: {words or 'told'}"
    return Decision(LetGo(patch, message), again=LOOK_SECONDS)


def _spec(seen: Seen, warm: Sequence[Node]) -> dict[str, Any]:
    """What of a gated Pod's spec changes: gates are named, preferences are given whole, labels are added."""
    spec: dict[str, Any] = {"schedulingGates": [{"$patch": "delete", "name": names.SCHEDULING_GATE}]}
    if not seen.options.shared and seen.pod.selector.get(names.LABEL_CACHE) != "true":
        spec["nodeSelector"] = {names.LABEL_CACHE: "true"}
    if warm:
        preferred = placement.preferring(seen.pod, warm)
        spec["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    return spec


def rendered(found: Mapping[Named, Delivered]) -> str:
    """Render what a Pod gets: what its containers find in AI_MODELS_MODELS, too."""
    entries = [
        {"name": one.name, "path": f"{names.MODELS_DIR}/{one.name}", "digest": model.digest}
        | ({"family": model.family} if model.family else {})
        | ({"sizeBytes": model.size_bytes} if model.size_bytes else {})
        for one, model in found.items()
    ]
    return json.dumps(entries, separators=(",", ":"))


def told(pod: Pod) -> dict[str, int]:
    """Digests and sizes of what a Pod was told that it gets; nothing when it cannot be read."""
    try:
        entries = json.loads(pod.annotations.get(names.ANNOTATION_RESOLVED_MODELS, "[]"))
        return {str(entry["digest"]): int(entry.get("sizeBytes", 0)) for entry in entries}
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}
