"""A run as a mover holds it: its parts and their buffers, what was stored, whether it was dropped.

Sockets and files are the business of `mover`; memory is the business of `buffers`.
"""

import threading
import time
from typing import Final

from aimodels_core.errors import AiModelsError, Cancelled, ErrorInfo, MoverLost, UsageError
from aimodels_jobs import midstate
from aimodels_jobs.buffers import Key, Pool
from aimodels_jobs.midstate import Sha256
from aimodels_jobs.orders import PartOrder, PartRecord, RunOrder, RunReport
from aimodels_jobs.partbuffer import PartBuffer, Stage
from aimodels_jobs.wires import Cutter

_HASH_BYTES: Final = 4 * 1024 * 1024


class HeldRun:
    """A run of one file; further orders with its id add the parts that were undone. Safe from several threads."""

    def __init__(self, run_id: str, pool: Pool) -> None:
        self.id = run_id
        self.cutter = Cutter()
        self.changed = threading.Condition()
        self.fetching = 0
        self.hashing = 0
        self.received_bytes = 0
        self._pool = pool
        self._parts: dict[int, PartBuffer] = {}

    @property
    def is_dropped(self) -> bool:
        """Tell whether the run is to stop."""
        return self.cutter.is_cut

    @property
    def is_over(self) -> bool:
        """Tell whether nothing of the run is under way or held."""
        with self.changed:
            return not self.fetching and not self.hashing and all(part.is_drained for part in self._parts.values())

    def add(self, order: RunOrder) -> "dict[int, PartBuffer]":
        """Make buffers for the parts of an order, by part number; a part that was there before is fetched anew."""
        made = {
            part.number: PartBuffer(
                part.start, part.stop - part.start, (order.sequence, part.start), self._pool, self.changed
            )
            for part in order.parts
        }
        with self.changed:
            self.fetching += 1
            for buffer in made.values():
                before = self._parts.get(buffer.start)
                if before is not None:
                    before.give_up(Stage.GONE)
                self._parts[buffer.start] = buffer
            self.changed.notify_all()
        return made

    def leave(self) -> None:
        """An order of the run came to its end."""
        with self.changed:
            self.fetching -= 1
            self.changed.notify_all()

    def received(self, size_bytes: int) -> None:
        """Count payload bytes."""
        with self.changed:
            self.received_bytes += size_bytes

    def drop(self) -> None:
        """Cut the connections and free the memory; a thread that still fills a part finds out by itself."""
        self.cutter.cut()
        with self.changed:
            for part in self._parts.values():
                part.give_up(Stage.UNDONE)
            self.changed.notify_all()

    def yield_memory(self, key: Key) -> bool:
        """Free the memory of one part that waits for its turn behind `key`."""
        with self.changed:
            parts = sorted(self._parts.values(), key=lambda part: part.key, reverse=True)
            return any(part.yield_memory(key) for part in parts)

    def hash_on(self, sha: Sha256, deadline: float) -> Sha256:
        """Hash the run; see `_hash_all`."""
        with self.changed:
            self.hashing += 1
            while not self._parts and self.changed.wait(deadline - time.monotonic()):
                pass
        try:
            return self._hash_all(sha, deadline)
        finally:
            with self.changed:
                self.hashing -= 1

    def _hash_all(self, sha: Sha256, deadline: float) -> Sha256:
        """Hash all parts from where `sha` stands, in order, as their bytes arrive.

        Raises:
            Cancelled: the run was dropped.
            MoverLost: codes BytesGone, HashTimedOut.
            UsageError: code BadState: the run has no part there.
        """
        if sha.count not in self._parts:
            raise UsageError(f"run {self.id}: want a part at {sha.count}, got none", code="BadState")
        while (part := self._parts.get(sha.count)) is not None:
            sha = self._hash_part(part, sha, deadline)
        return sha

    def _hash_part(self, part: PartBuffer, before: Sha256, deadline: float) -> Sha256:
        while True:
            if self.is_dropped:
                raise Cancelled(f"run {self.id}: dropped")
            sha, attempt = before.copy(), part.attempt
            while (view := part.next(sha.count - part.start, attempt, _HASH_BYTES, deadline)) is not None:
                sha.update(view)
                if not part.consumed(sha.count - part.start, attempt):
                    break
            if part.stage is Stage.STORED and sha.count - part.start == part.size_bytes and attempt == part.attempt:
                return sha
            part = self._successor(part, deadline)

    def _successor(self, part: PartBuffer, deadline: float) -> PartBuffer:
        """Return the part itself when it began anew, or wait for what another order puts in its place."""
        with self.changed:
            while part.stage is Stage.UNDONE and self._parts[part.start] is part and not self.is_dropped:
                if not self.changed.wait(deadline - time.monotonic()):
                    raise MoverLost(f"run {self.id}: want part at {part.start}, it stayed undone", code="HashTimedOut")
            if part.stage is Stage.GONE and self._parts[part.start] is part and not self.is_dropped:
                raise MoverLost(f"run {self.id}: the part at {part.start} gave its memory away", code="BytesGone")
            return self._parts[part.start]


class Fetch:
    """One order under way: which parts are left, what came of the others. Safe from several threads.

    Args:
        order: what is to be done.
        run: which run it adds to.
    """

    def __init__(self, order: RunOrder, run: HeldRun) -> None:
        self.order = order
        self.run = run
        self.buffers = run.add(order)
        self.turn = threading.Lock()
        self._left = list(order.parts)
        self._records: dict[int, PartRecord] = {}
        self._error: AiModelsError | None = None
        self._received_before = run.received_bytes
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def next_part(self) -> PartOrder | None:
        """Take the next part to move; none after an error."""
        with self._lock:
            if self._error is not None or self.run.is_dropped or not self._left:
                return None
            return self._left.pop(0)

    def done(self, record: PartRecord) -> None:
        """Count a stored part."""
        if self.buffers[record.number].store():
            with self._lock:
                self._records[record.number] = record

    def failed(self, part: PartOrder, error: AiModelsError) -> None:
        """Count a part as undone; the first error stands for all."""
        with self._lock:
            self._error = self._error or error
        self.buffers[part.number].stop_writing()

    def report(self) -> RunReport:
        """Say what became of the order; parts without a record are given up."""
        with self._lock:
            records = tuple(self._records[p.number] for p in self.order.parts if p.number in self._records)
            undone = tuple(p.number for p in self.order.parts if p.number not in self._records)
            error = self._error
        for number in undone:
            self.buffers[number].give_up(Stage.UNDONE)
        if self.run.is_dropped:
            error = Cancelled(f"run {self.order.id}: dropped")
        received = self.run.received_bytes - self._received_before
        info = ErrorInfo.of(error) if error is not None and (undone or self.run.is_dropped) else None
        return RunReport(self.order.id, records, undone, info, received, time.monotonic() - self._began)


def resumed(state: bytes | None) -> Sha256:
    """Continue a hash, or begin one.

    Raises:
        UsageError: code BadState: malformed.
        MoverLost: code UnknownState: without libcrypto a state stays where it was made, and this one is not from here.
    """
    if state is None:
        return midstate.new()
    try:
        midstate.position(state)
    except ValueError as error:
        raise UsageError(str(error), code="BadState") from error
    try:
        return midstate.resume(state)
    except ValueError as error:
        raise MoverLost(str(error), code="UnknownState") from error
