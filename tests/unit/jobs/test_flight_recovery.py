"""What a flight does about each error, how often, and what it never does: the recovery table."""

import asyncio
import dataclasses
import itertools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from aimodels_core import errors
from aimodels_core.errors import AiModelsError, ErrorInfo, MoverLost
from aimodels_core.source import ReadTicket
from aimodels_jobs import plan
from aimodels_jobs.dispatch import Dispatcher, Queue
from aimodels_jobs.executor import MoverHandle
from aimodels_jobs.flight import Flight, Pace, Patience
from aimodels_jobs.governor import Connections
from aimodels_jobs.orders import (
    ChecksumKind,
    DiscardTicket,
    HashReport,
    MoverFacts,
    MoverStatus,
    PartRecord,
    RunOrder,
    RunReport,
    WriteTicket,
)
from aimodels_jobs.plan import Part
from aimodels_jobs.progress import Meter

RUN = plan.runs(30, part_size=10)[0]
PATIENCE = Patience(tries=3, back_off_seconds=0.001, second_try_after_seconds=600.0)
Answer = Callable[[RunOrder], RunReport]


@dataclasses.dataclass
class Errand:
    path: str = "model.safetensors"
    checksum: ChecksumKind = ChecksumKind.XXH3
    patience: Patience = PATIENCE
    meter: Meter = dataclasses.field(default_factory=Meter)
    overlaps: int = 0
    tickets: int = 0
    refused: list[ReadTicket] = dataclasses.field(default_factory=list)

    async def read_ticket(self, refused: ReadTicket | None) -> ReadTicket:
        self.tickets += 1
        if refused is not None:
            self.refused.append(refused)
        return ReadTicket(f"http://h/{self.tickets}", size_bytes=30, host="h")

    async def write_tickets(self, parts: Sequence[Part]) -> tuple[WriteTicket, ...]:
        return tuple(DiscardTicket() for _ in parts)

    def overlapped(self) -> None:
        self.overlaps += 1


class Script:
    """A mover, and an executor of it, that answer as a list says, then well."""

    engine = "script"

    def __init__(self, *answers: Answer | AiModelsError, hashes: Sequence[AiModelsError] = ()) -> None:
        self.name = "script"
        self.answers = list(answers)
        self.hashes = list(hashes)
        self.orders: list[RunOrder] = []
        self.dropped: list[str] = []
        self.replaced = 0

    async def fetch(self, order: RunOrder) -> RunReport:
        self.orders.append(order)
        answer = self.answers.pop(0) if self.answers else well
        if isinstance(answer, AiModelsError):
            raise answer
        return answer(order)

    async def hash(self, run_id: str, state: bytes | None, last: bool) -> HashReport:
        del last
        if self.hashes:
            raise self.hashes.pop(0)
        return HashReport(run_id, state or b"", "00", RUN.size_bytes)

    async def drop(self, run_id: str) -> None:
        self.dropped.append(run_id)

    async def poll(self) -> MoverStatus:
        return MoverStatus({}, 0, 100)

    async def facts(self) -> MoverFacts:
        return MoverFacts("libcrypto", True, 100, "here", 1)

    async def movers(self) -> Sequence[MoverHandle]:
        return (self,)

    async def replace(self, handle: MoverHandle) -> MoverHandle:
        del handle
        self.replaced += 1
        successor = Script(*self.answers, hashes=self.hashes)
        successor.orders, self.successor = self.orders, successor
        return successor

    async def close(self) -> None:
        """Nothing is left."""


def well(order: RunOrder) -> RunReport:
    records = tuple(PartRecord(p.number, p.start, p.stop - p.start, "", "0" * 16) for p in order.parts)
    return RunReport(order.id, records, (), None, order.size_bytes, 1.0)


def failing(error: AiModelsError, *, done: int = 0) -> Answer:
    """The first `done` parts are stored, then the error."""

    def answer(order: RunOrder) -> RunReport:
        whole = well(order)
        undone = tuple(p.number for p in order.parts[done:])
        return RunReport(order.id, whole.records[:done], undone, ErrorInfo.of(error), 10 * done + 5, 1.0)

    return answer


def play(
    script: Script,
    check: Callable[[Flight, Errand, Dispatcher], Coroutine[Any, Any, None]],
    *,
    clock: Callable[[], float] | None = None,
) -> None:
    """Run a check on a flight; time flies for the governor unless its clock is given."""

    async def bounded() -> None:
        async with asyncio.timeout(20):
            errand, connections = Errand(), Connections(9, clock=clock or itertools.count(0, 100).__next__)
            made = Dispatcher(script, connections)
            await made.start()
            lease = await made.lease(Queue("o"), host="h", size_bytes=30, wanted=3, allowed=(0,))
            flight = Flight(RUN, errand, made, lease, Pace(PATIENCE))
            await check(flight, errand, made)
            flight.release()
            assert made.slots[0].leased_bytes == 0
            await made.close()

    asyncio.run(bounded())


