"""Collection: removing blobs that no model names and nobody uses, while publications go on.

Roots are the tags. What is not reachable from one goes when two passes an interval apart found it so, or at once on
request. Everything goes in an order that a crash may cut anywhere: the manifest's link, links of layers, then bytes.
A digest that this process asked for since a pass began is left to the next pass (`layout`). The caller is the writer
of the store.
"""

import dataclasses
import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set

from aimodels_core import names, oci
from aimodels_core.digest import Digest
from aimodels_core.errors import ArtifactInvalid
from aimodels_jobs.checkpoints import UNCLAIMED_SECONDS, Checkpoints
from aimodels_jobs.folder_uploads import SUFFIX as UPLOAD_SUFFIX
from aimodels_jobs.layout import Link, Store

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 3600.0
_MAX_DEPTH = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Collected:
    """What a pass removed.

    Args:
        blobs: how many blobs.
        size_bytes: what they held.
        links: links of layers and manifests.
        uploads: uploads and temporary files that nobody claimed.
        checkpoints: blobs whose checkpoints nobody claimed.
        waiting: blobs that go if the next pass finds them unreferenced too.
        used_bytes: what all blobs hold that are left.
    """

    blobs: int = 0
    size_bytes: int = 0
    links: int = 0
    uploads: int = 0
    checkpoints: int = 0
    waiting: int = 0
    used_bytes: int = 0


def unreferenced(
    blobs: Collection[Digest], references: Mapping[Digest, Collection[Digest]], in_use: Collection[Digest]
) -> frozenset[Digest]:
    """Say which blobs no manifest names and nobody uses.

    Args:
        blobs: all blobs of the store.
        references: what each tagged manifest names.
        in_use: what running publications count on.
    """
    named = {digest for manifest, inner in references.items() for digest in (manifest, *inner)}
    return frozenset(blobs) - named - frozenset(in_use)


def stale_links(
    links: Iterable[Link], references: Mapping[str, Set[Digest]], gone: Collection[Digest], in_use: Collection[Digest]
) -> tuple[Link, ...]:
    """Say which links go: those to blobs that go, and those of a repository none of whose models names the blob.

    In `public` a link stays as long as its blob: it has no models of its own.

    Args:
        links: links of layers and manifests, and entries of tags.
        references: what the models of each repository name.
        gone: blobs that are to go.
        in_use: what running publications count on.
    """
    kept = frozenset(in_use)
    return tuple(
        link
        for link in links
        if link.digest not in kept
        and (
            link.digest in gone
            or (link.repository != names.PUBLIC and link.digest not in references.get(link.repository, frozenset()))
        )
    )


def due(
    candidates: Collection[str], first_seen: Mapping[str, float], now: float, interval_seconds: float
) -> frozenset[str]:
    """Say which candidates an earlier pass, at least an interval ago, found too."""
    return frozenset(key for key in candidates if now - first_seen.get(key, now) >= interval_seconds)


