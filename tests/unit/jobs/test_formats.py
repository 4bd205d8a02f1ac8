"""What is published of a listing: one format, every weight once, everything accounted for."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aimodels_core.errors import NoWeights, UnsafeContent
from aimodels_core.source import SourceFile
from aimodels_jobs import documents, formats
from aimodels_jobs.formats import Format, Pickle, Selection


def listing(*paths: str, size_bytes: int = 1024) -> list[SourceFile]:
    return [SourceFile(path, size_bytes) for path in paths]


def select(*paths: str, choose: str = "", pickle: Pickle = Pickle.ALLOW) -> Selection:
    found = formats.select(listing(*paths), choose=choose, pickle=pickle)
    assert {item.path for item in found.files} | {item.path for item in found.dropped} == set(paths)
    return found


def why(selection: Selection, path: str) -> str:
    return next(item.why for item in selection.dropped if item.path == path)


def codes(selection: Selection) -> list[str]:
    return [item.code for item in selection.warnings]


def index(*names: str) -> bytes:
    return json.dumps({"metadata": {}, "weight_map": {f"t{i}": name for i, name in enumerate(names)}}).encode()


SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"


def test_o14_the_same_weights_are_published_once() -> None:
    kept = {"config.json", "tokenizer.json", INDEX, *SHARDS}
    copies = (
        *("consolidated.safetensors", "pytorch_model.bin", "tf_model.h5", "flax_model.msgpack"),
        *("original/consolidated.00.pth", "metal/model.bin", "onnx/model.onnx"),
    )

    found = select(*kept, *copies)

    assert found.format is Format.SAFETENSORS
    assert found.paths == kept
    assert found.entry == "config.json"
    assert found.index_paths == (INDEX,)
    assert sum(item.size_bytes for item in found.dropped) == 1024 * len(copies)
    assert all(item.why for item in found.dropped)


def test_o14_an_explicit_choice_overrides() -> None:
    found = select("config.json", *SHARDS, INDEX, "consolidated.safetensors", choose="consolidated.safetensors")

    assert {item.path for item in found.weights} == {"consolidated.safetensors"}
    assert INDEX not in found.paths


def test_o15_the_index_decides_about_a_stray_file_beside_the_shards() -> None:
    found = select("config.json", INDEX, *SHARDS, "model.safetensors")

    assert {item.path for item in found.weights} == set(SHARDS)
    assert why(found, "model.safetensors") == f"not among the shards of {INDEX}"
    assert documents.by_index(found, INDEX, index(*SHARDS)) == found


def test_the_index_brings_back_a_shard_with_another_name_and_drops_what_it_does_not_name() -> None:
    found = select("config.json", INDEX, *SHARDS, "mtp.safetensors")

    narrowed = documents.by_index(found, INDEX, index(SHARDS[0], "mtp.safetensors"))

    assert {item.path for item in narrowed.weights} == {SHARDS[0], "mtp.safetensors"}
    assert why(narrowed, SHARDS[1]) == f"not among the shards of {INDEX}"
    assert {item.path for item in narrowed.dropped}.isdisjoint(narrowed.paths)


def test_a_single_file_may_have_an_index() -> None:
    found = select("config.json", INDEX, "model.safetensors")

    assert found.paths == {"config.json", INDEX, "model.safetensors"}
    assert documents.by_index(found, INDEX, index("model.safetensors")) == found


@pytest.mark.parametrize("extra", [(), ("config.json",)])
@pytest.mark.parametrize("base", ["/home/u/llama", "", "../x", None])
def test_o16_an_adapter_is_published_alone(extra: tuple[str, ...], base: str | None) -> None:
    found = select("adapter_config.json", "adapter_model.safetensors", *extra)
    document = json.dumps({"peft_type": "LORA", "base_model_name_or_path": base}).encode()

    found = formats.refine(found, {"adapter_config.json": document})

    assert (found.format, found.entry) == (Format.SAFETENSORS, "adapter_config.json")
    assert codes(found) == ["BaseUnresolved"]
    assert str(base or "x") not in "".join(item.message for item in found.warnings) or not base


def test_an_adapter_beside_a_model_is_left_out() -> None:
    found = select("config.json", "model.safetensors", "adapter_config.json", "adapter_model.safetensors")

    assert found.paths == {"config.json", "model.safetensors"}
    assert why(found, "adapter_model.safetensors") == "an adapter beside the model"


def test_o23_a_missing_shard_is_refused_by_name_from_the_listing() -> None:
    with pytest.raises(NoWeights, match=r"model-00002-of-00003\.safetensors") as caught:
        select("config.json", INDEX, "model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors")

    assert caught.value.code == "MissingShard"


def test_o23_a_shard_that_only_the_index_knows_is_refused_by_name() -> None:
    found = select("config.json", INDEX, *SHARDS)

    with pytest.raises(NoWeights, match=r"extra\.safetensors"):
        documents.by_index(found, INDEX, index(*SHARDS, "extra.safetensors"))


def test_o23_whole_shards_need_no_index() -> None:
    found = select("config.json", *SHARDS)

    assert {item.path for item in found.weights} == set(SHARDS)


@pytest.mark.parametrize(
    "name",
    ["../../../../other/private/resolve/main/model.safetensors", "/etc/passwd", "..\\x.safetensors", "a/../../b"],
)
def test_o25_a_shard_path_that_escapes_is_refused(name: str) -> None:
    found = select("config.json", INDEX, *SHARDS)

    with pytest.raises(UnsafeContent) as caught:
        documents.by_index(found, INDEX, index(*SHARDS, name))

    assert (caught.value.code, caught.value.path) == ("UnsafePath", INDEX)


def test_o25_a_nested_shard_path_is_legal() -> None:
    found = select("config.json", INDEX, "sub/ok.safetensors", "model.safetensors")

    narrowed = documents.by_index(found, INDEX, index("sub/ok.safetensors"))

    assert {item.path for item in narrowed.weights} == {"sub/ok.safetensors"}


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"weight_map": {"a": 1}}', b'{"weight_map": {"a": "x.bin"}}'])
def test_an_index_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(UnsafeContent, match="IndexInvalid"):
        documents.by_index(select("config.json", INDEX, *SHARDS), INDEX, data)


BGE_M3 = (
    *(".gitattributes", "1_Pooling/config.json", "README.md", "colbert_linear.pt", "config.json"),
    *("config_sentence_transformers.json", "imgs/bm25.jpg", "imgs/.DS_Store", "long.jpg", "modules.json"),
    *("onnx/Constant_7_attr__value", "onnx/config.json", "onnx/model.onnx", "onnx/model.onnx_data"),
    *("pytorch_model.bin", "sentence_bert_config.json", "sentencepiece.bpe.model", "sparse_linear.pt"),
    *("special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"),
)


def test_a_torch_only_repository_is_published_as_it_is_with_a_warning() -> None:
    found = select(*BGE_M3)

    assert found.format is Format.PYTORCH
    assert {item.path for item in found.weights} == {"pytorch_model.bin", "colbert_linear.pt", "sparse_linear.pt"}
    assert codes(found) == ["PickleWeights"]
    assert not any(path.startswith(("onnx/", "imgs/", ".")) or path.endswith(".jpg") for path in found.paths)
    assert {"modules.json", "1_Pooling/config.json", "sentencepiece.bpe.model"} <= found.paths


def test_pickled_weights_can_be_refused() -> None:
    with pytest.raises(NoWeights, match=r"sources\.pickle") as caught:
        select(*BGE_M3, pickle=Pickle.REFUSE)

    assert caught.value.code == "PickleRefused"


def test_sharded_torch_weights_drop_the_states_of_training() -> None:
    bins = ("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin")
    found = select(
        *("config.json", "pytorch_model.bin.index.json", *bins, "optimizer.pt", "training_args.bin"),
        *("checkpoint-500/pytorch_model.bin", "rng_state_0.pth", "scheduler.pt"),
    )

    assert {item.path for item in found.weights} == set(bins)
    assert why(found, "optimizer.pt") == "a state of the training"


def test_a_module_folder_of_a_safetensors_model_may_bring_torch_weights() -> None:
    paths = ("config.json", "modules.json", "model.safetensors", "2_Dense/config.json", "2_Dense/pytorch_model.bin")

    found = select(*paths)

    assert found.format is Format.SAFETENSORS
    assert found.paths == set(paths)
    assert codes(found) == ["PickleWeights"]
    with pytest.raises(NoWeights, match="pickle"):
        select(*paths, pickle=Pickle.REFUSE)


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (("config.json", "model.safetensors", "m.gguf", "pytorch_model.bin"), Format.SAFETENSORS),
        (("config.json", "pytorch_model.bin", "m.gguf"), Format.GGUF),
        (("model_index.json", "unet/diffusion_pytorch_model.safetensors", "m.gguf"), Format.DIFFUSERS),
        (("model_index.json", "config.json", "unet/model.safetensors", "model.safetensors"), Format.DIFFUSERS),
        (("stray.safetensors", "m.gguf"), Format.GGUF),
    ],
)
def test_one_format_by_precedence(paths: Sequence[str], expected: Format) -> None:
    assert select(*paths).format is expected


def test_a_gguf_that_was_asked_for_wins_over_safetensors() -> None:
    found = select("config.json", "model.safetensors", "M-Q4_K_M.gguf", "M-Q8_0.gguf", choose="q8_0")

    assert (found.format, found.entry) == (Format.GGUF, "M-Q8_0.gguf")
    assert "model.safetensors" not in found.paths


@pytest.mark.parametrize(
    "paths",
    [
        (),
        ("README.md",),
        ("model.safetensors",),
        ("pytorch_model.bin",),
        ("config.json", "onnx/model.onnx"),
        ("model_index.json", "scheduler/scheduler_config.json"),
    ],
)
def test_without_supported_weights_every_reason_is_named(paths: Sequence[str]) -> None:
    with pytest.raises(NoWeights):
        select(*paths)


@pytest.mark.parametrize("stray", ["a.zip", "x/b.tar.gz", "evil.so", "setup.exe", "data.parquet", "pic.png", "w.7z"])
def test_strays_are_dropped_with_a_note_and_never_refuse_a_model(stray: str) -> None:
    found = select("config.json", "model.safetensors", stray)

    assert [item.path for item in found.dropped] == [stray]
    assert why(found, stray)


def test_o04_empty_files_are_kept_and_empty_weights_refused() -> None:
    empty = SourceFile("__init__.py", 0)
    found = formats.select([*listing("config.json", "model.safetensors"), empty])

    assert "__init__.py" in found.paths
    with pytest.raises(UnsafeContent, match="EmptyWeight"):
        formats.select([*listing("config.json", SHARDS[0]), SourceFile(SHARDS[1], 0)])


def test_o04_an_empty_weight_that_is_left_out_does_no_harm() -> None:
    formats.select([*listing("config.json", "model.safetensors"), SourceFile("pytorch_model.bin", 0)])


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a\\b", "a/./b", "C:/x"])
def test_a_listing_with_an_unsafe_path_is_refused(path: str) -> None:
    with pytest.raises(UnsafeContent, match="UnsafePath"):
        select("config.json", "model.safetensors", path)


def test_o10_reserved_characters_are_kept_as_they_are() -> None:
    odd = ("C1_or_C2?_premise/a b+c#1%20.json", "x@main.txt", "模型 😀.txt")

    assert select("config.json", "model.safetensors", *odd).paths >= set(odd)


def test_paths_that_differ_by_case_only_are_refused() -> None:
    with pytest.raises(UnsafeContent, match="PathCollision"):
        select("config.json", "model.safetensors", "Vocab.txt", "vocab.txt")


def test_remote_code_is_kept_and_told() -> None:
    found = select("config.json", "model.safetensors", "modeling_x.py", "configuration_x.py")
    config = {"auto_map": {"AutoModel": "modeling_x.X", "AutoTokenizer": ["tok.T", None], "A": "org/repo--m.C"}}

    found = formats.refine(found, {"config.json": json.dumps(config).encode()})

    assert {"modeling_x.py", "configuration_x.py"} <= found.paths
    assert codes(found) == ["RemoteCode", "RemoteCodeElsewhere"]
    assert "modeling_x.py" in found.warnings[0].message
    assert "not in the repository: tok.py" in found.warnings[0].message


def test_a_pointer_instead_of_a_config_is_recognised() -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 99\n"

    with pytest.raises(UnsafeContent, match=r"LfsPointer.*size 99"):
        formats.refine(select("config.json", "model.safetensors"), {"config.json": pointer})


@pytest.mark.parametrize(
    ("paths", "choose"),
    [
        (("config.json", "model.safetensors", "README.md"), "README.md"),
        (("config.json", "model.safetensors", "1_Pooling/config.json"), "1_Pooling/config.json"),
        (("config.json", "model.safetensors"), "fp16"),
        (("model_index.json", "unet/model.safetensors", "v1.safetensors"), "v1.safetensors"),
        (("model_index.json", "unet/model.safetensors"), "fp16"),
    ],
)
def test_a_choice_that_cannot_be_met_is_refused(paths: Sequence[str], choose: str) -> None:
    with pytest.raises(NoWeights) as caught:
        select(*paths, choose=choose)

    assert caught.value.code == "ChoiceNotFound"
    assert choose in caught.value.message


def test_a_listing_of_twenty_thousand_files_is_decided_quickly() -> None:
    shards = [f"model-{k:05}-of-10000.safetensors" for k in range(1, 10_001)]
    sides = [f"voices/v{k}.json" for k in range(10_000)]
    begun = time.process_time()

    assert len(select("config.json", *shards, *sides).files) == 20_001
    assert time.process_time() - begun < 10


DATA = Path(__file__).parents[2] / "support" / "data"


@pytest.mark.parametrize(
    ("name", "expected", "weights"),
    [
        ("bge-m3", Format.PYTORCH, {"pytorch_model.bin", "colbert_linear.pt", "sparse_linear.pt"}),
        ("gemma-3-4b-it", Format.SAFETENSORS, set(SHARDS)),
        ("llama-70b", Format.SAFETENSORS, {f"model-{k:05}-of-00030.safetensors" for k in range(1, 31)}),
    ],
)
def test_true_file_lists_are_understood(name: str, expected: Format, weights: set[str]) -> None:
    files = json.loads((DATA / f"{name}.json").read_text())["files"]
    if name == "llama-70b":  # its list leaves out the shards, whose sizes follow from the tensors
        files |= dict.fromkeys(weights, 4_600_000_000)
    found = formats.select([SourceFile(path, size_bytes) for path, size_bytes in files.items()])

    assert found.format is expected
    assert {item.path for item in found.weights} == weights
    assert found.entry == "config.json"
    assert {"config.json", "tokenizer.json", "tokenizer_config.json"} <= found.paths
    assert not [path for path in found.paths if path.startswith(("original/", "onnx/", "imgs/", "."))]


# Diffusers


def test_o35_a_variant_that_is_only_partly_there() -> None:
    plain = tuple(f"transformer/diffusion_pytorch_model-0000{k}-of-00002.safetensors" for k in (1, 2))
    plain_index = "transformer/diffusion_pytorch_model.safetensors.index.json"
    wanted = {
        "transformer/diffusion_pytorch_model.bf16.safetensors",
        "text_encoder/model.bf16-00001-of-00002.safetensors",
        "text_encoder/model.bf16-00002-of-00002.safetensors",
        "vae/diffusion_pytorch_model.safetensors",
    }

    found = select("model_index.json", *plain, plain_index, *wanted, choose="bf16")

    assert {item.path for item in found.weights} == wanted
    assert plain_index not in found.paths
    assert codes(found) == ["VariantFallback"]
    assert "vae" in found.warnings[0].message


def test_diffusers_weights_are_published_once() -> None:
    kept = {
        *("model_index.json", "unet/config.json", "unet/diffusion_pytorch_model.safetensors"),
        *("text_encoder/model.safetensors", "vae/diffusion_pytorch_model.bin", "scheduler/scheduler_config.json"),
    }
    copies = (
        *("unet/diffusion_pytorch_model.bin", "unet/diffusion_pytorch_model.fp16.safetensors"),
        *("unet/diffusion_pytorch_model.non_ema.safetensors", "text_encoder/pytorch_model.bin"),
        *("v1-5-pruned.safetensors", "v1-5-pruned.ckpt", "text_encoder/model.fp16.safetensors"),
    )

    found = select(*kept, *copies)

    assert found.format is Format.DIFFUSERS
    assert found.entry == "model_index.json"
    assert found.paths == kept
    assert codes(found) == ["PickleWeights"]


def test_diffusers_components_that_are_only_pickled_can_be_refused() -> None:
    with pytest.raises(NoWeights, match=r"vae.*sources\.pickle"):
        select("model_index.json", "unet/model.safetensors", "vae/model.bin", pickle=Pickle.REFUSE)


def test_safetensors_beside_the_model_do_not_hide_its_torch_weights() -> None:
    found = select("config.json", "pytorch_model.bin", "lora/adapter_model.safetensors")

    assert found.format is Format.PYTORCH
    assert "pytorch_model.bin" in found.paths


def test_diffusers_with_nothing_but_a_variant_says_how_to_load_it() -> None:
    found = select("model_index.json", "unet/diffusion_pytorch_model.fp16.safetensors")

    assert codes(found) == ["VariantOnly"]
    assert "fp16" in found.warnings[0].message


def test_o36_null_components_are_absent_and_missing_folders_are_refused() -> None:
    found = select("model_index.json", "unet/diffusion_pytorch_model.safetensors", "scheduler/scheduler_config.json")
    document = {
        "_class_name": "X",
        "safety_checker": [None, None],
        "requires_safety_checker": True,
        "unet": ["diffusers", "UNet2DConditionModel"],
        "scheduler": ["diffusers", "PNDMScheduler"],
    }

    assert formats.refine(found, {"model_index.json": json.dumps(document).encode()}) == found

    document["feature_extractor"] = ["transformers", "CLIPImageProcessor"]
    with pytest.raises(NoWeights, match="feature_extractor"):
        formats.refine(found, {"model_index.json": json.dumps(document).encode()})


def test_weights_of_folders_that_are_no_component_are_dropped() -> None:
    found = select("model_index.json", "unet/diffusion_pytorch_model.safetensors", "extra/model.safetensors")
    document = {"unet": ["diffusers", "UNet2DConditionModel"], "extra": [None, None]}

    found = formats.refine(found, {"model_index.json": json.dumps(document).encode()})

    assert {item.path for item in found.weights} == {"unet/diffusion_pytorch_model.safetensors"}


# Laws

NAMES = st.sampled_from(
    [
        *("config.json", "model_index.json", "model.safetensors", "pytorch_model.bin", *SHARDS, INDEX, "m-Q4_K_M.gguf"),
        *("m-Q8_0.gguf", "mmproj-F16.gguf", "a.zip", "README.md", "x.py", "unet/model.safetensors", "unet/model.bin"),
        *("onnx/model.onnx", "model.fp16.safetensors", "adapter_config.json", "adapter_model.safetensors", ".x"),
        *("consolidated.00.pth", "m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "vocab.txt", "modules.json"),
    ]
)


@given(st.sets(NAMES), st.sampled_from(["", "Q4_K_M", "fp16", "model.safetensors"]), st.sampled_from(list(Pickle)))
def test_a_selection_accounts_for_every_file_or_is_refused(paths: set[str], choose: str, pickle: Pickle) -> None:
    try:
        found = formats.select(listing(*sorted(paths)), choose=choose, pickle=pickle)
    except NoWeights:
        return

    assert found.paths | {item.path for item in found.dropped} == paths
    assert found.paths.isdisjoint(item.path for item in found.dropped)
    assert found.weights
    assert found.entry in found.paths
    assert found == formats.select(listing(*sorted(paths, reverse=True)), choose=choose, pickle=pickle)
    torch = [item for item in found.weights if item.path.endswith((".bin", ".pth"))]
    assert ("PickleWeights" in codes(found)) == bool(torch)
    assert not (torch and pickle is Pickle.REFUSE)
