"""Who may store how much, beside an event loop: publications ask before anything moves, and wait here for space.

What is decided, and by what rules, is in `capacity`; here it is kept up to date by listings of the store, a collection
runs at once when space is needed, and those who wait are woken. Without a limit everybody may go on.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping

from aimodels_core import names
from aimodels_core.digest import Digest
from aimodels_core.errors import CapacityReached
from aimodels_jobs.capacity import Ledger, Need, Verdict
from aimodels_jobs.collection import Collected, Collector
from aimodels_jobs.layout import Store
from aimodels_jobs.plan import Plan, Way
from aimodels_jobs.sweeping import Sweeper
from aimodels_jobs.threads import Threads

_DOCUMENT_BYTES = 4096
_DOCUMENT_FILE_BYTES = 1024
"""Config and manifest take at most this, in all and for each file."""


@dataclasses.dataclass(frozen=True, slots=True)
class Capacity:
    """Most that a store may hold, and times of keeping to it.

    Args:
        limit_bytes: of all blobs together; 0 for no limit.
        settle_seconds: after the first want; those of a coordinator before it have come until then.
        planning_seconds: how long others wait for the plan of an older want.
        collect_seconds: between collections for space, at least; a long one is followed by a longer pause.
    """

    limit_bytes: int = 0
    settle_seconds: float = 3.0
    planning_seconds: float = 30.0
    collect_seconds: float = 5.0


class Admission:
    """Keeps the ledger of a store, if it has a limit, and lets publications wait for space.

    Args:
        store: where models go.
        threads: for its blocking calls.
        capacity: the limit.
        collect: has the store collected at once.
    """

    def __init__(
        self,
        store: Store,
        threads: Threads,
        capacity: Capacity,
        collect: Callable[[], Awaitable[object]],
    ) -> None:
        self._store = store
        self._threads = threads
        self._collector = Collector(store)
        self._capacity = capacity
        self._sweeper = Sweeper(collect, self._capacity.collect_seconds, self._is_space_needed)
        self.ledger = Ledger(capacity.limit_bytes, opened=False) if capacity.limit_bytes else None
        self._changed = asyncio.Condition()
        self._collecting = asyncio.Lock()
        self.passes = 0
        """Collections so far."""
        self._on_change: set[asyncio.Event] = set()
        self._on_space: set[asyncio.Event] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def look(self) -> None:
        """Begin with what the store holds; this process is its writer now.

        Raises:
            StoreUnavailable.
        """
        if self.ledger is None:
            return
        async with self._collecting:
            self.ledger.begin_listing()
            blobs, uploads = await self._threads.run(lambda: (_blobs(self._store), _uploads(self._store)))
            self.ledger.listed(blobs, uploads)
        await self._tell()

    def expect(self, uid: str, created: float) -> None:
        """A want has come; younger ones let it say first what it needs, for a while."""
        if self.ledger is None:
            return
        self.ledger.expect(uid, created)
        self._after(self._capacity.planning_seconds, uid, lambda ledger: ledger.unexpect(uid))
        if not self.ledger.opened and "" not in self._timers:
            self._after(self._capacity.settle_seconds, "", Ledger.open)

    async def unexpect(self, uid: str) -> None:
        """Nobody need wait for what a want will need."""
        if self.ledger is not None:
            self.ledger.unexpect(uid)
            await self._tell()

    async def admit(self, uid: str, created: float, plan: Plan, *, since: int) -> None:
        """Reserve what a plan adds to the store; from then on nothing that it reuses is collected.

        Args:
            uid: of the want.
            created: Unix seconds.
            plan: what is to be published.
            since: `passes` before the plan was made.

        Raises:
            CapacityReached: not now, or not with this plan: make it again once `trouble` is empty.
        """
        if self.ledger is None:
            return
        ledger = self.ledger
        kept = ledger.holds(uid)
        ledger.ask(need_of(uid, created, plan))
        await self._tell()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._capacity.planning_seconds), self._changed:
                await self._changed.wait_for(lambda: not self._is_open_question(uid))
        verdict = ledger.verdict(uid)
        if verdict is Verdict.GRANTED and (kept or since == self.passes):
            return
        if verdict is Verdict.NO_ROOM and (sweep := self._sweeper.ask()):
            await asyncio.wait({sweep})
        raise CapacityReached(ledger.words(uid) or "the store was collected: the plan is made again")

    def _is_open_question(self, uid: str) -> bool:
        """Whether to wait a moment: older ones have not asked yet, or what others keep is not known yet."""
        if self.ledger is None:
            return False
        verdict = self.ledger.verdict(uid)
        return verdict is Verdict.SOON or (verdict is Verdict.NO_ROOM and self.ledger.planning)

    def trouble(self, uid: str) -> str:
        """Say why a publication that has asked waits; empty when it may go on."""
        return self.ledger.words(uid) if self.ledger is not None else ""

    async def settle(self, uid: str, blobs: Mapping[Digest, int]) -> None:
        """A publication is done and consists of these blobs."""
        if self.ledger is not None:
            self.ledger.settle(uid, {str(digest): size for digest, size in blobs.items()})
            await self._tell()

    async def leave(self, uid: str) -> None:
        """A publication has ended without being done, or its model is gone: what it kept is collected if needed."""
        if self.ledger is not None:
            self.ledger.leave(uid)
            if self._is_space_needed():
                self._sweeper.ask()
            await self._tell()

    def _is_space_needed(self) -> bool:
        return self.ledger is not None and (self.ledger.is_short or bool(self._on_space))

    async def collect(self, in_use: Callable[[], Collection[Digest]], *, now: bool) -> Collected:
        """Collect the store, one at a time, and take over what is left.

        Args:
            in_use: what publications count on.
            now: do not wait for a second pass.

        Raises:
            ArtifactInvalid, StoreUnavailable, WriterBusy.
        """
        async with self._collecting:
            collected = await self._collect(in_use(), now=now)
            self.passes += 1
        if collected.size_bytes or collected.uploads:
            for event in self._on_space:
                event.set()
        await self._tell()
        return collected

    async def _collect(self, in_use: Collection[Digest], *, now: bool) -> Collected:
        ledger = self.ledger
        if ledger is None:
            return await self._threads.run(self._collector.collect, in_use, now=now)
        kept = {*in_use, *_digests(ledger.reserved)}
        ledger.begin_listing()
        collected, left = await self._threads.run(self._collector.collect_and_list, kept, now=now)
        uploads = await self._threads.run(_uploads, self._store)
        blobs = {str(digest): size for digest, size in left.items()}
        ledger.listed(blobs, uploads, removed_bytes=collected.size_bytes)
        return collected

    @contextlib.contextmanager
    def waking(self, event: asyncio.Event, *, space: bool = False) -> Iterator[None]:
        """Set an event after each change of the ledger, or only when the store itself holds less."""
        waiting = self._on_space if space else self._on_change
        waiting.add(event)
        try:
            if space and self.ledger is not None:
                self._sweeper.ask()
            yield
        finally:
            waiting.discard(event)

    async def close(self) -> None:
        """End timers and a collection that waits."""
        for timer in self._timers.values():
            timer.cancel()
        await self._sweeper.close()
        await asyncio.gather(*self._tasks)

    def _after(self, seconds: float, name: str, change: Callable[[Ledger], None]) -> None:
        loop = asyncio.get_running_loop()

        def due() -> None:
            self._timers.pop(name, None)
            if self.ledger is not None:
                change(self.ledger)
                task = loop.create_task(self._tell())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

        if name in self._timers:
            self._timers[name].cancel()
        self._timers[name] = loop.call_later(seconds, due)

    async def _tell(self) -> None:
        for event in self._on_change:
            event.set()
        async with self._changed:
            self._changed.notify_all()


def need_of(uid: str, created: float, plan: Plan) -> Need:
    """Say what a plan needs in the store; files without a known digest are keys of their own."""
    blobs: dict[str, int] = {}
    for row in plan.files:
        blobs[str(row.digest) if row.digest else f"{uid}/{row.file.path}"] = row.file.size_bytes
    read = {row.digest or row.file.path: row.file.size_bytes for row in plan.files if row.moves}
    if any(row.way not in (Way.REUSE, Way.PROVE, Way.EMPTY) for row in plan.files):
        blobs[f"{uid}/"] = _DOCUMENT_BYTES + _DOCUMENT_FILE_BYTES * len(plan.files)
    return Need(uid, created, blobs, sum(read.values()))


def _digests(keys: Collection[str]) -> Iterator[Digest]:
    for key in keys:
        with contextlib.suppress(ValueError):
            yield Digest.parse(key)


def _blobs(store: Store) -> dict[str, int]:
    return {str(digest): info.size_bytes for digest, info in store.blobs()}


def _uploads(store: Store) -> dict[str, int]:
    """Unfinished uploads whose size the store tells, by what they will be."""
    found: dict[str, int] = {}
    for prefix in (names.blobs_prefix(), names.staging_prefix()):
        for upload in store.objects.uploads(prefix):
            if upload.size_bytes:
                found[str(names.blob_of_key(upload.key) or upload.key)] = upload.size_bytes
    return found
