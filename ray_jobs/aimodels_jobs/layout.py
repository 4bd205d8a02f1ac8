"""A store: distribution's own layout over objects, so that any registry can serve what was written here.

Blobs have one place each; a link per repository makes a blob readable there; a tag's current link is the commit point
and is written last, after every blob was looked up again. Keys come from `aimodels_core.names`. What a blob is for,
and how its bytes get there, does not belong here.

Nothing is remembered about what the store has. The one thing kept is when this process last asked for a digest, so
that collection never removes what a publication has just counted on.
"""

import collections
import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeVar

from aimodels_core import names, oci
from aimodels_core.digest import Digest
from aimodels_core.errors import ArtifactInvalid, NotPublished, StoreUnavailable
from aimodels_jobs.objects import ObjectInfo, Objects
from aimodels_jobs.threads import each

T = TypeVar("T")
R = TypeVar("R")

_AT_ONCE = 16
_MAX_LINK_BYTES = 256
_DELETE_SECONDS = 120.0


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """A key that names a digest: a layer or a manifest within a repository, or an entry of a tag's index."""

    repository: str
    digest: Digest
    key: str


class Store:
    """A store of models.

    Args:
        objects: where it lies.
        at_once: how many requests of one call go out at a time.
    """

    def __init__(self, objects: Objects, *, at_once: int = _AT_ONCE) -> None:
        self.objects = objects
        self._at_once = at_once
        self._asked = _Asked()

    def blob_key(self, digest: Digest) -> str:
        """Key of a blob's bytes."""
        return names.blob_data(digest)

    def blob_size(self, digest: Digest) -> int | None:
        """Size of a blob in bytes; None when the store does not have it."""
        self._asked.note(digest)
        found = self.objects.head(names.blob_data(digest))
        return None if found is None else found.size_bytes

    def put_blob(self, data: bytes) -> Digest:
        """Write a small blob, unless it is there."""
        digest = Digest.of(data)
        if self.blob_size(digest) != len(data):
            self.objects.put(names.blob_data(digest), data)
        return digest

    def read_blob(self, digest: Digest, *, max_bytes: int, start: int = 0, stop: int | None = None) -> bytes:
        """Read a blob, or [start, stop) of it; a whole one is compared with its digest.

        Raises:
            StoreUnavailable: code BlobsGone: it is not there, or shorter.
            ArtifactInvalid: longer than `max_bytes`, or other bytes than its name says.
        """
        self._asked.note(digest)
        data = self.objects.get(names.blob_data(digest), max_bytes=max_bytes, start=start, stop=stop)
        if data is None or (stop is not None and len(data) != stop - start):
            raise StoreUnavailable(f"blob {digest}: want it in the store, got nothing or less", code="BlobsGone")
        if start == 0 and stop is None and Digest.of(data) != digest:
            raise ArtifactInvalid(f"blob {digest}: stored bytes differ: got {Digest.of(data)}", code="BytesDiffer")
        return data

    def is_linked(self, repository: str, digest: Digest) -> bool:
        """Say whether a blob is readable within a repository, and so may be reused there without reading the source."""
        self._asked.note(digest)
        return self.objects.head(names.layer_link(repository, digest)) is not None

    def link(self, repository: str, digest: Digest) -> None:
        """Make a blob readable within a repository."""
        self._asked.note(digest)
        self.objects.put(names.layer_link(repository, digest), str(digest).encode())

    def put_manifest(self, repository: str, tag: str, manifest: bytes) -> Digest:
        """Commit a model: write its manifest, and last the tag, after every blob and its link was found.

        Raises:
            ArtifactInvalid: not a manifest.
            StoreUnavailable: code BlobsGone: a blob or its link is not there any more.
        """
        blobs = oci.parse_manifest(manifest).blobs
        digest = Digest.of(manifest)
        text = str(digest).encode()
        with self._asked.pinned((*blobs, digest)):
            steps: list[Callable[[], object]] = [functools.partial(self.put_blob, manifest)]
            steps += [functools.partial(self._missing, repository, *item) for item in blobs.items()]
            _, *found = self.each(lambda step: step(), steps)
            if wrong := [gone for gone in found if gone]:
                raise StoreUnavailable(f"{repository}:{tag}: {len(wrong)} blobs: {wrong[0]}", code="BlobsGone")
            links = names.revision_link(repository, digest), names.tag_index_link(repository, tag, digest)
            self.each(lambda key: self.objects.put(key, text), links)
            self.objects.put(names.tag_current_link(repository, tag), text)
        return digest

    def resolve_tag(self, repository: str, tag: str) -> Digest:
        """Read what a tag names.

        Raises:
            NotPublished: no such tag.
            ArtifactInvalid: the tag's link names no digest.
        """
        digest = self.read_link(names.tag_current_link(repository, tag))
        if digest is None:
            raise NotPublished(f"{repository}:{tag}: not in the store ({self.objects.description})")
        return digest

    def read_manifest(self, repository: str, digest: Digest) -> bytes:
        """Read a manifest of a repository, and compare it with its digest.

        Raises:
            NotPublished: it is not of this repository.
            ArtifactInvalid: other bytes.
            StoreUnavailable: code BlobsGone.
        """
        if self.objects.head(names.revision_link(repository, digest)) is None:
            raise NotPublished(f"{repository}@{digest}: no such manifest in the store ({self.objects.description})")
        return self.read_blob(digest, max_bytes=oci.MAX_MANIFEST_BYTES)

    def tags(self, repository: str) -> tuple[str, ...]:
        """List the tags of a repository, sorted."""
        prefix = names.tags_prefix(repository)
        keys = (info.key.removeprefix(prefix) for info in self.objects.list(prefix))
        return tuple(sorted(key.removesuffix("/current/link") for key in keys if key.endswith("/current/link")))

    def repositories(self) -> tuple[str, ...]:
        """List every repository, sorted."""
        prefix = names.repositories_prefix()
        found = {repository_of(info.key.removeprefix(prefix)) for info in self.objects.list(prefix)}
        return tuple(sorted(found - {""}))

    def remove(self, repository: str, tag: str) -> None:
        """Remove a tag, and its manifest from the repository when no other tag names it; blobs are left to collection.

        Removing what is not there is not an error. A publication of the same manifest that runs meanwhile keeps it.
        """
        since = self.mark()
        current = self.read_link(names.tag_current_link(repository, tag))
        self.objects.delete(names.tag_current_link(repository, tag))
        for info in list(self.objects.list(f"{names.tags_prefix(repository)}{tag}/")):
            self.objects.delete(info.key)
        if current is not None and current not in self.tagged(repository).values():
            self.remove_unasked(current, names.revision_link(repository, current), since=since)

    def tagged(self, repository: str) -> dict[str, Digest]:
        """Read what every tag of a repository names."""
        tags = self.tags(repository)
        found = self.each(lambda tag: self.read_link(names.tag_current_link(repository, tag)), tags)
        return {tag: digest for tag, digest in zip(tags, found, strict=True) if digest is not None}

    def read_link(self, key: str) -> Digest | None:
        """Read a link; None when there is none.

        Raises:
            ArtifactInvalid: it names no digest.
        """
        data = self.objects.get(key, max_bytes=_MAX_LINK_BYTES)
        if data is None:
            return None
        try:
            return Digest.parse(data.decode("ascii").strip())
        except (ValueError, UnicodeDecodeError) as error:
            raise ArtifactInvalid(f"{key}: want sha256:<hex>, got {data[:80]!r}") from error

    def blobs(self) -> Iterator[tuple[Digest, ObjectInfo]]:
        """List every blob."""
        for info in self.objects.list(names.blobs_prefix()):
            digest = names.blob_of_key(info.key)
            if digest is not None:
                yield digest, info

    def links(self, prefix: str, repository: str) -> Iterator[Link]:
        """List links below a prefix by the digest in their keys."""
        for info in self.objects.list(prefix):
            parts = info.key.split("/")
            with contextlib.suppress(ValueError):
                if parts[-1] == "link" and parts[-3] == "sha256":
                    yield Link(repository, Digest(parts[-2]), info.key)

    def mark(self) -> int:
        """Begin a collection: what is asked for from now on is not removed by it."""
        return self._asked.mark()

    def forget_before(self, mark: int) -> None:
        """End a collection."""
        self._asked.forget_before(mark)

    def remove_unasked(self, digest: Digest, key: str, *, since: int) -> bool:
        """Remove an object about a digest, unless somebody asked for that digest since `since`; False then."""
        with self._asked.removing(digest, since) as alone:
            if alone:
                self.objects.delete(key)
            return alone

    def each(self, call: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Call for each item, several at a time, results in order."""
        return each(call, items, at_once=self._at_once)

    def _missing(self, repository: str, digest: Digest, size_bytes: int) -> str:
        found = self.blob_size(digest)
        if found != size_bytes:
            return f"{digest}: want {size_bytes} bytes, got {found}"
        return "" if self.is_linked(repository, digest) else f"{digest}: want a link in {repository}, got none"


class _Asked:
    """Which digests this process asked for, and when; keeps collection and publications of one process apart."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._now = 0
        self._last: dict[Digest, int] = {}
        self._pins: collections.Counter[Digest] = collections.Counter()
        self._removing: set[Digest] = set()

    def note(self, digest: Digest) -> None:
        """Somebody asks for a digest; waits for the end of its removal."""
        with self._changed:
            if not self._changed.wait_for(lambda: digest not in self._removing, _DELETE_SECONDS):
                raise StoreUnavailable(f"blob {digest}: its removal does not end")
            self._last[digest] = self._now

    @contextlib.contextmanager
    def pinned(self, digests: Collection[Digest]) -> Iterator[None]:
        """Keep digests from being removed meanwhile, and by removals that began meanwhile: they did not see the end."""
        for digest in digests:
            self.note(digest)
        with self._changed:
            self._pins.update(digests)
        try:
            yield
        finally:
            with self._changed:
                self._pins.subtract(digests)
                self._pins += collections.Counter()
                self._last.update(dict.fromkeys(digests, self._now))

    def mark(self) -> int:
        with self._changed:
            self._now += 1
            return self._now

    def forget_before(self, mark: int) -> None:
        with self._changed:
            self._last = {digest: when for digest, when in self._last.items() if when >= mark}

    @contextlib.contextmanager
    def removing(self, digest: Digest, since: int) -> Iterator[bool]:
        """Keep askers waiting while a digest is removed; gives False when it must stay."""
        with self._changed:
            alone = self._last.get(digest, -1) < since and not self._pins[digest] and digest not in self._removing
            if alone:
                self._removing.add(digest)
        try:
            yield alone
        finally:
            if alone:
                with self._changed:
                    self._removing.discard(digest)
                    self._changed.notify_all()


def repository_of(key: str) -> str:
    """Name the repository of a key below the prefix of repositories; empty when it is of none.

    >>> repository_of("ns/demo/_layers/sha256/00/link")
    'ns/demo'
    """
    for within in ("/_layers/", "/_manifests/"):
        repository, found, _ = key.partition(within)
        if found:
            return repository
    return ""
