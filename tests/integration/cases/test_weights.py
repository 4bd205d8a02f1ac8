"""Weight files that must not be published, and odd ones that must, as users meet them (O-01, O-04, O-17 to O-36).

What each kind of damage is called is tested beside the parsers; here is what becomes of the publication.
"""

import json
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.support.hub.bodies import BytesBody, GeneratedBody, JoinedBody
from tests.support.hub.repository import Content, File
from tests.support.hub.routes import On
from tests.support.publisher import Publisher

CONFIG = b'{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}'
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 1048576\n"
INDEX = "model.safetensors.index.json"
S1, S2, S3 = (f"model-0000{k}-of-00003.safetensors" for k in (1, 2, 3))
P1, P2 = (f"model-0000{k}-of-00002.safetensors" for k in (1, 2))


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


def model(**files: Content | File) -> dict[str, Content | File]:
    """A repository with one safetensors file."""
    return {"config.json": CONFIG, **files}


def single(data: bytes) -> dict[str, Content | File]:
    return model(**{"model.safetensors": data})


# Pointers and empty files


@pytest.mark.parametrize(
    ("path", "pointer"),
    [
        ("model.safetensors", File("model.safetensors", BytesBody(POINTER), lfs=False)),
        ("m.gguf", File("m.gguf", BytesBody(POINTER), lfs=False)),
        ("model.safetensors", File("model.safetensors", BytesBody(POINTER), lfs=True)),
    ],
)
def test_o01_a_pointer_instead_of_weights_is_refused(cases: Publisher, path: str, pointer: File) -> None:
    cases.refused(model(**{path: pointer}), "LfsPointer", path, f"sha256:{'a' * 64}", "1048576")


def test_o04_an_empty_file_is_published_and_never_asked_for(cases: Publisher) -> None:
    found = cases.ready(single(holding("a")) | {"sub/__init__.py": b""})

    assert "sub/__init__.py" in found.paths
    assert [each for each in cases.asked(found.repository) if each.path == "sub/__init__.py"] == []


def test_o04_an_empty_weight_file_is_refused(cases: Publisher) -> None:
    cases.refused(model(**{P1: holding("a"), P2: b""}), "EmptyWeight", P2)


# Safetensors

_A, _A2 = json.dumps(tensor(0, 8)), json.dumps(tensor(8, 16))
BAD_SAFETENSORS: Mapping[str, tuple[bytes, str, tuple[str, ...]]] = {
    "o17 two ranges": (st(f'{{"a":{_A},"a":{_A2}}}'.encode(), bytes(16)), "DuplicateTensor", ("'a'",)),
    "o17 one range": (st(f'{{"a":{_A},"a":{_A}}}'.encode(), bytes(8)), "DuplicateTensor", ("'a'",)),
    "o18": (st({"t": tensor(0, 4, (1000, 1000))}, bytes(4)), "ShapeMismatch", ("4000000", "4")),
    "o19 overlap": (st({"k": tensor(0, 8), "v": tensor(0, 8)}, bytes(8)), "OverlappingTensors", ()),
    "o19 hole": (st({"a": tensor(0, 8), "b": tensor(12, 20)}, bytes(20)), "HoleInData", ()),
    "o19 tail": (st({"a": tensor(0, 8)}, bytes(8) + b"PK\3\4junk"), "TrailingData", ("8 bytes",)),
    "o20 2^63": (struct.pack("<Q", 2**63) + b"{}", "HeaderTooLong", ("10 bytes",)),
    "o20 above the cap": (struct.pack("<Q", 100_000_001) + bytes(192), "HeaderTooLong", ("200",)),
    "o20 one too many": (struct.pack("<Q", 200 - 8 + 1) + bytes(192), "HeaderTooLong", ("200",)),
    "o22": (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "ContentTypeMismatch", ("gguf in .safetensors",)),
}


@pytest.mark.parametrize("case", BAD_SAFETENSORS)
def test_o17_o18_o19_o20_o22_a_broken_safetensors_file_is_refused(cases: Publisher, case: str) -> None:
    data, code, words = BAD_SAFETENSORS[case]

    cases.refused(single(data), code, "model.safetensors", *words)


def test_o20_above_the_cap_of_the_format_is_refused_in_the_first_window(cases: Publisher) -> None:
    body = JoinedBody((BytesBody(struct.pack("<Q", 100_000_001)), GeneratedBody(200_000_000, seed=None)))
    repository = cases.add(model(**{"model.safetensors": File("model.safetensors", body, sha256="b" * 64)}))
    cases.refused_of(repository, "HeaderTooLong", "100000000")

    assert cases.payload_bytes(repository, "model.safetensors") <= 1024 * 1024


