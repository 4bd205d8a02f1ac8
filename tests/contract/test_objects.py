"""One suite for every kind of store: a folder, Versity Gateway, SeaweedFS."""

import concurrent.futures
import dataclasses
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from aimodels_core.errors import ArtifactInvalid, NotPublished, StoreUnavailable
from aimodels_jobs.folder import Folder
from aimodels_jobs.objects import Objects, Upload
from aimodels_jobs.orders import PartRecord
from aimodels_jobs.s3 import S3
from aimodels_jobs.s3_findings import key as findings_key
from tests.support import servers
from tests.support.stores import PART_BYTES, blob_key, bucket, send

KINDS = ("folder", "versitygw", "seaweedfs")


@pytest.fixture(scope="module")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.S3Server]:
    with servers.versitygw(tmp_path_factory.mktemp("versity")) as server:
        yield server


@pytest.fixture(scope="module")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.S3Server]:
    with servers.seaweedfs(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


@pytest.fixture(params=KINDS)
def again(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Objects]:
    """Opens the same empty store, each time as a new process would."""
    if request.param == "folder":
        return lambda: Folder(tmp_path / "store")
    server = request.getfixturevalue(request.param)
    prefix = f"stores/{secrets.token_hex(4)}"
    return lambda: bucket(server, prefix)


@pytest.fixture
def objects(again: Callable[[], Objects]) -> Objects:
    return again()


DATA = os.urandom(PART_BYTES) + os.urandom(PART_BYTES) + b"!"
KEY = blob_key(DATA)


def test_what_is_put_is_read_whole_and_in_ranges(objects: Objects) -> None:
    objects.put("a/b", b"0123456789")

    assert objects.get("a/b", max_bytes=10) == b"0123456789"
    assert objects.get("a/b", max_bytes=10, start=3, stop=5) == b"34"
    assert objects.get("a/b", max_bytes=10, start=8) == b"89"
    assert objects.get("a/b", max_bytes=10, start=8, stop=99) == b"89"
    assert objects.get("a/b", max_bytes=10, start=10) == b""
    assert objects.get("a/b", max_bytes=10, start=4, stop=4) == b""


def test_what_is_absent_is_none(objects: Objects) -> None:
    assert objects.head("a/b") is None
    assert objects.get("a/b", max_bytes=10) is None
    assert objects.get("a/b", max_bytes=10, start=1, stop=2) is None


def test_an_empty_object_is_an_object(objects: Objects) -> None:
    objects.put("empty", b"")
    found = objects.head("empty")

    assert found is not None
    assert found.size_bytes == 0
    assert objects.get("empty", max_bytes=1) == b""


def test_put_replaces(objects: Objects) -> None:
    objects.put("k", b"one")
    objects.put("k", b"second")

    assert objects.get("k", max_bytes=10) == b"second"


def test_reading_more_than_the_limit_is_refused(objects: Objects) -> None:
    objects.put("k", b"0123456789")

    with pytest.raises(ArtifactInvalid, match="at most 9"):
        objects.get("k", max_bytes=9)
    assert objects.get("k", max_bytes=9, start=1) == b"123456789"


def test_put_if_absent_writes_once(objects: Objects) -> None:
    assert objects.put_if_absent("k", b"one") is True
    assert objects.put_if_absent("k", b"two") is False
    assert objects.get("k", max_bytes=10) == b"one"


def test_put_if_absent_lets_one_of_many_win(objects: Objects) -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda n: objects.put_if_absent("lease", b"%d" % n), range(8)))

    assert won.count(True) == 1
    assert objects.get("lease", max_bytes=10) == b"%d" % won.index(True)


def test_delete_removes_and_may_be_repeated(objects: Objects) -> None:
    objects.put("a/b/c", b"x")
    objects.delete("a/b/c")
    objects.delete("a/b/c")

    assert objects.head("a/b/c") is None
    assert list(objects.list("a/")) == []


def test_a_neighbour_survives_a_deletion(objects: Objects) -> None:
    objects.put("a/b/c", b"x")
    objects.put("a/b/d", b"y")
    objects.delete("a/b/c")

    assert [info.key for info in objects.list("")] == ["a/b/d"]


def test_list_is_complete(objects: Objects) -> None:
    keys = {"a-b", "a/b-c/d", "a/bc", "a0", "ab/c", "b/x"}
    for key in keys:
        objects.put(key, b"12")

    def listed(prefix: str) -> list[str]:
        return sorted(info.key for info in objects.list(prefix))

    assert listed("") == sorted(keys)
    assert listed("a/") == ["a/b-c/d", "a/bc"]
    assert listed("a/bc") == ["a/bc"]
    assert listed("a") == ["a-b", "a/b-c/d", "a/bc", "a0", "ab/c"]
    assert listed("nothing/") == []
    assert {info.size_bytes for info in objects.list("")} == {2}


