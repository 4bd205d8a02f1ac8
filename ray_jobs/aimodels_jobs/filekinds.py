"""What a file of a repository is, told by its path alone: tables and the one function that reads them. Pure."""

import enum
import re

from aimodels_core.units import MIB


class Kind(enum.Enum):
    """What a file is to the rules of selection."""

    SAFETENSORS = "safetensors"
    GGUF = "gguf"
    TORCH = "torch"
    SIDE = "side file"
    CODE = "code"
    DOC = "doc"
    HIDDEN = "a file of the repository itself"
    ALTERNATIVE = "a copy of the weights in another format"
    EXTRA = "not needed to load the model"
    TRAINING = "a state of the training"
    STRAY = "an archive or a program"


_HIDDEN_NAMES = frozenset({"__macosx", "thumbs.db", "desktop.ini"})
_ALTERNATIVE_FOLDERS = frozenset(
    {"onnx", "openvino", "coreml", "tflite", "original", "metal", "tensorrt", "mlx", "ggml", "flax", "executorch"}
)
_EXTRA_FOLDERS = frozenset(
    {
        *("assets", "benchmark", "benchmarks", "docs", "eval", "evals", "evaluation", "example", "examples"),
        *("figures", "images", "imgs", "img", "media", "notebooks", "samples", "scripts", "test", "tests", "runs"),
    }
)
_TRAINING = re.compile(r"(checkpoint|global_step|epoch)[-_]?\d+")
_TRAINING_NAMES = re.compile(
    r"optimizer.*|scheduler\.(pt|bin)|rng_state.*|training_args\.bin|trainer_state\.json|scaler\.pt|random_states.*"
    r"|events\.out\.tfevents.*|zero_to_fp32\.py|latest|.*_optim_states\.pt"
)
_ALTERNATIVE_SUFFIXES = (
    *(".onnx", ".onnx_data", ".onnx.data", ".tflite", ".mlmodel", ".mlpackage", ".pdmodel", ".pdiparams", ".pdparams"),
    *(".h5", ".keras", ".msgpack", ".ot", ".mar", ".engine", ".ggml", ".nemo", ".pte", ".xml", ".llamafile", ".pb"),
    *(".imatrix", ".gguf_file", ".ftz", ".ort"),
)
_ALTERNATIVE_NAMES = re.compile(r"(tf_model|flax_model|rust_model|openvino_|model\.ckpt[.-]|ggml-).*")
_STRAY_SUFFIXES = (
    *(".so", ".dll", ".dylib", ".exe", ".jar", ".class", ".wasm", ".msi", ".deb", ".rpm", ".apk", ".iso"),
    *(".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".7z", ".rar", ".zst", ".tzst", ".whl", ".egg"),
    *(".bat", ".cmd", ".ps1", ".php", ".pl", ".rb"),
)
_EXTRA_SUFFIXES = (
    *(".jpg", ".jpeg", ".png", ".gif", ".webp", ".svg", ".bmp", ".ico", ".pdf", ".mp3", ".mp4", ".wav", ".flac"),
    *(".ogg", ".avi", ".mov", ".webm", ".csv", ".tsv", ".jsonl", ".parquet", ".arrow", ".html", ".css", ".js", ".log"),
    *(".ipynb", ".lock", ".tfevents"),
)
_TORCH_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_RAW_SPLIT = re.compile(r".*\.gguf[.-](part-?\d+of\d+|split-?[a-z0-9]+|part-?[a-z0-9]+|\d{3})")
_MAX_UNKNOWN_BYTES = 16 * MIB
_KNOWN_TEXT = (".json", ".yaml", ".yml", ".txt", ".model", ".jinja", ".tiktoken", ".toml", ".spm", ".vocab", ".bpe")


def raw_split(path: str) -> bool:
    """Say whether a name is a piece of a GGUF that was cut by bytes and must be joined again."""
    return bool(_RAW_SPLIT.fullmatch(path.lower()))


def kind_of(path: str, size_bytes: int) -> Kind:
    """Tell what a file is; where two rules meet the earlier one decides.

    >>> [kind_of(p, 1).name for p in (".gitattributes", "onnx/model.onnx", "m.GGUF", "vocab.bpe", "checkpoint-5/x.pt")]
    ['HIDDEN', 'ALTERNATIVE', 'GGUF', 'SIDE', 'TRAINING']
    """
    parts = path.lower().split("/")
    if any(part.startswith(".") or part in _HIDDEN_NAMES for part in parts):
        return Kind.HIDDEN
    folders, name = parts[:-1], parts[-1]
    if any(folder in _ALTERNATIVE_FOLDERS for folder in folders):
        return Kind.ALTERNATIVE
    if any(folder in _EXTRA_FOLDERS for folder in folders):
        return Kind.EXTRA
    if _TRAINING_NAMES.fullmatch(name) or any(_TRAINING.fullmatch(folder) for folder in folders):
        return Kind.TRAINING
    return _by_name(name, size_bytes)


def _by_name(name: str, size_bytes: int) -> Kind:
    if _RAW_SPLIT.fullmatch(name) or name.endswith(_ALTERNATIVE_SUFFIXES) or _ALTERNATIVE_NAMES.fullmatch(name):
        return Kind.ALTERNATIVE
    for kind, suffixes in (
        (Kind.SAFETENSORS, (".safetensors",)),
        (Kind.GGUF, (".gguf",)),
        (Kind.TORCH, _TORCH_SUFFIXES),
        (Kind.STRAY, _STRAY_SUFFIXES),
        (Kind.CODE, (".py",)),
    ):
        if name.endswith(suffixes):
            return kind
    if name.endswith((".md", ".rst")) or name.startswith(("license", "licence", "notice", "copying", "use_policy")):
        return Kind.DOC
    if name.endswith((*_EXTRA_SUFFIXES, ".sh")) or name.startswith("imatrix"):
        return Kind.EXTRA
    # A missing side file breaks a loader, an extra one costs little: small files of unknown kinds are kept.
    return Kind.SIDE if name.endswith(_KNOWN_TEXT) or size_bytes <= _MAX_UNKNOWN_BYTES else Kind.EXTRA
