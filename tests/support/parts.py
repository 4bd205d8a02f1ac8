"""A source of ranges and a store of parts on loopback that misbehave on demand; for tests of movers.

Each fault is used once, in order, for the path (source) or the part number (store) it was planned for.
"""

import base64
import collections
import contextlib
import dataclasses
import enum
import http.server
import re
import socket
import socketserver
import ssl
import struct
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from awscrt import checksums as crt


class Fault(enum.Enum):
    RESET = "the connection is reset half way"
    SHORT = "the connection is closed half way"
    SILENT = "the connection is closed without an answer"
    STALL = "half of it comes, then nothing"
    TRICKLE = "a few bytes come at a time"
    NOT_PARTIAL = "200 and the whole file"
    WRONG_RANGE = "a range of another file size"
    OTHER_RANGE = "another range of the file"
    ENCODED = "Content-Encoding: gzip"
    HTML = "200 and a page"
    FLIPPED = "one bit differs"


@dataclasses.dataclass(frozen=True, slots=True)
class Refuse:
    """An answer with this status, these headers and an S3 error of this code."""

    status: int
    code: str = ""
    headers: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Hold:
    """An answer that waits for an event, at most this long."""

    event: threading.Event
    seconds: float = 20.0


Trouble = Fault | Refuse | Hold


class _Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is part of the tests."""


@dataclasses.dataclass(slots=True)
class Place:
    """A running server: its URL, what it saw, and what it will do wrong."""

    url: str
    troubles: dict[object, collections.deque[Trouble]] = dataclasses.field(
        default_factory=lambda: collections.defaultdict(collections.deque)
    )
    seen: list[tuple[object, dict[str, str]]] = dataclasses.field(default_factory=list)
    connections: int = 0
    parts: dict[int, bytes] = dataclasses.field(default_factory=dict)
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    answers_checksum: bool = True

    def plan(self, key: object, *troubles: Trouble) -> None:
        self.troubles[key].extend(troubles)

    def next_trouble(self, key: object, headers: dict[str, str]) -> Trouble | None:
        with self.lock:
            self.seen.append((key, headers))
            waiting = self.troubles.get(key)
            return waiting.popleft() if waiting else None

    @property
    def blob(self) -> bytes:
        return b"".join(self.parts[number] for number in sorted(self.parts))


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    place: Place

    def setup(self) -> None:
        super().setup()
        with self.place.lock:
            self.place.connections += 1

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the standard library
        pass

    def _lower(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.headers.items()}

    def _refuse(self, trouble: Refuse) -> None:
        body = f"<Error><Code>{trouble.code}</Code></Error>".encode() if trouble.code else b"no"
        self.send_response(trouble.status)
        for name, value in trouble.headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._end()

    def _end(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.wfile.flush()
        self.connection.close()
        self.rfile = self.wfile = Path("/dev/null").open("r+b", buffering=0)  # type: ignore[assignment]  # noqa: SIM115 - closed by finish


class _Source(_Handler):
    data: Callable[[int, int], bytes]
    size: int

    def do_GET(self) -> None:
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"] or "")
        assert match, "every read is a bounded range"
        start, stop = int(match[1]), int(match[2]) + 1
        trouble = self.place.next_trouble(start, self._lower())
        if isinstance(trouble, Hold):
            trouble.event.wait(trouble.seconds)
            trouble = None
        if isinstance(trouble, Refuse):
            self._refuse(trouble)
        elif trouble is Fault.SILENT:
            self._end()
        elif trouble in {Fault.NOT_PARTIAL, Fault.HTML}:
            self._answer(200, {}, self.data(0, self.size) if trouble is Fault.NOT_PARTIAL else b"<html>")
        else:
            self._part(start, stop, trouble)

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _part(self, start: int, stop: int, trouble: Trouble | None) -> None:
        first = start + 1 if trouble is Fault.OTHER_RANGE else start
        total = self.size + 1 if trouble is Fault.WRONG_RANGE else self.size
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{stop - 1}/{total}")
        self.send_header("Content-Length", str(stop - start))
        if trouble is Fault.ENCODED:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        body = bytearray(self.data(start, stop))
        if trouble is Fault.FLIPPED:
            body[len(body) // 2] ^= 1
        half = len(body) // 2
        match trouble:
            case Fault.RESET | Fault.SHORT | Fault.STALL:
                self.wfile.write(body[:half])
                if trouble is Fault.STALL:
                    time.sleep(20)  # the client must not wait for it
                self._reset() if trouble is Fault.RESET else self._end()
            case Fault.TRICKLE:
                with contextlib.suppress(OSError):
                    for at in range(len(body)):
                        self.wfile.write(body[at : at + 1])
                        time.sleep(0.01)
            case _:
                self.wfile.write(body)


class _Sink(_Handler):
    def do_PUT(self) -> None:
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
        number = int(query["partNumber"])
        trouble = self.place.next_trouble(number, self._lower())
        size = int(self.headers["Content-Length"])
        if isinstance(trouble, Hold):
            trouble.event.wait(trouble.seconds)
            trouble = None
        if isinstance(trouble, Refuse) and query.get("early"):
            self._refuse(trouble)
            return self._reset()
        if trouble is Fault.STALL:
            time.sleep(20)
            return self._end()
        if trouble in {Fault.RESET, Fault.SILENT}:
            self.rfile.read(size // 2)
            return self._reset() if trouble is Fault.RESET else self._end()
        body = self.rfile.read(size)
        if len(body) < size:
            return self._end()
        if isinstance(trouble, Refuse):
            return self._refuse(trouble)
        with self.place.lock:
            self.place.parts[number] = body
        crc = crt.crc64nvme(body) ^ (1 if trouble is Fault.FLIPPED else 0)
        self.send_response(200)
        self.send_header("ETag", f'"{len(self.place.seen)}-{number}"')
        if self.place.answers_checksum:
            self.send_header("x-amz-checksum-crc64nvme", base64.b64encode(crc.to_bytes(8, "big")).decode())
        self.send_header("Content-Length", "0")
        self.end_headers()
        return None


@contextlib.contextmanager
def _running(handler: type[_Handler], context: ssl.SSLContext | None) -> Iterator[Place]:
    place = Place("")
    bound = type("Bound", (handler,), {"place": place})
    server = _Server(("127.0.0.1", 0), bound)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    scheme = "https" if context is not None else "http"
    place.url = f"{scheme}://localhost:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield place
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def source(
    data: bytes | Callable[[int, int], bytes], size: int | None = None, *, context: ssl.SSLContext | None = None
) -> Iterator[Place]:
    """Serve ranges of `data`; faults are planned by the first byte of the range."""
    read = (lambda a, b: data[a:b]) if isinstance(data, bytes) else data
    total = len(data) if isinstance(data, bytes) else size
    handler = type("Source", (_Source,), {"data": staticmethod(read), "size": total})
    with _running(handler, context) as place:
        yield place


@contextlib.contextmanager
def sink(*, context: ssl.SSLContext | None = None) -> Iterator[Place]:
    """Take parts by PUT `…?partNumber=<n>`; faults are planned by number, `&early=1` refuses before the body."""
    with _running(_Sink, context) as place:
        yield place
