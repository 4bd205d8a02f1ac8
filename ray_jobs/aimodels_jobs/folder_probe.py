"""What correctness needs of the file system under a folder store, tried out on files of its own."""

import secrets
from collections.abc import Callable
from pathlib import Path

from aimodels_core.errors import AiModelsError, StoreUnavailable
from aimodels_jobs import folder_uploads
from aimodels_jobs.objects import Finding, Objects

PREFIX = "ai-models/v1/probe"


def probe(objects: Objects, temporary: Path) -> tuple[Finding, ...]:
    """Try every property; a failing one is a finding, not an error."""
    key = f"{PREFIX}/{secrets.token_hex(8)}"
    return (
        _tried("write-read-delete", "nothing can be published", lambda: _round_trip(objects, key)),
        _tried("if-none-match", "a second writer is not kept out", lambda: _taken_once(objects, key)),
        _tried("preallocate", "a full disk shows only while bytes move", lambda: _reserved(objects, key), fatal=False),
        _tried("locks", "uploads are never resumed", lambda: _locking(temporary), fatal=False),
    )


def _tried(name: str, without: str, attempt: Callable[[], None], *, fatal: bool = True) -> Finding:
    try:
        attempt()
    except (AiModelsError, OSError) as error:
        return Finding(name, passed=False, fatal=fatal, detail=f"{error}; without it {without}")
    return Finding(name, passed=True, fatal=fatal, detail="works")


def _round_trip(objects: Objects, key: str) -> None:
    objects.put(key, b"probe")
    found = objects.get(key, max_bytes=16)
    objects.delete(key)
    if found != b"probe":
        raise StoreUnavailable(f"want the 5 bytes that were written, got {found!r}")


def _taken_once(objects: Objects, key: str) -> None:
    try:
        if not objects.put_if_absent(key, b"1") or objects.put_if_absent(key, b"2"):
            raise StoreUnavailable("want the second write refused, got it accepted")
    finally:
        objects.delete(key)


def _reserved(objects: Objects, key: str) -> None:
    upload = objects.create_upload(key, 4096)
    objects.abort(upload)


def _locking(temporary: Path) -> None:
    if not folder_uploads.locks_work(temporary):
        raise StoreUnavailable("want a locked file to stay locked, got it locked twice")
