"""The header of a GGUF file, read with suspicion. Pure.

Source: GGUF specification (ggml docs/gguf.md, "File Structure"): magic, version, counts, key-values, tensor infos,
padding to the alignment, tensor data. All integers are of one byte order; version 3 allows the big-endian one.
"""

import dataclasses
import itertools
import struct
from collections.abc import Mapping, Sequence

from aimodels_jobs import headers
from aimodels_jobs.headers import NeedBytes, Tensor, invalid

MAX_HEADER_BYTES = 128 * 1024 * 1024
_MAX_KEY_BYTES = 65_535
_MAX_KEPT_TEXT_BYTES = 1024 * 1024
_MAX_NAME_BYTES = 4096
_MAX_DIMENSIONS = 8
_MAX_ALIGNMENT = 1024 * 1024
_MAX_NESTING = 4
_MIN_KEY_VALUE_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 4 + 8

_STRING, _ARRAY, _BOOL = 8, 9, 7
# Value type → struct code (docs/gguf.md, "gguf_metadata_value_type").
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
# Tensor type, its name, elements per block, bytes per block. Types that are not here are noted, not refused.
_TABLE = """
0 F32 1 4, 1 F16 1 2, 2 Q4_0 32 18, 3 Q4_1 32 20, 6 Q5_0 32 22, 7 Q5_1 32 24, 8 Q8_0 32 34, 9 Q8_1 32 40,
10 Q2_K 256 84, 11 Q3_K 256 110, 12 Q4_K 256 144, 13 Q5_K 256 176, 14 Q6_K 256 210, 15 Q8_K 256 292,
16 IQ2_XXS 256 66, 17 IQ2_XS 256 74, 18 IQ3_XXS 256 98, 19 IQ1_S 256 50, 20 IQ4_NL 32 18, 21 IQ3_S 256 110,
22 IQ2_S 256 82, 23 IQ4_XS 256 136, 24 I8 1 1, 25 I16 1 2, 26 I32 1 4, 27 I64 1 8, 28 F64 1 8, 29 IQ1_M 256 56,
30 BF16 1 2, 34 TQ1_0 256 54, 35 TQ2_0 256 66, 39 MXFP4 32 17, 40 NVFP4 64 36, 41 Q1_0 128 18
"""
TENSOR_TYPES: Mapping[int, tuple[str, int, int]] = {
    int(kind): (name, int(block), int(block_bytes))
    for kind, name, block, block_bytes in (row.split() for row in _TABLE.split(","))
}

Value = int | float | bool | str


@dataclasses.dataclass(frozen=True, slots=True)
class GgufHeader:
    """A valid header.

    Args:
        version: of the format.
        big_endian: byte order of every integer in the file.
        alignment: of the tensor data, bytes.
        values: scalar and text key-values; long texts are cut at 1 MiB.
        arrays: key → number of elements, for key-values that are arrays.
        tensors: in order of their data.
        data_start: where the tensor data begins in the file.
        notes: what a reader may stumble over: codes such as BigEndian, AlignmentNotPowerOfTwo, UnknownTensorType.
    """

    version: int
    big_endian: bool
    alignment: int
    values: Mapping[str, Value]
    arrays: Mapping[str, int]
    tensors: tuple[Tensor, ...]
    data_start: int
    notes: tuple[str, ...] = ()

    @property
    def architecture(self) -> str:
        """Key `general.architecture`, empty when there is none."""
        return self.text("general.architecture")

    def text(self, key: str) -> str:
        """A text value, empty when there is none."""
        value = self.values.get(key, "")
        return value if isinstance(value, str) else ""

    def number(self, key: str) -> int | None:
        """A whole number, None when there is none."""
        value = self.values.get(key)
        return value if type(value) is int else None


