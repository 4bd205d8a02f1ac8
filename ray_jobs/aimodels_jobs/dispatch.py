"""Who may fetch next, and where: leases of mover memory and of connections, fair between publications.

A lease reserves a run's bytes in one mover's buffer pool until the run is hashed, so a run that was started can always
finish: no run waits for memory while it holds memory. What a run does with its lease is the business of `flight`.
Everything here lives in the coordinator's event loop.
"""

import asyncio
import collections
import dataclasses
import itertools
import logging
import time
from collections.abc import Callable, Sequence

from aimodels_core.errors import AiModelsError, MoverLost
from aimodels_jobs.executor import Executor, MoverHandle
from aimodels_jobs.governor import Connections
from aimodels_jobs.orders import MoverFacts

log = logging.getLogger(__name__)

_RUNS_AHEAD = 2
_OVERTAKE_SECONDS = 5.0
_POLL_SECONDS = 0.5
_POLL_DEADLINE_SECONDS = 15.0


class Slot:
    """The place of one mover; when the mover is lost, another one takes the place and the leases stay.

    Args:
        index: position in the executor.
        handle: the mover.
        facts: what it can do.
    """

    def __init__(self, index: int, handle: MoverHandle, facts: MoverFacts) -> None:
        self.index = index
        self.handle = handle
        self.facts = facts
        self.leased_bytes = 0
        self.lost = asyncio.Event()
        self.replacing: asyncio.Task[None] | None = None
        self.received: dict[str, int] = {}

    def may_take(self, size_bytes: int) -> bool:
        """Whether a run of that size may start: it fits the pool, or it has the pool to itself."""
        fits = not self.leased_bytes or self.leased_bytes + size_bytes <= self.facts.pool_bytes
        return fits and not self.lost.is_set()


@dataclasses.dataclass(slots=True, eq=False)
class Queue:
    """The runs of one file. Files end one after another, so that one is completed while the next is fetched.

    Args:
        owner: whose share of the movers is used.
        place: of the file among those of its owner.
        ahead: runs that hold memory and are not hashed yet.
    """

    owner: str
    place: int = 0
    ahead: int = 0

    @property
    def turn(self) -> tuple[int, int]:
        """What orders the files of an owner: first come the first ones of which too little is under way."""
        return self.ahead // _RUNS_AHEAD, self.place


@dataclasses.dataclass(slots=True, eq=False)
class Lease:
    """Leave to hold `size_bytes` of a slot's memory and `connections` to `host`."""

    slot: Slot
    queue: Queue
    host: str
    size_bytes: int
    connections: int


@dataclasses.dataclass(slots=True, eq=False)
class _Waiter:
    queue: Queue
    host: str
    size_bytes: int
    wanted: int
    allowed: Sequence[int]
    since: float
    sequence: int
    granted: asyncio.Future[Lease]


