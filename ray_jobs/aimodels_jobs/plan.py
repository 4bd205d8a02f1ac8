"""The plan of a publication, as data: which files, what the store has of them, how the rest is cut into parts and runs.

Pure. Executing a plan is the business of `publication`; what is in a model at all is decided by `formats`.
"""

import dataclasses
import enum
import json
from collections.abc import Iterator, Mapping, Sequence

from aimodels_core.digest import Digest
from aimodels_core.source import SourceFile
from aimodels_core.units import MIB, round_up

PLAN_SCHEMA = 1
PART_BYTES = 16 * MIB
RUN_BYTES = 64 * MIB
PARTS_MAX = 9000
"""S3 takes at most 10,000 parts (Amazon S3 User Guide, "multipart upload limits"); some room is left."""
INLINE_BYTES = 16 * MIB
"""Files whose sha256 the source does not publish are read by the coordinator itself up to this size."""


class Way(enum.Enum):
    """What happens to a file."""

    REUSE = "reuse"
    """The store has it in a scope this model may use: nothing moves."""
    MOVE = "move"
    """Movers fetch it, hash it and store it."""
    PROVE = "prove"
    """The store has it, but in another scope: movers fetch and hash it, nothing is stored again."""
    READ = "read"
    """Small and without a published sha256: the coordinator reads it."""
    LEARN = "learn"
    """Large and without a published sha256: the coordinator reads it once to learn its digest, then movers move it."""
    EMPTY = "empty"
    """No bytes: stored without asking the source."""


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """The half-open range [start, stop) of one file; numbers count from 1."""

    number: int
    start: int
    stop: int


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """Consecutive parts of one file, moved by one mover; indexes count from 0."""

    index: int
    parts: tuple[Part, ...]

    @property
    def start(self) -> int:
        """First byte."""
        return self.parts[0].start

    @property
    def stop(self) -> int:
        """One past the last byte."""
        return self.parts[-1].stop

    @property
    def size_bytes(self) -> int:
        """Bytes of all parts."""
        return self.stop - self.start


