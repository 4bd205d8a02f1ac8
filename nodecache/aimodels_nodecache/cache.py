"""The artifacts of a node on its devices: `<cache>/devices/<id>/{trees,blobs/sha256,used}`. Every call here blocks.

A tree is a folder of hard links to blobs, made whole by `aimodels_core.pull`, named by its manifest's digest. A blob
that only `blobs` still links belongs to no tree any more. One process per node changes this; the driver only reads it.
"""

import contextlib
import dataclasses
import logging
import os
import secrets
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final

from aimodels_core import folders
from aimodels_core.digest import Digest
from aimodels_core.nodes import Device
from aimodels_nodecache.trees import MARK

log = logging.getLogger(__name__)

_GONE: Final = ".gone-"
"""Begins the name of a tree that is being removed, or that is spoilt and still mounted somewhere."""
_MAX_TROUBLE_BYTES = 512


@dataclasses.dataclass(frozen=True, slots=True)
class Kept:
    """An artifact that is here whole.

    Args:
        digest: of its manifest.
        device: where it is, a folder.
        size_bytes: of its files, equal ones counted once.
        used_at: when it was last used, in Unix seconds.
    """

    digest: Digest
    device: Path
    size_bytes: int
    used_at: float


class Cache:
    """The devices of a node and what is on them.

    Args:
        root: folder of the node's cache.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._sizes: dict[Digest, int] = {}

    def folders(self) -> tuple[Path, ...]:
        """Folders of devices that are ours and can be used."""
        return tuple(path for path in _entries(self._root / "devices") if (path / MARK).is_file())

    def devices(self) -> tuple[Device, ...]:
        """All devices that are meant for the cache, those that cannot be used with the reason."""
        found = {path.name: _measured(path) for path in self.folders()}
        for path in _entries(self._root / "trouble"):
            with contextlib.suppress(OSError), path.open("rb") as file:
                found[path.name] = Device(path.name, trouble=file.read(_MAX_TROUBLE_BYTES).decode(errors="replace"))
        return tuple(found[name] for name in sorted(found))

    def kept(self) -> dict[Digest, Kept]:
        """All artifacts that are here whole."""
        found = {}
        for device in self.folders():
            for tree, digest in _trees(device):
                size_bytes = self._size(tree, digest)
                if size_bytes is not None:
                    found[digest] = Kept(digest, device, size_bytes, _used_at(device, tree, digest))
        return found

    def tree(self, digest: Digest) -> Path | None:
        """Return the folder of an artifact; None when it is not here."""
        trees = (device / "trees" / digest.hex for device in self.folders())
        return next((tree for tree in trees if tree.is_dir()), None)

    def prepare(self, device: Path) -> None:
        """Make what is missing of a device's folders.

        Raises:
            StoreFull, StoreUnsafe, StoreUnavailable.
        """
        with folders.disk_errors(device):
            for part in ("trees", "blobs/sha256", "used"):
                (device / part).mkdir(mode=0o755, parents=True, exist_ok=True)

    def share(self, device: Path, digest: Digest) -> None:
        """Let later artifacts find the blobs of a tree that is whole.

        Raises:
            StoreFull, StoreUnsafe, StoreUnavailable.
        """
        tree = device / "trees" / digest.hex
        manifest = folders.marked(tree)
        with folders.disk_errors(device):
            for layer in manifest.layers if manifest is not None else ():
                with contextlib.suppress(FileExistsError):
                    os.link(tree / layer.path, blobs_of(device) / layer.digest.hex, follow_symlinks=False)
        self.touch(device, digest)

    def touch(self, device: Path, digest: Digest) -> None:
        """Note that an artifact is used now."""
        with contextlib.suppress(OSError):
            (device / "used" / digest.hex).touch()

    def remove(self, kept: Kept, used: Callable[[], bool]) -> bool:
        """Remove an artifact unless it is used; returns whether it is gone.

        Args:
            kept: the artifact.
            used: looks whether a Pod uses it; asked once more when it cannot be found any more.

        Raises:
            StoreUnsafe, StoreUnavailable.
        """
        tree = kept.device / "trees" / kept.digest.hex
        if used():
            return False
        with folders.disk_errors(tree):
            aside = _hide(tree, kept.digest)
            if used():
                aside.rename(tree)
                return False
        self._forget(kept.device, aside, kept.digest)
        return True

    def spoil(self, device: Path, blobs: Collection[Digest]) -> tuple[Digest, ...]:
        """Take blobs with wrong bytes out of sight, and all artifacts with them; who has these mounted keeps them.

        Args:
            device: where.
            blobs: which.

        Returns:
            The artifacts.

        Raises:
            StoreUnsafe, StoreUnavailable.
        """
        spoilt = []
        with folders.disk_errors(device):
            for blob in blobs:
                (blobs_of(device) / blob.hex).unlink(missing_ok=True)
            for tree, digest in tuple(_trees(device)):
                manifest = folders.marked(tree)
                if manifest is None or any(layer.digest in blobs for layer in manifest.layers):
                    _hide(tree, digest)
                    self._sizes.pop(digest, None)
                    spoilt.append(digest)
        return tuple(spoilt)

    def recover(self) -> None:
        """Take away what a crash or a power cut left: trees that are not whole, and blobs of none."""
        self.hide_incomplete()
        for device in self.folders():
            _sweep(device)

    def hide_incomplete(self) -> None:
        """Take trees out of sight that lack files, or have some of another size, with the blobs that these are."""
        for device in self.folders():
            for tree, digest in tuple(_trees(device)):
                if not folders.is_complete(tree, digest):
                    log.warning("artifact is not whole", extra={"digest": str(digest), "device": device.name})
                    _drop_wrong(device, tree)
                    _hide(tree, digest)
                    self._sizes.pop(digest, None)

    def tidy(self, used: Collection[Digest], wanted: Collection[Digest]) -> None:
        """Remove what was taken out of sight and is mounted nowhere, and unfinished work that nobody wants."""
        for device in self.folders():
            swept = False
            for path in _entries(device / "trees"):
                gone = path.name.removeprefix(_GONE)[:64] if path.name.startswith(_GONE) else ""
                unfinished = ".pull-" in path.name and not any(
                    path.name.startswith(f".{digest.hex[:40]}.") for digest in wanted
                )
                if (gone and gone not in {digest.hex for digest in used}) or unfinished:
                    folders.remove_tree(path)
                    swept = True
            if swept:
                _sweep(device)

    def _forget(self, device: Path, tree: Path, digest: Digest) -> None:
        manifest = folders.marked(tree)
        folders.remove_tree(tree)
        (device / "used" / digest.hex).unlink(missing_ok=True)
        self._sizes.pop(digest, None)
        for layer in manifest.layers if manifest is not None else ():
            _drop_unused(blobs_of(device) / layer.digest.hex)

    def _size(self, tree: Path, digest: Digest) -> int | None:
        if digest not in self._sizes:
            manifest = folders.marked(tree)
            if manifest is None:
                return None
            self._sizes[digest] = sum({layer.digest: layer.size_bytes for layer in manifest.layers}.values())
        return self._sizes[digest]


def blobs_of(device: Path) -> Path:
    """Folder of a device's blobs, named by their hex digests."""
    return device / "blobs" / "sha256"


