"""A store that is full, read-only, away, slow, or answers wrongly: what is shown, what stays, and that it goes on."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aimodels_core import names
from aimodels_core.messages import PublicationState, Stage
from aimodels_jobs.flight import Patience
from aimodels_jobs.sources.hub_wire import Clock
from tests.support.auditing import assert_no_leftovers, audit, checkpoints, content, uploads
from tests.support.commandline import Cli
from tests.support.hub.faults import Fault
from tests.support.hub.limits import Limits
from tests.support.hub.repository import Repository
from tests.support.hub.routes import On
from tests.support.hub.server import Hub
from tests.support.publishing import MIB, PART, Desk, Hubs, Place, bucket_place, folder_place, good_model, wanted
from tests.support.scripted import Call
from tests.support.servers import S3Server
from tests.support.spoiledstores import Spoil, Spoiled, after, error, remount, reset, small_disk, spoiled

WEIGHTS = "model.safetensors"


@pytest.fixture
def proxy(versity: S3Server) -> Iterator[Spoiled]:
    with spoiled(versity) as running:
        yield running


@pytest.fixture
def bucket(proxy: Spoiled, request: pytest.FixtureRequest) -> Place:
    return bucket_place(proxy.server, f"stores/{abs(hash(request.node.name)):x}")


def an_old_and_a_new(hub: Hub, desk: Desk, *, weights_bytes: int = PART + 1) -> tuple[Repository, str]:
    """Publish a small model as `m`, and give its repository new weights."""
    repository = hub.add(good_model("org/name", weights_bytes=200_000))
    state = desk.publish(wanted(hub, "m"))
    assert state.published, state
    repository.update({WEIGHTS: good_model("x/y", weights_bytes=weights_bytes, seed=3).head.files[WEIGHTS]})
    return repository, state.published.digest


def is_whole(place: Place, repository: Repository) -> bool:
    files = {path: file.sha256_hex for path, file in repository.head.files.items()}
    return content(place.store, names.LOCAL, "m") == files


def test_a_full_disk_is_said_before_a_byte_moves_and_clears_itself(hub: Hub, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 12) as disk:
        place = folder_place(disk / "dmcr")
        with Desk(place) as desk:
            repository, old = an_old_and_a_new(hub, desk)
            hub.log.clear()
            state = desk.publish(wanted(hub, "m", generation=2))

            assert (state.stage, state.trouble and state.trouble.reason) == (Stage.WAITING, "InsufficientStorage")
            assert hub.log.payload_bytes(WEIGHTS) <= MIB  # the header
            assert audit(place.store) == {"local:m": old}
            assert uploads(place.store) == []
            remount(disk, "size=128m")
            desk.ready("m")
        assert is_whole(place, repository)


def test_a_disk_that_fills_up_on_the_way_is_waited_for(hub: Hub, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64) as disk:
        place = folder_place(disk / "dmcr")
        with Desk(place) as desk:
            repository, old = an_old_and_a_new(hub, desk)
            ballast = disk / "ballast"
            hub.throttle(8 * MIB)
            desk.put(wanted(hub, "m", generation=2))
            desk.until("m", lambda s: s.bytes_done > MIB, "bytes on their way")
            with pytest.raises(OSError, match="No space"):
                ballast.write_bytes(bytes(64 * MIB))
            hub.throttle(None)
            state = desk.until("m", lambda s: s.stage in (Stage.WAITING, Stage.READY), "an end")
            assert audit(place.store).get("local:m") in (old, state.published and state.published.digest)
            ballast.unlink()
            desk.ready("m")
        assert is_whole(place, repository)
        assert Cli(place)("gc").code == 0
        assert_no_leftovers(place.store)


def test_a_full_disk_is_temporary_for_the_command_line(hub: Hub, tmp_path: Path) -> None:
    hub.add(good_model("org/name"))
    with small_disk(tmp_path / "disk", 16) as disk:
        done = Cli(folder_place(disk / "dmcr"), hub.url)("publish", "org/name", "--name", "m", "--retry-seconds", "1")

    assert done.code == 75
    assert "InsufficientStorage" in done.err or "No space" in done.err or "StoreFull" in done.err


def test_a_read_only_store_can_be_read_and_not_written(hub: Hub, tmp_path: Path) -> None:
    hub.add(good_model("org/name", weights_bytes=200_000))
    with small_disk(tmp_path / "disk", 24) as disk:
        place = folder_place(disk / "dmcr")
        cli = Cli(place, hub.url)
        assert cli("publish", "org/name", "--name", "m").code == 0
        remount(disk, "ro")
        written = [cli("publish", "org/name", "--name", "n"), cli("rm", "m"), cli("gc")]
        read = [cli("ls"), cli("verify", "m"), cli("pull", "m", "--to", str(tmp_path / "out")), cli("plan", "org/name")]
        remount(disk, "rw")

    assert [done.code for done in written] == [1, 1, 1], [done.err for done in written]
    assert all("ead-only" in done.err for done in written), [done.err for done in written]
    assert [done.code for done in read] == [0, 0, 0, 0], [done.err for done in read]


def test_a_store_that_vanishes_is_waited_for_and_never_made_anew(folder: Place, hub: Hub) -> None:
    root = Path(folder.words[1])
    with Desk(folder) as desk:
        repository, old = an_old_and_a_new(hub, desk)
        hub.throttle(8 * MIB)
        desk.put(wanted(hub, "m", generation=2))
        desk.until("m", lambda s: s.bytes_done > MIB, "bytes on their way")
        root.rename(root.with_name("elsewhere"))
        hub.throttle(None)
        state = desk.until("m", lambda s: s.stage is Stage.WAITING, "waiting")
        assert state.trouble
        assert "folder" in state.trouble.message or "writer" in state.trouble.message
        assert not root.exists() or not list(root.rglob("link"))
        if root.exists():
            _remove(root)
        root.with_name("elsewhere").rename(root)
        assert audit(folder.store) == {"local:m": old}
        desk.own()
        desk.ready("m")
    assert is_whole(folder, repository)


def _remove(root: Path) -> None:
    for path in sorted(root.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    root.rmdir()


def part(call: Call) -> bool:
    return call.method == "PUT" and "partNumber=" in call.path


def complete(call: Call) -> bool:
    return call.method == "POST" and "uploadId=" in call.path


def begin(call: Call) -> bool:
    return call.method == "POST" and "uploads" in call.path


def tag(call: Call) -> bool:
    return call.method == "PUT" and "/tags/m/current/link" in call.path


def manifest(call: Call) -> bool:
    return call.method == "PUT" and "/revisions/" in call.path


def anything(call: Call) -> bool:
    return "/writer/" not in call.path


def slowly(seconds: float) -> Spoil:
    def answer(call: Call, forward: object) -> object:
        time.sleep(seconds)
        return forward()  # type: ignore[operator]  # the proxy's

    return answer  # type: ignore[return-value]  # as above


PASSING = {
    "part 500": (part, error("InternalError", 500), 2),
    "part 503": (part, error("SlowDown", 503), 2),
    "part reset": (part, reset, 2),
    "part stored but the answer lost": (part, after(reset), 2),
    "part stored but answered 500": (part, after(error("InternalError", 500)), 2),
    "complete 500 after the commit": (complete, after(error("InternalError", 500)), 1),
    "complete lost after the commit": (complete, after(reset), 1),
    "complete error in a 200": (complete, error("InternalError", 200), 1),
    "complete without the upload": (complete, error("NoSuchUpload", 404), 1),
    "begin lost": (begin, after(reset), 1),
    "tag written but the answer lost": (tag, after(reset), 1),
    "tag written but answered 500": (tag, after(error("InternalError", 500)), 1),
    "manifest link 503": (manifest, error("SlowDown", 503), 1),
    "slow": (anything, slowly(0.1), 60),
}


@pytest.mark.parametrize("case", PASSING)
def test_a_fault_of_the_bucket_that_passes_heals(case: str, bucket: Place, proxy: Spoiled, hub: Hub) -> None:
    matches, answer, times = PASSING[case]
    with Desk(bucket) as desk:
        repository, _ = an_old_and_a_new(hub, desk)
        proxy.when(matches, answer, times=times)
        desk.publish(wanted(hub, "m", generation=2))
        desk.ready("m")
        desk.collect()

    assert len(proxy.hits) >= min(times, 1)
    assert is_whole(bucket, repository)
    assert len(audit(bucket.store)) == 1
    assert_no_leftovers_but_begun(bucket, allowed=case == "begin lost")


def assert_no_leftovers_but_begun(place: Place, *, allowed: bool) -> None:
    """An upload whose id was never heard of is left to collection."""
    assert checkpoints(place.store) == []
    assert allowed or uploads(place.store) == []


LASTING = {
    "full": (part, error("InsufficientStorage", 507), Stage.WAITING, "InsufficientStorage", "InsufficientStorage"),
    "quota": (part, error("QuotaExceeded", 403), Stage.WAITING, "InsufficientStorage", "QuotaExceeded"),
    "full for small objects": (manifest, error("XMinioStorageFull", 507), Stage.WAITING, "InsufficientStorage", "Full"),
    # A part is refused in the same words when leave to send it is over, so it is asked for again, slower and slower.
    "parts are refused": (part, error("AccessDenied", 403), Stage.WAITING, "PublicationFailed", "AccessDenied"),
    "the tag is refused": (tag, error("AccessDenied", 403), Stage.FAILED, "PublicationFailed", "AccessDenied"),
    "read-only": (begin, error("MethodNotAllowed", 405), Stage.FAILED, "PublicationFailed", "MethodNotAllowed"),
    "away": (lambda c: part(c) or complete(c) or tag(c), reset, Stage.WAITING, "PublicationFailed", ""),
    "500 for ever": (complete, error("InternalError", 500), Stage.WAITING, "PublicationFailed", "InternalError"),
}


@pytest.mark.parametrize("case", LASTING)
def test_a_fault_of_the_bucket_that_lasts_is_shown_and_nothing_is_lost(
    case: str, bucket: Place, proxy: Spoiled, hub: Hub
) -> None:
    matches, answer, stage, reason, says = LASTING[case]
    with Desk(bucket) as desk:
        repository, old = an_old_and_a_new(hub, desk)
        proxy.when(matches, answer)
        state = desk.publish(wanted(hub, "m", generation=2))

        assert state.stage is stage, state
        assert state.trouble
        assert (state.trouble.reason, says in state.trouble.message) == (reason, True), state.trouble
        assert audit(bucket.store) == {"local:m": old}
        proxy.when(lambda _: False, answer)
        if stage is Stage.FAILED:
            assert uploads(bucket.store) == []
            desk.publish(wanted(hub, "m", generation=3))
        desk.ready("m")
    assert is_whole(bucket, repository)


def stopped_half_way(place: Place, hub: Hub) -> Repository:
    """Publish until there is a checkpoint, and stop."""
    repository = hub.add(good_model("org/name", weights_bytes=6 * PART, seed=4))
    hub.throttle(12 * MIB)
    with Desk(place, connections=4) as desk:
        desk.put(wanted(hub, "m"))
        desk.until("m", lambda _: bool(checkpoints(desk.store)), "a checkpoint")
    hub.throttle(None)
    hub.log.clear()
    assert uploads(place.store)
    return repository


def finish(place: Place, hub: Hub) -> PublicationState:
    with Desk(place) as desk:
        desk.publish(wanted(hub, "m"))
        return desk.ready("m")


def test_a_stopped_publication_is_gone_on_with(place: Place, hub: Hub) -> None:
    repository = stopped_half_way(place, hub)
    finish(place, hub)

    assert hub.log.payload_bytes(WEIGHTS) <= 2 * PART + MIB
    assert is_whole(place, repository)
    assert_no_leftovers(place.store)


def test_an_upload_that_is_gone_on_resume_is_begun_anew(place: Place, hub: Hub) -> None:
    repository = stopped_half_way(place, hub)
    objects = place.open()
    for upload in list(objects.uploads("")):
        objects.abort(upload)
    finish(place, hub)

    assert hub.log.payload_bytes(WEIGHTS) >= 6 * PART
    assert is_whole(place, repository)
    assert_no_leftovers(place.store)


def test_an_upload_that_changed_meanwhile_is_not_trusted(folder: Place, hub: Hub) -> None:
    repository = stopped_half_way(folder, hub)
    file = next(path for path in Path(folder.words[1], "ai-models/tmp").iterdir() if "sha256" in path.name)
    with file.open("r+b") as opened:
        opened.seek(PART + 5)
        byte = opened.read(1)[0]
        opened.seek(PART + 5)
        opened.write(bytes([byte ^ 1]))
    finish(folder, hub)

    assert is_whole(folder, repository)
    assert len(audit(folder.store)) == 1
    assert_no_leftovers(folder.store)


@pytest.mark.parametrize("jump", [-7200.0, 7200.0])
def test_a_clock_that_jumps_costs_new_addresses_and_nothing_else(jump: float, folder: Place, hub: Hub) -> None:
    """Ours, while the hub's stays: addresses seem to be over, or never to end."""
    repository, ours = hub.add(good_model("org/name", weights_bytes=6 * PART)), [0.0]
    clock = Clock(now=lambda: time.time() + ours[0])
    hub.throttle(24 * MIB)
    with Desk(folder, hubs=Hubs(clock=clock), wall_clock=clock.now, connections=4) as desk:
        desk.put(wanted(hub, "m"))
        desk.until("m", lambda s: s.bytes_done > MIB, "bytes on their way")
        ours[0] = jump
        hub.throttle(None)
        state = desk.ready("m")

    assert state.attempt == 1
    assert is_whole(folder, repository)
    assert len(hub.log.select(on=On.RESOLVE, path=WEIGHTS)) <= 8


