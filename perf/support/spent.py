"""What a command or a server spent: wall time, CPU, memory, bytes written to disk. From rusage and /proc (Linux).

What the figures mean for a goal belongs to the benchmarks.
"""

import contextlib
import dataclasses
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

_TICKS = os.sysconf("SC_CLK_TCK")
_OUT_BYTES = 1024 * 1024
_LOOK_SECONDS = 0.2


class CommandError(RuntimeError):
    """A measured command did not end as it should; the message ends with what it printed last."""


@dataclasses.dataclass(frozen=True, slots=True)
class Spent:
    """What one command took, with the children that it waited for.

    Args:
        seconds: wall time from start to end.
        cpu_seconds: user and system.
        rss_bytes: largest resident memory of any one of its processes.
        written_bytes: bytes it caused to be written to block devices (0 on tmpfs).
        out: what it printed on stdout.
        code: exit code; negative for a signal.
    """

    seconds: float
    cpu_seconds: float
    rss_bytes: int
    written_bytes: int
    out: str
    code: int


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    timeout_seconds: float = 600.0,
    codes: Sequence[int] = (0,),
    deep: bool = False,
) -> Spent:
    """Run a command to its end.

    Args:
        command: program and arguments.
        env: its whole environment.
        cwd: its folder.
        timeout_seconds: it is killed after that.
        codes: exit codes that are as they should be.
        deep: count children too that nobody waits for, such as Ray's, by looking five times a second.

    Raises:
        CommandError: an exit code that is not among `codes`, or longer than the timeout (it is killed then).
    """
    with Running(command, env=env, cwd=cwd) as running, _looking(running.pid, deep=deep) as seen:
        spent = running.wait(timeout_seconds=timeout_seconds, codes=codes)
    return dataclasses.replace(spent, cpu_seconds=max(spent.cpu_seconds, *seen))


@contextlib.contextmanager
def _looking(pid: int, *, deep: bool) -> Iterator[list[float]]:
    """Look at the CPU of a tree of processes while it lives; what was seen is in the list at the end."""
    seen, over = [0.0, 0.0], threading.Event()

    def look() -> None:
        while not over.wait(_LOOK_SECONDS):
            seen.append(tree_cpu_seconds(pid))

    thread = threading.Thread(target=look, daemon=True)
    if deep:
        thread.start()
    try:
        yield seen
    finally:
        over.set()
        if deep:
            thread.join()


class Running:
    """A command under way, in a session of its own."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> None:
        self._files = contextlib.ExitStack()
        self._out = self._files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
        self._err = self._files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
        self._command = command
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )
        self._spent: Spent | None = None

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_: object) -> None:
        if self._spent is None:
            self.signal(signal.SIGKILL)
            self._reap()
        self._files.close()

    @property
    def pid(self) -> int:
        """Process id, which is that of its group too."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it has not ended yet."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def wait(self, *, timeout_seconds: float, codes: Sequence[int] = (0,)) -> Spent:
        """Wait for the end; see `run`."""
        late = threading.Timer(timeout_seconds, self.signal, (signal.SIGKILL,))
        late.start()
        try:
            spent = self._reap()
        finally:
            late.cancel()
        if spent.code not in codes:
            tail = _tail(self._err) or spent.out[-2000:]
            raise CommandError(f"{' '.join(self._command)[:300]}: want exit code {codes}, got {spent.code}:\n{tail}")
        return spent

    def _reap(self) -> Spent:
        _, status, usage = os.wait4(self.pid, 0)
        seconds = time.monotonic() - self._began
        code = os.waitstatus_to_exitcode(status)
        self._process.returncode = code
        cpu, rss, written = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, usage.ru_oublock * 512
        self._spent = Spent(seconds, cpu, rss, written, _tail(self._out), code)
        return self._spent


def _tail(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _OUT_BYTES))
    return file.read(_OUT_BYTES).decode("utf-8", "replace")


def tree_cpu_seconds(*roots: int) -> float:
    """User and system time so far of processes, their children and the children that they waited for."""
    parents: dict[int, list[int]] = {}
    times: dict[int, float] = {}
    for pid, fields in _processes():
        parents.setdefault(int(fields[1]), []).append(pid)
        times[pid] = sum(map(int, fields[11:15])) / _TICKS
    todo, total = list(roots), 0.0
    while todo:
        pid = todo.pop()
        total += times.get(pid, 0.0)
        todo.extend(parents.get(pid, ()))
    return total


def children() -> frozenset[int]:
    """Process ids of this process's own children."""
    return frozenset(pid for pid, fields in _processes() if int(fields[1]) == os.getpid())


def _processes() -> Iterator[tuple[int, list[str]]]:
    """Every process id, and the fields of its stat file from the state on (proc(5))."""
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            with contextlib.suppress(OSError):
                yield int(place.name), (place / "stat").read_text().rpartition(")")[2].split()


def wait_for_quiet(most_seconds: float, share: float = 0.15) -> None:
    """Wait until less than `share` of the machine is busy for half a second, but not for ever."""
    deadline = time.monotonic() + most_seconds
    while time.monotonic() < deadline:
        busy = machine_busy_seconds()
        time.sleep(0.5)
        if machine_busy_seconds() - busy < 0.5 * share * (os.cpu_count() or 1):
            return


def machine_busy_seconds() -> float:
    """CPU seconds that all processors were busy since boot, stolen time included."""
    fields = [int(value) for value in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
    user, nice, system, _idle, _wait, irq, soft, steal = fields
    return (user + nice + system + irq + soft + steal) / _TICKS


@dataclasses.dataclass(slots=True)
class Watch:
    """CPU of servers, and of everything else on the machine, between its making and `stop`.

    Args:
        groups: name of a role, such as `source`, to the process ids at the top of its trees.
    """

    groups: Mapping[str, Sequence[int]]
    _before: dict[str, float] = dataclasses.field(init=False)
    _own: float = dataclasses.field(init=False)
    _busy: float = dataclasses.field(init=False)
    _began: float = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self._before = {name: tree_cpu_seconds(*pids) for name, pids in self.groups.items()}
        self._own, self._busy, self._began = sum(os.times()[:2]), machine_busy_seconds(), time.monotonic()

    def stop(self, client_cpu_seconds: float) -> tuple[dict[str, float], float]:
        """CPU seconds of each role, and the share of the machine (0 to 1) that went to things unknown here."""
        seconds = max(time.monotonic() - self._began, 1e-6)
        roles = {name: tree_cpu_seconds(*pids) - self._before[name] for name, pids in self.groups.items()}
        known = sum(roles.values()) + client_cpu_seconds + sum(os.times()[:2]) - self._own
        foreign = max(0.0, machine_busy_seconds() - self._busy - known)
        return roles, min(1.0, foreign / seconds / (os.cpu_count() or 1))
