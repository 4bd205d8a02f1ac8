"""Many publications over one store: wants come in, snapshots go out, one writer.

The same class runs in the process of a command line and as a detached actor with an HTTP API (`service`). Truth is in
the store and with whoever sends wants; everything here is memory. What becomes of one want is in `job`.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable

from aimodels_core.errors import AiModelsError, UsageError, WriterBusy
from aimodels_core.messages import PublicationState, Snapshot, Stage, Want
from aimodels_core.nodes import NodeWant
from aimodels_jobs import figures
from aimodels_jobs.admission import Admission
from aimodels_jobs.collection import Collected
from aimodels_jobs.governor import RateGate
from aimodels_jobs.job import Job, Sources, Surroundings
from aimodels_jobs.movers import Movers
from aimodels_jobs.nodes import Agents, Nodes
from aimodels_jobs.objects import refuse_unsafe
from aimodels_jobs.retry import Retry
from aimodels_jobs.threads import Pause
from aimodels_jobs.workshop import Workshop
from aimodels_jobs.writer import Writer

log = logging.getLogger(__name__)

_REFRESH_SECONDS = 0.5
_LOOK_SECONDS = 2.0


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
        self._movers = movers
        self._pause = pause
        self._writing = asyncio.Event()
        self._gate = gate
        self._tally = figures.Tally()
        self._admission = Admission(workshop.store, workshop.threads, workshop.capacity, lambda: self.collect(now=True))
        self._around = Surroundings(
            workshop,
            sources,
            movers,
            gate,
            retry,
            wall_clock,
            self._writing,
            changed=self._bump,
            admission=self._admission,
            tally=self._tally,
        )
        self._jobs: dict[str, Job] = {}
        self._epoch = secrets.token_hex(8)
        self._version = 0
        self._changed = asyncio.Condition()
        self._holder = ""
        self._ticker: asyncio.Task[None] | None = None
        self._nodes: Nodes | None = None
        self._asking: asyncio.Task[None] | None = None

    def serve_nodes(self, agents: Agents) -> None:
        """Look after caches of nodes too, from `start` on."""
        self._nodes = Nodes(agents, self._bump)

    async def start(self) -> None:
        """Begin to show progress; wants wait for `own`."""
        self._ticker = asyncio.get_running_loop().create_task(self._tick())
        if self._nodes is not None:
            self._asking = asyncio.get_running_loop().create_task(self._nodes.run())

    async def own(self, *, budget_seconds: float) -> None:
        """Become the writer of the store, waiting for another one within the budget.

        Raises:
            WriterBusy: names the holder.
            StoreUnsafe: the store lacks what correctness needs.
        """
        threads = self._workshop.threads
        refuse_unsafe(await threads.run(self._workshop.store.objects.probe))
        await threads.run(self._writer.acquire, budget_seconds)
        self._holder = await threads.run(lambda: self._writer.holder)
        await self._admission.look()
        self._writing.set()
        await self._bump()

    async def still_writes(self) -> bool:
        """Look whether this process is still the writer; wants wait when it is not."""
        try:
            await self._workshop.threads.run(self._writer.check)
        except WriterBusy:
            self._writing.clear()
            await self._bump()
        return self._writing.is_set()

    async def keep_owning(self, *, budget_seconds: float) -> None:
        """Be the writer until cancelled; become it again when another process took over.

        Raises:
            WriterBusy: not within the budget.
            StoreUnsafe.
        """
        while True:
            await self.own(budget_seconds=budget_seconds)
            while await self.still_writes():  # noqa: ASYNC110 - it asks the store: there is no event to wait for
                await asyncio.sleep(_LOOK_SECONDS)

    async def close(self) -> None:
        """Stop everything cleanly: checkpoints stay, the right to write is given back."""
        self._pause.end()
        for task in filter(None, (self._ticker, self._asking)):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await asyncio.gather(*(job.stop() for job in self._jobs.values()))
        await self._admission.close()
        await self._movers.close()
        await self._workshop.threads.run(self._writer.release)

    async def put(self, want: Want) -> PublicationState:
        """Take a want in; repeating it is harmless, a newer generation replaces the running one.

        A changed credential is tried at once.

        Raises:
            UsageError: code StaleGeneration.
        """
        job = self._jobs.get(want.uid)
        if job is not None and want.generation < job.want.generation:
            raise UsageError(
                f"{want.name}: want generation {job.want.generation} or newer, got {want.generation}",
                code="StaleGeneration",
            )
        if job is not None and _repeats(want, job):
            job.renew(want)
            return job.state
        job = Job(want, self._around, older=job)
        self._jobs[want.uid] = job
        await self._bump()
        return job.state

    def put_node(self, want: NodeWant) -> None:
        """Take in what the cache of a node should hold.

        Raises:
            UsageError: nodes have no caches here.
        """
        if self._nodes is None:
            raise UsageError("nodes: this coordinator serves none", code="NoNodes")
        self._nodes.put(want)

    async def delete(self, uid: str, *, scope: str) -> None:
        """Stop a publication within a second and remove its tag and manifest; what is gone already is not an error.

        Raises:
            WriterBusy: this process is not the writer; ask again.
        """
        job = self._jobs.pop(uid, None)
        if job is not None:
            await job.stop()
            await job.abandon()
        try:
            self._must_write()
            await self._workshop.threads.run(self._workshop.store.remove, scope, uid)
        finally:
            await self._admission.leave(uid)
        await self._bump()

    async def collect(self, *, now: bool) -> Collected:
        """Delete blobs that no manifest names and no publication uses.

        Raises:
            WriterBusy: this process is not the writer; ask again.
        """
        self._must_write()
        await self._workshop.threads.run(self._workshop.check_writer)
        collected = await self._admission.collect(self._workshop.in_use, now=now)
        self._tally.collected(collected)
        return collected

    async def ended(self, uid: str) -> PublicationState:
        """Wait until a publication is ready or has failed."""
        job = self._jobs[uid]
        async with self._changed:
            await self._changed.wait_for(lambda: not job.state.stage.running)
        return job.state

    def snapshot(self) -> Snapshot:
        """Say everything that is known."""
        states = tuple(job.state for job in self._jobs.values())
        nodes = self._nodes.reports if self._nodes is not None else ()
        return Snapshot(self._epoch, self._version, self._writing.is_set(), self._holder, states, nodes)

    def metrics(self) -> str:
        """Render counters and gauges in Prometheus' text format."""
        connections = self._movers.connections
        return figures.render(self.snapshot(), self._tally, self._gate, connections, self._admission.ledger)

    async def changed(self, etag: str, *, wait_seconds: float) -> Snapshot:
        """Return a snapshot that differs from `etag`, or the same one when the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_seconds), self._changed:
                await self._changed.wait_for(lambda: self.snapshot().etag != etag)
        return self.snapshot()

    def _must_write(self) -> None:
        if not self._writing.is_set():
            raise WriterBusy(f"store: written by {self._holder or 'nobody yet'}", retry_after_seconds=1.0)

    async def _bump(self) -> None:
        async with self._changed:
            self._version += 1
            self._changed.notify_all()

    async def _tick(self) -> None:
        """Refresh the counters of what is running, and who writes while it is somebody else."""
        while True:
            await asyncio.sleep(_REFRESH_SECONDS)
            if not self._writing.is_set():
                await self._look_who_writes()
            for job in tuple(self._jobs.values()):
                await job.refresh()

    async def _look_who_writes(self) -> None:
        try:
            holder = await self._workshop.threads.run(lambda: self._writer.holder)
        except AiModelsError as error:
            log.info("holder not readable", extra={"error": error.code})
            return
        if holder != self._holder and not self._writing.is_set():
            self._holder = holder
            await self._bump()


def _repeats(want: Want, job: Job) -> bool:
    """Say whether a want only repeats what a job works on; one that failed begins anew with another credential."""
    same = want.spec_hash == job.want.spec_hash
    return same and (job.state.stage is not Stage.FAILED or want.credential == job.want.credential)