class _Short(Exception):
    """The header goes on beyond what was read; not an error."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self.total = total


class _Cursor:
    """Reads forward; knows the end of what was read and the end of the file."""

    def __init__(self, path: str, prefix: bytes, size_bytes: int) -> None:
        self.path, self.prefix, self.size_bytes = path, prefix, size_bytes
        self.order = "<"
        self.at = 0

    def room(self, count: int, least_bytes: int, what: str) -> None:
        """Compare a count with the bytes that are left in the file, before anything is done `count` times."""
        left = self.size_bytes - self.at
        if count * least_bytes > left:
            detail = f"{what}: want what fits {left} bytes, got a count of {count}"
            raise invalid(self.path, detail, code="CountTooLarge")

    def take(self, length: int, what: str) -> bytes:
        """Read `length` bytes."""
        stop = self.at + length
        if stop > self.size_bytes:
            detail = f"{what}: want {length} bytes at {self.at}, got the end of the file at {self.size_bytes}"
            raise invalid(self.path, detail, code="HeaderTruncated")
        if stop > MAX_HEADER_BYTES:
            raise invalid(self.path, f"want a header of at most {MAX_HEADER_BYTES} bytes", code="HeaderTooLong")
        if stop > len(self.prefix):
            raise _Short(stop)
        data = self.prefix[self.at : stop]
        self.at = stop
        return data

    def number(self, code: str, what: str) -> int:
        """Read one whole number."""
        size = struct.calcsize(self.order + code)
        return int(struct.unpack(self.order + code, self.take(size, what))[0])

    def text(self, most: int, what: str) -> str:
        """Read a length and as many bytes of UTF-8."""
        length = self.number("Q", what)
        if length > most:
            raise invalid(
                self.path, f"{what}: want at most {most} bytes, got a length of {length}", code="CountTooLarge"
            )
        return self.take(length, what).decode("utf-8", "replace")


def gguf_header(path: str, prefix: bytes, size_bytes: int) -> GgufHeader | NeedBytes:
    """Parse and validate the header from the first bytes of a file.

    Args:
        path: for messages.
        prefix: the file from its start, as much as was read.
        size_bytes: size of the whole file.

    Raises:
        UnsafeContent: codes LfsPointer, ContentTypeMismatch, HeaderInvalid, UnknownVersion, CountTooLarge,
            HeaderTruncated, HeaderTooLong, DuplicateKey, DuplicateTensor, BadAlignment, BadShape, BadOffset,
            OverlappingTensors, DataTruncated.
    """
    headers.refuse_other_kind(path, prefix)
    cursor = _Cursor(path, prefix, size_bytes)
    try:
        return _header(cursor)
    except _Short as short:
        # Growing fast keeps the number of reads small: vocabularies take some MiB. The file's own end bounds it.
        return NeedBytes(min(max(short.total, 8 * len(prefix)), size_bytes, MAX_HEADER_BYTES))


def _header(cursor: _Cursor) -> GgufHeader:
    if cursor.take(4, "magic") != b"GGUF":
        raise invalid(cursor.path, "want GGUF at the start, got something else")
    version = _version(cursor)
    tensor_count, value_count = cursor.number("Q", "tensor count"), cursor.number("Q", "key-value count")
    cursor.room(tensor_count, _MIN_TENSOR_BYTES, "tensors")
    cursor.room(value_count, _MIN_KEY_VALUE_BYTES, "key-values")
    values: dict[str, Value] = {}
    arrays: dict[str, int] = {}
    for _ in range(value_count):
        _key_value(cursor, values, arrays)
    infos = _infos(cursor, tensor_count)
    alignment, notes = _alignment(cursor.path, values)
    data_start = -(-cursor.at // alignment) * alignment
    notes = [*notes, *(["BigEndian"] if cursor.order == ">" else [])]
    tensors = [_tensor(cursor, info, alignment, data_start, notes) for info in infos]
    tensors.sort(key=lambda tensor: (tensor.start, tensor.stop))
    _apart(cursor.path, tensors)
    ordered = tuple(dict.fromkeys(notes))
    return GgufHeader(version, cursor.order == ">", alignment, values, arrays, tuple(tensors), data_start, ordered)


def _version(cursor: _Cursor) -> int:
    raw = cursor.take(4, "version")
    little, big = int.from_bytes(raw, "little"), int.from_bytes(raw, "big")
    if big < little:
        cursor.order = ">"
    version = min(little, big)
    if version not in {2, 3}:
        raise invalid(cursor.path, f"want version 2 or 3, got {version}", code="UnknownVersion")
    return version


def _key_value(cursor: _Cursor, values: dict[str, Value], arrays: dict[str, int]) -> None:
    key = cursor.text(_MAX_KEY_BYTES, "key")
    if key in values or key in arrays:
        raise invalid(cursor.path, f"want each key once, got {key[:200]!r} again", code="DuplicateKey")
    kind = cursor.number("I", key[:200])
    if kind == _ARRAY:
        arrays[key] = _skip_array(cursor, key[:200], 1)
    else:
        values[key] = _value(cursor, kind, key[:200])


def _value(cursor: _Cursor, kind: int, what: str) -> Value:
    if kind == _STRING:
        return cursor.text(MAX_HEADER_BYTES, what)[:_MAX_KEPT_TEXT_BYTES]
    if kind not in _SCALARS:
        raise invalid(cursor.path, f"{what}: want a known value type, got {kind}")
    code = cursor.order + _SCALARS[kind]
    value = struct.unpack(code, cursor.take(struct.calcsize(code), what))[0]
    if kind == _BOOL:
        return bool(value)
    return float(value) if isinstance(value, float) else int(value)


def _skip_array(cursor: _Cursor, what: str, depth: int) -> int:
    kind, count = cursor.number("I", what), cursor.number("Q", what)
    if kind in _SCALARS:
        size = struct.calcsize(cursor.order + _SCALARS[kind])
        cursor.room(count, size, what)
        cursor.take(count * size, what)
    elif kind == _STRING:
        cursor.room(count, 8, what)
        _skip_texts(cursor, count, what)
    elif kind == _ARRAY and depth < _MAX_NESTING:
        cursor.room(count, 12, what)
        for _ in range(count):
            _skip_array(cursor, what, depth + 1)
    else:
        raise invalid(cursor.path, f"{what}: want a known element type, got {kind} at depth {depth}")
    return count


def _skip_texts(cursor: _Cursor, count: int, what: str) -> None:
    """Step over `count` texts; vocabularies have hundreds of thousands, so no slice is made of each."""
    unpack = struct.Struct(cursor.order + "Q").unpack_from
    prefix, at, end = cursor.prefix, cursor.at, len(cursor.prefix)
    for _ in range(count):
        stop = at + 8 + unpack(prefix, at)[0] if at + 8 <= end else at + 8
        if stop > end:
            cursor.at = at
            cursor.take(stop - at, what)  # says whether the file or only the prefix ends here
        at = stop
    cursor.at = at


@dataclasses.dataclass(frozen=True, slots=True)
class _Info:
    name: str
    dims: tuple[int, ...]
    kind: int
    offset: int


def _infos(cursor: _Cursor, count: int) -> list[_Info]:
    infos: dict[str, _Info] = {}
    for _ in range(count):
        name = cursor.text(_MAX_NAME_BYTES, "tensor name")
        if name in infos:
            raise invalid(cursor.path, f"want each tensor once, got {name[:200]!r} again", code="DuplicateTensor")
        dimensions = cursor.number("I", name[:200])
        if dimensions > _MAX_DIMENSIONS:
            detail = f"{name[:200]!r}: want at most {_MAX_DIMENSIONS} dimensions, got {dimensions}"
            raise invalid(cursor.path, detail, code="BadShape")
        dims = tuple(cursor.number("Q", name[:200]) for _ in range(dimensions))
        kind, offset = cursor.number("I", name[:200]), cursor.number("Q", name[:200])
        infos[name] = _Info(name, dims, kind, offset)
    return list(infos.values())


def _alignment(path: str, values: Mapping[str, Value]) -> tuple[int, list[str]]:
    found = values.get("general.alignment", 32)
    if type(found) is not int or not 1 <= found <= _MAX_ALIGNMENT:
        detail = f"general.alignment: want 1 to {_MAX_ALIGNMENT}, got {str(found)[:40]}"
        raise invalid(path, detail, code="BadAlignment")
    return found, [] if found & (found - 1) == 0 else ["AlignmentNotPowerOfTwo"]


def _tensor(cursor: _Cursor, info: _Info, alignment: int, data_start: int, notes: list[str]) -> Tensor:
    what = repr(info.name[:200])
    if info.offset % alignment:
        detail = f"{what}: want an offset that is a multiple of {alignment}, got {info.offset}"
        raise invalid(cursor.path, detail, code="BadOffset")
    elements = 1
    for dimension in info.dims:
        elements *= dimension
    name, block, block_bytes = TENSOR_TYPES.get(info.kind, (f"type {info.kind}", 1, 0))
    if info.kind not in TENSOR_TYPES:
        notes.append("UnknownTensorType")
    if info.dims and info.dims[0] % block:
        detail = f"{what}: want rows of a multiple of {block} numbers for {name}, got {info.dims[0]}"
        raise invalid(cursor.path, detail, code="BadShape")
    stop = info.offset + -(-elements // block) * block_bytes
    if data_start + stop > cursor.size_bytes:
        detail = f"{what} ends at {data_start + stop}, but the file has {cursor.size_bytes} bytes"
        raise invalid(cursor.path, detail, code="DataTruncated")
    return Tensor(info.name, name, elements, info.offset, stop)


def _apart(path: str, tensors: Sequence[Tensor]) -> None:
    for before, after in itertools.pairwise(tensors):
        if after.start < before.stop:
            detail = (
                f"{after.name[:200]!r} at {after.start} overlaps {before.name[:200]!r}, which ends at {before.stop}"
            )
            raise invalid(path, detail, code="OverlappingTensors")
