"""A CSI driver with inline volumes: a plugin in a privileged Pod registers with kubelet, another Pod mounts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.smoke import csi_plugin
from tests.cluster.stand.kubectl import Kubectl, Object, pod

SCRIPT = Path(csi_plugin.__file__).read_text()


def plugin(node: str) -> Object:
    folder = {"name": "kubelet", "hostPath": {"path": csi_plugin.ROOT}}
    mount = {"name": "kubelet", "mountPath": csi_plugin.ROOT, "mountPropagation": "Bidirectional"}
    return pod(
        "plugin",
        "localhost/ai-models-nodecache:1",
        command=["python3", "-c", SCRIPT],
        nodeName=node,
        volumes=[folder],
        container={
            "securityContext": {"privileged": True, "runAsUser": 0},
            "volumeMounts": [mount],
            "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        },
    )


@pytest.fixture
def driver(space: Kubectl) -> Iterator[str]:
    spec = {"attachRequired": False, "podInfoOnMount": True, "volumeLifecycleModes": ["Ephemeral"]}
    metadata = {"name": csi_plugin.NAME}
    space.apply({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": metadata, "spec": spec})
    yield csi_plugin.NAME
    space("delete", "csidriver", csi_plugin.NAME)


def test_pod_mounts_an_inline_volume_of_a_plugin_that_registered_itself(space: Kubectl, driver: str) -> None:
    space.apply(plugin("node-a"))
    space.ready("plugin")
    space.until(
        "csinode", "node-a", lambda found: driver in [entry["name"] for entry in found["spec"]["drivers"] or []]
    )
    volume = {"name": "inline", "csi": {"driver": driver, "readOnly": True}}
    mount = {"volumeMounts": [{"name": "inline", "mountPath": "/inline"}]}
    space.apply(pod("user", nodeName="node-a", volumes=[volume], container=mount))
    space.ready("user")
    content = space.exec("user", "cat", "/inline/volume")
    written = space.attempt("exec", "user", "--", "touch", "/inline/other")
    space("delete", "pod", "user", "--timeout=60s")

    assert content.startswith("csi-")
    assert "Read-only file system" in written.stderr
