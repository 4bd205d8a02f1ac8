"""Whether an answer is the range that was asked for, to the byte. Pure; asking lives in `huggingface`."""

import dataclasses

from aimodels_core.digest import Digest, GitDigest
from aimodels_core.errors import DigestMismatch, SourceUnavailable, UnsafeContent
from aimodels_core.source import SourceFile
from aimodels_core.transport import Answer, redact
from aimodels_core.units import MIB
from aimodels_jobs.sources import hub_answers, lfs_pointer
from aimodels_jobs.sources.hub_answers import Extent

SMALL_BYTES = 8 * MIB
"""A file outside LFS up to this size may be answered whole where a range was asked for."""


def header(start: int, stop: int) -> str:
    """Render a half-open range as the value of a Range header.

    >>> header(0, 10)
    'bytes=0-9'
    """
    return f"bytes={start}-{stop - 1}"


def may_come_whole(file: SourceFile) -> bool:
    """Tell whether a 200 with the whole file is fine for a ranged request: small, and outside LFS."""
    return file.digest is None and file.size_bytes <= SMALL_BYTES


def longest_answer(file: SourceFile, start: int, stop: int) -> int:
    """Return the number of bytes that an answer may have."""
    return max(stop - start, file.size_bytes if may_come_whole(file) else 0, lfs_pointer.MAX_BYTES)


def total_bytes(answer: Answer) -> int | None:
    """Return the size of the file that an answer 200 or 206 is of; None when it does not say."""
    extent = hub_answers.content_range(answer.headers)
    if answer.status == 206:
        return None if extent is None else extent.total_bytes
    return len(answer.body)


@dataclasses.dataclass(slots=True)
class Reading:
    """One range of one file, and what was wrong with the answers so far.

    Args:
        file: the file.
        start: first byte.
        stop: one past the last byte.
    """

    file: SourceFile
    start: int
    stop: int
    pointers: int = 0
    differed: int = 0

    def content(self, answer: Answer) -> bytes:
        """Return the bytes of the range.

        Raises:
            SourceUnavailable: codes LfsPointer, DigestDiffers (once each), NotPartial, WrongRange, ShortBody,
                UnexpectedStatus.
            UnsafeContent: code LfsPointer, the second time.
            DigestMismatch: the whole file differed a second time.
        """
        self._refuse_pointer(answer)
        body = self._exact(answer)
        if (self.start, self.stop) == (0, self.file.size_bytes):
            self._compare(body)
        return body

    def _refuse_pointer(self, answer: Answer) -> None:
        """Recognise a pointer before anything else, since it explains every other difference."""
        found = lfs_pointer.find(answer.body) if answer.status in {200, 206} else None
        if found is None or self.file.digest == Digest.of(answer.body):
            return
        self.pointers += 1
        if self.pointers > 1:
            raise pointer_error(self.file, found)
        raise SourceUnavailable(f"{self.file.path}: got an LFS pointer", code="LfsPointer")

    def _exact(self, answer: Answer) -> bytes:
        want = Extent(self.start, self.stop, self.file.size_bytes)
        if answer.status == 200:
            if may_come_whole(self.file) and len(answer.body) == self.file.size_bytes:
                return answer.body[self.start : self.stop]
            raise self._wrong(answer, "NotPartial", "status 206", f"status 200 with {len(answer.body)} bytes")
        if answer.status != 206:
            raise self._wrong(answer, "UnexpectedStatus", "status 206", f"status {answer.status}")
        got = hub_answers.content_range(answer.headers)
        if got != want:
            raise self._wrong(answer, "WrongRange", _words(want), "no range" if got is None else _words(got))
        if len(answer.body) != self.stop - self.start:
            raise self._wrong(answer, "ShortBody", f"{self.stop - self.start} bytes", f"{len(answer.body)}")
        return answer.body

    def _wrong(self, answer: Answer, code: str, want: str, got: str) -> SourceUnavailable:
        kind = answer.headers.get("content-type", "no content type")[:60]
        what = f"{self.file.path}: {redact(answer.url)}: want {want}, got {got} ({kind})"
        return SourceUnavailable(what, code=code)

    def _compare(self, body: bytes) -> None:
        want = self.file.digest or self.file.git_digest
        if want is None:
            return
        got = Digest.of(body) if isinstance(want, Digest) else GitDigest.of(body)
        if got == want:
            return
        self.differed += 1
        if self.differed > 1:
            raise DigestMismatch(self.file.path, want=str(want), got=str(got))
        raise SourceUnavailable(f"{self.file.path}: want {want}, got {got}", code="DigestDiffers")


def pointer_error(file: SourceFile, pointer: lfs_pointer.LfsPointer) -> UnsafeContent:
    """Say that a pointer stands where the file should be."""
    detail = (
        f"want the file of {file.size_bytes} bytes, got a pointer to sha256:{pointer.oid} of {pointer.size_bytes} bytes"
    )
    return UnsafeContent(file.path, code="LfsPointer", detail=detail)


def _words(extent: Extent) -> str:
    return f"bytes {extent.start}-{extent.stop - 1}/{extent.total_bytes}"
