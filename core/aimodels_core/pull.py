"""An artifact into a folder: the command line, the pull Job and the node agent share this.

The folder appears whole, by one rename, and only when every byte matched its digest; a pull that was killed leaves a
hidden folder beside it, which the next one uses and removes. No lock is involved: each pull writes under a name of its
own, and the first to finish wins. Source of bytes: `aimodels_core.blobs`; durable steps: `aimodels_core.folders`.
"""

import contextlib
import dataclasses
import errno
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from aimodels_core import folders, leftovers, oci, paths, ranges
from aimodels_core.blobs import Blobs
from aimodels_core.digest import Digest
from aimodels_core.errors import (
    ArtifactInvalid,
    DigestMismatch,
    PermanentError,
    StoreFull,
    StoreUnavailable,
    UsageError,
)
from aimodels_core.folders import Difference, DifferenceKind, verify_folder
from aimodels_core.modelpack import is_raw
from aimodels_core.ranges import NO_HOOKS, Hooks, Want

__all__ = ["Blobs", "Difference", "DifferenceKind", "Hooks", "Pulled", "Tuning", "drop", "pull", "verify_folder"]

_PLACE_ATTEMPTS = 5
_EMPTY = Digest.of(b"")

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Tuning:
    """How a pull moves bytes.

    Args:
        connections: ranges in flight at once.
        part_bytes: length of a range; memory is (connections + 2) times this.
        direct: write large files past the page cache: less CPU, and nobody else's pages go; reading them starts cold.
    """

    connections: int = 6
    part_bytes: int = ranges.PART_BYTES
    direct: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Pulled:
    """What a pull did.

    Args:
        digest: of the manifest.
        files: number of files in the folder.
        bytes_total: their bytes, the same ones counted once.
        bytes_transferred: read from the source.
        bytes_reused: found on this disk and hashed again.
        seconds: it took.
    """

    digest: Digest
    files: int
    bytes_total: int
    bytes_transferred: int
    bytes_reused: int
    seconds: float


