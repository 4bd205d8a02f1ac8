import errno
import os
import random
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from aimodels_core import folders, leftovers, modelpack, oci, pull
from aimodels_core.digest import Digest
from aimodels_core.errors import (
    AiModelsError,
    ArtifactInvalid,
    Cancelled,
    DigestMismatch,
    SourceUnavailable,
    StoreFull,
    UnsafeContent,
    UsageError,
)
from tests.support.artifacts import MemoryBlobs, Sample, files_in, sample

KIB = 1024
SMALL = pull.Tuning(connections=4, part_bytes=64 * KIB)
WEIGHTS = random.Random(1).randbytes(700 * KIB + 13)
MODEL = sample(
    {
        "config.json": b'{"a": 1}',
        "model.safetensors": WEIGHTS,
        "sub/deep/模型 😀.txt": b"text",
        "sub/__init__.py": b"",
    }
)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    """A target whose read-only remains pytest can remove."""
    yield tmp_path / "out" / "model"
    folders.remove_tree(tmp_path / "out")


def beside(target: Path) -> list[str]:
    """Everything in the target's parent but the target."""
    return [path.name for path in target.parent.iterdir() if path != target] if target.parent.exists() else []


def test_a_pulled_folder_holds_exactly_the_files(target: Path) -> None:
    blobs = MemoryBlobs([MODEL])

    done = pull.pull(blobs, MODEL.digest, target, tuning=SMALL)

    assert files_in(target) == MODEL.files
    assert (done.files, done.bytes_total, done.bytes_transferred) == (4, blobs.bytes_read, blobs.bytes_read)
    assert blobs.bytes_read == sum(map(len, MODEL.files.values()))
    assert beside(target) == []
    assert pull.verify_folder(oci.parse_manifest(MODEL.artifact.manifest), target) == ()


def test_o73_files_are_readable_for_all_whatever_the_umask(target: Path) -> None:
    before = os.umask(0o077)
    try:
        pull.pull(MemoryBlobs([MODEL]), MODEL.digest, target, tuning=SMALL)
    finally:
        os.umask(before)

    paths = [target, *target.rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_dir()} == {0o555}
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_file()} == {0o444}


@pytest.mark.parametrize("odd_bytes", [0, 1, 4097])
def test_large_files_written_past_the_page_cache_are_the_same(odd_bytes: int, target: Path) -> None:
    one = sample({"model.gguf": random.Random(4).randbytes(4 * 1024 * KIB + odd_bytes), "small": b"x"})
    tuning = pull.Tuning(connections=3, part_bytes=1024 * KIB, direct=True)

    pull.pull(MemoryBlobs([one]), one.digest, target, tuning=tuning)

    assert files_in(target) == one.files


def test_several_ranges_of_one_file_are_in_flight_at_once(target: Path) -> None:
    together = threading.Barrier(4)
    one = sample({"model.gguf": os.urandom(8 * 64 * KIB)})
    blobs = MemoryBlobs([one], before=lambda *_: (together.wait(10), None)[1])

    pull.pull(blobs, one.digest, target, tuning=SMALL)

    assert files_in(target) == one.files


def test_ranges_that_come_in_any_order_are_hashed_in_order(target: Path) -> None:
    first_may_come = threading.Event()
    one = sample({"model.gguf": os.urandom(5 * 64 * KIB + 1)})

    def late_first(_: Digest, start: int, __: memoryview) -> None:
        if start == 0:
            assert first_may_come.wait(10)
        elif start >= 3 * 64 * KIB:
            first_may_come.set()

    pull.pull(MemoryBlobs([one], before=late_first), one.digest, target, tuning=SMALL)

    assert files_in(target) == one.files


def test_o58_two_paths_with_the_same_bytes_cost_one_fetch(target: Path) -> None:
    one = sample({"a/config.json": b"{}" * 50, "b/config.json": b"{}" * 50})
    blobs = MemoryBlobs([one])

    done = pull.pull(blobs, one.digest, target, tuning=SMALL)

    assert files_in(target) == one.files
    assert (done.bytes_total, blobs.bytes_read) == (100, 100)


