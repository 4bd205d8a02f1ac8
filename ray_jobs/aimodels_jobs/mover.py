"""A mover: fetches runs into memory and into the store, and hashes them in order. A plain class without Ray.

It calls nobody but the source and the store, with the tickets that come with each order, and holds no key. Bytes go
from the source's socket into a reused buffer, through the part's checksum, to the store, while they are in the
processor's cache; the hash follows as soon as its turn comes, in another thread. Every attempt has a deadline, however
the other side behaves, and `drop` ends a run from outside within a moment. Which run comes when, and what follows an
error, is decided by the coordinator.
"""

import collections
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from aimodels_core.errors import (
    AiModelsError,
    Cancelled,
    ErrorInfo,
    MoverLost,
    StoreUnavailable,
    TicketExpired,
    UsageError,
)
from aimodels_core.units import MIB
from aimodels_jobs import buffers, checksums, held, midstate, reading, sinks
from aimodels_jobs.buffers import Key, Pool
from aimodels_jobs.held import Fetch, HeldRun
from aimodels_jobs.orders import (
    HashReport,
    MoverFacts,
    MoverStatus,
    PartOrder,
    PartRecord,
    RunOrder,
    RunReport,
    S3PartTicket,
)
from aimodels_jobs.partbuffer import PartBuffer
from aimodels_jobs.wires import LostConnection, Wires

_SLICE_BYTES: Final = MIB
_ATTEMPTS: Final = 2
_BUFFER_SECONDS: Final = 600.0
_UNKNOWN_RUN_SECONDS: Final = 30.0
_HASH_SECONDS: Final = 600.0
_STOP_SECONDS: Final = 0.8
_MOST_DROPPED: Final = 4096


