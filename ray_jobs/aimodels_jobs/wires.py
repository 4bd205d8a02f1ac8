"""Connections of a mover: kept alive between parts, read and written by a deadline, cut from another thread.

What is asked and answered on them belongs to `reading` and `sinks`.
"""

import contextlib
import http.client
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator
from typing import Final, NamedTuple, Self

from aimodels_core import transport
from aimodels_core.errors import Cancelled, TransientError, UsageError
from aimodels_core.proxies import Proxy

_CONNECT_SECONDS: Final = 10.0
_IDLE_SECONDS: Final = 15.0
_IDLE_CONNECTIONS: Final = 64
_LIMIT_SECONDS: Final = 0.2
_MOST_ERROR_BYTES: Final = 64 * 1024


class LostConnection(Exception):
    """The other side reset or closed the connection: another attempt may help at once.

    Args:
        error: what to report when no other attempt is left.
        stale: on a kept connection, before any answer: it had been closed while idle.
    """

    def __init__(self, error: TransientError, *, stale: bool = False) -> None:
        super().__init__(error.message)
        self.error = error
        self.stale = stale


class Place(NamedTuple):
    """Where a connection goes, and under which rules."""

    host: str
    port: int
    tls: bool
    ca_file: str
    trusted: bool
    private_cidrs: tuple[str, ...] = ()
    proxy: Proxy | None = None

    @classmethod
    def of(
        cls,
        url: str,
        *,
        ca_file: str,
        trusted: bool,
        private_cidrs: tuple[str, ...] = (),
        proxy: Proxy | None = None,
    ) -> "tuple[Self, str]":
        """Split a URL into its place and the target of the request line.

        Raises:
            UsageError: not an http or https URL.
        """
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise UsageError(f"ticket: want an http or https URL, got scheme {parts.scheme[:20]!r}")
        tls = parts.scheme == "https"
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        port = parts.port or (443 if tls else 80)
        return cls(parts.hostname, port, tls, ca_file, trusted, private_cidrs, proxy), target


class Wire:
    """One connection in use by one thread.

    `sock` outlives the connection's own, which is let go as soon as an answer says that it will be the last.
    """

    def __init__(self, place: Place, connection: http.client.HTTPConnection, *, kept: bool) -> None:
        self.place = place
        self.connection = connection
        self.sock = connection.sock
        self.kept = kept
        self.idle_since = 0.0
        self._limit = (0.0, 0.0)

    def limit(self, deadline: float) -> None:
        """Let the next operation of the socket end by `deadline` (of `time.monotonic`), or a fifth of a second later.

        Raises:
            TimeoutError: it has passed.
        """
        now = time.monotonic()
        if now >= deadline:
            raise TimeoutError
        known, since = self._limit
        if known != deadline or now - since > _LIMIT_SECONDS:  # a system call: not for each record of TLS
            self.sock.settimeout(deadline - now)
            self._limit = (deadline, now)

    def cut(self) -> None:
        """End the connection under the thread that uses it."""
        with contextlib.suppress(OSError):  # not of SSLSocket: that one would go on reading in plain text
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    def is_silent(self) -> bool:
        """Tell whether an idle connection can be used again: nothing came, not even its end."""
        if self.connection.sock is None:
            return False
        self.sock.settimeout(0)
        self._limit = (0.0, 0.0)
        try:
            socket.socket.recv(self.sock, 1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        return False


class Wires:
    """Idle connections of a mover, by place. Safe from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Wire] = []

    def take(self, place: Place, deadline: float) -> Wire:
        """Return an idle connection to `place`, or open one.

        Raises:
            SourceUnavailable: it could not be opened.
            SourceDenied: its proxy does not accept the credentials.
            TimeoutError: no time is left.
        """
        while (wire := self._kept(place)) is not None:
            if time.monotonic() - wire.idle_since < _IDLE_SECONDS and wire.is_silent():
                return wire
            wire.connection.close()
        left = min(_CONNECT_SECONDS, deadline - time.monotonic())
        if left <= 0:
            raise TimeoutError
        connection = transport.connect(
            place.host,
            place.port,
            tls=place.tls,
            ca_file=place.ca_file,
            trusted=place.trusted,
            timeout_seconds=left,
            private_cidrs=place.private_cidrs,
            proxy=place.proxy,
        )
        return Wire(place, connection, kept=False)

    def give(self, wire: Wire) -> None:
        """Keep a connection for the next part; the oldest goes when there are many."""
        wire.kept = True
        wire.idle_since = time.monotonic()
        with self._lock:
            self._idle.append(wire)
            dropped = self._idle.pop(0) if len(self._idle) > _IDLE_CONNECTIONS else None
        if dropped:
            dropped.connection.close()

    def close(self) -> None:
        """Close all idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for wire in idle:
            wire.connection.close()

    def _kept(self, place: Place) -> Wire | None:
        with self._lock:
            for index in range(len(self._idle) - 1, -1, -1):
                if self._idle[index].place == place:
                    return self._idle.pop(index)
        return None


class Cutter:
    """The connections that one run uses now, so that it can be stopped within a moment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wires: set[Wire] = set()
        self.is_cut = False

    @contextlib.contextmanager
    def using(self, wire: Wire) -> Iterator[Wire]:
        """Count a connection among those to cut.

        Raises:
            Cancelled: the run was cut already.
        """
        with self._lock:
            if self.is_cut:
                wire.connection.close()
                raise Cancelled("part: the run was dropped")
            self._wires.add(wire)
        try:
            yield wire
        finally:
            with self._lock:
                self._wires.discard(wire)

    def cut(self) -> None:
        """End all connections of the run, now and later."""
        with self._lock:
            self.is_cut = True
            for wire in self._wires:
                wire.cut()


def read_error_body(response: http.client.HTTPResponse) -> bytes:
    """Read the beginning of an answer that is not what was asked for; whatever can be had."""
    try:
        return response.read(_MOST_ERROR_BYTES)
    except (OSError, http.client.HTTPException):
        return b""
