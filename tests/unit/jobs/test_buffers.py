import threading
import time
from collections.abc import Callable

import pytest

from aimodels_core.errors import Cancelled, MoverLost, TransientError
from aimodels_jobs.buffers import Key, Pool
from aimodels_jobs.partbuffer import PartBuffer, Stage

PAGE = 4096


def never() -> bool:
    return False


def nobody(key: Key) -> None:
    """There is nothing to yield."""


def take(pool: Pool, blocks: int, key: Key = (0, 0), *, seconds: float = 5.0) -> list[memoryview]:
    return pool.acquire(blocks, key, deadline=time.monotonic() + seconds, cancelled=never, yielding=nobody)


def started(function: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end
        threading.Event().wait(0.002)


class TestPool:
    def test_memory_is_bounded_page_aligned_and_used_again(self) -> None:
        pool = Pool(4 * PAGE + 100, PAGE)
        blocks = take(pool, 4)
        names = {id(block.obj) for block in blocks}
        pool.release(blocks)

        assert (pool.capacity_bytes, pool.held_bytes) == (4 * PAGE, 0)
        assert all(len(block) == PAGE and not block.readonly for block in blocks)
        assert {id(block.obj) for block in take(pool, 4)} == names
        assert pool.held_bytes == 4 * PAGE

    @pytest.mark.parametrize(("capacity", "block"), [(PAGE - 1, PAGE), (10 * PAGE, PAGE + 1)])
    def test_a_pool_that_cannot_work_is_refused(self, capacity: int, block: int) -> None:
        with pytest.raises(ValueError, match="want blocks of whole pages"):
            Pool(capacity, block)

    def test_the_wait_ends_at_its_deadline(self) -> None:
        pool = Pool(PAGE, PAGE)
        take(pool, 1)

        with pytest.raises(TransientError) as caught:
            take(pool, 1, seconds=0.05)
        assert caught.value.code == "NoBuffer"

    def test_the_wait_ends_when_it_is_cancelled(self) -> None:
        pool = Pool(PAGE, PAGE)
        take(pool, 1)
        cancelled = threading.Event()
        errors: list[Exception] = []

        def wait() -> None:
            try:
                pool.acquire(1, (0, 0), deadline=time.monotonic() + 5, cancelled=cancelled.is_set, yielding=nobody)
            except Cancelled as error:
                errors.append(error)

        thread = started(wait)
        cancelled.set()
        pool.wake()
        thread.join(2)

        assert len(errors) == 1

    def test_the_smallest_key_is_served_first_and_blocks_come_all_at_once(self) -> None:
        pool = Pool(2 * PAGE, PAGE)
        held = take(pool, 2)
        order: list[int] = []
        threads = []
        for key, blocks in ((3, 1), (1, 2), (2, 1)):

            def wait(key: int = key, blocks: int = blocks) -> None:
                got = take(pool, blocks, (key, 0))
                order.append(key)
                pool.release(got)

            threads.append(started(wait))
        wait_for(lambda: len(pool._waiting) == 3)
        pool.release(held[:1])
        assert order == []
        pool.release(held[1:])
        for thread in threads:
            thread.join(5)

        assert order[0] == 1
        assert pool.held_bytes == 0

    def test_the_first_in_the_queue_asks_larger_keys_for_their_memory(self) -> None:
        pool = Pool(2 * PAGE, PAGE, patience_seconds=0.01)
        held = take(pool, 2, (9, 0))
        asked: list[Key] = []

        def yielding(key: Key) -> None:
            asked.append(key)
            pool.release([held.pop()])

        got = pool.acquire(2, (1, 7), deadline=time.monotonic() + 5, cancelled=never, yielding=yielding)

        assert len(got) == 2
        assert asked == [(1, 7), (1, 7)]


class TestPartBuffer:
    def make(self, size: int = 2 * PAGE, blocks: int = 4) -> tuple[PartBuffer, Pool]:
        pool = Pool(blocks * PAGE, PAGE)
        part = PartBuffer(0, size, (0, 0), pool, threading.Condition())
        part.begin(take(pool, part.wanted_blocks))
        return part, pool

    def fill(self, part: PartBuffer, data: bytes) -> None:
        while data:
            block, start, stop = part.room(len(data), time.monotonic() + 5, never)
            block[start:stop] = data[: stop - start]
            data = data[stop - start :]
            part.advance(stop - start)

    def fill_and_store(self, part: PartBuffer, data: bytes) -> None:
        self.fill(part, data)
        part.store()

    def read(self, part: PartBuffer, position: int, attempt: int = 0, *, seconds: float = 5.0) -> bytes | None:
        view = part.next(position, attempt, 1000, time.monotonic() + seconds)
        return bytes(view) if view is not None else None

    def test_bytes_come_out_as_they_went_in_while_more_arrive(self) -> None:
        part, pool = self.make()
        self.fill(part, b"abc")

        assert self.read(part, 0) == b"abc"
        assert part.consumed(3, 0)
        self.fill(part, bytes(2 * PAGE - 3))
        part.store()
        position = 3
        while (piece := self.read(part, position)) is not None:
            position += len(piece)
            assert part.consumed(position, 0)
        assert position == 2 * PAGE
        assert part.is_drained
        assert pool.held_bytes == 0

    def test_memory_is_freed_block_by_block_once_it_is_stored(self) -> None:
        part, pool = self.make()
        self.fill(part, bytes(2 * PAGE))
        self.read(part, 0)
        part.consumed(PAGE, 0)

        assert pool.held_bytes == 2 * PAGE
        assert part.store()
        assert pool.held_bytes == PAGE

    def test_a_new_attempt_voids_what_was_hashed(self) -> None:
        part, _ = self.make()
        self.fill(part, b"wrong")
        assert self.read(part, 0) == b"wrong"
        part.restart()

        assert not part.consumed(5, 0)
        assert self.read(part, 5, 0) is None
        self.fill(part, b"right")
        assert self.read(part, 0, 1) == b"right"

    def test_a_part_larger_than_its_memory_waits_for_the_hash(self) -> None:
        part, _ = self.make(size=10 * PAGE, blocks=2)
        data = bytes(range(256)) * 16 * 10
        writer = started(lambda: self.fill_and_store(part, data))
        out = b""
        while (piece := self.read(part, len(out))) is not None:
            out += piece
            part.consumed(len(out), 0)
        writer.join(5)

        assert part.is_ring
        assert out == data
        assert part.is_drained

    def test_a_ring_that_nobody_hashes_ends_at_its_deadline(self) -> None:
        part, _ = self.make(size=10 * PAGE, blocks=2)
        self.fill(part, bytes(2 * PAGE))

        with pytest.raises(TransientError) as caught:
            part.room(1, time.monotonic() + 0.02, never)
        assert caught.value.code == "NotHashed"

    def test_memory_that_a_thread_still_fills_is_not_given_away(self) -> None:
        part, pool = self.make()
        part.give_up(Stage.UNDONE)

        assert pool.held_bytes == 2 * PAGE
        part.stop_writing()
        assert pool.held_bytes == 0

    def test_a_part_that_was_given_up_is_not_stored(self) -> None:
        part, pool = self.make()
        self.fill(part, bytes(2 * PAGE))
        part.give_up(Stage.GONE)

        assert not part.store()
        assert part.stage is Stage.GONE
        assert pool.held_bytes == 0

    def test_only_stored_parts_of_larger_keys_that_nobody_reads_yield(self) -> None:
        part, pool = self.make()
        part.key = (5, 0)
        self.fill(part, bytes(2 * PAGE))
        assert not part.yield_memory((1, 0)), "it is still written"
        part.store()
        assert not part.yield_memory((5, 0)), "the other key is not smaller"
        assert part.yield_memory((4, PAGE))
        assert (part.stage, pool.held_bytes) == (Stage.GONE, 0)

    def test_bytes_that_were_hashed_cannot_be_had_again(self) -> None:
        part, _ = self.make()
        self.fill(part, bytes(100))
        self.read(part, 0)
        part.consumed(100, 0)

        with pytest.raises(MoverLost) as caught:
            self.read(part, 0)
        assert caught.value.code == "BytesGone"

    def test_a_hash_waits_no_longer_than_its_deadline(self) -> None:
        part, _ = self.make()

        with pytest.raises(MoverLost) as caught:
            self.read(part, 0, seconds=0.02)
        assert caught.value.code == "HashTimedOut"