def test_copy_copies(objects: Objects) -> None:
    objects.put("from", b"payload")
    objects.copy("from", "to/there")

    assert objects.get("to/there", max_bytes=10) == b"payload"
    with pytest.raises(NotPublished, match="no such object"):
        objects.copy("nothing", "x")


def test_an_upload_is_invisible_until_it_is_complete(objects: Objects) -> None:
    upload = objects.create_upload(KEY, len(DATA))
    records = send(objects, upload, DATA)
    assert objects.head(KEY) is None
    assert list(objects.list("docker/")) == []

    objects.complete(upload, records, recheck=False)

    found = objects.head(KEY)
    assert found is not None
    assert found.size_bytes == len(DATA)
    assert objects.get(KEY, max_bytes=len(DATA)) == DATA


def test_parts_may_come_in_any_order(objects: Objects) -> None:
    upload = objects.create_upload(KEY, len(DATA))
    records = [record for n in (3, 1, 2) for record in send(objects, upload, DATA, numbers=[n])]
    objects.complete(upload, sorted(records, key=lambda r: r.number), recheck=False)

    assert objects.get(KEY, max_bytes=len(DATA)) == DATA


def test_a_blob_of_one_byte(objects: Objects) -> None:
    upload = objects.create_upload(blob_key(b"x"), 1)
    objects.complete(upload, send(objects, upload, b"x"), recheck=True)

    assert objects.get(blob_key(b"x"), max_bytes=1) == b"x"


def test_complete_with_recheck_accepts_the_right_bytes(objects: Objects) -> None:
    upload = objects.create_upload(KEY, len(DATA))
    objects.complete(upload, send(objects, upload, DATA), recheck=True)

    assert objects.get(KEY, max_bytes=len(DATA)) == DATA


def test_a_part_sent_again_with_one_other_bit_is_caught(objects: Objects) -> None:
    upload = objects.create_upload(KEY, len(DATA))
    records = send(objects, upload, DATA)
    wrong = bytes([DATA[0] ^ 1]) + DATA[1:]
    send(objects, upload, wrong, numbers=[1])

    _recorded_or_nothing(objects, upload, records)


def _recorded_or_nothing(objects: Objects, upload: Upload, records: Sequence[PartRecord]) -> None:
    """Most stores refuse; SeaweedFS keeps every attempt of a part and takes the one that is named."""
    refused = ""
    try:
        objects.complete(upload, records, recheck=True)
    except StoreUnavailable as error:
        refused = error.code

    assert refused in {"", "PartsDiffer"}
    assert objects.get(KEY, max_bytes=len(DATA)) == (None if refused else DATA)


def test_complete_wants_records_that_tile_the_blob(objects: Objects) -> None:
    upload = objects.create_upload(KEY, len(DATA))
    records = send(objects, upload, DATA)

    for wrong in (records[:2], records[1:], [records[0], records[2]], []):
        with pytest.raises(StoreUnavailable) as caught:
            objects.complete(upload, wrong, recheck=False)
        assert caught.value.code == "PartsDiffer"
    assert objects.head(KEY) is None


def test_o60_completing_again_after_a_lost_answer_is_a_success(objects: Objects) -> None:
    upload = objects.create_upload(KEY, len(DATA))
    records = send(objects, upload, DATA)
    objects.complete(upload, records, recheck=False)

    objects.complete(upload, records, recheck=False)

    assert objects.get(KEY, max_bytes=len(DATA)) == DATA


def test_completing_what_was_dropped_says_gone(objects: Objects) -> None:
    upload = objects.create_upload(KEY, len(DATA))
    records = send(objects, upload, DATA)
    objects.abort(upload)
    objects.abort(upload)

    with pytest.raises(NotPublished) as caught:
        objects.complete(upload, records, recheck=False)
    assert caught.value.code == "UploadGone"
    assert objects.head(KEY) is None


def test_kept_parts_are_those_with_the_recorded_bytes(again: Callable[[], Objects]) -> None:
    first = again()
    upload = first.create_upload(KEY, len(DATA))
    records = send(first, upload, DATA, numbers=[1, 3])
    lied = dataclasses.replace(records[1], checksum="0" * 16, etag='"0123456789abcdef0123456789abcdef"')
    never = dataclasses.replace(records[0], number=2, start=PART_BYTES)

    after = again()

    assert after.kept_parts(upload, records) == {1, 3}
    assert after.kept_parts(upload, [records[0], lied]) == {1}
    assert after.kept_parts(upload, [never, records[1]]) == {3}


