"""What the coordinator asks of movers and what they answer. Plain values that cross process borders."""

import dataclasses
import enum

from aimodels_core.errors import ErrorInfo
from aimodels_core.source import ReadTicket


class ChecksumKind(enum.Enum):
    """How the bytes of a part are named between the mover, the checkpoint and the store."""

    CRC64NVME = "crc64nvme"
    XXH3 = "xxh3"


@dataclasses.dataclass(frozen=True, slots=True)
class S3PartTicket:
    """Leave to send one part with one presigned UploadPart. Holds a signature: never logged.

    Args:
        url: presigned PUT.
        headers: headers that were signed and must be sent as they are.
        expires_at: Unix seconds.
        ca_file: PEM file to verify TLS with; empty for the system's.
    """

    url: str = dataclasses.field(repr=False)
    headers: tuple[tuple[str, str], ...] = dataclasses.field(repr=False, default=())
    expires_at: float = 0.0
    ca_file: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class FilePartTicket:
    """Leave to write one part into a preallocated temporary file of a folder store.

    Args:
        path: absolute path of the temporary file; it exists and is never created by a mover.
        offset: where the part begins.
    """

    path: str
    offset: int


@dataclasses.dataclass(frozen=True, slots=True)
class DiscardTicket:
    """The part is read and hashed only: the store has the blob, but who asks must prove that the source has it too."""


WriteTicket = S3PartTicket | FilePartTicket | DiscardTicket


@dataclasses.dataclass(frozen=True, slots=True)
class PartRecord:
    """A part as it was stored by one attempt.

    Args:
        number: from 1, as in S3 multipart.
        start: offset in the blob.
        size_bytes: length.
        etag: what the store answered, empty for a folder.
        checksum: lower-case hex of the store's `ChecksumKind` over the part (16 digits for both kinds).
    """

    number: int
    start: int
    size_bytes: int
    etag: str
    checksum: str


@dataclasses.dataclass(frozen=True, slots=True)
class PartOrder:
    """One part to move: the half-open range [start, stop) of the file, and where it goes."""

    number: int
    start: int
    stop: int
    write: WriteTicket


@dataclasses.dataclass(frozen=True, slots=True)
class RunOrder:
    """Consecutive parts of one file for one mover.

    Args:
        id: unique per attempt.
        path: the file, for messages only.
        parts: in order, tiling [parts[0].start, parts[-1].stop).
        read: leave to read the file.
        checksum: what to compute per part.
        connections: how many parts may be in flight at once.
        part_deadline_seconds: a part that takes longer is given up (its connection is closed).
        sequence: place in the order in which runs will be hashed, over all files; the smallest is served first.
    """

    id: str
    path: str
    parts: tuple[PartOrder, ...]
    read: ReadTicket
    checksum: ChecksumKind
    connections: int
    part_deadline_seconds: float
    sequence: int = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole run."""
        return self.parts[-1].stop - self.parts[0].start


@dataclasses.dataclass(frozen=True, slots=True)
class RunReport:
    """What became of a fetch.

    Args:
        id: the order's id.
        records: parts that were received and stored.
        undone: numbers of parts that were not; the error says why (of the first that failed).
        error: None when all parts are done.
        fetched_bytes: payload bytes received, also those of parts that failed half way.
        seconds: wall time.
    """

    id: str
    records: tuple[PartRecord, ...]
    undone: tuple[int, ...]
    error: ErrorInfo | None
    fetched_bytes: int
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class HashReport:
    """How far a hash got.

    Args:
        id: the order's id.
        state: the hash state after the bytes hashed (40 bytes); empty once `digest_hex` is there.
        digest_hex: the file's digest, when the run was the last and all of it was hashed; else empty.
        hashed_bytes: bytes hashed by this call: less than the run when a part of it is undone.
    """

    id: str
    state: bytes = dataclasses.field(repr=False)
    digest_hex: str
    hashed_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class MoverStatus:
    """What a mover is doing.

    Args:
        received_bytes: payload bytes received per run id that the mover holds, monotonic.
        held_bytes: buffer bytes in use.
        pool_bytes: buffer bytes in all.
    """

    received_bytes: dict[str, int]
    held_bytes: int
    pool_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class MoverFacts:
    """What a mover can do: its hash backend (`libcrypto` or `hashlib`), whether a state may leave it, where it is."""

    hash_backend: str
    portable_state: bool
    pool_bytes: int
    node: str
    pid: int
