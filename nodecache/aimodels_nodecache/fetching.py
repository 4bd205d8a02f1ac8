"""Artifacts from our registry into the cache of a node, byte by byte as their digests say. Every call here blocks."""

import dataclasses
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from aimodels_core import dmcr, pull
from aimodels_core.digest import Digest
from aimodels_core.dmcr import Place
from aimodels_core.errors import Cancelled, NotPublished, SourceDenied
from aimodels_core.registry import Registry
from aimodels_core.transport import Transport
from aimodels_nodecache.cache import Cache, blobs_of


class Progress:
    """How far the fetching of an artifact is, and whether it goes on. Safe from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self.bytes_done = 0

    def add(self, size_bytes: int) -> None:
        """Count bytes."""
        with self._lock:
            self.bytes_done += size_bytes

    def stop(self) -> None:
        """Have it end soon."""
        self._stopped.set()

    def stopped(self) -> bool:
        """Whether it should end."""
        return self._stopped.is_set()


class Source(Protocol):
    """Where artifacts come from."""

    def size(self, digest: Digest, repositories: Sequence[str]) -> int:
        """Say how many bytes the files of an artifact have.

        Raises:
            AiModelsError: it cannot be had.
        """
        ...

    def fetch(self, digest: Digest, repositories: Sequence[str], device: Path, progress: Progress) -> None:
        """Bring an artifact onto a device, whole.

        Raises:
            Cancelled: it was stopped; what came is used by the next one.
            AiModelsError: it cannot be had.
        """
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Access:
    """How the registry is reached.

    Args:
        place: the registry, and who asks.
        ca_file: authorities that are trusted beside the system's; empty for none.
    """

    place: Place
    ca_file: str = ""


class Fetcher:
    """Fetches from the registry. Implements `Source`.

    Args:
        access: how it is reached.
        cache: where artifacts go.
        tuning: how bytes move.
    """

    def __init__(self, access: Access, cache: Cache, tuning: pull.Tuning | None = None) -> None:
        self._access, self._cache, self._tuning = access, cache, tuning or pull.Tuning()

    def size(self, digest: Digest, repositories: Sequence[str]) -> int:
        """See `Source`."""
        transport = self._transport()
        try:
            _, data = self._find(transport, digest, repositories)
            layers = pull.checked(data, digest).layers
            return sum({layer.digest: layer.size_bytes for layer in layers}.values())
        finally:
            transport.close()

    def fetch(self, digest: Digest, repositories: Sequence[str], device: Path, progress: Progress) -> None:
        """See `Source`."""
        self._cache.prepare(device)
        transport = self._transport()
        try:
            registry, _ = self._find(transport, digest, repositories)
            if progress.stopped():
                raise Cancelled(f"{digest}: not wanted any more")
            hooks = pull.Hooks(progress=progress.add, cancelled=progress.stopped)
            target = device / "trees" / digest.hex
            pull.pull(registry, digest, target, tuning=self._tuning, hooks=hooks, known=blobs_of(device))
            self._cache.share(device, digest)
        finally:
            transport.close()

    def _transport(self) -> Transport:
        return Transport(dmcr.rules_of(self._access.place), ca_file=self._access.ca_file)

    def _find(self, transport: Transport, digest: Digest, repositories: Sequence[str]) -> tuple[Registry, bytes]:
        """Find the repository that has an artifact.

        Raises:
            NotPublished, SourceDenied: none has, or none of those that may be read.
        """
        place, last = self._access.place, None
        credential: Callable[[], str] = place.credential if place.token_file else lambda: ""
        for repository in repositories:
            registry = Registry(place.url, repository, transport=transport, credential=credential)
            try:
                return registry, registry.manifest(digest)
            except (NotPublished, SourceDenied) as error:
                last = error
        raise last or NotPublished(f"{digest}: no repository to look in")
