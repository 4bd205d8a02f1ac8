"""The header of a GGUF file: what is valid, and what each kind of damage is called."""

import struct
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import pytest
from gguf import constants
from hypothesis import given
from hypothesis import strategies as st

from aimodels_core.errors import NoWeights, UnsafeContent
from aimodels_core.source import SourceFile
from aimodels_jobs import formats
from aimodels_jobs.contents import check_gguf
from aimodels_jobs.headers import NeedBytes
from aimodels_jobs.headers_gguf import TENSOR_TYPES, GgufHeader, gguf_header
from aimodels_jobs.recipe import FILE_TYPES

PATH = "model.gguf"
Pair = tuple[str, int, Any]
Info = tuple[str, Sequence[int], int, int]
ARCH: Pair = ("general.architecture", 8, "llama")


def text(value: str, order: str = "<") -> bytes:
    raw = value.encode()
    return struct.pack(order + "Q", len(raw)) + raw


def pair(item: Pair, order: str = "<") -> bytes:
    key, kind, value = item
    head = text(key, order) + struct.pack(order + "I", kind)
    if kind == 8:
        return head + text(value, order)
    if kind == 9:
        return head + bytes(value)
    return head + struct.pack(order + {4: "I", 10: "Q", 7: "B", 6: "f"}[kind], value)


def made(
    pairs: Sequence[Pair] = (ARCH,),
    infos: Sequence[Info] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    order: str = "<",
    counts: tuple[int, int] | None = None,
    align: int = 32,
) -> bytes:
    tensor_count, pair_count = counts or (len(infos), len(pairs))
    raw = b"GGUF" + struct.pack(order + "IQQ", version, tensor_count, pair_count)
    raw += b"".join(pair(item, order) for item in pairs)
    for name, dims, kind, offset in infos:
        raw += text(name, order) + struct.pack(order + "I", len(dims))
        raw += b"".join(struct.pack(order + "Q", dim) for dim in dims) + struct.pack(order + "IQ", kind, offset)
    return raw + bytes(-len(raw) % align) + data if infos else raw


def parse(data: bytes, path: str = PATH) -> GgufHeader:
    found = gguf_header(path, data, len(data))
    assert isinstance(found, GgufHeader)
    return found


def refused(data: bytes, code: str, words: str = "", size_bytes: int | None = None) -> None:
    with pytest.raises(UnsafeContent, match=words or None) as caught:
        gguf_header(PATH, data, len(data) if size_bytes is None else size_bytes)
    assert caught.value.code == code


