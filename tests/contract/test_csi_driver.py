"""The CSI driver of a node: its process, kubelet's calls over gRPC, real mounts in a mount namespace of their own."""

import concurrent.futures
import contextlib
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]  # has no types
import pytest

from aimodels_core import names
from aimodels_core.digest import Digest
from tests.support import binaries
from tests.support.csinode import CsiNode, call, csi_node
from tests.support.processes import wait_for

pytestmark = pytest.mark.timeout(120)

ROUNDS = 100
SANITY_TRIES, SANITY_SECONDS = 4, 25.0
MAX_RSS_BYTES = 60 * 1024 * 1024
OF_CONTROLLERS = (
    "should work",
    "should be idempotent",
    "should remove target path",
    "does not exist on the specified path",
)
"""Of csi-sanity: about volumes that a controller makes; there is none."""


@pytest.fixture
def node() -> Iterator[CsiNode]:
    with csi_node() as made:
        made.start(WAIT_SECONDS="5", ORPHAN_SECONDS="1")
        yield made


def test_kubelet_finds_the_driver_and_takes_it(node: CsiNode) -> None:
    with grpc.insecure_channel(f"unix:{node.entry}") as channel:
        info = call(channel, "pluginregistration.Registration/GetInfo").message
        assert (info.type, info.name, list(info.supported_versions)) == ("CSIPlugin", names.CSI_DRIVER, ["1.0.0"])
        assert f"unix:{info.endpoint}" == node.endpoint
        assert not node.healthy("/readyz")
        assert (
            call(channel, "pluginregistration.Registration/NotifyRegistrationStatus", plugin_registered=True).code
            == "OK"
        )
        assert node.healthy("/readyz")
        refused: dict[str, Any] = {"plugin_registered": False, "error": "another one"}
        call(channel, "pluginregistration.Registration/NotifyRegistrationStatus", **refused)
    assert node.process is not None
    assert node.process.wait(20) == 1
    assert not node.entry.exists()


def test_pod_reads_what_it_was_told_that_it_gets_and_cannot_write(node: CsiNode) -> None:
    pod = node.pod("web", {"m": node.tree("one"), "n": node.tree("two")})

    assert (node.publish(pod, "m").code, node.publish(pod, "n").code, node.publish(pod, "m").code) == ("OK", "OK", "OK")
    assert (node.file(pod, "m").read_text(), node.file(pod, "n").read_text()) == ("one", "two")
    assert node.file(pod, "m", "onnx/model.onnx").read_text() == "weights"
    with pytest.raises(OSError, match="Read-only"):
        (node.file(pod, "m").parent / "new").touch()
    assert len(node.mounts()) == 2
    assert node.records() == {pod.uid}
    stats = node.call("NodeGetVolumeStats", volume_id="v", volume_path=str(node.target(pod, "volume-web-m"))).message
    assert [(usage.unit, usage.used) for usage in stats.usage] == [(1, len("one") + len("weights")), (2, 3)]


def test_o66_what_is_unpublished_is_gone_however_often_it_is_asked_for(node: CsiNode, tmp_path: Path) -> None:
    pod = node.pod("web", {"m": node.tree("one"), "n": node.tree("two")})
    node.publish(pod, "m")
    node.publish(pod, "n")

    assert node.unpublish(pod, "m").code == "OK"
    assert node.records() == {pod.uid}, "the other volume is there"
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        codes = {answer.code for answer in pool.map(lambda _: node.unpublish(pod, "n"), range(2))}
    assert codes <= {"OK", "ABORTED"}, "kubelet asks again after the latter"
    assert node.unpublish(pod, "n").code == "OK"
    assert (node.mounts(), node.records()) == ([], set())
    unknown = node.call("NodeUnpublishVolume", volume_id="v", target_path=str(node.kubelet / "nowhere"))
    foreign = node.call("NodeUnpublishVolume", volume_id="v", target_path=str(tmp_path))
    assert (unknown.code, foreign.code) == ("OK", "OK")
    assert tmp_path.exists()


