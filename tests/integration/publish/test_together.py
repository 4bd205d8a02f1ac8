"""Several publications at once: of one model, of models that share files, in one process and in two; gc beside them."""

import concurrent.futures
import dataclasses
import signal
import threading

import pytest

from aimodels_core import names
from aimodels_core.messages import Stage
from tests.support.auditing import assert_no_leftovers, audit, checkpoints, content
from tests.support.commandline import Cli, ended, running
from tests.support.hub.routes import On
from tests.support.hub.server import Hub
from tests.support.processes import wait_for
from tests.support.publishing import MIB, PART, Desk, Place, Shop, good_model, wanted
from tests.support.weights import safetensors_of_size

WEIGHTS = "model.safetensors"
FIRST_WINDOW = MIB


def test_two_names_for_one_model_in_one_process_move_it_once(place: Place, hub: Hub) -> None:
    repository = hub.add(good_model("org/name"))
    with Desk(place) as desk:
        for name in ("a", "b"):
            desk.put(wanted(hub, name))
        states = [desk.ready(name) for name in ("a", "b")]

    assert len({state.published.digest for state in states if state.published}) == 1
    moved = sum(state.bytes_transferred for state in states)
    assert moved <= states[0].bytes_total + 2 * FIRST_WINDOW + 64 * 1024  # both read the header, and small files
    sent = hub.log.times_sent(WEIGHTS)
    assert sum(size for times, size in sent.items() if times > 1) <= FIRST_WINDOW
    assert content(place.store, names.LOCAL, "a")[WEIGHTS] == repository.head.files[WEIGHTS].sha256_hex
    assert_no_leftovers(place.store)


def test_the_same_want_twice_is_one_publication(folder: Place, hub: Hub) -> None:
    hub.add(good_model("org/name"))
    with Desk(folder) as desk:
        for _ in range(3):
            desk.put(wanted(hub, "a"))
        desk.ready("a")
        assert desk.publish(wanted(hub, "a")).stage is Stage.READY

    assert len(hub.log.select(on=On.INFO)) == 1


def test_a_second_model_that_shares_files_moves_only_what_is_new(place: Place, hub: Hub) -> None:
    first = hub.add(good_model("org/name"))
    other = hub.add(good_model("org/other"))
    other.update({"adapter.safetensors": safetensors_of_size(300_000, seed=9)})
    with Desk(place) as desk:
        desk.publish(wanted(hub, "a"))
        hub.log.clear()
        state = desk.publish(wanted(hub, "b", "org/other"))

    assert first.head.files[WEIGHTS].sha256_hex == other.head.files[WEIGHTS].sha256_hex
    assert state.stage is Stage.READY
    assert hub.log.payload_bytes(WEIGHTS) == 0
    assert state.bytes_transferred == hub.log.payload_bytes() < PART
    new, small = state.bytes_total - state.bytes_reused, 64 * 1024
    assert 0 <= new - other.head.files["adapter.safetensors"].size_bytes <= small


def test_the_hub_is_asked_once_per_file_and_page(folder: Place, hub: Hub) -> None:
    repository = hub.add(good_model("org/name"))
    with Desk(folder) as desk:
        desk.publish(wanted(hub, "a"))

    asked = len(hub.log) - len(hub.log.select(on=On.CDN))
    assert asked <= len(repository.head.files) + len(hub.log.select(on=On.TREE)) + 1
    assert len(hub.log.select(on=On.RESOLVE, path=WEIGHTS)) == 1


def test_two_processes_publish_one_model_the_second_waits_and_moves_nothing(place: Place, hub: Hub) -> None:
    hub.add(good_model("org/name"))
    cli = Cli(place, hub.url)
    hub.throttle(6 * MIB)
    with running(cli.begin("publish", "org/name", "--name", "m", "--json", "--connections", "3")) as first:
        wait_for(lambda: bool(hub.log.payload_bytes(WEIGHTS)), "the first at work", seconds=30)
        with running(cli.begin("publish", "org/name", "--name", "m", "--json")) as second:
            ends = [ended(process) for process in (first, second)]

    assert [end.code for end in ends] == [0, 0], [end.err for end in ends]
    assert ends[0].json["digest"] == ends[1].json["digest"]
    assert ends[1].json["bytesTransferred"] == 0
    assert "another writer" in ends[1].err
    assert str(first.pid) in ends[1].err
    assert_no_leftovers(place.store)


def test_a_second_process_gives_up_after_its_budget_and_names_the_writer(place: Place, hub: Hub) -> None:
    hub.add(good_model("org/name", weights_bytes=1000))
    with Desk(place):
        done = Cli(place, hub.url)("publish", "org/name", "--name", "m", "--retry-seconds", "1")

    assert done.code == 75
    assert "another writer" in done.err
    assert "process" in done.err
    assert audit(place.store) == {}


