"""The command line as users run it: a process, its exit code, what it printed."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.publishing import Place

CLI = str(Path(sys.executable).with_name("ai-models"))


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """What a run of the command line came to."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed with `--json`."""
        return json.loads(self.out)


class Cli:
    """Runs `ai-models` on a store and a hub.

    Args:
        place: the store.
        hub: endpoint of the hub.
        environment: added to a clean one.
    """

    def __init__(self, place: Place, hub: str = "", environment: Mapping[str, str] = {}) -> None:
        self._place = place
        self._hub = hub
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "HF_", "RAY_"))}
        self._environment = {**kept, "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1", "PYTHONFAULTHANDLER": "1"}
        self._environment |= {**place.environment, **environment}

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Start a command; `publish` and `plan` get the endpoint."""
        more = ("--endpoint", self._hub) if words[0] in ("publish", "plan") and self._hub else ()
        return subprocess.Popen(
            [CLI, *words, *self._place.words, *more],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._environment,
        )

    def __call__(self, *words: str, seconds: float = 50.0) -> Ended:
        """Run a command to its end."""
        return ended(self.begin(*words), seconds=seconds)


def ended(process: subprocess.Popen[str], *, seconds: float = 50.0) -> Ended:
    """Wait for a command and take what it printed; one that does not end is killed."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        process.send_signal(signal.SIGABRT)  # Python prints where each thread is
        _, err = process.communicate()
        raise TimeoutError(f"{process.args!r}: want an end within {seconds} s, got this far:\n{err}") from error
    except BaseException:
        process.kill()
        process.communicate()
        raise
    return Ended(process.returncode, out, err)


@contextlib.contextmanager
def running(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Make sure that a command is gone at the end, frozen or not."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.communicate()
