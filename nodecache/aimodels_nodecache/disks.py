"""Devices of a node by the programs that know them: blkid, mkfs, mount. Every call here blocks; all have deadlines."""

import errno
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from aimodels_core.errors import StoreUnavailable
from aimodels_nodecache import mount
from aimodels_nodecache.substrates import KIND, LABEL, Mounted, Probed
from aimodels_nodecache.trees import MARK

_EDGE_BYTES = 1024 * 1024
_PROBE = f"{MARK}.probe"
_OWN_ENTRIES = frozenset({"lost+found", MARK, _PROBE})
OWNER = 64535
"""User of the agent, which has no rights but over these folders."""
_PROBE_SECONDS, _MAKE_SECONDS, _MOUNT_SECONDS = 20.0, 600.0, 60.0
_NOTHING, _UNCLEAR = 2, 8
"""Exit codes of blkid: nothing was found; several things were."""
_OPTIONS = "noatime,nodev,nosuid"
_MAX_WORDS = 300


class Disks:
    """Looks at devices and mounts them."""

    def probe(self, path: str) -> Probed:
        """Say what is on a device.

        Raises:
            StoreUnavailable: that is not known.
        """
        device = Path(path)
        if not device.is_block_device():
            return Probed(there=False)
        done = _run(["blkid", "-p", "-o", "export", path], _PROBE_SECONDS)
        if done.returncode == _NOTHING:
            _read_edges(device)  # blkid says the same of a device that it cannot read
            return Probed(read_only=_is_read_only(device))
        if done.returncode == _UNCLEAR:
            return Probed(kind="several things at once")
        if done.returncode != 0:
            raise StoreUnavailable(f"{path}: blkid: {_words(done)}", code="Probe")
        found = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
        kind = found.get("TYPE") or found.get("PTTYPE") or "something unknown"
        return Probed(kind=kind, label=found.get("LABEL", ""), read_only=_is_read_only(device))

    def find(self, uuid: str) -> str:
        """Find the device with a file system by its UUID; empty when there is none.

        Raises:
            StoreUnavailable: that is not known.
        """
        done = _run(["blkid", "-c", "/dev/null", "-U", uuid], _PROBE_SECONDS)
        return done.stdout.strip() if done.returncode == 0 else ""

    def uuid(self, path: str) -> str:
        """UUID of the file system on a device; empty when it has none."""
        done = _run(["blkid", "-p", "-o", "value", "-s", "UUID", path], _PROBE_SECONDS)
        return done.stdout.strip() if done.returncode == 0 else ""

    def make(self, path: str) -> None:
        """Make our file system on a device that has nothing on it.

        Raises:
            StoreUnavailable: it could not be made; what is half made is seen as foreign or made anew.
        """
        words = [
            f"mkfs.{KIND}",
            "-q",
            "-F",
            "-L",
            LABEL,
            "-m",
            "0",
            "-E",
            "lazy_itable_init=1,lazy_journal_init=1",
            path,
        ]
        done = _run(words, _MAKE_SECONDS)
        if done.returncode != 0:
            raise StoreUnavailable(f"{path}: mkfs: {_words(done)}", code="Make")

    def mount(self, path: str, target: Path) -> None:
        """Mount a device of ours; a new one gets our mark.

        Raises:
            StoreUnavailable: it cannot be mounted, or has files of others and no mark of ours.
            OSError: the mark cannot be written.
        """
        target.mkdir(mode=0o755, parents=True, exist_ok=True)
        done = _run(["mount", "-t", KIND, "-o", _OPTIONS, path, str(target)], _MOUNT_SECONDS)
        if done.returncode != 0:
            raise StoreUnavailable(f"{path}: mount: {_words(done)}", code="Mount")
        if not (target / MARK).exists() and not {one.name for one in target.iterdir()} <= _OWN_ENTRIES:
            mount.unmount(target)
            raise StoreUnavailable(f"{path}: it has our label, files of others and no mark of ours", code="Foreign")
        own(target, target.name)

    def mounted(self, target: Path) -> Mounted | None:
        """Say what is mounted at a folder; None for nothing."""
        found = [one for one in mount.mounts() if one.target == str(target)]
        if not found:
            return None
        return Mounted(found[-1].source, _unwritable(target))


def own(folder: Path, text: str) -> None:
    """Make a folder the agent's, and mark it as one of the cache."""
    if not (folder / MARK).exists():
        # What is in the folder may be the agent's already: nothing is followed, nothing is overwritten.
        descriptor = os.open(folder / MARK, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
    os.chown(folder, OWNER, OWNER, follow_symlinks=False)


def _read_edges(device: Path) -> None:
    """Read the first and the last bytes of a device.

    Raises:
        StoreUnavailable: it cannot be read, so nobody knows what is on it.
    """
    try:
        with device.open("rb", buffering=0) as file:
            size_bytes = file.seek(0, os.SEEK_END)
            for start in (0, max(0, size_bytes - _EDGE_BYTES)):
                file.seek(start)
                wanted = min(_EDGE_BYTES, size_bytes - start)
                if len(file.read(wanted)) < wanted:
                    raise StoreUnavailable(f"{device}: want {wanted} bytes at {start}, got fewer", code="Probe")
    except OSError as error:
        raise StoreUnavailable(f"{device}: cannot be read: {error.strerror}", code="Probe") from error


def _unwritable(folder: Path) -> str:
    """Say why nothing can be written to a mounted file system; empty when it can. A full one can."""
    probe = folder / _PROBE
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        probe.unlink(missing_ok=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return ""
        return f"it cannot be written: {error.strerror}"
    return ""


def _is_read_only(device: Path) -> bool:
    try:
        descriptor = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return True
    os.close(descriptor)
    return False


def _run(words: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(  # noqa: S603 - programs of the image, and paths that were checked
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StoreUnavailable(f"{words[0]}: {type(error).__name__}", code="Program") from error


def _words(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stderr or done.stdout).strip()[-_MAX_WORDS:] or f"exit code {done.returncode}"
