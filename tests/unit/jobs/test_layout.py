"""Laws of the registry layout over a folder; what other programs make of it is in tests/contract."""

import os
from pathlib import Path

import pytest

from aimodels_core import names
from aimodels_core.digest import Digest
from aimodels_core.errors import ArtifactInvalid, NotPublished, StoreUnavailable
from aimodels_jobs.folder import Folder
from aimodels_jobs.layout import Store
from tests.support.stores import artifact, publish, stored, tree

FILES = {"config.json": b"{}", "model.safetensors": os.urandom(1000)}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(Folder(tmp_path / "s"))


def test_a_published_model_reads_back(store: Store) -> None:
    digest = publish(store, "local", "m", FILES)

    assert digest == artifact(FILES).digest
    assert store.resolve_tag("local", "m") == digest
    assert store.read_manifest("local", digest) == artifact(FILES).manifest
    assert store.tags("local") == ("m",)
    assert store.repositories() == ("local",)
    data = FILES["model.safetensors"]
    assert store.read_blob(Digest.of(data), max_bytes=1000) == data
    assert store.read_blob(Digest.of(data), max_bytes=10, start=5, stop=15) == data[5:15]


def test_the_tag_is_written_last(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    put = store.objects.put

    def noted(key: str, data: bytes) -> None:
        written.append(key)
        put(key, data)

    monkeypatch.setattr(store.objects, "put", noted)

    publish(store, "ns/demo", "m", FILES)

    assert written[-1] == names.tag_current_link("ns/demo", "m")
    assert written.count(written[-1]) == 1


@pytest.mark.parametrize("lost", ["blob", "link", "short"])
def test_no_tag_without_all_its_blobs(store: Store, tmp_path: Path, lost: str) -> None:
    made = artifact(FILES)
    for data in (*FILES.values(), made.config):
        stored(store, "local", data)
    victim = Digest.of(FILES["model.safetensors"])
    if lost == "link":
        store.objects.delete(names.layer_link("local", victim))
    else:
        store.objects.delete(names.blob_data(victim))
        if lost == "short":
            store.objects.put(names.blob_data(victim), b"short")

    with pytest.raises(StoreUnavailable) as caught:
        store.put_manifest("local", "m", made.manifest)

    assert caught.value.code == "BlobsGone"
    assert store.tags("local") == ()
    with pytest.raises(NotPublished):
        store.resolve_tag("local", "m")


def test_a_link_to_the_same_blob_elsewhere_does_not_open_it_here(store: Store) -> None:
    """A repository is a trust scope: what a manifest names must be linked in its own repository (design 4.1)."""
    publish(store, "ns/one", "m", FILES)
    made = artifact(FILES)

    with pytest.raises(StoreUnavailable, match="link in ns/two"):
        store.put_manifest("ns/two", "m", made.manifest)
    with pytest.raises(NotPublished):
        store.read_manifest("ns/two", made.digest)
    assert not store.is_linked("ns/two", Digest.of(FILES["config.json"]))


def test_a_tag_moves_and_the_other_stays(store: Store) -> None:
    first = publish(store, "local", "m", FILES)
    second = publish(store, "local", "m", {**FILES, "config.json": b'{"v": 2}'})

    assert first != second
    assert store.resolve_tag("local", "m") == second
    assert store.tags("local") == ("m",)


def test_removing_takes_the_manifest_only_with_its_last_tag(store: Store) -> None:
    digest = publish(store, "local", "one", FILES)
    publish(store, "local", "two", FILES)

    store.remove("local", "one")
    assert store.tags("local") == ("two",)
    assert store.read_manifest("local", digest)

    store.remove("local", "two")
    store.remove("local", "two")
    assert store.tags("local") == ()
    with pytest.raises(NotPublished):
        store.read_manifest("local", digest)
    assert store.blob_size(Digest.of(FILES["config.json"])) == 2


def test_publishing_again_writes_no_blob(store: Store, tmp_path: Path) -> None:
    publish(store, "local", "m", FILES)
    before = {path: path.stat().st_ino for path in (tmp_path / "s").rglob("data")}

    made = artifact(FILES)
    for data in FILES.values():
        store.put_blob(data)
    store.put_blob(made.config)
    store.put_manifest("local", "again", made.manifest)

    assert {path: path.stat().st_ino for path in (tmp_path / "s").rglob("data")} == before


def test_a_manifest_with_other_bytes_is_refused(store: Store, tmp_path: Path) -> None:
    digest = publish(store, "local", "m", FILES)
    (tmp_path / "s" / names.blob_data(digest)).write_bytes(b"{}")

    with pytest.raises(ArtifactInvalid, match="differ"):
        store.read_manifest("local", digest)


def test_a_damaged_tag_is_an_error_and_not_an_absence(store: Store, tmp_path: Path) -> None:
    publish(store, "local", "m", FILES)
    (tmp_path / "s" / names.tag_current_link("local", "m")).write_bytes(b"sha256:nonsense")

    with pytest.raises(ArtifactInvalid):
        store.resolve_tag("local", "m")


def test_a_missing_blob_is_temporary(store: Store) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        store.read_blob(Digest.of(b"nothing"), max_bytes=10)
    assert caught.value.code == "BlobsGone"


def test_what_somebody_asked_for_since_a_mark_is_not_removed(store: Store) -> None:
    digest = store.put_blob(b"x")
    mark = store.mark()
    assert store.blob_size(digest) == 1

    assert store.remove_unasked(digest, names.blob_data(digest), since=mark) is False
    assert store.remove_unasked(digest, names.blob_data(digest), since=store.mark()) is True
    assert store.blob_size(digest) is None


def test_nothing_but_the_layout_and_our_own_folder_is_in_the_store(store: Store, tmp_path: Path) -> None:
    publish(store, "local", "m", FILES)

    assert {name.split("/")[0] for name in tree(tmp_path / "s")} == {"docker"}


def test_removing_keeps_a_manifest_that_is_being_published_under_another_tag(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = publish(store, "local", "old", FILES)
    tagged = store.tagged

    def before_the_other_tag(repository: str) -> dict[str, Digest]:
        found = tagged(repository)
        store.put_manifest("local", "new", artifact(FILES).manifest)
        return found

    monkeypatch.setattr(store, "tagged", before_the_other_tag)
    store.remove("local", "old")

    assert store.resolve_tag("local", "new") == digest
    assert store.read_manifest("local", digest) == artifact(FILES).manifest


def test_a_removal_that_began_during_a_commit_keeps_what_it_did_not_see(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks: list[int] = []
    put = store.objects.put

    def began(key: str, data: bytes) -> None:
        if key == names.tag_current_link("local", "m"):
            marks.append(store.mark())  # its list of tags does not have this one yet
        put(key, data)

    monkeypatch.setattr(store.objects, "put", began)
    digest = publish(store, "local", "m", FILES)

    for key in (names.revision_link("local", digest), names.blob_data(digest)):
        assert store.remove_unasked(digest, key, since=marks[0]) is False
    assert store.read_manifest("local", digest) == artifact(FILES).manifest
