"""How our webhooks are registered at the API server: which objects are sent to them, and whom it trusts then. Pure.

The chart makes an empty MutatingWebhookConfiguration, and removes it; the leader fills it when the webhooks answer.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

from aimodels_core import names

Raw = Mapping[str, Any]

CONFIGURATION = "ai-models-delivery"
SERVICE = "ai-models-webhook"
"""Name of the Service and the Deployment of the webhook process."""
TIMEOUT_SECONDS = 5
_PORT = 443
_SUFFIX = "delivery.ai-models.deckhouse.io"
_MOST_AUTHORITIES = 4
_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_HOOK = "helm.sh/hook"

_ASKED = (
    "has(object.metadata.annotations) && "
    f"('{names.ANNOTATION_MODEL}' in object.metadata.annotations"
    f" || '{names.ANNOTATION_CLUSTER_MODEL}' in object.metadata.annotations)"
)
_OWNED = (
    "has(object.metadata.ownerReferences) && "
    "object.metadata.ownerReferences.exists(r, has(r.controller) && r.controller)"
)


def webhooks(home: str, bundle: str) -> list[dict[str, Any]]:
    """What the API server is to know, with everything that it would fill in.

    Args:
        home: our namespace.
        bundle: PEM of authorities that it trusts as the webhooks'.
    """
    template, job = "object.spec.template", "object.spec.jobTemplate"
    stamped = f"has({job}) ? ({_labelled(f'{job}.spec.template')}) : ({_labelled(template)})"
    conditions = {
        "stays": "!has(object.metadata.deletionTimestamp)",
        "is-nobodys": f"!({_OWNED})",
        "names-models-or-did": f"({_ASKED}) || ({stamped})",
    }
    label = names.LABEL_DELIVERY
    templates = [
        _rule("apps", ("deployments", "statefulsets", "daemonsets"), ("CREATE", "UPDATE")),
        _rule("batch", ("jobs", "cronjobs"), ("CREATE", "UPDATE")),
    ]
    pods = [_rule("", ("pods",), ("CREATE",))]
    labelled = {"matchLabels": {label: "true"}}
    others = {"matchExpressions": [{"key": label, "operator": "NotIn", "values": ["true"]}]}
    client = {
        "service": {"namespace": home, "name": SERVICE, "port": _PORT},
        "caBundle": base64.b64encode(bundle.encode()).decode("ascii"),
    }
    return [
        _webhook("workloads", "/mutate/workloads", home, client, templates, {}, conditions),
        _webhook("pods", "/mutate/pods", home, client, pods, labelled, {}),
        # Pods without a workload of a kind that we know carry the annotation alone.
        _webhook("other-pods", "/mutate/pods", home, client, pods, others, {"names-models": _ASKED}),
    ]


def trusted(found: Raw) -> str:
    """PEM of the authorities that a configuration has now; empty when it is not filled."""
    for one in found.get("webhooks") or ():
        encoded = (one.get("clientConfig") or {}).get("caBundle") or ""
        try:
            return base64.b64decode(encoded, validate=True).decode()
        except ValueError:
            return ""
    return ""


def bundle(present: str, held: str, *, alone: bool) -> str:
    """Who is trusted now: the present authority, and those before it until all servers have left them.

    Args:
        present: PEM of the authority of certificates that are made now.
        held: PEM of those that are trusted.
        alone: no server shows a certificate of an earlier one any more.
    """
    wanted = [*_CERTIFICATE.findall(present), *(() if alone else _CERTIFICATE.findall(held))]
    return "".join(f"{one}\n" for one in list(dict.fromkeys(wanted))[:_MOST_AUTHORITIES])


def covers(found: Any, wanted: Any) -> bool:
    """Whether a document says all that is wanted; what else the API server has filled in does not matter."""
    if isinstance(wanted, Mapping):
        there = isinstance(found, Mapping)
        return there and all(key in found and covers(found[key], value) for key, value in wanted.items())
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        same = isinstance(found, Sequence) and not isinstance(found, str) and len(found) == len(wanted)
        return same and all(covers(*pair) for pair in zip(found, wanted, strict=True))
    return bool(found == wanted)


def is_leaving(found: Raw) -> bool:
    """Whether a configuration only stands where ours was, so that an uninstall removes it first."""
    return _HOOK in ((found.get("metadata") or {}).get("annotations") or {})


def rolled_out(deployment: Raw) -> bool:
    """Whether all replicas of a Deployment are as it says now, and ready."""
    spec, status = deployment.get("spec") or {}, deployment.get("status") or {}
    wanted = spec.get("replicas", 1)
    counts = [status.get(key, 0) for key in ("replicas", "updatedReplicas", "readyReplicas")]
    seen = status.get("observedGeneration", 0) >= (deployment.get("metadata") or {}).get("generation", 0)
    return seen and wanted > 0 and counts == [wanted] * 3


def left_out(home: str) -> tuple[str, ...]:
    """Namespaces that our webhooks never see: without them the cluster, or we, could not come up again."""
    return tuple(dict.fromkeys((home, names.NODE_NAMESPACE, "kube-system")))


def _webhook(
    name: str,
    path: str,
    home: str,
    client: Raw,
    rules: Sequence[Raw],
    selector: Raw,
    conditions: Mapping[str, str],
) -> dict[str, Any]:
    service = {**client["service"], "path": path}
    spaces = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": list(left_out(home))}
    found = {
        "name": f"{name}.{_SUFFIX}",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {**client, "service": service},
        "rules": list(rules),
        "namespaceSelector": {"matchExpressions": [spaces]},
        "objectSelector": dict(selector),
        "matchConditions": [{"name": key, "expression": words} for key, words in conditions.items()],
        "matchPolicy": "Equivalent",
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "reinvocationPolicy": "IfNeeded",
        "timeoutSeconds": TIMEOUT_SECONDS,
    }
    return {key: value for key, value in found.items() if value != []}


def _rule(group: str, resources: Sequence[str], operations: Sequence[str]) -> dict[str, Any]:
    found = {"apiGroups": [group], "apiVersions": ["v1"], "resources": list(resources), "operations": list(operations)}
    return {**found, "scope": "Namespaced"}


def _labelled(template: str) -> str:
    labels = f"{template}.metadata.labels"
    return f"has({template}.metadata) && has({labels}) && '{names.LABEL_DELIVERY}' in {labels}"
