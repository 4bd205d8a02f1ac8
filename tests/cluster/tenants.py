"""Pods of tenants that read models through the registry, by the tokens of their ServiceAccounts. See `tenant`."""

import json
from pathlib import Path

from tests.cluster import installed
from tests.cluster.stand import product
from tests.cluster.stand.kubectl import Kubectl, Object

NAME = "tenant"
_CODE = Path(__file__).parent / "tenant.py"
_PROBER = Path(__file__).parent / "prober.py"


def start(space: Kubectl, more: str = "") -> None:
    """Start the one of a namespace, and wait until it is ready; `more` are further authorities that it trusts."""
    authorities = installed.value("ai-models-serving-root", "tls.crt") + more
    space.apply(_map("ca", "ca.crt", authorities), _map("code", "tenant.py", _CODE.read_text()), _pod(NAME))
    space.ready(NAME, seconds=90)


def start_prober(space: Kubectl) -> None:
    """Start a Pod that asks the registry all the time, and wait until it does."""
    authority = _map("ca", "ca.crt", installed.value("ai-models-serving-root", "tls.crt"))
    space.apply(authority, _map("code", "prober.py", _PROBER.read_text()), _pod("prober", "python3", "/code/prober.py"))
    space.ready("prober", seconds=90)


def probed(space: Kubectl) -> tuple[int, list[str]]:
    """How often the prober was answered, and what went wrong."""
    lines = space("logs", "prober", "--tail=-1").splitlines()
    return lines.count("answered"), [line for line in lines if line != "answered"]


def read(space: Kubectl, repository: str, digest: str, store: str = "") -> tuple[dict[str, int], str]:
    """What it read of a model, and what it complained of."""
    done = space.attempt("exec", NAME, "--", "python3", "/code/tenant.py", repository, digest, store)
    return (json.loads(done.stdout) if done.returncode == 0 else {}), done.stderr


def _map(name: str, key: str, text: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {key: text}}


def _pod(name: str, *command: str) -> Object:
    sources = [
        {"serviceAccountToken": {"audience": "ai-models-dmcr", "expirationSeconds": 600, "path": "token"}},
        {"configMap": {"name": "ca"}},
    ]
    mounts = [{"name": "registry", "mountPath": "/run/registry"}, {"name": "code", "mountPath": "/code"}]
    image = product.image_name("jobs")
    main = {"name": "main", "image": image, "command": list(command or ("sleep", "infinity")), "volumeMounts": mounts}
    volumes = [{"name": "registry", "projected": {"sources": sources}}, {"name": "code", "configMap": {"name": "code"}}]
    spec = {"containers": [main], "volumes": volumes, "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
