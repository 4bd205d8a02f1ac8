"""One blob on its way: its runs in order through movers, its hash along them, its checkpoints, its commit.

Nothing is visible before the digest matched: the runs are sent into an upload, the hash state travels from run to run,
and only a matching digest completes the upload. A process that dies leaves checkpoints; the next one goes on from the
last of them. What a run does when something fails is the business of `flight`.
"""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import ParamSpec

from aimodels_core.digest import Digest
from aimodels_core.errors import AiModelsError, DigestMismatch, NotPublished, StoreUnavailable
from aimodels_core.source import ReadTicket
from aimodels_jobs import plan
from aimodels_jobs.asking import Asking
from aimodels_jobs.checkpoints import Record, Resume
from aimodels_jobs.dispatch import Dispatcher, Queue
from aimodels_jobs.flight import Flight, Pace
from aimodels_jobs.objects import Upload
from aimodels_jobs.orders import DiscardTicket, PartRecord, WriteTicket
from aimodels_jobs.plan import Part, PlanFile, Run, Way
from aimodels_jobs.progress import Meter
from aimodels_jobs.threads import Threads
from aimodels_jobs.workshop import Workshop

log = logging.getLogger(__name__)

P = ParamSpec("P")

_WHOLE_TRIES = 2
"""A digest that differs twice is the source's fault (design 2.1)."""


class BlobMove:
    """Moves one file with a published digest; `Way.PROVE` reads and hashes it without storing.

    Args:
        file: the row of the plan.
        source: where it is read.
        repositories: where it is linked once its digest matched; what is on its way belongs to the last of them.
        workshop: the coordinator's.
        dispatcher: of its movers.
        meter: the publication's.
        queue: of its runs.
        allowed: slots that may take its runs.
    """

    def __init__(
        self,
        file: PlanFile,
        source: Asking,
        repositories: Sequence[str],
        workshop: Workshop,
        dispatcher: Dispatcher,
        meter: Meter,
        *,
        queue: Queue,
        allowed: Sequence[int],
    ) -> None:
        if file.digest is None:
            raise ValueError(f"{file.file.path}: want a digest")
        self._file = file
        self._digest: Digest = file.digest
        self._source = source
        self._repositories = repositories
        self._workshop = workshop
        self._dispatcher = dispatcher
        self._queue = queue
        self._allowed = allowed
        self._proving = file.way is Way.PROVE
        self._upload: Upload | None = None
        self._recorded = False
        self._recheck = False
        self._pace = Pace(workshop.patience)
        self.scope = repositories[-1]
        self.path = file.file.path
        self.checksum = workshop.store.objects.checksum
        self.patience = workshop.patience
        self.meter = meter

    async def read_ticket(self, refused: ReadTicket | None) -> ReadTicket:
        """Return leave to read the file (see `flight.Errand`)."""
        if refused is not None:
            await self._touch_store()
            return await self._source.renew(self._file.file, refused)
        return await self._source.ticket(self._file.file)

    async def _touch_store(self) -> None:
        """Ask the store something: if it was its ticket that was refused, its client reads ended credentials anew."""
        upload = self._upload
        if upload is not None:
            with contextlib.suppress(StoreUnavailable):
                await self._workshop.threads.run(self._workshop.store.objects.head, upload.key)

    async def write_tickets(self, parts: Sequence[Part]) -> tuple[WriteTicket, ...]:
        """Return leave to write these parts (see `flight.Errand`)."""
        upload = self._upload
        if upload is None:
            return tuple(DiscardTicket() for _ in parts)
        objects = self._workshop.store.objects
        return await self._workshop.threads.run(
            lambda: tuple(objects.part_ticket(upload, p.number, p.start, p.stop) for p in parts)
        )

    def overlapped(self) -> None:
        """Two attempts of one part may have been written at once: read back before the commit (see `flight.Errand`)."""
        self._recheck = True

    async def move(self) -> None:
        """Bring the blob into the store and link it, or prove that the source has it and link it.

        Raises:
            DigestMismatch: twice in a row.
            AiModelsError: what `flight.Flight.fetch` or the store raise.
        """
        for attempt in range(1, _WHOLE_TRIES + 1):
            try:
                records, got = await self._pass()
                if got == self._digest.hex:
                    return await self._commit(records)
                error: AiModelsError = DigestMismatch(self.path, want=str(self._digest), got=f"sha256:{got}")
            except (NotPublished, StoreUnavailable) as caught:
                if caught.code not in ("UploadGone", "PartsDiffer"):
                    raise
                error = caught
            log.warning("blob starts anew", extra={"path": self.path, "attempt": attempt, "error": error.code})
            await self._discard()
            if attempt == _WHOLE_TRIES:
                raise error
        raise AssertionError("unreachable")

    async def _pass(self) -> tuple[tuple[PartRecord, ...], str]:
        """Move and hash everything that is not kept from an earlier process; return all records and the digest."""
        resume = await self._prepare()
        cut = plan.runs(self._file.file.size_bytes)
        records, state = list(resume.records), resume.state
        self.meter.add_hashed(sum(r.size_bytes for r in records))
        if resume.digest_hex:
            return tuple(records), resume.digest_hex
        convoy = _Convoy(self.launch, self._workshop.threads, self.meter, cut[resume.next_run :])
        try:
            digest_hex = ""
            async for flight in convoy:
                report = await flight.hash(state, last=flight.run.index == cut[-1].index)
                state, digest_hex = report.state, report.digest_hex
                records.extend(flight.records)
                convoy.arrived(flight)
                convoy.save(self.save, flight.run.index, flight.records, state, digest_hex)
            await convoy.saved()
        finally:
            await convoy.close()
            await self._drop_unless(recorded=bool(digest_hex) or self._recorded)
        return tuple(records), digest_hex

    async def _drop_unless(self, *, recorded: bool) -> None:
        """Drop an upload that no later attempt could find: it holds all the space of its blob."""
        upload = self._upload
        if upload is not None and not recorded:
            self._upload = None
            with contextlib.suppress(AiModelsError):  # what stopped the blob is news; `_prepare` tries this again
                await self._workshop.threads.run(self._workshop.store.objects.abort, upload)

    async def _prepare(self) -> Resume:
        if self._proving:
            return Resume.nothing()
        checkpoints, objects = self._workshop.checkpoints, self._workshop.store.objects
        size = self._file.file.size_bytes
        load = checkpoints.load
        resume = await self._workshop.threads.run(load, self._digest, self.scope, size, plan.part_bytes(size))
        if resume.upload is None:
            key = self._workshop.store.blob_key(self._digest)
            await self._workshop.threads.run(checkpoints.drop_unrecorded, self._digest)
            upload = await self._workshop.threads.run(objects.create_upload, key, size)
            resume = dataclasses.replace(Resume.nothing(), upload=upload)
        self._upload, self._recorded = resume.upload, bool(resume.records)
        return resume

    def save(self, run: int, records: Sequence[PartRecord], state: bytes, digest_hex: str) -> None:
        """Write the checkpoint of a run, if its hash state means anything elsewhere; blocks."""
        if self._upload is not None and self._dispatcher.portable:
            record = Record(self._upload, run, tuple(records), state, digest_hex)
            self._workshop.checkpoints.save(self._digest, self.scope, record)
            self._recorded = True

    async def launch(self, run: Run) -> Flight:
        """Wait for a lease and make the flight of a run."""
        host = (await self.read_ticket(None)).host
        lease = await self._dispatcher.lease(
            self._queue, host=host, size_bytes=run.size_bytes, wanted=len(run.parts), allowed=self._allowed
        )
        return Flight(run, self, self._dispatcher, lease, self._pace)

    async def _commit(self, records: Sequence[PartRecord]) -> None:
        """Link first: a link without its blob is harmless, a blob without its link would be proved again."""
        store, upload = self._workshop.store, self._upload
        await self._workshop.threads.run(self._workshop.check_writer)
        for repository in self._repositories:
            await self._workshop.threads.run(store.link, repository, self._digest)
        if upload is None:  # somebody else stored the blob: what this scope had begun before is of no use any more
            await self._workshop.threads.run(self._workshop.checkpoints.abandon, self._digest, self.scope)
        else:
            await self._workshop.threads.run(lambda: store.objects.complete(upload, records, recheck=self._recheck))
            await self._workshop.threads.run(self._workshop.checkpoints.discard, self._digest, self.scope)

    async def abandon(self) -> None:
        """Drop what was begun and will not be gone on with; an upload that no run was recorded of yet too."""
        if self._upload is not None:
            await self._workshop.threads.run(self._workshop.store.objects.abort, self._upload)
        if not self._proving:
            await self._workshop.threads.run(self._workshop.checkpoints.abandon, self._digest, self.scope)

    async def _discard(self) -> None:
        upload, self._upload, self._recheck = self._upload, None, False
        if upload is not None:
            await self._workshop.threads.run(self._workshop.store.objects.abort, upload)
            await self._workshop.threads.run(self._workshop.checkpoints.discard, self._digest, self.scope)


