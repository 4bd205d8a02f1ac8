"""What collection removes, when, and in which order."""

import dataclasses
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aimodels_core import names
from aimodels_core.digest import Digest
from aimodels_core.errors import ArtifactInvalid, NotPublished
from aimodels_jobs.collection import INTERVAL_SECONDS, Collector, references, stale_links, unreferenced
from aimodels_jobs.folder import Folder
from aimodels_jobs.layout import Link, Store
from aimodels_jobs.objects import Upload
from tests.support.stores import artifact, publish, send, stored, tree

SHARED = os.urandom(500)
ONE = {"config.json": b'{"n": 1}', "model.safetensors": SHARED}
TWO = {"config.json": b'{"n": 2}', "model.safetensors": SHARED}
WEEK = 7 * 24 * 3600.0


@dataclasses.dataclass
class _Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(Folder(tmp_path / "s"))


def _readable(store: Store, repository: str, tag: str, files: dict[str, bytes]) -> bool:
    manifest = store.read_manifest(repository, store.resolve_tag(repository, tag))
    blobs = [store.read_blob(Digest.of(data), max_bytes=1000) == data for data in files.values()]
    return manifest == artifact(files).manifest and all(blobs)


digests = st.integers(0, 8).map(lambda n: Digest.of(bytes([n])))


@given(st.frozensets(digests), st.dictionaries(digests, st.frozensets(digests)), st.frozensets(digests))
def test_nothing_that_is_named_or_used_is_unreferenced(
    blobs: frozenset[Digest], named: dict[Digest, frozenset[Digest]], in_use: frozenset[Digest]
) -> None:
    gone = unreferenced(blobs, named, in_use)

    assert gone <= blobs
    assert gone.isdisjoint(in_use)
    assert gone.isdisjoint(named)
    assert all(gone.isdisjoint(inner) for inner in named.values())
    assert blobs - gone <= in_use | set(named) | {d for inner in named.values() for d in inner}


def test_now_removes_all_of_a_removed_model_and_nothing_of_the_others(store: Store, tmp_path: Path) -> None:
    publish(store, "local", "one", ONE)
    before = tree(tmp_path / "s")
    publish(store, "local", "two", TWO)
    store.remove("local", "two")

    collected = Collector(store).collect((), now=True)

    assert tree(tmp_path / "s") == before
    assert (collected.blobs, collected.links) == (3, 2)
    made = artifact(TWO)
    assert collected.size_bytes == len(made.manifest) + len(made.config) + len(TWO["config.json"])
    assert collected.used_bytes == sum(size for key, size in before.items() if key.endswith("/data"))
    assert _readable(store, "local", "one", ONE)


def test_the_artifact_that_a_tag_left_goes(store: Store, tmp_path: Path) -> None:
    publish(store, "local", "m", TWO)
    plain = tree(tmp_path / "s")
    store.remove("local", "m")
    Collector(store).collect((), now=True)
    publish(store, "local", "m", ONE)
    publish(store, "local", "m", TWO)

    Collector(store).collect((), now=True)

    assert tree(tmp_path / "s") == plain


def test_without_now_two_passes_an_interval_apart_must_agree(store: Store) -> None:
    clock = _Clock()
    collector = Collector(store, monotonic=clock)
    publish(store, "local", "m", ONE)
    store.remove("local", "m")

    first = collector.collect((), now=False)
    clock.now += INTERVAL_SECONDS - 1
    early = collector.collect((), now=False)
    clock.now += 1
    last = collector.collect((), now=False)

    assert (first.blobs, first.waiting) == (0, 4)
    assert (early.blobs, early.waiting) == (0, 4)
    assert (last.blobs, last.waiting) == (4, 0)


def test_a_blob_that_was_needed_between_two_passes_begins_anew(store: Store) -> None:
    clock = _Clock()
    collector = Collector(store, monotonic=clock)
    publish(store, "local", "m", ONE)
    store.remove("local", "m")
    collector.collect((), now=False)
    clock.now += INTERVAL_SECONDS
    publish(store, "local", "m", ONE)
    collector.collect((), now=False)
    store.remove("local", "m")
    clock.now += 1

    assert collector.collect((), now=False).blobs == 0
    assert Digest.of(SHARED) in dict(store.blobs())


def test_what_a_publication_uses_stays(store: Store) -> None:
    digest = stored(store, "local", SHARED)

    assert Collector(store).collect({digest}, now=True).blobs == 0
    assert store.is_linked("local", digest)
    assert Collector(store).collect((), now=True).blobs == 1
    assert not store.is_linked("local", digest)


