"""A capacity limit over real stores: whole publications through movers, of models that share blobs, with deletions."""

import pytest

from aimodels_core.messages import PublicationState, Stage
from aimodels_jobs.admission import Capacity
from tests.support.auditing import assert_no_leftovers
from tests.support.hub.server import Hub
from tests.support.publishing import MIB, WEIGHTS_BYTES, Desk, Place, good_model, wanted
from tests.support.weights import safetensors_of_size

WEIGHTS = "model.safetensors"
ROOM_FOR_ONE = WEIGHTS_BYTES + 4 * MIB
SMALL_BYTES = 3 * MIB


def limit(size_bytes: int, *, settle_seconds: float = 0.0) -> Capacity:
    return Capacity(size_bytes, settle_seconds=settle_seconds, planning_seconds=20.0, collect_seconds=0.0)


def waits_for_space(state: PublicationState) -> bool:
    trouble = state.trouble
    return state.stage is Stage.WAITING and trouble is not None and trouble.reason == "InsufficientStorage"


def stored_bytes(place: Place) -> int:
    return sum(info.size_bytes for _, info in place.store.blobs())


def test_the_second_waits_and_goes_on_by_itself_when_the_first_is_deleted(place: Place, hub: Hub) -> None:
    for seed, name in enumerate(("org/a", "org/b")):
        hub.add(good_model(name, seed=seed))
    with Desk(place, capacity=limit(ROOM_FOR_ONE)) as desk:
        desk.publish(wanted(hub, "a", "org/a"))
        hub.log.clear()
        desk.put(wanted(hub, "b", "org/b"))
        state = desk.until("b", waits_for_space, "to wait for space")
        assert state.trouble
        assert state.trouble.message.startswith("needs 32.")
        assert hub.log.payload_bytes(WEIGHTS) <= MIB  # its header

        desk.run(desk.coordinator.delete("a", scope="local"))
        desk.ready("b")

    assert stored_bytes(place) <= ROOM_FOR_ONE
    assert_no_leftovers(place.store)


def test_a_running_publication_that_is_deleted_lets_the_next_one_go_on(place: Place, hub: Hub) -> None:
    for seed, name in enumerate(("org/a", "org/b")):
        hub.add(good_model(name, seed=seed))
    hub.throttle(4 * MIB)
    with Desk(place, capacity=limit(ROOM_FOR_ONE)) as desk:
        desk.put(wanted(hub, "a", "org/a"))
        desk.until("a", lambda state: state.stage is Stage.MOVING, "to move")
        desk.put(wanted(hub, "b", "org/b"))
        desk.until("b", waits_for_space, "to wait for space")

        desk.run(desk.coordinator.delete("a", scope="local"))
        hub.throttle(None)
        desk.ready("b")

    assert place.store.tags("local") == ("b",)
    assert stored_bytes(place) <= ROOM_FOR_ONE


def test_blobs_that_are_there_or_on_their_way_are_not_counted_twice(place: Place, hub: Hub) -> None:
    """Three models with the same weights, two of them at once, in a store for one of them and some small files."""
    for name in ("org/a", "org/b", "org/c"):
        hub.add(good_model(name)).update({"adapter.safetensors": safetensors_of_size(300_000, seed=ord(name[-1]))})
    with Desk(place, capacity=limit(ROOM_FOR_ONE)) as desk:
        for name in ("a", "b"):
            desk.put(wanted(hub, name, f"org/{name}"))
        for name in ("a", "b"):
            desk.ready(name)
        desk.put(wanted(hub, "c", "org/c"))
        desk.ready("c")

    assert stored_bytes(place) <= ROOM_FOR_ONE


@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
def test_a_killed_coordinator_goes_on_in_the_order_of_age(folder: Place, hub: Hub, order: str) -> None:
    """The oldest one had begun; after the restart it goes on from its checkpoints, whoever comes first."""
    sizes = {"a": WEIGHTS_BYTES, "b": WEIGHTS_BYTES, "c": SMALL_BYTES}
    for seed, (name, size) in enumerate(sizes.items()):
        hub.add(good_model(f"org/{name}", weights_bytes=size, seed=seed))
    wants = {name: wanted(hub, name, f"org/{name}", created=float(ord(name))) for name in sizes}
    hub.throttle(4 * MIB)
    with Desk(folder, capacity=limit(ROOM_FOR_ONE)) as desk:
        desk.put(wants["a"])
        desk.until("a", lambda state: state.bytes_done > 20 * MIB, "half of it")
    hub.throttle(None)
    with Desk(folder, capacity=limit(ROOM_FOR_ONE, settle_seconds=0.3)) as desk:
        for name in order:
            desk.put(wants[name])
        desk.ready("a")
        desk.until("b", waits_for_space, "to wait for space")
        words = desk.until("c", waits_for_space, "to wait for space").trouble
        assert words
        assert "goes first" in words.message

        desk.run(desk.coordinator.delete("a", scope="local"))
        desk.ready("b")
    assert stored_bytes(folder) <= ROOM_FOR_ONE