def test_addresses_that_end_early_are_renewed_once_each(folder: Place) -> None:
    """The hub's clock jumps over the end of every address that it gave."""
    jump = [0.0]
    with Hub(limits=Limits.unlimited(), clock=lambda: time.time() + jump[0], url_lifetime_seconds=600) as hub:
        repository = hub.add(good_model("org/name", weights_bytes=6 * PART))
        hub.throttle(24 * MIB)
        with Desk(folder, connections=4) as desk:
            desk.put(wanted(hub, "m"))
            desk.until("m", lambda s: s.bytes_done > MIB, "bytes on their way")
            jump[0] = 3600.0
            hub.throttle(None)
            state = desk.ready("m")

        assert state.attempt == 1
        assert is_whole(folder, repository)
        assert len(hub.log.select(on=On.RESOLVE, path=WEIGHTS)) <= 3


IMPATIENT = Patience(tries=4, back_off_seconds=0.05, part_seconds=2.0, slowest_bytes_per_second=16 * MIB)


def test_a_stalled_connection_is_given_up_at_its_deadline(place: Place, hub: Hub) -> None:
    repository = hub.add(good_model("org/name"))
    hub.fault(Fault.STALL, on=On.CDN, path=WEIGHTS, offset=PART + 7, after_bytes=1_000_000, times=2)
    started = time.monotonic()
    with Desk(place, runs=IMPATIENT) as desk:
        desk.publish(wanted(hub, "m"))
        state = desk.ready("m")

    assert time.monotonic() - started < 40
    assert state.attempt == 1
    assert is_whole(place, repository)


def test_a_source_that_stalls_for_ever_is_said_to(folder: Place, hub: Hub) -> None:
    hub.add(good_model("org/name"))
    hub.fault(Fault.STALL, on=On.CDN, path=WEIGHTS, offset=PART + 7, after_bytes=1_000_000)
    with Desk(folder, runs=IMPATIENT) as desk:
        state = desk.publish(wanted(hub, "m"))

    assert state.trouble
    assert state.trouble.code == "PartDeadline"
    assert WEIGHTS in state.trouble.message
    assert audit(folder.store) == {}
