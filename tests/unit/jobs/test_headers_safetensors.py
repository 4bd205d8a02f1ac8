"""The header of a safetensors file: what is valid, and what each kind of damage is called."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import deserialize
from safetensors.numpy import save

from aimodels_core.errors import UnsafeContent
from aimodels_jobs.contents import check_safetensors, weight_header
from aimodels_jobs.headers import NeedBytes
from aimodels_jobs.headers_safetensors import SafetensorsHeader, safetensors_header

PATH = "model.safetensors"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 1048576\n"


def made(header: Any, data: bytes = b"", *, text: bytes | None = None) -> bytes:
    raw = json.dumps(header, separators=(",", ":")).encode() if text is None else text
    return len(raw).to_bytes(8, "little") + raw + data


def tensor(start: int, stop: int, shape: tuple[int, ...] = (2,), dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}


def parse(data: bytes, path: str = PATH) -> SafetensorsHeader:
    found = safetensors_header(path, data, len(data))
    assert isinstance(found, SafetensorsHeader)
    return found


def refused(data: bytes, code: str, words: str = "", path: str = PATH, size_bytes: int | None = None) -> None:
    with pytest.raises(UnsafeContent, match=words or None) as caught:
        weight_header(path, data, len(data) if size_bytes is None else size_bytes)
    assert (caught.value.code, caught.value.path) == (code, path)


@pytest.mark.parametrize("path", [PATH, "model.gguf", "pytorch_model.bin"])
def test_o01_a_pointer_is_recognised_before_anything_is_parsed(path: str) -> None:
    refused(POINTER, "LfsPointer", f"oid sha256:{'a' * 64}, size 1048576", path=path)


def test_o04_an_empty_weight_is_refused() -> None:
    refused(b"", "HeaderTooShort")


@pytest.mark.parametrize(("second", "data"), [((8, 16), bytes(16)), ((0, 8), bytes(8))])
def test_o17_the_same_tensor_twice_is_refused(second: tuple[int, int], data: bytes) -> None:
    one, two = (json.dumps(tensor(*offsets)) for offsets in ((0, 8), second))

    refused(made(None, data, text=f'{{"a":{one},"a":{two}}}'.encode()), "DuplicateTensor", "'a'")


def test_o18_a_shape_larger_than_its_bytes_is_refused() -> None:
    refused(made({"t": tensor(0, 4, (1000, 1000))}, bytes(4)), "ShapeMismatch", "needs 4000000 bytes.*give 4")


def test_o19_overlaps_holes_and_bytes_nobody_owns_are_told_apart() -> None:
    refused(made({"k": tensor(0, 8), "v": tensor(0, 8)}, bytes(8)), "OverlappingTensors")
    refused(made({"a": tensor(0, 8), "b": tensor(12, 20)}, bytes(20)), "HoleInData")
    refused(made({"a": tensor(0, 8)}, bytes(8) + b"PK\x03\x04junk"), "TrailingData", "8 bytes")


def test_o19_entries_may_come_in_any_order() -> None:
    found = parse(made({"b": tensor(8, 16), "a": tensor(0, 8)}, bytes(16)))

    assert [item.name for item in found.tensors] == ["a", "b"]


@pytest.mark.parametrize(
    ("length", "size_bytes", "words"),
    [(2**63, 10, "file's 10 bytes"), (100_000_001, 200, "200"), (193, 200, "200"), (100_000_001, 2**40, "100000000")],
)
def test_o20_an_absurd_length_is_refused_without_allocating(length: int, size_bytes: int, words: str) -> None:
    refused(length.to_bytes(8, "little") + b"{}", "HeaderTooLong", words, size_bytes=size_bytes)


def test_o21_empty_metadata_is_valid() -> None:
    assert parse(made({"__metadata__": {}, "a": tensor(0, 8)}, bytes(8))).metadata == {}


def test_o22_leading_bytes_decide_what_a_file_is() -> None:
    gguf = b"GGUF" + (3).to_bytes(4, "little") + bytes(16)

    refused(gguf, "ContentTypeMismatch", r"gguf in \.safetensors")
    refused(made({"a": tensor(0, 8)}, bytes(8)), "ContentTypeMismatch", r"safetensors in \.gguf", path="m.gguf")
    refused(b"<!DOCTYPE html><html>", "ContentTypeMismatch", r"html in \.safetensors")
    refused(b"<!DOCTYPE html><html>", "ContentTypeMismatch", r"html in \.bin", path="pytorch_model.bin")
    refused(b"PK\x03\x04" + bytes(40), "ContentTypeMismatch", "zip")


@pytest.mark.parametrize("length", [640, 896, 1152, 1408, 0x10280, 0x8B1F])
def test_o22_a_header_whose_length_looks_like_another_format_is_safetensors(length: int) -> None:
    """80 02 begins a pickle, 1F 8B gzip; as a little-endian length both are ordinary."""
    text = json.dumps({"a": tensor(0, 8)}).encode().ljust(length)

    assert weight_header(PATH, made(None, bytes(8), text=text), length + 16) is not None
    refused(made(None, bytes(8), text=text), "ContentTypeMismatch", r"safetensors in \.bin", path="pytorch_model.bin")


def test_torch_weights_have_no_header_of_ours() -> None:
    assert weight_header("pytorch_model.bin", b"PK\x03\x04" + bytes(40), 44) is None
    assert weight_header("model.pt", b"\x80\x02" + bytes(40), 42) is None


@pytest.mark.parametrize(
    "header",
    [
        pytest.param({"a": tensor(0, 8, dtype="F33")}, id="dtype"),
        pytest.param({"a": tensor(0, 8, dtype="F32") | {"shape": [-2]}}, id="negative"),
        pytest.param({"a": tensor(0, 8) | {"shape": [True, 2]}}, id="bool"),
        pytest.param({"a": tensor(0, 8) | {"shape": "2"}}, id="text"),
        pytest.param({"a": tensor(8, 0)}, id="backwards"),
        pytest.param({"a": tensor(0, 8) | {"data_offsets": [0]}}, id="one offset"),
        pytest.param({"a": tensor(0, 8) | {"shape": [1] * 1000}}, id="dimensions"),
        pytest.param({"a": 1}, id="no object"),
        pytest.param({"__metadata__": {"k": 1}}, id="metadata"),
        pytest.param({"__metadata__": []}, id="metadata list"),
        pytest.param([], id="list"),
    ],
)
def test_a_header_that_breaks_the_format_is_refused(header: Any) -> None:
    refused(made(header, bytes(8)), "HeaderInvalid")


@pytest.mark.parametrize(
    "text", [b"{", b"x", b"{" * 50_000, b'{"a":' * 50_000, b'{"a":' + b"9" * 5000 + b"}", b"\xff{}"]
)
def test_a_header_that_is_no_json_is_refused(text: bytes) -> None:
    refused(made(None, text=text), "HeaderInvalid")


def test_numbers_beyond_64_bits_do_not_wrap() -> None:
    refused(made({"a": tensor(0, 0, (2**62, 4))}), "ShapeMismatch")


def test_data_that_was_cut_off_is_refused() -> None:
    refused(made({"a": tensor(0, 8)}, bytes(4)), "DataTruncated", "ends at 8.*4 bytes")


def test_a_short_prefix_asks_for_exactly_the_header() -> None:
    whole = made({"a": tensor(0, 8)}, bytes(8))
    need = 8 + int.from_bytes(whole[:8], "little")

    assert safetensors_header(PATH, b"", len(whole)) == NeedBytes(8)
    assert safetensors_header(PATH, whole[:8], len(whole)) == NeedBytes(need)
    assert safetensors_header(PATH, whole[:need], len(whole)) == parse(whole)


def test_a_header_of_twenty_thousand_tensors_is_fast() -> None:
    whole = made({f"layers.{i}.w": tensor(8 * i, 8 * i + 8) for i in range(20_000)}, bytes(160_000))
    begun = time.process_time()

    assert len(parse(whole).tensors) == 20_000
    assert time.process_time() - begun < 5


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"])
def test_the_formats_own_writer_is_understood(dtype: str) -> None:
    import numpy as np

    data = save({"a": np.zeros((3, 5), dtype), "b": np.zeros((), dtype), "c": np.zeros((0, 4), dtype)}, {"k": "v"})
    found = parse(data)

    assert {item.name: item.elements for item in found.tensors} == {"a": 15, "b": 1, "c": 0}
    assert found.metadata == {"k": "v"}


@given(st.binary(max_size=200), st.integers(0, 10**12))
def test_any_bytes_give_a_header_a_question_or_a_refusal(data: bytes, more: int) -> None:
    whole = made({"a": tensor(0, 8)}, bytes(8))
    for prefix in (data, whole[: len(data)] + data, len(data).to_bytes(8, "little") + data):
        size = len(prefix) + more
        try:
            found = safetensors_header(PATH, prefix, size)
        except UnsafeContent:
            continue
        assert isinstance(found, SafetensorsHeader) or len(prefix) < found.total <= size


# Shards together


def header(*names: str) -> SafetensorsHeader:
    return parse(made({name: tensor(8 * i, 8 * i + 8) for i, name in enumerate(names)}, bytes(8 * len(names))))


S1, S2 = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def test_o24_misplaced_and_absent_tensors_are_both_named() -> None:
    weight_map = {"a": S1, "b": S1, "c": S2}

    with pytest.raises(UnsafeContent) as caught:
        check_safetensors({S1: header("a"), S2: header("b")}, {"model.safetensors.index.json": weight_map})

    assert caught.value.code == "IndexMismatch"
    assert f"'b' misplaced: the index says {S1}, it is in {S2}" in caught.value.detail
    assert "'c' absent" in caught.value.detail


def test_an_index_that_tells_the_truth_passes() -> None:
    weight_map = {"a": S1, "b": S2}

    check_safetensors({S1: header("a"), S2: header("b")}, {"model.safetensors.index.json": weight_map})


def test_o23_without_an_index_no_two_shards_may_hold_one_tensor() -> None:
    check_safetensors({S1: header("a"), S2: header("b")}, {})
    with pytest.raises(UnsafeContent, match="DuplicateTensor"):
        check_safetensors({S1: header("a"), S2: header("a")}, {})


def test_single_files_may_share_names_of_tensors() -> None:
    check_safetensors({"a/model.safetensors": header("w"), "b/model.safetensors": header("w")}, {})


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["F32", "F16", "U8", "F4", "X"]), st.integers(0, 3)),
        max_size=3,
    ),
    st.integers(-2, 2),
    st.integers(-4, 4),
)
def test_what_we_accept_the_formats_own_reader_accepts(
    entries: list[tuple[str, str, int]], shift: int, tail: int
) -> None:
    header: dict[str, Any] = {}
    at = 0
    for name, dtype, count in entries:
        length = count * {"F32": 4, "F16": 2}.get(dtype, 1)
        header[name] = tensor(max(at + shift, 0) if at else 0, at + length, (count,), dtype)
        at += length
    data = made(header, bytes(max(at + tail, 0)))
    try:
        parse(data)
    except UnsafeContent:
        return

    read = deserialize(data)  # type: ignore[no-untyped-call]  # safetensors ships no types for it
    assert {name for name, _ in read} == set(header)
