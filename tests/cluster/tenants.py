"""Pods of tenants that read models through the registry, by the tokens of their ServiceAccounts. See `tenant`."""

import json
from pathlib import Path

from tests.cluster import installed
from tests.cluster.stand import product
from tests.cluster.stand.kubectl import Kubectl, Object

NAME = "tenant"
_CODE = Path(__file__).parent / "tenant.py"


def start(space: Kubectl, more: str = "") -> None:
    """Start the one of a namespace, and wait until it is ready; `more` are further authorities that it trusts."""
    authorities = installed.value("ai-models-serving-root", "tls.crt") + more
    space.apply(_map("ca", "ca.crt", authorities), _map("code", "tenant.py", _CODE.read_text()), _pod())
    space.ready(NAME, seconds=90)


def read(space: Kubectl, repository: str, digest: str, store: str = "") -> tuple[dict[str, int], str]:
    """What it read of a model, and what it complained of."""
    done = space.attempt("exec", NAME, "--", "python3", "/code/tenant.py", repository, digest, store)
    return (json.loads(done.stdout) if done.returncode == 0 else {}), done.stderr


def _map(name: str, key: str, text: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {key: text}}


def _pod() -> Object:
    sources = [
        {"serviceAccountToken": {"audience": "ai-models-dmcr", "expirationSeconds": 600, "path": "token"}},
        {"configMap": {"name": "ca"}},
    ]
    mounts = [{"name": "registry", "mountPath": "/run/registry"}, {"name": "code", "mountPath": "/code"}]
    image = product.image_name("jobs")
    main = {"name": "main", "image": image, "command": ["sleep", "infinity"], "volumeMounts": mounts}
    volumes = [{"name": "registry", "projected": {"sources": sources}}, {"name": "code", "configMap": {"name": "code"}}]
    spec = {"containers": [main], "volumes": volumes, "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": NAME}, "spec": spec}
