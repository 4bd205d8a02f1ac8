"""A folder as a place that keeps objects: whole or absent, and still there after a loss of power.

Every write goes to a temporary file in `<root>/ai-models/tmp`, is flushed, gets its name by rename or link, and the
folder with the name is flushed; so is the parent of every new folder. System calls are in `disk`, uploads in
`folder_uploads`. What the objects mean belongs to `layout`.
"""

import errno
import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from aimodels_core.errors import AiModelsError, ArtifactInvalid, NotPublished, StoreUnavailable, StoreUnsafe
from aimodels_jobs import folder_probe, folder_uploads
from aimodels_jobs.disk import Disk, translated
from aimodels_jobs.objects import Finding, ObjectInfo, Upload, check_tiling
from aimodels_jobs.orders import ChecksumKind, FilePartTicket, PartRecord

TMP = "ai-models/tmp"
_COPY_BYTES = 4 * 1024 * 1024
_TRIES = 5
_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class Folder:
    """Objects as files below one root. Implements `objects.Objects`.

    Args:
        root: the folder; made when missing, unless `create` is False.
        create: whether a missing root is made; readers say False.
        disk: the system calls.

    Raises:
        NotPublished: code NoStore: there is no such folder and it is not to be made.
        StoreUnsafe, StoreFull, StoreUnavailable: it cannot be made.
    """

    def __init__(self, root: Path, *, create: bool = True, disk: Disk | None = None) -> None:
        self.root = root.absolute()
        self._disk = disk or Disk()
        self._lock = threading.Lock()
        self._durable: set[Path] = set()
        if create:
            self._make_root()
        elif not self.root.is_dir():
            raise NotPublished(f"store folder {self.root}: want a folder, got nothing there", code="NoStore")
        self._identity = self._root_identity()
        self.uploads_in_progress = folder_uploads.Uploads(self.root / TMP, self._disk)

    @property
    def description(self) -> str:
        """Where it is, for people."""
        return f"folder {self.root}"

    @property
    def checksum(self) -> ChecksumKind:
        """Parts are named by their XXH3."""
        return ChecksumKind.XXH3

    def head(self, key: str) -> ObjectInfo | None:
        """Look an object up; None when there is none."""
        try:
            found = self._path(key).stat(follow_symlinks=False)
        except _ABSENT:
            self._same_root()
            return None
        except OSError as error:
            raise translated(error, f"look up {key}") from error
        return ObjectInfo(key, found.st_size, found.st_mtime) if stat.S_ISREG(found.st_mode) else None

    def get(self, key: str, *, max_bytes: int, start: int = 0, stop: int | None = None) -> bytes | None:
        """Read an object, or [start, stop) of it; None when there is none.

        Raises:
            ArtifactInvalid: longer than `max_bytes`.
            StoreUnavailable.
        """
        try:
            handle = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except _ABSENT:
            self._same_root()
            return None
        except OSError as error:
            raise translated(error, f"open {key}") from error
        try:
            size = os.fstat(handle).st_size
            length = max(0, (size if stop is None else min(stop, size)) - start)
            if length > max_bytes:
                raise ArtifactInvalid(f"{key}: want at most {max_bytes} bytes, got {length}", code="TooLong")
            return folder_uploads.read_range(handle, start, length)
        except OSError as error:
            if error.errno == errno.EISDIR:
                return None
            raise translated(error, f"read {key}") from error
        finally:
            os.close(handle)

    def put(self, key: str, data: bytes) -> None:
        """Write an object, replacing what was there; durable when it returns."""
        self._write(key, data, self._disk.rename)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write an object only if the key is free; False when it is taken."""
        return self._write(key, data, self._link_and_remove)

    def delete(self, key: str) -> None:
        """Remove an object, durably, and the folders that became empty."""
        path = self._path(key)
        self._same_root()
        try:
            self._disk.remove(path)
        except _ABSENT:
            return
        except OSError as error:
            raise translated(error, f"remove {key}") from error
        try:
            self._disk.sync_folder(path.parent)
        except FileNotFoundError:
            return
        except OSError as error:
            raise translated(error, f"flush the folder of {key}") from error
        self._prune(path.parent)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List all objects whose key starts with `prefix`."""
        self._same_root()
        folder, _, _ = prefix.rpartition("/")
        start = self._path(folder) if folder else self.root
        for info in self._walk(start, f"{folder}/" if folder else "", prefix):
            if info.key.startswith(prefix):
                yield info

    def copy(self, source: str, target: str) -> None:
        """Copy an object within the store."""
        try:
            handle = os.open(self._path(source), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except _ABSENT as error:
            raise NotPublished(f"{source}: no such object to copy", code="NoSuchObject") from error
        try:
            size = os.fstat(handle).st_size
            steps = range(0, size, _COPY_BYTES)
            chunks = (folder_uploads.read_range(handle, at, min(_COPY_BYTES, size - at)) for at in steps)
            self._place(target, lambda: self._filled(chunks), self._disk.rename)
        finally:
            os.close(handle)

    def create_upload(self, key: str, size_bytes: int) -> Upload:
        """Begin an upload: a temporary file with all its space reserved.

        Raises:
            StoreFull: before any byte moves.
        """
        self._path(key)
        self._same_root()
        self._ensure(self.root / TMP)
        return self.uploads_in_progress.create(key, size_bytes)

    def part_ticket(self, upload: Upload, number: int, start: int, stop: int) -> FilePartTicket:
        """Make leave to write one part.

        Raises:
            NotPublished: code UploadGone.
        """
        if not (number >= 1 and 0 <= start < stop <= upload.size_bytes):
            raise ValueError(f"part {number}: want a range within {upload.size_bytes} bytes, got [{start}, {stop})")
        return FilePartTicket(str(self.uploads_in_progress.file(upload)), start)

    def kept_parts(self, upload: Upload, records: Sequence[PartRecord]) -> frozenset[int]:
        """Say which recorded parts are there: each is read and hashed again.

        Raises:
            NotPublished: code UploadGone: the temporary file is gone, or somebody may still be writing to it.
        """
        return self.uploads_in_progress.kept_parts(upload, records)

    def complete(self, upload: Upload, records: Sequence[PartRecord], *, recheck: bool) -> None:
        """Make the blob visible at its key, durable.

        With `recheck`, or when a mover still holds the file, its bytes are copied to a new file and hashed on the way.

        Raises:
            NotPublished: code UploadGone.
            StoreUnavailable: code PartsDiffer.
        """
        check_tiling(upload, records)
        self._same_root()
        try:
            file = self.uploads_in_progress.file(upload)
        except NotPublished:
            found = self.head(upload.key)
            if found is not None and found.size_bytes == upload.size_bytes:
                return
            raise
        with self.uploads_in_progress.held(file) as quiet:
            if quiet and not recheck:
                self._place(upload.key, lambda: self._flushed(file), self._disk.rename, keep=True)
                return
        copied = self.uploads_in_progress.checked_copy(upload, file, records)
        self._place(upload.key, lambda: copied, self._disk.rename)
        self.abort(upload)

    def abort(self, upload: Upload) -> None:
        """Drop an upload; dropping what is gone is not an error."""
        self.uploads_in_progress.abort(upload)

    def uploads(self, prefix: str) -> Iterator[Upload]:
        """List uploads in progress below `prefix`."""
        return self.uploads_in_progress.list(prefix)

    def probe(self, *, anew: bool = False) -> tuple[Finding, ...]:
        """Try what correctness needs of this folder, on files of its own; always anew: it takes a moment."""
        del anew
        self._ensure(self.root / TMP)
        return folder_probe.probe(self, self.root / TMP)

    def _write(self, key: str, data: bytes, name: Callable[[Path, Path], None]) -> bool:
        return self._place(key, lambda: self._filled((data,)), name)

    def _place(
        self, key: str, make: Callable[[], Path], name: Callable[[Path, Path], None], *, keep: bool = False
    ) -> bool:
        """Give a flushed temporary file its key; False when `name` finds the key taken.

        A failure removes the temporary file, unless `keep` says that it may be tried again.
        """
        target = self._path(key)
        self._same_root()
        made: Path | None = None
        try:
            self._ensure(self.root / TMP)
            made = make()
            taken = not self._name(made, target, name)
            self._disk.sync_folder(target.parent)
        except OSError as error:
            raise translated(error, f"write {key}") from error
        finally:
            if made is not None and not keep:
                made.unlink(missing_ok=True)
        return not taken

    def _name(self, made: Path, target: Path, name: Callable[[Path, Path], None]) -> bool:
        for attempt in range(1, _TRIES + 1):
            try:
                self._ensure(target.parent)
                name(made, target)
            except FileExistsError:
                return False
            except FileNotFoundError:  # a neighbour was deleted, and its empty folders with it
                self._forget(target.parent)
                if attempt == _TRIES:
                    raise
            else:
                return True
        return False

    def _link_and_remove(self, made: Path, target: Path) -> None:
        try:
            self._disk.link(made, target)
        except OSError as error:
            if error.errno in {errno.EPERM, errno.ENOTSUP, errno.ENOSYS}:
                raise StoreUnsafe(
                    f"store folder {self.root}: want a file system with hard links", code="NoHardLinks"
                ) from error
            raise
        self._disk.remove(made)

    def _filled(self, chunks: Iterator[bytes] | tuple[bytes, ...]) -> Path:
        path = self.root / TMP / f"{secrets.token_hex(8)}.put"
        handle = self._disk.create(path)
        try:
            offset = 0
            for chunk in chunks:
                self._disk.write(handle, chunk, offset)
                offset += len(chunk)
            self._disk.sync(handle)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            self._disk.close(handle)
        return path

    def _flushed(self, path: Path) -> Path:
        handle = self._disk.open(path)
        try:
            self._disk.sync(handle)
        finally:
            self._disk.close(handle)
        return path

    def _ensure(self, folder: Path) -> None:
        """Make a folder and its parents; each one's entry is durable afterwards, whoever made it."""
        missing = []
        while folder != self.root and not self._is_durable(folder):
            missing.append(folder)
            folder = folder.parent
        for path in reversed(missing):
            try:
                self._disk.make_folder(path)
            except FileExistsError:
                pass
            except OSError as error:
                if error.errno == errno.ENOENT:
                    raise
                raise translated(error, f"make {path.relative_to(self.root)}") from error
            self._disk.sync_folder(path.parent)
            with self._lock:
                self._durable.add(path)

    def _is_durable(self, folder: Path) -> bool:
        with self._lock:
            return folder in self._durable

    def _forget(self, folder: Path) -> None:
        with self._lock:
            while folder != self.root:
                self._durable.discard(folder)
                folder = folder.parent

    def _prune(self, folder: Path) -> None:
        while folder not in {self.root, self.root / TMP}:
            with self._lock:
                self._durable.discard(folder)
            try:
                self._disk.remove_folder(folder)
            except OSError:  # not empty, or already gone
                return
            folder = folder.parent

    def _walk(self, folder: Path, base: str, prefix: str) -> Iterator[ObjectInfo]:
        try:
            with os.scandir(folder) as entries:
                found = sorted((e.name + "/" if e.is_dir(follow_symlinks=False) else e.name, e) for e in entries)
        except _ABSENT:
            return
        except OSError as error:
            raise translated(error, f"list {base}") from error
        for name, entry in found:
            key = base + name
            if not (key.startswith(prefix) or prefix.startswith(key)):
                continue
            if name.endswith("/"):
                yield from self._walk(folder / entry.name, key, prefix)
            elif entry.is_file(follow_symlinks=False):
                try:
                    info = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                yield ObjectInfo(key, info.st_size, info.st_mtime)

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if not all(part not in {"", ".", ".."} and "\0" not in part for part in parts):
            raise ValueError(f"key: want a relative path without empty or dot segments, got {key[:200]!r}")
        return self.root.joinpath(*parts)

    def _make_root(self) -> None:
        missing = [path for path in (self.root, *self.root.parents) if not path.exists()]
        try:
            for path in reversed(missing):
                self._disk.make_folder(path)
                self._disk.sync_folder(path.parent)
        except FileExistsError as error:
            if not self.root.is_dir():
                raise translated(error, f"make {self.root}") from error
        except OSError as error:
            raise translated(error, f"make {self.root}") from error

    def _root_identity(self) -> tuple[int, int]:
        try:
            found = self.root.stat()
        except OSError as error:
            raise translated(error, f"look at {self.root}") from error
        if not stat.S_ISDIR(found.st_mode):
            raise StoreUnsafe(f"store {self.root}: want a folder, got a file", code="NotAFolder")
        return found.st_dev, found.st_ino

    def _same_root(self) -> None:
        """Refuse to go on when the root was unmounted or replaced: what is below is not our store any more."""
        try:
            same = self._root_identity() == self._identity
        except AiModelsError as error:
            raise StoreUnavailable(f"store folder {self.root}: gone", code="Vanished") from error
        if not same:
            raise StoreUnavailable(f"store folder {self.root}: another folder is there now", code="Vanished")
