"""What a store has, read independently of publishing: whole models, right bytes, and nothing left behind."""

import hashlib
import time

from aimodels_core import names, oci
from aimodels_core.digest import Digest
from aimodels_jobs.collection import Collected, Collector
from aimodels_jobs.layout import Store
from aimodels_jobs.objects import Objects

WEEK_SECONDS = 8 * 86400.0
"""Older than any checkpoint that is kept."""


def audit(store: Store) -> dict[str, str]:
    """Read the whole store: every blob has the bytes that its name says, every tag a whole model.

    Returns the digest of every `repository:tag`.
    """
    for digest, info in store.blobs():
        assert _hashed(store.objects, info.key, info.size_bytes) == digest.hex, f"{digest}: other bytes"
    found = {}
    for repository in store.repositories():
        for tag, manifest_digest in store.tagged(repository).items():
            manifest = oci.parse_manifest(store.read_manifest(repository, manifest_digest))
            for blob, size in manifest.blobs.items():
                assert store.blob_size(blob) == size, f"{repository}:{tag}: {blob}"
                assert store.is_linked(repository, blob), f"{repository}:{tag}: {blob}"
            found[f"{repository}:{tag}"] = str(manifest_digest)
    return found


def _hashed(objects: Objects, key: str, size_bytes: int) -> str:
    step, sha256 = 16 * 1024 * 1024, hashlib.sha256()
    for start in range(0, size_bytes, step):
        sha256.update(objects.get(key, max_bytes=step, start=start, stop=min(start + step, size_bytes)) or b"")
    return sha256.hexdigest()


def content(store: Store, repository: str, name: str) -> dict[str, str]:
    """The sha256 of every path of a model."""
    digest = store.resolve_tag(repository, names.model_tag(name))
    manifest = oci.parse_manifest(store.read_manifest(repository, digest))
    return {layer.path: layer.digest.hex for layer in manifest.layers}


def uploads(store: Store) -> list[str]:
    """Keys of uploads that were begun and neither completed nor dropped."""
    return sorted(upload.key for upload in store.objects.uploads(""))


def checkpoints(store: Store) -> list[str]:
    """Keys of checkpoints."""
    return sorted(info.key for info in store.objects.list(names.checkpoints_prefix()))


def collect_all(store: Store) -> Collected:
    """Collect as if a week had passed and nobody were at work."""
    return Collector(store, clock=lambda: time.time() + WEEK_SECONDS).collect(frozenset[Digest](), now=True)


def assert_no_leftovers(store: Store) -> None:
    """After collection the store has what its tags name, and nothing else."""
    named = {
        blob
        for repository in store.repositories()
        for digest in store.tagged(repository).values()
        for blob in (digest, *oci.parse_manifest(store.read_manifest(repository, digest)).blobs)
    }
    assert {digest for digest, _ in store.blobs()} == named
    assert uploads(store) == []
    assert checkpoints(store) == []
