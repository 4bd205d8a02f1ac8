"""What this node remembers of its Pods, while kubelet asks for many volumes at once: records in memory and on disk.

This process alone writes records. One Pod's record is written and dropped one after another; a record stays as long as
a volume of its Pod is being published.
"""

import asyncio
import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Protocol

from aimodels_nodecache.podrecords import PodRecord
from aimodels_nodecache.threads import Threads


class Kept(Protocol):
    """Records on disk; calls block."""

    def write(self, record: PodRecord) -> None:
        """Write one, durable when it returns."""
        ...

    def all(self) -> "tuple[PodRecord, ...]":
        """Return all."""
        ...

    def drop(self, uid: str) -> None:
        """Drop one; none is fine."""
        ...


class Ledger:
    """The records of this node's Pods.

    Args:
        kept: on disk.
        threads: where disk work is done.
    """

    def __init__(self, kept: Kept, threads: Threads) -> None:
        self._kept, self._threads = kept, threads
        self._records: dict[str, PodRecord] = {}
        self._publishing: Counter[str] = Counter()
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    async def load(self) -> None:
        """Read what an earlier process left.

        Raises:
            AiModelsError: it cannot be read.
        """
        self._records = {record.uid: record for record in await self._threads(self._kept.all)}

    def of(self, uid: str) -> PodRecord | None:
        """Return what is remembered of a Pod."""
        return self._records.get(uid)

    @property
    def uids(self) -> frozenset[str]:
        """Pods of which something is remembered."""
        return frozenset(self._records)

    def publishes(self, uid: str) -> bool:
        """Say whether a volume of a Pod is being published now."""
        return self._publishing[uid] > 0

    @contextlib.contextmanager
    def publishing(self, uid: str) -> Iterator[None]:
        """Keep a Pod's record as long as this lasts."""
        self._publishing[uid] += 1
        try:
            yield
        finally:
            self._publishing[uid] -= 1
            if not self._publishing[uid]:
                del self._publishing[uid]

    async def remember(self, record: PodRecord) -> None:
        """Have a record, durable when this returns.

        Raises:
            AiModelsError, OSError: it cannot be written.
        """
        async with self._lock(record.uid):
            if self._records.get(record.uid) != record:
                await self._threads(lambda: self._kept.write(record))
                self._records[record.uid] = record

    async def forget(self, uid: str, used: Callable[[], bool]) -> bool:
        """Drop a Pod's record unless it is used; returns whether none is left.

        Args:
            uid: of the Pod.
            used: says whether volumes of it are mounted; blocks.

        Raises:
            AiModelsError, OSError: it cannot be dropped.
        """
        async with self._lock(uid):
            # Whoever publishes now may have mounted and ended when the look at mounts is over; who begins later waits.
            if self.publishes(uid) or await self._threads(used):
                return False
            if uid in self._records:
                await self._threads(lambda: self._kept.drop(uid))
                self._records.pop(uid, None)
            return True

    def _lock(self, uid: str) -> asyncio.Lock:
        return self._locks.setdefault(uid, asyncio.Lock())