class _Convoy:
    """The flights of a blob: launched in order as leases allow, handed out in order as they land."""

    def __init__(
        self, launch: Callable[[Run], Awaitable[Flight]], threads: Threads, meter: Meter, runs: Sequence[Run]
    ) -> None:
        self._launch = launch
        self._threads = threads
        self._meter = meter
        self._left = len(runs)
        self._launched: asyncio.Queue[Flight | Exception] = asyncio.Queue()
        self._open: dict[Flight, asyncio.Task[None]] = {}
        self._saves: set[asyncio.Task[None]] = set()
        self._launcher = asyncio.get_running_loop().create_task(self._launch_all(runs))

    async def _launch_all(self, runs: Sequence[Run]) -> None:
        try:
            for run in runs:
                flight = await self._launch(run)
                self._meter.watch(flight)
                self._open[flight] = asyncio.get_running_loop().create_task(flight.fetch())
                self._launched.put_nowait(flight)
        except Exception as error:  # handed over to the one who waits for the next flight
            self._launched.put_nowait(error)

    def __aiter__(self) -> "_Convoy":
        return self

    async def __anext__(self) -> Flight:
        if not self._left:
            raise StopAsyncIteration
        self._left -= 1
        flight = await self._launched.get()
        if isinstance(flight, Exception):
            raise flight
        await self._open[flight]
        return flight

    def arrived(self, flight: Flight) -> None:
        """A flight is hashed: its memory is free."""
        self._open.pop(flight)
        self._meter.forget(flight)
        self._meter.add_hashed(flight.run.size_bytes)
        flight.release()

    def save(self, call: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Write a checkpoint beside the next run's hashing."""
        self._saves.add(asyncio.get_running_loop().create_task(self._threads.run(call, *args, **kwargs)))

    async def saved(self) -> None:
        """Wait until every checkpoint is written."""
        await asyncio.gather(*self._saves)

    async def close(self) -> None:
        """Stop what is still on its way and give its leases back; checkpoints under way get written."""
        self._launcher.cancel()
        for task in self._open.values():
            task.cancel()
        await asyncio.gather(self._launcher, *self._open.values(), return_exceptions=True)
        await asyncio.gather(*(flight.drop() for flight in self._open))
        for flight in self._open:
            self._meter.forget(flight)
            flight.release()
        self._open.clear()
        await asyncio.gather(*self._saves, return_exceptions=True)
