"""Stores, processes and names as users met them: O-03, O-50, O-52, O-53, O-58, O-63, O-73, O-75, O-83, O-84, O-86.

Kills of processes and faults of S3 itself are tested elsewhere; here a folder store answers late, wrongly or never.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from aimodels_core import names, oci, pull
from aimodels_core.digest import Digest
from aimodels_core.errors import StoreUnavailable
from aimodels_core.messages import PublicationState, Stage
from aimodels_jobs.fleet import actors
from aimodels_jobs.folder import Folder
from aimodels_jobs.headers import FIRST_WINDOW_BYTES
from aimodels_jobs.objects import Upload
from aimodels_jobs.orders import PartRecord
from aimodels_jobs.storeblobs import StoreBlobs, sizes
from tests.support.auditing import assert_no_leftovers, audit, checkpoints, collect_all, content, uploads
from tests.support.commandline import Cli
from tests.support.hub.limits import Limits
from tests.support.hub.repository import Content, File, Repository
from tests.support.hub.routes import On
from tests.support.hub.server import Hub
from tests.support.publisher import Publisher
from tests.support.publishing import PART, WEIGHTS_BYTES, Desk, folder_place, good_model, wanted
from tests.support.weights import safetensors_of_size, tiny_safetensors

WEIGHTS = "model.safetensors"


class Losing(Folder):
    """A folder whose answers are lost: a write is done, or not, and the caller is told that it failed.

    Args:
        root: the folder.
        ending: writes to keys with this ending.
        times: how many.
        done: whether the write happens all the same.
    """

    def __init__(self, root: Path, ending: str, *, times: int = 1, done: bool = True) -> None:
        super().__init__(root)
        self._ending, self.left, self._done = ending, times, done
        self.completed: list[str] = []

    def _loses(self, key: str) -> bool:
        if not self.left or not key.endswith(self._ending):
            return False
        self.left -= 1
        return True

    def complete(self, upload: Upload, records: Sequence[PartRecord], *, recheck: bool) -> None:
        lost = self._loses(upload.key)
        if self._done or not lost:
            super().complete(upload, records, recheck=recheck)
            self.completed.append(upload.key)
        if lost:
            raise StoreUnavailable(f"{upload.key}: got status 500")

    def put(self, key: str, data: bytes) -> None:
        lost = self._loses(key)
        if self._done or not lost:
            super().put(key, data)
        if lost:
            raise StoreUnavailable(f"{key}: got status 500")


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub(limits=Limits.unlimited(), tokens={"hf_good": "someone"}) as running:
        yield running


def published_once(hub: Hub, objects: Losing) -> PublicationState:
    """Publish over a store that loses answers; the model must be there whole, once, and nothing beside it."""
    repository = hub.add(good_model("org/name"))
    with Desk(objects) as desk:
        state = desk.publish(wanted(hub, "m"))
        assert (state.stage, state.trouble and state.trouble.retryable) == (Stage.WAITING, True), state
        state = desk.ready("m")
        assert content(desk.store, names.LOCAL, "m") == {f.path: f.sha256_hex for f in repository.head.files.values()}
        assert list(audit(desk.store)) == ["local:m"]
        assert uploads(desk.store) == []
        collect_all(desk.store)
        assert_no_leftovers(desk.store)
    assert objects.left == 0
    return state


@pytest.mark.parametrize("done", [True, False])
def test_o50_o03_a_commit_that_is_said_to_have_failed_moves_nothing_again(
    hub: Hub, tmp_path: Path, *, done: bool
) -> None:
    key = names.blob_data(Digest(good_model().head.files[WEIGHTS].sha256_hex))
    objects = Losing(tmp_path / "dmcr", key, done=done)
    state = published_once(hub, objects)

    assert objects.completed == [key]
    assert state.attempt == 2
    beyond_the_header = [each for each in hub.log.select(on=On.CDN, path=WEIGHTS) if each.start >= PART]
    assert sum(each.sent_bytes for each in beyond_the_header) == WEIGHTS_BYTES - PART


def test_o50_two_publications_share_one_upload_of_the_same_weights(hub: Hub, tmp_path: Path) -> None:
    for number in range(2):
        hub.add(good_model(f"org/m{number}"))
    objects = Losing(tmp_path / "dmcr", "nothing", times=0)
    with Desk(objects) as desk:
        for number in range(2):
            desk.put(wanted(hub, f"m{number}", f"org/m{number}"))
        for number in range(2):
            desk.ready(f"m{number}")

    assert objects.completed == [names.blob_data(Digest(good_model().head.files[WEIGHTS].sha256_hex))]


@pytest.mark.parametrize("ending", ["/_manifests/tags/m/current/link", "/current/link", "/link"])
def test_o83_work_that_was_done_and_not_heard_of_is_not_done_again(hub: Hub, tmp_path: Path, ending: str) -> None:
    state = published_once(hub, Losing(tmp_path / "dmcr", ending))

    assert state.attempt == 2
    beyond_the_header = [each for each in hub.log.select(on=On.CDN, path=WEIGHTS) if each.start >= PART]
    assert sum(each.sent_bytes for each in beyond_the_header) == WEIGHTS_BYTES - PART


def test_o84_a_coordinator_that_is_gone_in_the_middle_is_gone_on_with(hub: Hub, tmp_path: Path) -> None:
    size = 160 * 1024 * 1024
    repository = hub.add(good_model("org/name", weights_bytes=size))
    place = folder_place(tmp_path / "dmcr")
    hub.throttle(12 * 1024 * 1024)
    with Desk(place, connections=4) as desk:
        desk.put(wanted(hub, "m"))
        half = desk.until("m", lambda s: s.bytes_done > size // 2, "half of it")
        assert half.stage is Stage.MOVING
    hub.throttle(None)
    with Desk(place) as desk:
        assert desk.coordinator.snapshot().publications == ()
        desk.put(wanted(hub, "m"))
        state = desk.ready("m")
        assert content(desk.store, names.LOCAL, "m") == {f.path: f.sha256_hex for f in repository.head.files.values()}
        assert (uploads(desk.store), checkpoints(desk.store)) == ([], [])

    assert 0 < state.bytes_transferred < size - 32 * 1024 * 1024


def test_o52_a_file_beyond_what_parts_can_hold_is_refused_at_plan_time(cases: Publisher) -> None:
    huge = File(WEIGHTS, safetensors_of_size(4096), sha256="c" * 64, listed_size_bytes=3 * 2**40)
    repository = cases.add({"config.json": b"{}", WEIGHTS: huge})
    cases.refused_of(repository, "FileTooLarge", WEIGHTS, "2.0 TiB", "3.0 TiB")

    assert cases.payload_bytes(repository) == 0


def test_o53_too_many_files_are_refused_at_plan_time_with_count_and_limit(cases: Publisher) -> None:
    files: dict[str, Content | File] = {"config.json": b"{}", WEIGHTS: safetensors_of_size(4096)}
    repository = cases.add(files | {f"d/{number:06}.txt": b"0123456789" for number in range(20_000)})
    cases.refused_of(repository, "ManifestTooLarge", "want at most 3.5 MiB", "for 20002 files")

    assert cases.payload_bytes(repository) == 0


def test_o58_two_paths_of_the_same_bytes_are_one_blob_and_two_files(cases: Publisher, tmp_path: Path) -> None:
    same = b'{"o58": 1}'
    files: dict[str, Content | File] = {"config.json": b'{"o": 58}', "a/config.json": same, "b/config.json": same}
    twice = safetensors_of_size(3 * 1024 * 1024, seed=58)
    found = cases.ready(files | {WEIGHTS: twice, "copy/model.safetensors": twice})
    target = tmp_path / "out"
    pull.pull(StoreBlobs(cases.desk.store, names.LOCAL), Digest.parse(found.published.digest), target)

    assert (target / "a/config.json").read_bytes() == (target / "b/config.json").read_bytes() == same
    assert Digest.of((target / "copy/model.safetensors").read_bytes()).hex == found.files[WEIGHTS]
    manifest = oci.parse_manifest(cases.desk.store.read_manifest(names.LOCAL, Digest.parse(found.published.digest)))
    distinct = {file.sha256_hex: file.size_bytes for file in found.repository.head.files.values()}
    assert sizes([manifest]) == sum(distinct.values()) + manifest.config.size_bytes
    assert cases.payload_bytes(found.repository) <= sum(distinct.values()) + len(same) + 2 * FIRST_WINDOW_BYTES


def test_o63_a_hub_behind_a_private_authority_is_verified_with_it_and_never_without(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    with Hub(limits=Limits.unlimited(), tls=True) as hub:
        authority.write_bytes(hub.ca_pem)
        hub.add(good_model("org/name"))
        cli = Cli(folder_place(tmp_path / "dmcr"), hub.url)
        refused = cli("publish", "org/name", "--name", "m", "--retry-seconds", "0")
        asked = len(hub.log)
        done = cli("publish", "org/name", "--name", "m", "--ca-file", str(authority), "--json")

    assert (refused.code, asked) == (75, 0)
    assert "certificate" in refused.err
    assert done.code == 0, done.err
    assert done.json["bytesTransferred"] == done.json["bytesTotal"] + FIRST_WINDOW_BYTES


def test_o73_what_is_published_and_pulled_can_be_read_by_any_user(hub: Hub, tmp_path: Path) -> None:
    hub.add(Repository("org/name", tiny_safetensors() | {"sub/a.json": b"{}"}))
    cli = Cli(folder_place(tmp_path / "dmcr"), hub.url)
    before = os.umask(0o077)
    try:
        assert cli("publish", "org/name", "--name", "m").code == 0
        assert cli("pull", "m", "--to", str(tmp_path / "out")).code == 0
    finally:
        os.umask(before)
    unreadable = [
        path
        for path in [tmp_path / "out", *(tmp_path / "out").rglob("*"), *(tmp_path / "dmcr/docker").rglob("*")]
        if ~stat.S_IMODE(path.stat().st_mode) & (0o555 if path.is_dir() else 0o444)
    ]

    assert unreadable == []


ODD = ("Qwen/Qwen2.5-7B_Instruct", "a__b/C--d", "Foo/Bar", "foo/bar", "org/model.", "v1+cu12", "x" * 140)


def test_o75_odd_names_are_kept_apart_and_shown_as_they_were_given(hub: Hub, tmp_path: Path) -> None:
    place = folder_place(tmp_path / "dmcr")
    with Desk(place) as desk:
        for number, name in enumerate(ODD):
            hub.add(Repository(f"org/m{number}", tiny_safetensors(seed=number)))
            state = desk.publish(wanted(hub, name, f"org/m{number}"))
            assert state.stage is Stage.READY, state.trouble
        tags = desk.store.tagged(names.LOCAL)
    shown = Cli(place)("ls", "--json").json["models"]

    assert len(set(tags)) == len(set(tags.values())) == len(ODD)
    assert {model["name"] for model in shown} == set(ODD)


def test_o86_two_hundred_megabytes_go_through_a_ray_with_eighty_of_object_store(
    ray_instance: None, hub: Hub, tmp_path: Path
) -> None:
    repository = hub.add(good_model("org/name", weights_bytes=200_000_000))
    with Desk(folder_place(tmp_path / "dmcr"), executor=lambda: actors.attach(workers=2)) as desk:
        state = desk.publish(wanted(hub, "m"))
        assert state.stage is Stage.READY, state.trouble
        assert content(desk.store, names.LOCAL, "m") == {f.path: f.sha256_hex for f in repository.head.files.values()}
        assert desk.movers.executor
        assert desk.movers.executor.engine == "ray"
