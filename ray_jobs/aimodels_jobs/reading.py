"""Reading a bounded range of a source file into memory, refusing every answer that is not exactly that range.

Retries, tickets and what happens to the bytes do not belong here.
"""

import contextlib
import http.client
import io
import re
from collections.abc import Iterator, Mapping
from typing import Final

from aimodels_core import answers
from aimodels_core.errors import AiModelsError, RateLimited, SourceUnavailable, TicketExpired
from aimodels_core.source import ReadTicket
from aimodels_jobs.wires import Cutter, LostConnection, Place, Wire, Wires

_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")
_READER_BYTES: Final = io.DEFAULT_BUFFER_SIZE


class Range:
    """The body of one answer: exactly the bytes that were asked for."""

    def __init__(self, wire: Wire, response: http.client.HTTPResponse, size_bytes: int, deadline: float) -> None:
        self._wire = wire
        self._response = response
        self._left = size_bytes
        self._deadline = deadline
        self._size_bytes = size_bytes
        self._is_bare = False

    @property
    def is_complete(self) -> bool:
        """Tell whether all bytes were read, so that the connection may be used again."""
        return self._left == 0 and not self._response.will_close

    def fill(self, view: memoryview) -> None:
        """Read until `view` is full.

        Raises:
            LostConnection: closed or reset before the end.
            SourceUnavailable: code PartDeadline: the deadline passed, however many bytes trickled in.
        """
        done = 0
        while done < len(view):
            try:
                self._wire.limit(self._deadline)
                got = self._receive(view[done:])
            except TimeoutError as error:
                raise _late(self._wire.place) from error
            except OSError as error:
                raise self._lost("Reset") from error
            if not got:
                raise self._lost("ShortBody")
            done += got
            self._left -= got

    def _receive(self, view: memoryview) -> int:
        """Receive some bytes; past the reader's buffer, which costs more than TLS itself, once that is empty."""
        if self._is_bare:
            return self._wire.sock.recv_into(view)
        got = self._response.fp.readinto1(view)
        self._is_bare = len(view) > _READER_BYTES  # so large a read empties the buffer, or goes past it
        return got

    def _lost(self, code: str) -> LostConnection:
        got = self._size_bytes - self._left
        message = f"{self._wire.place.host}: want {self._size_bytes} bytes, got {got} and the end of the connection"
        return LostConnection(SourceUnavailable(message, code=code))


@contextlib.contextmanager
def opened(wires: Wires, cutter: Cutter, ticket: ReadTicket, start: int, stop: int, deadline: float) -> Iterator[Range]:
    """Ask for [start, stop) and check the answer before any byte of it is used.

    Raises:
        TicketExpired: 401, 403, 410.
        RateLimited: 429.
        SourceUnavailable: any other answer than the range; codes NotPartial, WrongRange, Encoded,
            PartDeadline, Http<status>.
        LostConnection: closed or reset.
    """
    place, target = Place.of(
        ticket.url,
        ca_file=ticket.ca_file,
        trusted=ticket.trusted,
        private_cidrs=ticket.private_cidrs,
        proxy=ticket.proxy,
    )
    wire = _taken(wires, place, deadline)
    with cutter.using(wire):
        body: Range | None = None
        try:
            response = _ask(wire, target, ticket, start, stop, deadline)
            with response:
                _check(response, ticket, start, stop)
                body = Range(wire, response, stop - start, deadline)
                yield body
        finally:
            if body is not None and body.is_complete:
                wires.give(wire)
            else:
                wire.connection.close()


def _taken(wires: Wires, place: Place, deadline: float) -> Wire:
    try:
        return wires.take(place, deadline)
    except TimeoutError as error:
        raise _late(place) from error


def _late(place: Place) -> SourceUnavailable:
    return SourceUnavailable(f"{place.host}: want a range by the part's deadline, got less", code="PartDeadline")


def _ask(
    wire: Wire, target: str, ticket: ReadTicket, start: int, stop: int, deadline: float
) -> http.client.HTTPResponse:
    connection = wire.connection
    try:
        wire.limit(deadline)
        connection.putrequest("GET", target, skip_accept_encoding=True)
        connection.putheader("Range", f"bytes={start}-{stop - 1}")
        connection.putheader("Accept-Encoding", "identity")
        for name, value in ticket.headers:
            connection.putheader(name, value)
        connection.endheaders()
        return connection.getresponse()
    except TimeoutError as error:
        raise _late(wire.place) from error
    except (http.client.HTTPException, OSError) as error:
        lost = SourceUnavailable(f"{ticket.host}: want an answer, got the end of the connection", code="Reset")
        raise LostConnection(lost, stale=wire.kept) from error


def _check(response: http.client.HTTPResponse, ticket: ReadTicket, start: int, stop: int) -> None:
    if response.status != http.HTTPStatus.PARTIAL_CONTENT:
        raise refusal(response.status, answers.headers_of(response), ticket.host)
    encoding = (response.getheader("Content-Encoding") or "identity").strip().lower()
    if encoding != "identity" or response.getheader("Transfer-Encoding"):
        kind = "a transfer coding" if encoding == "identity" else f"Content-Encoding {encoding[:40]}"
        raise SourceUnavailable(f"{ticket.host}: want plain bytes, got {kind}", code="Encoded")
    got = response.getheader("Content-Range") or "none"
    found = _CONTENT_RANGE.fullmatch(got.strip())
    want = (start, stop - 1, ticket.size_bytes)
    if not found or tuple(map(int, found.groups())) != want:
        wanted = f"bytes {start}-{stop - 1}/{ticket.size_bytes}"
        raise SourceUnavailable(f"{ticket.host}: want Content-Range {wanted}, got {got[:80]}", code="WrongRange")
    length = response.getheader("Content-Length")
    if length is not None and length.strip() != str(stop - start):
        raise SourceUnavailable(f"{ticket.host}: want {stop - start} bytes, got {length[:40]}", code="WrongRange")


def refusal(status: int, headers: Mapping[str, str], host: str) -> AiModelsError:
    """Name the error of a status that is not 206; names of headers in lower case."""
    if status in {401, 403, 410}:
        return TicketExpired(f"{host}: want 206, got {status}: the signed URL is not accepted", code=f"Http{status}")
    pause = answers.retry_after(headers)
    if status == http.HTTPStatus.TOO_MANY_REQUESTS:
        return RateLimited(f"{host}: want 206, got 429", retry_after_seconds=pause)
    code = "NotPartial" if status == http.HTTPStatus.OK else f"Http{status}"
    got = f"{status} ({headers.get('content-type', 'no content type')[:60]})"
    return SourceUnavailable(f"{host}: want 206, got {got}", code=code, retry_after_seconds=pause)