def test_only_undone_parts_are_asked_for_again() -> None:
    script = Script(
        failing(errors.StoreUnavailable("store: 500"), done=1), failing(errors.StoreUnavailable("s"), done=1)
    )

    async def check(flight: Flight, errand: Errand, _: Dispatcher) -> None:
        await flight.fetch()

        assert [[p.number for p in order.parts] for order in script.orders] == [[1, 2, 3], [2, 3], [3]]
        assert [record.number for record in flight.records] == [1, 2, 3]
        assert errand.meter.bytes_transferred == 15 + 15 + 10

    play(script, check)


def test_an_expired_ticket_is_renewed_and_named_as_refused() -> None:
    script = Script(failing(errors.TicketExpired("h: 403"), done=2))

    async def check(flight: Flight, errand: Errand, _: Dispatcher) -> None:
        await flight.fetch()

        assert errand.refused == [script.orders[0].read]
        assert script.orders[1].read != script.orders[0].read

    play(script, check)


@pytest.mark.parametrize(
    "error",
    [
        errors.SourceUnavailable("h: stalled"),
        errors.StoreUnavailable("store: 500"),
        errors.TicketExpired("h: 403"),
        errors.MoverLost("mover: gone"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_goes_on_without_any_progress_is_given_up_after_the_tries(error: AiModelsError) -> None:
    script = Script(*([failing(error)] * 9))

    async def check(flight: Flight, _: Errand, made: Dispatcher) -> None:
        with pytest.raises(type(error)) as caught:
            await flight.fetch()

        assert len(script.orders) == PATIENCE.tries
        assert "model.safetensors" in caught.value.message

    play(script, check)


@pytest.mark.parametrize(
    "error",
    [
        errors.SourceDenied("org/model: gated"),
        errors.StoreFull("store: no space left"),
        errors.StoreUnsafe("store: read-only"),
        errors.UnsupportedSource("host"),
        errors.UsageError("order: wrong"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_another_try_cannot_mend_is_raised_at_once(error: AiModelsError) -> None:
    script = Script(failing(error, done=1))

    async def check(flight: Flight, _: Errand, __: Dispatcher) -> None:
        with pytest.raises(type(error)):
            await flight.fetch()

        assert len(script.orders) == 1

    play(script, check)


def test_a_lost_mover_means_another_one_and_all_parts_again() -> None:
    script = Script(failing(errors.StoreUnavailable("s"), done=2), MoverLost("mover: died"))

    async def check(flight: Flight, errand: Errand, made: Dispatcher) -> None:
        await flight.fetch()

        assert script.replaced == 1
        assert [[p.number for p in order.parts] for order in script.orders] == [[1, 2, 3], [3], [1, 2, 3]]
        assert script.orders[2].id != script.orders[1].id, "the successor knows nothing of an older attempt"
        assert errand.overlaps == 1, "the lost one may still write: parts are read back before the commit"
        assert made.slots[0].handle is script.successor

    play(script, check)


def test_a_mover_lost_while_hashing_fetches_the_run_again_with_its_successor() -> None:
    script = Script(hashes=[MoverLost("mover: died")])

    async def check(flight: Flight, errand: Errand, _: Dispatcher) -> None:
        await flight.fetch()
        report = await flight.hash(b"state", last=True)

        assert (report.digest_hex, report.state) == ("00", b"state")
        assert (script.replaced, len(script.orders), errand.overlaps) == (1, 2, 1)

    play(script, check)


@pytest.mark.parametrize("code", ["UnknownRun", "BytesGone", "HashTimedOut"])
def test_a_mover_that_gave_the_bytes_up_lives_and_fetches_them_again(code: str) -> None:
    script = Script(hashes=[MoverLost("run: gone", code=code)])

    async def check(flight: Flight, errand: Errand, _: Dispatcher) -> None:
        await flight.fetch()
        first = flight.id
        await flight.hash(None, last=True)

        assert (script.replaced, len(script.orders), errand.overlaps) == (0, 2, 0)
        assert first in script.dropped

    play(script, check)


def test_movers_lost_again_and_again_end_the_run() -> None:
    script = Script(hashes=[MoverLost("run: gone", code="BytesGone")] * 9)

    async def check(flight: Flight, _: Errand, __: Dispatcher) -> None:
        await flight.fetch()
        with pytest.raises(MoverLost, match="again and again"):
            await flight.hash(None, last=True)

        assert len(script.orders) == 1 + PATIENCE.tries

    play(script, check)


def test_trouble_with_the_source_gives_the_connections_back_while_it_waits() -> None:
    script = Script(failing(errors.RateLimited("h: 429", retry_after_seconds=0.01)))
    now = 0.0

    async def check(flight: Flight, _: Errand, made: Dispatcher) -> None:
        nonlocal now
        fetching = asyncio.ensure_future(flight.fetch())
        done, _unused = await asyncio.wait({fetching}, timeout=0.2)
        held, limit = flight.lease.connections, made.connections.limit("h")
        now = 60.0
        await fetching

        assert not done, "the host is left alone"
        assert (held, limit) == (0, 4), "half of nine, for the host's sake"
        assert [[p.number for p in order.parts] for order in script.orders] == [[1, 2, 3], [1, 2, 3]]

    play(script, check, clock=lambda: now)