def test_a_complete_target_costs_no_byte(target: Path) -> None:
    pull.pull(MemoryBlobs([MODEL]), MODEL.digest, target, tuning=SMALL)
    blobs = MemoryBlobs([MODEL])

    done = pull.pull(blobs, MODEL.digest, target, tuning=SMALL)

    assert blobs.reads == []
    assert (done.bytes_transferred, done.bytes_reused) == (0, done.bytes_total)


def test_o70_a_target_that_lost_a_file_is_made_again(target: Path) -> None:
    pull.pull(MemoryBlobs([MODEL]), MODEL.digest, target, tuning=SMALL)
    (target / "model.safetensors").chmod(0o644)
    os.truncate(target / "model.safetensors", 5)
    blobs = MemoryBlobs([MODEL])

    pull.pull(blobs, MODEL.digest, target, tuning=SMALL)

    assert files_in(target) == MODEL.files
    assert blobs.bytes_read == len(WEIGHTS)


def test_another_artifact_replaces_the_folder_and_reuses_equal_files(target: Path) -> None:
    newer = sample({"config.json": b'{"a": 2}', "model.safetensors": WEIGHTS})
    pull.pull(MemoryBlobs([MODEL]), MODEL.digest, target, tuning=SMALL)
    blobs = MemoryBlobs([newer])

    done = pull.pull(blobs, newer.digest, target, tuning=SMALL)

    assert files_in(target) == newer.files
    assert (blobs.bytes_read, done.bytes_reused) == (8, len(WEIGHTS))
    assert beside(target) == []


def test_a_folder_with_files_of_somebody_else_is_refused_and_left_alone(target: Path) -> None:
    target.mkdir(parents=True)
    (target / "mine.txt").write_text("mine")

    with pytest.raises(UsageError, match="want a new or empty folder"):
        pull.pull(MemoryBlobs([MODEL]), MODEL.digest, target, tuning=SMALL)

    assert files_in(target) == {"mine.txt": b"mine"}
    assert beside(target) == []


def test_an_empty_folder_is_a_fine_target_and_a_file_is_not(target: Path) -> None:
    target.mkdir(parents=True)
    pull.pull(MemoryBlobs([MODEL]), MODEL.digest, target, tuning=SMALL)
    file = target.parent / "file"
    file.write_text("x")

    with pytest.raises(UsageError, match="want a folder"):
        pull.pull(MemoryBlobs([MODEL]), MODEL.digest, file, tuning=SMALL)

    assert files_in(target) == MODEL.files


def test_o40_wrong_bytes_once_are_fetched_once_more(target: Path) -> None:
    spoiled = threading.Event()

    def spoil(_: Digest, start: int, view: memoryview) -> None:
        if start == 2 * 64 * KIB and not spoiled.is_set():
            spoiled.set()
            view[0] ^= 1

    done = pull.pull(MemoryBlobs([MODEL], after=spoil), MODEL.digest, target, tuning=SMALL)

    assert files_in(target) == MODEL.files
    assert done.bytes_transferred == done.bytes_total + len(WEIGHTS)


def test_o40_wrong_bytes_twice_end_the_pull_with_both_digests(target: Path) -> None:
    def spoil(_: Digest, start: int, view: memoryview) -> None:
        if start == 2 * 64 * KIB:
            view[0] ^= 1

    with pytest.raises(DigestMismatch) as caught:
        pull.pull(MemoryBlobs([MODEL], after=spoil), MODEL.digest, target, tuning=SMALL)

    assert caught.value.want == str(Digest.of(WEIGHTS))
    assert caught.value.got.startswith("sha256:")
    assert not target.exists()
    assert beside(target) == []


def test_a_failed_pull_shows_nothing_and_the_next_one_goes_on(target: Path) -> None:
    def fail(_: Digest, start: int, __: memoryview) -> None:
        if start >= 8 * 64 * KIB:
            raise SourceUnavailable("cut")

    one_by_one = pull.Tuning(connections=1, part_bytes=64 * KIB)
    with pytest.raises(SourceUnavailable):
        pull.pull(MemoryBlobs([MODEL], before=fail), MODEL.digest, target, tuning=one_by_one)
    assert not target.exists()
    blobs = MemoryBlobs([MODEL])

    done = pull.pull(blobs, MODEL.digest, target, tuning=SMALL)

    assert files_in(target) == MODEL.files
    assert blobs.bytes_read == done.bytes_transferred == len(WEIGHTS) - 8 * 64 * KIB + len(b"text")
    assert beside(target) == []


