"""What people see: progress on stderr, results on stdout, complaints on stderr. The only place that prints."""

import datetime
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self, TextIO

from aimodels_core.errors import AiModelsError
from aimodels_core.messages import PublicationState, Stage
from aimodels_core.units import human_bytes

_PLAIN_SECONDS = 5.0
_SAID_OTHERWISE = (Stage.QUEUED, Stage.READY, Stage.FAILED)
"""Stages that need no line: nothing has happened yet, or the command is about to say how it ended."""

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
_LOG_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class LogLines(logging.Formatter):
    """Renders a log record as one line: when, how serious, the constant message, then its variables.

    >>> record = logging.makeLogRecord({"levelname": "INFO", "msg": "model published", "created": 0.0, "model": "m"})
    >>> LogLines().format(record)
    '1970-01-01T00:00:00.000Z INFO model published model=m'
    """

    def format(self, record: logging.LogRecord) -> str:
        """Render a record."""
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        words = [f"{when:%Y-%m-%dT%H:%M:%S}.{when.microsecond // 1000:03d}Z", record.levelname, record.getMessage()]
        extra = {key: value for key, value in vars(record).items() if key not in _LOG_FIELDS and key[0] != "_"}
        words += [f"{key}={value}" for key, value in extra.items()]
        lines = [" ".join(words).translate(_CONTROLS)]
        if record.exc_info:
            lines.append(self.formatException(record.exc_info))
        return "\n".join(lines)


def log_to_stderr() -> None:
    """Show the logs of ai-models itself; those of libraries stay silent, they name every request."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogLines())
    for root in ("aimodels_core", "aimodels_jobs"):
        logger = logging.getLogger(root)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False


def complain(error: AiModelsError) -> None:
    """Print an error."""
    obvious = error.code in error.message or error.code == type(error).__name__
    say(f"ai-models: {error.message}" + ("" if obvious else f" ({error.code})"))


def say(line: str) -> None:
    """Print a line for people, on stderr."""
    print(_printable(line, sys.stderr), file=sys.stderr, flush=True)  # noqa: T201 - the command line's own output


def out(line: str) -> None:
    """Print a line of the result, on stdout."""
    print(_printable(line, sys.stdout), flush=True)  # noqa: T201 - the command line's own output


def out_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object, on stdout."""
    out(json.dumps(value))


def camel(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Name fields as JSON does.

    >>> camel({"bytes_total": 1})
    {'bytesTotal': 1}
    """

    def renamed(name: str) -> str:
        first, *rest = name.split("_")
        return first + "".join(word.capitalize() for word in rest)

    return {renamed(name): value for name, value in fields.items()}


def _printable(line: str, stream: TextIO) -> str:
    """Escape what would steer a terminal, or cannot be written at all: paths and messages come from strangers."""
    encoding = stream.encoding or "utf-8"
    return line.translate(_CONTROLS).encode(encoding, "backslashreplace").decode(encoding)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under a header, columns aligned; the last column is not padded."""
    lines = [tuple(header), *(tuple(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    for line in lines:
        out("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


class Progress:
    """Shows how a publication goes on: a bar on a terminal, a line every few seconds elsewhere.

    Args:
        name: of the model.
        clock: monotonic seconds.
    """

    def __init__(self, name: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._last = -_PLAIN_SECONDS
        self._shown: tuple[Stage, str] | None = None
        self._bar = _Bar(name) if sys.stderr.isatty() else None

    def show(self, state: PublicationState) -> None:
        """Take in a state."""
        if state.stage in _SAID_OTHERWISE:
            return
        if self._bar:
            waits = state.trouble and state.stage is Stage.WAITING
            words = state.trouble.message[:100] if waits and state.trouble else state.stage.value.lower()
            self._bar.show(words, state.bytes_done, state.bytes_total, _rate(state))
            return
        trouble = state.trouble.message if state.trouble and state.stage is Stage.WAITING else ""
        now = self._clock()
        news = (state.stage, trouble) != self._shown
        if not news and (now - self._last < _PLAIN_SECONDS or state.stage is not Stage.MOVING):
            return
        self._last, self._shown = now, (state.stage, trouble)
        say(f"{self._name}: {describe(state)}")

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar:
            self._bar.close()


class Counter:
    """Shows how many bytes of a known number are done: a bar on a terminal, a line every few seconds elsewhere.

    Safe from several threads.

    Args:
        name: of the model.
        verb: what is done with it, such as `pulling`.
        total: bytes.
        clock: monotonic seconds.
    """

    def __init__(self, name: str, verb: str, total: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._verb, self._total, self._clock = name, verb, total, clock
        self._began = self._last = clock()
        self._done = 0
        self._lock = threading.Lock()
        self._bar: _Bar | None = None

    def __enter__(self) -> Self:
        """Begin to show."""
        self._bar = _Bar(self._name) if sys.stderr.isatty() else None
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the terminal as it was."""
        if self._bar:
            self._bar.close()

    def add(self, size_bytes: int) -> None:
        """Count bytes that are done."""
        with self._lock:
            self._done += size_bytes
            now = self._clock()
            if self._bar is None and now - self._last < _PLAIN_SECONDS:
                return
            self._last = now
            rate = f"{human_bytes(int(self._done / max(now - self._began, 0.001)))}/s"
            if self._bar:
                self._bar.show(self._verb, self._done, self._total, rate)
                return
            done, total = human_bytes(self._done), human_bytes(self._total)
            say(f"{self._name}: {self._verb} {done} of {total}, {rate}")


def describe(state: PublicationState) -> str:
    """Say in one line how a publication goes on.

    >>> describe(PublicationState("u", 1, "h", stage=Stage.MOVING, bytes_total=2048, bytes_done=1024))
    'moving 1.0 KiB of 2.0 KiB (50%)'
    """
    words = state.stage.value.lower()
    if state.stage is Stage.MOVING and state.bytes_total:
        percent = 100 * state.bytes_done // state.bytes_total
        if state.bytes_reused >= state.bytes_total:
            return f"nothing to move: the store has all {human_bytes(state.bytes_total)}"
        words += f" {human_bytes(state.bytes_done)} of {human_bytes(state.bytes_total)} ({percent}%)"
        words += f", {_rate(state)}" if _rate(state) else ""
    if state.trouble and not state.stage.running:
        return f"{words}: {state.trouble.message}"
    if state.trouble and state.stage is Stage.WAITING:
        return f"attempt {state.attempt} failed, trying again: {state.trouble.message}"
    return words


def _rate(state: PublicationState) -> str:
    """Render the rate of what moves; reused bytes are no rate."""
    if not state.bytes_per_second or not state.bytes_transferred:
        return ""
    return f"{human_bytes(int(state.bytes_per_second))}/s"


class _Bar:
    """A progress bar by rich."""

    def __init__(self, name: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(binary_units=True))
        self._progress = RichProgress(
            *columns,
            TextColumn("{task.fields[rate]}", markup=False),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._name = name
        self._task = self._progress.add_task(name, total=None, rate="")
        self._progress.start()

    def show(self, words: str, done: int, total: int, rate: str) -> None:
        self._progress.update(
            self._task, description=f"{self._name}: {words}", completed=done, total=total or None, rate=rate
        )

    def close(self) -> None:
        self._progress.stop()
