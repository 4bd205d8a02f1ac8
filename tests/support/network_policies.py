"""What NetworkPolicies let through (networking.k8s.io/v1): what the source's and the target's allow."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Policy = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class End:
    """A Pod; or, without a namespace, what is no Pod."""

    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


def allowed(policies: Iterable[Policy], source: End, target: End, port: int, protocol: str = "TCP") -> bool:
    """Whether a connection is let through."""
    found = list(policies)
    leaves = _side(found, "Egress", "egress", "to", source, target, port, protocol)
    return leaves and _side(found, "Ingress", "ingress", "from", target, source, port, protocol)


def _side(
    policies: list[Policy], kind: str, rules: str, peers: str, own: End, other: End, port: int, protocol: str
) -> bool:
    """One end's policies; an end that no policy selects is open."""
    own_policies = [one for one in policies if kind in one["spec"]["policyTypes"] and _selects(one, own)]
    every = [rule for one in own_policies for rule in one["spec"].get(rules) or ()]
    return not own_policies or any(
        _is_peer(rule.get(peers), other) and _is_port(rule.get("ports"), port, protocol) for rule in every
    )


def _selects(policy: Policy, end: End) -> bool:
    here = end.namespace and policy["metadata"]["namespace"] == end.namespace
    return bool(here) and _fits(policy["spec"]["podSelector"], end.labels)


def _is_peer(peers: list[Mapping[str, Any]] | None, end: End) -> bool:
    """Peers that are left out are everybody; ours always name Pods and their namespace."""
    if peers is None:
        return True
    names = {"kubernetes.io/metadata.name": end.namespace}
    return any(_fits(one["podSelector"], end.labels) and _fits(one["namespaceSelector"], names) for one in peers)


def _is_port(ports: list[Mapping[str, Any]] | None, port: int, protocol: str) -> bool:
    return ports is None or any(one["port"] == port and one.get("protocol", "TCP") == protocol for one in ports)


def _fits(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    if not set(selector) <= {"matchLabels"}:
        raise ValueError(f"selector: want matchLabels alone, got {', '.join(selector)}")
    return dict(selector.get("matchLabels") or {}).items() <= labels.items()
