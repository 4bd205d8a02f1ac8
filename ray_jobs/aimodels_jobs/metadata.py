"""What a model is, for `status.resolved`: read from its documents and headers, and from what its source declares. Pure.

What goes into the artifact's config comes from `recipe`, which is frozen; rules may improve here.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

from aimodels_core.modelpack import ConfigFacts
from aimodels_jobs import quants, recipe, shards, tasks
from aimodels_jobs.headers_gguf import GgufHeader
from aimodels_jobs.headers_safetensors import SafetensorsHeader
from aimodels_jobs.recipe import Header
from aimodels_jobs.selection import Format, Selection

_CONTEXT_KEYS = (
    *("max_position_embeddings", "model_max_length", "max_sequence_length", "max_seq_len", "seq_length"),
    *("n_positions", "n_ctx"),
)
_TEXT_CONFIGS = ("text_config", "llm_config", "language_config")
_ARCHITECTURE_SUFFIXES = (
    *("ForCausalLM", "ForConditionalGeneration", "ForSequenceClassification", "ForTokenClassification"),
    *("ForQuestionAnswering", "ForMaskedLM", "Model"),
)
_MAX_TOKENS = 2**40


@dataclasses.dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of a model; empty or None where nothing is.

    Args:
        format: one of `Format`.
        family: such as `qwen2`.
        architecture: such as `Qwen2ForCausalLM`.
        parameter_count: counted in the headers.
        quantization: such as `gptq-4bit`, `Q4_K_M`.
        precision: such as `bf16`; not shown in status.
        context_window_tokens: what the model was made for.
        tasks: what the source declares.
        endpoint_types: sorted, of the closed set of design 2.1.
        features: sorted, of the closed set of design 2.1.
        license: what the source declares.
        config: what the artifact's config says, from the files alone.
    """

    format: Format
    family: str = ""
    architecture: str = ""
    parameter_count: int | None = None
    quantization: str = ""
    precision: str = ""
    context_window_tokens: int | None = None
    tasks: tuple[str, ...] = ()
    endpoint_types: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    license: str = ""
    config: ConfigFacts = dataclasses.field(default_factory=ConfigFacts)

    @property
    def partial(self) -> bool:
        """Whether something that every model has could not be found out (reason ModelMetadataPartial)."""
        return not (self.family and self.architecture and self.parameter_count and self.endpoint_types)

    def to_config(self) -> ConfigFacts:
        """What goes into the artifact's config."""
        return self.config

    def to_status(self, provider: str = "") -> dict[str, Any]:
        """Render `status.resolved`; what is not known is left out.

        Args:
            provider: the kind of the source, such as `HuggingFace`.
        """
        capabilities = {"provider": provider, "tasks": list(self.tasks)}
        fields = {
            "format": self.format.value,
            "family": self.family,
            "architecture": self.architecture,
            "quantization": self.quantization,
            "parameterCount": self.parameter_count,
            "contextWindowTokens": self.context_window_tokens,
            "supportedEndpointTypes": list(self.endpoint_types),
            "supportedFeatures": list(self.features),
            "sourceCapabilities": {name: value for name, value in capabilities.items() if value},
        }
        return {name: value for name, value in fields.items() if value}


def describe(
    selection: Selection, read: Mapping[str, bytes], parsed: Mapping[str, Header], facts: Mapping[str, str]
) -> ModelFacts:
    """Say what a model is.

    Args:
        selection: what is published.
        read: path → bytes of its `config_paths`.
        parsed: path → header of its weight files that have one.
        facts: what the source declares: `pipeline_tag`, `license`.

    Raises:
        UnsafeContent: codes LfsPointer, ConfigInvalid: the entry is no JSON object.
    """
    entry = recipe.entry_document(selection.entry, read)
    base = recipe.config_facts(selection.format, entry, parsed)
    if selection.format is Format.GGUF:
        found = _gguf(selection, base, parsed)
    elif selection.format is Format.DIFFUSERS:
        found = _diffusers(base, parsed)
    else:
        found = _transformers(selection.format, base, entry, sentences="modules.json" in selection.paths)
    templates = [*_templates(read), *_gguf_templates(parsed)]
    return _with_tasks(found, facts, entry, tools=tasks.calls_tools(templates))


def _transformers(what: Format, base: ConfigFacts, config: Mapping[str, Any], *, sentences: bool) -> ModelFacts:
    task = tasks.of_transformer(config, base.architecture, sentences=sentences)
    return ModelFacts(
        format=what,
        family=base.family or _stem(base.architecture).lower(),
        architecture=base.architecture,
        parameter_count=base.parameters or None,
        quantization=base.quantization,
        precision=base.precision or _declared_precision(config),
        context_window_tokens=_context(config),
        tasks=(task,) if task else (),
        config=base,
    )


def _stem(architecture: str) -> str:
    for suffix in _ARCHITECTURE_SUFFIXES:
        architecture = architecture.removesuffix(suffix)
    return architecture


