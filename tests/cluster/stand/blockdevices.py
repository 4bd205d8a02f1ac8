"""Block devices as the storage operator of a cluster shows them: BlockDevice objects, one per node, for a loop device.

The definition has the fields of storage.deckhouse.io/v1alpha1 that its users read; nobody keeps the objects here.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence

from tests.cluster.stand import blocks
from tests.cluster.stand.cluster import Cluster
from tests.cluster.stand.kubectl import Kubectl, Object

KIND = "blockdevices.storage.deckhouse.io"
LABEL = "ai.deckhouse.io/model-cache"
_STATUS = {
    "nodeName": "string",
    "path": "string",
    "size": "string",
    "serial": "string",
    "fsType": "string",
    "consumable": "boolean",
}


@contextlib.contextmanager
def labelled(stand: Cluster, nodes: Sequence[str], *, size_bytes: int) -> Iterator[Mapping[str, blocks.Block]]:
    """Give nodes an empty device each, labelled like the nodes; all of it is taken away again."""
    kubectl, held = Kubectl(), {}
    kubectl.apply(definition())
    kubectl("wait", "--for=condition=Established", f"crd/{KIND}", "--timeout=30s")
    try:
        for node in nodes:
            held[node] = blocks.attach(stand.layout, f"cache-{node}", size_bytes=size_bytes)
            kubectl.apply(_object(node, held[node], size_bytes))
            kubectl("label", "node", node, f"{LABEL}=true", "--overwrite")
        yield held
    finally:
        for node, block in held.items():
            kubectl("label", "node", node, f"{LABEL}-")
            kubectl("delete", KIND, f"dev-{node}", "--ignore-not-found")
            block.detach()


def definition() -> Object:
    """The definition of BlockDevice."""
    fields = {name: {"type": kind} for name, kind in _STATUS.items()}
    status = {"type": "object", "properties": fields, "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"status": status}}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    group, plural = KIND.partition(".")[2], KIND.partition(".")[0]
    kinds = {"kind": "BlockDevice", "plural": plural, "singular": "blockdevice", "shortNames": ["bd"]}
    spec = {"group": group, "scope": "Cluster", "names": kinds, "versions": [version]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": KIND},
        "spec": spec,
    }


def _object(node: str, block: blocks.Block, size_bytes: int) -> Object:
    status = {
        "nodeName": node,
        "path": str(block.device),
        "size": str(size_bytes),
        "serial": re.sub(r"\W", "", block.file.name),
        "fsType": "",
        "consumable": True,
    }
    meta = {"name": f"dev-{node}", "labels": {LABEL: "true"}}
    return {"apiVersion": "storage.deckhouse.io/v1alpha1", "kind": "BlockDevice", "metadata": meta, "status": status}
