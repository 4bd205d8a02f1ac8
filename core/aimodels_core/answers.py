"""Requests and answers as values, and reading an answer from a connection within limits.

Retries and redirects live in `aimodels_core.transport`.
"""

import dataclasses
import email.utils
import http.client
import io
import re
import socket
from collections.abc import Callable, Mapping
from typing import Any

from aimodels_core.errors import SourceUnavailable
from aimodels_core.hosts import redact

_ERROR_BODY_BYTES = 64 * 1024
_LONGEST_WAIT_SECONDS = 3600.0


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """One request. Holds credentials: never logged.

    Args:
        method: such as GET.
        url: absolute, escaped.
        headers: sent as they are.
        body: sent with its length.
        max_bytes: longest body of an answer.
        ok: statuses whose body is wanted whole.
        into: where the body of such an answer goes, if not into `Answer.body`.
    """

    method: str
    url: str = dataclasses.field(repr=False)
    headers: Mapping[str, str] = dataclasses.field(repr=False)
    body: bytes = dataclasses.field(repr=False)
    max_bytes: int
    ok: frozenset[int]
    into: memoryview | None = dataclasses.field(repr=False, default=None)


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """One answer.

    Args:
        status: HTTP status.
        headers: names in lower case; repeated ones joined by commas.
        body: all of it; of a redirect or an error its beginning, of an unwanted 2xx nothing.
        url: where it came from, after redirects.
    """

    status: int
    headers: Mapping[str, str] = dataclasses.field(repr=False)
    body: bytes = dataclasses.field(repr=False)
    url: str = dataclasses.field(repr=False)


@dataclasses.dataclass(slots=True)
class Limits:
    """How long the other side may take.

    Args:
        silence_seconds: longest wait for the next byte.
        slowest_bytes_per_second: the body must come at least this fast on the whole.
        clock: monotonic seconds.
    """

    silence_seconds: float
    slowest_bytes_per_second: float
    clock: Callable[[], float]
    deadline: float = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.deadline = self.clock() + self.silence_seconds

    def expect(self, size_bytes: int) -> None:
        """Give the time that a body of `size_bytes` may take."""
        self.deadline = self.clock() + self.silence_seconds + size_bytes / self.slowest_bytes_per_second

    def left(self) -> float:
        """Return the seconds that the next receive may take.

        Raises:
            TimeoutError: none are left.
        """
        left = self.deadline - self.clock()
        if left <= 0:
            raise TimeoutError
        return min(left, self.silence_seconds)


class _TimedReader(io.RawIOBase):
    """A socket's reading side whose every receive respects the limits, so that a trickle ends too."""

    def __init__(self, sock: socket.socket, limits: Limits) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._limits = limits

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._limits.left())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class TimedResponse(http.client.HTTPResponse):
    """A response that is read within limits."""

    def __init__(self, sock: socket.socket, *, limits: Limits, method: str | None = None) -> None:
        super().__init__(sock, method=method)
        plain = self.fp
        self.fp = io.BufferedReader(_TimedReader(sock, limits), 64 * 1024)
        plain.close()


def headers_of(response: http.client.HTTPResponse) -> dict[str, str]:
    """Return the headers of an answer: names in lower case, repeated ones joined by commas."""
    headers: dict[str, str] = {}
    for name, value in response.getheaders():
        low = name.lower()
        headers[low] = f"{headers[low]}, {value}" if low in headers else value
    return headers


def read(response: http.client.HTTPResponse, request: Request, limits: Limits) -> Answer:
    """Read the answer to `request`, no further than its limits allow.

    Raises:
        SourceUnavailable: codes Encoded, TooLong, ShortBody. What else goes wrong is left to the caller.
    """
    headers = headers_of(response)
    answer = Answer(response.status, headers, b"", request.url)
    if response.status >= 300:
        limits.expect(_ERROR_BODY_BYTES)
        return dataclasses.replace(answer, body=response.read(_ERROR_BODY_BYTES))
    if response.status not in request.ok:
        return answer
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in {"", "identity"}:
        raise SourceUnavailable(f"{redact(request.url)}: want no encoding, got {encoding[:40]!r}", code="Encoded")
    length = response.length
    limits.expect(min(request.max_bytes, request.max_bytes if length is None else length))
    if request.into is not None and request.method != "HEAD":
        _fill(response, request, request.into)
        return answer
    return dataclasses.replace(answer, body=_whole(response, request, length))


def _whole(response: http.client.HTTPResponse, request: Request, length: int | None) -> bytes:
    if length is not None and length > request.max_bytes:
        raise _too_long(request, f"{length}")
    if length is not None:
        body = response.read(length)
        if len(body) != length:
            raise _short(request, length, len(body))
        return body
    body = response.read(request.max_bytes)
    if len(body) == request.max_bytes and response.read(1):
        raise _too_long(request, "more")
    return body


def _fill(response: http.client.HTTPResponse, request: Request, view: memoryview) -> None:
    """Read exactly `len(view)` bytes into it, and no more."""
    length = response.length
    if length is not None and length != len(view):
        raise (_too_long if length > len(view) else _short_early)(request, f"{length}")
    done = 0
    while done < len(view):
        got = response.readinto(view[done:])
        if not got:
            raise _short(request, len(view), done)
        done += got
    if length is None and response.read(1):
        raise _too_long(request, "more")


def _too_long(request: Request, got: str) -> SourceUnavailable:
    want = request.max_bytes if request.into is None else len(request.into)
    return SourceUnavailable(f"{redact(request.url)}: want at most {want} bytes, got {got}", code="TooLong")


def _short_early(request: Request, got: str) -> SourceUnavailable:
    want = 0 if request.into is None else len(request.into)
    return SourceUnavailable(f"{redact(request.url)}: want {want} bytes, got {got}", code="ShortBody")


def _short(request: Request, want: int, got: int) -> SourceUnavailable:
    return SourceUnavailable(f"{redact(request.url)}: want {want} bytes, got {got}", code="ShortBody")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that an answer asks to wait, at most an hour; None when it does not say.

    A date is compared with the answer's own Date, so that the clocks need not agree (RFC 9110, 10.2.3). A hub that
    sends `RateLimit: …;r=0;t=<seconds>` instead is understood as well.

    >>> retry_after({"retry-after": "7"}), retry_after({"ratelimit": '"api";r=0;t=55'}), retry_after({})
    (7.0, 55.0, None)
    """
    value = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value):
        return min(float(value), _LONGEST_WAIT_SECONDS)
    if value and "date" in headers:
        try:
            until, now = map(email.utils.parsedate_to_datetime, (value, headers["date"]))
            return min(max(0.0, (until - now).total_seconds()), _LONGEST_WAIT_SECONDS)
        except (ValueError, TypeError):
            return None
    window = re.search(r";\s*r=0\s*;\s*t=(\d{1,9})(?!\d)", headers.get("ratelimit", ""))
    return min(float(window[1]), _LONGEST_WAIT_SECONDS) if window else None
