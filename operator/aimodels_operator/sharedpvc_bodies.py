"""Objects of shared claims as we write them: claims, the Jobs that fill them, and whom those may talk to. Pure."""

import dataclasses
import hashlib
import json
from typing import Any

from aimodels_core import names
from aimodels_core.units import MIB
from aimodels_operator.sharedpvc_objects import Claim, Contents, Work

Raw = dict[str, Any]

MOUNT = "/models"
SECONDS_AFTER_END = 300
RETRIES = 3
_LEAST_SECONDS = 3600
_SLOWEST_BYTES_PER_SECOND = 4 * MIB
_FILES = "/var/run/secrets/ai-models"
_UID = 64535
_RESOURCES = {"cpu": "500m", "memory": "512Mi", "ephemeral-storage": "128Mi"}
_AUDIENCE = "ai-models-dmcr"
_ANNOTATION_CA = f"{names.GROUP}/registry-ca"
# What meshes look at before they inject a sidecar, with which a Job never ends.
_NO_MESH_LABELS = {"sidecar.istio.io/inject": "false"}
_NO_MESH = {
    "sidecar.istio.io/inject": "false",
    "linkerd.io/inject": "disabled",
    "kuma.io/sidecar-injection": "disabled",
    "consul.hashicorp.com/connect-inject": "false",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Puller:
    """What all Jobs have in common.

    Args:
        image: with the command line.
        home: namespace of registry and issuer.
        registry_url: of the registry.
        redirect_url: where it sends readers of blobs; empty when it serves them itself.
        redirect_port: of that.
        authorities: PEM text: who is trusted as registry, issuer and store.
        pull_policy: of the image.
    """

    image: str
    home: str
    registry_url: str
    redirect_url: str = ""
    redirect_port: int = 443
    authorities: str = dataclasses.field(default="", repr=False)
    pull_policy: str = "IfNotPresent"


def job_name(claim: str, work: Work, digest: str) -> str:
    """Name the Job for a folder of a claim.

    >>> job_name("ai-models-model-bge-m3", Work.PULL, "a" * 64)
    'ai-models-pull-f5b539d2607eff87'
    """
    mark = hashlib.sha256(f"{claim} {work} {digest}".encode()).hexdigest()[:16]
    return f"ai-models-{work}-{mark}"


def rendered(contents: Contents) -> str:
    """Render what lies in a claim for its annotation."""
    raw = {key: {"bytes": one.size_bytes, "held": one.held} for key, one in sorted(contents.items())}
    return json.dumps(raw, separators=(",", ":"))


def claim_body(namespace: str, name: str, class_name: str, size_bytes: int) -> Raw:
    """Write a claim: nobody owns it, all workloads of its namespace share it."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace, "labels": _labels(name)},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": class_name,
            "resources": {"requests": {"storage": quantity(size_bytes)}},
        },
    }


def quantity(size_bytes: int) -> str:
    """Write a number of bytes as Kubernetes does, in whole MiB.

    >>> quantity(2**30 + 1)
    '1025Mi'
    """
    return f"{-(-size_bytes // MIB)}Mi"


def policy_body(puller: Puller, claim: Claim) -> Raw:
    """Write who the Jobs of a claim may talk to: names, registry, issuer and store; nobody may talk to them."""
    home = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": puller.home}}}

    def app(name: str, port: int) -> Raw:
        peer = {**home, "podSelector": {"matchLabels": {"app": name}}}
        return {"to": [peer], "ports": [{"protocol": "TCP", "port": port}]}

    egress: list[Raw] = [
        {"ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]},
        app("ai-models-dmcr", 5000),
        app("ai-models-webhook", 8443),
    ]
    if puller.redirect_url:
        # Which Pods or hosts stand behind the name of a store is not known here.
        egress.append({"ports": [{"protocol": "TCP", "port": puller.redirect_port}]})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": claim.name,
            "namespace": claim.namespace,
            "labels": _labels(claim.name),
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": claim.name, "uid": claim.uid}
            ],
        },
        "spec": {
            "podSelector": {"matchLabels": {names.LABEL_SHARED_CLAIM: claim.name}},
            "policyTypes": ["Ingress", "Egress"],
            "egress": egress,
        },
    }


def job_body(puller: Puller, claim: Claim, work: Work, digest: str, *, scope: str = "", size_bytes: int = 0) -> Raw:
    """Write a Job that brings a model into a claim, or removes one.

    Its Pod has no Secret and no right at the API server: it shows a token of the namespace's own ServiceAccount
    `default`, meant for the registry alone, which may read what any Pod of the namespace may.
    """
    target = f"{MOUNT}/{names.BY_DIGEST}/{digest}"
    words = ["rm", "--dir", target]
    if work is Work.PULL:
        words = ["pull", "--from", f"{puller.registry_url}/{scope}@sha256:{digest}", "--to", target]
        words += ["--token-file", f"{_FILES}/token"]
        words += ["--ca-file", f"{_FILES}/ca.crt"] if puller.authorities else []
        words += ["--redirect-url", puller.redirect_url] if puller.redirect_url else []
    notes = {names.ANNOTATION_SHARED_WORK: f"{work} {digest}"}
    labels = _labels(claim.name)
    template = {
        "metadata": {
            "labels": {**labels, **_NO_MESH_LABELS},
            "annotations": {**notes, **_NO_MESH, _ANNOTATION_CA: puller.authorities},
        },
        "spec": _pod(puller, claim.name, words),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": job_name(claim.name, work, digest),
            "namespace": claim.namespace,
            "labels": labels,
            "annotations": notes,
        },
        "spec": {
            "backoffLimit": RETRIES,
            "activeDeadlineSeconds": _LEAST_SECONDS + size_bytes // _SLOWEST_BYTES_PER_SECOND,
            "ttlSecondsAfterFinished": SECONDS_AFTER_END,
            "template": template,
        },
    }


def _pod(puller: Puller, claim: str, words: list[str]) -> Raw:
    container = {
        "name": "pull",
        "image": puller.image,
        "imagePullPolicy": puller.pull_policy,
        "command": ["ai-models", *words],
        "resources": {"requests": _RESOURCES, "limits": _RESOURCES},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "models", "mountPath": MOUNT},
            {"name": "registry", "mountPath": _FILES, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the Pod's own
        ],
    }
    token = {"audience": _AUDIENCE, "expirationSeconds": 3600, "path": "token"}
    authorities = {"path": "ca.crt", "fieldRef": {"fieldPath": f"metadata.annotations['{_ANNOTATION_CA}']"}}
    files = [{"serviceAccountToken": token}, {"downwardAPI": {"items": [authorities]}}]
    return {
        "restartPolicy": "Never",
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "serviceAccountName": "default",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _UID,
            "runAsGroup": _UID,
            "fsGroup": _UID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            {"name": "models", "persistentVolumeClaim": {"claimName": claim}},
            {"name": "registry", "projected": {"sources": files}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
        ],
    }


def _labels(claim: str) -> dict[str, str]:
    return {names.LABEL_SHARED: "true", names.LABEL_SHARED_CLAIM: claim, "app.kubernetes.io/managed-by": "ai-models"}