class Collector:
    """Collects one store, and remembers between passes what it found.

    Args:
        store: the store; this process is its writer.
        interval_seconds: between the two passes that must agree.
        clock: Unix seconds; ages of leftovers are compared with the store's times.
        monotonic: measures the interval.
    """

    def __init__(
        self,
        store: Store,
        *,
        interval_seconds: float = INTERVAL_SECONDS,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._interval = interval_seconds
        self._clock = clock
        self._monotonic = monotonic
        self._first_seen: dict[str, float] = {}

    def collect(self, in_use: Collection[Digest], *, now: bool) -> Collected:
        """Make one pass.

        Args:
            in_use: digests that running publications count on.
            now: remove at once what is unreferenced, without waiting for a second pass.

        Raises:
            ArtifactInvalid: a tagged manifest cannot be read, so nobody knows what it names; nothing was removed.
            StoreUnavailable, WriterBusy.
        """
        return self.collect_and_list(in_use, now=now)[0]

    def collect_and_list(self, in_use: Collection[Digest], *, now: bool) -> tuple[Collected, Mapping[Digest, int]]:
        """Make one pass as `collect` does; tells also the size of every blob that is left."""
        mark = self._store.mark()
        sizes = {digest: info.size_bytes for digest, info in self._store.blobs()}
        repositories = self._store.repositories()
        tagged = {repository: self._references(repository) for repository in repositories}
        merged = {manifest: inner for found in tagged.values() for manifest, inner in found.items()}
        candidates = unreferenced(sizes, merged, in_use)
        moment = self._monotonic()
        blobs = candidates if now else frozenset(d for d in candidates if self._is_due(str(d), moment))
        named = {
            repository: frozenset(digest for manifest, inner in found.items() for digest in (manifest, *inner))
            for repository, found in tagged.items()
        }
        all_links = tuple(self._links(repositories, tagged))
        found_stale = stale_links(all_links, named, candidates, in_use)
        links = [link for link in found_stale if now or self._is_due(link.key, moment)]
        self._remember((*(str(d) for d in candidates), *(link.key for link in found_stale)), moment)
        collected = self._remove(blobs, links, sizes, mark)
        collected = self._remove_leftovers(collected, in_use)
        self._store.forget_before(mark)
        result = dataclasses.replace(
            collected,
            waiting=len(candidates) - len(blobs),
            used_bytes=sum(sizes.values()),
        )
        log.info("store collected", extra=dataclasses.asdict(result))
        return result, sizes

    def _is_due(self, key: str, moment: float) -> bool:
        return bool(due((key,), self._first_seen, moment, self._interval))

    def _remember(self, keys: Iterable[str], moment: float) -> None:
        self._first_seen = {key: self._first_seen.get(key, moment) for key in keys}

    def _references(self, repository: str) -> dict[Digest, frozenset[Digest]]:
        """Read what each tagged manifest of a repository names."""
        manifests = sorted(set(self._store.tagged(repository).values()))
        found = self._store.each(lambda digest: frozenset(self._named_by(digest, _MAX_DEPTH)), manifests)
        return dict(zip(manifests, found, strict=True))

    def _named_by(self, digest: Digest, depth: int) -> Iterator[Digest]:
        data = self._store.objects.get(names.blob_data(digest), max_bytes=oci.MAX_MANIFEST_BYTES)
        if data is None or not depth:
            return
        for child, is_manifest in references(data, digest):
            yield child
            if is_manifest:
                yield from self._named_by(child, depth - 1)

    def _links(self, repositories: Iterable[str], tagged: Mapping[str, Mapping[Digest, object]]) -> Iterator[Link]:
        """List links that may go, in the order in which they must: manifests, entries of tags, layers."""
        for repository in repositories:
            current = tagged[repository]
            for link in self._store.links(names.revisions_prefix(repository), repository):
                if link.digest not in current:
                    yield link
            for link in self._store.links(names.tags_prefix(repository), repository):
                if link.digest not in current:
                    yield link
        for repository in repositories:
            yield from self._store.links(names.layers_prefix(repository), repository)

    def _remove(
        self, blobs: Collection[Digest], links: Iterable[Link], sizes: dict[Digest, int], mark: int
    ) -> Collected:
        """Remove links and blobs; what is removed goes from `sizes` too."""
        gone = 0
        left: set[Digest] = set()
        for link in links:
            if self._store.remove_unasked(link.digest, link.key, since=mark):
                gone += 1
            else:
                left.add(link.digest)
        removed = [
            digest
            for digest in sorted(blobs)
            if digest not in left and self._store.remove_unasked(digest, names.blob_data(digest), since=mark)
        ]
        size_bytes = sum(sizes.pop(digest) for digest in removed)
        return Collected(blobs=len(removed), size_bytes=size_bytes, links=gone)

    def _remove_leftovers(self, collected: Collected, in_use: Collection[Digest]) -> Collected:
        """Remove uploads, checkpoints and temporary files that nobody has touched for a week."""
        objects, limit = self._store.objects, self._clock() - UNCLAIMED_SECONDS
        checkpoints = Checkpoints(objects, clock=self._clock)
        abandoned = checkpoints.unclaimed(in_use)
        for digest in abandoned:
            checkpoints.abandon(digest)
        used = {names.blob_data(digest) for digest in in_use}
        old = [
            upload
            for prefix in (names.blobs_prefix(), names.staging_prefix())
            for upload in list(objects.uploads(prefix))
            if 0 < upload.created < limit and upload.key not in used
        ]
        for upload in old:
            objects.abort(upload)
        files = [
            info.key
            for prefix in (names.staging_prefix(), f"{names.TEMPORARY}/")
            for info in list(objects.list(prefix))
            if info.modified < limit and not info.key.endswith(UPLOAD_SUFFIX)
        ]
        for key in files:
            objects.delete(key)
        return dataclasses.replace(collected, uploads=len(old) + len(files), checkpoints=len(abandoned))


def references(data: bytes, digest: Digest) -> tuple[tuple[Digest, bool], ...]:
    """Read which digests a manifest or an index names, and whether each is a manifest itself; any media type is read.

    Raises:
        ArtifactInvalid: not JSON of that shape: nobody knows what it names.
    """
    try:
        document = json.loads(data)
        blobs = [document[name] for name in ("config",) if document.get(name)] + list(document.get("layers") or ())
        manifests = list(document.get("manifests") or ()) + [document[n] for n in ("subject",) if document.get(n)]
        return (
            *((Digest.parse(item["digest"]), False) for item in blobs),
            *((Digest.parse(item["digest"]), True) for item in manifests),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArtifactInvalid(f"manifest {digest}: want a manifest, got {type(error).__name__}") from error
