"""What is inside the selected weight files, taken together: shards against their index, GGUF sets. Pure.

One file's own header is judged by `headers_safetensors` and `headers_gguf`.
"""

from collections.abc import Mapping, Sequence

from aimodels_core.errors import NoWeights, UnsafeContent
from aimodels_jobs import headers, shards
from aimodels_jobs.headers import NeedBytes
from aimodels_jobs.headers_gguf import GgufHeader, gguf_header
from aimodels_jobs.headers_safetensors import SafetensorsHeader, safetensors_header
from aimodels_jobs.selection import Format, Notice, Selection

_MAX_FINDINGS = 20
_NO_MODEL_TYPES = frozenset({"imatrix", "mmproj", "adapter", "vocab"})


def weight_header(path: str, prefix: bytes, size_bytes: int) -> SafetensorsHeader | GgufHeader | NeedBytes | None:
    """Parse the header of any selected weight file from its first bytes; None for kinds that have none.

    Raises:
        UnsafeContent: the header breaks its format: see the parsers.
    """
    low = path.lower()
    if low.endswith(".safetensors"):
        return safetensors_header(path, prefix, size_bytes)
    if low.endswith(".gguf"):
        return gguf_header(path, prefix, size_bytes)
    headers.refuse_other_kind(path, prefix)
    return None


def check_safetensors(parsed: Mapping[str, SafetensorsHeader], indexes: Mapping[str, Mapping[str, str]]) -> None:
    """Compare shards with one another and with their index.

    Args:
        parsed: path → header of every selected safetensors file.
        indexes: path of an index → its `documents.weight_map`.

    Raises:
        UnsafeContent: codes IndexMismatch (tensors in another shard, or in none), DuplicateTensor (no index, and two
            shards hold one tensor).
    """
    indexed: set[str] = set()
    for path, weight_map in indexes.items():
        indexed |= set(weight_map.values())
        if all(file in parsed for file in weight_map.values()):
            _check_index(path, weight_map, parsed)
    sets: dict[shards.Key, dict[str, str]] = {}
    for path in sorted(set(parsed) - indexed):
        key, _ = shards.parse(path)
        if key.count:
            _check_unindexed(path, parsed[path], sets.setdefault(key, {}))


def _check_index(path: str, weight_map: Mapping[str, str], parsed: Mapping[str, SafetensorsHeader]) -> None:
    where = {tensor.name: file for file in set(weight_map.values()) for tensor in parsed[file].tensors}
    wrong = []
    for name, file in sorted(weight_map.items()):
        found = where.get(name)
        if found is None:
            wrong.append(f"{name[:200]!r} absent")
        elif found != file and not any(tensor.name == name for tensor in parsed[file].tensors):
            wrong.append(f"{name[:200]!r} misplaced: the index says {file}, it is in {found}")
    if wrong:
        more = f" and {len(wrong) - _MAX_FINDINGS} more" if len(wrong) > _MAX_FINDINGS else ""
        raise UnsafeContent(path, code="IndexMismatch", detail="; ".join(wrong[:_MAX_FINDINGS]) + more)


def _check_unindexed(path: str, header: SafetensorsHeader, seen: dict[str, str]) -> None:
    for tensor in header.tensors:
        if tensor.name in seen:
            detail = f"{tensor.name[:200]!r} is in {seen[tensor.name]} too, and no index decides"
            raise UnsafeContent(path, code="DuplicateTensor", detail=detail)
        seen[tensor.name] = path


def check_gguf(selection: Selection, parsed: Mapping[str, GgufHeader]) -> tuple[Notice, ...]:
    """Check that the selected GGUF files are one model: the header decides what a file is, not its name.

    Args:
        selection: of format GGUF.
        parsed: path → header of every selected GGUF file.

    Raises:
        NoWeights: code NotAModel.
        UnsafeContent: code SplitMismatch.
    """
    if selection.format is not Format.GGUF or selection.entry not in parsed:
        return ()
    entry = parsed[selection.entry]
    if entry.text("general.type") in _NO_MODEL_TYPES or entry.architecture == "clip":
        what = entry.text("general.type") or entry.architecture
        raise NoWeights(f"{selection.entry}: want a model, got {what} by its header", code="NotAModel")
    stem = selection.entry.rpartition("-00001-of-")[0]
    pieces = [path for path in sorted(parsed) if stem and path.startswith(f"{stem}-")]
    _check_split(pieces, parsed)
    return tuple(_notices(parsed))


def _check_split(pieces: Sequence[str], parsed: Mapping[str, GgufHeader]) -> None:
    for number, path in enumerate(pieces):
        header = parsed[path]
        for key, want in (("split.no", number), ("split.count", len(pieces))):
            got = header.number(key)
            if got not in {None, want}:
                raise UnsafeContent(path, code="SplitMismatch", detail=f"{key}: want {want}, got {got}")
    declared = {parsed[path].number("split.tensors.count") for path in pieces} - {None}
    total = sum(len(parsed[path].tensors) for path in pieces)
    if declared and declared != {total}:
        detail = f"split.tensors.count: want {total}, the sum over all shards, got {sorted(map(str, declared))}"
        raise UnsafeContent(pieces[0], code="SplitMismatch", detail=detail)
    seen: dict[str, str] = {}
    for path in pieces:
        for tensor in parsed[path].tensors:
            if seen.setdefault(tensor.name, path) != path:
                detail = f"{tensor.name[:200]!r} is in {seen[tensor.name]} too"
                raise UnsafeContent(path, code="DuplicateTensor", detail=detail)


def _notices(parsed: Mapping[str, GgufHeader]) -> list[Notice]:
    texts = {
        "BigEndian": "big-endian; little-endian nodes cannot load it",
        "AlignmentNotPowerOfTwo": "its alignment is no power of two; llama.cpp does not load it",
        "UnknownTensorType": "it has tensors of types that are not known here; their sizes were not checked",
    }
    return [Notice(note, f"{path}: {texts[note]}") for path, header in sorted(parsed.items()) for note in header.notes]