def test_an_upload_goes_on_in_another_process(again: Callable[[], Objects]) -> None:
    first = again()
    upload = first.create_upload(KEY, len(DATA))
    records = send(first, upload, DATA, numbers=[1, 2])

    after = again()
    after.kept_parts(upload, records)
    records += send(after, upload, DATA, numbers=[3])
    after.complete(upload, records, recheck=False)

    assert after.get(KEY, max_bytes=len(DATA)) == DATA


def test_kept_parts_of_a_lost_upload_says_gone(objects: Objects) -> None:
    upload = objects.create_upload(KEY, len(DATA))
    records = send(objects, upload, DATA, numbers=[1])
    objects.abort(upload)

    with pytest.raises(NotPublished) as caught:
        objects.kept_parts(upload, records)
    assert caught.value.code == "UploadGone"


def test_uploads_in_progress_are_listed(objects: Objects) -> None:
    upload = objects.create_upload(KEY, len(DATA))
    other = objects.create_upload("other/key", 5)

    listed = list(objects.uploads("docker/"))

    assert [(found.key, found.id) for found in listed] == [(upload.key, upload.id)]
    assert listed[0].created > 0
    assert {found.id for found in objects.uploads("")} == {upload.id, other.id}


def test_two_uploads_of_one_blob_do_not_disturb_each_other(objects: Objects) -> None:
    one, two = (objects.create_upload(KEY, len(DATA)) for _ in range(2))
    records_one, records_two = send(objects, one, DATA), send(objects, two, DATA)
    objects.complete(one, records_one, recheck=False)
    objects.complete(two, records_two, recheck=False)

    assert objects.get(KEY, max_bytes=len(DATA)) == DATA
    assert list(objects.uploads("")) == []


def test_two_writers_of_one_blob_at_once(objects: Objects) -> None:
    def whole(_: int) -> None:
        upload = objects.create_upload(KEY, len(DATA))
        objects.complete(upload, send(objects, upload, DATA), recheck=False)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(whole, range(4)))

    assert objects.get(KEY, max_bytes=len(DATA)) == DATA


def test_puts_and_deletes_of_neighbours_do_not_disturb_each_other(objects: Objects) -> None:
    def turn(n: int) -> None:
        for _ in range(5):
            objects.put(f"deep/er/{n}/k", b"x")
            assert objects.get(f"deep/er/{n}/k", max_bytes=1) == b"x"
            objects.delete(f"deep/er/{n}/k")

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        list(pool.map(turn, range(6)))

    assert list(objects.list("")) == []


@pytest.mark.parametrize("key", ["../x", "/x", "a//b", "a/./b", "", "a/.."])
def test_keys_do_not_escape(objects: Objects, key: str) -> None:
    with pytest.raises(ValueError, match="key"):
        objects.put(key, b"x")


def test_a_part_ticket_is_for_a_range_of_the_upload(objects: Objects) -> None:
    upload = objects.create_upload(KEY, 10)

    for number, start, stop in ((0, 0, 5), (1, 5, 5), (1, 5, 11), (1, -1, 5)):
        with pytest.raises(ValueError, match="part"):
            objects.part_ticket(upload, number, start, stop)


def test_the_probe_passes_and_leaves_nothing(objects: Objects) -> None:
    findings = objects.probe()

    assert [finding for finding in findings if not finding.passed] == []
    assert len({finding.name for finding in findings}) == len(findings)
    assert [info.key for info in objects.list("")] == (
        [findings_key(objects.settings)] if isinstance(objects, S3) else []
    )
    assert list(objects.uploads("")) == []


@pytest.mark.parametrize("kind", ["versitygw", "seaweedfs"])
def test_every_page_of_every_listing_is_read(request: pytest.FixtureRequest, kind: str) -> None:
    objects = bucket(request.getfixturevalue(kind), page=3)
    keys = {f"many/{n:02d}" for n in range(10)}
    for key in keys:
        objects.put(key, b"")
    upload = objects.create_upload(KEY, 10)
    records = send(objects, upload, DATA[:10], part_bytes=1)
    others = {objects.create_upload(f"other/{n}", 10).id for n in range(7)}

    assert {info.key for info in objects.list("many/")} == keys
    assert objects.kept_parts(upload, records) == set(range(1, 11))
    assert {found.id for found in objects.uploads("")} == {upload.id, *others}


def test_a_large_object_is_copied_in_parts(versitygw: servers.S3Server) -> None:
    base = bucket(versitygw)
    small_steps = S3(base.settings, copy_limit_bytes=PART_BYTES)
    upload = base.create_upload(KEY, len(DATA))
    base.complete(upload, send(base, upload, DATA), recheck=False)

    small_steps.copy(KEY, "copied")

    assert base.get("copied", max_bytes=len(DATA)) == DATA
    assert list(base.uploads("")) == []


def test_upload_identity_is_key_id_and_size() -> None:
    assert Upload("k", "u", 1, 5.0) == Upload("k", "u", 1)
