"""ModelPack: media types of layers, and the config that describes a model. Pure.

Source: CNCF ModelPack model-spec v1: docs/spec.md ("OCI Image Manifest Specification For Model Artifacts"),
docs/config.md ("Properties"), specs-go/v1/mediatype.go. Everything here is part of recipe 1: what it answers for given
files never changes, because digests of published artifacts depend on it.
"""

import dataclasses
import enum
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aimodels_core.digest import Digest

ARTIFACT_TYPE: Final = "application/vnd.cncf.model.manifest.v1+json"
CONFIG_MEDIA_TYPE: Final = "application/vnd.cncf.model.config.v1+json"
# Most bytes of a config: one digest per layer, as many as fit a manifest, and a page of facts.
MAX_CONFIG_BYTES: Final = 4 * 1024 * 1024

_LAYER = re.compile(
    r"application/vnd\.cncf\.model\.(weight|weight\.config|doc|code|dataset)\.v1\.(raw|tar|tar\+gzip|tar\+zstd)"
)
_DOC_STEMS = ("readme", "license", "licence", "notice", "copying", "copyright", "use_policy", "usage_policy", "authors")
_DOC_SUFFIXES = (".md", ".rst", ".pdf", ".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg")
_CODE_SUFFIXES = (".py", ".sh", ".ipynb")
_WEIGHT_SUFFIXES = (
    *(".safetensors", ".gguf", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".ot", ".onnx", ".onnx_data"),
    *(".npz", ".npy", ".tflite", ".pb", ".mlmodel", ".pdparams", ".pkl", ".nemo"),
)


class LayerClass(enum.Enum):
    """What a file is to the model; decides the media type of its layer."""

    WEIGHT = "weight"
    WEIGHT_CONFIG = "weight.config"
    DOC = "doc"
    CODE = "code"

    @property
    def media_type(self) -> str:
        """Media type of a file stored as it is: not archived, not compressed."""
        return f"application/vnd.cncf.model.{self.value}.v1.raw"


def layer_class(path: str) -> LayerClass:
    """Classify a file by its path alone, so that the same files give the same artifact from any source.

    >>> [layer_class(p).value for p in ("model.safetensors", "a/config.json", "LICENSE.txt", "modeling_x.py")]
    ['weight', 'weight.config', 'doc', 'code']
    """
    name = path.rsplit("/", 1)[-1].lower()
    if name.endswith(_WEIGHT_SUFFIXES):
        return LayerClass.WEIGHT
    if name.endswith(_CODE_SUFFIXES):
        return LayerClass.CODE
    if name.endswith(_DOC_SUFFIXES) or name.startswith(_DOC_STEMS):
        return LayerClass.DOC
    return LayerClass.WEIGHT_CONFIG


def is_layer_media_type(media_type: str) -> bool:
    """Say whether a media type is one that the specification gives to layers."""
    return bool(_LAYER.fullmatch(media_type))


def is_raw(media_type: str) -> bool:
    """Say whether a layer of this media type holds a file as it is."""
    return is_layer_media_type(media_type) and media_type.endswith(".raw")


@dataclasses.dataclass(frozen=True, slots=True)
class ConfigFacts:
    """What the config says of a model beside its layers: facts of the selected files only. Empty means not known.

    Args:
        format: such as `safetensors`, `gguf`.
        family: such as `qwen2`.
        architecture: such as `Qwen2ForCausalLM`.
        parameters: number of parameters, 0 when not known.
        precision: such as `bf16`, `mixed`.
        quantization: such as `gptq-4bit`, `Q4_K_M`.
    """

    format: str = ""
    family: str = ""
    architecture: str = ""
    parameters: int = 0
    precision: str = ""
    quantization: str = ""


