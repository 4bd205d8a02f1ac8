"""Movers against a source and a store that misbehave: sockets and files are real, nothing is patched."""

import dataclasses
import fcntl
import hashlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import xxhash
from awscrt import checksums as crt

from aimodels_core.errors import (
    AiModelsError,
    Cancelled,
    MoverLost,
    NotPublished,
    RateLimited,
    SourceUnavailable,
    StoreFull,
    StoreUnavailable,
    StoreUnsafe,
    TicketExpired,
    UsageError,
)
from aimodels_core.source import ReadTicket
from aimodels_core.units import KIB
from aimodels_jobs import midstate
from aimodels_jobs.mover import Mover
from aimodels_jobs.orders import (
    ChecksumKind,
    DiscardTicket,
    FilePartTicket,
    HashReport,
    PartOrder,
    RunOrder,
    RunReport,
    S3PartTicket,
    WriteTicket,
)
from tests.support import parts
from tests.support.parts import Fault, Hold, Place, Refuse

PART = 128 * KIB
BLOCK = 64 * KIB
DATA = random.Random(7).randbytes(8 * PART + 777)
SIZE = len(DATA)


@pytest.fixture
def source() -> Iterator[Place]:
    with parts.source(DATA) as place:
        yield place


@pytest.fixture
def sink() -> Iterator[Place]:
    with parts.sink() as place:
        yield place


@pytest.fixture
def make() -> Iterator[Callable[[int], Mover]]:
    """Movers with this many blocks; each must have given its memory back at the end."""
    made: list[Mover] = []

    def make(blocks: int) -> Mover:
        made.append(Mover(blocks * BLOCK, BLOCK))
        return made[-1]

    yield make
    for mover in made:
        mover.close()
        assert wait_for(lambda mover=mover: mover.poll().held_bytes == 0), "all memory is given back"  # type: ignore[misc]


@pytest.fixture
def mover(make: Callable[[int], Mover]) -> Mover:
    return make(64)


