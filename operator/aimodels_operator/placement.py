"""Which nodes a Pod may go to, and which of them have its models. Pure."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from aimodels_core import names
from aimodels_core.nodes import NodeReport
from aimodels_operator.pods import Pod

_HOSTNAME = "kubernetes.io/hostname"
_NAME_FIELD = "metadata.name"
MAX_PREFERRED = 100
"""Most nodes that one Pod is told to prefer."""

Raw = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """A node as the API server has it.

    Args:
        name: of the object.
        labels: of the object.
        cordoned: whether new Pods are kept away.
        driver: whether kubelet knows our CSI driver there.
    """

    name: str
    labels: Mapping[str, str]
    cordoned: bool = False
    driver: bool = False

    @classmethod
    def from_raw(cls, raw: Raw, drivers: Iterable[str]) -> Self:
        """Parse a Node, beside the drivers of its CSINode."""
        meta, spec = raw["metadata"], raw.get("spec") or {}
        cordoned = bool(spec.get("unschedulable"))
        return cls(str(meta["name"]), dict(meta.get("labels") or {}), cordoned, names.CSI_DRIVER in drivers)

    @property
    def labelled(self) -> bool:
        """Whether the administrator wants models there."""
        return self.labels.get(names.LABEL_CACHE) == "true"


def matching(pod: Pod, nodes: Iterable[Node]) -> tuple[Node, ...]:
    """Nodes that fit the Pod's node selector and required node affinity, ours or not; cordoned ones do not."""
    required = pod.affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = required.get("nodeSelectorTerms") or ()
    return tuple(
        node
        for node in nodes
        if (not node.cordoned or pinned(pod) == node.name)
        and all(node.labels.get(key) == value for key, value in pod.selector.items())
        and (not terms or any(_fits(node, term) for term in terms))
    )


def pinned(pod: Pod) -> str:
    """Name the only node that a Pod may go to, as those of a DaemonSet; empty when there may be several."""
    required = pod.affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    found: set[str] = set()
    for term in required.get("nodeSelectorTerms") or ():
        fields = [one for one in term.get("matchFields") or () if one.get("key") == _NAME_FIELD]
        values = list(fields[0].get("values") or []) if fields and fields[0].get("operator") == "In" else []
        found.add(str(values[0]) if len(values) == 1 else "")
    return found.pop() if len(found) == 1 else ""


def candidates(pod: Pod, nodes: Iterable[Node]) -> tuple[Node, ...]:
    """Nodes that a Pod may go to and that can give it models."""
    return tuple(node for node in matching(pod, nodes) if node.labelled and node.driver)


def holds(report: NodeReport, digests: Iterable[str]) -> bool:
    """Say whether a node has all of some artifacts."""
    return set(digests) <= {one.digest for one in report.held}


def has_room(report: NodeReport, sizes: Mapping[str, int]) -> bool:
    """Say whether a node could take artifacts, by their digests and sizes; what no Pod uses would go for them."""
    if report.trouble or any(one.no_room for one in report.warming if one.digest in sizes):
        return False
    room = report.cache_bytes or sum(device.size_bytes for device in report.devices if not device.trouble)
    used = sum(one.size_bytes for one in report.held if one.used and one.digest not in sizes)
    return used + sum(sizes.values()) <= room


def preferring(pod: Pod, nodes: Sequence[Node]) -> list[Any]:
    """Add a preference for nodes to those that the Pod has already, as a whole new list."""
    hosts = sorted(node.labels.get(_HOSTNAME, node.name) for node in nodes)[:MAX_PREFERRED]
    match = {"key": _HOSTNAME, "operator": "In", "values": hosts}
    term = {"weight": 100, "preference": {"matchExpressions": [match]}}
    return [*(pod.affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()), term]


def _fits(node: Node, term: Raw) -> bool:
    """Say whether a node fits a term (Kubernetes: NodeSelectorTerm: all must hold, an empty one holds for none)."""
    fields, expressions = term.get("matchFields") or (), term.get("matchExpressions") or ()
    if not fields and not expressions:
        return False
    return all(_holds(node.name, one) for one in fields if one.get("key") == _NAME_FIELD) and all(
        _holds(node.labels.get(str(one.get("key", ""))), one) for one in expressions
    )


def _holds(found: str | None, one: Raw) -> bool:
    """Say whether a requirement holds (Kubernetes: NodeSelectorRequirement); one of an unknown kind does."""
    values = [str(value) for value in one.get("values") or ()]
    match one.get("operator"):
        case "In":
            return found in values
        case "NotIn":
            return found not in values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case "Gt" | "Lt" as operator:
            return _compares(found, values, greater=operator == "Gt")
        case _:
            return True


def _compares(found: str | None, values: Sequence[str], *, greater: bool) -> bool:
    try:
        left, right = int(found or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return left > right if greater else left < right
