"""Small valid weight files, and whole tiny repositories of every format, made without the libraries under test.

Content is deterministic: the same call gives the same bytes. What is *invalid* belongs to the tests that need it.
"""

import io
import json
import math
import struct
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.hub import bodies
from tests.support.hub.bodies import Body, BytesBody, GeneratedBody, JoinedBody

_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "I64": 8, "I32": 4, "I8": 1, "U8": 1, "BOOL": 1}
_ALIGNMENT = 32
_GGUF_TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144)}
"""Number, elements of a block, bytes of a block."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a weight file: name, shape, element type."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "BF16"

    @property
    def size_bytes(self) -> int:
        """Bytes of its data in a safetensors file."""
        return math.prod(self.shape) * _ITEM_BYTES[self.dtype]


# Safetensors


def safetensors_head(tensors: Sequence[Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Length field and header of a safetensors file, padded to 8 bytes."""
    header: dict[str, Any] = {"__metadata__": dict({"format": "pt"} if metadata is None else metadata)}
    at = 0
    for tensor in tensors:
        place = [at, at := at + tensor.size_bytes]
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": place}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def safetensors(tensors: Sequence[Tensor], *, seed: int | None = 0, metadata: Mapping[str, str] | None = None) -> Body:
    """A valid safetensors file of any size; its data is generated (zeros without a seed)."""
    data = GeneratedBody(sum(tensor.size_bytes for tensor in tensors), seed=seed)
    return JoinedBody((BytesBody(safetensors_head(tensors, metadata)), data))


def safetensors_of_size(size_bytes: int, *, seed: int | None = 0, name: str = "weight") -> Body:
    """A valid safetensors file of exactly this size, with one tensor of bytes (at least 200 bytes in all).

    Raises:
        ValueError: too small to hold a header.
    """
    data_bytes = size_bytes - 200
    if data_bytes < 0:
        raise ValueError(f"safetensors file: want at least 200 bytes, got {size_bytes}")
    entry = {name: {"dtype": "U8", "shape": [data_bytes], "data_offsets": [0, data_bytes]}}
    text = json.dumps(entry, separators=(",", ":")).encode().ljust(192)
    return JoinedBody((BytesBody(struct.pack("<Q", len(text)) + text), GeneratedBody(data_bytes, seed=seed)))


def split(tensors: Sequence[Tensor], shard_bytes: int) -> list[list[Tensor]]:
    """Cut tensors into shards in order, each as full as the limit allows."""
    shards: list[list[Tensor]] = [[]]
    used = 0
    for tensor in tensors:
        if shards[-1] and used + tensor.size_bytes > shard_bytes:
            shards.append([])
            used = 0
        shards[-1].append(tensor)
        used += tensor.size_bytes
    return shards


