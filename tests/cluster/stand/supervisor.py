"""Outside of a stand: prerequisites, sweep of dead stands, sandbox, exit code.

The inside runs in network, process, mount, IPC and host-name namespaces of its own and dies with them;
the janitor removes the rest, even when this process is killed.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tests.cluster.stand import cgroups, environment, images, janitor, product
from tests.cluster.stand.control import Settings
from tests.cluster.stand.layout import CHECKOUT, MAX_NODES, Layout, StandError, stands_root
from tests.support import binaries
from tests.support.binaries import catalogue

MIN_FREE_BYTES = 10 * 1024**3
CPU_SHARES = 8 * 1024
"""All Pods together, as eight busy processes beside the stand: as one they would starve on a busy machine."""
JANITOR_SECONDS = 60.0
SANDBOX = ("unshare", "--net", "--pid", "--mount", "--ipc", "--uts", "--fork", "--mount-proc", "--kill-child")
SOCKET_PATH_BYTES = 107
"""Longest path of a Unix socket."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to run, and on what."""

    command: tuple[str, ...]
    nodes: int = 3
    product: bool = True
    """Whether nodes have the product's images."""
    install: bool = False
    """Whether to install the product first."""
    keep_logs: Path | None = None
    """Where to copy the logs of all parts if the command fails."""


def run(request: Request) -> int:
    """Run a command beside a fresh cluster, in a sandbox; returns the command's exit code.

    Raises:
        StandError: a prerequisite is missing, or the stand could not be cleaned up.
    """
    template = prepare(request)
    with _stand() as (layout, lock):
        Settings(request.nodes, str(template), request.command, install=request.install).save(layout)
        link_programs(layout)
        return _supervise(layout, lock, request.keep_logs)


def prepare(request: Request) -> Path:
    """Check, install and build everything that a stand needs; returns the image template.

    Raises:
        StandError: a prerequisite is missing or a build failed.
    """
    check(request)
    built = product.archives() if request.product else []
    template = images.template([*images.helpers(), *built])
    with _registry():
        used = {Settings.load(layout).template for layout in live() if layout.settings.exists()}
        images.prune(used, now=time.time())
    return template


def check(request: Request) -> None:
    """Install and build what is missing; say in clear words what cannot be had.

    Raises:
        StandError: not root, no version 1 cgroups, too little disk, too many nodes, nothing to install, or a program is
            not to be had.
    """
    if request.install and not request.product:
        raise StandError("--install: want the product's images, got --no-images")
    if not 1 <= request.nodes <= MAX_NODES:
        raise StandError(f"nodes: want 1 to {MAX_NODES}, got {request.nodes}")
    if os.geteuid() != 0:
        raise StandError(f"stand: want root (namespaces, mounts, cgroups), got uid {os.geteuid()}")
    cgroups.hierarchies()
    stands_root().mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(stands_root()).free
    if free < MIN_FREE_BYTES:
        raise StandError(f"disk of {stands_root()}: want {MIN_FREE_BYTES >> 30} GiB free, got {free >> 30}")
    socket = len(str(stands_root() / "abcdef" / "nodes" / "node-a" / "containerd.sock.ttrpc"))
    if socket > SOCKET_PATH_BYTES:
        raise StandError(
            f"cache folder {stands_root()}: want a path {socket - SOCKET_PATH_BYTES} bytes shorter, for sockets"
        )
    try:
        binaries.install("cluster")
        binaries.paths(catalogue.GROUPS["cluster"])
    except binaries.BinaryError as error:
        raise StandError(str(error)) from error


def enter(name: str, words: tuple[str, ...]) -> int:
    """Run a command in a stand that lives, beside the one it was started for; returns the exit code.

    Raises:
        StandError: no stand of that name lives.
    """
    layout = Layout(stands_root() / name)
    if name not in [found.id for found in live()] or not layout.front.exists():
        raise StandError(f"stand {name}: want one that lives, got {', '.join(found.id for found in live()) or 'none'}")
    parent = layout.front.read_text()
    first = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[0]
    namespaces = ("--net", "--mount", "--pid", "--ipc", "--uts")
    assignments = [f"{key}={value}" for key, value in environment.of(layout, os.environ).items()]
    command = ["nsenter", f"--target={first}", *namespaces, f"--wd={CHECKOUT}", "env", *assignments, *words]
    return subprocess.run(command, cwd=CHECKOUT, check=False).returncode


