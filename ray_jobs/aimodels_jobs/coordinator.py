"""Many publications over one store: wants come in, snapshots go out, one retry loop, one writer.

The same class runs in the process of a command line and as a detached actor with an HTTP API (`service`). Truth is in
the store and with whoever sends wants; everything here is memory. The steps of one publication are in `publication`.
"""

import asyncio
import contextlib
import dataclasses
import functools
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from aimodels_core.errors import AiModelsError, RateLimited, SourceDenied, TransientError, UsageError, WriterBusy
from aimodels_core.messages import PublicationState, Published, Snapshot, Stage, Trouble, Want
from aimodels_core.source import Gate, Source
from aimodels_jobs.collection import Collected, Collector
from aimodels_jobs.dispatch import Dispatcher
from aimodels_jobs.executor import Executor
from aimodels_jobs.governor import Connections, RateGate
from aimodels_jobs.objects import refuse_unsafe
from aimodels_jobs.progress import Meter
from aimodels_jobs.publication import Publication
from aimodels_jobs.threads import Pause
from aimodels_jobs.workshop import Workshop
from aimodels_jobs.writer import Writer

log = logging.getLogger(__name__)


class Sources(Protocol):
    """Makes the source that a want names."""

    def open(self, want: Want, gate: Gate) -> Source:
        """Return the source.

        Raises:
            UnsupportedSource: a URL form or host that is not served.
        """
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Retry:
    """The one retry loop (design 2.1).

    Args:
        first_seconds: before the second attempt; doubled each time, with jitter.
        most_seconds: never longer than this.
        denied_seconds: between attempts while access is denied.
    """

    first_seconds: float = 1.0
    most_seconds: float = 600.0
    denied_seconds: float = 600.0

    def pause(self, attempt: int, error: AiModelsError) -> float | None:
        """Seconds before the next attempt after `attempt` failed; None when the error is terminal."""
        if isinstance(error, SourceDenied):
            return self.denied_seconds
        if not isinstance(error, TransientError):
            return None
        backed_off = min(self.first_seconds * 2.0 ** min(attempt - 1, 20), self.most_seconds)
        jittered = backed_off * random.uniform(0.7, 1.0)  # noqa: S311 - jitter
        return max(jittered, min(error.retry_after_seconds or 0.0, self.most_seconds))


class Movers:
    """The dispatcher, made when the first publication has something to move.

    Args:
        choose: makes the executor, told how many bytes are waiting to be moved.
        connections: the governor of payload hosts.
    """

    def __init__(self, choose: Callable[[int], Awaitable[Executor]], connections: Connections) -> None:
        self._choose = choose
        self._connections = connections
        self._lock = asyncio.Lock()
        self.executor: Executor | None = None
        self.dispatcher: Dispatcher | None = None

    async def get(self, bytes_to_move: int) -> Dispatcher:
        """Return the dispatcher, starting movers if there are none.

        Raises:
            MoverLost: movers do not start.
        """
        async with self._lock:
            if self.dispatcher is None:
                executor = await self._choose(bytes_to_move)
                dispatcher = Dispatcher(executor, self._connections)
                try:
                    await dispatcher.start()
                except BaseException:
                    await executor.close()
                    raise
                self.executor, self.dispatcher = executor, dispatcher
            return self.dispatcher

    async def close(self) -> None:
        """Stop the movers."""
        if self.dispatcher:
            await self.dispatcher.close()
        if self.executor:
            await self.executor.close()


class _Job:
    """One want and what has become of it."""

    def __init__(self, want: Want) -> None:
        self.want = want
        self.meter = Meter()
        self.state = PublicationState(want.uid, want.generation, want.spec_hash, revision=want.revision)
        self.task: asyncio.Task[None] | None = None
        self.publication: Publication | None = None
        self.again = asyncio.Event()


