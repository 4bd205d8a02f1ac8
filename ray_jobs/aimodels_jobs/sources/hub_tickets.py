"""Tickets to read files, kept for their lifetime and asked for once, whoever needs them at the same time.

How a ticket is got is a parameter; nothing here knows a hub.
"""

import dataclasses
import threading
from collections.abc import Callable
from concurrent.futures import Future

from aimodels_core.errors import SourceUnavailable
from aimodels_core.source import ReadTicket

RENEW_AT = 0.8
"""Share of its life after which a ticket is renewed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fresh:
    """A ticket just got.

    Args:
        ticket: the ticket.
        lifetime_seconds: how long it lives from now on; None when it does not end.
    """

    ticket: ReadTicket
    lifetime_seconds: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class _Kept:
    ticket: ReadTicket
    renew_at: float | None


class Tickets:
    """One ticket per file. Safe from several threads; callers that need the same ticket share one request."""

    def __init__(self, *, clock: Callable[[], float], wait_seconds: float) -> None:
        """Begin with none.

        Args:
            clock: monotonic seconds, so that a jump of the wall clock neither keeps nor drops a ticket.
            wait_seconds: longest wait for a request that another caller made.
        """
        self._clock = clock
        self._wait_seconds = wait_seconds
        self._kept: dict[str, _Kept] = {}
        self._flights: dict[str, Future[ReadTicket]] = {}
        self._lock = threading.Lock()

    def get(self, path: str, fetch: Callable[[], Fresh], *, refused: ReadTicket | None = None) -> ReadTicket:
        """Return the ticket of `path`, one other than `refused`.

        Args:
            path: the file.
            fetch: asks for a ticket; called by one of the callers that need it at a time.
            refused: a ticket that was not accepted any more.

        Raises:
            SourceUnavailable: the caller that asks takes too long.
            AiModelsError: whatever `fetch` raised, for all callers that waited for it.
        """
        with self._lock:
            good = self._good(path, refused)
            if good is not None:
                return good
            mine: Future[ReadTicket] = Future()
            flight = self._flights.setdefault(path, mine)
        return self._fly(path, mine, fetch) if flight is mine else self._join(path, flight)

    def _good(self, path: str, refused: ReadTicket | None) -> ReadTicket | None:
        kept = self._kept.get(path)
        if kept is None or kept.ticket == refused:
            return None
        return kept.ticket if kept.renew_at is None or self._clock() < kept.renew_at else None

    def _join(self, path: str, flight: Future[ReadTicket]) -> ReadTicket:
        try:
            return flight.result(timeout=self._wait_seconds)
        except TimeoutError as error:
            raise SourceUnavailable(f"{path}: no ticket within {self._wait_seconds:.0f} s", code="TimedOut") from error

    def _keep(self, path: str, fresh: Fresh) -> ReadTicket:
        life = fresh.lifetime_seconds
        with self._lock:
            self._kept[path] = _Kept(fresh.ticket, None if life is None else self._clock() + RENEW_AT * life)
        return fresh.ticket

    def _fly(self, path: str, flight: Future[ReadTicket], fetch: Callable[[], Fresh]) -> ReadTicket:
        try:
            ticket = self._keep(path, fetch())
        except BaseException as error:
            flight.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._flights[path]
        flight.set_result(ticket)
        return ticket
