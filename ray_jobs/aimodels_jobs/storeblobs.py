"""A store as the place that artifacts are read from: pulled into folders, and verified where they are."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable

from aimodels_core import oci
from aimodels_core.digest import Digest
from aimodels_core.errors import NotPublished, StoreUnavailable
from aimodels_core.oci import Descriptor, Manifest
from aimodels_core.units import MIB
from aimodels_jobs.layout import Store

_READ_BYTES = 16 * MIB


class StoreBlobs:
    """One repository of a store. Implements `aimodels_core.blobs.Blobs`.

    Args:
        store: where the bytes are.
        repository: whose links make them readable.
    """

    def __init__(self, store: Store, repository: str) -> None:
        self._store = store
        self._repository = repository

    def manifest(self, digest: Digest) -> bytes:
        """Read a manifest (see `Blobs`)."""
        return self._store.read_manifest(self._repository, digest)

    def read(self, digest: Digest, size_bytes: int, start: int, into: memoryview) -> None:
        """Fill `into` from `start` on (see `Blobs`)."""
        stop = start + len(into)
        data = self._store.objects.get(self._store.blob_key(digest), max_bytes=len(into), start=start, stop=stop)
        if data is None:
            raise NotPublished(f"{digest}: no such blob in {self._store.objects.description}", code="BlobGone")
        if len(data) != len(into):
            raise StoreUnavailable(f"{digest}: want {len(into)} bytes at {start} of {size_bytes}, got {len(data)}")
        into[:] = data


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a blob of a published model."""

    path: str
    want: str
    got: str


def verify_blobs(
    store: Store, repository: str, manifest: Manifest, *, done: Callable[[int], None] = lambda _: None
) -> tuple[Fault, ...]:
    """Hash every blob of a model where it is stored.

    Args:
        store: where the bytes are.
        repository: whose links make them readable.
        manifest: the model's.
        done: told the bytes that were hashed since it was told last.
    """
    items = {item.digest: item for item in (manifest.config, *manifest.layers)}
    found: list[Fault] = []
    for digest, item in items.items():
        name = item.path or "config"
        if not store.is_linked(repository, digest):
            found.append(Fault(name, f"a link in {repository}", "none"))
        got = _hash(store, item, done)
        if got != str(digest):
            found.append(Fault(name, str(digest), got))
    return tuple(found)


def _hash(store: Store, item: Descriptor, done: Callable[[int], None]) -> str:
    size = store.blob_size(item.digest)
    if size != item.size_bytes:
        return "no blob" if size is None else f"{size} bytes"
    sha256 = hashlib.sha256()
    for start in range(0, item.size_bytes, _READ_BYTES):
        stop = min(start + _READ_BYTES, item.size_bytes)
        data = store.objects.get(store.blob_key(item.digest), max_bytes=_READ_BYTES, start=start, stop=stop)
        if data is None or len(data) != stop - start:
            return f"a blob that ends at {start + len(data or b'')}"
        sha256.update(data)
        done(len(data))
    return f"sha256:{sha256.hexdigest()}"


def manifest_of(store: Store, repository: str, tag: str) -> tuple[Digest, Manifest]:
    """Read what a tag names.

    Raises:
        NotPublished: there is no such tag.
    """
    digest = store.resolve_tag(repository, tag)
    return digest, oci.parse_manifest(store.read_manifest(repository, digest))


def sizes(manifests: Iterable[Manifest]) -> int:
    """Count the bytes of several models, blobs that they share once."""
    return sum({digest: size for manifest in manifests for digest, size in manifest.blobs.items()}.values())
