"""A small, fast HTTP/1.1 server: requests in, answers out, one thread per connection. Knows nothing about hubs.

A plain answer from a file goes out by sendfile, everything else in large pieces, so that payload runs at memory speed.
An answer can also misbehave on the wire (`Cut`, `Answer.bytes_per_second`).
"""

import contextlib
import enum
import http
import os
import socket
import ssl
import struct
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.support.hub.bodies import PIECE_BYTES, Body, BytesBody

_HEAD_BYTES = 64 * 1024
_BODY_BYTES = 1024 * 1024
_SEND_BUFFER_BYTES = 4 * 1024 * 1024
_SENDFILE_BYTES = 8 * 1024 * 1024
_BURST_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Request:
    """A parsed request; header names are lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    caller: str
    connection: int

    @property
    def path(self) -> str:
        """Path as sent, still encoded."""
        return self.target.split("?", 1)[0]

    @property
    def segments(self) -> list[str]:
        """Decoded segments of the path (each decoded once)."""
        return [urllib.parse.unquote(part) for part in self.path.strip("/").split("/")]

    @property
    def query(self) -> dict[str, str]:
        """Decoded query, last value wins."""
        return dict(urllib.parse.parse_qsl(self.target.partition("?")[2], keep_blank_values=True))


class End(enum.Enum):
    """How a connection ends before its answer does."""

    CLOSE = "close"
    RESET = "reset"
    STALL = "stall"


@dataclass(frozen=True, slots=True)
class Cut:
    """End the connection after `after_bytes` of the body (None: before the answer's head)."""

    end: End
    after_bytes: int | None = 0
    seconds: float = 3600
    """How long a stall lasts before the connection is closed; it also ends with the server."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer: bytes [start, stop) of `body` under `headers`. Content-Length is added unless it is among them."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: Body = field(default_factory=lambda: BytesBody(b""))
    start: int = 0
    stop: int | None = None
    cut: Cut | None = None
    bytes_per_second: float | None = None
    delay_seconds: float = 0
    unsized: bool = False
    """Say nothing about the length; the end of the connection is the end of the body."""

    @property
    def end(self) -> int:
        """End of the range of the body, resolved."""
        return self.body.size_bytes if self.stop is None else self.stop


Sent = Callable[[int], None]
"""Told how many body bytes are about to be sent (or, negative, were not)."""


class Refused(Exception):
    """What a client sent is not a request."""


class Server:
    """Listens on one address and answers every request through `respond`.

    `throttle` says how many bytes a second one connection may carry now (None: no limit).
    """

    def __init__(
        self,
        address: str,
        respond: Callable[[Request], tuple[Answer, Sent]],
        *,
        port: int = 0,
        throttle: Callable[[], float | None] = lambda: None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._listener = socket.create_server((address, port), backlog=1024)
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        self.closing = threading.Event()
        self._respond = respond
        self._throttle = throttle
        self._tls = tls
        self._lock = threading.Lock()
        self._open: dict[socket.socket, threading.Thread] = {}
        self._acceptor = threading.Thread(target=self._accept, daemon=True, name=f"hub-accept-{self.port}")
        self._acceptor.start()

    def close(self) -> None:
        """Stop listening, end every connection and wait for their threads (at most five seconds)."""
        self.closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join(timeout=5)
        self._listener.close()
        with self._lock:
            left = dict(self._open)
        for connection in left:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + 5
        for thread in left.values():
            thread.join(timeout=max(0, deadline - time.monotonic()))

    def drop_connections(self) -> None:
        """End every open connection, as a load balancer does when it restarts."""
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self.closing.is_set():
            try:
                accepted, peer = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            number = self.connections
            thread = threading.Thread(target=self._serve, args=(accepted, peer[0], number), daemon=True)
            with self._lock:
                self._open[accepted] = thread
            thread.start()

    def _serve(self, accepted: socket.socket, caller: str, number: int) -> None:
        connection: socket.socket = accepted
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
            if self._tls is not None:
                connection = self._tls.wrap_socket(accepted.dup(), server_side=True)
            self._converse(_Line(connection, self), caller, number)
        except (OSError, Refused):
            pass  # the client went away or spoke something else: nothing to answer
        finally:
            connection.close()
            accepted.close()
            with self._lock:
                self._open.pop(accepted, None)

    def _converse(self, line: "_Line", caller: str, number: int) -> None:
        while not self.closing.is_set():
            request = line.receive(caller, number)
            if request is None:
                return
            answer, sent = self._respond(request)
            self.closing.wait(answer.delay_seconds)
            whole = line.answer(
                answer, sent, rate=answer.bytes_per_second or self._throttle(), bare=request.method == "HEAD"
            )
            if not whole or request.headers.get("connection", "").lower() == "close":
                return


class _Line:
    """One connection: reads requests, writes answers, keeps to a rate."""

    def __init__(self, connection: socket.socket, server: Server) -> None:
        self._connection = connection
        self._server = server
        self._pending = b""
        self._next_at = 0.0

    def receive(self, caller: str, number: int) -> Request | None:
        """Read one request; None when the client has closed."""
        while (end := self._pending.find(b"\r\n\r\n")) < 0:
            if len(self._pending) > _HEAD_BYTES:
                raise Refused("head: too long")
            if not (more := self._connection.recv(_HEAD_BYTES)):
                return None
            self._pending += more
        head, self._pending = self._pending[:end].decode("latin-1"), self._pending[end + 4 :]
        first, *lines = head.split("\r\n")
        words = first.split(" ")
        if len(words) != 3:
            raise Refused("request line: want three words")
        headers = {name.strip().lower(): value.strip() for name, _, value in (text.partition(":") for text in lines)}
        return Request(words[0], words[1], headers, self._body(headers), caller, number)

    def _body(self, headers: Mapping[str, str]) -> bytes:
        stated = headers.get("content-length", "0")
        size = int(stated) if stated.isdecimal() else _BODY_BYTES + 1
        if size > _BODY_BYTES or "transfer-encoding" in headers:
            raise Refused("body: too long or of unknown length")
        while len(self._pending) < size:
            if not (more := self._connection.recv(_BODY_BYTES)):
                raise Refused("body: cut")
            self._pending += more
        body, self._pending = self._pending[:size], self._pending[size:]
        return body

    def answer(self, answer: Answer, sent: Sent, *, rate: float | None, bare: bool) -> bool:
        """Write an answer; False when the connection cannot carry another one."""
        cut = answer.cut
        if cut is not None and cut.after_bytes is None:
            return self._end(cut)
        end = answer.start if bare else answer.end
        if cut is not None and cut.after_bytes is not None:
            end = min(end, answer.start + cut.after_bytes)
        head = _head(answer)
        if isinstance(answer.body, BytesBody) and rate is None:
            sent(end - answer.start)
            self._connection.sendall(head + answer.body.content[answer.start : end])
        else:
            self._connection.sendall(head)
            self._payload(answer, end, sent, rate)
        return not answer.unsized and (cut is None or bare or self._end(cut))

    def _payload(self, answer: Answer, end: int, sent: Sent, rate: float | None) -> None:
        path = None if isinstance(self._connection, ssl.SSLSocket) else answer.body.on_disk()
        if path is None or answer.start >= end:
            self._pieces(answer.body, answer.start, end, sent, rate)
            return
        with path.open("rb", buffering=0) as file:
            self._sendfile(file.fileno(), answer.start, end, sent, rate)

    def _pieces(self, body: Body, start: int, end: int, sent: Sent, rate: float | None) -> None:
        at = start
        while at < end:
            size = min(end - at, _step(rate, PIECE_BYTES))
            self._pace(size, rate)
            sent(size)
            self._connection.sendall(body.read(at, at + size))
            at += size

    def _sendfile(self, file: int, start: int, end: int, sent: Sent, rate: float | None) -> None:
        at = start
        while at < end:
            size = min(end - at, _step(rate, _SENDFILE_BYTES))
            self._pace(size, rate)
            sent(size)
            done = os.sendfile(self._connection.fileno(), file, at, size)
            if done == 0:
                raise OSError("file: shorter than its size")
            sent(done - size)
            at += done

    def _pace(self, size: int, rate: float | None) -> None:
        if rate is None:
            return
        now = time.monotonic()
        self._next_at = max(self._next_at, now - _BURST_SECONDS)
        if self._next_at > now and self._server.closing.wait(self._next_at - now):
            raise OSError("server: closing")
        self._next_at += size / rate

    def _end(self, cut: Cut) -> bool:
        if cut.end is End.STALL:
            self._server.closing.wait(cut.seconds)
        if cut.end is End.RESET:
            # Linger of zero seconds: the kernel sends RST and drops what it still holds.
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False


def _step(rate: float | None, largest: int) -> int:
    return largest if rate is None else max(1, min(largest, 256 * 1024, int(rate * _BURST_SECONDS) or 1))


def _head(answer: Answer) -> bytes:
    try:
        phrase = http.HTTPStatus(answer.status).phrase
    except ValueError:
        phrase = "Unknown"
    lines = [f"HTTP/1.1 {answer.status} {phrase}", *(f"{name}: {value}" for name, value in answer.headers)]
    if answer.unsized:
        lines.append("Connection: close")
    elif not any(name.lower() == "content-length" for name, _ in answer.headers) and answer.status != 304:
        lines.append(f"Content-Length: {answer.end - answer.start}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")
