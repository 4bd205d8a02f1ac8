"""A run on its way: what becomes of it when a second attempt beside it cannot begin, or it is cancelled."""

import asyncio
import dataclasses
from collections.abc import Coroutine, Sequence
from typing import Any

from aimodels_core.errors import SourceDenied
from aimodels_core.source import ReadTicket
from aimodels_jobs import plan
from aimodels_jobs.dispatch import Dispatcher, Queue
from aimodels_jobs.flight import Flight, Pace, Patience
from aimodels_jobs.governor import Connections
from aimodels_jobs.orders import ChecksumKind, DiscardTicket, WriteTicket
from aimodels_jobs.plan import Part
from aimodels_jobs.progress import Meter
from tests.support.places import Places

RUN = plan.runs(20, part_size=10)[0]
HASTY = Patience(second_try_after_seconds=0.01)


@dataclasses.dataclass
class Errand:
    """A blob that gives so many tickets and no more."""

    tickets: int
    path: str = "model.safetensors"
    checksum: ChecksumKind = ChecksumKind.XXH3
    patience: Patience = HASTY
    meter: Meter = dataclasses.field(default_factory=Meter)
    overlaps: int = 0
    asked: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    async def read_ticket(self, refused: ReadTicket | None) -> ReadTicket:
        """Give one of the tickets."""
        del refused
        if not self.tickets:
            self.asked.set()
            raise SourceDenied("org/model: access was taken away")
        self.tickets -= 1
        return ReadTicket("http://h/", size_bytes=20, host="h")

    async def write_tickets(self, parts: Sequence[Part]) -> tuple[WriteTicket, ...]:
        """Store nothing."""
        return tuple(DiscardTicket() for _ in parts)

    def overlapped(self) -> None:
        """Count."""
        self.overlaps += 1


async def _flight(places: Places, errand: Errand) -> tuple[Dispatcher, Flight]:
    made = Dispatcher(places, Connections(9))
    await made.start()
    pace = Pace(HASTY)
    pace.learn(1000, 0.001)
    lease = await made.lease(Queue("o"), host="h", size_bytes=20, wanted=2, allowed=(0,))
    return made, Flight(RUN, errand, made, lease, pace)


def _run(call: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(10):
            await call

    asyncio.run(bounded())


def test_a_slow_run_goes_on_when_no_second_attempt_may_begin() -> None:
    async def fly() -> None:
        places, errand = Places(1), Errand(tickets=1)
        made, flight = await _flight(places, errand)
        fetching = asyncio.ensure_future(flight.fetch())
        await errand.asked.wait()
        places.made[0].fetched.set()
        await fetching

        assert [record.number for record in flight.records] == [1, 2]
        assert len(places.made[0].orders) == 1
        flight.release()
        assert made.slots[0].leased_bytes == 0
        await made.close()

    _run(fly())


def test_a_slow_run_that_is_cancelled_drops_both_attempts_and_gives_all_leases_back() -> None:
    async def fly() -> None:
        places, errand = Places(2), Errand(tickets=2)
        made, flight = await _flight(places, errand)
        fetching = asyncio.ensure_future(flight.fetch())
        await places.made[1].ordered.wait()
        fetching.cancel()
        await asyncio.wait({fetching})
        flight.release()

        for place in places.made:
            assert set(place.dropped) == {order.id for order in place.orders}
        assert [slot.leased_bytes for slot in made.slots] == [0, 0]
        assert errand.overlaps == 1
        await made.close()

    _run(fly())