def wait_for(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        threading.Event().wait(0.01)
    return True


def cut(first: int = 0, last: int | None = None) -> list[tuple[int, int, int]]:
    edges = [(i + 1, a, min(a + PART, SIZE)) for i, a in enumerate(range(0, SIZE, PART))]
    return edges[first:last]


def order(
    source: Place,
    write: Callable[[int, int], WriteTicket],
    pieces: list[tuple[int, int, int]] | None = None,
    *,
    run_id: str = "run",
    checksum: ChecksumKind = ChecksumKind.CRC64NVME,
    connections: int = 4,
    seconds: float = 10.0,
    expires_at: float | None = None,
    sequence: int = 0,
) -> RunOrder:
    read = ReadTicket(
        f"{source.url}/model.safetensors?sig=secret", (("X-Ticket", "1"),), SIZE, expires_at, "cdn.test", trusted=True
    )
    made = tuple(PartOrder(n, a, b, write(n, a)) for n, a, b in (pieces or cut()))
    return RunOrder(run_id, "model.safetensors", made, read, checksum, connections, seconds, sequence)


def to_store(sink: Place, *, early: bool = False, expires_at: float = 0.0) -> Callable[..., WriteTicket]:
    tail = "&early=1" if early else ""
    return lambda n, _: S3PartTicket(f"{sink.url}/b/k?partNumber={n}{tail}", (("x-amz-meta-t", "1"),), expires_at)


def nowhere(number: int, start: int) -> WriteTicket:
    return DiscardTicket()


def error_of(report: RunReport) -> AiModelsError:
    assert report.error is not None
    return report.error.to_error()


def crc(data: bytes) -> str:
    return f"{crt.crc64nvme(data):016x}"


class TestMoving:
    def test_a_file_arrives_whole_hashed_and_with_its_records(self, mover: Mover, source: Place, sink: Place) -> None:
        report = mover.fetch(order(source, to_store(sink)))
        hashed = mover.hash("run", None, True)

        assert (report.error, report.undone, report.fetched_bytes) == (None, (), SIZE)
        assert sink.blob == DATA
        assert [r.number for r in report.records] == list(range(1, 10))
        assert [r.checksum for r in report.records] == [crc(DATA[a:b]) for _, a, b in cut()]
        assert all(r.etag.startswith('"') for r in report.records)
        assert hashed == HashReport("run", b"", hashlib.sha256(DATA).hexdigest(), SIZE)
        assert mover.poll().received_bytes == {}

    def test_requests_are_bounded_ranges_with_the_tickets_headers_on_few_connections(
        self, mover: Mover, source: Place, sink: Place
    ) -> None:
        mover.fetch(order(source, to_store(sink), connections=2))

        assert [h["range"] for _, h in source.seen if h["range"].startswith("bytes=0-")] == [f"bytes=0-{PART - 1}"]
        assert all(h["x-ticket"] == "1" and h["accept-encoding"] == "identity" for _, h in source.seen)
        assert all(h["x-amz-meta-t"] == "1" and "authorization" not in h for _, h in sink.seen)
        assert source.connections <= 2
        assert sink.connections <= 2

    def test_o59_parts_are_sent_with_their_length_and_no_chunks(self, mover: Mover, source: Place, sink: Place) -> None:
        mover.fetch(order(source, to_store(sink)))

        assert sorted(int(h["content-length"]) for _, h in sink.seen) == [777] + [PART] * 8
        assert not any("transfer-encoding" in h or "content-encoding" in h for _, h in sink.seen)

    def test_the_hash_passes_from_mover_to_mover(
        self, mover: Mover, make: Callable[[int], Mover], source: Place, sink: Place
    ) -> None:
        other = make(64)
        mover.fetch(order(source, to_store(sink), cut(0, 4), run_id="a"))
        other.fetch(order(source, to_store(sink), cut(4), run_id="b"))
        first = mover.hash("a", None, False)
        second = other.hash("b", first.state, True)

        assert (first.hashed_bytes, midstate.position(first.state)) == (4 * PART, 4 * PART)
        assert second.digest_hex == hashlib.sha256(DATA).hexdigest()

    def test_without_libcrypto_the_state_stays_in_its_mover(
        self, mover: Mover, source: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(midstate, "_library", lambda: None)
        mover.fetch(order(source, nowhere, cut(0, 4), run_id="a"))
        mover.fetch(order(source, nowhere, cut(4), run_id="b"))
        state = mover.hash("a", None, False).state

        assert not mover.facts().portable_state
        assert mover.hash("b", state, True).digest_hex == hashlib.sha256(DATA).hexdigest()

    def test_the_hash_follows_while_the_fetch_still_runs(self, mover: Mover, source: Place) -> None:
        gate = threading.Event()
        source.plan(cut()[-1][1], Hold(gate))
        fetch = threading.Thread(target=mover.fetch, args=(order(source, nowhere),))
        reports: list[HashReport] = []
        hashing = threading.Thread(target=lambda: reports.append(mover.hash("run", None, True)))
        hashing.start()
        fetch.start()

        assert wait_for(lambda: mover.poll().received_bytes.get("run") == SIZE - 777)
        assert wait_for(lambda: mover.poll().held_bytes <= 2 * BLOCK), "hashed bytes give their memory back"
        gate.set()
        fetch.join(5)
        hashing.join(5)
        assert reports[0].digest_hex == hashlib.sha256(DATA).hexdigest()

    def test_a_part_of_one_byte_and_parts_off_the_page_grid(self, mover: Mover, source: Place, sink: Place) -> None:
        pieces = [(1, 0, 64), (2, 64, 70 * KIB), (3, 70 * KIB, SIZE - 1), (4, SIZE - 1, SIZE)]
        mover.fetch(order(source, to_store(sink), pieces))

        assert mover.hash("run", None, True).digest_hex == hashlib.sha256(DATA).hexdigest()
        assert sink.blob == DATA

    def test_many_runs_at_once_share_the_pool(self, make: Callable[[int], Mover], source: Place) -> None:
        small = make(8)
        reports: dict[str, RunReport] = {}

        def fetch(name: str) -> None:
            reports[name] = small.fetch(order(source, nowhere, run_id=name, connections=2))

        names = [f"r{i}" for i in range(6)]
        threads = [threading.Thread(target=fetch, args=(name,)) for name in names]
        hashes: dict[str, str] = {}
        hashers = [
            threading.Thread(target=lambda n=name: hashes.__setitem__(n, small.hash(n, None, True).digest_hex))
            for name in names
        ]
        for thread in threads + hashers:
            thread.start()
        for thread in threads + hashers:
            thread.join(20)

        assert set(hashes.values()) == {hashlib.sha256(DATA).hexdigest()}
        assert len(hashes) == 6
        assert small.poll().held_bytes == 0

    def test_a_part_larger_than_the_pool_streams(
        self, make: Callable[[int], Mover], source: Place, sink: Place
    ) -> None:
        tiny = make(2)
        whole = [(1, 0, SIZE)]
        threading.Thread(target=tiny.fetch, args=(order(source, to_store(sink), whole),), daemon=True).start()

        assert tiny.hash("run", None, True).digest_hex == hashlib.sha256(DATA).hexdigest()
        assert wait_for(lambda: tiny.poll().held_bytes == 0)
        assert sink.blob == DATA


class TestFiles:
    def test_parts_land_at_their_place_with_xxh3(self, mover: Mover, source: Place, tmp_path: Path) -> None:
        path = tmp_path / "upload"
        path.write_bytes(bytes(SIZE))
        made = order(source, lambda _, a: FilePartTicket(str(path), a), checksum=ChecksumKind.XXH3)
        report = mover.fetch(made)
        hashed = mover.hash("run", None, True)

        assert path.read_bytes() == DATA
        assert hashed.digest_hex == hashlib.sha256(DATA).hexdigest()
        assert [r.checksum for r in report.records] == [xxhash.xxh3_64_hexdigest(DATA[a:b]) for _, a, b in cut()]
        assert {r.etag for r in report.records} == {""}

    def test_a_file_on_memory_takes_the_buffered_way(self, mover: Mover, source: Place) -> None:
        path = Path("/dev/shm") / f"upload-{time.monotonic_ns()}"
        path.write_bytes(bytes(SIZE))
        try:
            report = mover.fetch(order(source, lambda _, a: FilePartTicket(str(path), a), checksum=ChecksumKind.XXH3))
            mover.drop("run")

            assert report.error is None
            assert path.read_bytes() == DATA
        finally:
            path.unlink()

    def test_offsets_off_the_page_grid(self, mover: Mover, source: Place, tmp_path: Path) -> None:
        path = tmp_path / "upload"
        path.write_bytes(bytes(SIZE + 100))
        mover.fetch(order(source, lambda _, a: FilePartTicket(str(path), a + 100), checksum=ChecksumKind.XXH3))
        mover.drop("run")

        assert path.read_bytes() == bytes(100) + DATA

    def test_a_file_that_is_gone_is_an_upload_that_is_gone(self, mover: Mover, source: Place, tmp_path: Path) -> None:
        report = mover.fetch(order(source, lambda _, a: FilePartTicket(str(tmp_path / "none"), a)))
        error = error_of(report)

        assert isinstance(error, NotPublished)
        assert error.code == "UploadGone"
        assert not any(tmp_path.iterdir()), "a mover never creates the file"

    def test_a_full_disk_is_store_full(self, mover: Mover, source: Place) -> None:
        report = mover.fetch(order(source, lambda _n, _a: FilePartTicket("/dev/full", 1)))

        assert isinstance(error_of(report), StoreFull)

    def test_a_file_that_is_being_taken_over_is_left_alone(self, mover: Mover, source: Place, tmp_path: Path) -> None:
        path = tmp_path / "upload"
        path.write_bytes(bytes(SIZE))
        with path.open("rb") as taker:
            fcntl.flock(taker, fcntl.LOCK_EX)
            report = mover.fetch(order(source, lambda _, a: FilePartTicket(str(path), a)))

        assert error_of(report).code == "UploadBusy"
        assert path.read_bytes() == bytes(SIZE)


SOURCE_TROUBLES = [
    pytest.param(Fault.NOT_PARTIAL, SourceUnavailable, "NotPartial", id="200-for-206"),
    pytest.param(Fault.HTML, SourceUnavailable, "NotPartial", id="a-page"),
    pytest.param(Fault.WRONG_RANGE, SourceUnavailable, "WrongRange", id="another-size"),
    pytest.param(Fault.OTHER_RANGE, SourceUnavailable, "WrongRange", id="another-range"),
    pytest.param(Fault.ENCODED, SourceUnavailable, "Encoded", id="gzip"),
    pytest.param(Refuse(401), TicketExpired, "Http401", id="401"),
    pytest.param(Refuse(403), TicketExpired, "Http403", id="403"),
    pytest.param(Refuse(404), SourceUnavailable, "Http404", id="404"),
    pytest.param(Refuse(408), SourceUnavailable, "Http408", id="408"),
    pytest.param(Refuse(416), SourceUnavailable, "Http416", id="416"),
    pytest.param(Refuse(429, headers=(("Retry-After", "7"),)), RateLimited, "RateLimited", id="429"),
    pytest.param(Refuse(302, headers=(("Location", "http://x.test/"),)), SourceUnavailable, "Http302", id="redirect"),
    pytest.param(Refuse(500), SourceUnavailable, "Http500", id="500"),
    pytest.param(Refuse(503, headers=(("Retry-After", "3"),)), SourceUnavailable, "Http503", id="503"),
]


class TestSourceFaults:
    @pytest.mark.parametrize(("trouble", "kind", "code"), SOURCE_TROUBLES)
    def test_an_answer_that_is_not_the_range_gives_the_part_back(
        self, mover: Mover, source: Place, sink: Place, trouble: parts.Trouble, kind: type[AiModelsError], code: str
    ) -> None:
        third = cut()[2]
        source.plan(third[1], trouble)
        report = mover.fetch(order(source, to_store(sink), connections=1))
        error = error_of(report)

        assert type(error) is kind
        assert error.code == code
        assert "secret" not in str(error)
        assert [r.number for r in report.records] == [1, 2]
        assert report.undone == tuple(range(3, 10))
        assert 3 not in sink.parts

    def test_o06_retry_after_comes_back_to_the_coordinator(self, mover: Mover, source: Place) -> None:
        source.plan(0, Refuse(429, headers=(("Retry-After", "7"),)))

        report = mover.fetch(order(source, nowhere, connections=1))

        assert report.error is not None
        assert report.error.retry_after_seconds == 7.0

    @pytest.mark.parametrize("trouble", [Fault.RESET, Fault.SHORT, Fault.SILENT])
    def test_o61_a_lost_connection_is_tried_again_at_once(
        self, mover: Mover, source: Place, sink: Place, trouble: Fault
    ) -> None:
        for _, start, _ in cut():
            source.plan(start, trouble)
        report = mover.fetch(order(source, to_store(sink)))

        assert report.error is None
        assert mover.hash("run", None, True).digest_hex == hashlib.sha256(DATA).hexdigest()
        assert sink.blob == DATA

    @pytest.mark.parametrize(("trouble", "code"), [(Fault.RESET, "Reset"), (Fault.SHORT, "ShortBody")])
    def test_o02_a_connection_lost_twice_gives_the_part_back(
        self, mover: Mover, source: Place, trouble: Fault, code: str
    ) -> None:
        source.plan(0, trouble, trouble)
        report = mover.fetch(order(source, nowhere, connections=1))

        assert error_of(report).code in {code, "ShortBody"}
        assert isinstance(error_of(report), SourceUnavailable)
        assert report.undone == tuple(range(1, 10))

    @pytest.mark.parametrize("trouble", [Fault.STALL, Fault.TRICKLE])
    def test_the_deadline_of_a_part_holds_however_the_source_behaves(
        self, mover: Mover, source: Place, trouble: Fault
    ) -> None:
        source.plan(0, trouble)
        began = time.monotonic()
        report = mover.fetch(order(source, nowhere, cut(0, 1), seconds=0.5))

        assert time.monotonic() - began < 3
        assert error_of(report).code == "PartDeadline"
        assert isinstance(error_of(report), SourceUnavailable)

    def test_a_hash_begins_a_part_again_when_the_part_begins_again(self, mover: Mover, source: Place) -> None:
        source.plan(0, Fault.SHORT)
        reports: list[HashReport] = []
        hashing = threading.Thread(target=lambda: reports.append(mover.hash("run", None, True)))
        hashing.start()
        mover.fetch(order(source, nowhere))
        hashing.join(5)

        assert reports[0].digest_hex == hashlib.sha256(DATA).hexdigest()

    def test_undone_parts_come_with_a_later_order_of_the_same_run(
        self, mover: Mover, source: Place, sink: Place
    ) -> None:
        source.plan(cut()[2][1], Refuse(503))
        first = mover.fetch(order(source, to_store(sink), connections=1))
        again = [piece for piece in cut() if piece[0] in first.undone]
        reports: list[HashReport] = []
        hashing = threading.Thread(target=lambda: reports.append(mover.hash("run", None, True)))
        hashing.start()
        second = mover.fetch(order(source, to_store(sink), again))
        hashing.join(5)

        assert (len(first.records), len(second.records), second.error) == (2, 7, None)
        assert reports[0].digest_hex == hashlib.sha256(DATA).hexdigest()

    def test_o05_expired_tickets_cost_no_request(self, mover: Mover, source: Place, sink: Place) -> None:
        read = mover.fetch(order(source, nowhere, run_id="a", expires_at=time.time() - 1))
        write = mover.fetch(order(source, to_store(sink, expires_at=time.time() - 1), run_id="b"))

        assert {type(error_of(r)) for r in (read, write)} == {TicketExpired}
        assert source.seen == []

    def test_an_address_that_is_not_global_is_refused_unless_trusted(self, mover: Mover, source: Place) -> None:
        made = order(source, nowhere)
        made = dataclasses.replace(made, read=dataclasses.replace(made.read, trusted=False))

        assert error_of(mover.fetch(made)).code == "AddressRefused"

    def test_bytes_that_differ_show_in_the_digest(self, mover: Mover, source: Place, sink: Place) -> None:
        source.plan(PART, Fault.FLIPPED)
        report = mover.fetch(order(source, to_store(sink)))

        assert mover.hash("run", None, True).digest_hex == hashlib.sha256(sink.blob).hexdigest()
        assert sink.blob != DATA
        assert report.records[1].checksum != crc(DATA[PART : 2 * PART])


STORE_TROUBLES = [
    pytest.param(Refuse(403, "AccessDenied"), TicketExpired, "AccessDenied", id="403"),
    pytest.param(Refuse(403, "RequestTimeTooSkewed"), TicketExpired, "RequestTimeTooSkewed", id="o62-skew"),
    pytest.param(Refuse(400, "ExpiredToken"), TicketExpired, "ExpiredToken", id="o62-token"),
    pytest.param(Refuse(404, "NoSuchUpload"), NotPublished, "UploadGone", id="no-such-upload"),
    pytest.param(Refuse(404, "NoSuchBucket"), StoreUnsafe, "NoSuchBucket", id="no-such-bucket"),
    pytest.param(Refuse(400, "BadDigest"), StoreUnavailable, "BadDigest", id="bad-digest"),
    pytest.param(Refuse(500, "InternalError"), StoreUnavailable, "InternalError", id="500"),
    pytest.param(Refuse(503, "SlowDown", (("Retry-After", "2"),)), StoreUnavailable, "SlowDown", id="slow-down"),
    pytest.param(Refuse(507), StoreFull, "Http507", id="507"),
    pytest.param(Refuse(400, "QuotaExceeded"), StoreFull, "QuotaExceeded", id="quota"),
    pytest.param(Fault.FLIPPED, StoreUnavailable, "ChecksumDiffers", id="stored-otherwise"),
]


class TestStoreFaults:
    @pytest.mark.parametrize("early", [False, True])
    @pytest.mark.parametrize(("trouble", "kind", "code"), STORE_TROUBLES)
    def test_a_refused_part_comes_back_with_its_reason(
        self,
        mover: Mover,
        source: Place,
        sink: Place,
        trouble: parts.Trouble,
        kind: type[AiModelsError],
        code: str,
        early: bool,
    ) -> None:
        sink.plan(2, *[trouble] * 3)  # an answer before the body may be lost with the connection, and come again
        report = mover.fetch(order(source, to_store(sink, early=early), cut(0, 2), connections=1))
        error = error_of(report)

        lost = early and isinstance(trouble, Refuse) and error.code in {"Reset", f"Http{trouble.status}"}
        assert lost or (type(error), error.code) == (kind, code)
        assert isinstance(error, TicketExpired | StoreUnavailable | StoreFull) or not lost
        assert report.undone == (2,)
        assert "partNumber" not in str(error)

    @pytest.mark.parametrize("trouble", [Fault.RESET, Fault.SILENT])
    def test_a_lost_connection_is_tried_again_at_once(
        self, mover: Mover, source: Place, sink: Place, trouble: Fault
    ) -> None:
        sink.plan(3, trouble)
        report = mover.fetch(order(source, to_store(sink)))

        assert report.error is None
        assert sink.blob == DATA
        assert mover.hash("run", None, True).digest_hex == hashlib.sha256(DATA).hexdigest()

    def test_the_deadline_holds_for_a_store_that_does_not_answer(
        self, mover: Mover, source: Place, sink: Place
    ) -> None:
        sink.plan(1, Fault.STALL)
        began = time.monotonic()
        report = mover.fetch(order(source, to_store(sink), cut(0, 1), seconds=0.5))

        assert time.monotonic() - began < 3
        assert isinstance(error_of(report), StoreUnavailable)
        assert error_of(report).code == "PartDeadline"

    def test_a_store_that_is_not_there(self, mover: Mover, source: Place, sink: Place) -> None:
        gone = Place("http://localhost:1")

        assert isinstance(error_of(mover.fetch(order(source, to_store(gone)))), StoreUnavailable)


class TestDropping:
    def test_a_drop_ends_a_stalled_fetch_within_a_second_and_frees_its_memory(
        self, mover: Mover, source: Place
    ) -> None:
        for _, start, _ in cut():
            source.plan(start, Fault.STALL)
        reports: list[RunReport] = []
        fetch = threading.Thread(target=lambda: reports.append(mover.fetch(order(source, nowhere))))
        fetch.start()

        assert wait_for(lambda: mover.poll().held_bytes > 0)
        began = time.monotonic()
        mover.drop("run")
        fetch.join(5)
        assert time.monotonic() - began < 1
        assert isinstance(error_of(reports[0]), Cancelled)
        assert len(reports[0].undone) == 9
        assert wait_for(lambda: mover.poll().held_bytes == 0, 1)

    def test_a_drop_ends_a_hash(self, mover: Mover, source: Place) -> None:
        gate = threading.Event()
        source.plan(0, Hold(gate))
        errors: list[AiModelsError] = []

        def hash_it() -> None:
            try:
                mover.hash("run", None, True)
            except AiModelsError as error:
                errors.append(error)

        threads = [
            threading.Thread(target=hash_it),
            threading.Thread(target=mover.fetch, args=(order(source, nowhere),)),
        ]
        for thread in threads:
            thread.start()
        assert wait_for(lambda: bool(source.seen))
        mover.drop("run")
        for thread in threads:
            thread.join(2)
        gate.set()

        assert [type(e) for e in errors] == [Cancelled]

    def test_a_drop_before_its_fetch_counts(self, mover: Mover, source: Place) -> None:
        mover.drop("run")
        report = mover.fetch(order(source, nowhere))

        assert isinstance(error_of(report), Cancelled)
        assert source.seen == []

    def test_a_fetched_run_that_is_dropped_gives_its_memory_back(self, mover: Mover, source: Place) -> None:
        mover.fetch(order(source, nowhere))
        held = mover.poll().held_bytes
        mover.drop("run")

        assert held >= SIZE
        assert mover.poll() == type(mover.poll())({}, 0, 64 * BLOCK)


class TestMemory:
    def test_a_smaller_sequence_takes_the_memory_of_later_runs_that_only_wait(
        self, make: Callable[[int], Mover], source: Place
    ) -> None:
        small = make(8)
        later = small.fetch(order(source, nowhere, cut(4, 8), run_id="later", sequence=2))
        first = small.fetch(order(source, nowhere, cut(0, 2), run_id="first", sequence=1))

        assert (later.error, first.error) == (None, None)
        state = small.hash("first", None, False).state
        assert midstate.position(state) == 2 * PART
        middle = small.fetch(order(source, nowhere, cut(2, 4), run_id="middle", sequence=1))
        assert middle.error is None
        state = small.hash("middle", state, False).state
        with pytest.raises(MoverLost) as caught:
            small.hash("later", state, False)
        assert caught.value.code == "BytesGone"

    def test_bytes_are_hashed_once(self, mover: Mover, source: Place) -> None:
        mover.fetch(order(source, nowhere, cut(0, 2)))
        mover.hash("run", None, False)

        assert mover.poll().held_bytes == 0

    @pytest.mark.parametrize("state", [b"short", bytes(40)])
    def test_a_bad_state_is_refused(self, mover: Mover, source: Place, state: bytes) -> None:
        mover.fetch(order(source, nowhere, cut(0, 2)))

        with pytest.raises(UsageError, match=r"hash state|want a part"):
            mover.hash("run", state, False)
        mover.drop("run")

    def test_a_state_of_another_place_is_refused(self, mover: Mover, source: Place) -> None:
        mover.fetch(order(source, nowhere, cut(2, 4)))

        with pytest.raises(UsageError, match="want a part at 0"):
            mover.hash("run", None, False)
        mover.drop("run")