class Mover:
    """Moves runs. Methods block and are safe from several threads; `poll`, `drop` and `facts` answer at once.

    Args:
        pool_bytes: buffer memory in all.
        block_bytes: unit of that memory.
        clock: Unix seconds, for the expiry of tickets.
    """

    def __init__(
        self,
        pool_bytes: int = buffers.POOL_BYTES,
        block_bytes: int = buffers.BLOCK_BYTES,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._pool = Pool(pool_bytes, block_bytes)
        self._clock = clock
        self._wires = Wires()
        self._changed = threading.Condition()
        self._runs: dict[str, HeldRun] = {}
        self._dropped: collections.OrderedDict[str, None] = collections.OrderedDict()

    def fetch(self, order: RunOrder) -> RunReport:
        """Move the parts of a run; return when each is stored or given up.

        A later order with the same id adds parts that were undone. The bytes stay in memory until they are hashed or
        the run is dropped. Failures are in the report, not raised.
        """
        run = self._admit(order)
        if run is None:
            cancelled = ErrorInfo.of(Cancelled(f"run {order.id}: dropped"))
            return RunReport(order.id, (), tuple(part.number for part in order.parts), cancelled, 0, 0.0)
        fetch = Fetch(order, run)
        try:
            threads = [
                threading.Thread(target=self._work, args=(fetch,), name=f"part-{order.id}", daemon=True)
                for _ in range(max(1, min(order.connections, len(order.parts))))
            ]
            for thread in threads:
                thread.start()
            _join(threads, run)
            return fetch.report()
        finally:
            run.leave()
            self._forget_if_over(run)

    def hash(self, run_id: str, state: bytes | None, last: bool) -> HashReport:  # noqa: FBT001 - crosses process borders
        """Hash the run's bytes in order from where `state` stands, as they arrive, and free their memory.

        Args:
            run_id: the order's id; the order may come a little later.
            state: of the bytes before the run; None at the start of the file.
            last: the run ends the file: answer the digest instead of a state.

        Raises:
            MoverLost: codes UnknownRun, BytesGone, HashTimedOut, UnknownState: fetch the run again.
            Cancelled: the run was dropped.
            UsageError: code BadState.
        """
        run = self._await(run_id)
        begun = held.resumed(state)
        sha = run.hash_on(begun, time.monotonic() + _HASH_SECONDS)
        self._forget_if_over(run)
        digest_hex = sha.hexdigest() if last else ""
        return HashReport(run_id, b"" if last else _state(sha), digest_hex, sha.count - begun.count)

    def drop(self, run_id: str) -> None:
        """Stop whatever is done for a run and free its memory; a run that is not known yet will not begin."""
        with self._changed:
            self._dropped[run_id] = None
            while len(self._dropped) > _MOST_DROPPED:
                self._dropped.popitem(last=False)
            run = self._runs.get(run_id)
        if run is not None:
            run.drop()
            self._pool.wake()
            self._forget_if_over(run)

    def poll(self) -> MoverStatus:
        """Say what is under way."""
        with self._changed:
            received = {run.id: run.received_bytes for run in self._runs.values()}
        return MoverStatus(received, self._pool.held_bytes, self._pool.capacity_bytes)

    def facts(self) -> MoverFacts:
        """Say what this mover can do, and where it is."""
        backend = midstate.backend()
        return MoverFacts(backend, backend == "libcrypto", self._pool.capacity_bytes, socket.gethostname(), os.getpid())

    def close(self) -> None:
        """Drop everything and close the idle connections."""
        with self._changed:
            runs = list(self._runs)
        for run_id in runs:
            self.drop(run_id)
        self._wires.close()

    def _admit(self, order: RunOrder) -> HeldRun | None:
        """Find or make the run of an order; None when it was dropped before it came."""
        if not order.parts or any(part.start >= part.stop for part in order.parts):
            raise UsageError(f"run {order.id}: want parts of at least one byte", code="BadOrder")
        with self._changed:
            if order.id in self._dropped:
                return None
            run = self._runs.setdefault(order.id, HeldRun(order.id, self._pool))
            self._changed.notify_all()
            return run

    def _await(self, run_id: str) -> HeldRun:
        deadline = time.monotonic() + _UNKNOWN_RUN_SECONDS
        with self._changed:
            while run_id not in self._runs:
                if run_id in self._dropped:
                    raise Cancelled(f"run {run_id}: dropped")
                if not self._changed.wait(deadline - time.monotonic()):
                    raise MoverLost(f"run {run_id}: not held here", code="UnknownRun")
            return self._runs[run_id]

    def _forget_if_over(self, run: HeldRun) -> None:
        with self._changed:
            if run.is_over:
                self._runs.pop(run.id, None)

    def _work(self, fetch: Fetch) -> None:
        """Move parts until there are none; each thread has one connection to the source at a time."""
        try:
            while self._work_once(fetch):
                pass
        finally:
            self._forget_if_over(fetch.run)  # this thread may be the last, long after the run was dropped

    def _work_once(self, fetch: Fetch) -> bool:
        with fetch.turn:  # the part and its memory are taken under one lock, so the first part has its memory first
            part = fetch.next_part()
            if part is None or not self._prepare(fetch, part):
                return False
        try:
            fetch.done(self._move(fetch, part))
        except AiModelsError as error:
            fetch.failed(part, error)
        except Exception as error:  # a fault of ours must not leave a run waiting
            fetch.failed(part, MoverLost(f"part {part.number}: {type(error).__name__}", code="Fault"))
            raise
        return True

    def _prepare(self, fetch: Fetch, part: PartOrder) -> bool:
        """Get memory for a part."""
        buffer = fetch.buffers[part.number]
        try:
            blocks = self._pool.acquire(
                buffer.wanted_blocks,
                buffer.key,
                deadline=time.monotonic() + _BUFFER_SECONDS,
                cancelled=lambda: fetch.run.is_dropped,
                yielding=self._yield_memory,
            )
        except AiModelsError as error:
            fetch.failed(part, error)
            return False
        buffer.begin(blocks)
        return True

    def _yield_memory(self, key: Key) -> None:
        """Make room for a part that comes before others which only wait for their turn."""
        with self._changed:
            runs = list(self._runs.values())
        for run in runs:
            if run.yield_memory(key):
                return

    def _move(self, fetch: Fetch, part: PartOrder) -> PartRecord:
        """Move one part, at once again when a connection was lost."""
        deadline = time.monotonic() + fetch.order.part_deadline_seconds
        left = _ATTEMPTS
        while True:
            self._check_tickets(fetch.order, part)
            try:
                return self._attempt(fetch, part, deadline)
            except LostConnection as lost:
                if fetch.run.is_dropped:
                    raise Cancelled(f"run {fetch.order.id}: dropped") from lost
                left -= 0 if lost.stale else 1
                if not left:
                    raise lost.error from lost
                fetch.buffers[part.number].restart()

    def _check_tickets(self, order: RunOrder, part: PartOrder) -> None:
        now = self._clock()
        if order.read.expires_at is not None and now >= order.read.expires_at:
            raise TicketExpired(f"{order.read.host}: the signed URL has expired", code="Expired")
        if isinstance(part.write, S3PartTicket) and part.write.expires_at and now >= part.write.expires_at:
            raise TicketExpired(f"part {part.number}: leave to write has expired", code="Expired")

    def _attempt(self, fetch: Fetch, part: PartOrder, deadline: float) -> PartRecord:
        buffer, size = fetch.buffers[part.number], part.stop - part.start
        order, cutter, wires = fetch.order, fetch.run.cutter, self._wires
        checksum = checksums.new(order.checksum)
        with (
            reading.opened(wires, cutter, order.read, part.start, part.stop, deadline) as source,
            sinks.opened(part.write, size, wires=wires, cutter=cutter, deadline=deadline) as sink,
        ):
            while buffer.filled < size:
                self._pass_slice(fetch, buffer, source, checksum, sink, deadline)
            hexdigest = checksum.hexdigest()
            etag = sink.finish(hexdigest)
        return PartRecord(part.number, part.start, size, etag, hexdigest)

    def _pass_slice(
        self,
        fetch: Fetch,
        buffer: PartBuffer,
        source: reading.Range,
        checksum: checksums.Checksum,
        sink: sinks.Sink,
        deadline: float,
    ) -> None:
        run = fetch.run
        block, start, stop = buffer.room(_SLICE_BYTES, deadline, lambda: run.is_dropped)
        if run.is_dropped:
            raise Cancelled(f"run {run.id}: dropped")
        source.fill(block[start:stop])
        run.received(stop - start)
        checksum.update(block[start:stop])
        buffer.advance(stop - start)
        sink.write(block, start, stop)
        if time.monotonic() > deadline:
            raise StoreUnavailable("part: the deadline passed while its bytes were written", code="PartDeadline")


def _join(threads: list[threading.Thread], run: HeldRun) -> None:
    """Wait for the threads; once the run is dropped, only a moment longer: they end by themselves."""
    for thread in threads:
        while thread.is_alive() and not run.is_dropped:
            thread.join(0.1)
    stop = time.monotonic() + _STOP_SECONDS
    for thread in threads:
        thread.join(max(0.0, stop - time.monotonic()))


def _state(sha: midstate.Sha256) -> bytes:
    try:
        return sha.state()
    except ValueError as error:
        raise UsageError(f"run: {error}", code="BadOrder") from error