def pull(
    blobs: Blobs,
    digest: Digest,
    target: Path,
    *,
    tuning: Tuning = Tuning(),
    hooks: Hooks = NO_HOOKS,
    known: Path | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Pulled:
    """Make `target` the folder of the artifact `digest`.

    A target that is complete already costs no byte. One that holds another artifact is replaced, its equal files are
    reused, and so are files of the same file system in `known`, named by their hex digests. Any other folder with
    something in it is refused. When the hook cancels, the ranges in flight end first: abort the transport as well to
    end them at once.

    Raises:
        UsageError: the target is not a folder that may be replaced.
        ArtifactInvalid, UnsafeContent: the artifact must not be unpacked.
        DigestMismatch: bytes were wrong twice.
        StoreFull, StoreUnsafe, StoreUnavailable: the disk.
        Cancelled: by the hook; what was fetched is kept for the next pull.
        NotPublished, and what else the source of the bytes raises.
    """
    began = clock()
    target = target.resolve()
    data = blobs.manifest(digest)
    manifest = checked(data, digest)
    total = sum({layer.digest: layer.size_bytes for layer in manifest.layers}.values())
    moved = 0 if _is_done(target, digest) else _deliver(blobs, data, manifest, target, tuning, hooks, known)
    leftovers.clear(target)
    log.info("pulled a model", extra={"digest": str(digest), "size_bytes": total, "transferred_bytes": moved})
    return Pulled(digest, len(manifest.layers), total, moved, total - moved, clock() - began)


def drop(target: Path) -> bool:
    """Remove a folder that was pulled, and what killed pulls left beside it; says whether it was there.

    Raises:
        UsageError: the folder has other files.
        StoreUnsafe, StoreUnavailable: the disk.
    """
    target = target.resolve()
    _replaceable(target)
    with folders.disk_errors(target):
        there = target.exists()
        if there:
            leftovers.set_aside(target)
    leftovers.clear(target)
    return there


def _deliver(
    blobs: Blobs,
    data: bytes,
    manifest: oci.Manifest,
    target: Path,
    tuning: Tuning,
    hooks: Hooks,
    known: Path | None,
) -> int:
    """Make the folder in a work folder, then give it its name; return how many bytes were transferred."""
    work = leftovers.open_work(target)
    try:
        with leftovers.beating(work):
            moved = _fill(blobs, manifest, target, work, tuning, hooks, known)
            _assemble(work, manifest, data)
        _appear(work.tree, target, Digest.of(data))
    except (PermanentError, StoreFull):
        folders.remove_tree(work.root)
        raise
    except BaseException:
        leftovers.leave(work)
        raise
    folders.remove_tree(work.root)
    return moved


def _assemble(work: leftovers.Work, manifest: oci.Manifest, data: bytes) -> None:
    with folders.disk_errors(work.root):
        try:
            folders.build_tree(work.tree, manifest, data, work.blobs)
        except FileExistsError as error:
            path = Path(error.filename2 or error.filename or "").name
            raise ArtifactInvalid(f"{path}: want one file per path on this file system, got two") from error


def checked(data: bytes, digest: Digest) -> oci.Manifest:
    """Parse the manifest `data` and refuse what must not be unpacked.

    Raises:
        DigestMismatch, ArtifactInvalid, UnsafeContent.
    """
    got = Digest.of(data)
    if got != digest:
        raise DigestMismatch(f"manifest {digest}", want=str(digest), got=str(got))
    manifest = oci.parse_manifest(data)
    paths.check_all([*(layer.path for layer in manifest.layers), folders.MARKER])
    sizes: dict[Digest, int] = {}
    for layer in manifest.layers:
        if not is_raw(layer.media_type):
            raise ArtifactInvalid(f"{layer.path}: want a layer that is a plain file, got {layer.media_type[:120]!r}")
        if sizes.setdefault(layer.digest, layer.size_bytes) != layer.size_bytes:
            raise ArtifactInvalid(f"{layer.path}: want one size per digest, got two")
        if (layer.size_bytes == 0) != (layer.digest == _EMPTY):
            raise ArtifactInvalid(f"{layer.path}: want the digest of no bytes for size 0 only, got {layer.digest}")
    return manifest


def _is_done(target: Path, digest: Digest) -> bool:
    """Tell whether nothing is to do.

    Raises:
        UsageError: the target may not be replaced.
    """
    if folders.is_complete(target, digest):
        with contextlib.suppress(
            OSError
        ):  # a pull may have been killed just before this step; others may own the folder
            if target.stat().st_mode & 0o777 != folders.FOLDER_MODE:
                target.chmod(folders.FOLDER_MODE)
        return True
    with folders.disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    _replaceable(target)
    return False


def _replaceable(target: Path) -> None:
    with folders.disk_errors(target):
        try:
            empty = not any(target.iterdir())
        except FileNotFoundError:
            return
        except NotADirectoryError:
            raise UsageError(f"{target}: want a folder, got a file") from None
    if not empty and folders.marked(target) is None:
        raise UsageError(f"{target}: want a new or empty folder, or one that was pulled, got one with other files")


def _fill(
    blobs: Blobs,
    manifest: oci.Manifest,
    target: Path,
    work: leftovers.Work,
    tuning: Tuning,
    hooks: Hooks,
    known: Path | None,
) -> int:
    """Bring every blob into the work folder; return how many bytes were transferred."""
    layers = {layer.digest: layer.size_bytes for layer in manifest.layers}
    with folders.disk_errors(work.root):
        present = leftovers.adopt(target, work, layers, known)
        if layers.get(_EMPTY) == 0 and _EMPTY not in present:
            folders.write_file(work.blobs / _EMPTY.hex, b"")
        _check_room(work.root, sum(layers.values()) - sum(present.values()))
    wants = [
        Want(digest, size, *leftovers.resume_point(work, digest, size))
        for digest, size in layers.items()
        if size and digest not in present
    ]
    moved = sum(want.size_bytes - want.start for want in wants)
    wrong = _run(blobs, wants, work, tuning, hooks)
    if wrong:
        again = [Want(want.digest, want.size_bytes) for want, _ in wrong]
        log.warning("fetched blobs with a wrong digest once more", extra={"count": len(again)})
        moved += sum(want.size_bytes for want in again)
        for want, got in _run(blobs, again, work, tuning, hooks):
            raise DigestMismatch(f"blob {want.digest}", want=str(want.digest), got=f"sha256:{got}")
    with folders.disk_errors(work.root):
        folders.sync_folder(work.blobs)
    return moved


def _run(
    blobs: Blobs, wants: list[Want], work: leftovers.Work, tuning: Tuning, hooks: Hooks
) -> tuple[tuple[Want, str], ...]:
    if not wants:
        return ()
    fetch = ranges.Fetch(
        blobs,
        wants,
        work.blobs,
        connections=tuning.connections,
        hooks=hooks,
        part_bytes=tuning.part_bytes,
        direct=tuning.direct,
    )
    return fetch.run()


def _check_room(folder: Path, missing_bytes: int) -> None:
    """Refuse before the first byte what cannot fit.

    Raises:
        StoreFull.
    """
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    if room.f_blocks and free < missing_bytes:
        raise StoreFull(f"{folder.parent}: want {missing_bytes} bytes free, got {free}")


def _appear(tree: Path, target: Path, digest: Digest) -> None:
    """Give the complete tree its name; if somebody else was quicker with the same artifact, theirs stays.

    Raises:
        UsageError, StoreUnavailable, StoreUnsafe.
    """
    for _ in range(_PLACE_ATTEMPTS):
        with folders.disk_errors(target):
            try:
                tree.rename(target)
            except OSError as error:
                if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                    raise
            else:
                folders.sync_folder(target.parent)
                target.chmod(folders.FOLDER_MODE)
                return
        if folders.is_complete(target, digest):
            return
        _replaceable(target)
        with folders.disk_errors(target):
            leftovers.set_aside(target)
    raise StoreUnavailable(f"{target}: others keep replacing it")