def _declared_precision(config: Mapping[str, Any]) -> str:
    name = recipe.text(config.get("dtype") or config.get("torch_dtype")).removeprefix("torch.")
    return {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32"}.get(name, "")


def _context(config: Mapping[str, Any]) -> int | None:
    """Find the context window: text configs before the top level, nested ones of a thinker too."""
    thinker = config.get("thinker_config")
    outer = [config, *([thinker] if isinstance(thinker, dict) else [])]
    inner = [part for whole in outer for key in _TEXT_CONFIGS if isinstance(part := whole.get(key), dict)]
    for part in (*inner, *outer):
        for key in _CONTEXT_KEYS:
            value = part.get(key)
            if type(value) is int and 0 < value < _MAX_TOKENS:
                return value
    return None


def _gguf(selection: Selection, base: ConfigFacts, parsed: Mapping[str, Header]) -> ModelFacts:
    models = recipe.gguf_models(parsed)
    named = quants.quant_of(selection.entry)
    floating = named in {"F32", "F16", "BF16", "FP16", "FP32"}
    found = ModelFacts(
        format=Format.GGUF,
        family=base.family.lower(),
        architecture=base.architecture,
        parameter_count=base.parameters or None,
        quantization=base.quantization or ("" if floating or base.precision else named),
        precision=base.precision,
        config=base,
    )
    if not models:
        return found
    projectors = [header for header in parsed.values() if isinstance(header, GgufHeader) and header not in models]
    context = models[0].number(f"{base.architecture}.context_length")
    return dataclasses.replace(
        found,
        context_window_tokens=context if context and context < _MAX_TOKENS else None,
        tasks=tuple(filter(None, [_gguf_task(models[0], projectors)])),
    )


def _gguf_task(model: GgufHeader, projectors: Iterable[GgufHeader]) -> str:
    pooling = model.number(f"{model.architecture}.pooling_type")
    if pooling == 4:
        return "rerank"
    if pooling or any(name in model.architecture for name in tasks.ENCODER_ARCHITECTURES):
        return "feature-extraction"
    for projector in projectors:
        heard = projector.values.get("clip.has_audio_encoder") is True
        seen = projector.values.get("clip.has_vision_encoder") is not False
        return "audio-text-to-text" if heard and not seen else "image-text-to-text"
    return "text-generation" if model.architecture else ""


def _diffusers(base: ConfigFacts, parsed: Mapping[str, Header]) -> ModelFacts:
    folders = {shards.split(path)[0].partition("/")[0] for path in parsed}
    denoiser = {"unet", "transformer", "prior"} & folders
    counted = [
        tensor.elements
        for path, header in parsed.items()
        if isinstance(header, SafetensorsHeader) and path.partition("/")[0] in denoiser
        for tensor in header.tensors
    ]
    task = tasks.of_pipeline(base.architecture)
    return ModelFacts(
        format=Format.DIFFUSERS,
        family=tasks.family_of_pipeline(base.architecture),
        architecture=base.architecture,
        parameter_count=sum(counted) or None,
        precision=base.precision,
        tasks=(task,) if task else (),
        config=base,
    )


def _templates(read: Mapping[str, bytes]) -> list[str]:
    """Find chat templates in all their homes; what cannot be read is no template."""
    found = []
    for path, data in read.items():
        if path.endswith(".jinja"):
            found.append(data.decode("utf-8", "replace"))
        elif path in {"tokenizer_config.json", "processor_config.json", "chat_template.json"}:
            found += _template_texts(_loose(data).get("chat_template"))
    return found


def _loose(data: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _template_texts(value: object) -> list[str]:
    """Take a template that is one text, a list of named ones, or a map of them."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [item for item in value.values() if isinstance(item, str)]
    parts = value if isinstance(value, list) else []
    return [item["template"] for item in parts if isinstance(item, dict) and isinstance(item.get("template"), str)]


def _gguf_templates(parsed: Mapping[str, Header]) -> list[str]:
    headers = [header for header in parsed.values() if isinstance(header, GgufHeader)]
    return [
        value
        for header in headers
        for key, value in header.values.items()
        if key.startswith("tokenizer.chat_template") and isinstance(value, str)
    ]


def _with_tasks(found: ModelFacts, facts: Mapping[str, str], entry: Mapping[str, Any], *, tools: bool) -> ModelFacts:
    """Decide the task: what the source declares, else what was inferred; then endpoints and features."""
    tag = facts.get("pipeline_tag", "").strip().lower()
    inferred = found.tasks[0] if found.tasks else ""
    task = tasks.declared(tag) or inferred
    endpoints, features = tasks.TASKS.get(task, ((), ()))
    likely, seen = tasks.TASKS.get(inferred, ((), ()))
    more = seen if "Chat" in endpoints and "Chat" in likely else ()
    every = {*features, *more, *_senses(found, entry, endpoints)}
    if tools and "Chat" in endpoints:
        every.add("ToolCalling")
    return dataclasses.replace(
        found,
        tasks=(tag,) if tag else (),
        endpoint_types=tuple(sorted(endpoints)),
        features=tuple(sorted(every)),
        license=facts.get("license", "")[: recipe.MAX_TEXT_CHARS],
    )


def _senses(found: ModelFacts, entry: Mapping[str, Any], endpoints: Iterable[str]) -> set[str]:
    """Add what a chatting model's config shows that its task does not say."""
    if "Chat" not in endpoints or found.format not in {Format.SAFETENSORS, Format.PYTORCH}:
        return set()
    senses = {"VisionInput", "MultiModalInput"} if tasks.sees(entry, found.architecture) else set()
    return senses | ({"AudioInput", "MultiModalInput"} if tasks.hears(entry) else set())
