"""A folder store when the disk is full, read-only, gone, or has locks that do nothing."""

import errno
import fcntl
import os
import shutil
from pathlib import Path

import pytest

from aimodels_core.errors import AiModelsError, NotPublished, StoreFull, StoreUnavailable, StoreUnsafe
from aimodels_jobs.disk import Disk
from aimodels_jobs.folder import TMP, Folder
from aimodels_jobs.orders import FilePartTicket
from tests.support.stores import blob_key, send, tree

DATA = os.urandom(3000)
KEY = blob_key(DATA)


class _Kernel(Disk):
    """Answers one operation as the kernel of a broken disk does."""

    def __init__(self, operation: str, number: int) -> None:
        def broken(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        setattr(self, operation, broken)


@pytest.mark.parametrize(
    ("number", "want", "code"),
    [
        (errno.ENOSPC, StoreFull, "StoreFull"),
        (errno.EDQUOT, StoreFull, "StoreFull"),
        (errno.EROFS, StoreUnsafe, "ReadOnly"),
        (errno.EACCES, StoreUnsafe, "ReadOnly"),
        (errno.EIO, StoreUnavailable, "StoreUnavailable"),
        (errno.ESTALE, StoreUnavailable, "Vanished"),
        (errno.EFBIG, StoreUnsafe, "FileTooLarge"),
        (errno.EXDEV, StoreUnsafe, "SeveralFileSystems"),
    ],
)
@pytest.mark.parametrize("operation", ["write", "sync", "rename"])
def test_what_the_kernel_says_becomes_an_error_of_ours_and_leaves_nothing(
    tmp_path: Path, operation: str, number: int, want: type[AiModelsError], code: str
) -> None:
    Folder(tmp_path / "s").put("other", b"x")
    store = Folder(tmp_path / "s", disk=_Kernel(operation, number))

    with pytest.raises(want) as caught:
        store.put("a/b", b"payload")

    assert caught.value.code == code
    assert tree(tmp_path / "s") == {"other": 1}


def test_a_full_disk_shows_before_a_byte_moves(tmp_path: Path) -> None:
    store = Folder(tmp_path / "s", disk=_Kernel("allocate", errno.ENOSPC))

    with pytest.raises(StoreFull, match="reserve"):
        store.create_upload(KEY, len(DATA))
    assert tree(tmp_path / "s") == {}


def test_an_upload_has_its_space_reserved(tmp_path: Path) -> None:
    store = Folder(tmp_path / "s")
    ticket = store.part_ticket(store.create_upload(KEY, 1 << 20), 1, 0, 100)
    assert isinstance(ticket, FilePartTicket)

    found = Path(ticket.path).stat()

    assert found.st_size == 1 << 20
    assert found.st_blocks * 512 >= 1 << 20


def test_a_commit_that_fails_may_be_tried_again(tmp_path: Path) -> None:
    store = Folder(tmp_path / "s")
    upload = store.create_upload(KEY, len(DATA))
    records = send(store, upload, DATA)
    full = Folder(tmp_path / "s", disk=_Kernel("make_folder", errno.ENOSPC))
    with pytest.raises(StoreFull):
        full.complete(upload, records, recheck=False)

    store.complete(upload, records, recheck=False)

    assert store.get(KEY, max_bytes=len(DATA)) == DATA


def test_a_store_that_vanished_is_unavailable_and_not_empty(tmp_path: Path) -> None:
    store = Folder(tmp_path / "s")
    store.put("a", b"x")
    (tmp_path / "s").rename(tmp_path / "elsewhere")

    for call in (
        lambda: store.head("a"),
        lambda: store.get("a", max_bytes=1),
        lambda: store.put("b", b"y"),
        lambda: store.delete("a"),
        lambda: list(store.list("")),
        lambda: store.create_upload(KEY, 5),
    ):
        with pytest.raises(StoreUnavailable) as caught:
            call()
        assert caught.value.code == "Vanished"


def test_another_folder_in_its_place_is_not_written_to(tmp_path: Path) -> None:
    store = Folder(tmp_path / "s")
    store.put("a", b"x")
    (tmp_path / "s").rename(tmp_path / "elsewhere")
    (tmp_path / "s").mkdir()

    with pytest.raises(StoreUnavailable, match="another folder"):
        store.put("b", b"y")
    assert list((tmp_path / "s").iterdir()) == []


def test_a_reader_does_not_make_a_store(tmp_path: Path) -> None:
    with pytest.raises(NotPublished) as caught:
        Folder(tmp_path / "s", create=False)
    assert caught.value.code == "NoStore"
    assert list(tmp_path.iterdir()) == []


def test_a_file_where_the_store_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(b"")

    with pytest.raises(AiModelsError):
        Folder(tmp_path / "s")


def test_o73_what_is_stored_can_be_read_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        store = Folder(tmp_path / "s")
        store.put("a/b", b"x")
        upload = store.create_upload(KEY, len(DATA))
        store.complete(upload, send(store, upload, DATA), recheck=False)
    finally:
        os.umask(before)

    assert {oct((tmp_path / "s" / name).stat().st_mode & 0o777) for name in ("a/b", KEY)} == {"0o644"}
    assert oct((tmp_path / "s" / KEY).parent.stat().st_mode & 0o777) == "0o755"


def test_a_link_in_the_place_of_an_object_is_not_followed(tmp_path: Path) -> None:
    store = Folder(tmp_path / "s")
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "s/a").symlink_to(tmp_path / "secret")

    assert store.head("a") is None
    assert list(store.list("")) == []
    with pytest.raises(StoreUnavailable):
        store.get("a", max_bytes=100)


