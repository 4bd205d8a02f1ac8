"""What all publications of one coordinator share: the store, the threads, who works on which blob."""

import asyncio
import collections
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterable, Iterator

from aimodels_core.digest import Digest
from aimodels_jobs.admission import Capacity
from aimodels_jobs.checkpoints import Checkpoints
from aimodels_jobs.flight import Patience
from aimodels_jobs.layout import Store
from aimodels_jobs.selection import Pickle
from aimodels_jobs.threads import Threads


class DigestLocks:
    """One publication at a time works on a blob."""

    def __init__(self) -> None:
        self._locks: dict[Digest, asyncio.Lock] = {}
        self._users: collections.Counter[Digest] = collections.Counter()

    def is_wanted(self, digest: Digest) -> bool:
        """Say whether somebody works on a blob or waits for it."""
        return digest in self._locks

    @contextlib.asynccontextmanager
    async def hold(self, digest: Digest) -> AsyncIterator[None]:
        """Wait for the blob."""
        lock = self._locks.setdefault(digest, asyncio.Lock())
        self._users[digest] += 1
        try:
            async with lock:
                yield
        finally:
            self._users[digest] -= 1
            if not self._users[digest]:
                del self._users[digest], self._locks[digest]


@dataclasses.dataclass(frozen=True, slots=True)
class Workshop:
    """Shared by all publications.

    Args:
        store: where models go.
        checkpoints: of blobs on their way.
        threads: for blocking calls of the store.
        source_threads: for those of sources: a slow one keeps nobody from the store.
        patience: of runs.
        pickle: whether torch weights may be published.
        check_writer: raises WriterBusy when this process has lost the right to write.
        capacity: most that the store may hold.
        locks: per blob.
        used: blobs that a publication counts on, though no tag names them yet.
    """

    store: Store
    checkpoints: Checkpoints
    threads: Threads
    patience: Patience = dataclasses.field(default_factory=Patience)
    pickle: Pickle = Pickle.ALLOW
    check_writer: Callable[[], None] = lambda: None
    source_threads: Threads = dataclasses.field(default_factory=Threads)
    capacity: Capacity = dataclasses.field(default_factory=Capacity)
    locks: DigestLocks = dataclasses.field(default_factory=DigestLocks)
    used: collections.Counter[Digest] = dataclasses.field(default_factory=collections.Counter)

    @contextlib.contextmanager
    def using(self, digests: Iterable[Digest]) -> Iterator[None]:
        """Keep blobs from being collected while the publication that counts on them runs."""
        mine = tuple(digests)
        self.used.update(mine)
        try:
            yield
        finally:
            self.used.subtract(mine)

    def in_use(self) -> frozenset[Digest]:
        """Blobs that must not be collected now."""
        return frozenset(digest for digest, count in self.used.items() if count > 0)
