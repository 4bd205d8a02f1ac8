"""The files that benchmarks publish: safetensors of random bytes and a few small files, made on the disk."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import weights
from tests.support.hub import bodies

MIB = 1024 * 1024


@contextmanager
def folder(parent: Path, *, files: int, file_bytes: int) -> Iterator[Path]:
    """Make a model of `files` weight files and two small ones; removed at the end."""
    root = parent / f"model-{files}x{file_bytes // MIB}MiB"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    try:
        _fill(root, files, file_bytes)
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def size_bytes(root: Path) -> int:
    """Bytes of all files of a folder."""
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def _fill(root: Path, files: int, file_bytes: int) -> None:
    (root / "config.json").write_bytes(weights.llama_config())
    (root / "README.md").write_bytes(b"---\nlicense: mit\n---\n# generated\n")
    for number in range(1, files + 1):
        name = "model.safetensors" if files == 1 else f"model-{number:05}-of-{files:05}.safetensors"
        body = weights.safetensors_of_size(file_bytes, seed=number, name=f"layer{number}.weight")
        with (root / name).open("wb", buffering=0) as out:
            for piece in bodies.pieces(body):
                out.write(piece)
            os.fdatasync(out.fileno())


def small(root: Path) -> Path:
    """Make a model of a few kilobytes below `root`: what a command costs without payload."""
    place = root / "small"
    place.mkdir(parents=True, exist_ok=True)
    for name, content in weights.tiny_safetensors().items():
        data = content if isinstance(content, bytes) else b"".join(bytes(piece) for piece in bodies.pieces(content))
        (place / name).write_bytes(data)
    return place
