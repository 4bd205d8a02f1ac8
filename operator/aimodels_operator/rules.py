"""What our processes may do at the API server, as data beside its use; the chart's roles say the same. Pure."""

import dataclasses

from aimodels_core import names
from aimodels_operator.registration import CONFIGURATION

OPERATOR = "ai-models-operator"
"""Name of the operator's Deployment, and of its Lease."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """Verbs on resources of a group, as in a role; on all objects, or on those of some names alone."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()


EVERYWHERE = (
    Rule(names.GROUP, ("models", "clustermodels"), ("get", "list", "watch", "patch")),
    Rule(names.GROUP, ("models/status", "clustermodels/status"), ("patch",)),
    Rule("", ("secrets",), ("get",)),
    Rule("events.k8s.io", ("events",), ("create",)),
)
"""In the whole cluster."""

AT_HOME = (
    Rule("coordination.k8s.io", ("leases",), ("get", "create", "update")),
    Rule("", ("secrets",), ("create",)),
    Rule("", ("secrets",), ("update",), tuple(names.HomeSecret)),
    Rule("", ("pods",), ("list",)),
    Rule("", ("pods/eviction",), ("create",)),
)
"""In the operator's own namespace; `create` cannot be bound to names."""

WEBHOOK = (Rule("authentication.k8s.io", ("tokenreviews",), ("create",)),)
"""Of the webhook process, in the whole cluster."""

SHARED_PVC = (
    Rule("storage.k8s.io", ("storageclasses",), ("list",)),
    Rule("", ("persistentvolumeclaims",), ("get", "list", "create", "patch", "delete")),
    Rule("batch", ("jobs",), ("list", "create", "delete")),
    Rule("batch", ("cronjobs",), ("list",)),
    Rule("apps", ("deployments", "statefulsets", "daemonsets"), ("list",)),
    Rule("networking.k8s.io", ("networkpolicies",), ("get", "create", "patch")),
    Rule("", ("pods", "events"), ("list",)),
)
"""Of the operator, in the whole cluster, when models are delivered through shared claims."""

DELIVERY = (
    Rule("", ("pods",), ("get", "list", "watch", "patch", "delete")),
    Rule("", ("nodes",), ("list",)),
    Rule("storage.k8s.io", ("csinodes",), ("list",)),
    Rule("apps", ("deployments", "replicasets", "statefulsets", "daemonsets"), ("get", "patch")),
    Rule("batch", ("jobs", "cronjobs"), ("get", "patch")),
    Rule("apps", ("deployments", "statefulsets", "daemonsets"), ("list",)),
    Rule("batch", ("jobs", "cronjobs"), ("list",)),
    Rule("admissionregistration.k8s.io", ("mutatingwebhookconfigurations",), ("get", "patch"), (CONFIGURATION,)),
)
"""Of the operator, in the whole cluster, when models are delivered; a policy limits what its patches may change."""

NODE_CACHE = (
    Rule(names.GROUP, ("nodemodelcaches",), ("list", "create", "delete")),
    Rule(names.GROUP, ("nodemodelcaches/status",), ("patch",)),
)
"""Of the operator, in the whole cluster, when models come from caches of nodes."""

AT_NODES = (
    Rule("", ("secrets",), ("create",)),
    Rule("", ("secrets",), ("update",), (names.NODE_SECRET,)),
)
"""Of the operator, in the namespace of what runs on nodes."""

UNINSTALL = (Rule(names.GROUP, ("models", "clustermodels"), ("list", "patch")),)
"""Of the process before an uninstall, in the whole cluster."""

UNINSTALL_AT_HOME = (
    Rule("apps", ("deployments/scale",), ("patch",), (OPERATOR,)),
    Rule("coordination.k8s.io", ("leases",), ("create",)),
    Rule("coordination.k8s.io", ("leases",), ("get", "update"), (OPERATOR,)),
)
"""Of that process, in the operator's own namespace."""


def allowed(group: str, resource: str, verb: str, name: str = "") -> bool:
    """Whether a rule covers a call; the client makes no other."""
    operator = (*EVERYWHERE, *AT_HOME, *SHARED_PVC, *DELIVERY, *NODE_CACHE, *AT_NODES)
    rules = (*operator, *WEBHOOK, *UNINSTALL, *UNINSTALL_AT_HOME)
    found = [rule for rule in rules if rule.group == group and resource in rule.resources and verb in rule.verbs]
    return any(not rule.names or name in rule.names for rule in found)
