"""Blobs into files: several ranges at once, each written where it belongs, hashed in order while in memory.

A blob's file gets its final name only after its digest matched and its bytes are durable. What the files are for is
decided in `aimodels_core.pull`.
"""

import concurrent.futures
import contextlib
import dataclasses
import errno
import hashlib
import logging
import mmap
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aimodels_core import folders
from aimodels_core.blobs import Blobs
from aimodels_core.digest import Digest
from aimodels_core.errors import Cancelled
from aimodels_core.units import MIB

if TYPE_CHECKING:
    from hashlib import _Hash

PART_BYTES = 16 * MIB
_CHECK_SECONDS = 0.25
_ALIGNED = 4096
_DIRECT_FROM_BYTES = 4 * MIB

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Want:
    """A blob to fetch.

    Args:
        digest: its digest.
        size_bytes: its size.
        start: bytes that its unfinished file already holds.
        prefix: the hash of those bytes.
    """

    digest: Digest
    size_bytes: int
    start: int = 0
    prefix: "_Hash | None" = None


@dataclasses.dataclass(frozen=True, slots=True)
class Hooks:
    """What the caller wants to be told and asked: `progress(bytes)` after each range, `cancelled()` between ranges."""

    progress: Callable[[int], None] = lambda _: None
    cancelled: Callable[[], bool] = lambda: False


NO_HOOKS = Hooks()


def unfinished(folder: Path, digest: Digest) -> Path:
    """Name the file of a blob on its way."""
    return folder / f"{digest.hex}.part"


def journal(folder: Path, digest: Digest) -> Path:
    """Name the file that says how many bytes of a blob on its way were hashed, from its start on."""
    return folder / f"{digest.hex}.done"