def test_a_header_says_what_the_model_is() -> None:
    pairs = [
        ARCH,
        ("llama.context_length", 4, 4096),
        ("general.file_type", 4, 15),
        ("tokenizer.chat_template", 8, "{% if tools %}"),
        ("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 2) + text("a") + text("bc")),
        ("tokenizer.ggml.scores", 9, struct.pack("<IQff", 6, 2, 0.5, 1.0)),
        ("x.nested", 9, struct.pack("<IQ", 9, 1) + struct.pack("<IQB", 0, 1, 7)),
        ("x.flag", 7, 1),
        ("x.ratio", 6, 0.5),
    ]
    found = parse(made(pairs, [("t", [8], 0, 0), ("q", [32, 2], 8, 32)], bytes(32 + 68)))

    assert found.architecture == "llama"
    assert found.number("llama.context_length") == 4096
    assert found.number("general.file_type") == 15
    assert found.text("tokenizer.chat_template") == "{% if tools %}"
    assert found.arrays == {"tokenizer.ggml.tokens": 2, "tokenizer.ggml.scores": 2, "x.nested": 1}
    assert (found.values["x.flag"], found.values["x.ratio"]) == (True, 0.5)
    assert [(t.name, t.dtype, t.elements, t.stop - t.start) for t in found.tensors] == [
        ("t", "F32", 8, 32),
        ("q", "Q8_0", 64, 68),
    ]
    assert found.notes == ()


def test_o26_a_big_endian_file_is_read_and_noted() -> None:
    found = parse(made([ARCH], [("t", [8], 0, 0)], bytes(32), order=">"))

    assert (found.big_endian, found.version, found.architecture, found.notes) == (True, 3, "llama", ("BigEndian",))


def test_o27_duplicate_keys_and_tensors_are_refused() -> None:
    refused(made([ARCH, ARCH]), "DuplicateKey", r"general\.architecture")
    refused(made([ARCH], [("t", [8], 0, 0), ("t", [8], 0, 32)], bytes(64)), "DuplicateTensor", "'t'")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(made([ARCH], counts=(0, 2**60)), id="key-values"),
        pytest.param(made([ARCH], counts=(2**60, 1)), id="tensors"),
        pytest.param(made([("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 2**40))]), id="array"),
        pytest.param(made([("x", 9, struct.pack("<IQ", 0, 2**63))]), id="bytes"),
        pytest.param(made([("x", 9, struct.pack("<IQ", 9, 2**40))]), id="nested"),
        pytest.param(made((), counts=(0, 1)) + struct.pack("<Q", 2**63), id="key length"),
        pytest.param(made((), counts=(0, 1)) + text("k") + struct.pack("<IQ", 8, 2**63), id="text length"),
    ],
)
def test_o28_counts_meant_to_exhaust_memory_are_refused_at_once(data: bytes) -> None:
    tracemalloc.start()
    begun = time.process_time()
    try:
        refused(data, "CountTooLarge")
        assert tracemalloc.get_traced_memory()[1] < 50 * 2**20
    finally:
        tracemalloc.stop()
    assert time.process_time() - begun < 1


def test_o28_a_deeply_nested_array_is_refused() -> None:
    deep = b"".join(struct.pack("<IQ", 9, 1) for _ in range(100))

    refused(made([("x", 9, deep + struct.pack("<IQB", 0, 1, 1))]), "HeaderInvalid", "depth")


@pytest.mark.parametrize("alignment", [0, 2**31])
def test_o29_an_impossible_alignment_is_refused(alignment: int) -> None:
    data = made([("general.alignment", 4, alignment)], [("t", [8], 0, 0)], bytes(32))

    refused(data, "BadAlignment", str(alignment))


def test_o29_an_alignment_that_loaders_dislike_is_noted() -> None:
    found = parse(made([("general.alignment", 4, 24)], [("t", [8], 0, 0)], bytes(32), align=24))

    assert found.notes == ("AlignmentNotPowerOfTwo",)
    assert found.data_start % 24 == 0


def test_o30_sizes_do_not_wrap() -> None:
    infos = [("a", [64], 0, 0), ("b", [4, 1073741823, 1073741825, 1], 0, 256)]

    refused(made([ARCH], infos, bytes(256)), "DataTruncated", "'b' ends at")


def test_o31_tensor_data_that_was_cut_off_is_refused() -> None:
    data = made([ARCH], [("t", [8], 0, 0)], bytes(16))

    refused(data, "DataTruncated", f"ends at {len(data) + 16}, but the file has {len(data)} bytes")


def test_tensors_that_overlap_or_lie_askew_are_refused() -> None:
    refused(made([ARCH], [("a", [16], 0, 0), ("b", [8], 0, 32)], bytes(64)), "OverlappingTensors")
    refused(made([ARCH], [("a", [8], 0, 4)], bytes(64)), "BadOffset")


def test_shapes_that_no_loader_takes_are_refused() -> None:
    refused(made([ARCH], [("a", [33], 8, 0)], bytes(64)), "BadShape", "multiple of 32")
    refused(made([ARCH], [("a", [1] * 9, 0, 0)], bytes(64)), "BadShape")


def test_a_tensor_type_of_the_future_is_noted() -> None:
    assert parse(made([ARCH], [("t", [8], 999, 0)], bytes(32))).notes == ("UnknownTensorType",)


@pytest.mark.parametrize("version", [0, 1, 4, 77])
def test_an_unknown_version_is_refused(version: int) -> None:
    refused(made(version=version), "UnknownVersion", str(version))


def test_a_file_that_ends_within_its_header_is_refused() -> None:
    whole = made([ARCH, ("llama.context_length", 4, 1)])

    for cut in range(24 + 26, len(whole)):
        with pytest.raises(UnsafeContent, match=r"HeaderTruncated|CountTooLarge"):
            gguf_header(PATH, whole[:cut], cut)


def test_a_short_prefix_asks_for_more_until_it_suffices() -> None:
    tokens = struct.pack("<IQ", 8, 500) + b"".join(text(f"token {i}") for i in range(500))
    whole = made([ARCH, ("tokenizer.ggml.tokens", 9, tokens)], [("t", [8], 0, 0)], bytes(32))
    have, asked = 16, 0
    while isinstance(found := gguf_header(PATH, whole[:have], len(whole)), NeedBytes):
        assert have < found.total <= len(whole)
        have, asked = found.total, asked + 1

    assert found == parse(whole)
    assert asked < 16


def test_a_header_may_be_long_but_not_endless() -> None:
    head = made((), counts=(0, 1)) + text("k") + struct.pack("<IIQ", 9, 0, 2**30)

    refused(head, "HeaderTooLong", size_bytes=2**34)


def test_a_vocabulary_of_a_quarter_million_is_fast() -> None:
    tokens = struct.pack("<IQ", 8, 262_144) + b"".join(text(f"t{i}") for i in range(262_144))
    whole = made([ARCH, ("tokenizer.ggml.tokens", 9, tokens)])
    begun = time.process_time()

    assert parse(whole).arrays == {"tokenizer.ggml.tokens": 262_144}
    assert time.process_time() - begun < 5


def test_the_tables_agree_with_those_of_llama_cpp() -> None:
    sizes = {int(kind): (kind.name, *size) for kind, size in constants.GGML_QUANT_SIZES.items()}
    types = {int(kind): kind.name.split("_", 1)[1] for kind in constants.LlamaFileType if kind.name != "GUESSED"}

    assert {kind: TENSOR_TYPES.get(kind) for kind in sizes} == sizes
    assert {kind: FILE_TYPES.get(kind) for kind in types} == types


def test_the_formats_own_writer_is_understood(tmp_path: Path) -> None:
    import numpy as np

    writer = gguf.GGUFWriter(tmp_path / PATH, "llama")
    writer.add_context_length(77)
    writer.add_file_type(1)
    writer.add_token_list(["a", "b"])
    writer.add_tensor("x", np.zeros((3, 32), np.float16))
    writer.add_tensor("y", np.zeros(5, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = parse((tmp_path / PATH).read_bytes())

    assert (found.architecture, found.number("llama.context_length")) == ("llama", 77)
    assert {t.name: (t.dtype, t.elements) for t in found.tensors} == {"x": ("F16", 96), "y": ("F32", 5)}


@given(st.binary(max_size=120), st.integers(0, 200), st.integers(0, 10**12))
def test_any_bytes_give_a_header_a_question_or_a_refusal(data: bytes, at: int, more: int) -> None:
    whole = made([ARCH, ("llama.context_length", 4, 1)], [("t", [8], 0, 0)], bytes(32))
    for prefix in (data, whole[:at] + data, whole[:at] + data + whole[at + len(data) :]):
        size = len(prefix) + more
        try:
            found = gguf_header(PATH, prefix, size)
        except UnsafeContent:
            continue
        assert isinstance(found, GgufHeader) or len(prefix) < found.total <= size


# Sets


def shard(number: int, count: int, total: int, *names: str, arch: bool = False) -> GgufHeader:
    pairs = [("split.no", 4, number), ("split.count", 4, count), ("split.tensors.count", 4, total)]
    infos = [(name, [8], 0, 32 * i) for i, name in enumerate(names)]
    return parse(made([*pairs, *([ARCH] if arch else [])], infos, bytes(32 * len(names))))


SET = [f"Q4/m-0000{k}-of-00003.gguf" for k in (1, 2, 3)]


def chosen(*paths: str) -> formats.Selection:
    return formats.select([SourceFile(path, 100) for path in paths])


def test_o32_the_shards_of_a_set_are_counted_from_nought() -> None:
    headers = {path: shard(k, 3, 3, f"t{k}", arch=not k) for k, path in enumerate(SET)}

    assert check_gguf(chosen(*SET), headers) == ()


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (shard(0, 3, 3, "t1"), "SplitMismatch"),
        (shard(1, 4, 3, "t1"), "SplitMismatch"),
        (shard(1, 3, 9, "t1"), "SplitMismatch"),
        (shard(1, 3, 3, "t0"), "DuplicateTensor"),
    ],
)
def test_o32_a_shard_of_another_set_is_refused(wrong: GgufHeader, code: str) -> None:
    headers = {SET[0]: shard(0, 3, 3, "t0", arch=True), SET[1]: wrong, SET[2]: shard(2, 3, 3, "t2")}

    with pytest.raises(UnsafeContent) as caught:
        check_gguf(chosen(*SET), headers)
    assert caught.value.code == code


@pytest.mark.parametrize("pairs", [[("general.architecture", 8, "clip")], [ARCH, ("general.type", 8, "imatrix")]])
def test_o34_the_header_decides_what_is_a_model(pairs: list[Pair]) -> None:
    with pytest.raises(NoWeights, match="want a model"):
        check_gguf(chosen("weights.gguf"), {"weights.gguf": parse(made(pairs))})


def test_o26_notes_of_a_header_become_notices() -> None:
    found = check_gguf(chosen(PATH), {PATH: parse(made([ARCH], order=">"))})

    assert [notice.code for notice in found] == ["BigEndian"]
