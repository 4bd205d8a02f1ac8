"""Faults that the stand can make: a shaped NIC, lost and frozen nodes, restarts; and a node added later."""

import time
from collections.abc import Iterator

import pytest

from tests.cluster.stand.cluster import Cluster
from tests.cluster.stand.kubectl import Kubectl, condition, pod
from tests.cluster.stand.layout import StandError
from tests.cluster.stand.node import Node
from tests.cluster.stand.waiting import attempt, until

MIB = 1024**2
GONE_SECONDS = 60.0


@pytest.fixture
def last(stand: Cluster) -> Iterator[Node]:
    """A node that a test may harm; it is Ready again afterwards."""
    node = stand.node("node-c")
    yield node
    if not node.holder.running():
        node.start()
    node.thaw()
    node.connect()
    node.unshape()
    stand.wait_for_nodes(*(found.name for found in stand.nodes))


def impatient(name: str, node: str) -> dict[str, object]:
    """A Pod that is evicted one second after its node is lost."""
    lost = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
    tolerations = [{"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1} for key in lost]
    where = {"kubernetes.io/hostname": node}
    return pod(name, nodeSelector=where, tolerations=tolerations, terminationGracePeriodSeconds=5)


def test_shaping_limits_the_nic_in_both_directions(space: Kubectl, last: Node) -> None:
    space.apply(pod("source", nodeName="node-a"), pod("sink", nodeName="node-c"))
    space.ready("source", "sink")
    last.shape(80)
    seconds = {
        ("source", "sink"): transfer(space, "source", "sink", mebibytes=20),
        ("sink", "source"): transfer(space, "sink", "source", mebibytes=20),
    }

    for direction, taken in seconds.items():
        megabits = 20 * MIB * 8 / taken / 1e6
        assert 40 < megabits < 100, f"{direction}: want about 80 Mbit/s, got {megabits:.0f}"


def transfer(space: Kubectl, source: str, target: str, *, mebibytes: int) -> float:
    """Seconds that it takes to send some zeros between two Pods, as the receiver sees it."""
    address = space.get("pod", target)["status"]["podIP"]
    listen = "(sleep 120 | nc -l -p 9000 | wc -c > /tmp/count) </dev/null >/dev/null 2>&1 &"  # nc ends with its input
    space.exec(target, "sh", "-c", f"rm -f /tmp/count; {listen}")
    send = f"until dd if=/dev/zero bs=1M count={mebibytes} 2>/dev/null | nc {address} 9000; do sleep 0.1; done"
    started = time.monotonic()
    space.exec(source, "sh", "-c", send)

    def received() -> str:
        return attempt("kubectl", f"--namespace={space.namespace}", "exec", target, "--", "cat", "/tmp/count").stdout

    assert int(until(received, what="all bytes", seconds=60)) == mebibytes * MIB
    return time.monotonic() - started


def test_lost_node_is_not_ready_and_its_pods_are_evicted(space: Kubectl, stand: Cluster, last: Node) -> None:
    space.apply(impatient("victim", last.name), pod("witness", nodeName="node-a"))
    space.ready("victim", "witness")
    last.disconnect()
    stand.wait_for_nodes(last.name, status="Unknown", seconds=GONE_SECONDS)
    evicted = space.until("pod", "victim", lambda found: found["metadata"].get("deletionTimestamp"))
    last.connect()
    stand.wait_for_nodes(last.name)
    until(lambda: not space.items("pods", "app=victim"), what="evicted Pod gone", seconds=GONE_SECONDS, pause=0.5)

    assert evicted["spec"]["nodeName"] == last.name
    assert condition(space.get("pod", "witness"), "Ready") == "True"


def test_killed_node_comes_back_with_its_disk(space: Kubectl, stand: Cluster, last: Node) -> None:
    script = "echo x >> /disk/boots; exec sleep infinity"
    volume = {"name": "disk", "hostPath": {"path": "/var/lib/boots", "type": "DirectoryOrCreate"}}
    mount = {"volumeMounts": [{"name": "disk", "mountPath": "/disk"}]}
    space.apply(pod("counter", command=["sh", "-c", script], nodeName=last.name, volumes=[volume], container=mount))
    space.ready("counter")
    last.kill()
    with pytest.raises(StandError):
        last.run("true")
    last.start()
    stand.wait_for_nodes(last.name)
    space.until("pod", "counter", lambda found: found["status"]["containerStatuses"][0]["restartCount"] > 0)
    space.ready("counter")

    assert last.run("cat", "/var/lib/boots/boots") == "x\nx\n"


def test_frozen_node_is_lost_and_goes_on_when_thawed(stand: Cluster, last: Node) -> None:
    last.freeze()
    stand.wait_for_nodes(last.name, status="Unknown", seconds=GONE_SECONDS)
    last.thaw()

    stand.wait_for_nodes(last.name)


def test_pods_outlive_restarts_of_kubelet_and_containerd(space: Kubectl, last: Node) -> None:
    space.apply(pod("steady", nodeName=last.name))
    space.ready("steady")
    before = space.get("pod", "steady")["status"]["containerStatuses"][0]
    last.kubelet.kill()
    last.containerd.kill()
    last.containerd.start()
    last.wait_for_containerd()
    last.kubelet.start()
    until(lambda: attempt_exec(space, "steady"), what="exec after the restarts", seconds=60, pause=0.5)

    after = space.get("pod", "steady")["status"]["containerStatuses"][0]
    assert (after["containerID"], after["restartCount"]) == (before["containerID"], 0)


def attempt_exec(space: Kubectl, name: str) -> bool:
    return space.attempt("exec", name, "--", "true").returncode == 0


def test_cluster_goes_on_after_restarts_of_api_server_and_scheduler(space: Kubectl, stand: Cluster) -> None:
    plane = stand.control_plane
    space.apply(pod("before"))
    space.ready("before")
    plane.scheduler.kill()
    plane.apiserver.kill()
    refused = space.attempt("get", "pods")
    plane.apiserver.start()
    plane.wait()
    space.apply(pod("after"))
    waiting = space.get("pod", "after")
    plane.scheduler.start()
    space.ready("after", "before")

    assert refused.returncode != 0
    assert "nodeName" not in waiting["spec"]


def test_frozen_api_server_answers_nobody_until_it_is_thawed(space: Kubectl, stand: Cluster) -> None:
    stand.control_plane.apiserver.freeze()
    try:
        silent = space.attempt("get", "pods", "--request-timeout=2s")
    finally:
        stand.control_plane.apiserver.thaw()
    stand.control_plane.wait()

    assert silent.returncode != 0
    assert space.items("pods") == []


def test_node_added_later_runs_pods(space: Kubectl, stand: Cluster) -> None:
    node = stand.add_node("node-d")
    try:
        space.apply(pod("newcomer", nodeName=node.name))
        space.ready("newcomer")
        address = space.get("pod", "newcomer")["status"]["podIP"]
    finally:
        stand.remove_node(node)

    assert address.startswith("10.88.14.")
    assert "node-d" not in {found["metadata"]["name"] for found in Kubectl().items("nodes")}