def test_what_is_asked_for_while_a_pass_runs_stays(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A publication that starts in the middle of a pass finds the blob, and then the blob stays."""
    digest = stored(store, "local", SHARED)
    tagged = store.tagged

    def meanwhile(repository: str) -> dict[str, Digest]:
        assert store.blob_size(digest) == len(SHARED)
        return tagged(repository)

    monkeypatch.setattr(store, "tagged", meanwhile)

    assert Collector(store).collect((), now=True).blobs == 0
    assert store.blob_size(digest) == len(SHARED)


def test_links_of_a_repository_go_with_its_models_though_others_keep_the_blob(store: Store) -> None:
    """A namespace that is made again must not open what its predecessor could read."""
    publish(store, "ns/old", "m", ONE)
    publish(store, "ns/other", "m", ONE)
    store.remove("ns/old", "m")

    Collector(store).collect((), now=True)

    assert not store.is_linked("ns/old", Digest.of(SHARED))
    assert store.is_linked("ns/other", Digest.of(SHARED))
    assert _readable(store, "ns/other", "m", ONE)


def test_a_public_link_stays_as_long_as_its_blob(store: Store) -> None:
    publish(store, "local", "m", ONE)
    store.link(names.PUBLIC, Digest.of(SHARED))
    Collector(store).collect((), now=True)
    assert store.is_linked(names.PUBLIC, Digest.of(SHARED))

    store.remove("local", "m")
    Collector(store).collect((), now=True)
    assert not store.is_linked(names.PUBLIC, Digest.of(SHARED))


def test_the_order_is_tag_manifest_link_layer_link_blob(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(store, "local", "m", ONE)
    publish(store, "local", "m", TWO)
    removed: list[str] = []
    delete = store.objects.delete

    def noted(key: str) -> None:
        removed.append(key)
        delete(key)

    monkeypatch.setattr(store.objects, "delete", noted)
    Collector(store).collect((), now=True)

    def rank(key: str) -> int:
        kinds = ("/_manifests/revisions/", "/_manifests/tags/", "/_layers/", "/blobs/")
        return next(at for at, kind in enumerate(kinds) if kind in key)

    ranks = [rank(key) for key in removed if "docker/" in key]
    assert ranks == sorted(ranks)
    assert set(ranks) == {0, 1, 2, 3}


def test_a_manifest_that_cannot_be_read_stops_everything(store: Store, tmp_path: Path) -> None:
    digest = publish(store, "local", "m", ONE)
    publish(store, "local", "other", TWO)
    store.remove("local", "other")
    (tmp_path / "s" / names.blob_data(digest)).write_bytes(b"not a manifest")
    before = tree(tmp_path / "s")

    with pytest.raises(ArtifactInvalid):
        Collector(store).collect((), now=True)
    assert tree(tmp_path / "s") == before


def test_leftovers_go_after_a_week_and_not_before(store: Store, tmp_path: Path) -> None:
    folder = store.objects
    data = os.urandom(100)
    upload: Upload = folder.create_upload(store.blob_key(Digest.of(data)), len(data))
    send(folder, upload, data)
    folder.put(names.staging("x"), b"staged")
    (tmp_path / "s" / names.TEMPORARY / "0123.put").write_bytes(b"half")
    written = max(path.stat().st_mtime for path in (tmp_path / "s").rglob("*") if path.is_file())
    clock = _Clock(written + WEEK - 60)
    collector = Collector(store, clock=clock)

    assert collector.collect((), now=True).uploads == 0
    clock.now = written + WEEK + 60
    assert collector.collect({Digest.of(data)}, now=True).uploads == 2
    assert [found.id for found in folder.uploads("")] == [upload.id]
    assert collector.collect((), now=True).uploads == 1
    assert tree(tmp_path / "s") == {}


def test_a_collected_model_is_published_again(store: Store) -> None:
    publish(store, "local", "m", ONE)
    store.remove("local", "m")
    Collector(store).collect((), now=True)
    with pytest.raises(NotPublished):
        store.resolve_tag("local", "m")

    publish(store, "local", "m", ONE)

    assert _readable(store, "local", "m", ONE)


def test_an_index_names_its_manifests(store: Store) -> None:
    inner, blob = Digest.of(b"inner"), Digest.of(b"blob")
    document = f'{{"manifests": [{{"digest": "{inner}"}}], "layers": [{{"digest": "{blob}"}}]}}'

    assert references(document.encode(), Digest.of(b"x")) == ((blob, False), (inner, True))


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"7", b'{"layers": [{}]}', b'{"layers": 5}', b'{"config": {"digest": "md5:0"}}']
)
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(ArtifactInvalid):
        references(data, Digest.of(b"x"))


def test_a_used_digest_keeps_its_links() -> None:
    digest = Digest.of(b"x")
    link = Link("local", digest, "k")

    assert stale_links([link], {"local": frozenset()}, {digest}, {digest}) == ()
    assert stale_links([link], {"local": frozenset()}, (), ()) == (link,)
    assert stale_links([link], {"local": frozenset({digest})}, (), ()) == ()
    assert stale_links([Link("public", digest, "k")], {}, (), ()) == ()
