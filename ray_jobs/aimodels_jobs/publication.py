"""The steps of one publication: survey, documents, headers, move, verify, commit, read back.

    resolve → list → plan → move and verify → commit blobs → config → manifest → tag → read back

The tag is the commit point; until then nothing of the model can be seen. Every step can be cut and done again.
"""

import asyncio
import dataclasses
import hashlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from aimodels_core import modelpack, names, oci
from aimodels_core.digest import Digest, GitDigest
from aimodels_core.errors import ArtifactInvalid, DigestMismatch, RateLimited
from aimodels_core.messages import Published, Stage, Want
from aimodels_core.oci import Artifact, ArtifactFile
from aimodels_core.source import Source, SourceFile
from aimodels_core.units import MIB
from aimodels_jobs import contents, documents, formats, headers, known, metadata, plan
from aimodels_jobs.asking import Asking
from aimodels_jobs.blob import BlobMove
from aimodels_jobs.dispatch import Dispatcher, Queue
from aimodels_jobs.headers import NeedBytes
from aimodels_jobs.headers_gguf import GgufHeader
from aimodels_jobs.headers_safetensors import SafetensorsHeader
from aimodels_jobs.metadata import ModelFacts
from aimodels_jobs.plan import Plan, PlanFile, Way
from aimodels_jobs.progress import Meter
from aimodels_jobs.selection import Notice, Selection
from aimodels_jobs.survey import Survey, link_scopes, presence, replan, survey
from aimodels_jobs.workshop import Workshop

log = logging.getLogger(__name__)

T = TypeVar("T")

_LEARN_BYTES = 32 * MIB
_BLOBS_AT_ONCE = 16
_NOTES_MOST = 50

Header = SafetensorsHeader | GgufHeader

GetDispatcher = Callable[[int], Awaitable[Dispatcher]]


class Owner(Protocol):
    """Whom a publication tells how far it is, and asks for space."""

    async def stage(self, stage: Stage, revision: str) -> None:
        """A stage begins; the revision is known now."""
        ...

    async def limited(self, error: RateLimited | None) -> None:
        """The source limits its rate; None: it goes on."""
        ...

    async def admit(self, plan: Plan) -> None:
        """Reserve the space of a plan before anything moves.

        Raises:
            CapacityReached.
        """
        ...

    async def settle(self, blobs: Mapping[Digest, int]) -> None:
        """It is published and consists of these blobs."""
        ...


