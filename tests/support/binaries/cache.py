"""The cache of built programs: check, lock, build with `go build`, put in place by rename.

Entry: `<cache>/ai-models/bin/<name>-<key>/<name>` and `<name>.sha256` beside it. An entry whose bytes do
not match is built again. Nothing here knows what the programs are for.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.binaries.catalogue import Binary, BinaryError, find

BUILD_SECONDS = 1800
"""Deadline of one `go build`: the largest takes 4 minutes on two idle cores, and the machine may be shared."""
ERROR_BYTES = 4000
"""How much of a failed build's output goes into the message."""

_checked: dict[Path, tuple[int, int]] = {}
"""Entries whose digest this process has compared: inode and modification time at that moment."""


def root() -> Path:
    """The cache folder, outside every checkout."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "ai-models" / "bin"


def path(name: str) -> Path:
    """Path of one program, built now if the cache lacks it.

    Raises:
        BinaryError: no such program, or its build failed.
    """
    return paths((name,))[0]


def paths(names: Sequence[str]) -> list[Path]:
    """Paths of several programs, in the given order.

    Raises:
        BinaryError: no such program, or a build failed.
    """
    wanted = [find(name) for name in names]
    for binary in wanted:
        if not intact(entry(binary)):
            with _locked(binary.module):
                if not intact(entry(binary)):
                    _build(binary)
    return [entry(binary) for binary in wanted]


def data(name: str) -> Path:
    """Folder with the files kept beside a program, such as its custom resource definitions.

    Raises:
        BinaryError: no such program, or its build failed.
    """
    return path(name).with_name("data")


def entry(binary: Binary) -> Path:
    """Where the cache keeps this program."""
    return root() / f"{binary.name}-{binary.key()}" / binary.name


def intact(file: Path) -> bool:
    """Whether a cached program is there and its bytes are those that were built."""
    try:
        stat = file.stat()
        if _checked.get(file) == (stat.st_ino, stat.st_mtime_ns):
            return True
        wanted = file.with_name(file.name + ".sha256").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return False
    if _sha256(file) != wanted:
        return False
    _checked[file] = (stat.st_ino, stat.st_mtime_ns)
    return True


@contextmanager
def _locked(module: str) -> Iterator[None]:
    """Hold the machine-wide lock of one module: a second builder waits and then finds the work done."""
    locks = root() / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    with (locks / f"{module}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _build(binary: Binary) -> None:
    """Build one program into the cache."""
    with tempfile.TemporaryDirectory(prefix=".build-", dir=root()) as scratch:
        built = Path(scratch) / binary.name
        _go_build(binary, built)
        if binary.data:
            _keep_data(binary)
        _install(binary, built)


def _go_build(binary: Binary, out: Path) -> None:
    command = ["build", "-mod=readonly", "-trimpath", "-buildvcs=false", f"-ldflags={binary.ldflags}"]
    _go(binary, *command, f"-tags={binary.tags}", f"-o={out}", binary.package)


def _keep_data(binary: Binary) -> None:
    """Copy a folder of the module's source beside the program."""
    source = Path(_go(binary, "list", "-mod=readonly", "-m", "-f={{.Dir}}", binary.package).strip()) / binary.data
    target = entry(binary).with_name("data")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for file in source.iterdir():
        shutil.copyfile(file, target / file.name)


def _go(binary: Binary, *arguments: str) -> str:
    go = shutil.which("go")
    if go is None:
        raise BinaryError(f"binary {binary.name}: want the Go toolchain on PATH to build it, got none")
    done = subprocess.run(
        [go, *arguments],
        cwd=binary.folder,
        env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        output = done.stderr[-ERROR_BYTES:].decode("utf-8", "replace")
        raise BinaryError(f"binary {binary.name}: go {arguments[0]} failed with {done.returncode}:\n{output}")
    return done.stdout.decode("utf-8", "replace")


def _install(binary: Binary, built: Path) -> None:
    """Move a built program and its digest into the cache, replacing what was there.

    The digest goes first: with the old program beside it the entry is merely not intact.
    """
    target = entry(binary)
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = built.with_name(built.name + ".sha256")
    digest.write_text(_sha256(built) + "\n", encoding="ascii")
    digest.replace(target.with_name(digest.name))
    built.replace(target)


def _sha256(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
