"""What our processes may do at the API server, as data beside its use; the chart's roles say the same. Pure."""

import dataclasses

from aimodels_core import names


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """Verbs on resources of a group, as in a role."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]


EVERYWHERE = (
    Rule(names.GROUP, ("models", "clustermodels"), ("get", "list", "watch", "patch")),
    Rule(names.GROUP, ("models/status", "clustermodels/status"), ("patch",)),
    Rule("", ("secrets",), ("get",)),
    Rule("events.k8s.io", ("events",), ("create",)),
)
"""In the whole cluster."""

AT_HOME = (Rule("coordination.k8s.io", ("leases",), ("get", "create", "update")),)
"""In the operator's own namespace."""

WEBHOOK = (Rule("authentication.k8s.io", ("tokenreviews",), ("create",)),)
"""Of the webhook process, in the whole cluster."""


def allowed(group: str, resource: str, verb: str) -> bool:
    """Whether a rule covers a call; the client makes no other."""
    rules = (*EVERYWHERE, *AT_HOME, *WEBHOOK)
    return any(rule.group == group and resource in rule.resources and verb in rule.verbs for rule in rules)
