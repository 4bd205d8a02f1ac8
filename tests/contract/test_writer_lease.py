"""One writer of a bucket, on a real S3 server: who may follow whom, and that a thawed writer deletes nothing."""

import dataclasses
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from aimodels_core import names
from aimodels_core.errors import WriterBusy
from aimodels_jobs.s3 import S3
from aimodels_jobs.writer import writer_of
from aimodels_jobs.writer_lease import LeaseWriter, Terms
from tests.support import servers
from tests.support.stores import bucket

NEVER = Terms(beat=3600.0, quiet=10.0, poll=0.5)
"""The clock of these tests is moved by hand; nothing beats by itself."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.S3Server]:
    with servers.versitygw(tmp_path_factory.mktemp("versity")) as running:
        yield running


@pytest.fixture
def again(server: servers.S3Server) -> Callable[[], S3]:
    prefix = f"stores/{secrets.token_hex(4)}"
    return lambda: bucket(server, prefix)


@dataclasses.dataclass
class _Time:
    """A clock that waiting moves on."""

    now: float = 500.0
    meanwhile: Callable[[], object] = lambda: None

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile()


def _writer(objects: S3, time: _Time) -> LeaseWriter:
    return LeaseWriter(objects, terms=NEVER, monotonic=time, sleep=time.sleep)


def test_the_first_writer_of_a_store_writes_at_once(again: Callable[[], S3]) -> None:
    time = _Time()
    writer = _writer(again(), time)
    writer.acquire(0)
    writer.check()

    assert time.now == 500.0
    assert f"process {os.getpid()} on" in writer.holder
    assert f"process {os.getpid()} on" in _writer(again(), time).holder
    writer.release()


def test_after_a_release_the_next_writer_writes_at_once(again: Callable[[], S3]) -> None:
    time = _Time()
    first, second = _writer(again(), time), _writer(again(), time)
    first.acquire(0)
    first.release()
    assert second.holder == ""

    second.acquire(0)
    second.check()

    assert time.now == 500.0
    with pytest.raises(WriterBusy):
        first.check()
    assert [info.key for info in again().list(names.writer_prefix())] == [names.writer_lease(2)]
    second.release()


def test_a_silent_writer_is_followed_after_quiet_and_the_taker_waits_as_long_again(again: Callable[[], S3]) -> None:
    time = _Time()
    first, second = _writer(again(), time), _writer(again(), time)
    first.acquire(0)

    second.acquire(60)

    assert 520.0 <= time.now <= 521.0
    second.check()
    with pytest.raises(WriterBusy) as caught:
        first.check()
    assert caught.value.code == "Lost"
    second.release()
    first.release()
    assert second.holder == ""


def test_a_writer_that_beats_is_not_followed_and_is_named(again: Callable[[], S3]) -> None:
    time = _Time()
    first = _writer(again(), time)
    first.acquire(0)
    time.meanwhile = first._beat

    with pytest.raises(WriterBusy, match=f"process {os.getpid()} on"):
        _writer(again(), time).acquire(30)
    first.check()
    first.release()


def test_of_two_takers_one_wins(again: Callable[[], S3]) -> None:
    time = _Time()
    _writer(again(), time).acquire(0)
    second, third = _writer(again(), time), _writer(again(), time)
    second.acquire(60)

    time.meanwhile = second._beat
    with pytest.raises(WriterBusy):
        third.acquire(15)
    second.check()
    second.release()


def test_a_thawed_writer_knows_by_its_own_clock(again: Callable[[], S3]) -> None:
    time = _Time()
    objects = again()
    writer = _writer(objects, time)
    writer.acquire(0)
    objects.put("k", b"x")
    time.now += 10

    with pytest.raises(WriterBusy):
        objects.delete("k")
    assert objects.head("k") is not None
    assert writer._beat() is True
    objects.delete("k")
    assert objects.head("k") is None
    writer.release()


def test_a_lost_lease_is_never_renewed(again: Callable[[], S3]) -> None:
    time = _Time()
    first, second = _writer(again(), time), _writer(again(), time)
    first.acquire(0)
    second.acquire(60)

    assert first._beat() is False
    with pytest.raises(WriterBusy):
        first.check()
    second.release()


def test_the_writer_of_a_bucket_is_a_lease(again: Callable[[], S3]) -> None:
    assert isinstance(writer_of(again()), LeaseWriter)


_FROZEN = """
import os, signal, sys
from aimodels_core.errors import WriterBusy
from aimodels_jobs.s3 import S3
from aimodels_jobs.s3_client import S3Settings
from aimodels_jobs.writer_lease import LeaseWriter, Terms

endpoint, bucket, prefix, when = sys.argv[1:]
objects = S3(S3Settings(bucket, prefix=prefix, endpoint=endpoint))
writer = LeaseWriter(objects, terms=Terms(beat=0.5, quiet=3.0, poll=0.1))
writer.acquire(5)
objects.put("victim", b"x")
send = objects.client.send

def freeze():
    print("frozen", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)

def late(*arguments):
    if when == "after signing" and arguments[1] == "DELETE":
        objects.client.send = send
        freeze()
        answer = send(*arguments)
        print("server said", answer[0], flush=True)
        return answer
    return send(*arguments)

objects.client.send = late
if when == "before signing":
    freeze()
try:
    objects.delete("victim")
    print("deleted", flush=True)
except WriterBusy as error:
    print("refused", error.code, flush=True)
"""


@pytest.mark.parametrize("when", ["before signing", "after signing"])
def test_a_frozen_writer_that_thaws_after_a_takeover_deletes_nothing(
    server: servers.S3Server, again: Callable[[], S3], when: str
) -> None:
    objects = again()
    prefix = objects.settings.prefix
    command = [sys.executable, "-c", _FROZEN, server.endpoint, server.bucket, prefix, when]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, **server.environment()}
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "frozen\n"
            taker = LeaseWriter(objects, terms=Terms(beat=0.5, quiet=3.0, poll=0.1))
            taker.acquire(30)
            process.send_signal(signal.SIGCONT)
            said = process.stdout.read()
        finally:
            process.kill()

    expected = "refused Lost\n" if when == "before signing" else "server said 403\nrefused Lost\n"
    assert said == expected
    assert objects.get("victim", max_bytes=1) == b"x"
    taker.check()
    taker.release()
