"""Sending one part by a presigned UploadPart, and what the store's answer means.

No SDK and no payload hash: the connection protects the bytes on the way, the part's checksum what is stored. Making and
completing uploads belongs to `s3`.
"""

import contextlib
import http.client
import re
import time
from collections.abc import Iterator
from typing import Final

from aimodels_core import answers
from aimodels_core.errors import (
    AiModelsError,
    NotPublished,
    SourceUnavailable,
    StoreFull,
    StoreUnavailable,
    StoreUnsafe,
    TicketExpired,
)
from aimodels_jobs import checksums
from aimodels_jobs.orders import S3PartTicket
from aimodels_jobs.wires import Cutter, LostConnection, Place, Wire, Wires, read_error_body

_CODE: Final = re.compile(rb"<Code>([A-Za-z0-9]{1,64})</Code>")
_MOST_ANSWER_BYTES: Final = 64 * 1024
_EARLY_ANSWER_SECONDS: Final = 1.0
_EXPIRED: Final = frozenset({"ExpiredToken", "RequestTimeTooSkewed", "RequestExpired", "TokenRefreshRequired"})
_FULL: Final = frozenset(
    {"QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "InsufficientCapacity"}
)
_DAMAGED: Final = frozenset({"BadDigest", "XAmzContentChecksumMismatch", "IncompleteBody", "RequestTimeout"})
_CHECKSUM_ANSWER: Final = "x-amz-checksum-crc64nvme"


@contextlib.contextmanager
def opened(ticket: S3PartTicket, size_bytes: int, wires: Wires, cutter: Cutter, deadline: float) -> Iterator["Upload"]:
    """Open one attempt at an UploadPart; see `sinks.opened`."""
    place, target = Place.of(ticket.url, ca_file=ticket.ca_file, trusted=True)
    upload = Upload(ticket, place, target, size_bytes, wires, cutter, deadline)
    try:
        yield upload
    finally:
        upload.close()


class Upload:
    """One attempt at an UploadPart; the connection is opened with the first byte to send.

    Slices are sent as they come, so the checksum is not known when the head is sent; the store's own one is compared
    where it answers with one.
    """

    def __init__(
        self,
        ticket: S3PartTicket,
        place: Place,
        target: str,
        size_bytes: int,
        wires: Wires,
        cutter: Cutter,
        deadline: float,
    ) -> None:
        self._ticket, self._place, self._target = ticket, place, target
        self._size_bytes = size_bytes
        self._wires, self._cutter = wires, cutter
        self._deadline = deadline
        self._wire: Wire | None = None
        self._stack = contextlib.ExitStack()

    def write(self, block: memoryview, start: int, stop: int) -> None:
        """Take a slice (see `sinks.Sink`)."""
        self._send(self._begun(), block[start:stop])

    def finish(self, checksum: str) -> str:
        """Read the answer (see `sinks.Sink`)."""
        wire = self._begun()
        try:
            wire.limit(self._deadline)
            response = wire.connection.getresponse()
        except TimeoutError as error:
            raise self._late() from error
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(stale=wire.kept) from error
        return self._understood(wire, response, checksum)

    def close(self) -> None:
        """End the attempt; a connection that is not at rest is closed."""
        self._stack.close()
        if self._wire is not None:
            self._wire.connection.close()
            self._wire = None

    def _begun(self) -> Wire:
        """Connect and send the head of the request, once."""
        if self._wire is not None:
            return self._wire
        try:
            wire = self._wires.take(self._place, self._deadline)
        except TimeoutError as error:
            raise self._late() from error
        except SourceUnavailable as error:  # what connecting says of any host
            raise StoreUnavailable(f"store: {error.message}", code=error.code) from error
        self._wire = self._stack.enter_context(self._cutter.using(wire))
        self._head(wire)
        return wire

    def _head(self, wire: Wire) -> None:
        try:
            wire.limit(self._deadline)
            wire.connection.putrequest("PUT", self._target, skip_accept_encoding=True)
            wire.connection.putheader("Content-Length", str(self._size_bytes))
            for name, value in self._ticket.headers:
                wire.connection.putheader(name, value)
            wire.connection.endheaders()
        except TimeoutError as error:
            raise self._late() from error
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(stale=wire.kept) from error

    def _send(self, wire: Wire, view: memoryview) -> None:
        try:
            wire.limit(self._deadline)
            wire.connection.send(view)
        except TimeoutError as error:
            raise self._late() from error
        except OSError as error:
            raise self._early_answer(wire) or self._lost(stale=wire.kept) from error

    def _early_answer(self, wire: Wire) -> AiModelsError | None:
        """Read what a store said before it closed the connection in the middle of the body."""
        try:
            wire.limit(min(self._deadline, time.monotonic() + _EARLY_ANSWER_SECONDS))
            response = wire.connection.getresponse()
        except (OSError, http.client.HTTPException):
            return None
        return None if response.status < 400 else refusal(response, self._place.host)

    def _understood(self, wire: Wire, response: http.client.HTTPResponse, checksum: str) -> str:
        if response.status != http.HTTPStatus.OK:
            raise refusal(response, self._place.host)
        try:
            rest = response.read(_MOST_ANSWER_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(stale=False) from error
        etag, stored = response.getheader("ETag"), response.getheader(_CHECKSUM_ANSWER)
        if not etag:
            raise StoreUnavailable(f"{self._place.host}: want an ETag for a part, got none", code="NoETag")
        if stored and stored != checksums.header_value(checksum):
            message = f"{self._place.host}: want a part stored as {checksum}, got another checksum"
            raise StoreUnavailable(message, code="ChecksumDiffers")
        if len(rest) < _MOST_ANSWER_BYTES and response.isclosed() and not response.will_close:
            self._stack.close()
            self._wire = None
            self._wires.give(wire)
        return etag

    def _late(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self._place.host}: want a part stored by its deadline, got none", code="PartDeadline"
        )

    def _lost(self, *, stale: bool) -> LostConnection:
        message = f"{self._place.host}: want an answer for a part, got the end of the connection"
        return LostConnection(StoreUnavailable(message, code="Reset"), stale=stale)


def refusal(response: http.client.HTTPResponse, host: str) -> AiModelsError:
    """Name the error of an answer that is not 200 (S3 API reference, "Error responses")."""
    found = _CODE.search(read_error_body(response))
    code = found.group(1).decode("ascii") if found else f"Http{response.status}"
    message = f"{host}: want 200 for a part, got {response.status} {code}"
    if code in _FULL or response.status == http.HTTPStatus.INSUFFICIENT_STORAGE:
        return StoreFull(message, code=code)
    if code == "NoSuchUpload":
        return NotPublished(message, code="UploadGone")
    if code in _EXPIRED or response.status in {401, 403}:
        return TicketExpired(message, code=code)
    unclear = not found  # the answer's body may have been lost with the connection
    if unclear or code in _DAMAGED or response.status >= 500 or response.status in {408, 409, 429}:
        pause = answers.retry_after(answers.headers_of(response))
        return StoreUnavailable(message, code=code, retry_after_seconds=pause)
    return StoreUnsafe(message, code=code)
