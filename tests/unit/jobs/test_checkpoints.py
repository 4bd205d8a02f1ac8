"""Where a blob goes on after a process died."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aimodels_core import names
from aimodels_core.digest import Digest
from aimodels_jobs.checkpoints import Checkpoints, Record, Resume, chain
from aimodels_jobs.folder import Folder
from aimodels_jobs.objects import Upload
from aimodels_jobs.orders import PartRecord
from tests.support.stores import blob_key, send

PART = 100
DATA = os.urandom(10 * PART - 30)
DIGEST = Digest.of(DATA)
RUNS = [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10]]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "s")


def _state(run: int) -> bytes:
    return bytes([run]) * 40


def _saved(folder: Folder, runs: list[int], *, upload: Upload | None = None, scope: str = "local") -> Upload:
    """Send and save these runs of the blob."""
    upload = upload or folder.create_upload(blob_key(DATA), len(DATA))
    for run in runs:
        records = send(folder, upload, DATA, numbers=RUNS[run], part_bytes=PART)
        last = run == len(RUNS) - 1
        state, digest = (b"", DIGEST.hex) if last else (_state(run), "")
        Checkpoints(folder).save(DIGEST, scope, Record(upload, run, tuple(records), state, digest))
    return upload


def _load(folder: Folder, scope: str = "local") -> Resume:
    return Checkpoints(folder).load(DIGEST, scope, len(DATA), PART)


def test_without_checkpoints_it_begins_at_the_beginning(folder: Folder) -> None:
    assert _load(folder) == Resume.nothing()


def test_it_goes_on_after_the_last_run_without_a_gap(folder: Folder) -> None:
    upload = _saved(folder, [0, 1, 3])

    resume = _load(folder)

    assert (resume.upload, resume.next_run, resume.state, resume.digest_hex) == (upload, 2, _state(1), "")
    assert [record.number for record in resume.records] == [1, 2, 3, 4, 5, 6]


def test_when_all_is_hashed_only_the_commit_is_left(folder: Folder) -> None:
    upload = _saved(folder, [0, 1, 2, 3])

    resume = _load(folder)
    assert (resume.next_run, resume.digest_hex) == (4, DIGEST.hex)
    assert resume.upload is not None
    folder.complete(upload, resume.records, recheck=False)

    assert folder.get(blob_key(DATA), max_bytes=len(DATA)) == DATA


def test_parts_that_changed_end_the_chain_before_their_run(folder: Folder) -> None:
    upload = _saved(folder, [0, 1, 2])
    with folder.uploads_in_progress.file(upload).open("r+b") as file:
        file.seek(4 * PART)
        file.write(b"!")

    resume = _load(folder)

    assert resume.next_run == 1
    assert [record.number for record in resume.records] == [1, 2, 3]


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"[]", b"null", b'{"version": 2}', b"\xff\xfe", b'{"version": 1, "parts": [[1]]}', b"[" * 10000],
)
def test_a_damaged_record_ends_the_chain_and_is_no_error(folder: Folder, damage: bytes) -> None:
    _saved(folder, [0, 1, 2])
    for info in list(folder.list(names.checkpoints_prefix(DIGEST))):
        if f"/{1:06d}-" in info.key:
            folder.put(info.key, damage)

    assert _load(folder).next_run == 1


def test_an_upload_that_is_gone_makes_it_begin_anew_and_cleans_up(folder: Folder) -> None:
    folder.abort(_saved(folder, [0, 1]))

    assert _load(folder) == Resume.nothing()
    assert list(folder.list(names.checkpoints_prefix())) == []


def test_of_two_uploads_the_one_that_is_further_goes_on_and_the_other_is_dropped(folder: Folder) -> None:
    _saved(folder, [0])
    further = _saved(folder, [0, 1])

    resume = _load(folder)

    assert (resume.upload, resume.next_run) == (further, 2)
    assert [upload.id for upload in folder.uploads("")] == [further.id]


@pytest.mark.parametrize(("size", "part"), [(len(DATA) + 1, PART), (len(DATA), PART * 2)])
def test_records_of_another_cut_are_not_used(folder: Folder, size: int, part: int) -> None:
    _saved(folder, [0, 1])

    assert Checkpoints(folder).load(DIGEST, "local", size, part) == Resume.nothing()


def test_discard_and_abandon(folder: Folder) -> None:
    _saved(folder, [0])
    Checkpoints(folder).discard(DIGEST, "local")
    assert list(folder.list(names.checkpoints_prefix())) == []
    assert len(list(folder.uploads(""))) == 1

    _saved(folder, [0])
    Checkpoints(folder).abandon(DIGEST)
    assert list(folder.list(names.checkpoints_prefix())) == []
    assert len(list(folder.uploads(""))) == 1


def test_what_one_scope_read_spares_no_other_scope_the_reading(folder: Folder) -> None:
    theirs = _saved(folder, [0, 1, 2, 3], scope="ns/a")

    assert _load(folder, "ns/b") == Resume.nothing()
    Checkpoints(folder).discard(DIGEST, "ns/b")
    Checkpoints(folder).abandon(DIGEST, "ns/b")

    assert (_load(folder, "ns/a").upload, _load(folder, "ns/a").next_run) == (theirs, 4)


def test_unclaimed_are_those_older_than_a_week_that_nobody_works_on(folder: Folder) -> None:
    _saved(folder, [0])
    modified = next(iter(folder.list(names.checkpoints_prefix()))).modified
    week = 7 * 24 * 3600

    assert Checkpoints(folder, clock=lambda: modified + week - 1).unclaimed(()) == ()
    assert Checkpoints(folder, clock=lambda: modified + week + 1).unclaimed(()) == (DIGEST,)
    assert Checkpoints(folder, clock=lambda: modified + week + 1).unclaimed({DIGEST}) == ()


def _record(upload: str, run: int) -> Record:
    parts = tuple(PartRecord(n, (n - 1) * PART, min(PART, len(DATA) - (n - 1) * PART), "", "0" * 16) for n in RUNS[run])
    last = run == len(RUNS) - 1
    state, digest = (b"", DIGEST.hex) if last else (_state(run), "")
    return Record(Upload("k", upload, len(DATA)), run, parts, state, digest)


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 3)), max_size=10))
def test_a_chain_is_the_longest_prefix_of_runs_of_one_upload(found: list[tuple[str, int]]) -> None:
    runs = chain(_record(upload, run) for upload, run in found)

    def prefix(upload: str) -> int:
        mine = {run for name, run in found if name == upload}
        return next(n for n in range(5) if n not in mine)

    assert len(runs) == max(prefix("a"), prefix("b"))
    assert [record.run for record in runs] == list(range(len(runs)))
    assert len({record.upload.id for record in runs}) <= 1


def test_a_record_survives_rendering() -> None:
    for run in range(4):
        assert Record.parse(_record("u", run).render()) == _record("u", run)
