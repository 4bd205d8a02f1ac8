"""Frozen artifacts: the same files give the same digests for ever (recipe 1).

The files are tiny and made here. `tests/golden/1` is changed only by `pytest --update-golden`, with a line in the
changelog: a difference means that every model published so far would get another digest.
"""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from aimodels_core import oci
from aimodels_core.digest import Digest
from aimodels_core.source import SourceFile
from aimodels_jobs import formats, metadata
from aimodels_jobs.contents import weight_header
from aimodels_jobs.headers import NeedBytes

GOLDEN = Path(__file__).parents[2] / "golden" / str(oci.RECIPE)


def document(value: Any) -> bytes:
    return json.dumps(value).encode()


def safetensors(tensors: Mapping[str, tuple[str, list[int], int]]) -> bytes:
    """Make a file of tensors: name → dtype, shape, bytes."""
    header, at = {}, 0
    for name, (dtype, shape, length) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + length]}
        at += length
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + bytes(place % 256 for place in range(at))


def gguf(architecture: str, file_type: int, elements: int = 8) -> bytes:
    """Make a file with one F32 tensor."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    raw = b"GGUF" + struct.pack("<IQQ", 3, 1, 2)
    raw += text("general.architecture") + struct.pack("<I", 8) + text(architecture)
    raw += text("general.file_type") + struct.pack("<II", 4, file_type)
    raw += text("t") + struct.pack("<IQIQ", 1, elements, 0, 0)
    return raw + bytes(-len(raw) % 32) + bytes(place % 256 for place in range(4 * elements))


def model(tensors: Mapping[str, tuple[str, list[int], int]], **config: Any) -> Mapping[str, bytes]:
    """Make a model of one file, with tensors large enough to be counted."""
    return {"config.json": document(config), "model.safetensors": safetensors(tensors)}


SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
MODELS: Mapping[str, Mapping[str, bytes]] = {
    "safetensors": {
        "config.json": document({"architectures": ["BertModel"], "model_type": "bert"}),
        "model.safetensors": safetensors({"a": ("F32", [2, 2], 16), "position_ids": ("I64", [1, 2], 16)}),
        "tokenizer.json": b"{}",
        "README.md": b"# tiny\n",
        "LICENSE": b"free\n",
        ".gitattributes": b"* text\n",
    },
    "sharded": {
        "config.json": document(
            {
                "architectures": ["Qwen2ForCausalLM"],
                "model_type": "qwen2",
                "quantization_config": {"quant_method": "gptq", "bits": 4},
            }
        ),
        "model.safetensors.index.json": document({"weight_map": {"l.qweight": SHARDS[0], "n.weight": SHARDS[1]}}),
        SHARDS[0]: safetensors({"l.qweight": ("I32", [4], 16)}),
        SHARDS[1]: safetensors({"n.weight": ("F16", [4], 8)}),
        "modeling_qwen.py": b"pass\n",
        "sub/модель 😀.txt": b"x",
        "empty.txt": b"",
    },
    "gguf": {
        "tiny-Q4_K_M.gguf": gguf("llama", 15),
        "tiny-Q8_0.gguf": gguf("llama", 7),
        "mmproj-F16.gguf": gguf("clip", 1),
        "README.md": b"# tiny\n",
    },
    "diffusers": {
        "model_index.json": document({"_class_name": "StableDiffusionPipeline", "unet": ["diffusers", "X"]}),
        "unet/config.json": b"{}",
        "unet/diffusion_pytorch_model.safetensors": safetensors({"w": ("F16", [4], 8)}),
        "unet/diffusion_pytorch_model.fp16.safetensors": safetensors({"w": ("F16", [2], 4)}),
        "v1.safetensors": safetensors({"w": ("F16", [4], 8)}),
    },
    "mixed": model(
        {
            "a": ("BF16", [30, 41], 2460),
            "b": ("F32", [9, 7], 252),
            "position_ids": ("I64", [1, 100], 800),
            "n.num_batches_tracked": ("I64", [100], 800),
        },
        model_type="Odd",
    ),
    "bf16": model({"a": ("BF16", [10, 195], 3900)}, architectures=["X"]),
    "fp64": model({"a": ("F64", [10, 10], 800)}, architectures=["X"]),
    "int8": model({"a": ("I8", [10, 10], 100)}, architectures=["X"]),
    "gptq": model(
        {
            "l.qweight": ("I32", [8, 16], 512),
            "l.qzeros": ("I32", [4, 16], 256),
            "l.scales": ("F16", [4, 32], 256),
            "l.g_idx": ("I32", [64], 256),
            "norm.weight": ("F16", [60], 120),
        },
        quantization_config={"quant_method": "gptq", "bits": 8},
    ),
    "fp8": model(
        {"l.weight": ("F8_E4M3", [20, 20], 400), "l.weight_scale_inv": ("F32", [10, 10], 400)},
        quantization_config={"quant_method": "fp8"},
    ),
    "bnb": model(
        {"l.weight": ("U8", [200, 1], 200), "l.weight.absmax": ("F32", [100], 400), "n.weight": ("BF16", [60], 120)},
        quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True},
    ),
    "packed": model(
        {
            "l.weight_packed": ("I32", [100], 400),
            "l.weight_shape": ("I64", [2], 16),
            "l.weight_scale": ("BF16", [70], 140),
        },
        quantization_config={
            "quant_method": "compressed-tensors",
            "config_groups": {"g": {"weights": {"num_bits": 8}}},
        },
    ),
    "pth": {"params.json": b"{}", "consolidated.00.pth": b"PK\x03\x04tiny"},
    "pipeline": {
        "model_index.json": document({"_class_name": "P", "unet": ["diffusers", "X"]}),
        "unet/model.safetensors": safetensors({"w": ("F16", [100], 200)}),
    },
    "gguf-q8": {"m-Q8_0.gguf": gguf("qwen3", 7, 1000)},
    "gguf-f16": {"m.gguf": gguf("gemma3", 1, 64)},
    "names": {
        **model({"a": ("F16", [40], 80)}, architectures=["X"]),
        **{
            name: name.encode()
            for name in (
                *("run.sh", "a.ipynb", "a.py", "README", "LICENCE", "NOTICE.txt", "COPYING", "copyright", "AUTHORS"),
                *(
                    "use_policy.txt",
                    "USAGE_POLICY",
                    "a.md",
                    "a.rst",
                    "a.pdf",
                    "a.svg",
                    "chat_template.jinja",
                    "sub/a.json",
                ),
                *("vocab.txt", "a.npy", "spiece.model", "a.jpg", "A.PNG", "a.jpeg", "a.gif", "a.webp", "a.npz", "a.pb"),
            )
        },
    },
    "pytorch": {
        "config.json": document({"architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta"}),
        "pytorch_model.bin": b"PK\x03\x04tiny",
        "sparse_linear.pt": b"PK\x03\x04tiny",
        "onnx/model.onnx": b"x",
    },
}


def published(files: Mapping[str, bytes], facts: Mapping[str, str]) -> oci.Artifact:
    """Do what a publication does, without moving anything."""
    selection = formats.select([SourceFile(path, len(data)) for path, data in files.items()])
    read = {path: files[path] for path in (*selection.config_paths, *selection.index_paths)}
    selection = formats.refine(selection, read)
    parsed = {}
    for item in selection.weights:
        head = weight_header(item.path, files[item.path], len(files[item.path]))
        assert not isinstance(head, NeedBytes)
        if head is not None:
            parsed[item.path] = head
    config = metadata.describe(selection, read, parsed, facts).to_config()
    made = [oci.ArtifactFile(p, len(files[p]), Digest.of(files[p])) for p in selection.paths]
    return oci.build(oci.RECIPE, made, config)


def rendered(artifact: oci.Artifact) -> str:
    """Render an artifact for people to compare; the digests cover the exact bytes."""
    shown = {
        "digest": str(artifact.digest),
        "configDigest": str(artifact.config_digest),
        "sizeBytes": artifact.size_bytes,
        "manifest": json.loads(artifact.manifest),
        "config": json.loads(artifact.config),
    }
    return json.dumps(shown, indent=2, ensure_ascii=False) + "\n"


@pytest.mark.parametrize("name", MODELS)
def test_the_artifact_of_a_fixed_model_is_frozen(name: str, request: pytest.FixtureRequest) -> None:
    got = rendered(published(MODELS[name], {}))
    golden = GOLDEN / f"{name}.json"
    if request.config.getoption("--update-golden"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(got)

    assert got == golden.read_text()


@pytest.mark.parametrize("name", MODELS)
def test_what_a_source_says_of_a_model_does_not_change_its_artifact(name: str) -> None:
    said = {"pipeline_tag": "text-ranking", "license": "mit", "revision": "x"}

    assert published(MODELS[name], said) == published(MODELS[name], {})


@pytest.mark.parametrize("name", MODELS)
def test_every_frozen_artifact_is_valid(name: str) -> None:
    made = published(MODELS[name], {})
    manifest = oci.parse_manifest(made.manifest)

    assert oci.validate(manifest, made.config) == ()
    assert manifest.size_bytes == made.size_bytes


def test_nothing_frozen_is_without_its_test() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(MODELS)
