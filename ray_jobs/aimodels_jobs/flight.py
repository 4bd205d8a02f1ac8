"""One run on its way: tickets, attempts, recovery, and a second try beside a slow one.

A flight ends with all parts of its run stored and their bytes still in a mover's memory, ready to be hashed there. How
runs of a file follow each other is the business of `blob`; the bytes themselves are the business of `mover`.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import random
from collections.abc import Awaitable, Sequence
from typing import Protocol, TypeVar

from aimodels_core.errors import (
    AiModelsError,
    ErrorInfo,
    MoverLost,
    RateLimited,
    SourceUnavailable,
    StoreUnavailable,
    TicketExpired,
)
from aimodels_core.source import ReadTicket
from aimodels_jobs.dispatch import Dispatcher, Lease
from aimodels_jobs.executor import MoverHandle
from aimodels_jobs.orders import ChecksumKind, HashReport, PartOrder, PartRecord, RunOrder, RunReport, WriteTicket
from aimodels_jobs.plan import Part, Run
from aimodels_jobs.progress import Meter

T = TypeVar("T")

_ids = itertools.count(1)
_sequences = itertools.count(1)
_DROP_SECONDS = 5.0
_MOST_PAUSE_SECONDS = 300.0
_BYTES_LOST = frozenset({"UnknownRun", "BytesGone", "HashTimedOut"})
"""The mover answers, but has not the run's bytes any more (see `mover.Mover.hash`)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Patience:
    """How long a run may take and how often it is tried again.

    Args:
        tries: attempts without any progress before a run gives up.
        back_off_seconds: before the second try, doubled each time, with jitter.
        part_seconds: base of a part's deadline.
        slowest_bytes_per_second: what a connection must reach; adds to the deadline of a part by its size.
        second_try_after_seconds: a run must be this old before another attempt is started beside it.
        second_try_factor: and this many times slower than runs before it.
    """

    tries: int = 5
    back_off_seconds: float = 0.5
    part_seconds: float = 60.0
    slowest_bytes_per_second: int = 256 * 1024
    second_try_after_seconds: float = 5.0
    second_try_factor: float = 3.0

    def part_deadline(self, size_bytes: int) -> float:
        """Seconds that a part of that size may take."""
        return self.part_seconds + size_bytes / self.slowest_bytes_per_second

    def pause(self, attempt: int) -> float:
        """Seconds to wait before try number `attempt` (from 2), jittered."""
        backed_off = min(self.back_off_seconds * 2.0 ** min(attempt - 2, 20), 20.0)
        return backed_off * random.uniform(0.5, 1.0)  # noqa: S311 - jitter


class Errand(Protocol):
    """What a flight asks of the blob it belongs to. Calls do not block the loop."""

    path: str
    checksum: ChecksumKind
    patience: Patience
    meter: Meter

    async def read_ticket(self, refused: ReadTicket | None) -> ReadTicket:
        """Return leave to read, other than the refused one."""
        ...

    async def write_tickets(self, parts: Sequence[Part]) -> tuple[WriteTicket, ...]:
        """Return leave to write these parts."""
        ...

    def overlapped(self) -> None:
        """Two attempts of one part may have written at the same time."""
        ...


