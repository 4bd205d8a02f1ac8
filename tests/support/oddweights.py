"""Safetensors and GGUF files byte by byte, right or wrong, as tests of odd input need them.

Valid files of any size are made by `weights`.
"""

import json
import struct
from collections.abc import Sequence
from typing import Any


def st(header: Any, data: bytes = b"") -> bytes:
    """A safetensors file of any header, given as a document or as text."""
    raw = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def tensor(start: int, stop: int, shape: Sequence[int] = (2,), dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}


def holding(*tensors: str, salt: int = 0) -> bytes:
    """A valid safetensors file with these tensors."""
    header = {name: tensor(8 * at, 8 * at + 8) for at, name in enumerate(tensors)}
    return st(header, bytes([salt % 256]) * 8 * len(tensors))


def index(**places: str) -> bytes:
    return json.dumps({"metadata": {}, "weight_map": places}).encode()


Pair = tuple[str, int, Any]
Info = tuple[str, Sequence[int], int, int]
ARCH: Pair = ("general.architecture", 8, "llama")
CLIP: Pair = ("general.architecture", 8, "clip")


def text(value: str, order: str = "<") -> bytes:
    raw = value.encode()
    return struct.pack(f"{order}Q", len(raw)) + raw


def gg(
    pairs: Sequence[Pair] = (ARCH,),
    infos: Sequence[Info] = (("t", (8,), 0, 0),),
    data: bytes = bytes(32),
    *,
    version: int = 3,
    order: str = "<",
    counts: tuple[int, int] | None = None,
    align: int = 32,
) -> bytes:
    """A GGUF file, right or wrong. Kinds of values: 4 a number, 8 a text, 9 the bytes of an array."""
    tensor_count, pair_count = counts or (len(infos), len(pairs))
    raw = b"GGUF" + struct.pack(f"{order}IQQ", version, tensor_count, pair_count)
    for key, kind, value in pairs:
        raw += text(key, order) + struct.pack(f"{order}I", kind)
        raw += text(value, order) if kind == 8 else value if kind == 9 else struct.pack(f"{order}I", value)
    for name, dims, kind, offset in infos:
        raw += text(name, order) + struct.pack(f"{order}I{len(dims)}Q", len(dims), *dims)
        raw += struct.pack(f"{order}IQ", kind, offset)
    return raw + bytes(-len(raw) % align) + data
