"""The object port: what the store layout needs from a place that keeps objects, and nothing more.

Keys are relative POSIX paths such as `docker/registry/v2/blobs/sha256/ab/ab…/data`. Implementations: `folder` and `s3`.
Both pass the same contract suite. Calls block, have deadlines, and are safe from several threads.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from aimodels_core.errors import StoreUnavailable, StoreUnsafe
from aimodels_jobs.orders import ChecksumKind, PartRecord, WriteTicket


@dataclasses.dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object as a listing shows it; `modified` is Unix seconds by the store's clock."""

    key: str
    size_bytes: int
    modified: float


@dataclasses.dataclass(frozen=True, slots=True)
class Upload:
    """A blob on its way: parts are sent to it in any order; nothing is visible at `key` before `complete`.

    Args:
        key: where it will be visible.
        id: the store's own name for it.
        size_bytes: exact size; 0 in a listing of a store that does not tell.
        created: Unix seconds by the store's clock, in a listing (for a folder: the last write);
            not part of its identity.
    """

    key: str
    id: str
    size_bytes: int
    created: float = dataclasses.field(default=0.0, compare=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One line of a probe: what was tried, whether the store passed, and what follows when it did not.

    Args:
        name: such as `if-none-match`, `stale-etag-refused`.
        passed: whether the store has the property.
        fatal: whether publishing must be refused without it.
        detail: what was seen, for people.
    """

    name: str
    passed: bool
    fatal: bool
    detail: str


def refuse_unsafe(findings: Iterable[Finding]) -> None:
    """Refuse a store that lacks what correctness needs.

    Raises:
        StoreUnsafe: lists every fatal finding.
    """
    failed = [f"{finding.name}: {finding.detail}" for finding in findings if finding.fatal and not finding.passed]
    if failed:
        raise StoreUnsafe(f"store: {'; '.join(failed)}", code="ProbeFailed")


class Objects(Protocol):
    """A place that keeps objects."""

    @property
    def description(self) -> str:
        """Where it is, for people; no secrets."""
        ...

    @property
    def checksum(self) -> ChecksumKind:
        """What movers compute per part."""
        ...

    def head(self, key: str) -> ObjectInfo | None:
        """Look an object up; None when there is none."""
        ...

    def get(self, key: str, *, max_bytes: int, start: int = 0, stop: int | None = None) -> bytes | None:
        """Read an object, or [start, stop) of it; None when there is none.

        Raises:
            ArtifactInvalid: longer than `max_bytes`.
            StoreUnavailable.
        """
        ...

    def put(self, key: str, data: bytes) -> None:
        """Write an object, replacing what was there; all of it is visible at once and durable, or nothing.

        Raises:
            StoreFull, StoreUnsafe (read-only), StoreUnavailable.
        """
        ...

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write an object only if the key is free; False when it is taken."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; removing what is not there is not an error."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List all objects whose key starts with `prefix`, through every page, in any order."""
        ...

    def copy(self, source: str, target: str) -> None:
        """Copy an object within the store, also above 5 GiB; `target` appears whole or not at all."""
        ...

    def create_upload(self, key: str, size_bytes: int) -> Upload:
        """Begin an upload of exactly `size_bytes` (> 0) to `key`."""
        ...

    def part_ticket(self, upload: Upload, number: int, start: int, stop: int) -> WriteTicket:
        """Make leave to send one part; short-lived, scoped to this part."""
        ...

    def kept_parts(self, upload: Upload, records: Sequence[PartRecord]) -> frozenset[int]:
        """Say which recorded parts the store still has with exactly the recorded checksum.

        Raises:
            NotPublished: code UploadGone: the upload itself is gone.
        """
        ...

    def complete(self, upload: Upload, records: Sequence[PartRecord], *, recheck: bool) -> None:
        """Make the blob visible at its key, durable, from exactly the recorded parts.

        Args:
            upload: the upload.
            records: every part, in order, tiling the blob.
            recheck: two attempts may have written one part. A store that cannot tell them apart compares all bytes
                with the digest in the key before anything is visible, or refuses.

        Raises:
            NotPublished: code UploadGone: the upload is gone and the object is not there.
            StoreUnavailable: code PartsDiffer: the store holds other bytes than the recorded ones.
            StoreFull, StoreUnavailable.
        """
        ...

    def abort(self, upload: Upload) -> None:
        """Drop an upload and its parts; dropping what is gone is not an error."""
        ...

    def uploads(self, prefix: str) -> Iterator[Upload]:
        """List uploads in progress below `prefix`, through every page."""
        ...

    def probe(self, *, anew: bool = False) -> tuple[Finding, ...]:
        """Try, on objects of its own below `ai-models/v1/probe/`, what correctness needs of this store; clean up.

        Args:
            anew: try whatever an earlier process found.
        """
        ...


def digest_in(key: str) -> str:
    """Read the sha256 that a blob's key names; empty for other keys."""
    parts = key.split("/")
    return parts[-2] if len(parts) >= 4 and parts[-1] == "data" and parts[-4] == "sha256" else ""


def check_tiling(upload: Upload, records: Sequence[PartRecord]) -> None:
    """Refuse records that do not tile the blob exactly, numbered from 1.

    Raises:
        StoreUnavailable: code PartsDiffer.
    """
    at = 0
    for number, record in enumerate(records, start=1):
        if record.number != number or record.start != at or record.size_bytes <= 0:
            raise StoreUnavailable(
                f"{upload.key}: part {number}: want it at {at}, got part {record.number} at {record.start}",
                code="PartsDiffer",
            )
        at += record.size_bytes
    if at != upload.size_bytes:
        raise StoreUnavailable(
            f"{upload.key}: want parts of {upload.size_bytes} bytes in all, got {at}", code="PartsDiffer"
        )
