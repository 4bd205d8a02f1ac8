"""Movers as Ray actors: the same port as in-process ones, and what happens when they die."""

import asyncio
import hashlib
import os
import random
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import pytest_asyncio

from aimodels_core.errors import MoverLost, UsageError
from aimodels_core.source import ReadTicket
from aimodels_core.units import KIB
from aimodels_jobs.executor import Executor, Inline, MoverHandle
from aimodels_jobs.fleet import actors
from aimodels_jobs.orders import ChecksumKind, PartOrder, RunOrder, S3PartTicket
from tests.support import parts
from tests.support.parts import Fault, Hold, Place

PART = 256 * KIB
DATA = random.Random(11).randbytes(6 * PART + 13)
SIZE = len(DATA)
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def source() -> Iterator[Place]:
    with parts.source(DATA) as place:
        yield place


@pytest.fixture
def sink() -> Iterator[Place]:
    with parts.sink() as place:
        yield place


@pytest.fixture(scope="module")
def pair(ray_instance: None) -> Iterator[actors.Fleet]:
    """Two movers for all tests here; a test that kills one puts another in its place."""
    made = actors.attach(workers=2)
    with ThreadPoolExecutor(1) as thread:  # a loop may run in this one already
        thread.submit(asyncio.run, _started(made)).result()
        yield made
        thread.submit(asyncio.run, made.close()).result()


async def _started(executor: Executor) -> None:
    await executor.movers()


@pytest_asyncio.fixture(params=["inline", "ray"])
async def executor(request: pytest.FixtureRequest) -> AsyncIterator[Executor]:
    if request.param == "ray":
        yield request.getfixturevalue("pair")
    else:
        made = Inline()
        yield made
        await made.close()


def order(source: Place, sink: Place, first: int, last: int, run_id: str) -> RunOrder:
    edges = [(i + 1, a, min(a + PART, SIZE)) for i, a in enumerate(range(0, SIZE, PART))][first:last]
    read = ReadTicket(f"{source.url}/m", (), SIZE, None, "cdn.test", trusted=True)
    made = tuple(PartOrder(n, a, b, S3PartTicket(f"{sink.url}/k?partNumber={n}")) for n, a, b in edges)
    return RunOrder(run_id, "m", made, read, ChecksumKind.CRC64NVME, 3, 20.0)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - the condition lives in other processes
            await asyncio.sleep(0.02)


@pytest.mark.asyncio
async def test_runs_of_a_file_are_fetched_side_by_side_and_hashed_in_turn(
    executor: Executor, source: Place, sink: Place
) -> None:
    movers = await executor.movers()
    one, two = movers[0], movers[-1]
    reports = await asyncio.gather(one.fetch(order(source, sink, 0, 3, "a")), two.fetch(order(source, sink, 3, 7, "b")))
    first = await one.hash("a", None, False)
    second = await two.hash("b", first.state, True)

    assert [r.error for r in reports] == [None, None]
    assert second.digest_hex == DIGEST
    assert sink.blob == DATA


@pytest.mark.asyncio
async def test_control_calls_answer_while_fetches_hang(executor: Executor, source: Place, sink: Place) -> None:
    mover = (await executor.movers())[0]
    gate = threading.Event()
    for start in range(0, SIZE, PART):
        source.plan(start, Hold(gate))
    fetches = [asyncio.ensure_future(mover.fetch(order(source, sink, i, i + 1, f"r{i}"))) for i in range(7)]

    async def all_ask() -> bool:
        return len(source.seen) == 7

    await until(all_ask)
    began = time.monotonic()
    assert set((await mover.poll()).received_bytes) == {f"r{i}" for i in range(7)}
    await asyncio.gather(*(mover.drop(f"r{i}") for i in range(7)))
    reports = await asyncio.gather(*fetches)
    assert time.monotonic() - began < 5
    gate.set()

    assert {r.error.kind for r in reports if r.error} == {"Cancelled"}
    assert (await mover.facts()).portable_state


@pytest.mark.asyncio
async def test_a_cancelled_fetch_is_dropped(executor: Executor, source: Place, sink: Place) -> None:
    mover = (await executor.movers())[0]
    source.plan(0, Fault.STALL)
    fetch = asyncio.ensure_future(mover.fetch(order(source, sink, 0, 1, "r")))

    async def holds() -> bool:
        return (await mover.poll()).held_bytes > 0

    async def is_free() -> bool:
        return (await mover.poll()).held_bytes == 0

    await until(holds)
    fetch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetch
    await until(is_free, 3)


@pytest.mark.asyncio
async def test_errors_come_back_as_they_were_raised(executor: Executor, source: Place, sink: Place) -> None:
    mover = (await executor.movers())[0]
    await mover.fetch(order(source, sink, 0, 1, "bad-state"))

    with pytest.raises(UsageError) as caught:
        await mover.hash("bad-state", b"nonsense", False)
    assert (type(caught.value), caught.value.code) == (UsageError, "BadState")
    await mover.drop("bad-state")


@pytest.mark.asyncio
async def test_a_mover_can_be_replaced(executor: Executor, source: Place, sink: Place) -> None:
    before = (await executor.movers())[0]
    after = await executor.replace(before)

    assert after is not before
    assert (await executor.movers())[0] is after
    assert (await after.fetch(order(source, sink, 0, 7, "r"))).error is None
    assert (await after.hash("r", None, True)).digest_hex == DIGEST


async def _kill(mover: MoverHandle, number: int) -> int:
    pid = (await mover.facts()).pid
    assert pid != os.getpid()
    os.kill(pid, number)
    return pid


@pytest.mark.asyncio
async def test_a_killed_mover_is_lost_and_its_replacement_fetches_the_run_again(
    pair: actors.Fleet, source: Place, sink: Place
) -> None:
    mover = (await pair.movers())[0]
    gate = threading.Event()
    source.plan(0, Hold(gate))
    fetch = asyncio.ensure_future(mover.fetch(order(source, sink, 0, 7, "r")))

    async def asked() -> bool:
        return bool(source.seen)

    await until(asked)
    await _kill(mover, signal.SIGKILL)
    with pytest.raises(MoverLost):
        await asyncio.wait_for(fetch, 15)
    gate.set()
    with pytest.raises(MoverLost):
        await mover.poll()
    successor = await pair.replace(mover)
    assert (await successor.fetch(order(source, sink, 0, 7, "r2"))).error is None
    assert (await successor.hash("r2", None, True)).digest_hex == DIGEST


@pytest.mark.asyncio
async def test_a_frozen_mover_is_dead_before_it_is_replaced(pair: actors.Fleet) -> None:
    mover = (await pair.movers())[0]
    pid = await _kill(mover, signal.SIGSTOP)
    try:
        await pair.replace(mover)

        async def gone() -> bool:
            return not is_running(pid)

        await until(gone, 1)
    finally:
        if is_running(pid):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.asyncio
async def test_movers_of_a_closed_fleet_are_gone_and_the_cluster_stays(ray_instance: None) -> None:
    first = actors.attach(workers=2)
    pids = [(await mover.facts()).pid for mover in await first.movers()]
    await first.close()

    async def gone() -> bool:
        return not any(is_running(pid) for pid in pids)

    await until(gone)
    second = actors.attach(workers=1)
    assert len(await second.movers()) == 1
    await second.close()
