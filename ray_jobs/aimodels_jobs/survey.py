"""Look before moving: resolve a source, choose its files, ask the store what it has, and make the plan.

Reads only. Carrying a plan out is the business of `publication`.
"""

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence

from aimodels_core import oci
from aimodels_core.digest import Digest
from aimodels_core.errors import PlanRefused
from aimodels_core.names import PUBLIC
from aimodels_core.source import ResolvedSource, SourceFile
from aimodels_core.units import TIB, human_bytes
from aimodels_jobs import formats, known, plan
from aimodels_jobs.asking import Asking
from aimodels_jobs.layout import Store
from aimodels_jobs.plan import Note, Plan, PlanFile, Way
from aimodels_jobs.selection import Pickle, Selection
from aimodels_jobs.threads import Threads

MAX_FILE_BYTES = 2 * TIB
"""Larger files would need parts larger than a mover's memory."""


@dataclasses.dataclass(frozen=True, slots=True)
class Survey:
    """A source at a revision, what is published of it, and the plan.

    Args:
        resolved: the source.
        selection: what is published.
        digests: sha256 of each selected file, as far as known before reading.
        plan: what would happen.
        linked: digests that can be read in the model's own repository already.
    """

    resolved: ResolvedSource
    selection: Selection
    digests: Mapping[str, Digest]
    plan: Plan
    linked: frozenset[Digest] = frozenset()


def reuse_scopes(repository: str) -> tuple[str, ...]:
    """Name the repositories whose links let a model reuse a blob without reading its source (design 4.1).

    >>> reuse_scopes("ns/a")
    ('ns/a', 'cluster', 'public')
    """
    return tuple(dict.fromkeys((repository, "cluster", PUBLIC)))


def link_scopes(repository: str, resolved: ResolvedSource) -> tuple[str, ...]:
    """Name the repositories that blobs of a source are linked in once they are verified."""
    return (repository, PUBLIC) if resolved.public and repository != "local" else (repository,)


async def survey(source: Asking, store: Store | None, repository: str, threads: Threads, *, pickle: Pickle) -> Survey:
    """Make the plan of publishing a source into a repository; without a store as if it were empty.

    Raises:
        AiModelsError: whatever the source raises; NoWeights, UnsafeContent, PlanRefused from the selection.
    """
    resolved = await source.resolve()
    selection = formats.select(resolved.files, choose=resolved.select, pickle=pickle)
    return await replan(source, resolved, selection, store, repository, threads)


async def replan(
    source: Asking,
    resolved: ResolvedSource,
    selection: Selection,
    store: Store | None,
    repository: str,
    threads: Threads,
) -> Survey:
    """Make the plan of a selection."""
    files = tuple(item.file for item in selection.files)
    refuse_impossible(files)
    learnt = await threads.run(known.load, store.objects, resolved) if store else {}
    digests = {file.path: digest for file in files if (digest := _digest(file, learnt)) is not None}
    sizes = {digests[file.path]: file.size_bytes for file in files if file.path in digests}
    present = await presence(store, repository, sizes, threads)
    rows = tuple(_row(item.file, item.layer.value, digests.get(item.file.path), present) for item in selection.files)
    made = Plan(
        kind=resolved.kind,
        source=resolved.canonical,
        revision=resolved.revision,
        format=selection.format.value,
        files=rows,
        notes=notes(selection),
        listing_requests=sum(source.requests_made().values()),
    )
    linked = frozenset(digest for digest, seen in present.items() if seen.here)
    return Survey(resolved, selection, digests, made, linked)


def refuse_impossible(files: Sequence[SourceFile]) -> None:
    """Refuse what cannot be published, before anything moves.

    Raises:
        PlanRefused, UnsafeContent.
    """
    oci.check_plan((file.path, file.size_bytes) for file in files)
    for file in files:
        if file.size_bytes > MAX_FILE_BYTES:
            raise PlanRefused(
                f"{file.path}: want at most {human_bytes(MAX_FILE_BYTES)}, got {human_bytes(file.size_bytes)}",
                code="FileTooLarge",
            )


def notes(selection: Selection) -> tuple[Note, ...]:
    """Render warnings and files that are left out."""
    warned = tuple(Note(warning.code, selection.entry, warning.message) for warning in selection.warnings)
    return warned + tuple(Note("LeftOut", item.path, item.why, item.size_bytes) for item in selection.dropped)


def _digest(file: SourceFile, learnt: known.Known) -> Digest | None:
    if file.digest is not None or file.git_digest is None:
        return file.digest
    return learnt.get((file.git_digest.hex, file.size_bytes))


@dataclasses.dataclass(frozen=True, slots=True)
class Presence:
    """What the store has of a blob: the whole of it, a link where this model may reuse it, one in its repository."""

    stored: bool
    usable: bool
    here: bool = False


async def presence(
    store: Store | None, repository: str, sizes: Mapping[Digest, int], threads: Threads
) -> Mapping[Digest, Presence]:
    """Ask the store for every digest, many at a time; a blob of another size than its bytes counts for none."""
    scopes = reuse_scopes(repository)
    if store is None:
        return dict.fromkeys(sizes, Presence(stored=False, usable=False))

    def look(digest: Digest) -> Presence:
        if store.blob_size(digest) != sizes[digest]:
            return Presence(stored=False, usable=False)
        linked = next((scope for scope in scopes if store.is_linked(scope, digest)), "")
        return Presence(stored=True, usable=bool(linked), here=linked == repository)

    ordered = sorted(sizes)
    found = await asyncio.gather(*(threads.run(look, digest) for digest in ordered))
    return dict(zip(ordered, found, strict=True))


def _row(file: SourceFile, layer: str, digest: Digest | None, present: Mapping[Digest, Presence]) -> PlanFile:
    seen = present[digest] if digest else Presence(stored=False, usable=False)
    way = plan.way_of(file, digest, usable=seen.usable, stored=seen.stored)
    if way is not Way.REUSE and file.digest is None and way is not Way.EMPTY:
        way = plan.way_of(file, None, usable=False, stored=False)
    return PlanFile(file, layer, way, digest)
