"""Facts of the artifact's config under recipe 1: a function of the selected files alone, frozen.

The config's bytes are part of every published digest. A better rule belongs into `metadata` (status), or into a
recipe 2; never change what this module answers. `tests/golden/1` holds the answers.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from aimodels_core.modelpack import ConfigFacts
from aimodels_jobs import documents
from aimodels_jobs.headers import Tensor
from aimodels_jobs.headers_gguf import GgufHeader
from aimodels_jobs.headers_safetensors import SafetensorsHeader
from aimodels_jobs.selection import Format

Header = SafetensorsHeader | GgufHeader
MAX_TEXT_CHARS = 128

_FLOATS = {"F64": "fp64", "F32": "fp32", "F16": "fp16", "BF16": "bf16"}
_COUNTERS = ("position_ids", "num_batches_tracked")
_OF_QUANTIZATION = (
    *(".scales", ".qzeros", ".zeros", ".g_idx", "_scale", "_scales", "_scale_inv", "_zero_point", "_shape", ".SCB"),
    *(".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", "_global_scale", "_g_idx"),
)
# LLaMA file types of GGUF (docs/gguf.md, "general.file_type"): number → name.
_FILE_TYPES = (
    "0 F32,1 F16,2 Q4_0,3 Q4_1,7 Q8_0,8 Q5_0,9 Q5_1,10 Q2_K,11 Q3_K_S,12 Q3_K_M,13 Q3_K_L,14 Q4_K_S,15 Q4_K_M,"
    "16 Q5_K_S,17 Q5_K_M,18 Q6_K,19 IQ2_XXS,20 IQ2_XS,21 Q2_K_S,22 IQ3_XS,23 IQ3_XXS,24 IQ1_S,25 IQ4_NL,26 IQ3_S,"
    "27 IQ3_M,28 IQ2_S,29 IQ2_M,30 IQ4_XS,31 IQ1_M,32 BF16,36 TQ1_0,37 TQ2_0,38 MXFP4_MOE,39 NVFP4,40 Q1_0"
)
FILE_TYPES: Mapping[int, str] = {int(number): name for number, name in (row.split() for row in _FILE_TYPES.split(","))}


def config_facts(what: Format, document: Mapping[str, Any], parsed: Mapping[str, Header]) -> ConfigFacts:
    """Derive the facts of the config.

    Args:
        what: the model's format.
        document: the parsed entry (`config.json`, `model_index.json`, …); empty when the entry is no JSON.
        parsed: path → header of the selected weight files that have one.
    """
    if what is Format.GGUF:
        return _gguf(parsed)
    quantization = quantization_of(document)
    tensors = [
        tensor for header in parsed.values() if isinstance(header, SafetensorsHeader) for tensor in header.tensors
    ]
    return ConfigFacts(
        format=what.value.lower(),
        family=text(document.get("model_type")).lower(),
        architecture=_architecture(what, document),
        parameters=count_parameters(tensors, document) if what is Format.SAFETENSORS else 0,
        precision=precision_of(tensors),
        quantization=quantization,
    )


def entry_document(entry: str, read: Mapping[str, bytes]) -> Mapping[str, Any]:
    """Parse the document that names the model: its entry, else the config.json beside it; empty when there is none.

    Raises:
        UnsafeContent: codes LfsPointer, ConfigInvalid.
    """
    for path in (entry, "config.json"):
        if path in read and path.endswith(".json") and path != "modules.json":
            return documents.parse_object(path, read[path])
    return {}


def _gguf(parsed: Mapping[str, Header]) -> ConfigFacts:
    models = gguf_models(parsed)
    if not models:
        return ConfigFacts(format="gguf")
    first = models[0]
    file_type = FILE_TYPES.get(first.number("general.file_type") or 0, "")
    known = file_type if first.number("general.file_type") is not None else ""
    return ConfigFacts(
        format="gguf",
        family=text(first.architecture),
        architecture=text(first.architecture),
        parameters=sum(tensor.elements for header in models for tensor in header.tensors),
        precision={"F32": "fp32", "F16": "fp16", "BF16": "bf16"}.get(known, ""),
        quantization="" if known in {"F32", "F16", "BF16"} else known,
    )


def gguf_models(parsed: Mapping[str, Header]) -> list[GgufHeader]:
    """List the headers of the model itself, in order of path: not its projector; the first shard names the rest."""
    found = [header for _, header in sorted(parsed.items()) if isinstance(header, GgufHeader)]
    return [header for header in found if header.architecture != "clip"]


def text(value: object) -> str:
    """Take a text of sensible length from a document, else nothing."""
    return value if isinstance(value, str) and len(value) <= MAX_TEXT_CHARS and value.isprintable() else ""


def _architecture(what: Format, document: Mapping[str, Any]) -> str:
    if what is Format.DIFFUSERS:
        return text(document.get("_class_name"))
    listed = document.get("architectures")
    return next((text(item) for item in listed if text(item)), "") if isinstance(listed, list) else ""


def quantization_of(document: Mapping[str, Any]) -> str:
    """Name the quantisation that a config declares, such as `gptq-4bit`, `fp8`; empty for none.

    >>> quantization_of({"quantization_config": {"quant_method": "gptq", "bits": 4}})
    'gptq-4bit'
    """
    found = document.get("quantization_config")
    if not isinstance(found, dict):
        return ""
    method, bits = text(found.get("quant_method")), found.get("bits")
    width = f"{bits}bit" if type(bits) is int and 0 < bits <= 64 else ""
    width = width or next((f"{n}bit" for n in (4, 8) if found.get(f"load_in_{n}bit") is True), "")
    return "-".join(part for part in (method, width) if part)


def precision_of(tensors: Iterable[Tensor]) -> str:
    """Name the type of the numbers: one floating type, `mixed` for several, `int8` for bytes alone."""
    found = Counter(tensor.dtype for tensor in tensors if tensor.elements)
    floats = sorted(name for name in found if name.startswith(("F", "BF")))
    if len(floats) == 1:
        return _FLOATS.get(floats[0], floats[0].lower())
    if floats:
        return "mixed"
    return "int8" if found and set(found) <= {"I8", "U8"} else ""


def count_parameters(tensors: Iterable[Tensor], document: Mapping[str, Any]) -> int:
    """Count the parameters that tensors hold, also where a quantisation packs several into one number."""
    found = document.get("quantization_config")
    if not isinstance(found, dict):
        return sum(tensor.elements for tensor in tensors if not _counter(tensor))
    bits = _bits(found)
    return sum(tensor.elements * _packed(tensor, bits) for tensor in tensors if not _helper(tensor))


def _counter(tensor: Tensor) -> bool:
    return tensor.dtype in {"I64", "I32"} and tensor.name.endswith(_COUNTERS)


def _helper(tensor: Tensor) -> bool:
    return _counter(tensor) or tensor.name.endswith(_OF_QUANTIZATION) or ".quant_state." in tensor.name


def _bits(config: Mapping[str, Any]) -> int:
    bits = config.get("bits")
    groups = config.get("config_groups")
    if type(bits) is not int and isinstance(groups, dict):
        weights = [group.get("weights") for group in groups.values() if isinstance(group, dict)]
        bits = next((item.get("num_bits") for item in weights if isinstance(item, dict)), None)
    if config.get("load_in_8bit") is True:
        return 8
    return bits if type(bits) is int and 0 < bits <= 32 else 4


def _packed(tensor: Tensor, bits: int) -> int:
    """Say how many parameters one number of a tensor holds."""
    if tensor.dtype == "I32":
        return max(32 // bits, 1)
    return max(8 // bits, 1) if tensor.dtype == "U8" else 1