def _hide(tree: Path, digest: Digest) -> Path:
    return tree.rename(tree.with_name(f"{_GONE}{digest.hex}-{secrets.token_hex(4)}"))


def _drop_wrong(device: Path, tree: Path) -> None:
    """Forget blobs of a tree whose sizes are not theirs."""
    manifest = folders.marked(tree)
    for layer in manifest.layers if manifest is not None else ():
        blob = blobs_of(device) / layer.digest.hex
        with contextlib.suppress(FileNotFoundError):
            if blob.stat().st_size != layer.size_bytes:
                blob.unlink()


def _entries(folder: Path) -> tuple[Path, ...]:
    try:
        return tuple(sorted(folder.iterdir()))
    except (FileNotFoundError, NotADirectoryError):
        return ()


def _trees(device: Path) -> Iterator[tuple[Path, Digest]]:
    for path in _entries(device / "trees"):
        with contextlib.suppress(ValueError):
            yield path, Digest(path.name)


def _used_at(device: Path, tree: Path, digest: Digest) -> float:
    for path in (device / "used" / digest.hex, tree):
        with contextlib.suppress(OSError):
            return path.stat().st_mtime
    return 0.0


def _measured(path: Path) -> Device:
    try:
        room = os.statvfs(path)
    except OSError as error:
        return Device(path.name, trouble=error.strerror or "cannot be read")
    return Device(path.name, room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize)


def _sweep(device: Path) -> None:
    for path in _entries(blobs_of(device)):
        _drop_unused(path)


def _drop_unused(blob: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if blob.stat().st_nlink == 1:
            blob.unlink()
