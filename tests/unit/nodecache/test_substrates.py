"""Which devices are made ours, mounted, or refused."""

from collections.abc import Mapping
from typing import Any

import pytest

from aimodels_nodecache import substrates
from aimodels_nodecache.substrates import KIND, LABEL, Mounted, Probed, Step, Wanted

OURS = Probed(kind=KIND, label=LABEL)


@pytest.mark.parametrize(
    ("probed", "mounted", "owned", "step"),
    [
        (Probed(), None, False, Step(make=True, mount=True)),
        (OURS, None, False, Step(mount=True)),
        (OURS, None, True, Step(mount=True)),
        (Probed(), Mounted("/dev/sdb"), False, Step()),
        (Probed(there=False), None, False, Step(trouble="the device is not there")),
        (Probed(read_only=True), None, False, Step(trouble="the device cannot be written")),
    ],
)
def test_devices_that_are_empty_or_ours(probed: Probed, mounted: Mounted | None, owned: bool, step: Step) -> None:
    assert substrates.decide(probed, mounted, owned=owned) == step


@pytest.mark.parametrize(
    "probed", [Probed(kind="xfs"), Probed(kind=KIND, label="photos"), Probed(kind="dos"), Probed(kind="LVM2_member")]
)
def test_what_carries_anything_else_is_never_made_ours(probed: Probed) -> None:
    step = substrates.decide(probed, None)

    assert (step.make, step.mount) == (False, False)
    assert probed.kind in step.trouble


@pytest.mark.parametrize("probed", [Probed(), Probed(kind="xfs")])
def test_a_disk_that_took_the_name_of_ours_is_never_made_ours(probed: Probed) -> None:
    step = substrates.decide(probed, None, owned=True)

    assert (step.make, step.mount) == (False, False)
    assert "is gone" in step.trouble


def test_a_mounted_device_that_fails_is_told() -> None:
    assert (
        substrates.decide(OURS, Mounted("/dev/sdb", "it cannot be written: EIO")).trouble == "it cannot be written: EIO"
    )


def test_objects_of_this_node_with_a_path_of_a_device() -> None:
    def raw(name: object, node: object, path: object) -> dict[str, object]:
        return {"metadata": {"name": name}, "status": {"nodeName": node, "path": path}}

    objects: list[Mapping[str, Any]] = [
        raw("b", "n", "/dev/sdb"),
        raw("a", "n", "/dev/disk/by-id/x"),
        raw("far", "m", "/dev/sdc"),
        raw("up", "n", "/dev/../etc/passwd"),
        raw("../x", "n", "/dev/sdd"),
        raw("none", "n", None),
        {},
        {"metadata": None, "status": None},
    ]
    assert substrates.wanted_on("n", objects) == (Wanted("a", "/dev/disk/by-id/x"), Wanted("b", "/dev/sdb"))
