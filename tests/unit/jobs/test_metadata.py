"""What a model is, read from its documents, its headers and what its source declares."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from aimodels_core.errors import UnsafeContent
from aimodels_core.source import SourceFile
from aimodels_jobs import formats, metadata, tasks
from aimodels_jobs.headers import Tensor
from aimodels_jobs.headers_gguf import GgufHeader, Value
from aimodels_jobs.headers_safetensors import SafetensorsHeader
from aimodels_jobs.metadata import ModelFacts
from aimodels_jobs.recipe import Header

ENDPOINTS = {
    *("Chat", "TextGeneration", "Embeddings", "Rerank", "SpeechToText", "TextToSpeech", "Translation"),
    *("ImageClassification", "ObjectDetection", "ImageSegmentation", "ImageToText", "VisualQuestionAnswering"),
    *("ImageGeneration", "VideoGeneration", "AudioGeneration"),
}
FEATURES = {
    *("VisionInput", "AudioInput", "AudioOutput", "ImageOutput", "VideoInput", "VideoOutput", "MultiModalInput"),
    "ToolCalling",
}


def header(**elements: tuple[str, int]) -> SafetensorsHeader:
    """A header of tensors named by keyword, `__` for a dot."""
    found = [Tensor(name.replace("__", "."), dtype, count, 0, 0) for name, (dtype, count) in elements.items()]
    return SafetensorsHeader(tuple(found), {}, 8)


def gguf(values: Mapping[str, Value], elements: int = 10) -> GgufHeader:
    return GgufHeader(3, False, 32, values, {}, (Tensor("t", "Q4_K", elements, 0, 0),), 32)


def described(
    documents: Mapping[str, Any],
    weights: Mapping[str, Header] | None = None,
    *,
    tag: str = "",
    paths: Sequence[str] = (),
) -> ModelFacts:
    """Describe a model of these documents (JSON, or bytes) and headers."""
    weights = weights if weights is not None else {"model.safetensors": header(w=("BF16", 100))}
    listing = [SourceFile(path, 10) for path in dict.fromkeys([*documents, *weights, *paths])]
    selection = formats.select(listing)
    read = {
        path: value if isinstance(value, bytes) else json.dumps(value).encode() for path, value in documents.items()
    }
    return metadata.describe(selection, read, weights, {"pipeline_tag": tag, "license": "mit"} if tag else {})


def of_config(
    config: Mapping[str, Any], elements: Mapping[str, tuple[str, int]] | None = None, *, tag: str = ""
) -> ModelFacts:
    weights = {"model.safetensors": header(**(elements or {"w": ("BF16", 100)}))}
    return described({"config.json": config}, weights, tag=tag)


def test_a_chat_model_is_described_in_full() -> None:
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "max_position_embeddings": 32768,
        "torch_dtype": "bfloat16",
    }
    found = described(
        {"config.json": config, "tokenizer_config.json": {"chat_template": "{%- if tools %}…"}},
        {"model.safetensors": header(a=("BF16", 7), b=("BF16", 5))},
        tag="text-generation",
    )

    assert found.to_status("HuggingFace") == {
        "format": "Safetensors",
        "family": "qwen2",
        "architecture": "Qwen2ForCausalLM",
        "parameterCount": 12,
        "contextWindowTokens": 32768,
        "supportedEndpointTypes": ["Chat", "TextGeneration"],
        "supportedFeatures": ["ToolCalling"],
        "sourceCapabilities": {"provider": "HuggingFace", "tasks": ["text-generation"]},
    }
    assert (found.precision, found.license, found.partial) == ("bf16", "mit", False)


@pytest.mark.parametrize(
    ("architecture", "family", "endpoints"),
    [
        ("Qwen2ForCausalLM", "qwen2", {"Chat", "TextGeneration"}),
        ("GPT2LMHeadModel", "gpt2", {"Chat", "TextGeneration"}),
        ("Qwen2ForSequenceClassification", "qwen2", set()),
        ("LlamaForTokenClassification", "llama", set()),
        ("BertForMaskedLM", "bert", set()),
        ("BertModel", "bert", {"Embeddings"}),
        ("LlamaModel", "llama", {"Embeddings"}),
        ("T5ForConditionalGeneration", "t5", {"Chat", "TextGeneration"}),
        ("WhisperForConditionalGeneration", "whisper", {"SpeechToText"}),
        ("Wav2Vec2ForCTC", "wav2vec2", {"SpeechToText"}),
        ("MarianMTModel", "marian", {"Translation"}),
        ("VitsModel", "vits", {"TextToSpeech"}),
        ("ViTForImageClassification", "vit", {"ImageClassification"}),
        ("DetrForObjectDetection", "detr", {"ObjectDetection"}),
        ("SegformerForSemanticSegmentation", "segformer", {"ImageSegmentation"}),
    ],
)
def test_the_suffix_decides_before_the_family(architecture: str, family: str, endpoints: set[str]) -> None:
    found = of_config({"architectures": [architecture], "model_type": family})

    assert set(found.endpoint_types) == endpoints


@pytest.mark.parametrize("key", ["vision_config", "visual", "image_token_id"])
def test_a_model_that_sees_is_told_by_its_config(key: str) -> None:
    found = of_config({"architectures": ["XForConditionalGeneration"], "model_type": "x", key: {"a": 1}})

    assert found.endpoint_types == ("Chat", "ImageToText")
    assert found.features == ("MultiModalInput", "VisionInput")


def test_any_to_any_is_told_by_the_config() -> None:
    config = {
        "architectures": ["Qwen2_5OmniForConditionalGeneration"],
        "thinker_config": {"vision_config": {}, "audio_config": {}, "text_config": {"max_position_embeddings": 99}},
    }
    found = of_config(config, tag="any-to-any")

    assert found.endpoint_types == ("Chat", "ImageToText")
    assert found.features == ("AudioInput", "MultiModalInput", "VisionInput")
    assert found.context_window_tokens == 99
    assert found.tasks == ("any-to-any",)


def test_a_model_that_only_hears_chats_about_sound() -> None:
    found = of_config({"architectures": ["Qwen2AudioForConditionalGeneration"], "audio_config": {}})

    assert (found.endpoint_types, found.features) == (("Chat",), ("AudioInput", "MultiModalInput"))


def test_what_the_source_declares_wins_over_what_was_inferred() -> None:
    found = of_config({"architectures": ["XLMRobertaForSequenceClassification"]}, tag="text-ranking")

    assert found.endpoint_types == ("Rerank",)


def test_sentence_transformers_embed() -> None:
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    found = described({"config.json": config, "modules.json": b"[]"})

    assert found.endpoint_types == ("Embeddings",)


def test_the_context_window_of_the_text_part_comes_first() -> None:
    config = {"max_position_embeddings": 8, "text_config": {"max_position_embeddings": 131072}}

    assert of_config(config).context_window_tokens == 131072
    assert of_config({"n_positions": 1024}).context_window_tokens == 1024
    assert of_config({"max_position_embeddings": True}).context_window_tokens is None
    assert of_config({"max_position_embeddings": 10**30}).context_window_tokens is None


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"quant_method": "gptq", "bits": 4}, "gptq-4bit"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes-4bit"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"load_in_8bit": True}, "8bit"),
        ({}, ""),
        ("x", ""),
    ],
)
def test_a_declared_quantisation_is_named(config: Any, name: str) -> None:
    assert of_config({"quantization_config": config}).quantization == name


@pytest.mark.parametrize(
    ("config", "elements", "count"),
    [
        pytest.param(None, {"w": ("F32", 10), "embeddings__position_ids": ("I64", 512)}, 10, id="plain"),
        pytest.param(
            {"quant_method": "gptq", "bits": 4},
            {"l__qweight": ("I32", 100), "l__qzeros": ("I32", 9), "l__scales": ("F16", 9), "n__weight": ("F16", 7)},
            807,
            id="gptq",
        ),
        pytest.param(
            {"quant_method": "bitsandbytes", "load_in_4bit": True},
            {"l__weight": ("U8", 50), "l__weight__absmax": ("F32", 2), "l__weight__quant_state__bnb": ("U8", 80)},
            100,
            id="bitsandbytes",
        ),
        pytest.param(
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8}}}},
            {"l__weight_packed": ("I32", 10), "l__weight_scale": ("BF16", 3), "l__weight_shape": ("I64", 2)},
            40,
            id="compressed-tensors",
        ),
        pytest.param(
            {"quant_method": "fp8"},
            {"l__weight": ("F8_E4M3", 64), "l__weight_scale_inv": ("F32", 1)},
            64,
            id="fp8",
        ),
        pytest.param({"quant_method": "mxfp4"}, {"l_blocks": ("U8", 16), "l_scales": ("U8", 1)}, 32, id="mxfp4"),
    ],
)
def test_parameters_are_counted_in_the_headers(config: Any, elements: dict[str, tuple[str, int]], count: int) -> None:
    document = {"quantization_config": config} if config else {}

    assert of_config(document, elements).parameter_count == count


@pytest.mark.parametrize(
    ("elements", "precision"),
    [
        ({"a": ("BF16", 1), "b": ("I64", 1)}, "bf16"),
        ({"a": ("F16", 1), "b": ("F32", 1)}, "mixed"),
        ({"a": ("F8_E4M3", 1)}, "f8_e4m3"),
        ({"a": ("I8", 1)}, "int8"),
        ({"a": ("F32", 0), "b": ("F16", 1)}, "fp16"),
    ],
)
def test_precision_comes_from_the_headers(elements: dict[str, tuple[str, int]], precision: str) -> None:
    assert of_config({}, elements).precision == precision


TOOLS = "{%- for tool in tools %}"


@pytest.mark.parametrize(
    "home",
    [
        pytest.param({"tokenizer_config.json": {"chat_template": TOOLS}}, id="text"),
        pytest.param(
            {"tokenizer_config.json": {"chat_template": [{"name": "default", "template": "x"}, {"template": TOOLS}]}},
            id="list",
        ),
        pytest.param({"chat_template.json": {"chat_template": TOOLS}}, id="json"),
        pytest.param({"chat_template.jinja": TOOLS.encode()}, id="jinja"),
        pytest.param({"processor_config.json": {"chat_template": {"default": TOOLS}}}, id="processor"),
        pytest.param({"additional_chat_templates/tool_use.jinja": TOOLS.encode()}, id="additional"),
    ],
)
def test_tools_are_found_in_every_home_of_a_template(home: dict[str, Any]) -> None:
    config = {"config.json": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}}

    assert described(config | home).features == ("ToolCalling",)
    assert described(config).features == ()


@pytest.mark.parametrize("data", [b"{", b"[]", b"\xff", b"[" * 50_000, b'{"chat_template": 1}'])
def test_a_broken_tokenizer_config_only_lacks_a_template(data: bytes) -> None:
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}

    assert described({"config.json": config, "tokenizer_config.json": data}).features == ()


@pytest.mark.parametrize("data", [b"{", b"[]", b"[" * 50_000])
def test_a_broken_config_is_refused(data: bytes) -> None:
    with pytest.raises(UnsafeContent, match="ConfigInvalid"):
        described({"config.json": data})


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": "X", "model_type": 3},
        {"architectures": [None, 1], "model_type": ["x"]},
        {"architectures": ["x" * 1000], "model_type": "a\x00b"},
        {"auto_map": [], "text_config": [], "quantization_config": {"bits": True, "quant_method": {}}},
    ],
)
def test_odd_values_in_a_config_are_not_taken(config: dict[str, Any]) -> None:
    found = of_config(config)

    assert (found.family, found.architecture, found.quantization) == ("", "", "")
    assert found.partial


def test_code_of_the_model_tells_its_task() -> None:
    config = {"architectures": ["ChatGLMModel"], "auto_map": {"AutoModelForCausalLM": "modeling_chatglm.X"}}

    assert of_config(config).endpoint_types == ("Chat", "TextGeneration")


# GGUF


LLAMA: dict[str, Value] = {
    "general.architecture": "llama",
    "llama.context_length": 8192,
    "general.file_type": 15,
    "tokenizer.chat_template": TOOLS,
}


def test_a_gguf_is_described_by_its_header() -> None:
    found = described({}, {"m-Q4_K_M.gguf": gguf(LLAMA, 1000)})

    assert found.to_status() == {
        "format": "GGUF",
        "family": "llama",
        "architecture": "llama",
        "quantization": "Q4_K_M",
        "parameterCount": 1000,
        "contextWindowTokens": 8192,
        "supportedEndpointTypes": ["Chat", "TextGeneration"],
        "supportedFeatures": ["ToolCalling"],
    }


def test_a_split_gguf_counts_all_its_shards() -> None:
    shards = {"m-00001-of-00002.gguf": gguf(LLAMA, 600), "m-00002-of-00002.gguf": gguf({}, 400)}

    assert described({}, shards).parameter_count == 1000


def test_a_projector_makes_a_gguf_see_and_counts_no_parameters() -> None:
    found = described({}, {"m-Q4_K_M.gguf": gguf(LLAMA), "mmproj-F16.gguf": gguf({"general.architecture": "clip"}, 99)})

    assert found.parameter_count == 10
    assert found.features == ("MultiModalInput", "ToolCalling", "VisionInput")


@pytest.mark.parametrize(
    ("values", "endpoints"),
    [
        ({"general.architecture": "nomic-bert"}, ("Embeddings",)),
        ({"general.architecture": "qwen3", "qwen3.pooling_type": 3}, ("Embeddings",)),
        ({"general.architecture": "qwen3", "qwen3.pooling_type": 4}, ("Rerank",)),
        ({"general.architecture": "qwen3", "qwen3.pooling_type": 0}, ("Chat", "TextGeneration")),
        ({}, ()),
    ],
)
def test_a_gguf_tells_its_task(values: dict[str, Value], endpoints: tuple[str, ...]) -> None:
    assert described({}, {"m.gguf": gguf(values)}).endpoint_types == endpoints


@pytest.mark.parametrize(("name", "quantization"), [("m-IQ4_XS.gguf", "IQ4_XS"), ("m-BF16.gguf", ""), ("m.gguf", "")])
def test_the_name_tells_the_quantisation_where_the_header_does_not(name: str, quantization: str) -> None:
    assert described({}, {name: gguf({"general.architecture": "llama"})}).quantization == quantization


def test_half_precision_is_no_quantisation() -> None:
    found = described({}, {"m-F16.gguf": gguf({"general.architecture": "llama", "general.file_type": 1})})

    assert (found.quantization, found.precision) == ("", "fp16")


# Diffusers


@pytest.mark.parametrize(
    ("name", "family", "endpoint"),
    [
        ("StableDiffusionPipeline", "stable-diffusion", "ImageGeneration"),
        ("StableDiffusion3Pipeline", "stable-diffusion", "ImageGeneration"),
        ("StableDiffusionXLImg2ImgPipeline", "stable-diffusion", "ImageGeneration"),
        ("StableVideoDiffusionPipeline", "stable-diffusion", "VideoGeneration"),
        ("FluxPipeline", "flux", "ImageGeneration"),
        ("HunyuanDiTPipeline", "hunyuan-dit", "ImageGeneration"),
        ("HunyuanVideoPipeline", "hunyuan-video", "VideoGeneration"),
        ("WanPipeline", "wan", "VideoGeneration"),
        ("WanImageToVideoPipeline", "wan", "VideoGeneration"),
        ("CogVideoXPipeline", "cogvideo", "VideoGeneration"),
        ("LTXPipeline", "ltx-video", "VideoGeneration"),
        ("AuraFlowPipeline", "auraflow", "ImageGeneration"),
        ("SanaPipeline", "sana", "ImageGeneration"),
        ("QwenImagePipeline", "qwen-image", "ImageGeneration"),
        ("AudioLDM2Pipeline", "audioldm", "AudioGeneration"),
    ],
)
def test_a_pipeline_is_told_by_its_class(name: str, family: str, endpoint: str) -> None:
    weights = {"unet/model.safetensors": header(w=("F16", 9)), "vae/model.safetensors": header(w=("F16", 5))}
    found = described({"model_index.json": {"_class_name": name}}, weights)

    assert (found.format.value, found.architecture, found.family) == ("Diffusers", name, family)
    assert found.endpoint_types == (endpoint,)
    assert found.parameter_count == 9


def test_torch_weights_are_not_counted() -> None:
    found = described({"config.json": {"architectures": ["XLMRobertaModel"]}}, {}, paths=["pytorch_model.bin"])

    assert found.format.value == "PyTorch"
    assert (found.parameter_count, found.partial) == (None, True)


def test_endpoints_and_features_are_of_the_closed_sets() -> None:
    for endpoints, features in tasks.TASKS.values():
        assert set(endpoints) <= ENDPOINTS
        assert set(features) <= FEATURES


def test_the_config_of_the_artifact_knows_nothing_of_the_source() -> None:
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}

    assert of_config(config, tag="text-ranking").to_config() == of_config(config).to_config()
