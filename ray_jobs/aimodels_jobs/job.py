"""One want and what has become of it: attempts, waits between them, and the state that a snapshot shows.

The steps of an attempt are in `publication`; which wants there are is the business of `coordinator`.
"""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from aimodels_core.digest import Digest
from aimodels_core.errors import AiModelsError, CapacityReached, RateLimited, SourceDenied, StoreFull, WriterBusy
from aimodels_core.messages import PublicationState, Published, Stage, Trouble, Want
from aimodels_core.source import Gate, Source
from aimodels_jobs.admission import Admission
from aimodels_jobs.blob import BlobMove
from aimodels_jobs.figures import Tally
from aimodels_jobs.movers import Movers
from aimodels_jobs.plan import Plan
from aimodels_jobs.progress import Meter
from aimodels_jobs.publication import Publication
from aimodels_jobs.retry import Retry
from aimodels_jobs.workshop import Workshop

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
class Surroundings:
    """What every job of a coordinator uses.

    Args:
        workshop: the store and what works on it.
        sources: makes sources.
        movers: makes the dispatcher.
        gate: the governor of hub requests.
        retry: the retry loop's times.
        wall_clock: Unix seconds.
        writing: set while this process may write to the store.
        changed: called after each change of a state.
        admission: who may store how much.
        tally: counts since the coordinator's start.
    """

    workshop: Workshop
    sources: Sources
    movers: Movers
    gate: Gate
    retry: Retry
    wall_clock: Callable[[], float]
    writing: asyncio.Event
    changed: Callable[[], Awaitable[None]]
    admission: Admission
    tally: Tally


