"""Long-running parts of a stand: start in the background, find again by pid file, stop, freeze, kill.

Any process of the sandbox may control any part: what is known about a part is in its pid file, and
its parent is always the sandbox's first process.
"""

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.stand.layout import Layout, StandError
from tests.cluster.stand.waiting import command, until

STOP_SECONDS = 10.0
_LAUNCH = (
    'for c in $CGROUPS; do echo $$ > "$c/cgroup.procs"; done; echo $$ > "$PIDFILE"; unset CGROUPS PIDFILE; exec "$@"'
)
"""Joins the cgroups, leaves its process id and becomes the program."""


@dataclass(frozen=True, slots=True)
class Part:
    """One long-running program of the stand."""

    layout: Layout
    name: str
    """Names its log and pid file."""
    arguments: Sequence[str | Path]
    cgroup: str
    """Cgroup to run in (freezer and memory)."""
    enter: Sequence[str] = ()
    """Prefix that enters other namespaces, such as `nsenter …`."""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        """Where it writes."""
        return self.layout.logs / f"{self.name}.log"

    @property
    def pid_file(self) -> Path:
        """Where its process id is, in the sandbox's numbers."""
        return self.layout.pids / self.name

    def start(self) -> None:
        """Start it with its output appended to its log.

        Raises:
            StandError: it runs already, or cannot be started.
        """
        if self.running():
            raise StandError(f"part {self.name}: want it stopped, got it running as {self.pid()}")
        self.pid_file.unlink(missing_ok=True)
        cgroups = " ".join(f"/sys/fs/cgroup/{hierarchy}/{self.cgroup}" for hierarchy in ("freezer", "memory"))
        environment = {**self.environment, "PIDFILE": str(self.pid_file), "CGROUPS": cgroups}
        assignments = [f"{name}={value}" for name, value in environment.items()]
        shell = f'exec >>"{self.log}" 2>&1 </dev/null; exec "$@"'
        inner = ["env", *assignments, *self.enter, "sh", "-c", _LAUNCH, "sh", *(str(word) for word in self.arguments)]
        command("setsid", "--fork", "sh", "-c", shell, "sh", *inner)
        until(self.pid, what=f"part {self.name} started", seconds=STOP_SECONDS, pause=0.005)

    def pid(self) -> int | None:
        """Its process id, if it was ever started."""
        with contextlib.suppress(OSError, ValueError):
            return int(self.pid_file.read_text())
        return None

    def running(self) -> bool:
        """Whether it lives (a zombie does not)."""
        pid = self.pid()
        return pid is not None and alive(pid)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal.

        Raises:
            StandError: it does not run.
        """
        pid = self.pid()
        if pid is None or not alive(pid):
            raise StandError(f"part {self.name}: want it running, got it stopped")
        os.kill(pid, number)

    def kill(self) -> None:
        """End it at once and wait until it is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to end and wait until it is gone."""
        self._end(signal.SIGTERM)

    def freeze(self) -> None:
        """Stop it where it is; its sockets stay open."""
        self.send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self.send(signal.SIGCONT)

    def restart(self) -> None:
        """End it, if it runs, and start it again."""
        if self.running():
            self.stop()
        self.start()

    def tail(self, lines: int = 20) -> str:
        """The last lines of its log."""
        with contextlib.suppress(OSError), self.log.open("rb") as handle:
            handle.seek(max(0, handle.seek(0, os.SEEK_END) - 16384))
            return "\n".join(handle.read().decode("utf-8", "replace").splitlines()[-lines:])
        return ""

    def _end(self, number: signal.Signals) -> None:
        self.send(number)
        until(lambda: not self.running(), what=f"part {self.name} ended", seconds=STOP_SECONDS, pause=0.01)


def alive(pid: int) -> bool:
    """Whether a process exists and one of its threads is no zombie: until then it holds its sockets."""
    try:
        stats = [stat.read_text() for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # a thread ended meanwhile: look again
        return Path(f"/proc/{pid}").exists()
    return any(stat.rpartition(")")[2].split()[0] not in {"Z", "X"} for stat in stats)
