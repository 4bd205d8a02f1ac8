"""Where the bytes of a part go: a presigned UploadPart (`sending`), a place in a file, or nowhere.

A sink takes slices in order while they are in the processor's cache. Retries and checksums do not belong here.
"""

import contextlib
import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from typing import Final, Protocol, assert_never

from aimodels_core.errors import NotPublished, StoreUnavailable
from aimodels_jobs import disk, sending
from aimodels_jobs.orders import DiscardTicket, FilePartTicket, S3PartTicket, WriteTicket
from aimodels_jobs.wires import Cutter, Wires

_NO_DIRECT: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP})


class Sink(Protocol):
    """Takes the bytes of one attempt at a part."""

    def write(self, block: memoryview, start: int, stop: int) -> None:
        """Take block[start:stop], which follows what was written before.

        A block that is full is written out before this returns.
        """
        ...

    def finish(self, checksum: str) -> str:
        """Wait until the store has everything; return its ETag, empty when it has none.

        Args:
            checksum: lower-case hex of the part's checksum.
        """
        ...


@contextlib.contextmanager
def opened(ticket: WriteTicket, size_bytes: int, *, wires: Wires, cutter: Cutter, deadline: float) -> Iterator[Sink]:
    """Open the sink of one attempt.

    Args:
        ticket: where the bytes go.
        size_bytes: how many there will be.
        wires: connections to use again.
        cutter: what ends the attempt from outside.
        deadline: by `time.monotonic`.

    Raises:
        TicketExpired, StoreFull, StoreUnsafe, StoreUnavailable, NotPublished (code UploadGone), and LostConnection.
    """
    match ticket:
        case S3PartTicket():
            with sending.opened(ticket, size_bytes, wires, cutter, deadline) as upload:
                yield upload
        case FilePartTicket():
            with _file(ticket) as file:
                yield file
        case DiscardTicket():
            yield _Nowhere()
        case _:
            assert_never(ticket)


class _Nowhere:
    def write(self, block: memoryview, start: int, stop: int) -> None:
        pass

    def finish(self, checksum: str) -> str:
        del checksum
        return ""


@contextlib.contextmanager
def _file(ticket: FilePartTicket) -> Iterator["_FilePart"]:
    try:
        with contextlib.ExitStack() as stack:
            yield _FilePart(ticket, stack)
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise NotPublished("part: the upload's file is gone", code="UploadGone") from error
        raise disk.translated(error, "write a part") from error


class _FilePart:
    """Writes full blocks past the page cache where the file system can, the rest through it."""

    def __init__(self, ticket: FilePartTicket, stack: contextlib.ExitStack) -> None:
        self._offset = ticket.offset
        self._cached = _open(ticket.path, 0)
        stack.callback(os.close, self._cached)
        _lock(self._cached, ticket.path)
        self._direct: int | None = None
        if ticket.offset % mmap.PAGESIZE == 0:
            with contextlib.suppress(OSError):  # some file systems refuse already here
                self._direct = _open(ticket.path, os.O_DIRECT)
                stack.callback(os.close, self._direct)
        self._pending = memoryview(b"")

    def write(self, block: memoryview, start: int, stop: int) -> None:
        if self._direct is None:
            self._write_cached(block[start:stop])
            return
        self._pending = block[start - len(self._pending) : stop]
        if stop == len(block):
            self._write_direct(self._direct)

    def finish(self, checksum: str) -> str:
        del checksum
        if self._pending and self._direct is not None:
            self._write_direct(self._direct)
        return ""

    def _write_direct(self, handle: int) -> None:
        """Write what is pending: whole pages directly, the last bytes of a file through the cache."""
        view, self._pending = self._pending, memoryview(b"")
        whole = len(view) // mmap.PAGESIZE * mmap.PAGESIZE
        try:
            while whole and (done := os.pwrite(handle, view[:whole], self._offset)):
                self._offset += done
                view, whole = view[done:], whole - done
        except OSError as error:
            if error.errno not in _NO_DIRECT:
                raise
            self._direct = None
        self._write_cached(view)

    def _write_cached(self, view: memoryview) -> None:
        begin = self._offset
        while view:
            done = os.pwrite(self._cached, view, self._offset)
            self._offset += done
            view = view[done:]
        if self._offset > begin:  # begins to write back now, so that the flush at the end finds little left
            os.posix_fadvise(self._cached, begin, self._offset - begin, os.POSIX_FADV_DONTNEED)


def _open(path: str, flags: int) -> int:
    return os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | flags)


def _lock(handle: int, path: str) -> None:
    """Say that the file is written to, and see that the name still leads to it.

    Whoever takes the file over, or completes it, locks it exclusively and renames it. File systems without locks are
    read back at the end instead.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StoreUnavailable("part: the upload's file is being taken over", code="UploadBusy") from error
    except OSError:
        pass
    mine, named = os.fstat(handle), os.lstat(path)
    if (mine.st_dev, mine.st_ino) != (named.st_dev, named.st_ino):
        raise NotPublished("part: the upload's file was taken over", code="UploadGone")