class Dispatcher:
    """Grants leases over the movers of one executor.

    Args:
        executor: where the movers are.
        connections: the governor of payload hosts.
        clock: monotonic seconds.
    """

    def __init__(
        self, executor: Executor, connections: Connections, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._executor = executor
        self.connections = connections
        self._clock = clock
        self._waiters: list[_Waiter] = []
        self._sequence = itertools.count()
        self._held: collections.Counter[str] = collections.Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.slots: list[Slot] = []

    async def start(self) -> None:
        """Learn the movers and begin to poll them.

        Raises:
            MoverLost: a mover does not answer.
        """
        for index, handle in enumerate(await self._executor.movers()):
            self.slots.append(Slot(index, handle, await handle.facts()))
        for slot in self.slots:
            self._spawn(self._poll(slot))

    async def close(self) -> None:
        """Stop polling; waiting leases are cancelled."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._timer:
            self._timer.cancel()
        for waiter in self._waiters:
            waiter.granted.cancel()

    def _spawn(self, coroutine: "collections.abc.Coroutine[None, None, None]") -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @property
    def portable(self) -> bool:
        """Whether a hash state may move between movers."""
        return all(slot.facts.portable_state for slot in self.slots)

    async def lease(self, queue: Queue, *, host: str, size_bytes: int, wanted: int, allowed: Sequence[int]) -> Lease:
        """Wait for memory in one of the `allowed` slots and for at least one connection to `host`."""
        future: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(queue, host, size_bytes, wanted, allowed, self._clock(), next(self._sequence), future)
        self._waiters.append(waiter)
        self._grant_all()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.release(future.result())
            raise
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def spare(self, queue: Queue, *, host: str, size_bytes: int, wanted: int, other_than: Slot) -> Lease | None:
        """Take a lease that is free at once, in another slot if there is one, past nobody who waits."""
        if self._waiters:
            return None
        slots = sorted(self.slots, key=lambda s: (s is other_than, s.leased_bytes))
        return self._take(queue, host, size_bytes, wanted, slots)

    def release(self, lease: Lease) -> None:
        """Give a lease back, all that is still held of it."""
        self.release_connections(lease)
        self.release_memory(lease)

    def release_memory(self, lease: Lease) -> None:
        """Give the memory back: the run is hashed, or is the next one to be, which only frees memory.

        The next run fetches into what the hash frees; the mover bounds its memory itself, and serves the first run
        first.
        """
        lease.queue.ahead -= bool(lease.size_bytes)
        lease.slot.leased_bytes -= lease.size_bytes
        owner = lease.queue.owner
        self._held[owner] -= lease.size_bytes
        if not self._held[owner]:
            del self._held[owner]
        lease.size_bytes = 0
        self._grant_all()

    def release_connections(self, lease: Lease) -> None:
        """Give the connections back while the memory stays: the run is fetched but not hashed."""
        if lease.connections:
            self.connections.give_back(lease.host, lease.connections)
            lease.connections = 0
            self._grant_all()

    async def regain_connections(self, lease: Lease, wanted: int) -> None:
        """Wait for connections again for a lease that keeps its memory; polled, for it is rare."""
        while not lease.connections:
            lease.connections = self.connections.grant(lease.host, wanted, lease.size_bytes)
            if not lease.connections:
                await asyncio.sleep(0.05)

    def _take(self, queue: Queue, host: str, size_bytes: int, wanted: int, slots: Sequence[Slot]) -> Lease | None:
        slot = next((s for s in slots if s.may_take(size_bytes)), None)
        if slot is None:
            return None
        connections = self.connections.grant(host, wanted, size_bytes)
        if not connections:
            return None
        slot.leased_bytes += size_bytes
        self._held[queue.owner] += size_bytes
        queue.ahead += 1
        return Lease(slot, queue, host, size_bytes, connections)

    def _grant_all(self) -> None:
        """Grant what can be had. Who has waited for long is not overtaken in what it lacks: a host, or memory."""
        now = self._clock()
        hosts: set[str] = set()
        full: set[int] = set()
        for waiter in sorted(self._waiters, key=lambda w: (self._held[w.queue.owner], *w.queue.turn, w.sequence)):
            if waiter.granted.done() or waiter.host in hosts:
                continue
            slots = sorted((s for s in self._usable(waiter) if s.index not in full), key=lambda s: s.leased_bytes)
            lease = self._take(waiter.queue, waiter.host, waiter.size_bytes, waiter.wanted, slots)
            if lease is not None:
                waiter.granted.set_result(lease)
            elif now - waiter.since > _OVERTAKE_SECONDS:
                if any(slot.may_take(waiter.size_bytes) for slot in slots):
                    hosts.add(waiter.host)
                else:
                    full.update(slot.index for slot in slots)
        self._waiters = [w for w in self._waiters if not w.granted.done()]
        self._set_timer()

    def _usable(self, waiter: _Waiter) -> Sequence[Slot]:
        """The slots that may take a run: those of the plan, or any while all of them are lost and states may travel."""
        planned = [self.slots[index] for index in waiter.allowed]
        lost = all(slot.lost.is_set() for slot in planned)
        return self.slots if lost and self.portable else planned

    def _set_timer(self) -> None:
        """Come back when a host's pause is over, if somebody waits for it."""
        pauses = [p for w in self._waiters if (p := self.connections.wake_after(w.host)) is not None]
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if pauses:
            self._timer = asyncio.get_running_loop().call_later(max(min(pauses), 0.02), self._grant_all)

    async def replace(self, slot: Slot, handle: MoverHandle) -> None:
        """Put a new mover in the place of `handle`, once, however many runs noticed.

        Raises:
            MoverLost: none can be had.
        """
        if slot.handle is not handle:
            return
        if slot.replacing is None:
            slot.lost.set()
            slot.replacing = self._spawn(self._replace(slot))
            self._grant_all()
        await asyncio.shield(slot.replacing)

    async def _replace(self, slot: Slot) -> None:
        log.warning("mover lost", extra={"mover": slot.handle.name})
        try:
            handle = await self._executor.replace(slot.handle)
            slot.facts = await handle.facts()
            slot.handle, slot.lost, slot.received = handle, asyncio.Event(), {}
        finally:
            slot.replacing = None
        self._grant_all()

    async def _poll(self, slot: Slot) -> None:
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            handle = slot.handle
            try:
                async with asyncio.timeout(_POLL_DEADLINE_SECONDS):
                    status = await handle.poll()
            except (TimeoutError, MoverLost):
                await asyncio.gather(self.replace(slot, handle), return_exceptions=True)
            except AiModelsError as error:
                log.info("mover poll failed", extra={"mover": handle.name, "error": error.code})
            else:
                slot.received = dict(status.received_bytes)
