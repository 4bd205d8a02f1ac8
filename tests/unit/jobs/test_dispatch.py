"""Leases: who may fetch next, whom a paused host holds up, and what becomes of the place of a lost mover."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from aimodels_jobs import dispatch
from aimodels_jobs.dispatch import Dispatcher, Lease, Queue
from aimodels_jobs.governor import Connections
from tests.support.places import POOL_BYTES, Places


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def _run(call: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(10):
            await call

    asyncio.run(bounded())


def _ask(made: Dispatcher, host: str, *, owner: str = "o", size: int = 10) -> "asyncio.Task[Lease]":
    return asyncio.ensure_future(made.lease(Queue(owner), host=host, size_bytes=size, wanted=1, allowed=(0,)))


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_paused_host_holds_up_nobody_who_reads_elsewhere() -> None:
    async def lease() -> None:
        clock = Clock()
        connections = Connections(4, clock=clock)
        made = Dispatcher(Places(1), connections, clock=clock)
        await made.start()
        connections.had_trouble("slow.example", pause_seconds=300.0)
        waiting = _ask(made, "slow.example")
        await _settle()
        clock.now += 60.0

        granted = await _ask(made, "good.example")

        assert not waiting.done()
        assert granted.connections == 1
        waiting.cancel()
        await made.close()

    _run(lease())


def test_who_waits_long_for_memory_is_not_overtaken_for_ever() -> None:
    async def lease() -> None:
        clock = Clock()
        made = Dispatcher(Places(1), Connections(9, clock=clock), clock=clock)
        await made.start()
        held = await _ask(made, "h", size=60)
        large = _ask(made, "h", owner="large", size=80)
        await _settle()
        assert (await _ask(made, "h", owner="small", size=10)).size_bytes == 10
        clock.now += 60.0

        small = _ask(made, "h", owner="another", size=10)
        await _settle()
        assert not small.done()
        made.release(held)
        assert (await large).size_bytes == 80
        assert (await small).size_bytes == 10
        await made.close()

    _run(lease())


def test_bad_news_of_a_mover_that_was_replaced_is_no_news_of_its_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_POLL_SECONDS", 0.0)

    async def replace() -> None:
        places = Places(1)
        made = Dispatcher(places, Connections(4))
        await made.start()
        first = places.made[0]
        await first.asked.wait()
        await made.replace(made.slots[0], first)
        successor = places.made[1]

        first.dead = True
        first.polled.set()
        await successor.asked.wait()

        assert made.slots[0].handle is successor
        assert not made.slots[0].lost.is_set()
        assert (await _ask(made, "h")).slot.handle is successor
        await made.close()

    _run(replace())


def test_a_lease_that_nobody_waits_for_any_more_is_given_back() -> None:
    async def lease() -> None:
        made = Dispatcher(Places(1), Connections(4))
        await made.start()
        held = await _ask(made, "h", size=POOL_BYTES)
        waiting = _ask(made, "h", size=POOL_BYTES)
        await _settle()
        made.release(held)  # grants it to the one who waits
        waiting.cancel()
        await asyncio.wait({waiting})

        assert made.slots[0].leased_bytes == 0
        assert (await _ask(made, "h", size=POOL_BYTES)).size_bytes == POOL_BYTES
        await made.close()

    _run(lease())


def test_the_next_run_starts_while_the_one_before_it_is_hashed() -> None:
    async def lease() -> None:
        made = Dispatcher(Places(1), Connections(9))
        await made.start()
        first = await _ask(made, "h", size=POOL_BYTES)
        second = _ask(made, "h", size=POOL_BYTES)
        await _settle()
        assert not second.done()

        made.release_memory(first)
        assert (await second).size_bytes == POOL_BYTES

        made.release(first)
        assert made.slots[0].leased_bytes == POOL_BYTES
        made.release(await second)
        assert made.slots[0].leased_bytes == 0
        await made.close()

    _run(lease())


def test_files_of_one_owner_end_one_after_another_and_none_keeps_the_pool_for_itself() -> None:
    async def lease() -> None:
        made = Dispatcher(Places(1), Connections(99))
        await made.start()
        order: list[str] = []
        files = {name: Queue("o", place) for place, name in enumerate(("first", "second", "third", "fourth"))}

        async def move(name: str) -> None:
            """Eight runs: each is fetched as soon as it may, and hashed after the one before it."""
            leases: asyncio.Queue[Lease] = asyncio.Queue()

            async def launch() -> None:
                for _ in range(8):
                    run = made.lease(files[name], host="h", size_bytes=POOL_BYTES // 4, wanted=1, allowed=(0,))
                    leases.put_nowait(await run)

            launching = asyncio.ensure_future(launch())
            for _ in range(8):
                run = await leases.get()
                await asyncio.sleep(0.001)
                made.release_memory(run)
                order.append(name)
                await asyncio.sleep(0.001)
                made.release(run)
            await launching

        await asyncio.gather(*(move(name) for name in files))
        ends = {name: len(order) - order[::-1].index(name) for name in files}

        assert max(ends["first"], ends["second"]) <= 2 * 8 + 4, "the last two had the runs that they began with"
        assert min(ends["third"], ends["fourth"]) > 3 * 8
        assert ends["first"] > 8, "files are hashed beside each other"
        assert made.slots[0].leased_bytes == 0
        await made.close()

    _run(lease())
