"""One writer per store: the right to delete, and a courtesy between processes that publish.

Publication stays correct without it: what is committed was verified, and commits do not overwrite each other's blobs.
Only deletion leans on it. A folder is held by a lock of the kernel, a bucket by lease objects (`writer_lease`).
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from aimodels_core import names
from aimodels_core.errors import WriterBusy
from aimodels_jobs.disk import translated
from aimodels_jobs.folder import Folder
from aimodels_jobs.objects import Objects
from aimodels_jobs.s3 import S3

_POLL_SECONDS = 0.2
_MAX_BYTES = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class Holder:
    """Who writes.

    Args:
        host: its machine.
        pid: its process there.
        since: when it began, Unix seconds.
        token: unique.
        beat: how often it said that it is alive.
        released: it has given the right back.
    """

    host: str
    pid: int
    since: float
    token: str
    beat: int = 0
    released: bool = False

    @classmethod
    def here(cls, now: float) -> "Holder":
        """Describe this process."""
        return cls(socket.gethostname(), os.getpid(), now, secrets.token_hex(8))

    def render(self) -> bytes:
        """Render as JSON."""
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def parse(cls, data: bytes) -> "Holder | None":
        """Parse what `render` made; None for anything else."""
        try:
            document = json.loads(data)
            return cls(
                str(document["host"])[:200],
                int(document["pid"]),
                float(document["since"]),
                str(document["token"]),
                int(document["beat"]),
                bool(document["released"]),
            )
        except (ValueError, KeyError, TypeError):
            return None

    def __str__(self) -> str:
        began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.since))
        return f"process {self.pid} on {self.host} since {began}"


class Writer(Protocol):
    """The right to write to a store."""

    @property
    def holder(self) -> str:
        """Who writes, for people; empty when nobody is known to."""
        ...

    def acquire(self, budget_seconds: float) -> None:
        """Become the writer, waiting for another one within the budget.

        Raises:
            WriterBusy: names the holder.
            StoreUnavailable, StoreUnsafe.
        """
        ...

    def check(self) -> None:
        """Make sure that this process is still the writer.

        Raises:
            WriterBusy: code Lost.
        """
        ...

    def release(self) -> None:
        """Give the right back; harmless when it is not held."""
        ...


def writer_of(objects: Objects, *, sleep: Callable[[float], None] = time.sleep) -> Writer:
    """Make the writer that belongs to a kind of store; `sleep` may raise to end a wait for another writer."""
    match objects:
        case Folder():
            return FolderWriter(objects.root, sleep=sleep)
        case S3():
            from aimodels_jobs.writer_lease import LeaseWriter

            return LeaseWriter(objects, sleep=sleep)
        case _:
            raise TypeError(f"store: want a folder or a bucket, got {type(objects).__name__}")


def busy(holder: "Holder | None", where: str) -> WriterBusy:
    """Say who is in the way."""
    return WriterBusy(f"{where}: another writer is at work: {holder or 'an unknown process'}", code="WriterBusy")


class FolderWriter:
    """Holds a folder store by a lock that ends with the process.

    Args:
        root: the store.
        clock: Unix seconds.
        monotonic: for the budget.
        sleep: waits that many seconds.
    """

    def __init__(
        self,
        root: Path,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._path = root / names.writer_prefix() / "lock"
        self._clock = clock
        self._monotonic = monotonic
        self._sleep = sleep
        self._handle: int | None = None

    @property
    def holder(self) -> str:
        """Who writes, for people."""
        found = self._holder()
        return str(found) if found and not found.released else ""

    def acquire(self, budget_seconds: float) -> None:
        """Become the writer (see `Writer`)."""
        with contextlib.suppress(WriterBusy):
            self.check()
            return
        self.release()
        deadline = self._monotonic() + budget_seconds
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            while (handle := self._locked()) is None:
                if self._monotonic() >= deadline:
                    raise busy(self._holder(), str(self._path.parent))
                self._sleep(_POLL_SECONDS)
        except OSError as error:
            raise translated(error, f"lock {self._path}") from error
        self._handle = handle
        self._say(Holder.here(self._clock()))

    def check(self) -> None:
        """Make sure that the locked file still is the one at its name."""
        if self._handle is None or not _same(self._path, self._handle):
            raise WriterBusy(f"{self._path}: want it locked by this process, got it replaced", code="Lost")

    def release(self) -> None:
        """Give the right back."""
        if self._handle is None:
            return
        handle, self._handle = self._handle, None
        with contextlib.suppress(OSError):
            os.ftruncate(handle, 0)
        os.close(handle)

    def _locked(self) -> int | None:
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError:  # a file system without locks: nothing can be held, and nothing leans on it but deletion
            return handle
        if _same(self._path, handle):
            return handle
        os.close(handle)
        return None

    def _say(self, holder: Holder) -> None:
        if self._handle is not None:
            with contextlib.suppress(OSError):  # for people only; a full disk does not matter here
                os.ftruncate(self._handle, 0)
                os.pwrite(self._handle, holder.render(), 0)

    def _holder(self) -> Holder | None:
        try:
            with self._path.open("rb") as file:
                return Holder.parse(file.read(_MAX_BYTES))
        except OSError:
            return None


def _same(path: Path, handle: int) -> bool:
    try:
        found, held = path.stat(), os.fstat(handle)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino)