class Coordinator:
    """Publishes what is wanted.

    Args:
        workshop: the store and what works on it.
        writer: the right to write to the store.
        sources: makes sources.
        movers: makes the dispatcher.
        gate: the governor of hub requests.
        retry: the retry loop's times.
        pause: ends the writer's wait when the coordinator closes.
        wall_clock: Unix seconds.
    """

    def __init__(
        self,
        workshop: Workshop,
        writer: Writer,
        sources: Sources,
        movers: Movers,
        gate: RateGate,
        *,
        retry: Retry,
        pause: Pause,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._workshop = workshop
        self._writer = writer
        self._sources = sources
        self._movers = movers
        self._gate = gate
        self._retry = retry
        self._pause = pause
        self._budget_seconds = 0.0
        self._owning: asyncio.Task[None] | None = None
        self._wall = wall_clock
        self._jobs: dict[str, _Job] = {}
        self._epoch = secrets.token_hex(8)
        self._version = 0
        self._changed = asyncio.Condition()
        self._writing = asyncio.Event()
        self._holder = ""
        self._collector = Collector(workshop.store)
        self._ticker: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to show progress; wants wait for `own`."""
        self._ticker = asyncio.get_running_loop().create_task(self._tick())

    async def own(self, *, budget_seconds: float) -> None:
        """Become the writer of the store, waiting for another one within the budget.

        Raises:
            WriterBusy: names the holder.
            StoreUnsafe: the store lacks what correctness needs.
        """
        threads, self._budget_seconds = self._workshop.threads, budget_seconds
        refuse_unsafe(await threads.run(self._workshop.store.objects.probe))
        await threads.run(self._writer.acquire, budget_seconds)
        self._holder = await threads.run(lambda: self._writer.holder)
        self._writing.set()
        await self._bump()

    async def close(self) -> None:
        """Stop everything cleanly: checkpoints stay, the right to write is given back."""
        self._pause.end()
        tasks = [job.task for job in self._jobs.values() if job.task]
        tasks += [task for task in (self._ticker, self._owning) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._movers.close()
        await self._workshop.threads.run(self._writer.release)

    async def put(self, want: Want) -> PublicationState:
        """Take a want in; repeating it is harmless, a newer generation or credential replaces the running one.

        Raises:
            UsageError: code StaleGeneration.
        """
        job = self._jobs.get(want.uid)
        if job is not None:
            if want.generation < job.want.generation:
                raise UsageError(
                    f"{want.name}: want generation {job.want.generation} or newer, got {want.generation}",
                    code="StaleGeneration",
                )
            same = want.spec_hash == job.want.spec_hash
            if same and (job.state.stage is not Stage.FAILED or want.credential == job.want.credential):
                self._renew(job, want)
                return job.state
        older, job = job, _Job(want)
        self._jobs[want.uid] = job
        job.task = asyncio.get_running_loop().create_task(self._publish(job, older))
        await self._bump()
        return job.state

    def _renew(self, job: _Job, want: Want) -> None:
        """Take a new credential over; a publication that waits tries again at once."""
        if want.credential != job.want.credential:
            job.want = want
            job.again.set()

    async def delete(self, uid: str, *, scope: str) -> None:
        """Stop a publication within a second and remove its tag and manifest; what is gone already is not an error."""
        job = self._jobs.pop(uid, None)
        if job is not None:
            await self._stop(job)
            if job.publication is not None:
                await job.publication.abandon()
        self._must_write()
        await self._workshop.threads.run(self._workshop.store.remove, scope, uid)
        await self._bump()

    def _must_write(self) -> None:
        if not self._writing.is_set():
            raise WriterBusy(f"store: written by {self._holder or 'nobody yet'}", retry_after_seconds=1.0)

    async def _stop(self, job: _Job) -> None:
        if job.task is not None:
            job.task.cancel()
            await asyncio.gather(job.task, return_exceptions=True)

    async def collect(self, *, now: bool) -> Collected:
        """Delete blobs that no manifest names and no publication uses."""
        self._must_write()
        await self._workshop.threads.run(self._workshop.check_writer)
        return await self._workshop.threads.run(self._collector.collect, self._workshop.in_use(), now=now)

    async def ended(self, uid: str) -> PublicationState:
        """Wait until a publication is ready or has failed."""
        job = self._jobs[uid]
        async with self._changed:
            await self._changed.wait_for(lambda: not job.state.stage.running)
        return job.state

    def snapshot(self) -> Snapshot:
        """Say everything that is known."""
        states = tuple(job.state for job in self._jobs.values())
        return Snapshot(self._epoch, self._version, self._writing.is_set(), self._holder, states)

    async def changed(self, etag: str, *, wait_seconds: float) -> Snapshot:
        """Return a snapshot that differs from `etag`, or the same one when the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_seconds), self._changed:
                await self._changed.wait_for(lambda: self.snapshot().etag != etag)
        return self.snapshot()

    async def _bump(self) -> None:
        async with self._changed:
            self._version += 1
            self._changed.notify_all()

    async def _show(self, job: _Job, **changes: Any) -> None:
        job.state = dataclasses.replace(job.state, **changes)
        await self._bump()

    async def _tick(self) -> None:
        """Refresh the counters of what is running, and who writes while it is somebody else."""
        while True:
            await asyncio.sleep(0.5)
            if not self._writing.is_set():
                await self._look_who_writes()
            for job in tuple(self._jobs.values()):
                if job.state.stage is Stage.MOVING:
                    await self._show(job, **_counters(job.meter))

    def _own_again(self) -> None:
        """Another process took the store over: wait for it to end."""
        if self._writing.is_set():
            self._writing.clear()
            self._owning = asyncio.get_running_loop().create_task(self._owned_again())

    async def _owned_again(self) -> None:
        while not self._writing.is_set():
            try:
                await self.own(budget_seconds=self._budget_seconds)
            except AiModelsError as error:
                log.warning("store is not ours", extra={"error": error.code})
                await asyncio.sleep(self._retry.pause(1, WriterBusy("")) or self._retry.first_seconds)

    async def _look_who_writes(self) -> None:
        try:
            holder = await self._workshop.threads.run(lambda: self._writer.holder)
        except AiModelsError as error:
            log.info("holder not readable", extra={"error": error.code})
            return
        if holder != self._holder and not self._writing.is_set():
            self._holder = holder
            await self._bump()

    async def _publish(self, job: _Job, older: _Job | None) -> None:
        """The retry loop of one publication; the one that it replaces ends first."""
        if older is not None:
            await self._stop(older)
        attempt, furthest = 0, 0
        while True:
            attempt += 1
            job.again.clear()
            try:
                await self._writing.wait()
                published = await self._attempt(job, attempt)
            except AiModelsError as error:
                if isinstance(error, WriterBusy):
                    self._own_again()
                if job.meter.bytes_done > furthest:
                    furthest, attempt = job.meter.bytes_done, 1
                    await self._show(job, first_failed_at=None)
                if not await self._failed(job, error, attempt):
                    return
            except Exception:
                log.exception("publication broke", extra={"model": job.want.name})
                words = "an internal error; the coordinator's log has it"
                trouble = Trouble("PublicationFailed", "Internal", words, retryable=True)
                await self._wait(job, trouble, attempt, self._retry.most_seconds)
            else:
                await self._show(job, stage=Stage.READY, published=published, trouble=None, **_counters(job.meter))
                log.info("model published", extra={"model": job.want.name, "digest": published.digest})
                return

    async def _attempt(self, job: _Job, attempt: int) -> Published:
        job.meter = Meter(bytes_transferred=job.meter.bytes_transferred)
        await self._show(job, attempt=attempt, next_retry_at=None)

        async def shown(stage: Stage, revision: str) -> None:
            workers = len(self._movers.dispatcher.slots) if self._movers.dispatcher else 0
            await self._show(job, stage=stage, revision=revision, workers=workers, **_counters(job.meter))

        want = dataclasses.replace(job.want, revision=job.state.revision or job.want.revision)
        source = self._sources.open(want, self._gate)
        job.publication = Publication(
            want, source, self._workshop, self._movers.get, job.meter, shown, functools.partial(self._limited, job)
        )
        return await job.publication.run()

    async def _limited(self, job: _Job, error: RateLimited | None) -> None:
        """Show that a running publication waits for its source, and that it goes on."""
        if error is None:
            await self._show(job, trouble=None, next_retry_at=None)
            return
        trouble = Trouble(error.reason, error.code, error.message, retryable=True)
        await self._show(job, trouble=trouble, next_retry_at=self._wall() + (error.retry_after_seconds or 0.0))

    async def _failed(self, job: _Job, error: AiModelsError, attempt: int) -> bool:
        """Show why, and wait for the next attempt; False when there is none."""
        pause = self._retry.pause(attempt, error)
        trouble = Trouble(error.reason, error.code, error.message, retryable=pause is not None)
        log.warning("publication failed", extra={"model": job.want.name, "error": error.code, "attempt": attempt})
        if pause is None:
            if job.publication is not None:
                await job.publication.abandon()
            await self._show(job, stage=Stage.FAILED, trouble=trouble, **_counters(job.meter))
            return False
        stage = Stage.FAILED if isinstance(error, SourceDenied) else Stage.WAITING
        await self._wait(job, trouble, attempt, pause, stage=stage)
        return True

    async def _wait(
        self, job: _Job, trouble: Trouble, attempt: int, seconds: float, *, stage: Stage = Stage.WAITING
    ) -> None:
        now = self._wall()
        first = job.state.first_failed_at or now
        await self._show(job, stage=stage, trouble=trouble, next_retry_at=now + seconds, first_failed_at=first)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await job.again.wait()


def _counters(meter: Meter) -> dict[str, Any]:
    rate = meter.rate()
    return {
        "bytes_total": meter.bytes_total,
        "bytes_done": meter.bytes_done,
        "bytes_reused": meter.bytes_reused,
        "bytes_transferred": meter.bytes_transferred,
        "bytes_per_second": rate,
        "eta_seconds": meter.eta_seconds(rate),
    }
