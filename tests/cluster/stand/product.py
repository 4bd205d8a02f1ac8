"""Images built from the product's Dockerfile over a Debian base made here, cached by content.

The base is made by mmdebstrap, the images by buildah, each in a mount namespace of its own, so that a
killed build leaves no mount behind. buildah's own layers are in the cache too.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.stand.images import KEEP_SECONDS, Archive, images_root, locked, registry
from tests.cluster.stand.layout import CHECKOUT
from tests.cluster.stand.waiting import command

BASE_IMAGE = "localhost/debian:1"
"""Debian with Python, bash and wget: base of the product's images, and a helper for tests."""
BASE_SUITE = "bookworm"
BASE_PACKAGES = ("ca-certificates", "python3", "wget")
COMPONENTS = ("operator", "jobs", "nodecache")
SOURCES = ("Dockerfile", ".dockerignore", "pyproject.toml", "uv.lock", "README.md", "LICENSE")
ROOTS = ("core", "ray_jobs", "nodecache", "operator")
BASE_SECONDS = 900.0
MAX_STORAGE_BYTES = 8 * 1024**3
"""How much buildah may keep; one set of layers is about 3 GiB."""
BUILD_SECONDS = 1800.0
_ISOLATED = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")


def image_name(component: str) -> str:
    """Name under which nodes have a component's image, or that of `dmcr`."""
    return f"localhost/ai-models-{component}:1"


def archives() -> list[Archive]:
    """The base, the product's images, and the registry that its chart wants, from the cache or built now.

    Raises:
        StandError: a build failed; the message has the end of its output.
    """
    with locked("product"):
        key = _source_key()
        built = [_component(component, key) for component in COMPONENTS]
        return [_base(), registry(image_name("dmcr")), *built]


def _base() -> Archive:
    words = [BASE_SUITE, *BASE_PACKAGES, "docker-archive"]
    key = hashlib.sha256(" ".join(words).encode()).hexdigest()[:16]
    target = images_root() / f"base-{key}.tar"
    if not target.exists():
        root = target.with_suffix(".rootfs.tar")
        packages = f"--include={','.join(BASE_PACKAGES)}"
        command(*_ISOLATED, "mmdebstrap", "--variant=minbase", packages, BASE_SUITE, root, seconds=BASE_SECONDS)
        container = _buildah("from", "scratch").strip()
        _buildah("add", container, str(root), "/")
        _buildah("commit", "--rm", container, BASE_IMAGE)
        _push(BASE_IMAGE, target)
        root.unlink()
    return Archive(BASE_IMAGE, target, key)


def _component(component: str, source_key: str) -> Archive:
    base = _base()
    key = hashlib.sha256(f"{component} {source_key} {base.key}".encode()).hexdigest()[:16]
    target = images_root() / f"{component}-{key}.tar"
    if not target.exists():
        _forget_old(component)
        _prepare_storage(base)
        _buildah(
            "build-using-dockerfile", "--layers", "--isolation=chroot", "--network=host", "--pull-never",
            f"--build-arg=BASE={BASE_IMAGE}", "--volume=/etc/ssl/certs:/etc/ssl/certs:ro",
            f"--target={component}", f"--tag={image_name(component)}", str(CHECKOUT),
        )  # fmt: skip
        _push(image_name(component), target)
    target.touch()
    return Archive(image_name(component), target, key)


def _forget_old(component: str) -> None:
    """Delete archives of older sources; one asked for just now may be about to be imported by another stand."""
    for old in images_root().glob(f"{component}-*.tar"):
        if time.time() - old.stat().st_mtime > KEEP_SECONDS:
            old.unlink(missing_ok=True)


def _prepare_storage(base: Archive) -> None:
    """Start anew when old layers have piled up, and give buildah the base if it lacks it."""
    layers = images_root() / "buildah" / "overlay-layers" / "layers.json"
    if layers.exists():
        held_bytes = sum(layer.get("diff-size", 0) for layer in json.loads(layers.read_text()))
        if held_bytes > MAX_STORAGE_BYTES:
            shutil.rmtree(images_root() / "buildah")
    if not _buildah("images", "--quiet", "--filter", f"reference={BASE_IMAGE}").strip():
        _buildah("pull", "--quiet", f"docker-archive:{base.file}")


def _source_key() -> str:
    """Hash of everything that the Dockerfile copies, and of itself."""
    hasher = hashlib.sha256()
    for file in _sources():
        name = str(file.relative_to(CHECKOUT))
        hasher.update(f"{name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return hasher.hexdigest()


def _sources() -> Iterator[Path]:
    yield from (CHECKOUT / name for name in SOURCES)
    for root in ROOTS:
        files = (path for path in sorted((CHECKOUT / root).rglob("*")) if path.is_file())
        yield from (path for path in files if "__pycache__" not in path.parts and path.suffix != ".pyc")


def _push(image: str, target: Path) -> None:
    """Write an image as an archive; Docker's form is not compressed, so quicker."""
    scratch = target.with_suffix(".tmp")
    scratch.unlink(missing_ok=True)
    _buildah("push", "--quiet", image, f"docker-archive:{scratch}:{image}")
    scratch.replace(target)


def _buildah(*arguments: str) -> str:
    """Run buildah with its storage in the cache, its run-time state in memory, its mounts in a namespace."""
    storage = images_root() / "buildah"
    storage.mkdir(exist_ok=True)
    setup = 'mount -t tmpfs -o mode=755 tmpfs /run && exec "$@"'
    options = (f"--root={storage}", "--runroot=/run/buildah", "--storage-driver=overlay")
    words = [*_ISOLATED, "sh", "-c", setup, "sh", "buildah", *options, *arguments]
    return command(*words, seconds=BUILD_SECONDS)