class _File:
    """One blob on its way. Its lock orders the hashing; ranges are written without it."""

    def __init__(self, want: Want, folder: Path, *, direct: bool) -> None:
        self.want, self.folder = want, folder
        self.lock = threading.Lock()
        self.hasher = hashlib.sha256() if want.prefix is None else want.prefix.copy()
        self.position = self.noted = want.start
        self.ready: dict[int, tuple[mmap.mmap, int]] = {}
        self.hashing = False
        self._descriptor = -1
        self._direct = direct and want.size_bytes >= _DIRECT_FROM_BYTES
        self._direct_descriptor = -1

    def write(self, view: memoryview, start: int) -> None:
        """Write a range where it belongs."""
        with self.lock:
            if self._descriptor < 0:
                self._open()
        whole = len(view) - len(view) % _ALIGNED if self._direct and start % _ALIGNED == 0 else 0
        if whole and self._write_direct(view[:whole], start):
            view, start = view[whole:], start + whole
        _write_all(self._descriptor, view, start)

    def _open(self) -> None:
        path = unfinished(self.folder, self.want.digest)
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(path, flags | (0 if self.want.start else os.O_TRUNC), 0o600)
        if self._direct:
            try:
                self._direct_descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_DIRECT)
            except OSError:  # a file system that knows no such thing
                self._direct = False

    def _write_direct(self, view: memoryview, start: int) -> bool:
        """Write past the page cache; False when the file system does not take it like that."""
        try:
            _write_all(self._direct_descriptor, view, start)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._direct = False
            return False
        return True

    def following(self) -> tuple[mmap.mmap, int] | None:
        """Take the next range to hash; None, and the hashing is free for another thread, when it is not there yet."""
        with self.lock:
            item = self.ready.pop(self.position, None)
            self.hashing = item is not None
            return item

    def note(self, step_bytes: int = 1) -> None:
        """Write down how far the hashing came; a hint for a later pull, so it need not be durable."""
        if self.position - self.noted >= step_bytes:
            self.noted = self.position
            journal(self.folder, self.want.digest).write_text(str(self.position), encoding="ascii")

    def finish(self) -> bool:
        """Give the file its name, durable, if its digest is right."""
        if self.hasher.hexdigest() != self.want.digest.hex:
            return False
        os.fchmod(self._descriptor, folders.FILE_MODE)
        os.fsync(self._descriptor)
        self.close()
        journal(self.folder, self.want.digest).unlink(missing_ok=True)
        unfinished(self.folder, self.want.digest).rename(self.folder / self.want.digest.hex)
        return True

    def leave(self) -> None:
        """Close the file; if it is unfinished, note how far it came."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                self.note()
            self.close()

    def close(self) -> None:
        for descriptor in (self._descriptor, self._direct_descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._direct_descriptor = -1


def _write_all(descriptor: int, view: memoryview, start: int) -> None:
    while view:
        done = os.pwrite(descriptor, view, start)
        view, start = view[done:], start + done


class Fetch:
    """One pass over some blobs. Used once.

    Args:
        blobs: where they are.
        wants: which; none of them empty.
        folder: where their files go, named by their hex digests.
        connections: ranges in flight at once.
        hooks: see `Hooks`.
        part_bytes: length of a range.
        direct: write large files past the page cache, where the file system can.
    """

    def __init__(
        self,
        blobs: Blobs,
        wants: Sequence[Want],
        folder: Path,
        *,
        connections: int,
        hooks: Hooks,
        part_bytes: int = PART_BYTES,
        direct: bool = False,
    ) -> None:
        self._blobs, self._hooks, self._folder = blobs, hooks, folder
        self._connections, self._part_bytes = connections, part_bytes
        self._files = [_File(want, folder, direct=direct) for want in wants]
        self._parts = self._in_order()
        self._changed = threading.Condition()
        self._free = [_buffer(part_bytes) for _ in range(min(connections + 2, sum(1 for _ in self._in_order())))]
        self._stopped = False
        self._wrong: list[tuple[Want, str]] = []

    def run(self) -> tuple[tuple[Want, str], ...]:
        """Fetch everything; return the blobs whose bytes had another digest, with that digest in hex.

        Raises:
            Cancelled, StoreFull, StoreUnsafe, StoreUnavailable, and what `Blobs.read` raises.
        """
        try:
            with concurrent.futures.ThreadPoolExecutor(self._connections, "pull") as pool:
                workers = [pool.submit(self._work) for _ in range(self._connections)]
                concurrent.futures.wait(workers, return_when=concurrent.futures.FIRST_EXCEPTION)
            for worker in workers:
                worker.result()
        except BaseException:
            self._stop()
            raise
        finally:
            for file in self._files:
                file.leave()
        return tuple(self._wrong)

    def _in_order(self) -> Iterator[tuple[_File, int, int]]:
        for file in self._files:
            for start in range(file.want.start, file.want.size_bytes, self._part_bytes):
                yield file, start, min(self._part_bytes, file.want.size_bytes - start)

    def _work(self) -> None:
        try:
            while (job := self._next()) is not None:
                buffer, (file, start, length) = job
                with memoryview(buffer) as whole, whole[:length] as view:
                    self._blobs.read(file.want.digest, file.want.size_bytes, start, view)
                    with folders.disk_errors(self._folder):
                        file.write(view, start)
                self._hooks.progress(length)
                self._hash(file, start, buffer, length)
        except BaseException:
            self._stop()
            raise

    def _stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _next(self) -> tuple[mmap.mmap, tuple[_File, int, int]] | None:
        """Take a buffer and the next range together, so that the earliest range in flight always has a buffer."""
        with self._changed:
            while True:
                if self._hooks.cancelled():
                    raise Cancelled("pull: cancelled")
                if self._stopped:
                    return None
                if self._free:
                    job = next(self._parts, None)
                    return None if job is None else (self._free.pop(), job)
                self._changed.wait(_CHECK_SECONDS)

    def _hash(self, file: _File, start: int, buffer: mmap.mmap, length: int) -> None:
        """Hash this range and what waits behind it, unless another thread is at it or an earlier range is missing."""
        with file.lock:
            file.ready[start] = buffer, length
            if file.hashing:
                return
            file.hashing = True
        while (item := file.following()) is not None:
            with memoryview(item[0]) as whole, whole[: item[1]] as view:
                file.hasher.update(view)
            file.position += item[1]
            self._give_back(item[0])
            with folders.disk_errors(self._folder):
                file.note(self._part_bytes)
            if file.position == file.want.size_bytes:
                self._finish(file)
                return

    def _finish(self, file: _File) -> None:
        with folders.disk_errors(self._folder):
            if not file.finish():
                file.close()
                self._wrong.append((file.want, file.hasher.hexdigest()))
        log.debug("fetched a blob", extra={"digest": str(file.want.digest), "size_bytes": file.want.size_bytes})

    def _give_back(self, buffer: mmap.mmap) -> None:
        with self._changed:
            self._free.append(buffer)
            self._changed.notify()


def _buffer(size_bytes: int) -> mmap.mmap:
    """Make a page-aligned private buffer: receiving into an unaligned one costs four times the CPU."""
    buffer = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        buffer.madvise(mmap.MADV_HUGEPAGE)
    return buffer