def shrink(tensor: Tensor, scale: int) -> Tensor:
    """The tensor with every dimension divided (at least 1)."""
    return Tensor(tensor.name, tuple(max(1, size // scale) for size in tensor.shape), tensor.dtype)


def sharded(shards: Sequence[Sequence[Tensor]], *, scale: int = 1, seed: int = 0) -> dict[str, Body]:
    """Shards and their index, as transformers names them."""
    count = len(shards)
    files: dict[str, Body] = {}
    weight_map: dict[str, str] = {}
    total = 0
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05}-of-{count:05}.safetensors"
        shrunk = [shrink(tensor, scale) for tensor in shard]
        files[name] = safetensors(shrunk, seed=seed + number)
        weight_map.update((tensor.name, name) for tensor in shrunk)
        total += sum(tensor.size_bytes for tensor in shrunk)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    files["model.safetensors.index.json"] = BytesBody(json.dumps(index, indent=2).encode() + b"\n")
    return files


# GGUF


def _text(value: str) -> bytes:
    content = value.encode()
    return struct.pack("<Q", len(content)) + content


def _gguf_value(value: object) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _text(value)
        case [str(), *_] as items:
            return struct.pack("<IIQ", 9, 8, len(items)) + b"".join(_text(str(item)) for item in items)
        case [int(), *_] as items:
            return struct.pack("<IIQ", 9, 4, len(items)) + struct.pack(f"<{len(items)}I", *items)
        case _:
            raise TypeError(f"GGUF value: want bool, int, float, str or a list of these, got {type(value).__name__}")


def gguf(
    values: Mapping[str, object] | None = None,
    tensors: Sequence[Tensor] = (Tensor("token_embd.weight", (64, 32), "F32"),),
    *,
    version: int = 3,
    seed: int = 0,
) -> Body:
    """A valid GGUF file. `values` are added to a general.architecture of "llama"."""
    pairs: dict[str, object] = {"general.architecture": "llama", **(values or {})}
    head = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(pairs))
    head += b"".join(_text(key) + _gguf_value(value) for key, value in pairs.items())
    at = 0
    for tensor in tensors:
        number, _, _ = _GGUF_TYPES[tensor.dtype]
        dimensions = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        head += _text(tensor.name) + dimensions + struct.pack("<IQ", number, at)
        at += _padded(_gguf_bytes(tensor))
    return JoinedBody((BytesBody(head.ljust(_padded(len(head)), b"\0")), GeneratedBody(at, seed=seed)))


def _gguf_bytes(tensor: Tensor) -> int:
    _, elements, block = _GGUF_TYPES[tensor.dtype]
    return math.prod(tensor.shape) // elements * block


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def gguf_shards(stem: str, count: int = 2, *, seed: int = 0) -> dict[str, Body]:
    """A GGUF model in shards, as llama.cpp's splitter names and marks them."""
    files: dict[str, Body] = {}
    for number in range(count):
        values = {"split.no": number, "split.count": count, "split.tensors.count": count}
        tensors = (Tensor(f"blk.{number}.attn_q.weight", (64, 32), "F32"),)
        files[f"{stem}-{number + 1:05}-of-{count:05}.gguf"] = gguf(values, tensors, seed=seed + number)
    return files


# PyTorch


def torch_file(size_bytes: int = 0, *, seed: int = 0) -> bytes:
    """A zip as torch.save writes it: an empty pickled dict and one storage of generated bytes."""
    storage = b"".join(bodies.pieces(GeneratedBody(size_bytes, seed=seed)))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name, content in (("data.pkl", b"\x80\x02}q\x00."), ("version", b"3\n"), ("data/0", storage)):
            archive.writestr(zipfile.ZipInfo(f"archive/{name}"), content)
    return packed.getvalue()


# Whole repositories


def _json(content: object) -> bytes:
    return json.dumps(content, indent=2).encode() + b"\n"


def tokenizer() -> dict[str, bytes]:
    """Files of a minimal tokenizer."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}
    return {
        "tokenizer.json": _json({"version": "1.0", "added_tokens": [], "model": model}),
        "tokenizer_config.json": _json({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}),
        "special_tokens_map.json": _json({"unk_token": "<unk>"}),
    }


def llama_config(*, hidden: int = 32, layers: int = 2, heads: int = 4, inner: int = 64, vocabulary: int = 128) -> bytes:
    """config.json of a small Llama."""
    return _json(
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": hidden,
            "intermediate_size": inner,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": heads,
            "max_position_embeddings": 2048,
            "vocab_size": vocabulary,
            "torch_dtype": "bfloat16",
        }
    )


def llama_tensors(
    *, hidden: int = 32, layers: int = 2, inner: int = 64, vocabulary: int = 128, key_value: int = 32
) -> list[Tensor]:
    """Tensors of a Llama, in the order in which they are saved."""
    found = [Tensor("model.embed_tokens.weight", (vocabulary, hidden))]
    for layer in range(layers):
        shapes = {
            "input_layernorm": (hidden,),
            "mlp.down_proj": (hidden, inner),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "post_attention_layernorm": (hidden,),
            "self_attn.k_proj": (key_value, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.v_proj": (key_value, hidden),
        }
        found.extend(Tensor(f"model.layers.{layer}.{name}.weight", shape) for name, shape in shapes.items())
    return [*found, Tensor("model.norm.weight", (hidden,)), Tensor("lm_head.weight", (vocabulary, hidden))]


def tiny_safetensors(*, seed: int = 0) -> dict[str, bytes | Body]:
    """Files of a whole small Llama in one safetensors file."""
    generation = _json({"bos_token_id": 1, "eos_token_id": 2})
    weights = safetensors(llama_tensors(), seed=seed)
    card = b"---\nlicense: mit\n---\n# tiny\n"
    head: dict[str, bytes | Body] = {"README.md": card, "config.json": llama_config(), "model.safetensors": weights}
    return {**head, "generation_config.json": generation, **tokenizer()}


def tiny_sharded(*, shard_bytes: int = 16 * 1024, seed: int = 0) -> dict[str, bytes | Body]:
    """Files of the same small Llama in shards with an index."""
    files = {name: body for name, body in tiny_safetensors(seed=seed).items() if name != "model.safetensors"}
    return {**files, **sharded(split(llama_tensors(), shard_bytes), seed=seed)}


def tiny_pytorch(*, seed: int = 0) -> dict[str, bytes | Body]:
    """Files of a small model that comes as torch weights only."""
    files = {name: body for name, body in tiny_safetensors(seed=seed).items() if name != "model.safetensors"}
    return {**files, "pytorch_model.bin": torch_file(4096, seed=seed)}


def tiny_gguf(stem: str = "tiny", quants: Sequence[str] = ("Q4_K_M", "Q8_0"), *, seed: int = 0) -> dict[str, Body]:
    """A repository of one GGUF per quantization."""
    tensors = (Tensor("token_embd.weight", (256, 32), "Q8_0"), Tensor("output_norm.weight", (32,), "F32"))
    kinds = {"Q4_K_M": 15, "Q8_0": 7, "F16": 1, "Q5_K_M": 17, "Q6_K": 18}
    base = {"general.name": stem, "llama.context_length": 2048, "llama.block_count": 1, "llama.embedding_length": 32}
    values = {quant: {**base, "general.file_type": kinds.get(quant, 7)} for quant in quants}
    return {f"{stem}-{quant}.gguf": gguf(values[quant], tensors, seed=seed + at) for at, quant in enumerate(quants)}


def tiny_diffusers(*, seed: int = 0, variants: bool = True) -> dict[str, bytes | Body]:
    """A repository in the diffusers layout, with the duplicates (fp16, torch) that such repositories carry."""
    index = {
        "_class_name": "StableDiffusionPipeline",
        "_diffusers_version": "0.30.0",
        "scheduler": ["diffusers", "PNDMScheduler"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }
    files: dict[str, bytes | Body] = {"model_index.json": _json(index), "README.md": b"# tiny diffusers\n"}
    files["scheduler/scheduler_config.json"] = _json({"_class_name": "PNDMScheduler"})
    files["tokenizer/vocab.json"] = _json({"a": 0})
    files["tokenizer/merges.txt"] = b"#version: 0.2\n"
    files["tokenizer/tokenizer_config.json"] = _json({"tokenizer_class": "CLIPTokenizer"})
    stems = {"text_encoder": "model", "unet": "diffusion_pytorch_model", "vae": "diffusion_pytorch_model"}
    for at, (part, stem) in enumerate(stems.items()):
        full, half = Tensor(f"{part}.weight", (16, 16), "F32"), Tensor(f"{part}.weight", (16, 16), "F16")
        files[f"{part}/config.json"] = _json({"_class_name": index[part][1]})
        files[f"{part}/{stem}.safetensors"] = safetensors([full], seed=seed + at)
        if variants:
            torch_stem = "pytorch_model" if stem == "model" else stem
            files[f"{part}/{stem}.fp16.safetensors"] = safetensors([half], seed=seed + at)
            files[f"{part}/{torch_stem}.bin"] = torch_file(64)
    return files
