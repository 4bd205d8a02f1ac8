"""Laws of leases: fair shares, no deadlock, one replacement, and work that goes on where movers still live."""

import asyncio
import collections
import dataclasses
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from aimodels_core.errors import MoverLost
from aimodels_jobs.dispatch import Dispatcher, Lease, Queue
from aimodels_jobs.executor import MoverHandle
from aimodels_jobs.governor import Connections
from tests.support.places import POOL_BYTES, Place, Places

HOST = "cdn.example"


@dataclasses.dataclass
class Shrinking(Places):
    """A cluster with no room for another mover."""

    asked: int = 0

    async def replace(self, handle: MoverHandle) -> MoverHandle:
        """Find no place."""
        self.asked += 1
        await asyncio.sleep(0)
        raise MoverLost(f"{handle.name}: no room for another mover")


def run(call: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await call

    asyncio.run(bounded())


async def dispatcher(places: Places, connections: int = 99) -> Dispatcher:
    made = Dispatcher(places, Connections(connections))
    await made.start()
    return made


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def ask(made: Dispatcher, owner: str, *, size: int = 50, allowed: tuple[int, ...] = (0,)) -> "asyncio.Task[Lease]":
    return asyncio.ensure_future(made.lease(Queue(owner), host=HOST, size_bytes=size, wanted=1, allowed=allowed))


def test_a_publication_that_came_late_gets_its_share_at_once() -> None:
    async def law() -> None:
        made = await dispatcher(Places(1))
        early = [ask(made, "early") for _ in range(6)]
        await settle()
        late = [ask(made, "late") for _ in range(2)]
        await settle()
        made.release(early[0].result())
        await settle()

        assert [task.done() for task in early] == [True, True, False, False, False, False]
        assert [task.done() for task in late] == [True, False]
        for task in (*early, *late):
            task.cancel()
        await made.close()

    run(law())


def test_a_run_larger_than_the_pool_gets_the_pool_to_itself() -> None:
    async def law() -> None:
        made = await dispatcher(Places(1))
        small = ask(made, "a")
        await settle()
        large = ask(made, "b", size=3 * POOL_BYTES)
        await settle()
        waited = not large.done()
        made.release(small.result())
        await settle()
        after = ask(made, "c", size=1)
        await settle()

        assert waited
        assert large.done()
        assert not after.done()
        made.release(large.result())
        await settle()
        assert after.done()
        await made.close()

    run(law())


@pytest.mark.parametrize("seed", range(20))
def test_runs_that_are_hashed_in_order_never_wait_for_each_other_for_ever(seed: int) -> None:
    """Memory is held until a run is hashed, and a run is hashed after those before it: no cycle may arise."""

    async def law() -> None:
        chance = random.Random(seed)
        made = await dispatcher(Places(3), connections=5)
        held: collections.Counter[int] = collections.Counter()

        async def blob(queue: Queue, allowed: tuple[int, ...]) -> None:
            before = asyncio.Event()
            before.set()
            flights = []
            for _ in range(chance.randint(1, 12)):
                size = chance.choice([1, 20, 50, POOL_BYTES, POOL_BYTES + 7])
                lease = await made.lease(queue, host=HOST, size_bytes=size, wanted=4, allowed=allowed)
                held[lease.slot.index] += size
                assert held[lease.slot.index] <= POOL_BYTES or held[lease.slot.index] == size
                hashed = asyncio.Event()
                flights.append(asyncio.ensure_future(fly(lease, before, hashed)))
                before = hashed
            await asyncio.gather(*flights)

        async def fly(lease: Lease, before: asyncio.Event, hashed: asyncio.Event) -> None:
            await asyncio.sleep(chance.random() / 1000)
            made.release_connections(lease)
            await before.wait()
            held[lease.slot.index] -= lease.size_bytes
            made.release(lease)
            hashed.set()

        ways = [(0,), (1,), (2,), (0, 1, 2), (1, 2)]
        await asyncio.gather(*(blob(Queue(f"p{n % 4}", n), chance.choice(ways)) for n in range(12)))

        assert all(slot.leased_bytes == 0 for slot in made.slots)
        assert made.connections.grant(HOST, 99, 1) == 5, "every connection was given back"
        await made.close()

    run(law())


def test_a_lost_mover_is_replaced_once_however_many_runs_noticed() -> None:
    async def law() -> None:
        places = Places(1)
        made = await dispatcher(places)
        slot = made.slots[0]
        lost = slot.handle
        await asyncio.gather(*(made.replace(slot, lost) for _ in range(20)))
        await made.replace(slot, lost)

        assert [place.name for place in places.made] == ["place-0", "place-0-again"]
        assert slot.handle is places.made[1]
        assert not slot.lost.is_set()
        await made.close()

    run(law())


def test_leases_stay_when_another_mover_takes_the_place() -> None:
    async def law() -> None:
        made = await dispatcher(Places(1))
        lease = await ask(made, "a", size=60)
        await made.replace(made.slots[0], made.slots[0].handle)

        assert lease.slot is made.slots[0]
        assert made.slots[0].leased_bytes == 60
        await made.close()

    run(law())


def test_while_no_other_mover_can_be_had_runs_go_to_those_that_live() -> None:
    async def law() -> None:
        places = Shrinking(2)
        made = await dispatcher(places)
        full = await ask(made, "a", size=POOL_BYTES, allowed=(0,))
        before = ask(made, "a", size=POOL_BYTES, allowed=(0,))
        await settle()
        waited = not before.done()
        with pytest.raises(MoverLost, match="no room"):
            await made.replace(full.slot, full.slot.handle)
        made.release(await before)
        after = await ask(made, "a", allowed=(0,))

        assert waited
        assert places.asked == 1
        assert (before.result().slot, after.slot) == (made.slots[1], made.slots[1])
        await made.close()

    run(law())


def test_a_state_that_cannot_travel_waits_for_its_own_mover(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = Place.facts

    async def fixed(place: Place) -> Any:
        return dataclasses.replace(await facts(place), portable_state=False)

    monkeypatch.setattr(Place, "facts", fixed)

    async def law() -> None:
        made = await dispatcher(Shrinking(2))
        with pytest.raises(MoverLost):
            await made.replace(made.slots[0], made.slots[0].handle)
        waiting = ask(made, "a", allowed=(0,))
        await settle()

        assert not waiting.done()
        waiting.cancel()
        await made.close()

    run(law())


def test_a_spare_lease_is_refused_while_anybody_waits() -> None:
    async def law() -> None:
        made = await dispatcher(Places(2))
        first = await ask(made, "a", allowed=(0,))
        spare = made.spare(Queue("a"), host=HOST, size_bytes=10, wanted=1, other_than=first.slot)
        waiting = ask(made, "b", size=POOL_BYTES, allowed=(0,))
        await settle()
        refused = made.spare(Queue("a"), host=HOST, size_bytes=10, wanted=1, other_than=first.slot)

        assert spare is not None
        assert spare.slot is not first.slot
        assert refused is None
        waiting.cancel()
        await made.close()

    run(law())
