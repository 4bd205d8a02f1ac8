"""Work folders of pulls, and what pulls that were killed left in theirs.

A work folder lies beside its target, hidden, with a random name, so no two pulls share one. Finished blobs in any work
folder never change again and are shared by hard links, after their bytes were hashed again. An unfinished file is
taken over only from a process that is certainly gone.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import secrets
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from aimodels_core import folders, ranges
from aimodels_core.digest import Digest

if TYPE_CHECKING:
    from hashlib import _Hash

BEAT_SECONDS = 5.0
STALE_SECONDS = 60.0
_OWNER = "owner.json"
_MAX_OWNER_BYTES = 4096

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """The work folder of one pull."""

    root: Path

    @property
    def blobs(self) -> Path:
        """Where blobs are, named by their hex digests."""
        return self.root / "blobs"

    @property
    def tree(self) -> Path:
        """Where the model is put together."""
        return self.root / "tree"


def _prefix(target: Path) -> str:
    """Return how the names of the work folders of a target begin."""
    mark = hashlib.sha256(os.fsencode(target.name)).hexdigest()[:8]
    return f".{target.name[:40]}.{mark}.pull-"


def open_work(target: Path) -> Work:
    """Make a work folder for a pull to `target`.

    Raises:
        StoreFull, StoreUnsafe, StoreUnavailable.
    """
    work = Work(target.parent / (_prefix(target) + secrets.token_hex(8)))
    with folders.disk_errors(work.root):
        work.root.mkdir(mode=0o700)
        (work.root / _OWNER).write_text(json.dumps(_identity(os.getpid())), encoding="ascii")
        work.blobs.mkdir()
    return work


def leave(work: Work) -> None:
    """Give a work folder up for the next pull to use."""
    with contextlib.suppress(OSError):
        (work.root / _OWNER).write_text(json.dumps({"ended": True}), encoding="ascii")


def set_aside(target: Path) -> None:
    """Move a folder that is to be replaced out of the way, as something to clear."""
    aside = target.parent / (_prefix(target) + secrets.token_hex(8))
    target.chmod(0o700)
    target.rename(aside)
    folders.remove_tree(aside)


def _identity(pid: int) -> dict[str, str | int]:
    """Describe a process of this machine so that nobody else can be taken for it; empty when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except (OSError, IndexError):
        return {}
    if fields[0] in {"Z", "X"}:
        return {}
    return {"boot": boot, "namespace": namespace, "pid": pid, "started": fields[19]}


def _certainly_gone(work: Path) -> bool:
    """Tell whether the owner was a process of this machine and is no more."""
    try:
        with (work / _OWNER).open("rb") as file:
            owner = json.loads(file.read(_MAX_OWNER_BYTES))
        if owner.get("ended") is True:
            return True
        here = _identity(os.getpid())
        same_machine: bool = (owner["boot"], owner["namespace"]) == (here["boot"], here["namespace"])
        return same_machine and _identity(int(owner["pid"])) != owner
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _is_stale(work: Path, beat: float) -> bool:
    """Tell whether a work folder shows no sign of life; `beat` is a time of the same file system's clock."""
    with contextlib.suppress(OSError):
        return beat - max(work.stat().st_mtime, (work / "blobs").stat().st_mtime) > STALE_SECONDS
    return _certainly_gone(work)


@contextlib.contextmanager
def beating(work: Work) -> Iterator[None]:
    """Show signs of life while the body runs."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(work.root)

    thread = threading.Thread(target=beat, name="pull-beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _others(target: Path, but: Path | None = None) -> list[Path]:
    return [path for path in _listed(target.parent) if path.name.startswith(_prefix(target)) and path != but]


def adopt(target: Path, work: Work, layers: Mapping[Digest, int], known: Path | None = None) -> dict[Digest, int]:
    """Take over blobs that are on this disk already; return those that are complete, with their sizes.

    They come from other work folders of the target, from the target itself when it holds another artifact, and from a
    folder of blobs named by their hex digests. Their bytes are hashed again; the files of others are not changed.
    """
    present: dict[Digest, int] = {}
    beside = [(digest, known / digest.hex) for digest in layers] if known is not None else []
    for digest, source in (*_candidates(target, work), *beside):
        if (
            digest in layers
            and digest not in present
            and _link(source, work.blobs / digest.hex, digest, layers[digest])
        ):
            present[digest] = layers[digest]
    for other in _others(target, work.root):
        if _certainly_gone(other):
            _take_unfinished(Work(other), work, layers.keys() - present.keys())
    return present


def _candidates(target: Path, work: Work) -> Iterator[tuple[Digest, Path]]:
    for other in _others(target, work.root):
        for path in _listed(Work(other).blobs):
            with contextlib.suppress(ValueError):
                yield Digest(path.name), path
    old = folders.marked(target)
    for layer in old.layers if old else ():
        yield layer.digest, target / layer.path


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _link(source: Path, path: Path, digest: Digest, size_bytes: int) -> bool:
    """Link a file into the work folder and hash it there; whatever is wrong with it, it is just not used."""
    try:
        os.link(source, path, follow_symlinks=False)
    except OSError:
        return False
    if (
        not path.is_symlink()
        and path.stat().st_size == size_bytes
        and folders.hash_file(path).hexdigest() == digest.hex
    ):
        path.chmod(folders.FILE_MODE)
        return True
    path.unlink()
    return False


def _take_unfinished(gone: Work, work: Work, wanted: set[Digest]) -> None:
    for digest in wanted:
        with contextlib.suppress(OSError):
            if not ranges.unfinished(work.blobs, digest).exists():
                ranges.journal(gone.blobs, digest).rename(ranges.journal(work.blobs, digest))
                ranges.unfinished(gone.blobs, digest).rename(ranges.unfinished(work.blobs, digest))


def resume_point(work: Work, digest: Digest, size_bytes: int) -> tuple[int, "_Hash | None"]:
    """Return how many bytes of a taken over file are of use, and their hash; the digest of the whole decides later."""
    try:
        with ranges.journal(work.blobs, digest).open(encoding="ascii") as file:
            noted = int(file.read(20))
        path = ranges.unfinished(work.blobs, digest)
        if not 0 < noted < size_bytes or path.stat().st_size < noted:
            return 0, None
        return noted, folders.hash_file(path, noted)
    except (OSError, ValueError):
        return 0, None


def clear(target: Path) -> None:
    """Remove the work folders of pulls to `target` that are gone; what cannot be removed now stays for the next."""
    others = _others(target)
    if not others:
        return
    probe = target.parent / (_prefix(target) + secrets.token_hex(8))
    try:
        probe.mkdir(mode=0o700)
        beat = probe.stat().st_mtime
        probe.rmdir()
    except OSError:
        return
    for other in others:
        if _certainly_gone(other) or _is_stale(other, beat):
            folders.remove_tree(other)
            log.info("removed what a killed pull left", extra={"path": str(other)})