@pytest.mark.timeout(180)
def test_a_frozen_writer_that_thaws_harms_nothing(place: Place, hub: Hub) -> None:
    """On S3 another process takes over; in a folder the lock stays with the frozen one, and the second one waits."""
    repository = hub.add(good_model("org/name", weights_bytes=6 * PART))
    cli = Cli(place, hub.url)
    hub.throttle(8 * MIB)
    with running(cli.begin("publish", "org/name", "--name", "m", "--json", "--connections", "4")) as frozen:
        wait_for(lambda: bool(checkpoints(place.store)), "a checkpoint", seconds=40)
        frozen.send_signal(signal.SIGSTOP)
        hub.throttle(None)
        with running(cli.begin("publish", "org/name", "--name", "m", "--json")) as second:
            if place.words[1].startswith("s3:"):
                taken = ended(second, seconds=120)
                frozen.send_signal(signal.SIGCONT)
                thawed = ended(frozen)
            else:
                assert second.stderr is not None
                while "another writer" not in (line := second.stderr.readline()):
                    assert line, "the second one ended"
                frozen.send_signal(signal.SIGCONT)
                taken, thawed = ended(second), ended(frozen)

    assert taken.code == 0, taken.err
    assert thawed.code == 0, thawed.err
    assert taken.json["digest"] == thawed.json["digest"]
    assert content(place.store, names.LOCAL, "m")[WEIGHTS] == repository.head.files[WEIGHTS].sha256_hex
    assert_no_leftovers(place.store)


def test_collection_beside_publications_takes_nothing_that_they_count_on(shop: Shop, hub: Hub) -> None:
    """Models that share all their weights come and go while everything unreferenced is collected at once."""
    models = [hub.add(good_model(f"org/m{n}", weights_bytes=2 * PART, seed=n // 2)) for n in range(6)]
    stop = threading.Event()

    def collect() -> int:
        passes = 0
        while not stop.is_set():
            shop.desk.collect()
            passes += 1
        return passes

    def come_and_go(number: int) -> None:
        for generation in range(1, 4):
            made = dataclasses.replace(wanted(hub, f"m{number}", models[number].id), generation=generation)
            shop.desk.put(made)
            shop.desk.until(made.uid, lambda s: s.stage is Stage.READY, "Ready")
            if generation < 3:
                shop.desk.run(shop.desk.coordinator.delete(made.uid, scope=names.LOCAL))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        passes = pool.submit(collect)
        try:
            list(pool.map(come_and_go, range(len(models))))
        finally:
            stop.set()
        assert passes.result() > 1
    found = audit(shop.desk.store)
    shop.desk.collect()

    assert {f"local:m{n}" for n in range(6)} <= set(found)
    assert audit(shop.desk.store) == found
    for number, model in enumerate(models):
        assert content(shop.desk.store, names.LOCAL, f"m{number}")[WEIGHTS] == model.head.files[WEIGHTS].sha256_hex


def test_a_newer_want_replaces_the_running_one(place: Place, hub: Hub) -> None:
    old, new = hub.add(good_model("org/old", seed=1)), hub.add(good_model("org/new", seed=2))
    hub.throttle(4 * MIB)
    with Desk(place, connections=3) as desk:
        desk.put(wanted(hub, "m", old.id))
        desk.until("m", lambda s: s.stage is Stage.MOVING, "moving")
        hub.throttle(None)
        desk.put(wanted(hub, "m", new.id, generation=2))
        state = desk.ready("m")

    assert state.generation == 2
    assert content(place.store, names.LOCAL, "m")[WEIGHTS] == new.head.files[WEIGHTS].sha256_hex
    assert len(audit(place.store)) == 1


@pytest.mark.parametrize("kept", [False, True])
def test_a_deleted_publication_leaves_nothing_and_a_shared_blob_stays(kept: bool, place: Place, hub: Hub) -> None:
    hub.add(good_model("org/name", weights_bytes=3 * PART, seed=1))
    hub.add(good_model("org/other", weights_bytes=3 * PART, seed=1 if kept else 2))
    with Desk(place, connections=3) as desk:
        desk.publish(wanted(hub, "other", "org/other"))
        hub.throttle(4 * MIB)
        desk.put(wanted(hub, "m"))
        desk.until("m", lambda s: s.stage in (Stage.MOVING, Stage.READY), "moving")
        desk.run(desk.coordinator.delete("m", scope=names.LOCAL))
        desk.collect()
        hub.throttle(None)

    assert set(audit(place.store)) == {"local:other"}
    assert_no_leftovers(place.store)
