"""The header of a safetensors file, read with suspicion. Pure.

Source: safetensors README, "Format": 8 bytes of little-endian length N, N bytes of JSON, then the tensors, which tile
the rest of the file without holes. Two tensors of one name are refused although the format's own reader takes the last.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import TypeGuard

from aimodels_jobs import headers
from aimodels_jobs.headers import NeedBytes, Tensor, invalid

MAX_HEADER_BYTES = 100_000_000
"""The cap of the format's own reader."""
_MAX_DIMENSIONS = 64
_MAX_ELEMENTS = 2**63

_DTYPES_BY_BITS = {
    4: "F4",
    6: "F6_E2M3 F6_E3M2",
    8: "BOOL U8 I8 F8_E4M3 F8_E5M2 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ",
    16: "U16 I16 F16 BF16",
    32: "U32 I32 F32",
    64: "U64 I64 F64 C64",
}
_BITS = {name: bits for bits, dtypes in _DTYPES_BY_BITS.items() for name in dtypes.split()}


@dataclasses.dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """A valid header.

    Args:
        tensors: in order of their data.
        metadata: the free text of `__metadata__`.
        data_start: where the tensor data begins in the file.
    """

    tensors: tuple[Tensor, ...]
    metadata: Mapping[str, str]
    data_start: int


def safetensors_header(path: str, prefix: bytes, size_bytes: int) -> SafetensorsHeader | NeedBytes:
    """Parse and validate the header from the first bytes of a file.

    Args:
        path: for messages.
        prefix: the file from its start, as much as was read.
        size_bytes: size of the whole file.

    Raises:
        UnsafeContent: codes LfsPointer, ContentTypeMismatch, HeaderTooShort, HeaderTooLong, HeaderInvalid,
            DuplicateTensor, ShapeMismatch, OverlappingTensors, HoleInData, TrailingData, DataTruncated.
    """
    headers.refuse_other_kind(path, prefix)
    if size_bytes < 8:
        raise invalid(path, f"want at least 8 bytes, got {size_bytes}", code="HeaderTooShort")
    if len(prefix) < 8:
        return NeedBytes(8)
    length = int.from_bytes(prefix[:8], "little")
    if length > size_bytes - 8:
        detail = f"want a header within the file's {size_bytes} bytes, got a length of {length}"
        raise invalid(path, detail, code="HeaderTooLong")
    if length > MAX_HEADER_BYTES:
        detail = f"want a header of at most {MAX_HEADER_BYTES} bytes, got a length of {length}"
        raise invalid(path, detail, code="HeaderTooLong")
    if len(prefix) < 8 + length:
        return NeedBytes(8 + length)
    metadata, tensors = _entries(path, prefix[8 : 8 + length])
    _tile(path, tensors, size_bytes - 8 - length)
    return SafetensorsHeader(tuple(tensors), metadata, 8 + length)


def _entries(path: str, text: bytes) -> tuple[Mapping[str, str], list[Tensor]]:
    if not text.startswith(b"{"):
        raise invalid(path, "want a JSON object as the header, got something else")
    try:
        # Objects become tuples of pairs, so that names that occur twice are seen.
        pairs = json.loads(text, object_pairs_hook=tuple)
    except (ValueError, RecursionError) as error:
        raise invalid(path, "want JSON as the header, got something else") from error
    metadata: Mapping[str, str] = {}
    tensors: dict[str, Tensor] = {}
    for name, value in pairs:
        if name in tensors or (name == "__metadata__" and metadata):
            raise invalid(path, f"want each name once, got {name[:200]!r} again", code="DuplicateTensor")
        if name == "__metadata__":
            metadata = _metadata(path, value)
        else:
            tensors[name] = _tensor(path, name, value)
    return metadata, sorted(tensors.values(), key=lambda tensor: (tensor.start, tensor.stop, tensor.name))


def _fields(path: str, name: str, value: object) -> dict[str, object]:
    if not isinstance(value, tuple):
        raise invalid(path, f"{name[:200]!r}: want an object, got {type(value).__name__}")
    fields = dict(value)
    if len(fields) != len(value):
        raise invalid(path, f"{name[:200]!r}: want each field once")
    return fields


def _metadata(path: str, value: object) -> Mapping[str, str]:
    fields = _fields(path, "__metadata__", value)
    if not all(isinstance(text, str) for text in fields.values()):
        raise invalid(path, "'__metadata__': want text values only")
    return {key: str(text) for key, text in fields.items()}


def _tensor(path: str, name: str, value: object) -> Tensor:
    fields = _fields(path, name, value)
    dtype, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise invalid(path, f"{name[:200]!r}: want a known dtype, got {str(dtype)[:40]!r}")
    if not _numbers(shape) or len(shape) > _MAX_DIMENSIONS:
        raise invalid(path, f"{name[:200]!r}: want a shape of whole numbers, got {str(shape)[:80]}")
    if not _numbers(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise invalid(path, f"{name[:200]!r}: want data_offsets [begin, end], got {str(offsets)[:80]}")
    elements = 1
    for dimension in shape:
        elements *= dimension
    if elements >= _MAX_ELEMENTS:
        raise invalid(path, f"{name[:200]!r}: want fewer than 2^63 numbers", code="ShapeMismatch")
    bits, have = elements * _BITS[dtype], offsets[1] - offsets[0]
    if bits != have * 8:
        detail = f"{name[:200]!r}: shape needs {-(-bits // 8)} bytes, data_offsets give {have}"
        raise invalid(path, detail, code="ShapeMismatch")
    return Tensor(name, dtype, elements, offsets[0], offsets[1])


def _numbers(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < _MAX_ELEMENTS for item in value)


def _tile(path: str, tensors: Sequence[Tensor], data_bytes: int) -> None:
    end, last = 0, "the header"
    for tensor in tensors:
        if tensor.start != end:
            code, word = (
                ("OverlappingTensors", "overlaps") if tensor.start < end else ("HoleInData", "leaves a hole after")
            )
            detail = f"{tensor.name[:200]!r} at {tensor.start} {word} {last[:200]!r}, which ends at {end}"
            raise invalid(path, detail, code=code)
        end, last = tensor.stop, tensor.name
    if end > data_bytes:
        detail = f"{last[:200]!r} ends at {end}, but the file has {data_bytes} bytes of data"
        raise invalid(path, detail, code="DataTruncated")
    if end < data_bytes:
        raise invalid(path, f"{data_bytes - end} bytes at the end belong to no tensor", code="TrailingData")