def sweep() -> list[str]:
    """Remove what dead stands left; returns what could not be removed, in words."""
    left: list[str] = []
    with _registry():
        for folder in sorted(path for path in stands_root().iterdir() if path.is_dir()):
            layout = Layout(folder)
            layout.lock.touch()
            with layout.lock.open() as handle, contextlib.suppress(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left += janitor.clean(layout)
    return left


def live() -> list[Layout]:
    """Stands whose supervisor or janitor lives."""
    found = []
    for folder in sorted(path for path in stands_root().glob("*") if path.is_dir()):
        try:
            with (folder / "lock").open() as handle:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            found.append(Layout(folder))
        except FileNotFoundError:
            continue
    return found


def link_programs(layout: Layout) -> None:
    """Fill the stand's folder of programs."""
    for name in catalogue.GROUPS["cluster"]:
        (layout.bin / name).symlink_to(binaries.path(name))


@contextmanager
def _registry() -> Iterator[None]:
    """Hold the lock under which stands are made and swept."""
    stands_root().mkdir(parents=True, exist_ok=True)
    with (stands_root() / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def _stand() -> Iterator[tuple[Layout, int]]:
    """Sweep, then make the folder and cgroup of a new stand, locked."""
    left = sweep()
    if left:
        print(f"warning: left by dead stands: {'; '.join(left)}", file=sys.stderr)
    layout = Layout(stands_root() / secrets.token_hex(3))
    with _registry():
        layout.make()
        handle = layout.lock.open("w")
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    cgroups.make(f"{layout.cgroup}/control-plane")
    cgroups.weigh(layout.cgroup, CPU_SHARES)
    with handle:
        yield layout, handle.fileno()


def _supervise(layout: Layout, lock: int, keep_logs: Path | None) -> int:
    """Start the janitor and the sandbox, wait for the sandbox, then for the janitor."""
    reading, writing = os.pipe()
    arguments = [sys.executable, "-m", "tests.cluster.stand.janitor", str(layout.root), str(reading), str(lock)]
    watcher = subprocess.Popen(arguments, cwd=CHECKOUT, pass_fds=(reading, lock), start_new_session=True)
    os.close(reading)
    with open(writing, "w", encoding="ascii") as pipe:  # noqa: PTH123 - a file descriptor has no path
        code = 1
        try:
            code = _sandbox(layout, pipe.fileno())
        finally:
            if code != 0 and keep_logs is not None:
                shutil.copytree(layout.logs, keep_logs / layout.id, dirs_exist_ok=True)
                print(f"logs of the stand: {keep_logs / layout.id}", file=sys.stderr)
    if watcher.wait(JANITOR_SECONDS) != 0:
        raise StandError(f"stand {layout.id}: want nothing left behind, got the leftovers named above")
    return code


def _sandbox(layout: Layout, pipe: int) -> int:
    """Run the inside; its process id goes into the pipe first. SIGTERM ends it as Ctrl-C does."""
    inside = [
        *SANDBOX,
        "--propagation",
        "private",
        sys.executable,
        "-m",
        "tests.cluster.stand.inside",
        str(layout.root),
    ]
    with subprocess.Popen(inside, cwd=CHECKOUT) as process:
        os.write(pipe, f"{process.pid}\n".encode("ascii"))
        layout.front.write_text(str(process.pid))
        previous = signal.signal(signal.SIGTERM, _interrupt)
        try:
            return process.wait()
        except KeyboardInterrupt:
            return 130
        finally:
            process.kill()
            signal.signal(signal.SIGTERM, previous)


def _interrupt(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def command_line(words: Sequence[str]) -> tuple[str, ...]:
    """A command as the inside runs it: an interactive shell if none is given."""
    return tuple(words) or ("bash",)