def test_a_spoiled_leftover_is_noticed_and_replaced(target: Path) -> None:
    def fail(_: Digest, start: int, __: memoryview) -> None:
        if start >= 8 * 64 * KIB:
            raise SourceUnavailable("cut")

    one_by_one = pull.Tuning(connections=1, part_bytes=64 * KIB)
    with pytest.raises(SourceUnavailable):
        pull.pull(MemoryBlobs([MODEL], before=fail), MODEL.digest, target, tuning=one_by_one)
    for left in target.parent.rglob("*.part"):
        with left.open("r+b") as file:
            file.write(b"torn")
    for left in target.parent.rglob(f"blobs/{Digest.of(b'text').hex}"):
        left.chmod(0o644)
        left.write_bytes(b"torn")

    pull.pull(MemoryBlobs([MODEL]), MODEL.digest, target, tuning=SMALL)

    assert files_in(target) == MODEL.files


def test_a_cancelled_pull_stops_and_shows_nothing(target: Path) -> None:
    blobs = MemoryBlobs([MODEL])
    hooks = pull.Hooks(cancelled=lambda: len(blobs.reads) >= 3)

    with pytest.raises(Cancelled):
        pull.pull(blobs, MODEL.digest, target, tuning=SMALL, hooks=hooks)

    assert not target.exists()
    assert len(blobs.reads) < 3 + SMALL.connections


def test_progress_adds_up(target: Path) -> None:
    seen: list[int] = []

    done = pull.pull(MemoryBlobs([MODEL]), MODEL.digest, target, tuning=SMALL, hooks=pull.Hooks(progress=seen.append))

    assert sum(seen) == done.bytes_transferred


def test_a_disk_that_fills_up_leaves_nothing(target: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400 * KIB, hard))
    try:
        with pytest.raises(StoreFull):
            pull.pull(MemoryBlobs([MODEL]), MODEL.digest, target, tuning=SMALL)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert not target.exists()
    assert beside(target) == []


def test_what_cannot_fit_is_refused_before_the_first_byte(target: Path) -> None:
    huge = oci.build(oci.RECIPE, [oci.ArtifactFile("m.gguf", 2**60, Digest.of(b"x"))], modelpack.ConfigFacts())
    blobs = MemoryBlobs([Sample({}, huge)])

    with pytest.raises(StoreFull, match=f"want {2**60} bytes free"):
        pull.pull(blobs, huge.digest, target, tuning=SMALL)

    assert blobs.reads == []
    assert beside(target) == []


def edited(manifest: bytes, old: str, new: str) -> Sample:
    data = manifest.replace(old.encode(), new.encode())
    artifact = oci.Artifact(MODEL.artifact.config, MODEL.artifact.config_digest, data, Digest.of(data), 0)
    return Sample(MODEL.files, artifact)


@pytest.mark.parametrize(
    "path", ["../../x", "/etc/cron.d/x", "sub/../../b", "a//b", "", "Config.JSON", "config.json/x", folders.MARKER]
)
def test_o57_paths_that_escape_or_meet_are_refused_before_any_byte(path: str, target: Path) -> None:
    bad = edited(MODEL.artifact.manifest, '"model.safetensors"', f'"{path}"')
    blobs = MemoryBlobs([bad])

    with pytest.raises(UnsafeContent):
        pull.pull(blobs, bad.digest, target, tuning=SMALL)

    assert blobs.reads == []
    assert not target.exists()
    assert beside(target) == []


def test_o57_the_same_path_twice_is_refused(target: Path) -> None:
    bad = edited(MODEL.artifact.manifest, '"model.safetensors"', '"config.json"')

    with pytest.raises(UnsafeContent, match="PathCollision"):
        pull.pull(MemoryBlobs([bad]), bad.digest, target, tuning=SMALL)