def part_bytes(size_bytes: int) -> int:
    """Choose the part size of a file: 16 MiB, or more where that would make over 9000 parts.

    >>> part_bytes(40 * 2**30) // MIB, part_bytes(2**40) // MIB
    (16, 120)
    """
    return max(PART_BYTES, round_up(-(-size_bytes // PARTS_MAX), 8 * MIB))


def parts(size_bytes: int, *, part_size: int | None = None) -> tuple[Part, ...]:
    """Cut a file into parts that tile it exactly, in order. An empty file has none.

    >>> [(p.number, p.start, p.stop) for p in parts(5, part_size=2)]
    [(1, 0, 2), (2, 2, 4), (3, 4, 5)]
    """
    step = part_size or part_bytes(size_bytes)
    starts = range(0, size_bytes, step)
    return tuple(Part(number, start, min(start + step, size_bytes)) for number, start in enumerate(starts, 1))


def runs(size_bytes: int, *, part_size: int | None = None, run_bytes: int = RUN_BYTES) -> tuple[Run, ...]:
    """Group the parts of a file into runs of about `run_bytes`, at least one part each.

    >>> [(r.index, r.start, r.stop) for r in runs(100 * MIB)]
    [(0, 0, 67108864), (1, 67108864, 104857600)]
    """
    step = part_size or part_bytes(size_bytes)
    per_run = max(1, run_bytes // step)
    cut = parts(size_bytes, part_size=step)
    return tuple(Run(at // per_run, cut[at : at + per_run]) for at in range(0, len(cut), per_run))


@dataclasses.dataclass(frozen=True, slots=True)
class PlanFile:
    """One file of the plan.

    Args:
        file: as the source lists it.
        layer: the layer class, such as `weight`.
        way: what happens to it.
        digest: its sha256, as far as it is known before reading.
    """

    file: SourceFile
    layer: str
    way: Way
    digest: Digest | None

    @property
    def moves(self) -> bool:
        """Whether payload bytes are read from the source."""
        return self.way not in (Way.REUSE, Way.EMPTY)

    def row(self) -> dict[str, str | int | None]:
        """Render as one row of the plan document."""
        moved = self.way in (Way.MOVE, Way.PROVE)
        return {
            "path": self.file.path,
            "sizeBytes": self.file.size_bytes,
            "digest": str(self.digest) if self.digest else None,
            "layer": self.layer,
            "way": self.way.value,
            "parts": len(parts(self.file.size_bytes)) if moved else 0,
            "runs": len(runs(self.file.size_bytes)) if moved else 0,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class Note:
    """Something a person should know: a file left out, a warning of a format."""

    code: str
    subject: str
    message: str
    size_bytes: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What publishing a source would do, computed before anything moves."""

    kind: str
    source: str
    revision: str
    format: str
    files: tuple[PlanFile, ...]
    notes: tuple[Note, ...] = ()
    listing_requests: int = 0

    @property
    def bytes_total(self) -> int:
        """Bytes of all selected files."""
        return sum(f.file.size_bytes for f in self.files)

    @property
    def bytes_reused(self) -> int:
        """Bytes that need not be read from the source."""
        return sum(f.file.size_bytes for f in self.files if not f.moves)

    @property
    def bytes_new(self) -> int:
        """Bytes that are read from the source."""
        return self.bytes_total - self.bytes_reused

    @property
    def bytes_stored(self) -> int:
        """Bytes that the store will grow by, at most; two paths with one digest count once."""
        new = {
            (f.digest or f.file.path): f.file.size_bytes for f in self.files if f.way in (Way.MOVE, Way.READ, Way.LEARN)
        }
        return sum(new.values())

    @property
    def parts(self) -> int:
        """Parts that movers fetch."""
        return sum(int(f.row()["parts"] or 0) for f in self.files)

    @property
    def hub_requests(self) -> int:
        """Requests to the source's own host: listing and one resolve per file that moves."""
        return self.listing_requests + sum(1 for f in self.files if f.moves)

    def seconds(self, bytes_per_second: float) -> float:
        """Estimate the time at a given rate."""
        return self.bytes_new / bytes_per_second

    def summary(self) -> dict[str, str | int]:
        """Render the totals."""
        return {
            "schema": PLAN_SCHEMA,
            "kind": self.kind,
            "source": self.source,
            "revision": self.revision,
            "format": self.format,
            "files": len(self.files),
            "bytesTotal": self.bytes_total,
            "bytesNew": self.bytes_new,
            "bytesReused": self.bytes_reused,
            "parts": self.parts,
            "hubRequests": self.hub_requests,
        }

    def lines(self) -> Iterator[str]:
        """Render as JSON lines: one summary, then one line per file."""
        yield json.dumps(self.summary(), ensure_ascii=False)
        for file in self.files:
            yield json.dumps(file.row(), ensure_ascii=False)


def way_of(file: SourceFile, digest: Digest | None, *, usable: bool, stored: bool) -> Way:
    """Decide what happens to a file.

    Args:
        file: as the source lists it.
        digest: its sha256 if known.
        usable: the store has that digest linked in a repository this model may reuse from (design 4.1).
        stored: the store has that digest at all.
    """
    if file.size_bytes == 0:
        return Way.EMPTY
    if digest is None:
        return Way.READ if file.size_bytes <= INLINE_BYTES else Way.LEARN
    if usable:
        return Way.REUSE
    return Way.PROVE if stored else Way.MOVE


def assign(sizes: Mapping[str, int], movers: int, *, portable: bool) -> dict[str, tuple[int, ...]]:
    """Assign files to movers: which movers may take runs of which file.

    All runs of a file go to one mover when there are enough files (twice as many as movers) or when the hash state
    cannot travel; else its runs go over all movers in turn. Files are dealt out largest first, each to the least
    loaded mover.

    >>> assign({"a": 10, "b": 9, "c": 1, "d": 1}, 2, portable=True)
    {'a': (0,), 'b': (1,), 'c': (1,), 'd': (0,)}
    >>> assign({"one": 10}, 3, portable=True)
    {'one': (0, 1, 2)}
    """
    if portable and len(sizes) < 2 * movers:
        return dict.fromkeys(sizes, tuple(range(movers)))
    load = [0] * movers
    out: dict[str, tuple[int, ...]] = {}
    for path, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        index = min(range(movers), key=lambda i: (load[i], i))
        load[index] += size
        out[path] = (index,)
    return out


def order(files: Sequence[PlanFile]) -> tuple[PlanFile, ...]:
    """Order files for moving: largest first, so that the longest chain starts at once; then by path."""
    return tuple(sorted(files, key=lambda f: (-f.file.size_bytes, f.file.path)))
