"""Cgroups of a stand: make, list members, freeze, kill, remove. Version 1 hierarchies only.

They are not namespaced, so their names carry the stand's id, and the janitor removes them.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

from tests.cluster.stand.layout import StandError

ROOT = Path("/sys/fs/cgroup")
NEEDED = ("cpu", "cpuacct", "cpuset", "devices", "freezer", "memory", "pids")
REMOVE_SECONDS = 5.0


def hierarchies() -> list[Path]:
    """Mount points of the version 1 hierarchies.

    Raises:
        StandError: a controller that kubelet needs is not mounted as version 1.
    """
    lacking = [name for name in NEEDED if not (ROOT / name / "cgroup.procs").exists()]
    if lacking:
        raise StandError(f"cgroups: want version 1 controllers under {ROOT}, got none for {', '.join(lacking)}")
    return sorted(
        path for path in ROOT.iterdir() if (path / "cgroup.clone_children").exists() and not path.is_symlink()
    )


def make(name: str) -> None:
    """Create a cgroup in every hierarchy; cpuset values are copied from the parent, as the kernel wants."""
    for hierarchy in hierarchies():
        folder = hierarchy
        for part in Path(name).parts:
            folder = folder / part
            folder.mkdir(exist_ok=True)
            if hierarchy.name == "cpuset":
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (folder / file).write_text((folder.parent / file).read_text())


def weigh(name: str, shares: int) -> None:
    """Say how much of the processors a cgroup gets when they are wanted by others too; one process has 1024."""
    (ROOT / "cpu" / name / "cpu.shares").write_text(str(shares))


def enter(name: str, *, pid: int = 0) -> None:
    """Move a process (0: this one) into a cgroup, for freezing and for counting memory."""
    for hierarchy in ("freezer", "memory"):
        (ROOT / hierarchy / name / "cgroup.procs").write_text(str(pid))


def members(name: str) -> list[int]:
    """Process ids in a cgroup and below, as this process's namespace numbers them."""
    found: list[int] = []
    for folder in _tree(ROOT / "freezer" / name):
        with contextlib.suppress(OSError):
            found += [int(line) for line in (folder / "cgroup.procs").read_text().split()]
    return [pid for pid in found if pid > 0]


def freeze(name: str) -> None:
    """Stop every process of a cgroup where it is."""
    (ROOT / "freezer" / name / "freezer.state").write_text("FROZEN")


def thaw(name: str) -> None:
    """Let the processes of a cgroup, and of those below, go on."""
    for folder in _tree(ROOT / "freezer" / name):
        with contextlib.suppress(OSError):
            (folder / "freezer.state").write_text("THAWED")


def kill(name: str, *, seconds: float = REMOVE_SECONDS) -> list[int]:
    """Kill every process of a cgroup and below; returns those that would not die in time."""
    deadline = time.monotonic() + seconds
    while True:
        thaw(name)  # a frozen process does not die before it is thawed
        left = members(name)
        if not left or time.monotonic() > deadline:
            return left
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def memory_bytes(name: str) -> int:
    """Memory that the processes of a cgroup hold: anonymous and shared, page cache of files not counted."""
    lines = (ROOT / "memory" / name / "memory.stat").read_text().splitlines()
    values = {key: int(value) for key, value in (line.split() for line in lines)}
    return values["total_rss"] + values.get("total_shmem", 0)


def remove(name: str, *, seconds: float = REMOVE_SECONDS) -> list[Path]:
    """Remove an empty cgroup and those below from every hierarchy; returns what is still there."""
    deadline = time.monotonic() + seconds
    while True:
        every = [hierarchy for hierarchy in ROOT.iterdir() if hierarchy.is_dir()]  # runc uses version 2 as well
        left = [folder for hierarchy in every for folder in reversed(_tree(hierarchy / name))]
        for folder in left:
            with contextlib.suppress(OSError):
                folder.rmdir()
        left = [folder for folder in left if folder.exists()]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


def _tree(folder: Path) -> list[Path]:
    """A cgroup and those below it, parents first."""
    found: list[Path] = []
    for path, names, _ in os.walk(folder):
        names.sort()
        found.append(Path(path))
    return found
