"""Uploads of a folder store: preallocated temporary files that movers write parts into.

The upload id is the name of the file without its generation. Movers open the file, hold a shared lock while they
write, and check under that lock that the name still leads to the file they opened. Taking an upload over, or completing
it, locks the file exclusively and renames it: a mover of a dead process never writes into a file that was checked.
"""

import contextlib
import fcntl
import hashlib
import os
import secrets
import threading
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path

import xxhash

from aimodels_core.errors import NotPublished, StoreUnavailable
from aimodels_jobs.disk import Disk, translated
from aimodels_jobs.objects import Upload, digest_in
from aimodels_jobs.orders import PartRecord

SUFFIX = ".upload"
_READ_BYTES = 4 * 1024 * 1024
_LOCK_SECONDS = 2.0
_POLL_SECONDS = 0.05


def read_range(handle: int, start: int, length: int) -> bytes:
    """Read `length` bytes from `start`; fewer only at the end of the file."""
    chunks = []
    while length > 0:
        chunk = os.pread(handle, length, start)
        if not chunk:
            break
        chunks.append(chunk)
        start, length = start + len(chunk), length - len(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def locks_work(folder: Path) -> bool:
    """Say whether a lock taken through one open file keeps another one out; on some shared file systems it does not."""
    path = folder / f"{secrets.token_hex(8)}.lock"
    first = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        second = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return _locked(first) and not _locked(second)
        finally:
            os.close(second)
    finally:
        os.close(first)
        path.unlink(missing_ok=True)


def _alone(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class Uploads:
    """The temporary files of one store.

    Args:
        folder: where they are.
        disk: the system calls.
    """

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._folder = folder
        self._disk = disk
        self._lock = threading.Lock()
        self._locks_work: bool | None = None

    def create(self, key: str, size_bytes: int) -> Upload:
        """Begin an upload of `size_bytes` (> 0).

        Raises:
            StoreFull, StoreUnsafe, StoreUnavailable.
        """
        if size_bytes <= 0:
            raise ValueError(f"{key}: want an upload of at least one byte, got {size_bytes}")
        name = f"{urllib.parse.quote(key, safe='')}@{secrets.token_hex(8)}"
        path = self._folder / f"{name}.0{SUFFIX}"
        try:
            handle = self._disk.create(path)
            try:
                self._disk.allocate(handle, size_bytes)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
            finally:
                self._disk.close(handle)
        except OSError as error:
            raise translated(error, f"reserve {size_bytes} bytes for {key}") from error
        return Upload(key, name, size_bytes, time.time())

    def file(self, upload: Upload) -> Path:
        """Find the file of an upload: the newest generation.

        Raises:
            NotPublished: code UploadGone.
        """
        direct = self._folder / f"{upload.id}.0{SUFFIX}"
        if direct.exists():
            return direct
        found = [path for path in self._files() if _parsed(path.name)[0] == upload.id]
        if not found:
            raise NotPublished(f"{upload.key}: the upload's file is gone", code="UploadGone")
        return max(found, key=lambda path: _parsed(path.name)[1])

    @contextlib.contextmanager
    def held(self, path: Path) -> Iterator[bool]:
        """Keep movers out of the file; gives False when one is in it, and True where locks do nothing.

        Raises:
            NotPublished: code UploadGone.
        """
        try:
            handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise NotPublished("the upload's file is gone", code="UploadGone") from error
        try:
            yield _alone(handle)
        finally:
            os.close(handle)

    def kept_parts(self, upload: Upload, records: Sequence[PartRecord]) -> frozenset[int]:
        """Take an upload over from an earlier process; say which parts are as recorded.

        Raises:
            NotPublished: code UploadGone: no file, another size, or somebody may still write to it.
        """
        path = self.file(upload)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if os.fstat(handle).st_size != upload.size_bytes or not self._taken_over(path, handle):
                    raise NotPublished(f"{upload.key}: the upload's file may still be written to", code="UploadGone")
                return frozenset(r.number for r in records if _xxh3(handle, r) == r.checksum)
            finally:
                os.close(handle)
        except FileNotFoundError as error:
            raise NotPublished(f"{upload.key}: the upload's file is gone", code="UploadGone") from error
        except OSError as error:
            raise translated(error, f"read the upload of {upload.key}") from error

    def checked_copy(self, upload: Upload, path: Path, records: Sequence[PartRecord]) -> Path:
        """Copy an upload into a new flushed file, hashing on the way.

        Raises:
            StoreUnavailable: code PartsDiffer: these are not the bytes of the recorded parts, or not of the digest.
        """
        target = self._folder / f"{secrets.token_hex(8)}.put"
        try:
            source = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            handle = self._disk.create(target)
            try:
                self._disk.allocate(handle, upload.size_bytes)
                differing = self._copy(source, handle, upload, records)
                self._disk.sync(handle)
            finally:
                os.close(source)
                self._disk.close(handle)
        except OSError as error:
            target.unlink(missing_ok=True)
            raise translated(error, f"copy the upload of {upload.key}") from error
        if differing:
            target.unlink(missing_ok=True)
            raise StoreUnavailable(f"{upload.key}: {differing}", code="PartsDiffer")
        return target

    def abort(self, upload: Upload) -> None:
        """Remove every file of an upload."""
        for path in self._files():
            if _parsed(path.name)[0] == upload.id:
                path.unlink(missing_ok=True)

    def list(self, prefix: str) -> Iterator[Upload]:
        """List uploads whose key starts with `prefix`, in order of key."""
        for path in sorted(self._files()):
            name, _ = _parsed(path.name)
            key = urllib.parse.unquote(name.rpartition("@")[0])
            if not key.startswith(prefix):
                continue
            try:
                found = path.stat()
            except FileNotFoundError:
                continue
            yield Upload(key, name, found.st_size, found.st_mtime)

    def _copy(self, source: int, target: int, upload: Upload, records: Sequence[PartRecord]) -> str:
        whole = hashlib.sha256()
        differing: list[int] = []
        for record in records:
            part = xxhash.xxh3_64()
            for at in range(record.start, record.start + record.size_bytes, _READ_BYTES):
                data = read_range(source, at, min(_READ_BYTES, record.start + record.size_bytes - at))
                whole.update(data)
                part.update(data)
                self._disk.write(target, data, at)
            if part.hexdigest() != record.checksum:
                differing.append(record.number)
        want = digest_in(upload.key)
        if want:
            return "" if whole.hexdigest() == want else f"stored bytes differ: got sha256:{whole.hexdigest()}"
        return f"stored parts differ from the recorded ones: {differing[:10]}" if differing else ""

    def _taken_over(self, path: Path, handle: int) -> bool:
        if not self._locks_are_real() or not _locked_within(handle, _LOCK_SECONDS):
            return False
        name, generation = _parsed(path.name)
        path.rename(self._folder / f"{name}.{generation + 1}{SUFFIX}")
        return True

    def _locks_are_real(self) -> bool:
        with self._lock:
            if self._locks_work is None:
                self._locks_work = locks_work(self._folder)
            return self._locks_work

    def _files(self) -> Iterator[Path]:
        try:
            with os.scandir(self._folder) as entries:
                names = [entry.name for entry in entries if entry.name.endswith(SUFFIX)]
        except FileNotFoundError:
            return
        yield from (self._folder / name for name in names)


def _parsed(name: str) -> tuple[str, int]:
    upload, _, generation = name.removesuffix(SUFFIX).rpartition(".")
    return (upload, int(generation)) if generation.isdigit() else (name, 0)


def _xxh3(handle: int, record: PartRecord) -> str:
    part = xxhash.xxh3_64()
    for at in range(record.start, record.start + record.size_bytes, _READ_BYTES):
        part.update(read_range(handle, at, min(_READ_BYTES, record.start + record.size_bytes - at)))
    return part.hexdigest()


def _locked_within(handle: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not _locked(handle):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