class Pace:
    """Seconds per byte of the runs of one blob, as an average that follows; decides when a run is slow."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._seconds_per_byte: float | None = None

    def learn(self, size_bytes: int, seconds: float) -> None:
        """Take in a run that ended well."""
        now = seconds / max(size_bytes, 1)
        before = self._seconds_per_byte
        self._seconds_per_byte = now if before is None else 0.7 * before + 0.3 * now

    def suspicious_after(self, size_bytes: int) -> float | None:
        """Say after how many seconds a run of that size is slow; None while nothing is known."""
        if self._seconds_per_byte is None:
            return None
        expected = self._seconds_per_byte * size_bytes
        return max(self._patience.second_try_after_seconds, expected * self._patience.second_try_factor)


class Flight:
    """A run, its lease, and the mover that holds its bytes.

    Args:
        run: what to fetch.
        errand: the blob.
        dispatcher: where leases come from.
        lease: memory and connections; the flight gives it back.
        pace: shared by the runs of the blob.
    """

    def __init__(self, run: Run, errand: Errand, dispatcher: Dispatcher, lease: Lease, pace: Pace) -> None:
        self.run = run
        self._errand = errand
        self._dispatcher = dispatcher
        self._pace = pace
        self.lease = lease
        self._sequence = next(_sequences)
        self.id = self._new_id()
        self._handle = lease.slot.handle
        self._read: ReadTicket | None = None
        self._records: dict[int, PartRecord] = {}

    def _new_id(self) -> str:
        return f"{next(_ids)}-{self.run.index}"

    @property
    def records(self) -> tuple[PartRecord, ...]:
        """The stored parts, in order."""
        return tuple(self._records[part.number] for part in self.run.parts)

    async def fetch(self) -> None:
        """Bring every part of the run into a mover's memory and into the store.

        Raises:
            AiModelsError: what still stands after the tries; SourceDenied, StoreFull and the like at once.
        """
        tries, refused = 0, None
        while todo := [part for part in self.run.parts if part.number not in self._records]:
            await self._dispatcher.regain_connections(self.lease, len(todo))
            order = await self._order(self.id, todo, refused)
            report = await self._attempt(order)
            self._errand.meter.add_transferred(report.fetched_bytes)
            self._records.update((record.number, record) for record in report.records)
            if report.error is None:
                self._pace.learn(order.size_bytes, report.seconds)
                self._dispatcher.connections.went_well(self.lease.host, order.size_bytes)
                continue
            tries = 1 if report.records else tries + 1
            error = _about(self._errand.path, report.error).to_error()
            refused = order.read if isinstance(error, TicketExpired) else None
            await self._recover(error, tries)
        self._dispatcher.release_connections(self.lease)

    async def _order(self, run_id: str, todo: Sequence[Part], refused: ReadTicket | None) -> RunOrder:
        read = await self._errand.read_ticket(refused)
        writes = await self._errand.write_tickets(todo)
        patience = self._errand.patience
        return RunOrder(
            id=run_id,
            path=self._errand.path,
            parts=tuple(PartOrder(p.number, p.start, p.stop, w) for p, w in zip(todo, writes, strict=True)),
            read=read,
            checksum=self._errand.checksum,
            connections=self.lease.connections,
            part_deadline_seconds=patience.part_deadline(max(p.stop - p.start for p in todo)),
            sequence=self._sequence,
        )

    async def _recover(self, error: AiModelsError, tries: int) -> None:
        """Wait as the error asks, or raise it when another try cannot help or has been made often enough."""
        if not isinstance(error, TicketExpired | RateLimited | SourceUnavailable | StoreUnavailable | MoverLost):
            raise error
        if tries >= self._errand.patience.tries and not isinstance(error, RateLimited):
            raise error
        pause = min(error.retry_after_seconds or self._errand.patience.pause(tries + 1), _MOST_PAUSE_SECONDS)
        if isinstance(error, RateLimited | SourceUnavailable):
            self._dispatcher.connections.had_trouble(self.lease.host, pause_seconds=pause)
            self._dispatcher.release_connections(self.lease)
        if isinstance(error, MoverLost):
            await self._after_loss()
        if not isinstance(error, TicketExpired) or tries > 1:
            await asyncio.sleep(pause)

    async def _after_loss(self) -> None:
        """The mover's memory is gone: all parts move again, with its replacement."""
        self._errand.overlapped()
        await self._dispatcher.replace(self.lease.slot, self._handle)
        self._handle = self.lease.slot.handle
        self._records.clear()
        self.id = self._new_id()

    async def _begin_anew(self) -> None:
        """The mover lives but gave the run's bytes up: all parts move again."""
        await self.drop()
        self._records.clear()
        self.id = self._new_id()

    async def _attempt(self, order: RunOrder) -> RunReport:
        """Let the mover fetch; when it is slow, let another connection try the whole run beside it."""
        first = asyncio.ensure_future(self._ask(self._handle, self.lease, order))
        try:
            done, _ = await asyncio.wait({first}, timeout=self._pace.suspicious_after(order.size_bytes))
            if done:
                return first.result()
            lease = self._dispatcher.spare(
                self.lease.queue,
                host=self.lease.host,
                size_bytes=self.run.size_bytes,
                wanted=self.lease.connections,
                other_than=self.lease.slot,
            )
            return await (self._race(first, order, lease) if lease else first)
        except asyncio.CancelledError:
            first.cancel()
            await self.drop()
            raise

    async def _race(self, first: asyncio.Future[RunReport], order: RunOrder, lease: Lease) -> RunReport:
        """Run a second attempt of the whole run beside the first; the first one that is whole wins."""
        self._errand.overlapped()
        rival_id, handle = self._new_id(), lease.slot.handle
        second: asyncio.Future[RunReport] | None = None
        try:
            try:
                rival = await self._order(rival_id, self.run.parts, None)
            except AiModelsError:  # no leave for a second attempt is no fault of the first
                return await first
            rival = dataclasses.replace(rival, connections=lease.connections)
            second = asyncio.ensure_future(self._ask(handle, lease, rival))
            await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
            if not _whole(first) and not _whole(second):
                await asyncio.wait({first, second})
            if _whole(first) or not _whole(second):
                await self._drop(handle, rival_id)
                await asyncio.wait({second})
                self._errand.meter.add_transferred(_fetched(second))
                return first.result()
            await self._drop(self._handle, order.id)
            await asyncio.wait({first})
            self._errand.meter.add_transferred(_fetched(first))
            self._records.clear()
            self.id, self._handle = rival_id, handle
            self.lease, lease = lease, self.lease
            return second.result()
        finally:
            if second is not None and not second.done():
                second.cancel()
                await self._drop(handle, rival_id)
            self._dispatcher.release(lease)

    async def _ask(self, handle: MoverHandle, lease: Lease, order: RunOrder) -> RunReport:
        """Ask a mover, and turn its silence or its death into a report."""
        rounds = -(-len(order.parts) // max(order.connections, 1))
        deadline = order.part_deadline_seconds * (rounds + 1)
        try:
            return await _answer(handle.fetch(order), lease.slot.lost, deadline)
        except MoverLost as error:
            undone = tuple(part.number for part in order.parts)
            return RunReport(order.id, (), undone, ErrorInfo.of(error), 0, 0.0)

    async def hash(self, state: bytes | None, *, last: bool) -> HashReport:
        """Hash the run where its bytes are; when the mover is lost on the way, fetch the run again.

        Raises:
            AiModelsError: the run cannot be fetched again.
        """
        self._dispatcher.release_memory(self.lease)
        for _ in range(self._errand.patience.tries):
            deadline = 60.0 + self.run.size_bytes / (16 * 1024 * 1024)
            try:
                return await _answer(self._handle.hash(self.id, state, last), self.lease.slot.lost, deadline)
            except MoverLost as error:
                await (self._begin_anew() if error.code in _BYTES_LOST else self._after_loss())
                await self.fetch()
        raise MoverLost(f"{self._errand.path}: movers are lost again and again while hashing")

    async def drop(self) -> None:
        """Stop whatever the mover does for this run and free its memory."""
        await self._drop(self._handle, self.id)

    async def _drop(self, handle: MoverHandle, run_id: str) -> None:
        with contextlib.suppress(AiModelsError, TimeoutError):
            async with asyncio.timeout(_DROP_SECONDS):
                await handle.drop(run_id)

    @property
    def received_bytes(self) -> int:
        """Payload bytes of this run that its mover reported last."""
        return min(self.lease.slot.received.get(self.id, 0), self.run.size_bytes)

    def release(self) -> None:
        """Give the lease back."""
        self._dispatcher.release(self.lease)


def _about(path: str, error: ErrorInfo) -> ErrorInfo:
    """Name the file: a mover knows hosts and parts, people know files."""
    if error.message.startswith(f"{path}:"):
        return error
    return dataclasses.replace(error, message=f"{path}: {error.message}")


def _whole(attempt: "asyncio.Future[RunReport]") -> bool:
    return attempt.done() and not attempt.cancelled() and attempt.exception() is None and attempt.result().error is None


def _fetched(attempt: "asyncio.Future[RunReport]") -> int:
    return 0 if attempt.cancelled() or attempt.exception() is not None else attempt.result().fetched_bytes


async def _answer(call: Awaitable[T], lost: asyncio.Event, deadline_seconds: float) -> T:
    """Wait for a mover's answer.

    Raises:
        MoverLost: the mover was lost meanwhile, or is silent for longer than the deadline.
    """
    answer = asyncio.ensure_future(call)
    gone = asyncio.ensure_future(lost.wait())
    try:
        await asyncio.wait({answer, gone}, timeout=deadline_seconds, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        raise MoverLost("mover: lost while a run was under way" if gone.done() else "mover: silent beyond its deadline")
    finally:
        answer.cancel()
        gone.cancel()
