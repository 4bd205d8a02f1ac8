"""The set of dirty keys, the rate limit and back-off."""

import asyncio

import pytest

from aimodels_operator.dirty import Dirty
from aimodels_operator.pacing import Bucket, back_off


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def taken(dirty: Dirty) -> list[str]:
    """All keys that are due now."""
    found = []
    while True:
        try:
            found.append(await asyncio.wait_for(dirty.get(), 0.01))
        except TimeoutError:
            return found


@pytest.mark.asyncio
async def test_a_key_added_often_is_looked_at_once() -> None:
    dirty = Dirty(clock=Clock())
    for _ in range(5):
        dirty.add("a")
    dirty.add("b")

    assert await taken(dirty) == ["a", "b"]


@pytest.mark.asyncio
async def test_a_key_that_is_worked_on_waits_until_that_ends() -> None:
    dirty = Dirty(clock=Clock())
    dirty.add("a")
    assert await taken(dirty) == ["a"]
    dirty.add("a")
    assert await taken(dirty) == []
    dirty.done("a")
    assert await taken(dirty) == ["a"]
    dirty.done("a")
    assert await taken(dirty) == []


@pytest.mark.asyncio
async def test_the_earlier_time_wins() -> None:
    clock = Clock()
    dirty = Dirty(clock=clock)
    dirty.add("a", 60)
    dirty.add("a", 5)
    dirty.add("a", 30)
    clock.now = 4.9
    assert await taken(dirty) == []
    clock.now = 5.0
    assert await taken(dirty) == ["a"]
    dirty.done("a")
    clock.now = 100.0
    assert await taken(dirty) == []


@pytest.mark.asyncio
async def test_one_that_waits_is_woken_by_an_addition() -> None:
    dirty = Dirty(clock=Clock())
    waiting = asyncio.create_task(dirty.get())
    await asyncio.sleep(0)
    dirty.add("a")

    assert await asyncio.wait_for(waiting, 1) == "a"


@pytest.mark.asyncio
async def test_a_dropped_key_is_not_looked_at() -> None:
    dirty = Dirty(clock=Clock())
    dirty.add("a")
    dirty.drop("a")

    assert await taken(dirty) == []
    assert len(dirty) == 0


@pytest.mark.asyncio
async def test_urgent_writes_overtake_and_each_class_keeps_its_order() -> None:
    clock = Clock()
    bucket = Bucket(100.0, 1.0, clock=clock)
    order: list[str] = []

    async def write(name: str, urgency: int) -> None:
        await bucket.take(urgency)
        order.append(name)

    await bucket.take(0)
    tasks = [
        asyncio.create_task(write(name, urgency))
        for name, urgency in [("e1", 2), ("p1", 1), ("p2", 1), ("f1", 0), ("f2", 0)]
    ]
    await asyncio.sleep(0)
    assert (order, bucket.waiting) == ([], 5)
    while len(order) < len(tasks):
        clock.now += 0.01
        await asyncio.sleep(0.011)

    assert order == ["f1", "f2", "p1", "p2", "e1"]


@pytest.mark.asyncio
async def test_no_more_than_the_rate_passes() -> None:
    clock = Clock()
    bucket = Bucket(200.0, 20.0, clock=clock)
    tasks = [asyncio.create_task(bucket.take(0)) for _ in range(300)]
    await asyncio.sleep(0)
    assert sum(task.done() for task in tasks) == 20
    for _ in range(10):
        clock.now += 0.1
        await asyncio.sleep(0.02)

    assert 198 <= sum(task.done() for task in tasks) <= 200
    for task in tasks:
        task.cancel()


@pytest.mark.asyncio
async def test_a_cancelled_writer_takes_no_token() -> None:
    clock = Clock()
    bucket = Bucket(100.0, 1.0, clock=clock)
    await bucket.take(0)
    first, second = asyncio.create_task(bucket.take(0)), asyncio.create_task(bucket.take(0))
    await asyncio.sleep(0)
    first.cancel()
    clock.now = 0.02
    await asyncio.wait_for(second, 1)


@pytest.mark.parametrize(("failures", "least", "most"), [(1, 0.35, 0.5), (3, 1.4, 2.0), (50, 42.0, 60.0)])
def test_back_off_doubles_to_a_limit(failures: int, least: float, most: float) -> None:
    assert all(least <= back_off(failures) <= most for _ in range(50))