def test_o18_nothing_but_the_first_window_of_bad_weights_is_read(cases: Publisher) -> None:
    head = st({"t": tensor(0, 4, (1000, 1000))})
    repository = cases.add(
        single(b"") | {"model.safetensors": JoinedBody((BytesBody(head), GeneratedBody(40_000_000)))}
    )
    cases.refused_of(repository, "ShapeMismatch")

    assert cases.payload_bytes(repository, "model.safetensors") <= 1024 * 1024


def test_o19_entries_in_any_order_are_published(cases: Publisher) -> None:
    cases.ready(single(st({"b": tensor(8, 16), "a": tensor(0, 8)}, bytes(16))))


def test_o21_empty_metadata_is_published(cases: Publisher) -> None:
    cases.ready(single(st({"__metadata__": {}, "a": tensor(0, 8)}, bytes(8))))


def test_o22_safetensors_named_gguf_are_refused(cases: Publisher) -> None:
    cases.refused({"model.gguf": holding("a")}, "ContentTypeMismatch", "model.gguf", "safetensors in .gguf")


# Shards and their index


def test_o23_a_shard_that_the_index_names_and_nobody_has_is_refused_before_weights_are_read(cases: Publisher) -> None:
    files = model(**{INDEX: index(a=S1, b=S2, c=S3), S1: holding("a"), S3: holding("c")})
    repository = cases.add(files)
    cases.refused_of(repository, "MissingShard", S2)

    assert [each.path for each in cases.asked(repository) if each.on is On.CDN] == []


def test_o23_a_shard_of_another_name_that_only_the_index_knows_is_refused(cases: Publisher) -> None:
    files = model(**{INDEX: index(a=P1, b=P2, c="extra.safetensors"), P1: holding("a"), P2: holding("b")})
    repository = cases.add(files)
    cases.refused_of(repository, "MissingShard", "extra.safetensors")

    assert [each.path for each in cases.asked(repository) if each.on is On.CDN] == []


def test_o23_whole_shards_without_an_index_are_published(cases: Publisher) -> None:
    assert cases.ready(model(**{S1: holding("a"), S2: holding("b"), S3: holding("c")})).paths >= {S1, S2, S3}


def test_o23_without_an_index_one_tensor_in_two_shards_is_refused(cases: Publisher) -> None:
    cases.refused(model(**{P1: holding("a"), P2: holding("a", salt=1)}), "DuplicateTensor", P1, P2, "'a'")


def test_o24_tensors_elsewhere_than_the_index_says_are_refused_with_both_findings(cases: Publisher) -> None:
    files = model(**{INDEX: index(a=P1, b=P1, c=P2), P1: holding("a"), P2: holding("b", salt=1)})

    cases.refused(files, "IndexMismatch", INDEX, f"'b' misplaced: the index says {P1}, it is in {P2}", "'c' absent")


@pytest.mark.parametrize(
    "name", ["../../../../other/private/resolve/main/model.safetensors", "/etc/passwd", "..\\x.safetensors"]
)
def test_o25_a_shard_outside_the_model_is_refused_and_never_asked_for(cases: Publisher, name: str) -> None:
    repository = cases.add(model(**{INDEX: index(a=P1, b=name), P1: holding("a"), P2: holding("b")}))
    cases.refused_of(repository, "UnsafePath", INDEX, "outside the model")

    assert {each.repository for each in cases.hub.log} == {repository.id}
    assert {each.path for each in cases.hub.log if each.payload} == {"config.json", INDEX}


def test_o25_a_shard_in_a_folder_is_published(cases: Publisher) -> None:
    files = model(**{INDEX: index(a="sub/ok.safetensors"), "sub/ok.safetensors": holding("a")})

    assert "sub/ok.safetensors" in cases.ready(files).paths


# GGUF

