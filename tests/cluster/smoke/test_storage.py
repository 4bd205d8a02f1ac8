"""Claims on the default storage class, block devices, and mount propagation between Pods of a node."""

from collections.abc import Iterator

import pytest

from tests.cluster.stand import blocks
from tests.cluster.stand.cluster import Cluster
from tests.cluster.stand.kubectl import Kubectl, Object, pod

MIB = 1024**2


@pytest.fixture
def block(stand: Cluster) -> Iterator[blocks.Block]:
    made = blocks.attach(stand.layout, "disk", size_bytes=64 * MIB)
    yield made
    made.detach()


def mounting(name: str, node: str, volume: Object, *, mount: Object, command: list[str], **container: object) -> Object:
    return pod(
        name,
        command=command,
        nodeSelector={"kubernetes.io/hostname": node},
        volumes=[{"name": "data", **volume}],
        container={"volumeMounts": [{"name": "data", **mount}], **container},
    )


def test_rwx_claim_written_on_one_node_is_read_on_another(space: Kubectl) -> None:
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    volume = {"persistentVolumeClaim": {"claimName": "shared"}}
    mount = {"mountPath": "/data"}
    write = ["sh", "-c", "echo from-a > /data/file; exec sleep infinity"]
    read = ["sh", "-c", "until cat /data/file; do sleep 0.2; done; exec sleep infinity"]
    space.apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "shared"}, "spec": claim})
    space.apply(mounting("writer", "node-a", volume, mount=mount, command=write))
    space.apply(mounting("reader", "node-b", volume, mount=mount, command=read))
    space.ready("writer", "reader")

    assert space.exec("reader", "cat", "/data/file") == "from-a\n"
    assert space.get("persistentvolumeclaim", "shared")["spec"]["storageClassName"] == "shared"


def test_host_path_is_the_nodes_own(space: Kubectl) -> None:
    volume = {"hostPath": {"path": "/var/lib/example", "type": "DirectoryOrCreate"}}
    write = ["sh", "-c", "hostname > /data/$(hostname); exec sleep infinity"]
    for name, node in {"one": "node-a", "two": "node-b"}.items():
        space.apply(mounting(name, node, volume, mount={"mountPath": "/data"}, command=write))
    space.ready("one", "two")

    assert space.exec("one", "ls", "/data").split() == ["one"]
    assert space.exec("two", "ls", "/data").split() == ["two"]


def test_file_system_mounted_by_a_privileged_pod_is_seen_by_another(space: Kubectl, block: blocks.Block) -> None:
    volume = {"hostPath": {"path": "/var/lib/stores", "type": "DirectoryOrCreate"}}
    both_ways = {"mountPath": "/stores", "mountPropagation": "Bidirectional"}
    inwards = {"mountPath": "/stores", "mountPropagation": "HostToContainer"}
    privileged = {"securityContext": {"privileged": True}}
    script = f"""
        set -e
        mke2fs -F -q {block.device} || mke2fs {block.device}
        mkdir -p /stores/one
        mount -t ext4 {block.device} /stores/one
        echo held > /stores/one/file
        touch /tmp/done
        exec sleep infinity"""
    ready = {"exec": {"command": ["test", "-e", "/tmp/done"]}, "periodSeconds": 1}
    wait = ["sleep", "infinity"]
    space.apply(
        mounting("reader", "node-c", volume, mount=inwards, command=wait),
        mounting("mounter", "node-c", volume, mount=both_ways, command=["sh", "-c", script], **privileged,
                 readinessProbe=ready),
    )  # fmt: skip
    space.ready("reader", "mounter")
    seen = space.exec("reader", "cat", "/stores/one/file")
    mounts = space.exec("reader", "cat", "/proc/mounts")
    space.exec("mounter", "umount", "/stores/one")

    assert seen == "held\n"
    assert f"{block.device} /stores/one ext" in mounts
    assert space.exec("reader", "ls", "/stores/one") == ""
