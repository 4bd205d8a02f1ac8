"""Where models of a node may lie: which devices are made ours, mounted, or refused, and why. Pure.

A device is ours by what is on it: the label of its file system, a mark in it. Whatever else is there is not touched.
An object says which devices the administrator means; what is ours already stays in use without one, since whoever
keeps those objects may drop a device that carries a file system.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

LABEL = "ai-models-cache"
"""Of our file systems; ext4 has room for 16 characters."""
KIND = "ext4"

_ID = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_DEVICE = re.compile(r"/dev/[A-Za-z0-9][-A-Za-z0-9_./:+]{0,250}")


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """A device that the administrator means, on this node.

    Args:
        id: name of its object.
        path: of the device.
    """

    id: str
    path: str


@dataclasses.dataclass(frozen=True, slots=True)
class Probed:
    """What is on a device.

    Args:
        there: whether there is a device.
        kind: of its file system or whatever else it carries; empty for nothing.
        label: of its file system.
        read_only: whether it cannot be written.
    """

    there: bool = True
    kind: str = ""
    label: str = ""
    read_only: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Mounted:
    """What is mounted where a device of ours should be.

    Args:
        source: of the mount.
        trouble: why it cannot be written; empty when it can.
    """

    source: str
    trouble: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """What is to be done about a device.

    Args:
        make: a file system on it first.
        mount: it.
        trouble: why it is not used; empty when it is, or is about to be.
    """

    make: bool = False
    mount: bool = False
    trouble: str = ""


def wanted_on(node: str, objects: Iterable[Mapping[str, Any]]) -> tuple[Wanted, ...]:
    """Find the devices of a node among BlockDevice objects (storage.deckhouse.io/v1alpha1); odd ones are left out."""
    found = []
    for raw in objects:
        meta, status = raw.get("metadata") or {}, raw.get("status") or {}
        name, path = str(meta.get("name", "")), str(status.get("path", ""))
        if status.get("nodeName") == node and _ID.fullmatch(name) and is_device(path):
            found.append(Wanted(name, path))
    return tuple(sorted(found, key=lambda one: one.id))


def is_device(path: str) -> bool:
    """Say whether a path can be a device's.

    >>> is_device("/dev/loop0"), is_device("/dev/../etc/shadow"), is_device("loop0")
    (True, False, False)
    """
    return _DEVICE.fullmatch(path) is not None and ".." not in PurePosixPath(path).parts


def decide(probed: Probed, mounted: Mounted | None, *, owned: bool = False) -> Step:
    """Say what is to be done about a device that is meant.

    Args:
        probed: what is on the device that was found for it.
        mounted: what is mounted already.
        owned: whether it had a file system of ours before: then none is ever made again, since another disk may have
            taken its name.
    """
    if mounted is not None:
        return Step(trouble=mounted.trouble)
    if not probed.there:
        return Step(trouble="the device is not there")
    if owned and (probed.kind, probed.label) != (KIND, LABEL):
        return Step(trouble="the file system that was made on it is gone; remove <cache>/owned/<id> if that is meant")
    if probed.read_only:
        return Step(trouble="the device cannot be written")
    if not probed.kind:
        return Step(make=True, mount=True)
    if (probed.kind, probed.label) == (KIND, LABEL):
        return Step(mount=True)
    return Step(trouble=f"it carries {probed.kind}: wipe it (wipefs --all), or take its label away")


def nothing_usable(ids: Sequence[str], *, folder: bool) -> str:
    """Say why a labelled node has no device at all; empty when it has."""
    if ids or folder:
        return ""
    return "no block device of this node is labelled ai.deckhouse.io/model-cache=true"
