"""What people see: progress on stderr, results on stdout, complaints on stderr. The only place that prints."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from aimodels_core.errors import AiModelsError
from aimodels_core.messages import PublicationState, Stage
from aimodels_core.units import human_bytes

_PLAIN_SECONDS = 5.0


def complain(error: AiModelsError) -> None:
    """Print an error."""
    say(f"ai-models: {error.message}" + (f" ({error.code})" if error.code not in error.message else ""))


def say(line: str) -> None:
    """Print a line for people, on stderr."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - the command line's own output


def out(line: str) -> None:
    """Print a line of the result, on stdout."""
    print(line, flush=True)  # noqa: T201 - the command line's own output


def out_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object, on stdout."""
    out(json.dumps(value, ensure_ascii=False))


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
        if self._bar:
            self._bar.show(state)
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


def describe(state: PublicationState) -> str:
    """Say in one line how a publication goes on.

    >>> describe(PublicationState("u", 1, "h", stage=Stage.MOVING, bytes_total=2048, bytes_done=1024))
    'moving 1.0 KiB of 2.0 KiB (50%)'
    """
    words = state.stage.value.lower()
    if state.stage is Stage.MOVING and state.bytes_total:
        percent = 100 * state.bytes_done // state.bytes_total
        words += f" {human_bytes(state.bytes_done)} of {human_bytes(state.bytes_total)} ({percent}%)"
        if state.bytes_per_second:
            words += f", {human_bytes(int(state.bytes_per_second))}/s"
    if state.trouble and not state.stage.running:
        return f"{words}: {state.trouble.message}"
    if state.trouble and state.stage is Stage.WAITING:
        return f"attempt {state.attempt} failed, trying again: {state.trouble.message}"
    return words


class _Bar:
    """A progress bar by rich."""

    def __init__(self, name: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
        from rich.progress import Progress as RichProgress

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
        self._progress = RichProgress(
            *columns, TransferSpeedColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True
        )
        self._name = name
        self._task = self._progress.add_task(name, total=None)
        self._progress.start()

    def show(self, state: PublicationState) -> None:
        words = f"{self._name}: {state.stage.value.lower()}"
        if state.trouble and state.stage is Stage.WAITING:
            words = f"{self._name}: {state.trouble.message[:100]}"
        self._progress.update(
            self._task, description=words, completed=state.bytes_done, total=state.bytes_total or None
        )

    def close(self) -> None:
        self._progress.stop()
