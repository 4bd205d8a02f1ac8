"""Memory for bytes on their way: a bounded pool of mapped blocks.

Blocks are page-aligned private mappings on huge pages, mapped once and used again: fresh memory and badly aligned
buffers each cost more than hashing. The pool serves the smallest key first, and a smaller key may take the memory of
larger ones that only wait for their turn: the run that must be hashed next always gets memory.

What the blocks are used for belongs to `partbuffer`.
"""

import heapq
import mmap
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from aimodels_core.errors import Cancelled, TransientError
from aimodels_core.units import MIB

BLOCK_BYTES: Final = 4 * MIB
"""Two huge pages; small files do not hold much more than their size."""

POOL_BYTES: Final = 256 * MIB
_PATIENCE_SECONDS: Final = 2.0

Key = tuple[int, int]
"""(sequence of the run, offset in the file): the order in which bytes will be hashed."""


class Pool:
    """At most `capacity_bytes` of blocks, mapped on first use and kept. Safe from several threads.

    Args:
        capacity_bytes: rounded down to whole blocks.
        block_bytes: a multiple of the page size.
        patience_seconds: how long the first in the queue waits before it asks for `yielding`.
    """

    def __init__(
        self,
        capacity_bytes: int = POOL_BYTES,
        block_bytes: int = BLOCK_BYTES,
        *,
        patience_seconds: float = _PATIENCE_SECONDS,
    ) -> None:
        blocks = capacity_bytes // block_bytes
        if blocks < 1 or block_bytes % mmap.PAGESIZE:
            raise ValueError(f"pool: want blocks of whole pages, got {capacity_bytes} of {block_bytes} bytes")
        self.block_bytes = block_bytes
        self.capacity_bytes = blocks * block_bytes
        self._patience_seconds = patience_seconds
        self._unmapped = blocks
        self._free: list[memoryview] = []
        self._waiting: list[tuple[Key, int]] = []
        self._tickets = 0
        self._changed = threading.Condition()

    @property
    def held_bytes(self) -> int:
        """Bytes in use."""
        with self._changed:
            return self.capacity_bytes - self._available() * self.block_bytes

    def acquire(
        self,
        blocks: int,
        key: Key,
        *,
        deadline: float,
        cancelled: Callable[[], bool],
        yielding: Callable[[Key], object],
    ) -> list[memoryview]:
        """Take `blocks` blocks at once; the smallest key is served first.

        Args:
            blocks: at most the whole pool.
            key: place in the order of hashing.
            deadline: by `time.monotonic`.
            cancelled: asked whenever `wake` is called.
            yielding: called without locks when the first in the queue has waited long; frees what a larger key holds.

        Raises:
            Cancelled: `cancelled` said so.
            TransientError: code NoBuffer: nothing was freed until the deadline.
        """
        with self._changed:
            self._tickets += 1
            mine = (key, self._tickets)
            heapq.heappush(self._waiting, mine)
            try:
                self._wait(mine, blocks, deadline, cancelled, yielding)
                return self._take(blocks)
            finally:
                self._waiting.remove(mine)
                heapq.heapify(self._waiting)
                self._changed.notify_all()

    def _wait(
        self,
        mine: tuple[Key, int],
        blocks: int,
        deadline: float,
        cancelled: Callable[[], bool],
        yielding: Callable[[Key], object],
    ) -> None:
        ask_at = time.monotonic() + self._patience_seconds
        while self._waiting[0] != mine or self._available() < blocks:
            now = time.monotonic()
            if cancelled():
                raise Cancelled("buffers: the run was dropped")
            if now >= deadline:
                raise TransientError("buffers: want a free one, got none in time", code="NoBuffer")
            if now >= ask_at:
                ask_at = now + self._patience_seconds
                if self._waiting[0] == mine:
                    self._unlocked(yielding, mine[0])
                    continue
            self._changed.wait(min(deadline, ask_at) - now)

    def _unlocked(self, yielding: Callable[[Key], object], key: Key) -> None:
        self._changed.release()
        try:
            yielding(key)
        finally:
            self._changed.acquire()

    def release(self, blocks: Sequence[memoryview]) -> None:
        """Give blocks back."""
        with self._changed:
            self._free.extend(blocks)
            self._changed.notify_all()

    def wake(self) -> None:
        """Make waiting callers of `acquire` ask whether they are cancelled."""
        with self._changed:
            self._changed.notify_all()

    def _available(self) -> int:
        return len(self._free) + self._unmapped

    def _take(self, blocks: int) -> list[memoryview]:
        taken = [self._free.pop() for _ in range(min(blocks, len(self._free)))]
        while len(taken) < blocks:
            taken.append(_map(self.block_bytes))
            self._unmapped -= 1
        return taken


def _map(size_bytes: int) -> memoryview:
    """Map private memory: the default of `mmap.mmap` is shared memory, which cannot have huge pages here."""
    mapped = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            mapped.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # a kernel without huge pages: slower, not wrong
            return memoryview(mapped)
    return memoryview(mapped)
