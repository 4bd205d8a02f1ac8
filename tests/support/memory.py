"""A source in memory, for tests of publishing that need no socket: small files are read through the port alone."""

import dataclasses
import threading
from collections.abc import Mapping

from aimodels_core.digest import Digest, GitDigest
from aimodels_core.errors import Cancelled, SourceUnavailable
from aimodels_core.messages import Want
from aimodels_core.source import Gate, ReadTicket, ResolvedSource, SourceFile


@dataclasses.dataclass(slots=True)
class MemorySource:
    """Files of one revision. Implements `aimodels_core.source.Source`; opens itself for every want.

    Args:
        files: path to content.
        lfs: paths whose sha256 is published: movers would move them.
        public: read without a credential.
        hold: `resolve` waits for it, or for an abort.
    """

    files: Mapping[str, bytes]
    lfs: frozenset[str] = frozenset()
    public: bool = True
    hold: threading.Event | None = None
    aborted: threading.Event = dataclasses.field(default_factory=threading.Event)

    def open(self, want: Want, gate: Gate) -> "MemorySource":
        """Return the source of a want (see `job.Sources`)."""
        del want, gate
        return dataclasses.replace(self, aborted=threading.Event())

    def resolve(self) -> ResolvedSource:
        """See `Source`."""
        while self.hold is not None and not self.hold.wait(0.02):
            if self.aborted.is_set():
                raise Cancelled("org/model: cancelled")
        listed = tuple(self._listed(path, data) for path, data in sorted(self.files.items()))
        return ResolvedSource("Memory", "org/model", "org/model", "1" * 40, listed, public=self.public)

    def ticket(self, file: SourceFile) -> ReadTicket:
        """See `Source`; nobody listens there."""
        return ReadTicket("http://127.0.0.1:9/", size_bytes=file.size_bytes, host="127.0.0.1:9", trusted=True)

    def renew(self, file: SourceFile, refused: ReadTicket) -> ReadTicket:
        """See `Source`."""
        del refused
        return self.ticket(file)

    def read(self, file: SourceFile, start: int, stop: int) -> bytes:
        """See `Source`."""
        if self.aborted.is_set():
            raise Cancelled(f"{file.path}: cancelled")
        data = self.files[file.path]
        if len(data) != file.size_bytes:
            raise SourceUnavailable(f"{file.path}: want {file.size_bytes} bytes, got {len(data)}")
        return data[start:stop]

    def abort(self) -> None:
        """See `Source`."""
        self.aborted.set()

    def requests_made(self) -> Mapping[str, int]:
        """See `Source`."""
        return {"api": 1, "resolve": 0}

    def _listed(self, path: str, data: bytes) -> SourceFile:
        if path in self.lfs:
            return SourceFile(path, len(data), digest=Digest.of(data))
        return SourceFile(path, len(data), git_digest=GitDigest.of(data))
