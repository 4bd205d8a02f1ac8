"""Folders that hold one model each: durable steps on disk, the marker of completeness, comparing with a manifest.

Fetching lives in `aimodels_core.ranges`, the order of steps in `aimodels_core.pull`.
"""

import concurrent.futures
import contextlib
import dataclasses
import enum
import errno
import hashlib
import mmap
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from aimodels_core import oci
from aimodels_core.digest import Digest
from aimodels_core.errors import ArtifactInvalid, StoreFull, StoreUnavailable, StoreUnsafe

MARKER: Final = ".ai-models-manifest.json"
"""In each complete folder: the exact bytes of the manifest whose files it holds."""

FILE_MODE: Final = 0o444
FOLDER_MODE: Final = 0o555
_VERIFY_THREADS = 4


class DifferenceKind(enum.Enum):
    """How a file in a folder differs from its manifest."""

    MISSING = "missing"
    EXTRA = "extra"
    TYPE = "type"
    SIZE = "size"
    DIGEST = "digest"


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Difference:
    """One difference between a folder and a manifest; `want` and `got` are for people."""

    path: str
    kind: DifferenceKind = dataclasses.field(compare=False)
    want: str = ""
    got: str = ""


@contextlib.contextmanager
def disk_errors(where: Path) -> Iterator[None]:
    """Translate errors of the file system below `where`.

    Raises:
        StoreFull, StoreUnsafe (code ReadOnly), StoreUnavailable.
    """
    try:
        yield
    except OSError as error:
        why = error.strerror or type(error).__name__
        if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            raise StoreFull(f"{where}: {why}") from error
        if error.errno in {errno.EROFS, errno.EACCES, errno.EPERM}:
            raise StoreUnsafe(f"{where}: cannot be written: {why}", code="ReadOnly") from error
        raise StoreUnavailable(f"{where}: {why}") from error


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, data: bytes) -> None:
    """Write a new read-only file, durable but for its name."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fchmod(file.fileno(), FILE_MODE)
        os.fsync(file.fileno())


def remove_tree(path: Path) -> None:
    """Remove a folder and all in it, read-only folders included; what is gone already is fine."""
    for folder, _, _ in os.walk(path):
        with contextlib.suppress(OSError):
            Path(folder).chmod(0o700)
    shutil.rmtree(path, ignore_errors=True)


def build_tree(tree: Path, manifest: oci.Manifest, data: bytes, blobs: Path) -> None:
    """Make the folder of a model from its blobs, all but its own name durable, the marker last.

    Each path is a hard link to its blob, so paths with the same bytes share them; where links are not to be had, the
    blob is moved, and copied for a second path.

    Args:
        tree: the folder to make.
        manifest: what goes where; its paths were checked.
        data: its exact bytes, for the marker.
        blobs: the folder that holds one file per digest.
    """
    tree.mkdir(mode=0o700)
    folders, placed = {tree}, dict[Digest, Path]()
    for layer in manifest.layers:
        path = tree / layer.path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folders |= {tree / parent for parent in Path(layer.path).parents}
        _place(placed.get(layer.digest, blobs / layer.digest.hex), path, again=layer.digest in placed)
        placed.setdefault(layer.digest, path)
    write_file(tree / MARKER, data)
    for folder in sorted(folders, reverse=True):
        sync_folder(folder)
        if folder != tree:
            folder.chmod(FOLDER_MODE)


def _place(source: Path, path: Path, *, again: bool) -> None:
    try:
        os.link(source, path, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}:
            raise
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from error
        if again:
            _copy(source, path)
        else:
            source.rename(path)


def _copy(source: Path, path: Path) -> None:
    shutil.copyfile(source, path, follow_symlinks=False)
    path.chmod(FILE_MODE)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_marker(folder: Path) -> bytes | None:
    """Return the bytes of the manifest that a folder was made from; None when it has no marker."""
    try:
        with (folder / MARKER).open("rb") as file:
            data = file.read(oci.MAX_MANIFEST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreUnavailable(f"{folder}: {error.strerror}") from error
    return data if len(data) <= oci.MAX_MANIFEST_BYTES else None


def is_complete(folder: Path, digest: Digest) -> bool:
    """Tell whether a folder is marked as the artifact `digest`, and all its files are there in their sizes."""
    data = read_marker(folder)
    if data is None or Digest.of(data) != digest:
        return False
    return all(_same_size(folder / layer.path, layer.size_bytes) for layer in oci.parse_manifest(data).layers)


def _same_size(path: Path, size_bytes: int) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size == size_bytes


def marked(folder: Path) -> oci.Manifest | None:
    """Return the manifest that a folder was made from; None when it has no marker that can be read."""
    data = read_marker(folder)
    with contextlib.suppress(ArtifactInvalid):
        return oci.parse_manifest(data) if data is not None else None
    return None


def hash_file(path: Path, limit: int | None = None) -> "hashlib._Hash":
    """Hash a file, or its first `limit` bytes."""
    hasher = hashlib.sha256()
    buffer = memoryview(mmap.mmap(-1, 1024 * 1024, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    left = path.stat().st_size if limit is None else limit
    with path.open("rb", buffering=0) as file:
        while left and (got := file.readinto(buffer[: min(len(buffer), left)])):
            hasher.update(buffer[:got])
            left -= got
    return hasher


def verify_folder(manifest: oci.Manifest, folder: Path) -> tuple[Difference, ...]:
    """Compare every file below `folder` with the manifest, byte by byte; differences come in order of path.

    Raises:
        StoreUnavailable: a file cannot be read.
    """
    wanted = {layer.path: layer for layer in manifest.layers}
    present = _files(folder)
    found = [Difference(path, DifferenceKind.EXTRA, "", "a file") for path in present - wanted.keys()]
    with concurrent.futures.ThreadPoolExecutor(_VERIFY_THREADS, "verify") as pool:
        found += filter(None, pool.map(lambda layer: _difference(folder, layer), wanted.values()))
    return tuple(sorted(found))


def _files(folder: Path) -> set[str]:
    """List all that is not a folder, relative to `folder`, the marker left out."""
    found: set[str] = set()
    for parent, names, files in os.walk(folder):
        here = Path(parent).relative_to(folder)
        found |= {str(here / name) for name in files}
        found |= {str(here / name) for name in names if (folder / here / name).is_symlink()}
    return found - {MARKER}


def _difference(folder: Path, layer: oci.Descriptor) -> Difference | None:
    path = folder / layer.path
    with disk_errors(path):
        try:
            status = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return Difference(layer.path, DifferenceKind.MISSING, "a file", "nothing")
        if not stat.S_ISREG(status.st_mode):
            return Difference(layer.path, DifferenceKind.TYPE, "a file", "something else")
        if status.st_size != layer.size_bytes:
            return Difference(layer.path, DifferenceKind.SIZE, str(layer.size_bytes), str(status.st_size))
        digest = Digest(hash_file(path).hexdigest())
    if digest != layer.digest:
        return Difference(layer.path, DifferenceKind.DIGEST, str(layer.digest), str(digest))
    return None
