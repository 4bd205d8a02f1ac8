"""Debian packages that tests need: which are missing, and installing them without starting a service.

The list is `debian.txt` and nowhere else.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.binaries.catalogue import BinaryError

LIST = Path(__file__).with_name("debian.txt")
UPDATE_SECONDS = 300
INSTALL_SECONDS = 900
POLICY = Path("/usr/sbin/policy-rc.d")
SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""Where Debian keeps programs of the administrator; not on every user's PATH."""


@dataclass(frozen=True, slots=True)
class Package:
    """One line of the list."""

    group: str
    name: str
    proof: str
    """A program name, or an absolute path, whose presence shows that the package is installed."""

    def present(self) -> bool:
        """Whether this machine has it."""
        if self.proof.startswith("/"):
            return Path(self.proof).exists()
        return program(self.proof) is not None


def program(name: str) -> str | None:
    """Path of an installed program, the administrator's folders included."""
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath), *SBIN)))


def packages(group: str) -> list[Package]:
    """The packages of one group, in the order of the list.

    Raises:
        BinaryError: the list has no such group.
    """
    lines = (line.split() for line in LIST.read_text(encoding="utf-8").splitlines())
    every = [Package(*line) for line in lines if line and not line[0].startswith("#")]
    found = [package for package in every if package.group == group]
    if not found:
        groups = sorted({package.group for package in every})
        raise BinaryError(f"Debian group {group!r}: want one of {', '.join(groups)}")
    return found


def missing(group: str) -> list[str]:
    """Names of the packages of a group that this machine lacks."""
    return [package.name for package in packages(group) if not package.present()]


def install(group: str) -> list[str]:
    """Install what is missing of a group; returns the names of what was installed.

    Services of the packages are not started: while the command runs, the policy file that Debian asks says no.

    Raises:
        BinaryError: not root, no apt-get, no package source, or apt-get failed.
    """
    wanted = missing(group)
    if not wanted:
        return []
    words = f"Debian packages {' '.join(wanted)}"
    if os.geteuid() != 0:
        raise BinaryError(f"{words}: want root to install them, got uid {os.geteuid()}")
    if program("apt-get") is None:
        raise BinaryError(f"{words}: want apt-get, got none; install them with this system's own means")
    command = ["install", "--yes", "--no-install-recommends", *wanted]
    with _services_forbidden():
        if not _known(wanted) or _apt(command, seconds=INSTALL_SECONDS).returncode != 0:
            _expect(_apt(["update"], seconds=UPDATE_SECONDS), words)
            _expect(_apt(command, seconds=INSTALL_SECONDS), words)
    still = missing(group)
    if still:
        raise BinaryError(f"Debian packages {' '.join(still)}: installed, but their programs are not there")
    return wanted


def _known(names: list[str]) -> bool:
    """Whether the package lists on this machine have these names, so that no update is needed."""
    done = subprocess.run(["apt-cache", "show", *names], capture_output=True, timeout=UPDATE_SECONDS, check=False)
    return done.returncode == 0


@contextmanager
def _services_forbidden() -> Iterator[None]:
    """Keep the packages' services from starting: Debian asks this file before each start."""
    if POLICY.exists():  # the machine has a policy of its own
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n", encoding="ascii")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)


def _apt(arguments: list[str], *, seconds: int) -> subprocess.CompletedProcess[str]:
    """Run apt-get without questions."""
    options = ["-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3", "-qq"]
    return subprocess.run(
        ["apt-get", *options, *arguments],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=seconds,
        check=False,
    )


def _expect(done: subprocess.CompletedProcess[str], words: str) -> None:
    if done.returncode != 0:
        raise BinaryError(f"{words}: apt-get failed with {done.returncode}:\n{done.stderr[-2000:]}")
