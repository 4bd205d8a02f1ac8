"""Power lost at any moment: nothing unverified is visible, nothing committed is lost (design 4.6)."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from aimodels_core import oci
from aimodels_core.digest import Digest
from aimodels_core.errors import AiModelsError, NotPublished
from aimodels_jobs.checkpoints import Checkpoints, Record
from aimodels_jobs.collection import Collector
from aimodels_jobs.folder import Folder
from aimodels_jobs.layout import Store
from aimodels_jobs.orders import PartRecord
from tests.support.power import RecordingDisk, cuts, materialise
from tests.support.stores import artifact, checksum

FIRST = {"config.json": b'{"v": 1}', "model.safetensors": b"weights of the first" * 50}
SECOND = {"config.json": b'{"v": 1}', "model.safetensors": b"weights of the second" * 50}


def _publish(store: Store, disk: RecordingDisk, files: dict[str, bytes], *, recheck: bool) -> None:
    for data in files.values():
        digest = Digest.of(data)
        if store.blob_size(digest) is None:
            upload = store.objects.create_upload(store.blob_key(digest), len(data))
            ticket = store.objects.part_ticket(upload, 1, 0, len(data))
            disk.wrote(Path(ticket.path), 0, data)  # type: ignore[union-attr]  # a folder gives file tickets
            record = PartRecord(1, 0, len(data), "", checksum(store.objects.checksum, data))
            store.objects.complete(upload, [record], recheck=recheck)
        store.link("local", digest)
    made = artifact(files)
    store.link("local", store.put_blob(made.config))
    store.put_manifest("local", "m", made.manifest)


def _history(root: Path, *, without: str = "", recheck: bool = False) -> RecordingDisk:
    root.mkdir()
    disk = RecordingDisk(root, without=without)
    store = Store(Folder(root, disk=disk), at_once=1)
    _publish(store, disk, FIRST, recheck=recheck)
    disk.note("first")
    _publish(store, disk, SECOND, recheck=recheck)
    disk.note("second")
    assert Collector(store).collect((), now=True).blobs == 3
    disk.note("removing")
    store.remove("local", "m")
    disk.note("removed")
    Collector(store).collect((), now=True)
    return disk


def _violations(root: Path, promised: frozenset[str]) -> list[str]:
    store = Store(Folder(root), at_once=1)
    found = []
    for digest, info in store.blobs():
        if Digest.of((root / info.key).read_bytes()) != digest:
            found.append(f"visible but wrong: {digest}")
    try:
        manifest = store.read_manifest("local", store.resolve_tag("local", "m"))
    except NotPublished:
        lost = "first" in promised and "removing" not in promised
        return [*found, "lost"] if lost else found
    except AiModelsError as error:
        return [*found, f"tag without a manifest: {error}"]
    expected = [artifact(files).manifest for files in (FIRST, SECOND)]
    if manifest not in expected[1 if "second" in promised else 0 :]:
        found.append("an older model came back")
    for digest, size in oci.parse_manifest(manifest).blobs.items():
        if store.blob_size(digest) != size or not store.is_linked("local", digest):
            found.append(f"committed but not there: {digest}")
    if "removed" in promised:
        found.append("a removed model came back")
    return found


@pytest.mark.timeout(120)
@pytest.mark.parametrize("recheck", [False, True])
def test_power_lost_anywhere_shows_and_loses_nothing_wrong(tmp_path: Path, *, recheck: bool) -> None:
    disk = _history(tmp_path / "store", recheck=recheck)

    wrong = _replay(tmp_path, disk, _violations)

    assert wrong == []
    assert len(disk.steps) > 100


@pytest.mark.parametrize("without", ["sync", "sync_folder"])
def test_the_replay_notices_a_missing_flush(tmp_path: Path, without: str) -> None:
    disk = _history(tmp_path / "store", without=without)

    assert _replay(tmp_path, disk, _violations, enough=1)


def _replay(
    tmp_path: Path,
    disk: RecordingDisk,
    check: Callable[[Path, frozenset[str]], list[str]],
    *,
    enough: int = 20,
) -> list[str]:
    wrong: list[str] = []
    left = tmp_path / "left"
    for length, promised, entries, contents in cuts(disk.steps):
        materialise(left, entries, contents)
        wrong += [f"after {length} steps ({disk.steps[length - 1]}): {text}" for text in check(left, promised)]
        shutil.rmtree(left)
        if len(wrong) >= enough:
            break
    return wrong


def test_a_checkpoint_never_vouches_for_bytes_that_power_took(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()
    disk = RecordingDisk(root)
    folder = Folder(root, disk=disk)
    data = b"0123456789" * 100
    digest = Digest.of(data)
    upload = folder.create_upload(Store(folder).blob_key(digest), len(data))
    records = []
    for number, start in ((1, 0), (2, 400), (3, 800)):
        piece = data[start : start + 400]
        ticket = folder.part_ticket(upload, number, start, start + len(piece))
        disk.wrote(Path(ticket.path), start, piece)
        records.append(PartRecord(number, start, len(piece), "", checksum(folder.checksum, piece)))
        last = number == 3
        state = b"" if last else b"s" * 40
        record = Record(upload, number - 1, tuple(records[-1:]), state, digest.hex if last else "")
        Checkpoints(folder).save(digest, "local", record)

    def vouched(left: Path, _: frozenset[str]) -> list[str]:
        store = Folder(left)
        resume = Checkpoints(store).load(digest, "local", len(data), 400)
        if resume.upload is None:
            return [] if resume.records == () else ["records without an upload"]
        file = store.uploads_in_progress.file(resume.upload).read_bytes()
        bad = [r.number for r in resume.records if file[r.start :][:400] != data[r.start :][:400]]
        return [f"vouched for {bad}"] if bad else []

    assert _replay(tmp_path, disk, vouched) == []
