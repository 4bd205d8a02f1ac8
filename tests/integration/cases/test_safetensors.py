"""Safetensors that must not be published, and odd ones that must; their shards, and pipelines of them.

What each kind of damage is called is tested beside the parsers; here is what becomes of a publication (O-01, O-04,
O-17 to O-25, O-35, O-36).
"""

import json
import struct
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.hub.bodies import BytesBody, GeneratedBody, JoinedBody
from tests.support.hub.repository import Content, File
from tests.support.hub.routes import On
from tests.support.oddweights import holding, index, st, tensor
from tests.support.publisher import Publisher

CONFIG = b'{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}'
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 1048576\n"
INDEX = "model.safetensors.index.json"
S1, S2, S3 = (f"model-0000{k}-of-00003.safetensors" for k in (1, 2, 3))
P1, P2 = (f"model-0000{k}-of-00002.safetensors" for k in (1, 2))


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
