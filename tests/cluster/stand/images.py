"""Images of a stand: which there are, and the template of containerd's folder that holds them.

Importing an image costs seconds per node; instead one containerd imports all images once into a
template, cached by content, and nodes link to it (`nodefiles.link_images`).
"""

import fcntl
import hashlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.stand import archives, nodefiles
from tests.cluster.stand.layout import CHECKOUT, StandError, cache_root
from tests.cluster.stand.waiting import command
from tests.support import binaries
from tests.support.binaries.catalogue import find

BUSYBOX = Path("/bin/busybox")
BUSYBOX_IMAGE = "localhost/busybox:1"
TEMPLATE_SECONDS = 600.0
KEEP_SECONDS = 600.0

_IMPORT = """
set -eu
root=$1 bin=$2; shift 2
mount -t tmpfs tmpfs /run
ip link set lo up
PATH=$bin:$PATH
containerd -c "$root/containerd.toml" >"$root/containerd.log" 2>&1 </dev/null &
until ctr -a "$root/containerd.sock" version >/dev/null 2>&1; do sleep 0.1; kill -0 $! ; done
for archive; do ctr -a "$root/containerd.sock" -n k8s.io images import --local "$archive" >/dev/null; done
kill $!; wait $! || true
"""
"""Runs in namespaces of its own: `$1` the template's folder, `$2` the programs, then the archives."""


@dataclass(frozen=True, slots=True)
class Archive:
    """An OCI archive in the cache."""

    image: str
    """Full name with tag."""
    file: Path
    key: str
    """Changes when the content does."""


def images_root() -> Path:
    """Cache folder for archives and templates."""
    root = cache_root() / "images"
    root.mkdir(parents=True, exist_ok=True)
    return root


def helpers() -> list[Archive]:
    """The pause image and busybox, written into the cache if they are not there."""
    if not BUSYBOX.exists():
        raise StandError(f"busybox: want {BUSYBOX}, got nothing; install the cluster group of Debian packages")
    return [_small(name) for name in (nodefiles.PAUSE_IMAGE, BUSYBOX_IMAGE)]


def busybox_image(name: str, more: Mapping[str, bytes] = {}) -> archives.Image:
    """The busybox image under any name, with more programs by their paths."""
    words = command("ldd", BUSYBOX).split()
    return archives.busybox(name, BUSYBOX, sorted({Path(word) for word in words if word.startswith("/")}), more)


def registry(name: str) -> Archive:
    """distribution 3 beside busybox, as its official image is, written into the cache if it is not there."""
    key = hashlib.sha256(f"{name} {find('registry').key()} {busybox_image(name).manifest}".encode()).hexdigest()[:16]
    file = images_root() / f"registry-{key}.tar"
    if not file.exists():
        with locked("small"):
            image = busybox_image(name, {"bin/registry": binaries.path("registry").read_bytes()})
            image.write(file.with_suffix(".tmp")).replace(file)
    return Archive(name, file, key)


def template(wanted: Sequence[Archive]) -> Path:
    """Folder of a containerd that has these images, from the cache or made now.

    Raises:
        StandError: the import failed.
    """
    words = "\n".join(sorted(f"{archive.image} {archive.key}" for archive in wanted))
    key = hashlib.sha256(f"{binaries.path('containerd').parent.name}\n{words}".encode()).hexdigest()[:16]
    target = images_root() / f"template-{key}"
    if not target.exists():
        with locked("template"):
            if not target.exists():
                _import(wanted, target)
    target.touch()
    return target


def prune(in_use: set[Path], *, now: float) -> None:
    """Delete templates that no live stand uses and that nobody has asked for in the last minutes."""
    for folder in images_root().glob("template-????????????????"):
        if folder not in in_use and now - folder.stat().st_mtime > KEEP_SECONDS:
            shutil.rmtree(folder)


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold a machine-wide lock, so that two stands do not make the same thing twice."""
    with (images_root() / f"{name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _small(name: str) -> Archive:
    image = busybox_image(name)
    key = hashlib.sha256(f"{name} {image.manifest}".encode()).hexdigest()[:16]
    file = images_root() / f"small-{key}.tar"
    if not file.exists():
        with locked("small"):
            image.write(file.with_suffix(".tmp")).replace(file)
    return Archive(name, file, key)


def _import(wanted: Sequence[Archive], target: Path) -> None:
    scratch = target.with_suffix(".tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    programs = scratch / "bin"
    programs.mkdir(parents=True)
    for name in ("containerd", "ctr", "containerd-shim-runc-v2"):
        (programs / name).symlink_to(binaries.path(name))
    root = scratch / "root"
    config = nodefiles.containerd(
        scratch / "containerd.sock", hosts=scratch / "certs.d", root=str(root), state=str(scratch / "state")
    )
    (scratch / "containerd.toml").write_text(config)
    isolate = ("unshare", "--net", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child")
    files = [archive.file for archive in wanted]
    command(*isolate, "bash", "-c", _IMPORT, "bash", scratch, programs, *files, seconds=TEMPLATE_SECONDS, cwd=CHECKOUT)
    root.rename(target)
    shutil.rmtree(scratch)
