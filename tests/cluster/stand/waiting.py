"""Waiting with a deadline, and running programs with one."""

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from tests.cluster.stand.layout import StandError

T = TypeVar("T")

COMMAND_SECONDS = 60.0
OUTPUT_CHARACTERS = 4000


def until(condition: Callable[[], T | None], *, what: str, seconds: float, pause: float = 0.05) -> T:
    """Poll until the condition gives something true, and return that.

    Raises:
        StandError: the deadline passed.
    """
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise StandError(f"{what}: want it within {seconds:g} s, got nothing")
        time.sleep(pause)


def command(
    *arguments: str | Path, seconds: float = COMMAND_SECONDS, stdin: str | None = None, cwd: Path | None = None
) -> str:
    """Run a program to its end and return what it printed.

    Raises:
        StandError: it failed or ran out of time; the message has the end of its output.
    """
    done = attempt(*arguments, seconds=seconds, stdin=stdin, cwd=cwd)
    if done.returncode != 0:
        output = (done.stderr or done.stdout)[-OUTPUT_CHARACTERS:]
        raise StandError(f"{_words(arguments)}: want exit code 0, got {done.returncode}: {output.strip()}")
    return done.stdout


def attempt(
    *arguments: str | Path, seconds: float = COMMAND_SECONDS, stdin: str | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, whatever its exit code.

    Raises:
        StandError: it could not be started or ran out of time.
    """
    try:
        return subprocess.run(
            [str(argument) for argument in arguments],
            input=stdin if stdin is not None else "",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
            cwd=cwd,
        )
    except subprocess.TimeoutExpired:
        raise StandError(f"{_words(arguments)}: want it to end within {seconds:g} s, got nothing") from None
    except OSError as error:
        raise StandError(f"{_words(arguments)}: cannot be started: {error.strerror}") from error


def _words(arguments: Sequence[str | Path]) -> str:
    return " ".join(str(argument) for argument in arguments)[:200]
