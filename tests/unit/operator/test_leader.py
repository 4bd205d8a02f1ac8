"""The lease and the fence, on clocks of the test's own."""

import asyncio
import contextlib
import copy
import heapq
import itertools
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from aimodels_core.errors import ClusterUnavailable, LeadershipLost
from aimodels_operator.leader import Leader, Lease, Place, Times


class Clock:
    """Time that passes when a test says so; sleepers wake in order."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._order), future))
        await future

    async def advance(self, seconds: float) -> None:
        """Let time pass, and everybody do what is due."""
        stop = self.now + seconds
        await _settle()
        while self._sleepers and self._sleepers[0][0] <= stop:
            self.now, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)
            await _settle()
        self.now = stop


async def _settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class Store:
    """Leases of an API server with optimistic locking."""

    def __init__(self) -> None:
        self.leases: dict[str, Lease] = {}
        self.version = 0
        self.down = False
        self.puts = 0

    async def get_lease(self, namespace: str, name: str) -> Lease | None:
        if self.down:
            raise ClusterUnavailable("down", code="Unanswered")
        return copy.deepcopy(self.leases.get(name))

    async def put_lease(self, namespace: str, name: str, lease: Lease) -> Lease:
        if self.down:
            raise ClusterUnavailable("down", code="Unanswered")
        held = self.leases.get(name)
        if (held["metadata"]["resourceVersion"] if held else "") != lease["metadata"].get("resourceVersion", ""):
            raise ClusterUnavailable("changed", code="Conflict")
        self.version += 1
        self.puts += 1
        kept = copy.deepcopy(lease)
        kept["metadata"]["resourceVersion"] = str(self.version)
        self.leases[name] = kept
        return kept

    @property
    def spec(self) -> dict[str, Any]:
        found: dict[str, Any] = self.leases["l"]["spec"]
        return found


def leader(store: Store, clock: Clock, identity: str) -> Leader:
    return Leader(store, Place("ns", "l", identity), times=Times(), clock=clock, sleep=clock.sleep)


@contextlib.asynccontextmanager
async def running(call: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Run something beside the test."""
    task = asyncio.create_task(call)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.asyncio
async def test_the_first_takes_a_lease_that_nobody_has() -> None:
    store, clock = Store(), Clock()
    first = leader(store, clock, "a")
    await first.acquire()

    first.check()
    assert (store.spec["holderIdentity"], store.spec["leaseDurationSeconds"]) == ("a", 10)


@pytest.mark.asyncio
async def test_who_keeps_renewing_is_left_alone() -> None:
    store, clock = Store(), Clock()
    first, second = leader(store, clock, "a"), leader(store, clock, "b")
    await first.acquire()
    async with running(first.keep()), running(second.acquire()):
        await clock.advance(300)

        assert (first.leads, second.leads) == (True, False)
        assert store.spec["leaseTransitions"] == 0
        assert store.puts > 100


@pytest.mark.asyncio
async def test_who_stops_renewing_is_followed_after_the_duration_and_not_before() -> None:
    store, clock = Store(), Clock()
    first, second = leader(store, clock, "a"), leader(store, clock, "b")
    await first.acquire()
    async with running(second.acquire()):
        await clock.advance(9.9)
        early = second.leads
        await clock.advance(0.2)  # not only at its next regular look

        assert (early, second.leads) == (False, True)
    assert (store.spec["holderIdentity"], store.spec["leaseTransitions"]) == ("b", 1)


@pytest.mark.asyncio
@pytest.mark.parametrize("frozen_at", range(12))
async def test_two_never_lead_at_once_whenever_the_first_is_frozen(frozen_at: int) -> None:
    store, clock = Store(), Clock()
    first, second = leader(store, clock, "a"), leader(store, clock, "b")
    await first.acquire()
    async with running(second.acquire()):
        async with running(first.keep()):
            await clock.advance(frozen_at)
        for _ in range(150):  # ten seconds, and a try that came late at each end
            await clock.advance(0.1)
            assert not (first.leads and second.leads)

    assert second.leads
    with pytest.raises(LeadershipLost):
        first.check()


@pytest.mark.asyncio
async def test_a_thawed_leader_does_not_renew_what_it_lost() -> None:
    store, clock = Store(), Clock()
    first = leader(store, clock, "a")
    await first.acquire()
    puts = store.puts
    clock.now += 30
    async with running(first.keep()) as keeping:
        await clock.advance(2)

        with pytest.raises(LeadershipLost):
            await keeping
    assert store.puts == puts


@pytest.mark.asyncio
async def test_short_silence_of_the_api_server_is_lived_through_and_a_long_one_is_not() -> None:
    store, clock = Store(), Clock()
    first = leader(store, clock, "a")
    await first.acquire()
    async with running(first.keep()) as keeping:
        store.down = True
        await clock.advance(5)
        store.down = False
        await clock.advance(60)
        assert first.leads
        store.down = True
        await clock.advance(10)

        with pytest.raises(LeadershipLost):
            await keeping


@pytest.mark.asyncio
async def test_a_released_lease_is_taken_at_once() -> None:
    store, clock = Store(), Clock()
    first, second = leader(store, clock, "a"), leader(store, clock, "b")
    await first.acquire()
    await first.release()
    async with running(second.acquire()):
        await clock.advance(0)

        assert second.leads
    with pytest.raises(LeadershipLost):
        first.check()


@pytest.mark.asyncio
async def test_who_does_not_lead_releases_nothing() -> None:
    store, clock = Store(), Clock()
    first, second = leader(store, clock, "a"), leader(store, clock, "b")
    await first.acquire()
    await second.release()

    assert store.spec["holderIdentity"] == "a"


@pytest.mark.asyncio
async def test_a_restarted_process_of_the_same_name_goes_on() -> None:
    store, clock = Store(), Clock()
    await leader(store, clock, "a").acquire()
    again = leader(store, clock, "a")
    async with running(again.acquire()):
        await clock.advance(0)

        assert again.leads
