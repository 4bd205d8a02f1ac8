"""Connections that are kept alive between requests, bounded in number and age, and one exchange over one of them."""

import contextlib
import functools
import http.client
import select
import socket
import threading
import weakref
from collections.abc import Callable
from typing import Any

from aimodels_core import answers, hosts
from aimodels_core.answers import Answer, Limits, Request
from aimodels_core.errors import SourceUnavailable
from aimodels_core.hosts import Origin, redact

_IDLE_PER_ORIGIN = 8
_IDLE_ORIGINS = 16
_IDLE_SECONDS = 20.0

# Connections by origin, each with the time when it became idle.
_Idle = dict[Origin, list[tuple[float, http.client.HTTPConnection]]]


class Connections:
    """Idle connections by origin. Safe from several threads."""

    def __init__(self, connect: Callable[[Origin], http.client.HTTPConnection], *, clock: Callable[[], float]) -> None:
        self._connect, self._clock = connect, clock
        self._lock = threading.Lock()
        self._idle: _Idle = {}
        self._active: set[socket.socket] = set()
        self._aborted = False
        weakref.finalize(self, _close_all, self._idle)

    def exchange(self, request: Request, limits: Limits) -> Answer:
        """Send `request` and read its answer; a kept connection that turns out dead is replaced once.

        Raises:
            SourceUnavailable: see `aimodels_core.transport.Transport.call`.
        """
        place = hosts.origin(request.url)
        kept = self._take(place)
        if kept is not None and request.method in {"GET", "HEAD"}:
            with contextlib.suppress(_Stale):
                return self._over(kept, place, request, limits)
            kept = None
        if kept is not None:
            kept.close()
        try:
            return self._over(self._connect(place), place, request, limits)
        except _Stale as error:
            message = f"{redact(request.url)}: want an answer, got a closed connection"
            raise SourceUnavailable(message, code="Reset") from error.__cause__

    def _over(self, connection: http.client.HTTPConnection, place: Origin, request: Request, limits: Limits) -> Answer:
        limits.expect(len(request.body))
        sock, reuse = connection.sock, False
        try:
            self._begin(sock)
            response = _send(connection, request, limits)
            with response:
                answer = answers.read(response, request, limits)
                reuse = response.isclosed() and not response.will_close
        except _Stale:
            raise
        except TimeoutError as error:
            raise SourceUnavailable(f"{redact(request.url)}: timed out", code="TimedOut") from error
        except (http.client.IncompleteRead, OSError) as error:
            code = "ShortBody" if isinstance(error, http.client.IncompleteRead) else "Reset"
            raise SourceUnavailable(f"{redact(request.url)}: connection lost in the answer", code=code) from error
        except (http.client.HTTPException, ValueError) as error:
            message = f"{redact(request.url)}: not an HTTP answer: {type(error).__name__}"
            raise SourceUnavailable(message, code="BadAnswer") from None
        else:
            return answer
        finally:
            with self._lock:
                self._active.discard(sock)
            if reuse and connection.sock is not None:
                self._give_back(place, connection)
            else:
                connection.close()

    def _begin(self, sock: socket.socket) -> None:
        """Note that an exchange goes on over a socket, unless all are aborted: one check for every way to get here."""
        with self._lock:
            if self._aborted:
                raise _Stale
            self._active.add(sock)

    def _take(self, place: Origin) -> http.client.HTTPConnection | None:
        while True:
            with self._lock:
                waiting = self._idle.get(place)
                if not waiting:
                    return None
                since, connection = waiting.pop()
            if self._clock() - since < _IDLE_SECONDS and not _readable(connection):
                return connection
            connection.close()

    def _give_back(self, place: Origin, connection: http.client.HTTPConnection) -> None:
        dropped = [connection]
        with self._lock:
            if place in self._idle or len(self._idle) < _IDLE_ORIGINS:
                waiting = self._idle.setdefault(place, [])
                waiting.append((self._clock(), connection))
                dropped = [waiting.pop(0)[1]] if len(waiting) > _IDLE_PER_ORIGIN else []
            else:
                dropped += [old for _, old in self._idle.pop(next(iter(self._idle)))]
        for old in dropped:
            old.close()

    def abort(self) -> None:
        """End the exchanges in flight and later ones, as if the other side had closed their connections."""
        with self._lock:
            self._aborted = True
            for sock in self._active:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close all idle connections."""
        with self._lock:
            _close_all(self._idle)


def _close_all(idle: _Idle) -> None:
    while idle:
        for _, connection in idle.popitem()[1]:
            connection.close()


class _Stale(Exception):
    """The connection was closed before any byte of an answer."""


def _send(connection: http.client.HTTPConnection, request: Request, limits: Limits) -> http.client.HTTPResponse:
    response_class: Any = functools.partial(answers.TimedResponse, limits=limits)
    connection.response_class = response_class
    connection.sock.settimeout(limits.left())
    parts = request.url.split("/", 3)
    target = "/" + (parts[3] if len(parts) > 3 else "")
    try:
        connection.request(request.method, target, body=request.body or None, headers=dict(request.headers))
        return connection.getresponse()
    except TimeoutError:
        raise
    except (ConnectionError, http.client.RemoteDisconnected) as error:
        raise _Stale from error


def _readable(connection: http.client.HTTPConnection) -> bool:
    """Tell whether something, such as the end, waits to be read: an idle connection must be silent."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))