def test_archived_layers_and_two_sizes_of_one_digest_are_refused(target: Path) -> None:
    archived = edited(MODEL.artifact.manifest, "weight.v1.raw", "weight.v1.tar")
    twice = sample({"a": b"same", "b": b"same"}).artifact.manifest
    resized = edited(twice, '"size":4},{', '"size":5},{')
    with pytest.raises(ArtifactInvalid, match="plain file"):
        pull.pull(MemoryBlobs([archived]), archived.digest, target, tuning=SMALL)

    with pytest.raises(ArtifactInvalid, match="one size per digest"):
        pull.pull(MemoryBlobs([resized]), resized.digest, target, tuning=SMALL)

    assert not target.exists()


def test_o72_two_pulls_into_one_folder_both_end_well(target: Path) -> None:
    together = threading.Barrier(2)
    results: list[object] = []

    def run() -> None:
        blobs = MemoryBlobs([MODEL], before=lambda _, start, __: (start == 0 and together.wait(10), None)[1])
        tuning = pull.Tuning(connections=1, part_bytes=len(WEIGHTS))
        try:
            results.append(pull.pull(blobs, MODEL.digest, target, tuning=tuning))
        except AiModelsError as error:
            results.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [type(result) for result in results] == [pull.Pulled, pull.Pulled]
    assert files_in(target) == MODEL.files
    assert beside(target) == []


def test_a_slow_pull_keeps_its_folder_while_a_quick_one_finishes(target: Path) -> None:
    may_go_on, stuck = threading.Event(), threading.Event()
    results: list[object] = []

    def hold(_: Digest, start: int, __: memoryview) -> None:
        if start == 5 * 64 * KIB:
            stuck.set()
            assert may_go_on.wait(20)

    slow = threading.Thread(
        target=lambda: results.append(pull.pull(MemoryBlobs([MODEL], before=hold), MODEL.digest, target, tuning=SMALL))
    )
    slow.start()
    assert stuck.wait(20)
    pull.pull(MemoryBlobs([MODEL]), MODEL.digest, target, tuning=SMALL)
    may_go_on.set()
    slow.join()

    assert [type(result) for result in results] == [pull.Pulled]
    assert files_in(target) == MODEL.files
    assert beside(target) == []


def test_a_stale_work_folder_is_removed_and_a_live_one_is_not(target: Path) -> None:
    target.parent.mkdir(parents=True)
    stale, alive = leftovers.open_work(target), leftovers.open_work(target)
    (stale.root / "owner.json").write_text("{}")
    for path in (stale.root, stale.blobs):
        os.utime(path, (1, 1))

    pull.pull(MemoryBlobs([MODEL]), MODEL.digest, target, tuning=SMALL)

    assert beside(target) == [alive.root.name]


def test_links_that_the_file_system_refuses_are_replaced_by_moves(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    one = sample({"a": b"same", "b": b"same", "c": b"other"})

    pull.pull(MemoryBlobs([one]), one.digest, target, tuning=SMALL)

    assert files_in(target) == one.files


def test_verify_names_every_difference(target: Path) -> None:
    pull.pull(MemoryBlobs([MODEL]), MODEL.digest, target, tuning=SMALL)
    for path in (target, target / "sub", target / "sub/deep"):
        path.chmod(0o755)
    (target / "config.json").unlink()
    (target / "sub" / "__init__.py").unlink()
    (target / "sub" / "__init__.py").symlink_to("../model.safetensors")
    (target / "extra.bin").write_bytes(b"x")
    (target / "model.safetensors").chmod(0o644)
    with (target / "model.safetensors").open("r+b") as file:
        file.seek(99)
        file.write(bytes([WEIGHTS[99] ^ 1]))
    (target / "sub/deep/模型 😀.txt").chmod(0o644)
    (target / "sub/deep/模型 😀.txt").write_bytes(b"longer text")

    found = pull.verify_folder(oci.parse_manifest(MODEL.artifact.manifest), target)

    kinds = pull.DifferenceKind
    assert [(one.path, one.kind) for one in found] == [
        ("config.json", kinds.MISSING),
        ("extra.bin", kinds.EXTRA),
        ("model.safetensors", kinds.DIGEST),
        ("sub/__init__.py", kinds.TYPE),
        ("sub/deep/模型 😀.txt", kinds.SIZE),
    ]


def test_a_manifest_that_is_not_the_asked_one_is_refused(target: Path) -> None:
    with pytest.raises(DigestMismatch):
        pull.checked(MODEL.artifact.manifest + b" ", MODEL.digest)
