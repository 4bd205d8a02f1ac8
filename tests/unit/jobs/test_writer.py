"""One writer of a folder store; the lease of a bucket is in tests/contract."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aimodels_core import names
from aimodels_core.errors import WriterBusy
from aimodels_jobs.folder import Folder
from aimodels_jobs.writer import FolderWriter, Holder, writer_of

_HOLD = """
import sys
from pathlib import Path
from aimodels_jobs.writer import FolderWriter
writer = FolderWriter(Path(sys.argv[1]))
writer.acquire(5)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the store."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_the_first_writer_writes_at_once_and_gives_the_right_back(tmp_path: Path) -> None:
    writer = FolderWriter(tmp_path, clock=lambda: 1000.0)
    writer.acquire(0)
    writer.acquire(0)
    writer.check()
    assert f"process {os.getpid()} on" in writer.holder

    writer.release()
    writer.release()
    assert writer.holder == ""
    with pytest.raises(WriterBusy):
        writer.check()


def test_a_second_writer_waits_and_names_the_holder(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    waited: list[float] = []
    time = iter(float(n) for n in range(100))
    writer = FolderWriter(tmp_path, monotonic=lambda: next(time), sleep=waited.append)

    with pytest.raises(WriterBusy, match=f"process {other.pid} on") as caught:
        writer.acquire(5)
    assert caught.value.retryable
    assert len(waited) == 4


def test_a_frozen_writer_of_a_folder_keeps_its_right(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    other.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(WriterBusy):
            FolderWriter(tmp_path).acquire(0.3)
    finally:
        other.send_signal(signal.SIGCONT)


def test_a_killed_writer_is_followed_at_once(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    other.kill()
    other.wait(timeout=10)

    writer = FolderWriter(tmp_path)
    writer.acquire(0)
    assert f"process {os.getpid()} on" in writer.holder
    writer.release()


def test_a_writer_whose_lock_file_was_replaced_knows_it(tmp_path: Path) -> None:
    writer = FolderWriter(tmp_path)
    writer.acquire(0)
    lock = tmp_path / names.writer_prefix() / "lock"
    lock.unlink()

    with pytest.raises(WriterBusy) as caught:
        writer.check()
    assert caught.value.code == "Lost"
    writer.release()


def test_o72_a_file_system_without_locks_can_still_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: object) -> None:
        raise OSError(errno.ENOSYS, "no locks")

    monkeypatch.setattr(fcntl, "flock", nothing)
    writer = FolderWriter(tmp_path)
    writer.acquire(0)
    writer.check()
    writer.release()


def test_the_writer_of_a_folder_is_a_lock(tmp_path: Path) -> None:
    assert isinstance(writer_of(Folder(tmp_path)), FolderWriter)


def test_a_holder_survives_rendering_and_nothing_else_is_one() -> None:
    holder = Holder("host", 5, 1000.0, "t", 3, released=True)

    assert Holder.parse(holder.render()) == holder
    assert Holder.parse(b"") is None
    assert Holder.parse(b"[]") is None
    assert Holder.parse(b'{"pid": 5}') is None
    assert str(holder) == "process 5 on host since 1970-01-01 00:16:40 UTC"
