"""The buffer of one part: what lies between the thread that receives and stores it and the thread that hashes it.

Sockets, files and the hash itself do not belong here.
"""

import enum
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from aimodels_core.errors import Cancelled, MoverLost, TransientError
from aimodels_jobs.buffers import Key, Pool


class Stage(enum.Enum):
    """Where a part is on its way."""

    WAITING = "waiting"
    MOVING = "moving"
    STORED = "stored"
    UNDONE = "undone"
    GONE = "gone"


LOST: Final = frozenset({Stage.UNDONE, Stage.GONE})


class PartBuffer:
    """The bytes of one part between the thread that fills it and the one that hashes it.

    A part larger than its blocks uses them as a ring: the writer waits for the hash. A second attempt at the part
    writes over the first, and whoever hashed the first begins the part again: what is hashed is what the last attempt
    stored.

    Args:
        start: offset of the part in the file.
        size_bytes: its length.
        key: its place in the order of hashing.
        pool: where the blocks come from and go.
        changed: guards all fields; shared by the parts of a run.
    """

    def __init__(self, start: int, size_bytes: int, key: Key, pool: Pool, changed: threading.Condition) -> None:
        self.start = start
        self.size_bytes = size_bytes
        self.key = key
        self.stage = Stage.WAITING
        self._pool = pool
        self._changed = changed
        self._blocks: list[memoryview | None] = []
        self._attempt = 0
        self._filled = 0
        self._hashed = 0
        self._reading = False
        self._writing = False

    @property
    def wanted_blocks(self) -> int:
        """How many blocks to acquire."""
        return min(self._pool.capacity_bytes // self._pool.block_bytes, -(-self.size_bytes // self._pool.block_bytes))

    @property
    def is_ring(self) -> bool:
        """Tell whether the part is larger than its blocks."""
        return self.wanted_blocks * self._pool.block_bytes < self.size_bytes

    @property
    def filled(self) -> int:
        """Bytes received by the present attempt."""
        return self._filled

    def begin(self, blocks: Sequence[memoryview]) -> None:
        """Take the blocks: the part is on its way."""
        with self._changed:
            self._blocks = list(blocks)
            self._writing = True
            if self.stage is Stage.WAITING:
                self.stage = Stage.MOVING
            self._changed.notify_all()

    def restart(self) -> None:
        """Begin another attempt: nothing of the one before counts."""
        with self._changed:
            self._attempt += 1
            self._filled = self._hashed = 0
            self._changed.notify_all()

    def room(self, most_bytes: int, deadline: float, cancelled: Callable[[], bool]) -> tuple[memoryview, int, int]:
        """Return (block, from, to): where the next bytes go, at most `most_bytes` of them.

        Raises:
            Cancelled: `cancelled` said so.
            TransientError: code NotHashed: the hash did not come near until the deadline.
        """
        size = self._pool.block_bytes
        with self._changed:
            place, offset = divmod(self._filled, size)
            length = min(most_bytes, size - offset, self.size_bytes - self._filled)
            while self._filled + length - self._hashed > len(self._blocks) * size:
                if cancelled():
                    raise Cancelled("part: the run was dropped")
                if not self._changed.wait(deadline - time.monotonic()):
                    raise TransientError("part: want its beginning hashed, got no hash in time", code="NotHashed")
            block = self._blocks[place % len(self._blocks)]
            if block is None:
                raise MoverLost("part: its memory is gone", code="BytesGone")
            return block, offset, offset + length

    def advance(self, size_bytes: int) -> None:
        """Count bytes that were written into the room."""
        with self._changed:
            self._filled += size_bytes
            self._changed.notify_all()

    def store(self) -> bool:
        """Say that all bytes are stored, by the thread that fills the part; memory that was hashed is free now.

        Returns:
            False when the part was given up meanwhile.
        """
        with self._changed:
            self._writing = False
            wanted = self.stage is Stage.MOVING
            if wanted:
                self.stage = Stage.STORED
                self._free_hashed()
            else:
                self._free_all()
            self._changed.notify_all()
            return wanted

    def stop_writing(self) -> None:
        """Say that the thread that fills the part does so no more, and the bytes will not be had."""
        with self._changed:
            self._writing = False
            self.give_up(Stage.UNDONE)

    def give_up(self, stage: Stage) -> None:
        """Say that the part's bytes will not be had here (`UNDONE`, `GONE`).

        Memory that a thread still fills is freed when that thread says that it has stopped, never before.
        """
        with self._changed:
            if self.stage not in LOST:
                self.stage = stage
            if not self._writing:
                self._free_all()
            self._changed.notify_all()

    def yield_memory(self, key: Key) -> bool:
        """Free the memory for a smaller key, if the part only waits for its turn."""
        with self._changed:
            idle = self.stage is Stage.STORED and self._hashed == 0 and not self._reading and any(self._blocks)
            if not idle or self.key <= key:
                return False
            self.give_up(Stage.GONE)
            return True

    @property
    def is_drained(self) -> bool:
        """Tell whether nothing of the part is held any more."""
        settled = self.stage is Stage.STORED or self.stage in LOST
        return settled and all(block is None for block in self._blocks)

    @property
    def attempt(self) -> int:
        """Number of the present attempt, from 0."""
        with self._changed:
            return self._attempt

    def next(self, position: int, attempt: int, most_bytes: int, deadline: float) -> memoryview | None:
        """Wait for bytes to hash; `consumed` must follow when there are some.

        Args:
            position: bytes of this attempt that the caller has hashed.
            attempt: which attempt they were of.
            most_bytes: longest answer.
            deadline: by `time.monotonic`.

        Returns:
            None when the part is stored and all of it was hashed, when it will not be had (see `stage`), or when there
            is a new attempt.

        Raises:
            MoverLost: codes HashTimedOut, BytesGone (they were hashed before).
        """
        size = self._pool.block_bytes
        with self._changed:
            while attempt == self._attempt and not self._is_final(position) and position >= self._filled:
                if not self._changed.wait(deadline - time.monotonic()):
                    raise MoverLost("hash: want the part's bytes, got none in time", code="HashTimedOut")
            if attempt != self._attempt or self._is_final(position):
                return None
            place, offset = divmod(position, size)
            block = self._blocks[place % len(self._blocks)]
            if block is None or position < self._hashed:
                raise MoverLost("hash: want bytes that are held, got some that were hashed before", code="BytesGone")
            self._reading = True
            return block[offset : min(size, offset + most_bytes, offset + self._filled - position)]

    def consumed(self, position: int, attempt: int) -> bool:
        """Say that bytes up to `position` were hashed; False when a newer attempt makes that void."""
        with self._changed:
            self._reading = False
            current = attempt == self._attempt and self.stage not in LOST
            if current:
                self._hashed = position
            if self.stage is Stage.STORED:
                self._free_hashed()
            self._changed.notify_all()
            return current

    def _is_final(self, position: int) -> bool:
        return self.stage in LOST or (self.stage is Stage.STORED and position == self.size_bytes)

    def _free_hashed(self) -> None:
        if self.is_ring and self._hashed < self.size_bytes:
            return
        size = self._pool.block_bytes
        for place, block in enumerate(self._blocks):
            end = min((place + 1) * size, self.size_bytes)
            if block is not None and self._hashed >= end:
                self._blocks[place] = None
                self._pool.release([block])

    def _free_all(self) -> None:
        self._pool.release([block for block in self._blocks if block is not None])
        self._blocks = [None] * len(self._blocks)