def canonical_json(value: object) -> bytes:
    """Serialise with sorted keys, no spaces and UTF-8: one value, one sequence of bytes.

    >>> canonical_json({"b": 1, "a": "ё"}).decode()
    '{"a":"ё","b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def config_bytes(facts: ConfigFacts, digests: Sequence[Digest]) -> bytes:
    """Write the config of an artifact whose layers are raw files, so that their diff ids are their digests.

    Source: docs/config.md, "Properties": descriptor, config and modelfs are required, all their fields but
    modelfs.type and modelfs.diffIds optional.
    """
    config = {
        "architecture": facts.architecture,
        "format": facts.format,
        "paramSize": param_size(facts.parameters),
        "precision": facts.precision,
        "quantization": facts.quantization,
    }
    descriptor = {"family": facts.family}
    return canonical_json(
        {
            "config": {name: value for name, value in config.items() if value},
            "descriptor": {name: value for name, value in descriptor.items() if value},
            "modelfs": {"diffIds": [str(digest) for digest in digests], "type": "layers"},
        }
    )


def param_size(parameters: int) -> str:
    """Render a number of parameters as docs/config.md, "paramSize", asks; empty below fifty.

    >>> [param_size(n) for n in (0, 22_713_216, 6_738_415_616, 999_960_000, 405_853_388_800)]
    ['', '22.7M', '6.7B', '1.0B', '405.9B']
    """
    for prefix, unit in (("K", 10**3), ("M", 10**6), ("B", 10**9), ("T", 10**12), ("Q", 10**15)):
        tenths = (parameters * 10 + unit // 2) // unit
        if tenths < 10_000 or prefix == "Q":
            return f"{tenths // 10}.{tenths % 10}{prefix}" if tenths else ""
    return ""


_STRINGS: Final = {"type": "array", "items": {"type": "string"}}
_TEXT: Final = {"type": "string"}
_TIME: Final = {
    "type": "string",
    "pattern": r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)",
}
_MODALITIES: Final = {
    "type": "array",
    "items": {"type": "string", "enum": ["text", "image", "audio", "video", "embedding", "other"]},
}

# A schema of our own, written from the text of the specification; the section is named at each object.
CONFIG_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",  # docs/config.md, "Properties"
    "required": ["descriptor", "config", "modelfs"],
    "properties": {
        "descriptor": {  # "descriptor": general information, all of it optional
            "type": "object",
            "properties": {
                "createdAt": _TIME,
                "authors": _STRINGS,
                "vendor": _TEXT,
                "family": _TEXT,
                "name": {"type": "string", "minLength": 1},
                "version": _TEXT,
                "title": _TEXT,
                "description": _TEXT,
                "docURL": _TEXT,
                "sourceURL": _TEXT,
                "datasetsURL": _STRINGS,
                "revision": _TEXT,
                "licenses": _STRINGS,
            },
        },
        "config": {  # "config": technical metadata, all of it optional
            "type": "object",
            "properties": {
                "architecture": _TEXT,
                "format": _TEXT,
                "paramSize": {"type": "string", "pattern": r"\d+(\.\d)?[KkMmBbTtQq]"},
                "precision": _TEXT,
                "quantization": _TEXT,
                "capabilities": {  # "capabilities"
                    "type": "object",
                    "properties": {
                        "inputTypes": _MODALITIES,
                        "outputTypes": _MODALITIES,
                        "knowledgeCutoff": _TIME,
                        "reasoning": {"type": "boolean"},
                        "toolUsage": {"type": "boolean"},
                        "reward": {"type": "boolean"},
                        "languages": {"type": "array", "items": {"type": "string", "pattern": r"[a-z]{2}"}},
                    },
                },
            },
        },
        "modelfs": {  # "modelfs": type must be "layers"; one diff id per layer, in order
            "type": "object",
            "required": ["type", "diffIds"],
            "properties": {
                "type": {"type": "string", "enum": ["layers"]},
                "diffIds": {
                    "type": "array",
                    "minItems": 1,
                    "items": {"type": "string", "pattern": r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}"},
                },
            },
        },
    },
}

_TYPES: Final[Mapping[str, type]] = {"object": dict, "array": list, "string": str, "boolean": bool}


def config_violations(document: object) -> tuple[str, ...]:
    """List everything in a parsed config that breaks the specification; unknown properties are left alone."""
    return tuple(_violations(document, CONFIG_SCHEMA, "config"))


def _violations(value: object, schema: Mapping[str, Any], where: str) -> list[str]:
    kind = str(schema["type"])
    if not isinstance(value, _TYPES[kind]):
        return [f"{where}: want {kind}, got {type(value).__name__}"]
    if isinstance(value, str):
        return _text_violations(value, schema, where)
    if isinstance(value, list):
        return _list_violations(value, schema, where)
    if isinstance(value, dict):
        return _object_violations(value, schema, where)
    return []


def _object_violations(value: dict[str, object], schema: Mapping[str, Any], where: str) -> list[str]:
    found = [f"{where}.{name}: want it, got nothing" for name in schema.get("required", ()) if name not in value]
    for name, part in schema["properties"].items():
        if name in value:
            found += _violations(value[name], part, f"{where}.{name}")
    return found


def _list_violations(value: list[object], schema: Mapping[str, Any], where: str) -> list[str]:
    least = int(schema.get("minItems", 0))
    found = [] if len(value) >= least else [f"{where}: want at least {least} items, got {len(value)}"]
    for index, item in enumerate(value):
        found += _violations(item, schema["items"], f"{where}[{index}]")
    return found


def _text_violations(value: str, schema: Mapping[str, Any], where: str) -> list[str]:
    if "enum" in schema and value not in schema["enum"]:
        return [f"{where}: want one of {', '.join(schema['enum'])}, got {value[:80]!r}"]
    if "pattern" in schema and not re.fullmatch(schema["pattern"], value):
        return [f"{where}: want {schema['pattern']}, got {value[:80]!r}"]
    if len(value) < int(schema.get("minLength", 0)):
        return [f"{where}: want text, got an empty string"]
    return []