class Publication:
    """Publishes one want, once.

    Args:
        want: what is wanted.
        source: where it comes from.
        workshop: shared by all publications.
        get_dispatcher: starts movers when there is something to move.
        meter: counts what moves.
        owner: told of its progress, asked for space.
        moving: blobs that were begun and are not there yet, of earlier attempts too.
    """

    def __init__(
        self,
        want: Want,
        source: Source,
        workshop: Workshop,
        get_dispatcher: GetDispatcher,
        meter: Meter,
        owner: Owner,
        moving: dict[Digest, BlobMove],
    ) -> None:
        self._want = want
        self._source = Asking(source, workshop.source_threads, owner.limited)
        self._workshop = workshop
        self._get_dispatcher = get_dispatcher
        self._meter = meter
        self._owner = owner
        self._small: dict[str, bytes] = {}
        self._moving = moving
        self._notices: tuple[Notice, ...] = ()

    async def run(self) -> Published:
        """Do every step.

        Raises:
            AiModelsError: why it cannot be done, now or ever.
        """
        try:
            return await self._steps()
        finally:
            self._source.abort()

    async def _steps(self) -> Published:
        await self._owner.stage(Stage.RESOLVING, self._want.revision)
        found = await self._survey()
        await self._owner.stage(Stage.PLANNING, found.resolved.revision)
        found, facts = await self._examine(found)
        self._meter.bytes_total = found.plan.bytes_total
        self._meter.bytes_reused = found.plan.bytes_reused
        await self._owner.admit(found.plan)
        with self._workshop.using(found.digests.values()):
            await self._owner.stage(Stage.MOVING, found.resolved.revision)
            digests = await self._move(found)
            with self._workshop.using(digests.values()):
                await self._owner.stage(Stage.COMMITTING, found.resolved.revision)
                artifact = await self._commit(found, digests, facts)
        blobs = {digests[row.file.path]: row.file.size_bytes for row in found.plan.files}
        documents_of_it = {artifact.config_digest: len(artifact.config), artifact.digest: len(artifact.manifest)}
        await self._owner.settle({**blobs, **documents_of_it})
        return Published(
            digest=str(artifact.digest),
            media_type=modelpack.ARTIFACT_TYPE,
            size_bytes=artifact.size_bytes,
            kind=found.resolved.kind,
            resolved=facts.to_status(found.resolved.kind),
            notes=self._notes(found),
        )

    def _notes(self, found: Survey) -> tuple[str, ...]:
        notices = tuple(f"{notice.code}: {notice.message}" for notice in self._notices)
        planned = tuple(f"{note.code}: {note.subject}: {note.message}" for note in found.plan.notes)
        return (*notices, *planned)[:_NOTES_MOST]

    async def abandon(self) -> None:
        """Drop what was begun and will not be gone on with: uploads and checkpoints; what another one wants stays."""
        for digest, blob in tuple(self._moving.items()):
            if not self._workshop.locks.is_wanted(digest):
                async with self._workshop.locks.hold(digest):
                    await blob.abandon()

    async def _survey(self) -> Survey:
        workshop = self._workshop
        return await survey(self._source, workshop.store, self._want.scope, workshop.threads, pickle=workshop.pickle)

    async def _examine(self, found: Survey) -> tuple[Survey, ModelFacts]:
        """Read the small documents and the headers; refuse what they show to be wrong before anything large moves."""
        read = await self._documents(found, (*found.selection.config_paths, *found.selection.index_paths))
        selection = formats.refine(found.selection, read)
        if selection != found.selection:
            workshop = self._workshop
            found = await replan(
                self._source, found.resolved, selection, workshop.store, self._want.scope, workshop.threads
            )
        weights = [row for row in found.plan.files if row.layer == modelpack.LayerClass.WEIGHT.value]
        heads = await _all([self._header(row) for row in weights], at_once=_BLOBS_AT_ONCE)
        parsed = {row.file.path: head for row, head in zip(weights, heads, strict=True) if head is not None}
        self._judge(found.selection, read, parsed)
        return found, metadata.describe(found.selection, read, parsed, found.resolved.facts)

    def _judge(self, selection: Selection, read: Mapping[str, bytes], parsed: Mapping[str, Header]) -> None:
        """Compare weight files with one another and with their indexes.

        Raises:
            UnsafeContent, NoWeights.
        """
        indexes = {path: documents.weight_map(path, read[path]) for path in selection.index_paths if path in read}
        safetensors = {path: head for path, head in parsed.items() if isinstance(head, SafetensorsHeader)}
        contents.check_safetensors(safetensors, indexes)
        gguf = {path: head for path, head in parsed.items() if isinstance(head, GgufHeader)}
        self._notices = contents.check_gguf(selection, gguf)

    async def _documents(self, found: Survey, paths: Sequence[str]) -> dict[str, bytes]:
        rows = {row.file.path: row for row in found.plan.files}
        wanted = [rows[path] for path in dict.fromkeys(paths) if path in rows]
        contents = await _all([self._document(row) for row in wanted], at_once=_BLOBS_AT_ONCE)
        return {row.file.path: content for row, content in zip(wanted, contents, strict=True)}

    async def _document(self, row: PlanFile) -> bytes:
        if row.way is Way.READ:
            self._small[row.file.path] = await self._read_small(row.file)
            return self._small[row.file.path]
        return await self._read(row, 0, row.file.size_bytes)

    async def _header(self, row: PlanFile) -> Header | None:
        """Parse the header of a weight file from its first window; None for kinds that have none."""
        size = row.file.size_bytes
        prefix = await self._read(row, 0, min(headers.FIRST_WINDOW_BYTES, size))
        head = contents.weight_header(row.file.path, prefix, size)
        while isinstance(head, NeedBytes):
            prefix += await self._read(row, len(prefix), min(head.total, size))
            head = contents.weight_header(row.file.path, prefix, size)
        return head

    async def _read(self, row: PlanFile, start: int, stop: int) -> bytes:
        """Read a range from the store if the model may use what is there, else from the source."""
        if start == stop:
            return b""
        if row.way is Way.REUSE and row.digest is not None:
            digest, store = row.digest, self._workshop.store
            return await self._workshop.threads.run(
                lambda: store.read_blob(digest, start=start, stop=stop, max_bytes=stop - start)
            )
        data = await self._source.read(row.file, start, stop)
        self._meter.add_transferred(len(data))
        return data

    async def _read_small(self, file: SourceFile) -> bytes:
        """Read a whole small file and compare it with the digest that its source publishes, twice at most.

        Raises:
            DigestMismatch.
        """
        got = ""
        for _ in range(2):
            data = await self._source.read(file, 0, file.size_bytes)
            self._meter.add_transferred(len(data))
            got = str(GitDigest.of(data))
            if file.git_digest is None or got == str(file.git_digest):
                return data
        raise DigestMismatch(file.path, want=str(file.git_digest), got=got)

    async def _move(self, found: Survey) -> dict[str, Digest]:
        """Bring every blob into the store; returns the digest of each path."""
        links = link_scopes(self._want.scope, found.resolved)
        digests = dict(found.digests)
        small = [row for row in found.plan.files if row.way in (Way.READ, Way.EMPTY)]
        stored = await _all([self._store_small(row, links) for row in small], at_once=_BLOBS_AT_ONCE)
        digests.update((row.file.path, digest) for row, digest in zip(small, stored, strict=True))
        learn = [row for row in found.plan.files if row.way is Way.LEARN]
        learnt = [dataclasses.replace(row, digest=await self._learn(row.file)) for row in learn]
        digests.update((row.file.path, row.digest) for row in learnt if row.digest)
        await self._link_reused(found)
        move = [row for row in found.plan.files if row.way in (Way.MOVE, Way.PROVE)]
        await self._move_large((*move, *learnt), links)
        if small or learn:
            objects = self._workshop.store.objects
            await self._workshop.threads.run(known.save, objects, found.resolved, _pairs(found, digests))
        return digests

    async def _store_small(self, row: PlanFile, links: Sequence[str]) -> Digest:
        data = self._small.pop(row.file.path, b"")
        if row.way is Way.READ and not data:
            data = await self._read_small(row.file)
        store = self._workshop.store
        digest = await self._workshop.threads.run(store.put_blob, data)
        for repository in links:
            await self._workshop.threads.run(store.link, repository, digest)
        self._meter.add_hashed(len(data))
        return digest

    async def _learn(self, file: SourceFile) -> Digest:
        """Read a large file once to learn its sha256, comparing it with the name its source publishes.

        Raises:
            DigestMismatch.
        """
        sha256 = hashlib.sha256()
        git = hashlib.sha1(b"blob %d\0" % file.size_bytes, usedforsecurity=False)
        for start in range(0, file.size_bytes, _LEARN_BYTES):
            stop = min(start + _LEARN_BYTES, file.size_bytes)
            data = await self._source.read(file, start, stop)
            self._meter.add_transferred(len(data))
            await self._workshop.threads.run(sha256.update, data)
            await self._workshop.threads.run(git.update, data)
        if file.git_digest is not None and git.hexdigest() != file.git_digest.hex:
            raise DigestMismatch(file.path, want=str(file.git_digest), got=f"git-sha1:{git.hexdigest()}")
        return Digest(sha256.hexdigest())

    async def _link_reused(self, found: Survey) -> None:
        """Link reused blobs where the model lives. Never in `public`: nobody has read them from this source."""
        store, scope = self._workshop.store, self._want.scope
        reused = {row.digest for row in found.plan.files if row.way is Way.REUSE and row.digest}
        links = [self._workshop.threads.run(store.link, scope, digest) for digest in sorted(reused - found.linked)]
        await _all(links, at_once=_BLOBS_AT_ONCE)
        checkpoints = self._workshop.checkpoints
        for digest in await self._workshop.threads.run(checkpoints.left_behind, reused, scope):
            async with self._workshop.locks.hold(digest):
                await self._workshop.threads.run(checkpoints.abandon, digest, scope)

    async def _move_large(self, rows: Sequence[PlanFile], links: Sequence[str]) -> None:
        """Move each distinct blob once, largest first."""
        distinct = {row.digest: row for row in reversed(rows) if row.digest}
        if not distinct:
            return
        twice = sum(row.file.size_bytes for row in rows) - sum(row.file.size_bytes for row in distinct.values())
        self._meter.bytes_reused += twice
        ordered = plan.order(tuple(distinct.values()))
        dispatcher = await self._get_dispatcher(sum(row.file.size_bytes for row in ordered))
        sizes = {row.file.path: row.file.size_bytes for row in ordered}
        allowed = plan.assign(sizes, len(dispatcher.slots), portable=dispatcher.portable)
        moves = [
            self._move_one(row, links, dispatcher, allowed[row.file.path], place) for place, row in enumerate(ordered)
        ]
        await _all(moves, at_once=_BLOBS_AT_ONCE)

    async def _move_one(
        self, row: PlanFile, links: Sequence[str], dispatcher: Dispatcher, allowed: Sequence[int], place: int
    ) -> None:
        digest = row.digest
        if digest is None:
            raise ValueError(f"{row.file.path}: want a digest")
        workshop = self._workshop
        async with workshop.locks.hold(digest):
            seen = (await presence(workshop.store, self._want.scope, {digest: row.file.size_bytes}, workshop.threads))[
                digest
            ]
            way = plan.way_of(row.file, digest, usable=seen.usable, stored=seen.stored)
            if way is Way.REUSE:
                self._meter.add_hashed(row.file.size_bytes)
                return
            now = dataclasses.replace(row, way=way)
            queue = Queue(self._want.uid, place)
            blob = BlobMove(now, self._source, links, workshop, dispatcher, self._meter, queue=queue, allowed=allowed)
            self._moving[digest] = blob
            await blob.move()
            del self._moving[digest]

    async def _commit(self, found: Survey, digests: Mapping[str, Digest], facts: ModelFacts) -> Artifact:
        """Write config and manifest, then the tag; read back what was written. Not cut short: the tag moves or stays.

        Raises:
            ArtifactInvalid: what was read back is not what was meant.
        """
        rows = found.plan.files
        files = [ArtifactFile(row.file.path, row.file.size_bytes, digests[row.file.path]) for row in rows]
        artifact = oci.build(oci.RECIPE, files, facts.to_config())
        store, scope = self._workshop.store, self._want.scope

        def write() -> None:
            self._workshop.check_writer()
            steps: list[Callable[[], object]] = [
                lambda: store.link(scope, artifact.config_digest),
                lambda: store.put_blob(artifact.config),
            ]
            if names.is_mapped(self._want.uid):
                record = names.name_record(self._want.uid)
                steps.append(lambda: store.objects.put(record, self._want.name.encode()))
            store.each(lambda step: step(), steps)
            store.put_manifest(scope, self._want.uid, artifact.manifest)
            self._read_back(artifact)

        await self._workshop.threads.to_end(write)
        return artifact

    def _read_back(self, artifact: Artifact) -> None:
        """Read what the tag names, the manifest and the config, and compare them with what was meant; blocks."""
        store, scope, tag = self._workshop.store, self._want.scope, self._want.uid
        reads: tuple[Callable[[], bytes], ...] = (
            lambda: str(store.resolve_tag(scope, tag)).encode(),
            lambda: store.read_manifest(scope, artifact.digest),
            lambda: store.read_blob(artifact.config_digest, max_bytes=modelpack.MAX_CONFIG_BYTES),
        )
        named, manifest, config = store.each(lambda read: read(), reads)
        if (named.decode(), manifest) != (str(artifact.digest), artifact.manifest):
            raise ArtifactInvalid(f"{self._want.name}: the manifest read back differs from the one written")
        if violations := oci.validate(oci.parse_manifest(manifest), config):
            raise ArtifactInvalid(f"{self._want.name}: {'; '.join(violations)[:2000]}")


def _pairs(found: Survey, digests: Mapping[str, Digest]) -> dict[SourceFile, Digest]:
    return {row.file: digests[row.file.path] for row in found.plan.files}


async def _all(calls: Sequence[Coroutine[Any, Any, T]], *, at_once: int) -> list[T]:
    """Run coroutines, a bounded number at once; the first error cancels the rest, which end before it is raised."""
    limit = asyncio.Semaphore(at_once)

    async def one(call: Coroutine[Any, Any, T]) -> T:
        async with limit:
            return await call

    tasks = [asyncio.get_running_loop().create_task(one(call)) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for call in calls:
            call.close()
        raise
