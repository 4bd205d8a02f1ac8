"""A small HTTP server whose answers a test decides one by one: for faults that no real server gives on demand.

Simulators of particular systems stand elsewhere; this one only speaks HTTP/1.1, correctly or as wrong as asked.
"""

import contextlib
import http.server
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Call:
    """One request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    client: tuple[str, int]


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer."""

    status: int = 200
    body: bytes = b""
    headers: Sequence[tuple[str, str]] = ()
    length: int | None = None
    """What Content-Length says; the truth by default; negative for no such header."""
    chunked: bool = False
    close: bool = False
    """Close the connection after the body, however much of it was promised."""
    drip_seconds: float = 0.0
    """Wait this long before each byte of the body."""
    hold: threading.Event | None = None
    """Wait for this before the answer."""
    raw: bytes | None = None
    """Send exactly this instead, and close."""
    reset: bool = False
    """Reset the connection after the body."""


@dataclass(slots=True)
class Scripted:
    """A running server and what it was asked."""

    port: int
    tls: bool = False
    calls: list[Call] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Base URL without a slash at the end."""
        return f"{'https' if self.tls else 'http'}://{HOST}:{self.port}"

    def paths(self) -> list[str]:
        """The paths asked for so far, in order."""
        return [call.path for call in self.calls]


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Stay quiet: clients that go away are part of the tests."""


@contextlib.contextmanager
def serve(answer: Callable[[Call], Reply], *, context: ssl.SSLContext | None = None) -> Iterator[Scripted]:
    """Serve `answer` on a free port; it is called in a thread of each connection."""
    state = Scripted(0, context is not None)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30
        disable_nagle_algorithm = True

        def setup(self) -> None:
            if context is not None:
                self.request = context.wrap_socket(self.request, server_side=True, do_handshake_on_connect=False)
                try:
                    self.request.do_handshake()
                except OSError:
                    self.request.close()
                    raise
            super().setup()

        def finish(self) -> None:
            super().finish()
            if context is not None:
                self.request.close()

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            call = Call(self.command, self.path, headers, body, self.client_address)
            state.calls.append(call)
            _send(self, answer(call))

        do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = _answer  # noqa: N815 - names that http.server looks for

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = _Server((HOST, 0), Handler)
    state.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _send(handler: http.server.BaseHTTPRequestHandler, reply: Reply) -> None:
    if reply.hold is not None:
        reply.hold.wait(20)
    if reply.raw is not None:
        handler.wfile.write(reply.raw)
        handler.close_connection = True
        return
    handler.send_response(reply.status)
    for name, value in reply.headers:
        handler.send_header(name, value)
    if reply.chunked:
        handler.send_header("Transfer-Encoding", "chunked")
    elif reply.length is None or reply.length >= 0:
        handler.send_header("Content-Length", str(len(reply.body) if reply.length is None else reply.length))
    handler.end_headers()
    if handler.command != "HEAD":
        _send_body(handler, reply)
    if reply.reset:
        linger = b"\1\0\0\0\0\0\0\0"
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        handler.connection.close()
    if reply.close or reply.reset or (reply.length is not None and not reply.chunked):
        handler.close_connection = True


def _send_body(handler: http.server.BaseHTTPRequestHandler, reply: Reply) -> None:
    if reply.drip_seconds:
        for byte in reply.body:
            time.sleep(reply.drip_seconds)
            handler.wfile.write(bytes([byte]))
    elif reply.chunked:
        for start in range(0, len(reply.body), 1000):
            chunk = reply.body[start : start + 1000]
            handler.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        if not reply.close:
            handler.wfile.write(b"0\r\n\r\n")
    else:
        handler.wfile.write(reply.body)


def ranged(call: Call, data: bytes, *, extra: Sequence[tuple[str, str]] = ()) -> Reply:
    """Answer a request for `data` as a well-behaved server does, with 206 when a range was asked for."""
    wanted = call.headers.get("range", "")
    if not wanted:
        return Reply(200, data, [*extra])
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    start, stop = int(first), min(len(data), int(last or len(data) - 1) + 1)
    if start >= len(data):
        return Reply(416, b"", [("Content-Range", f"bytes */{len(data)}"), *extra])
    return Reply(206, data[start:stop], [("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}"), *extra])