def test_attributes_open_nothing(node: CsiNode) -> None:
    digest = node.tree("one")
    pod, other = node.pod("web", {"m": digest}), node.pod("other", {})
    elsewhere = node.pod("far", {"m": digest}, node="node-b")
    untold = node.pod("untold", {"x": digest})
    stranger = node.pod("stranger", {"m": digest}, namespace="others")
    forged: dict[str, Any] = {"volume_context": {**pod.context("m"), "csi.storage.k8s.io/pod.uid": other.uid}}
    context = {**untold.context("m"), "digest": str(digest), "ai.deckhouse.io/digest": str(digest)}

    assert node.publish(pod, "m", **forged).code in {"INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED"}
    assert node.publish(elsewhere, "m").code == "PERMISSION_DENIED"
    assert node.publish(untold, "m", volume_context=context).code == "PERMISSION_DENIED"
    moved: dict[str, Any] = {"volume_context": {**stranger.context("m"), "csi.storage.k8s.io/pod.namespace": "team"}}
    assert node.publish(stranger, "m", **moved).code in {"NOT_FOUND", "PERMISSION_DENIED"}
    assert (node.mounts(), node.records()) == ([], set())


def test_model_that_comes_within_the_call_is_mounted_and_recorded_before_that(node: CsiNode) -> None:
    digest = Digest.of(b"late")
    pod = node.pod("web", {"m": digest})

    def comes() -> None:
        wait_for(lambda: node.records() == {pod.uid}, "a record")
        node.tree("late")

    coming = threading.Thread(target=comes)
    coming.start()
    answer = node.publish(pod, "m")
    coming.join()

    assert answer.code == "OK"
    assert node.file(pod, "m").read_text() == "late"


def test_model_that_does_not_come_is_said_so_and_pod_that_is_told_later_waits(node: CsiNode) -> None:
    answer = node.publish(node.pod("web", {"m": Digest.of(b"never")}), "m")
    assert (answer.code, "not on this node yet" in answer.words) == ("UNAVAILABLE", True)

    pod, digest = node.pod("bound", None), node.tree("one")

    def told() -> None:
        wait_for(lambda: node.metric("aimodels_csi_waiting") > 0, "a waiter")
        node.tell(pod, {"m": digest})

    teller = threading.Thread(target=told)
    teller.start()
    answer = node.publish(pod, "m")
    teller.join()
    assert answer.code == "OK"


def test_while_the_api_server_is_away_what_was_recorded_is_mounted_again(node: CsiNode) -> None:
    pod = node.pod("web", {"m": node.tree("one")})
    node.publish(pod, "m")
    node.api.refuse = 503
    assert node.publish(pod, "m", "volume-again").code == "OK"
    stranger = node.pod("stranger", {"m": Digest.of(b"one")})
    assert node.publish(stranger, "m").code == "UNAVAILABLE"


def test_o67_killed_driver_leaves_mounts_to_pods_and_the_next_one_goes_on(node: CsiNode) -> None:
    pod = node.pod("web", {"m": node.tree("one")})
    node.publish(pod, "m")
    node.stop(signal.SIGKILL)
    assert node.file(pod, "m").read_text() == "one"
    node.start()

    assert node.unpublish(pod, "m").code == "OK"
    assert (node.mounts(), node.records()) == ([], set())


def test_what_pods_left_that_are_gone_is_collected_but_not_while_the_api_server_is_away(node: CsiNode) -> None:
    pod, stays = node.pod("web", {"m": node.tree("one")}), node.pod("stays", {"m": node.tree("one2")})
    node.publish(pod, "m")
    node.publish(stays, "m")
    node.api.refuse = 503
    del node.api.pods["team", "web"]
    before = node.log.read_text().count("orphans were not looked for")
    wait_for(lambda: node.log.read_text().count("orphans were not looked for") > before + 2, "looks", seconds=30)
    assert node.records() == {pod.uid, stays.uid}
    node.api.refuse = 0
    wait_for(lambda: node.records() == {stays.uid}, "an orphan collected", seconds=30)

    assert len(node.mounts()) == 1


