"""The product as an administrator's ModuleConfig has it, over the stand's S3: the examples as they are."""

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.cluster import installed as product
from tests.cluster.operating import secret
from tests.cluster.stand import chart
from tests.cluster.stand.addons import S3_ACCESS_KEY, S3_SECRET_KEY
from tests.cluster.stand.chart import SYSTEM
from tests.cluster.stand.cluster import Cluster
from tests.cluster.stand.kubectl import Kubectl, Object
from tests.cluster.stand.layout import CHECKOUT
from tests.cluster.stand.waiting import command
from tests.support.hub.server import Hub

BUCKET, KEYS = "ai-models", "ai-models-artifacts"
"""As the examples name them."""
AUTHORITY = ("artifacts.caSecretName=ai-models-artifacts-ca",)
"""What no example has: nobody else knows the authority of the stand's S3."""


@contextlib.contextmanager
def installed(stand: Cluster, hub: Hub, config: str, *settings: str, token: str = "") -> Iterator[None]:
    """Everything, by a ModuleConfig of the examples and further settings; nothing is left afterwards."""
    bucket = stand.layout.root / "s3" / BUCKET
    bucket.mkdir()
    chart.namespaces()
    Kubectl().apply(_definition())
    Kubectl()("wait", "--for=condition=Established", "crd/moduleconfigs.deckhouse.io", "--timeout=30s")
    Kubectl(SYSTEM).apply(
        secret(KEYS, {"accessKey": S3_ACCESS_KEY, "secretKey": S3_SECRET_KEY}),
        secret("ai-models-artifacts-ca", {"ca.crt": stand.layout.ca.read_text()}),
    )
    try:
        with product.whole(hub, *AUTHORITY, *settings, token=token, config=values(config)):
            yield
    finally:
        Kubectl()("delete", "moduleconfig", "ai-models")
        shutil.rmtree(bucket)


def values(config: str) -> Path:
    """Apply a ModuleConfig of the examples, and have the command line say what it means for Helm; returns the file."""
    path = CHECKOUT / "examples" / config
    Kubectl()("apply", f"--filename={path}")
    found = CHECKOUT / "build" / "cluster" / f"values-{config}"
    found.parent.mkdir(parents=True, exist_ok=True)
    found.write_text(command(Path(sys.executable).with_name("ai-models"), "values", "--leave-out", path))
    return found


def _definition() -> Object:
    """ModuleConfig, as far as these tests need it: Deckhouse has the whole."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    kinds = {"kind": "ModuleConfig", "plural": "moduleconfigs", "singular": "moduleconfig"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "moduleconfigs.deckhouse.io"},
        "spec": {"group": "deckhouse.io", "scope": "Cluster", "names": kinds, "versions": [version]},
    }