def test_an_orphaned_mover_that_holds_the_file_makes_the_upload_start_anew(tmp_path: Path) -> None:
    store = Folder(tmp_path / "s")
    upload = store.create_upload(KEY, len(DATA))
    records = send(store, upload, DATA)
    ticket = store.part_ticket(upload, 1, 0, len(DATA))
    assert isinstance(ticket, FilePartTicket)
    with Path(ticket.path).open("r+b") as orphan:
        fcntl.flock(orphan, fcntl.LOCK_SH)

        with pytest.raises(NotPublished) as caught:
            Folder(tmp_path / "s").kept_parts(upload, records)

    assert caught.value.code == "UploadGone"


def test_a_mover_that_locks_after_the_takeover_finds_the_name_gone(tmp_path: Path) -> None:
    store = Folder(tmp_path / "s")
    upload = store.create_upload(KEY, len(DATA))
    records = send(store, upload, DATA)
    before = store.part_ticket(upload, 1, 0, len(DATA))
    assert isinstance(before, FilePartTicket)

    Folder(tmp_path / "s").kept_parts(upload, records)

    assert not Path(before.path).exists()
    after = store.part_ticket(upload, 1, 0, len(DATA))
    assert isinstance(after, FilePartTicket)
    assert Path(after.path).exists()


def test_completing_while_a_mover_still_writes_copies_to_another_file(tmp_path: Path) -> None:
    store = Folder(tmp_path / "s")
    upload = store.create_upload(KEY, len(DATA))
    records = send(store, upload, DATA)
    ticket = store.part_ticket(upload, 1, 0, len(DATA))
    assert isinstance(ticket, FilePartTicket)
    with Path(ticket.path).open("r+b") as late:
        fcntl.flock(late, fcntl.LOCK_SH)
        store.complete(upload, records, recheck=False)
        late.write(b"poison")

    assert store.get(KEY, max_bytes=len(DATA)) == DATA
    assert list(store.uploads("")) == []


@pytest.mark.parametrize("answer", [None, errno.ENOSYS])
def test_o72_locks_that_do_nothing_never_lead_to_a_resumed_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: int | None
) -> None:
    def useless(*_: object) -> None:
        if answer is not None:
            raise OSError(answer, os.strerror(answer))

    monkeypatch.setattr(fcntl, "flock", useless)
    store = Folder(tmp_path / "s")
    upload = store.create_upload(KEY, len(DATA))
    records = send(store, upload, DATA)
    other = Folder(tmp_path / "s")
    mine = other.create_upload(KEY, len(DATA))

    with pytest.raises(NotPublished):
        other.kept_parts(upload, records)
    other.complete(mine, send(other, mine, DATA), recheck=False)
    store.complete(upload, records, recheck=False)

    assert other.get(KEY, max_bytes=len(DATA)) == DATA
    failed = [finding.name for finding in other.probe() if not finding.passed]
    assert failed == ["locks"]


def test_an_upload_of_another_size_is_not_gone_on_with(tmp_path: Path) -> None:
    store = Folder(tmp_path / "s")
    upload = store.create_upload(KEY, len(DATA))
    records = send(store, upload, DATA)
    ticket = store.part_ticket(upload, 1, 0, len(DATA))
    assert isinstance(ticket, FilePartTicket)
    os.truncate(ticket.path, 10)

    with pytest.raises(NotPublished):
        store.kept_parts(upload, records)


def test_temporary_files_lie_on_the_same_file_system_below_the_root(tmp_path: Path) -> None:
    store = Folder(tmp_path / "s")
    store.create_upload(KEY, 5)

    assert [path.parent for path in (tmp_path / "s").rglob("*.upload")] == [tmp_path / "s" / TMP]


def test_a_deleted_store_folder_is_not_made_again_behind_the_back(tmp_path: Path) -> None:
    store = Folder(tmp_path / "s")
    shutil.rmtree(tmp_path / "s")

    with pytest.raises(StoreUnavailable):
        store.put("a", b"x")
    assert not (tmp_path / "s").exists()
