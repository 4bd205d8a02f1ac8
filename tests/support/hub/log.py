"""What the simulator was asked and what it sent: the request log, and questions that tests put to it."""

import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.support.hub.routes import On


@dataclass(slots=True)
class Exchange:
    """One request and its answer. `start` and `sent_bytes` say which bytes of the file went out."""

    number: int
    host: str
    connection: int
    method: str
    target: str
    on: On
    repository: str
    path: str
    range: str | None
    token: bool
    status: int
    start: int
    at: float
    sent_bytes: int = 0
    payload: bool = False
    """Whether the answer carries bytes of the file (200 or 206 to a GET of a file)."""


@dataclass(slots=True)
class Log:
    """The exchanges so far, oldest first."""

    _exchanges: list[Exchange] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, exchange: Exchange) -> None:
        with self._lock:
            exchange.number = len(self._exchanges)
            self._exchanges.append(exchange)

    def clear(self) -> None:
        with self._lock:
            self._exchanges.clear()

    def __iter__(self) -> Iterator[Exchange]:
        with self._lock:
            return iter(list(self._exchanges))

    def __len__(self) -> int:
        return len(self._exchanges)

    def select(
        self, *, on: On | str | None = None, path: str | None = None, status: int | None = None
    ) -> list[Exchange]:
        """Exchanges of a kind, about a path, with a status."""
        return [
            each
            for each in self
            if on in (None, each.on) and path in (None, each.path) and status in (None, each.status)
        ]

    def payload_bytes(self, path: str | None = None) -> int:
        """Bytes of files that were sent, each time counted."""
        return sum(each.sent_bytes for each in self if each.payload and path in (None, each.path))

    def times_sent(self, path: str) -> dict[int, int]:
        """How many bytes of a file were sent exactly once, twice, …

        A file of which every byte went out once gives {1: its size}.
        """
        edges: dict[int, int] = {}
        for each in self:
            if each.payload and each.path == path and each.sent_bytes:
                edges[each.start] = edges.get(each.start, 0) + 1
                edges[each.start + each.sent_bytes] = edges.get(each.start + each.sent_bytes, 0) - 1
        counts: dict[int, int] = {}
        depth = previous = 0
        for place in sorted(edges):
            if depth:
                counts[depth] = counts.get(depth, 0) + place - previous
            depth, previous = depth + edges[place], place
        return counts

    def most_often(self, path: str, *, start: int = 0, stop: int | None = None) -> int:
        """How often a byte of [start, stop) of a file was sent at most."""
        edges: dict[int, int] = {}
        for each in self:
            first, end = max(each.start, start), each.start + each.sent_bytes
            end = end if stop is None else min(end, stop)
            if each.payload and each.path == path and first < end:
                edges[first] = edges.get(first, 0) + 1
                edges[end] = edges.get(end, 0) - 1
        depths = itertools.accumulate(edges[place] for place in sorted(edges))
        return max(depths, default=0)

    def summary(self) -> dict[str, object]:
        """Totals as a JSON document."""
        kinds: dict[str, int] = {}
        statuses: dict[str, int] = {}
        files: dict[str, dict[str, int]] = {}
        for each in self:
            kinds[each.on] = kinds.get(each.on, 0) + 1
            statuses[str(each.status)] = statuses.get(str(each.status), 0) + 1
            if each.payload:
                row = files.setdefault(f"{each.repository}/{each.path}", {"requests": 0, "bytes": 0})
                row["requests"] += 1
                row["bytes"] += each.sent_bytes
        return {"requests": kinds, "statuses": statuses, "files": files, "payloadBytes": self.payload_bytes()}