_B = ("b", (4, 1073741823, 1073741825, 1), 0, 256)
_NO: Sequence[Info] = ()
BAD_GGUF: Mapping[str, tuple[bytes, str, tuple[str, ...]]] = {
    "o27 key": (gg([ARCH, ARCH], _NO, b""), "DuplicateKey", ("general.architecture",)),
    "o27 tensor": (gg([ARCH], [("t", (8,), 0, 0), ("t", (8,), 0, 32)], bytes(64)), "DuplicateTensor", ("'t'",)),
    "o28 keys": (gg([ARCH], _NO, b"", counts=(0, 2**60)), "CountTooLarge", ()),
    "o28 tensors": (gg([ARCH], _NO, b"", counts=(2**60, 1)), "CountTooLarge", ()),
    "o28 array": (gg([("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 2**40))], _NO, b""), "CountTooLarge", ()),
    "o28 key length": (gg((), _NO, struct.pack("<Q", 2**63), counts=(0, 1), align=1), "CountTooLarge", ()),
    "o29 0": (gg([ARCH, ("general.alignment", 4, 0)]), "BadAlignment", ("0",)),
    "o29 2^31": (gg([ARCH, ("general.alignment", 4, 2**31)]), "BadAlignment", (str(2**31),)),
    "o30": (gg([ARCH], [("a", (64,), 0, 0), _B], bytes(256)), "DataTruncated", ("'b' ends at",)),
    "o31": (gg(data=bytes(16)), "DataTruncated", ("ends at",)),
    "version": (gg(version=77), "UnknownVersion", ("77",)),
}


@pytest.mark.parametrize("case", BAD_GGUF)
def test_o27_o28_o29_o30_o31_a_broken_gguf_is_refused_at_once(cases: Publisher, case: str) -> None:
    data, code, words = BAD_GGUF[case]
    begun = time.process_time()
    cases.refused({"m.gguf": data}, code, "m.gguf", *words)

    assert time.process_time() - begun < 1


def test_o26_a_big_endian_gguf_is_published_with_a_note(cases: Publisher) -> None:
    found = cases.ready({"m.gguf": gg(order=">")})

    assert found.notes("BigEndian") == ["m.gguf: big-endian; little-endian nodes cannot load it"]
    assert found.published.resolved["architecture"] == "llama"


def test_o29_an_alignment_of_24_is_published_with_a_note(cases: Publisher) -> None:
    found = cases.ready({"m.gguf": gg([ARCH, ("general.alignment", 4, 24)], align=24)})

    assert "llama.cpp does not load it" in found.notes("AlignmentNotPowerOfTwo")[0]


def test_o31_pieces_cut_by_bytes_are_refused_with_a_word_on_joining(cases: Publisher) -> None:
    halves: dict[str, Content | File] = {f"m.Q5_K_M.gguf.part{k}of2": gg()[:60] for k in (1, 2)}

    cases.refused(halves, "NoWeights", "m.Q5_K_M.gguf.part1of2", "join the pieces")


# Sets of GGUF


def piece(number: int, count: int = 3, *, total: int = 3) -> bytes:
    """A shard as llama.cpp's splitter writes it; only the first says what the model is."""
    pairs: list[Pair] = [("split.no", 4, number), ("split.count", 4, count), ("split.tensors.count", 4, total)]
    return gg([*pairs, *([ARCH] if number == 0 else [])], [(f"t{number}", (8,), 0, 0)])


SET: Mapping[str, Content | File] = {f"Q4/m-0000{k + 1}-of-00003.gguf": piece(k) for k in range(3)}


def test_o32_a_split_model_is_published_as_one(cases: Publisher) -> None:
    found = cases.ready(SET)

    assert found.paths == set(SET)
    assert found.state.bytes_total == sum(file.size_bytes for file in found.repository.head.files.values())
    assert found.published.resolved["architecture"] == "llama"


def test_o32_a_missing_piece_is_refused_before_anything_is_read(cases: Publisher) -> None:
    missing = "Q4/m-00002-of-00003.gguf"
    repository = cases.add({path: data for path, data in SET.items() if path != missing})
    cases.refused_of(repository, "MissingShard", missing)

    assert cases.payload_bytes(repository) == 0


def test_o32_a_piece_of_another_set_is_refused(cases: Publisher) -> None:
    cases.refused(
        {**SET, "Q4/m-00002-of-00003.gguf": piece(2)}, "SplitMismatch", "Q4/m-00002-of-00003.gguf", "split.no"
    )


def test_o33_names_that_only_look_like_shards_are_told_apart(cases: Publisher) -> None:
    assert cases.ready({"best-of-breed.gguf": gg()}).paths == {"best-of-breed.gguf"}
    assert cases.ready({"m-00001-of-00001.gguf": gg()}).paths == {"m-00001-of-00001.gguf"}
    malformed: dict[str, Content | File] = {"m-00000-of-00003.gguf": gg(), "m-00004-of-00003.gguf": gg()}
    cases.refused(malformed, "MalformedShards", *malformed)
    beside = cases.ready({"best-of-breed.gguf": gg(), **malformed})
    assert beside.paths == {"best-of-breed.gguf"}
    assert sum("malformed set" in note for note in beside.notes("LeftOut")) == 2


QUANTS = (
    *("Q2_K", "q3_k_s", "Q3_K_M", "Q3_K_L", "q4_0", "Q4_1", "Q4_K_S", "q4_k_m", "Q5_0", "Q5_1", "Q5_K_S", "Q5_K_M"),
    *("Q6_K", "q8_0", "F16", "BF16", "IQ2_XXS", "IQ3_M", "IQ4_XS", "TQ1_0"),
)
MANY: Mapping[str, Content | File] = {
    **{f"M-{quant}.gguf": gg(data=bytes([at]) * 32) for at, quant in enumerate(QUANTS)},
    "mmproj-F16.gguf": gg([CLIP]),
    "imatrix.gguf": gg([ARCH, ("general.type", 8, "imatrix")]),
}


@pytest.mark.parametrize("tail", ["", ":Q4_K_M", ":q4_K_m", "/blob/main/M-q4_k_m.gguf"])
def test_o34_one_quantisation_and_the_projector_are_published(cases: Publisher, tail: str) -> None:
    found = cases.ready(MANY, tail)

    assert found.paths == {"M-q4_k_m.gguf", "mmproj-F16.gguf"}
    assert {each.path for each in cases.asked(found.repository) if each.payload} <= found.paths


def test_o34_without_the_default_the_choice_is_listed(cases: Publisher) -> None:
    cases.refused({"M-Q8_0.gguf": gg(), "M-Q3_K_M.gguf": gg()}, "ChooseOne", "choose one of: Q3_K_M, Q8_0")


@pytest.mark.parametrize("pairs", [[CLIP], [ARCH, ("general.type", 8, "imatrix")]])
def test_o34_the_header_decides_what_is_a_model(cases: Publisher, pairs: list[Pair]) -> None:
    cases.refused({"weights.gguf": gg(pairs)}, "NotAModel", "weights.gguf", "want a model")


# Diffusers


def pipeline(**components: Any) -> bytes:
    return json.dumps({"_class_name": "FluxPipeline", "_diffusers_version": "0.30.0", **components}).encode()


DIFFUSERS, TRANSFORMERS = ["diffusers", "X"], ["transformers", "Y"]


def test_o35_a_variant_that_is_only_partly_there_is_published_with_a_stated_fallback(cases: Publisher) -> None:
    shards = [f"transformer/diffusion_pytorch_model-0000{k}-of-00002.safetensors" for k in (1, 2)]
    plain = {
        shards[0]: holding("a"),
        shards[1]: holding("b"),
        "transformer/diffusion_pytorch_model.safetensors.index.json": index(
            a=shards[0].partition("/")[2], b=shards[1].partition("/")[2]
        ),
    }
    wanted = {
        "transformer/diffusion_pytorch_model.bf16.safetensors": holding("a", "b", salt=1),
        "text_encoder/model.bf16-00001-of-00002.safetensors": holding("c", salt=1),
        "text_encoder/model.bf16-00002-of-00002.safetensors": holding("d", salt=2),
        "vae/diffusion_pytorch_model.safetensors": holding("e"),
    }
    document = pipeline(transformer=DIFFUSERS, text_encoder=TRANSFORMERS, vae=DIFFUSERS)
    found = cases.ready({"model_index.json": document, **plain, **wanted}, ":bf16")

    assert found.paths == {"model_index.json", *wanted}
    assert [note for note in found.notes("VariantFallback") if "vae: no bf16 weights" in note]
    assert {each.path for each in cases.asked(found.repository)}.isdisjoint(plain)


def test_o36_null_components_and_those_without_weights_are_fine(cases: Publisher) -> None:
    parts: dict[str, Content | File] = {
        "unet/diffusion_pytorch_model.safetensors": holding("a"),
        "scheduler/scheduler_config.json": b"{}",
    }
    document = pipeline(unet=DIFFUSERS, scheduler=DIFFUSERS, safety_checker=[None, None])
    found = cases.ready({"model_index.json": document, **parts})

    assert found.paths == {"model_index.json", *parts}


def test_o36_a_declared_component_without_a_folder_is_refused_by_name(cases: Publisher) -> None:
    document = pipeline(unet=DIFFUSERS, safety_checker=[None, None], feature_extractor=TRANSFORMERS)
    repository = cases.add({"model_index.json": document, "unet/diffusion_pytorch_model.safetensors": holding("a")})
    cases.refused_of(repository, "MissingComponent", "feature_extractor")

    assert cases.payload_bytes(repository, "unet/diffusion_pytorch_model.safetensors") == 0
