"""Volumes of Pods on this node: trees of the cache, bound read-only where kubelet wants them. Its calls block.

What is mounted is asked of the kernel each time; nothing is remembered here but the sizes of trees, which never change.
"""

import dataclasses
import errno
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from aimodels_core.names import CSI_DRIVER
from aimodels_nodecache import grants, mount

_MAX_VOLUME_DATA = 64 * 1024
_MAX_FILES = 1_000_000
_MAX_SIZES = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """What a volume holds.

    Args:
        size_bytes: of all files.
        files: how many files and folders.
    """

    size_bytes: int
    files: int


class Volumes:
    """Mounts and unmounts below kubelet's folder.

    Args:
        kubelet_dir: kubelet's folder.
    """

    def __init__(self, kubelet_dir: Path) -> None:
        self._kubelet = kubelet_dir
        self._usage: dict[tuple[int, int], Usage] = {}

    def publish(self, tree: Path, target: Path) -> None:
        """Have a tree at a target, read-only; what a crash left half-done there, or another tree, is replaced.

        Raises:
            OSError: it cannot be.
        """
        wanted, there = tree.stat(), mount.look(target)
        if there is not None and there.mounted:
            if there.sealed and there.file == (wanted.st_dev, wanted.st_ino):
                return
            mount.unmount(target)
        target.mkdir(mode=0o750, exist_ok=True)
        mount.bind(tree, target)

    def unpublish(self, target: Path) -> None:
        """Have nothing at a target.

        Raises:
            OSError: EBUSY: somebody works in it; ENOTEMPTY: files are there that no mount of ours put there.
        """
        mount.unmount(target)
        try:
            target.rmdir()
        except (FileNotFoundError, NotADirectoryError):
            return

    def usage(self, target: Path) -> Usage | None:
        """Say what a volume holds; None when none is mounted there.

        Raises:
            OSError: it cannot be read.
        """
        there = mount.look(target)
        if there is None or not there.mounted:
            return None
        found = self._usage.get(there.file)
        if found is None:
            found = _measure(target)
            if len(self._usage) >= _MAX_SIZES:
                self._usage.pop(next(iter(self._usage)))
            self._usage[there.file] = found
        return found

    def mounted(self, uid: str) -> tuple[Path, ...]:
        """Return the volumes of a Pod that are mounted, those of other drivers left out."""
        folder = self._kubelet / "pods" / uid / "volumes" / "kubernetes.io~csi"
        found = []
        for volume in _entries(folder):
            if _driver(volume) in {CSI_DRIVER, ""}:
                found += [path for path in _entries(volume) if path.is_dir() and _is_mounted(path)]
        return tuple(found)

    def all(self) -> Mapping[str, tuple[Path, ...]]:
        """Return all our volumes that are mounted on this node, by the uid of their Pod.

        Raises:
            OSError: the kernel does not say.
        """
        found: dict[str, list[Path]] = {}
        for one in mount.mounts():
            place = grants.place_of(one.target, str(self._kubelet))
            if place is not None and _driver(Path(place.target).parent) == CSI_DRIVER:
                found.setdefault(place.uid, []).append(Path(place.target))
        return {uid: tuple(dict.fromkeys(paths)) for uid, paths in found.items()}


def _entries(folder: Path) -> Iterator[Path]:
    try:
        yield from sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return


def _is_mounted(path: Path) -> bool:
    seen = mount.look(path)
    return seen is not None and seen.mounted


def _driver(volume: Path) -> str:
    """Name of a volume's driver, which kubelet writes beside the mount before it asks for it; empty when it did not."""
    try:
        with (volume / "vol_data.json").open("rb") as file:
            data = json.loads(file.read(_MAX_VOLUME_DATA))
    except (OSError, ValueError):
        return ""
    return str(data.get("driverName", "")) if isinstance(data, dict) else ""


def _measure(folder: Path) -> Usage:
    size_bytes = files = 0
    pending = [folder]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                files += 1
                if files > _MAX_FILES:
                    raise OSError(errno.EFBIG, f"want at most {_MAX_FILES} files", str(folder))
                if entry.is_dir(follow_symlinks=False):
                    pending.append(Path(entry.path))
                else:
                    size_bytes += entry.stat(follow_symlinks=False).st_size
    return Usage(size_bytes, files)