def test_o68_a_target_outside_of_kubelets_folder_is_an_error_and_never_an_empty_volume(
    node: CsiNode, tmp_path: Path
) -> None:
    pod = node.pod("web", {"m": node.tree("one")})
    target = tmp_path / "pods" / pod.uid / "volumes" / "kubernetes.io~csi" / "v" / "mount"
    target.parent.mkdir(parents=True)
    answer = node.publish(pod, "m", target_path=str(target))

    assert answer.code == "INVALID_ARGUMENT"
    assert str(node.kubelet) in answer.words
    assert (node.mounts(), node.records(), target.exists()) == ([], set(), False)


def test_o71_a_record_stays_while_one_volume_goes_and_another_comes(node: CsiNode) -> None:
    digest = node.tree("one")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for number in range(ROUNDS):
            pod = node.pod(f"web-{number}", {"m": digest})
            node.publish(pod, "m", "first")
            going = pool.submit(node.unpublish, pod, "m", "first")
            coming = pool.submit(node.publish, pod, "m", "second")
            assert (going.result().code, coming.result().code) == ("OK", "OK")
            assert node.records() == {pod.uid}, "the second volume is there"
            assert node.unpublish(pod, "m", "second").code == "OK"
            assert node.records() == set()


def test_sixty_four_pods_at_once_and_little_memory(node: CsiNode) -> None:
    digest = node.tree("one")
    pods = [node.pod(f"web-{number}", {"m": digest}) for number in range(64)]
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        codes = list(pool.map(lambda pod: node.publish(pod, "m").code, pods))
    assert node.process is not None
    status = Path(f"/proc/{node.process.pid}/status").read_text()

    assert codes == ["OK"] * 64
    assert len(node.mounts()) == 64
    assert int(status.partition("VmRSS:")[2].split()[0]) * 1024 <= MAX_RSS_BYTES
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        assert list(pool.map(lambda pod: node.unpublish(pod, "m").code, pods)) == ["OK"] * 64
    assert (node.mounts(), node.records()) == ([], set())


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[str]:
    """A controller that can do one thing, of type UNKNOWN: csi-sanity wants one also of drivers that have none."""

    def nothing(_: bytes, __: object) -> bytes:
        return b"\x0a\x02\x0a\x00"

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
    answers = {"ControllerGetCapabilities": grpc.unary_unary_rpc_method_handler(nothing)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("csi.v1.Controller", answers),))
    server.add_insecure_port(f"unix:{tmp_path}/controller.sock")
    server.start()
    yield f"{tmp_path}/controller.sock"
    server.stop(0).wait(10)


def run_sanity(words: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run it; it waits a minute in vain when a connection is made faster than it looks (csi-test, utils.Connect)."""
    for _ in range(SANITY_TRIES):
        with contextlib.suppress(subprocess.TimeoutExpired):
            return subprocess.run(
                words, env=environment, capture_output=True, text=True, timeout=SANITY_SECONDS, check=False
            )
    raise AssertionError(f"csi-sanity: did not end within {SANITY_SECONDS:g} s, {SANITY_TRIES} times")


@pytest.mark.parametrize(("service", "least"), [("Identity", 3), ("Node", 10)])
def test_csi_sanity(node: CsiNode, controller: str, tmp_path: Path, service: str, least: int) -> None:
    words = [str(binaries.path("csi-sanity")), f"--csi.endpoint={node.kubelet}/plugins/{names.CSI_DRIVER}/csi.sock"]
    words += [f"--csi.mountdir={tmp_path}/mount", f"--csi.stagingdir={tmp_path}/stage", "--ginkgo.no-color"]
    words += [f"--ginkgo.focus={service} Service", f"--ginkgo.skip={'|'.join(OF_CONTROLLERS)}"]
    words += [f"--csi.controllerendpoint={controller}"] if service == "Node" else []
    done = run_sanity(node.within(*words), {"PATH": os.environ["PATH"], "HOME": str(tmp_path)})

    assert done.returncode == 0, done.stdout[:4000]
    assert " 0 Failed" in done.stdout
    assert int(re.findall(r"(\d+) Passed", done.stdout)[0]) >= least