class Job:
    """Works on one want until it is published, has failed for good, or is stopped.

    Args:
        want: what is wanted.
        around: shared with all other jobs.
        older: the job that this one replaces; it ends first, and what it began is abandoned with what this one began.
    """

    def __init__(self, want: Want, around: Surroundings, older: "Job | None" = None) -> None:
        self.want = want
        self.state = PublicationState(want.uid, want.generation, want.spec_hash, revision=want.revision)
        self._around = around
        arrived: float = around.wall_clock() if older is None else older.created
        self.created: float = want.created or arrived
        self._passes = 0
        self._meter = Meter()
        self._moving: dict[Digest, BlobMove] = {}
        self._publication: Publication | None = None
        self._older = older
        self._stopped = False
        self._again = asyncio.Event()
        around.admission.expect(want.uid, self.created)
        self._task = asyncio.get_running_loop().create_task(self._work())

    def renew(self, want: Want) -> None:
        """Take a repeated want over; a new credential is tried at once."""
        if want.credential != self.want.credential:
            self.want = want
            self._again.set()

    async def stop(self) -> None:
        """End whatever is under way; what was stored stays, to be gone on with."""
        if not self._stopped:  # a second cancel would cut short the cleaning up after the first
            self._stopped = True
            self._task.cancel()
        await asyncio.wait({self._task})
        await self._end_older()

    async def _end_older(self) -> None:
        if self._older is not None:
            await self._older.stop()
            self._moving.update(self._older._moving)  # noqa: SLF001 - of the same class
            self._publication = self._publication or self._older._publication  # noqa: SLF001
            self._older = None

    async def abandon(self) -> None:
        """Drop what was begun, after `stop`; what the store does not let go of now is collected later."""
        if self._publication is not None:
            try:
                await self._publication.abandon()
            except AiModelsError as error:
                log.warning("leftovers stay", extra={"model": self.want.name, "error": error.code})

    async def refresh(self) -> None:
        """Bring the counters of the state up to date."""
        if self.state.stage is Stage.MOVING:
            await self._show(**_counters(self._meter))

    async def _show(self, **changes: Any) -> None:
        self.state = dataclasses.replace(self.state, **changes)
        await self._around.changed()

    async def _work(self) -> None:
        """The retry loop."""
        await self._end_older()
        attempt, furthest = 0, 0
        while True:
            attempt += 1
            self._again.clear()
            try:
                await self._around.writing.wait()
                published = await self._attempt(attempt)
            except AiModelsError as error:
                if self._meter.bytes_done > furthest:
                    furthest, attempt = self._meter.bytes_done, 1
                    await self._show(first_failed_at=None)
                await self._around.admission.unexpect(self.want.uid)
                if isinstance(error, CapacityReached):
                    await self._wait_for_space()
                    attempt -= 1
                elif not await self._failed(error, attempt):
                    return
            except Exception:
                log.exception("publication broke", extra={"model": self.want.name})
                words = "an internal error; the coordinator's log has it"
                trouble = Trouble("PublicationFailed", "Internal", words, retryable=True)
                await self._wait(trouble, self._around.retry.most_seconds, Stage.WAITING)
            else:
                self._around.tally.reused_bytes += self._meter.bytes_reused
                await self._show(stage=Stage.READY, published=published, trouble=None, **_counters(self._meter))
                log.info("model published", extra={"model": self.want.name, "digest": published.digest})
                return

    async def _attempt(self, attempt: int) -> Published:
        around = self._around
        self._meter = Meter(bytes_transferred=self._meter.bytes_transferred, tell=around.tally.moved)
        self._passes = around.admission.passes
        await self._show(attempt=attempt, next_retry_at=None)
        want = dataclasses.replace(self.want, revision=self.state.revision or self.want.revision)
        source = around.sources.open(want, around.gate)
        get = around.movers.get
        self._publication = Publication(
            want,
            source,
            around.workshop,
            get,
            self._meter,
            self,
            self._moving,
        )
        return await self._publication.run()

    async def stage(self, stage: Stage, revision: str) -> None:
        """Show a stage of the publication."""
        await self._show(stage=stage, revision=revision, workers=self._around.movers.count, **_counters(self._meter))

    async def admit(self, plan: Plan) -> None:
        """Reserve the space of a plan (see `publication.Owner`)."""
        await self._around.admission.admit(self.want.uid, self.created, plan, since=self._passes)

    async def settle(self, blobs: Mapping[Digest, int]) -> None:
        """Say of what the published model consists (see `publication.Owner`)."""
        await self._around.admission.settle(self.want.uid, blobs)

    async def limited(self, error: RateLimited | None) -> None:
        """Show that the publication waits for its source, and that it goes on."""
        if error is None:
            await self._show(trouble=None, next_retry_at=None)
            return
        trouble = Trouble(error.reason, error.code, error.message, retryable=True)
        until = self._around.wall_clock() + (error.retry_after_seconds or 0.0)
        await self._around.admission.unexpect(self.want.uid)
        await self._show(trouble=trouble, next_retry_at=until)

    async def _failed(self, error: AiModelsError, attempt: int) -> bool:
        """Show why, and wait for the next attempt; False when there is none."""
        if isinstance(error, WriterBusy):
            self._around.writing.clear()
        pause = self._around.retry.pause(attempt, error)
        trouble = Trouble(error.reason, error.code, error.message, retryable=pause is not None)
        log.warning("publication failed", extra={"model": self.want.name, "error": error.code, "attempt": attempt})
        if pause is None:
            await self.abandon()
            await self._around.admission.leave(self.want.uid)
            await self._show(stage=Stage.FAILED, trouble=trouble, **_counters(self._meter))
            return False
        self._around.tally.retries[error.reason, type(error).__name__] += 1
        stage = Stage.FAILED if isinstance(error, SourceDenied) else Stage.WAITING
        if isinstance(error, StoreFull):
            with self._around.admission.waking(self._again, space=True):
                await self._wait(trouble, pause, stage)
        else:
            await self._wait(trouble, pause, stage)
        return True

    async def _wait_for_space(self) -> None:
        """Wait, however long, until the plan has its place in the store; say what it needs as that changes."""
        admission, first = self._around.admission, self._around.wall_clock()
        with admission.waking(self._again):
            while words := admission.trouble(self.want.uid):
                self._again.clear()
                trouble = Trouble(CapacityReached.reason, CapacityReached.__name__, words, retryable=True)
                if trouble != self.state.trouble or self.state.stage is not Stage.WAITING:
                    log.info("publication waits for space", extra={"model": self.want.name, "detail": words})
                    shown = {"trouble": trouble, "first_failed_at": first, **_counters(self._meter)}
                    await self._show(stage=Stage.WAITING, next_retry_at=None, **shown)
                await self._again.wait()
        await self._show(trouble=None, first_failed_at=None)

    async def _wait(self, trouble: Trouble, seconds: float, stage: Stage) -> None:
        now = self._around.wall_clock()
        first = self.state.first_failed_at or now
        await self._show(stage=stage, trouble=trouble, next_retry_at=now + seconds, first_failed_at=first)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._again.wait()


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
