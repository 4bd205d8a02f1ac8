"""Block devices of a node, made ready by the driver: real loop devices, real file systems, a mount namespace."""

import contextlib
import hashlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aimodels_core.nodes import Device
from aimodels_nodecache.cache import Cache
from aimodels_nodecache.substrates import LABEL
from aimodels_nodecache.trees import MARK
from tests.support.csinode import NODE, CsiNode, csi_node
from tests.support.processes import wait_for

pytestmark = pytest.mark.timeout(120)

MIB = 1024 * 1024
Attach = Callable[[str], Path]


@pytest.fixture
def node() -> Iterator[CsiNode]:
    with csi_node() as made:
        yield made


@pytest.fixture
def attach(tmp_path: Path) -> Iterator[Attach]:
    """Makes an empty block device of some name."""
    with contextlib.ExitStack() as closing:

        def made(name: str) -> Path:
            file = tmp_path / name
            with file.open("wb") as handle:
                handle.truncate(64 * MIB)
            words = ["losetup", "--find", "--show", str(file)]
            device = subprocess.run(words, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
            closing.callback(subprocess.run, ["losetup", "--detach", device], check=True, timeout=20)
            return Path(device)

        yield made


def block(name: str, device: Path, node: str = NODE) -> dict[str, object]:
    return {"metadata": {"name": name}, "status": {"nodeName": node, "path": str(device)}}


def devices(node: CsiNode) -> dict[str, Device]:
    """What an agent beside the driver would see."""
    return {one.id: one for one in Cache(node.seen(node.cache)).devices()}


def usable(node: CsiNode, name: str) -> bool:
    found = devices(node).get(name)
    return found is not None and found.size_bytes > 0 and not found.trouble


def digest(device: Path) -> str:
    return hashlib.sha256(device.read_bytes()).hexdigest()


def test_empty_device_is_made_ours_and_foreign_ones_are_refused_and_left_alone(node: CsiNode, attach: Attach) -> None:
    mine, foreign, elsewhere = attach("mine"), attach("foreign"), attach("elsewhere")
    subprocess.run(["mkfs.ext4", "-q", "-L", "photos", foreign], check=True, timeout=60)
    before = digest(foreign), digest(elsewhere)
    odd = {"metadata": {"name": "odd"}, "status": {"nodeName": NODE, "path": "/dev/../etc/shadow"}}
    gone = block("gone", Path("/dev/loop-that-is-not-there"))
    node.api.devices = [block("mine", mine), block("foreign", foreign), block("far", elsewhere, "node-b"), odd, gone]
    node.start()
    wait_for(lambda: usable(node, "mine"), "a device of ours", seconds=60)
    wait_for(lambda: "foreign" in devices(node), "a refusal")
    found = devices(node)

    assert found["foreign"].trouble == "it carries ext4: wipe it (wipefs --all), or take its label away"
    assert found["gone"].trouble == "the device is not there"
    assert found.keys() == {"mine", "foreign", "gone", "host"}
    assert (digest(foreign), digest(elsewhere)) == before
    folder = node.seen(node.cache / "devices" / "mine")
    assert (folder / MARK).read_text() == "mine\n"
    assert node.run("blkid", "-p", "-o", "value", "-s", "LABEL", mine).strip() == LABEL


def test_device_of_ours_is_mounted_again_after_a_reboot_though_nobody_names_it(node: CsiNode, attach: Attach) -> None:
    node.api.devices = [block("mine", attach("mine"))]
    node.start()
    wait_for(lambda: usable(node, "mine"), "a device of ours", seconds=60)
    kept = node.seen(node.cache / "devices" / "mine" / "kept")
    kept.write_text("as it was")
    node.stop()
    node.run("umount", node.cache / "devices" / "mine")
    assert not kept.exists()
    node.api.devices, node.api.refuse = [], 503
    node.start()
    wait_for(lambda: usable(node, "mine"), "the device again", seconds=60)

    assert kept.read_text() == "as it was"


def test_node_without_any_device_says_so_until_it_has_one(node: CsiNode, attach: Attach) -> None:
    node.start()
    wait_for(lambda: "node" in devices(node), "a complaint", seconds=30)
    assert "is labelled" in devices(node)["node"].trouble
    node.api.devices = [block("mine", attach("mine"))]
    wait_for(lambda: usable(node, "mine"), "a device of ours", seconds=60)
    wait_for(lambda: "node" not in devices(node), "no complaint", seconds=30)


def test_a_disk_that_took_the_place_of_ours_is_not_made_ours(node: CsiNode, attach: Attach) -> None:
    device, other = attach("mine"), attach("other")
    node.api.devices = [block("mine", device)]
    node.start()
    wait_for(lambda: usable(node, "mine"), "a device of ours", seconds=60)
    node.stop()
    node.run("umount", node.cache / "devices" / "mine")
    subprocess.run(["wipefs", "--all", "--quiet", device], check=True, timeout=60)
    node.api.devices = [block("mine", other)]
    before = digest(other)
    node.start()
    wait_for(lambda: "mine" in devices(node), "a complaint", seconds=60)

    assert devices(node)["mine"].trouble == "the device is not there"
    assert digest(other) == before


def test_our_label_alone_makes_nothing_ours(node: CsiNode, attach: Attach) -> None:
    device = attach("theirs")
    subprocess.run(["mkfs.ext4", "-q", "-L", LABEL, device], check=True, timeout=60)
    folder = node.root / "theirs"
    folder.mkdir()
    node.run("mount", device, folder)
    (node.seen(folder) / "photo.jpg").write_text("theirs")
    node.run("umount", folder)
    node.api.devices = [block("theirs", device)]
    node.start()
    wait_for(lambda: "theirs" in devices(node), "a refusal", seconds=60)

    assert "no mark of ours" in devices(node)["theirs"].trouble
    node.run("mount", device, folder)
    assert sorted(path.name for path in node.seen(folder).iterdir()) == ["lost+found", "photo.jpg"]


def test_what_the_agent_owns_leads_nowhere_else(node: CsiNode) -> None:
    node.start(HOST_FOLDER="true", WAIT_SECONDS="2")
    host = node.cache / "devices" / "host"
    pod = node.pod("web", {"m": node.tree("one")})
    trees = host / "trees"
    hexadecimal = next(trees.iterdir()).name
    (trees / hexadecimal).rename(host / "elsewhere")
    (trees / hexadecimal).symlink_to(node.account)

    assert node.publish(pod, "m").code == "UNAVAILABLE"
    assert node.mounts() == []
    (trees / hexadecimal).unlink()
    trees.rename(host / "aside")
    trees.symlink_to(host / "aside")
    (host / "aside" / hexadecimal).symlink_to(node.account)
    assert node.publish(pod, "m").code == "UNAVAILABLE"
    assert (node.cache.stat().st_uid, (node.cache / "records").stat().st_uid) == (0, 0)
