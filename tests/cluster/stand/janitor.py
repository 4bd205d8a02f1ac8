"""Watches over one stand from outside and removes everything that is not namespaced when it ends.

Started detached by the supervisor with the stand's lock and the reading end of a pipe: the pipe ends
when the supervisor does, in whatever way. Standard library only.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.cluster.stand import cgroups
from tests.cluster.stand.layout import Layout

LOOP_SECONDS = 5.0


def main() -> int:
    """Usage: janitor STAND-FOLDER PIPE LOCK (the last two are inherited file descriptors)."""
    layout, pipe = Layout(Path(sys.argv[1])), int(sys.argv[2])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    handle = _follow(pipe)
    if handle is not None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    left = clean(layout)
    if left:
        print(f"stand {layout.id}: could not remove {'; '.join(left)}", file=sys.stderr)
    return 1 if left else 0


def _follow(pipe: int) -> int | None:
    """Read the sandbox's process id from the pipe, then wait for the pipe's end; returns a handle of the process."""
    handle = None
    with open(pipe, encoding="ascii") as lines:
        for line in lines:
            with contextlib.suppress(ProcessLookupError):
                handle = os.pidfd_open(int(line))
    return handle


def clean(layout: Layout) -> list[str]:
    """Remove processes, loop devices, cgroups and files of a stand; returns what is left, in words."""
    left = [f"process {pid}" for pid in cgroups.kill(layout.cgroup)]
    left += [f"loop device {device}" for device in _detach_loops(layout.root)]
    left += [f"cgroup {folder}" for folder in cgroups.remove(layout.cgroup)]
    removed = subprocess.run(
        ["rm", "-rf", "--one-file-system", str(layout.root)], capture_output=True, text=True, timeout=120, check=False
    )
    if removed.returncode != 0:
        left.append(f"files: {removed.stderr.strip()[:500]}")
    return left


def loops(folder: Path) -> list[Path]:
    """Loop devices whose backing file is below a folder, or was and is deleted."""
    found = []
    for device in Path("/sys/block").glob("loop*"):
        with contextlib.suppress(OSError):
            backing = (device / "loop" / "backing_file").read_text().strip().removesuffix(" (deleted)")
            if Path(backing).is_relative_to(folder):
                found.append(Path("/dev") / device.name)
    return found


def _detach_loops(folder: Path) -> list[Path]:
    """Detach loop devices of a folder; the mounts of a dying sandbox may hold them for a moment."""
    deadline = time.monotonic() + LOOP_SECONDS
    while True:
        for device in loops(folder):
            subprocess.run(["losetup", "--detach", str(device)], capture_output=True, timeout=10, check=False)
        left = loops(folder)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
