"""HTTP proxies: one that does as a test says (tunnels, forwarded requests, Basic, faults), and Debian's tinyproxy."""

import base64
import contextlib
import select
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.binaries.debian import program
from tests.support.processes import HOST, ServerError, started

USER, PASSWORD = "someone", "pr0xy-s3cr3t"
_SECONDS = 20.0


def own_address() -> str:
    """An address of this machine that is not loopback, since loopback is never reached through a proxy."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("192.0.2.1", 9))  # sends nothing
        return str(sock.getsockname()[0])


@dataclass(frozen=True, slots=True)
class RunningProxy:
    """Where a proxy listens and what it wants."""

    port: int
    password: str = ""

    @property
    def url(self) -> str:
        """With credentials, if it wants some."""
        return f"http://{f'{USER}:{self.password}@' if self.password else ''}{HOST}:{self.port}"


@dataclass(slots=True)
class ProxySimulator:
    """A proxy on a free port.

    Args:
        password: wanted from `USER`; empty for none.
        names: where hosts really are; others are dialled as they are named.
        raw: what is answered instead of doing anything; then the connection ends.
        hang: answer nothing until the end.
        cut_after_bytes: end each connection after so many bytes of a host's answers, while `cuts` lasts.
        cuts: how many connections are ended so.
    """

    password: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    hang: bool = False
    cut_after_bytes: int = 0
    cuts: int = 0
    asked: list[str] = field(default_factory=list)
    """First lines of requests, in order."""
    opened: int = 0
    """Connections to hosts."""
    _end: threading.Event = field(default_factory=threading.Event)
    _port: int = 0
    _listener: socket.socket = field(init=False)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._listener = socket.create_server((HOST, 0), backlog=128)
        self._port = self._listener.getsockname()[1]
        self._begin(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(_SECONDS)
        self._listener.close()

    @property
    def url(self) -> str:
        """With credentials, if it wants some."""
        return RunningProxy(self._port, self.password).url

    def _begin(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]  # any function
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._end.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._begin(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.settimeout(_SECONDS)
            self._answer(client)

    def _answer(self, client: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            more = client.recv(65536)
            if not more:
                return
            head += more
        lines = head.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
        self.asked.append(lines[0])
        if self.hang:
            self._end.wait(_SECONDS)
        elif self.raw is not None:
            client.sendall(self.raw)
        elif not self._is_known(lines):
            client.sendall(b"HTTP/1.1 407 No\r\nProxy-Authenticate: Basic realm=x\r\nContent-Length: 0\r\n\r\n")
        elif lines[0].startswith("CONNECT "):
            with self._dialled(lines[0].split(" ")[1]) as host:
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                self._carry(client, host)
        else:
            self._forward(client, lines)

    def _is_known(self, lines: list[str]) -> bool:
        pair = base64.b64encode(f"{USER}:{self.password}".encode()).decode()
        return not self.password or f"Proxy-Authorization: Basic {pair}" in lines

    def _dialled(self, place: str) -> socket.socket:
        host, _, port = place.rpartition(":")
        self.opened += 1
        return socket.create_connection((self.names.get(host, host), int(port)), _SECONDS)

    def _forward(self, client: socket.socket, lines: list[str]) -> None:
        """Forward one request without a body, and end the connection after its answer."""
        method, url, version = lines[0].split(" ")
        place, _, path = url.removeprefix("http://").partition("/")
        kept = [line for line in lines[1:] if not line.lower().startswith(("proxy-", "connection:"))]
        with self._dialled(place if ":" in place else f"{place}:80") as host:
            request = "\r\n".join([f"{method} /{path} {version}", *kept, "Connection: close", "", ""])
            host.sendall(request.encode("latin-1"))
            self._carry(client, host)

    def _carry(self, client: socket.socket, host: socket.socket) -> None:
        """Carry bytes both ways until one side ends."""
        left = self.cut_after_bytes if self.cuts > 0 else 0
        while not self._end.is_set():
            for side in select.select([client, host], [], [], 0.05)[0]:
                got = side.recv(65536)
                if not got:
                    return
                (host if side is client else client).sendall(got)
                if side is host and left:
                    left -= min(left, len(got))
                    if not left:
                        self.cuts -= 1
                        return


@contextlib.contextmanager
def tinyproxy(folder: Path, *, password: str = "") -> Iterator[RunningProxy]:
    """Debian's tinyproxy.

    Args:
        folder: for its configuration.
        password: wanted from `USER`; empty for none.
    """
    path = program("tinyproxy")
    if path is None:
        raise ServerError("tinyproxy: want Debian's package, got none: make binaries installs it")
    config = folder / "tinyproxy.conf"

    def command(port: int) -> list[str]:
        auth = f"BasicAuth {USER} {password}\n" if password else ""
        config.write_text(f"Port {port}\nListen {HOST}\nTimeout 60\nMaxClients 100\n{auth}", encoding="ascii")
        return [path, "-d", "-c", str(config)]

    with started(command) as server:
        yield RunningProxy(server.port, password)
