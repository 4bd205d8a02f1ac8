"""Checkpoints of blobs on their way: what is stored and hashed, so that the next process goes on from there.

One write-once record per run. A chain of records from run 0 on, all of one upload, is what can be resumed; a record
that cannot be read ends the chain and is no error. Records belong to a trust scope: what one tenant read and hashed
never spares another the proof that its own source has those bytes. Where to go on is decided here, how a run is moved
is not.
"""

import dataclasses
import json
import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from aimodels_core import names
from aimodels_core.digest import Digest
from aimodels_core.errors import ArtifactInvalid, NotPublished
from aimodels_jobs.objects import Objects, Upload
from aimodels_jobs.orders import PartRecord
from aimodels_jobs.threads import each

log = logging.getLogger(__name__)

UNCLAIMED_SECONDS = 7 * 24 * 3600.0
_VERSION = 1
_MAX_BYTES = 8 * 1024 * 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """One run that is stored and hashed.

    Args:
        upload: where its parts went.
        run: index of the run, from 0.
        parts: its parts, in order.
        state: the hash state after it; empty when there is none, as after the last run.
        digest_hex: the whole digest, after the last run only.
    """

    upload: Upload
    run: int
    parts: tuple[PartRecord, ...]
    state: bytes
    digest_hex: str

    def render(self) -> bytes:
        """Render as JSON.

        >>> r = Record(Upload("k", "u", 3), 0, (PartRecord(1, 0, 3, "e", "0" * 16),), b"", "")
        >>> Record.parse(r.render()) == r
        True
        """
        document = {
            "version": _VERSION,
            "upload": {"key": self.upload.key, "id": self.upload.id, "sizeBytes": self.upload.size_bytes},
            "run": self.run,
            "parts": [[p.number, p.start, p.size_bytes, p.etag, p.checksum] for p in self.parts],
            "state": self.state.hex(),
            "digest": self.digest_hex,
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, data: bytes) -> "Record":
        """Parse what `render` made.

        Raises:
            ValueError: anything else.
        """
        try:
            document = json.loads(data)
            if document["version"] != _VERSION:
                raise ValueError(f"version: want {_VERSION}, got {document['version']!r}")
            upload = document["upload"]
            parts = tuple(PartRecord(int(n), int(s), int(b), str(e), str(c)) for n, s, b, e, c in document["parts"])
            if not parts or any(len(bytes.fromhex(p.checksum)) != 8 for p in parts):
                raise ValueError("parts: want at least one, each with a checksum of 16 hex digits")
            return cls(
                Upload(str(upload["key"]), str(upload["id"]), int(upload["sizeBytes"])),
                int(document["run"]),
                parts,
                bytes.fromhex(document["state"]),
                str(document["digest"]),
            )
        except (KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
            raise ValueError(f"checkpoint: want a record of version {_VERSION}, got {type(error).__name__}") from error


@dataclasses.dataclass(frozen=True, slots=True)
class Resume:
    """Where to go on.

    Args:
        upload: the upload to go on with; None to begin one.
        records: parts that are stored and hashed, from the start, without a gap.
        state: hash state after them; None at the start.
        digest_hex: the whole digest when nothing is left but the commit; empty otherwise.
        next_run: index of the first run that is still to do.
    """

    upload: Upload | None
    records: tuple[PartRecord, ...] = ()
    state: bytes | None = None
    digest_hex: str = ""
    next_run: int = 0

    @classmethod
    def nothing(cls) -> "Resume":
        """Begin at the beginning."""
        return cls(None)


def chain(records: Iterable[Record]) -> tuple[Record, ...]:
    """Choose the longest chain of runs 0, 1, … of one upload, without a gap in bytes."""
    by_upload: dict[str, dict[int, Record]] = {}
    for record in records:
        by_upload.setdefault(record.upload.id, {})[record.run] = record
    return max((_chain_of(runs) for _, runs in sorted(by_upload.items())), key=_bytes, default=())


def _chain_of(runs: Mapping[int, Record]) -> tuple[Record, ...]:
    found: list[Record] = []
    at, number = 0, 1
    while (record := runs.get(len(found))) is not None:
        for part in record.parts:
            if part.start != at or part.number != number or part.size_bytes <= 0:
                return tuple(found)
            at, number = at + part.size_bytes, number + 1
        whole = at == record.upload.size_bytes
        if at > record.upload.size_bytes or not (record.digest_hex if whole else record.state):
            return tuple(found)
        found.append(record)
        if whole:
            break
    return tuple(found)


def _bytes(records: Sequence[Record]) -> int:
    return sum(part.size_bytes for record in records for part in record.parts)


class Checkpoints:
    """The checkpoints of one store.

    Args:
        objects: the store.
        clock: Unix seconds.
    """

    def __init__(self, objects: Objects, *, clock: Callable[[], float] = time.time) -> None:
        self._objects = objects
        self._clock = clock

    def save(self, digest: Digest, scope: str, record: Record) -> None:
        """Write the record of a run; an earlier one of the same run stays, and the better one counts.

        Args:
            digest: of the blob.
            scope: the repository whose source was read.
            record: what is stored and hashed.

        Raises:
            StoreFull, StoreUnavailable, StoreUnsafe.
        """
        self._objects.put(names.checkpoint(digest, scope, f"{record.run:06d}-{secrets.token_hex(4)}"), record.render())

    def load(self, digest: Digest, scope: str, size_bytes: int, part_bytes: int) -> Resume:
        """Find where to go on: the longest chain of a scope whose parts the store still has as recorded.

        Uploads that cannot be gone on with are dropped, and so are all records when nothing is left of them.

        Raises:
            StoreUnavailable.
        """
        keys = self._keys(digest, scope)
        if not keys:
            return Resume.nothing()
        records = self._parsed(keys)
        fitting = [r for r in records if _fits(r, names.blob_data(digest), size_bytes, part_bytes)]
        while fitting:
            runs = chain(fitting)
            upload = (runs or fitting)[0].upload
            resume = self._verified(upload, runs)
            if resume is not None:
                self._drop_uploads({r.upload.id: r.upload for r in records if r.upload.id != upload.id}.values())
                return resume
            fitting = [record for record in fitting if record.upload.id != upload.id]
        self._drop_uploads({record.upload.id: record.upload for record in records}.values())
        self.discard(digest, scope)
        return Resume.nothing()

    def drop_unrecorded(self, digest: Digest) -> None:
        """Drop uploads of a blob that no record of any scope names: a process that died before its first record's.

        The caller alone works on the blob.

        Raises:
            StoreUnavailable.
        """
        key = names.blob_data(digest)
        begun = [upload for upload in self._objects.uploads(key) if upload.key == key]
        if begun:
            recorded = {record.upload.id for record in self._records(digest, "")}
            self._drop_uploads(upload for upload in begun if upload.id not in recorded)

    def discard(self, digest: Digest, scope: str) -> None:
        """Remove all records of a blob in a scope; its upload is another matter."""
        each(self._objects.delete, self._keys(digest, scope))

    def abandon(self, digest: Digest, scope: str = "") -> None:
        """Drop the uploads of a blob and all its records, in one scope or in all."""
        self._drop_uploads({r.upload.id: r.upload for r in self._records(digest, scope)}.values())
        self.discard(digest, scope)

    def left_behind(self, stored: Collection[Digest], scope: str) -> tuple[Digest, ...]:
        """List blobs of these that still have records in a scope: of a process that died after it had stored them."""
        if not stored:
            return ()
        keys = [info.key for info in self._objects.list(names.checkpoints_prefix())]
        return tuple(one for one in stored if any(key.startswith(names.checkpoints_prefix(one, scope)) for key in keys))

    def unclaimed(self, claimed: Collection[Digest], *, older_seconds: float = UNCLAIMED_SECONDS) -> tuple[Digest, ...]:
        """List blobs that nobody works on and whose newest record is older than that."""
        newest: dict[str, float] = {}
        for info in self._objects.list(names.checkpoints_prefix()):
            digest_hex = info.key.removeprefix(names.checkpoints_prefix()).partition("/")[0]
            newest[digest_hex] = max(newest.get(digest_hex, 0.0), info.modified)
        limit = self._clock() - older_seconds
        found = (_digest(digest_hex) for digest_hex, modified in newest.items() if modified < limit)
        return tuple(digest for digest in found if digest is not None and digest not in claimed)

    def _verified(self, upload: Upload, runs: Sequence[Record]) -> Resume | None:
        recorded = tuple(part for record in runs for part in record.parts)
        try:
            kept = self._objects.kept_parts(upload, recorded)
        except NotPublished:
            log.info("upload of a checkpoint is gone", extra={"key": upload.key})
            return None
        whole: list[Record] = []
        for record in runs:
            if not all(part.number in kept for part in record.parts):
                break
            whole.append(record)
        records = tuple(part for record in whole for part in record.parts)
        if not whole:
            return Resume(upload)
        return Resume(upload, records, whole[-1].state or None, whole[-1].digest_hex, len(whole))

    def _keys(self, digest: Digest, scope: str) -> list[str]:
        return [info.key for info in self._objects.list(names.checkpoints_prefix(digest, scope))]

    def _records(self, digest: Digest, scope: str) -> list[Record]:
        return self._parsed(self._keys(digest, scope))

    def _parsed(self, keys: Sequence[str]) -> list[Record]:
        return [record for record in each(self._read, keys) if record is not None]

    def _read(self, key: str) -> Record | None:
        try:
            data = self._objects.get(key, max_bytes=_MAX_BYTES)
            return None if data is None else Record.parse(data)
        except (ValueError, ArtifactInvalid) as error:
            log.warning("checkpoint not readable", extra={"key": key, "error": str(error)[:200]})
            return None

    def _drop_uploads(self, uploads: Iterable[Upload]) -> None:
        for upload in uploads:
            self._objects.abort(upload)


def _fits(record: Record, key: str, size_bytes: int, part_bytes: int) -> bool:
    same = record.upload.key == key and record.upload.size_bytes == size_bytes
    last = record.parts[-1].start + record.parts[-1].size_bytes == size_bytes
    return same and all(part.size_bytes == part_bytes for part in record.parts[: -1 if last else None])


def _digest(digest_hex: str) -> Digest | None:
    try:
        return Digest(digest_hex)
    except ValueError:
        return None
