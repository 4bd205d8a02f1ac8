"""Small model artifacts in memory, and a place to pull them from that counts, delays and lies on demand."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from aimodels_core import names, oci
from aimodels_core.digest import Digest
from aimodels_core.errors import NotPublished
from aimodels_core.modelpack import ConfigFacts


@dataclass(frozen=True, slots=True)
class Sample:
    """An artifact: its documents and its blobs."""

    files: Mapping[str, bytes]
    artifact: oci.Artifact

    @property
    def digest(self) -> Digest:
        """Digest of the manifest."""
        return self.artifact.digest

    @property
    def blobs(self) -> dict[Digest, bytes]:
        """Everything but the manifest."""
        return {self.artifact.config_digest: self.artifact.config, **{Digest.of(d): d for d in self.files.values()}}


def sample(files: Mapping[str, bytes]) -> Sample:
    """Make an artifact of some files."""
    listed = [oci.ArtifactFile(path, len(data), Digest.of(data)) for path, data in files.items()]
    return Sample(dict(files), oci.build(oci.RECIPE, listed, ConfigFacts()))


@dataclass(slots=True)
class MemoryBlobs:
    """`aimodels_core.blobs.Blobs` over memory."""

    samples: list[Sample]
    before: Callable[[Digest, int, memoryview], None] = lambda *_: None
    """Called before each range is answered; may wait or raise."""
    after: Callable[[Digest, int, memoryview], None] = lambda *_: None
    """Called with each answered range; may change it."""
    reads: list[tuple[Digest, int, int]] = field(default_factory=list)
    """Digest, start and length of each range that was answered."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def manifest(self, digest: Digest) -> bytes:
        """Return the manifest of a sample."""
        for one in self.samples:
            if one.digest == digest:
                return one.artifact.manifest
        raise NotPublished(f"{digest}: no such manifest")

    def read(self, digest: Digest, size_bytes: int, start: int, into: memoryview) -> None:
        """Fill `into`."""
        self.before(digest, start, into)
        data = next(s.blobs[digest] for s in self.samples if digest in s.blobs)
        assert size_bytes == len(data)
        into[:] = data[start : start + len(into)]
        self.after(digest, start, into)
        with self._lock:
            self.reads.append((digest, start, len(into)))

    @property
    def bytes_read(self) -> int:
        """All bytes answered."""
        return sum(length for *_, length in self.reads)


def files_in(folder: Path) -> dict[str, bytes]:
    """Read every file below a folder, hidden ones of ours left out."""
    found = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".ai-models"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def write_layout(root: Path, repository: str, tags: Mapping[str, Sample]) -> None:
    """Write samples as distribution's registry lays them out, by hand: readers are tested without our own store."""
    for tag, one in tags.items():
        for digest, data in {**one.blobs, one.digest: one.artifact.manifest}.items():
            _write(root / names.blob_data(digest), data)
            _write(root / names.layer_link(repository, digest), str(digest).encode())
        _write(root / names.revision_link(repository, one.digest), str(one.digest).encode())
        _write(root / names.tag_index_link(repository, tag, one.digest), str(one.digest).encode())
        _write(root / names.tag_current_link(repository, tag), str(one.digest).encode())


def _write(path: Path, data: bytes) -> None:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
