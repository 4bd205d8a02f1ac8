"""Reading artifacts again, slowly: bytes that changed on a device are found before a Pod reads them."""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

from aimodels_core import folders
from aimodels_core.digest import Digest

_PIECE_BYTES = 1024 * 1024


def wrong_blobs(
    tree: Path,
    *,
    bytes_per_second: int,
    stopped: Callable[[], bool],
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Digest, ...] | None:
    """Read all files of a tree; returns the blobs that differ from their digests, None when it was stopped before.

    Args:
        tree: an artifact's folder.
        bytes_per_second: how fast.
        stopped: asked several times a second.
        sleep: waits so many seconds.
        clock: monotonic seconds.

    Raises:
        OSError: a file cannot be read at all.
    """
    manifest = folders.marked(tree)
    began, done, wrong = clock(), 0, []
    for layer in {layer.digest: layer for layer in manifest.layers}.values() if manifest is not None else ():
        hasher = hashlib.sha256()
        with (tree / layer.path).open("rb", buffering=0) as file:
            while data := file.read(_PIECE_BYTES):
                hasher.update(data)
                done += len(data)
                if stopped():
                    return None
                if (ahead := done / bytes_per_second - (clock() - began)) > 0:
                    sleep(ahead)
        if hasher.hexdigest() != layer.digest.hex:
            wrong.append(layer.digest)
    return tuple(wrong)
