"""What a model can do: tasks, endpoint types and features, as tables and the rules that read them. Pure.

Source of the names: design 2.1 (`supportedEndpointTypes`, `supportedFeatures` are closed sets).
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

Row = tuple[tuple[str, ...], tuple[str, ...]]

_CHAT: Row = (("Chat", "TextGeneration"), ())
_EMBED: Row = (("Embeddings",), ())
_RERANK: Row = (("Rerank",), ())
_LISTEN: Row = (("SpeechToText",), ("AudioInput",))
_SOUND: Row = (("AudioGeneration",), ("AudioOutput",))
_DETECT: Row = (("ObjectDetection",), ("VisionInput",))
_CLASSIFY: Row = (("ImageClassification",), ("VisionInput",))
_SEE: Row = (("Chat", "ImageToText"), ("VisionInput", "MultiModalInput"))
_ASK: Row = (("VisualQuestionAnswering",), ("VisionInput", "MultiModalInput"))
_PAINT: Row = (("ImageGeneration",), ("ImageOutput",))
_REPAINT: Row = (("ImageGeneration",), ("VisionInput", "ImageOutput"))
_FILM: Row = (("VideoGeneration",), ("VideoOutput",))

# Task → endpoint types and features.
TASKS: Mapping[str, Row] = {
    **dict.fromkeys(("text-generation", "text2text-generation", "summarization", "conversational"), _CHAT),
    **dict.fromkeys(("feature-extraction", "embeddings", "text-embeddings-inference", "sentence-similarity"), _EMBED),
    **dict.fromkeys(("rerank", "reranker", "text-ranking"), _RERANK),
    **dict.fromkeys(("automatic-speech-recognition", "speech-to-text"), _LISTEN),
    "text-to-speech": (("TextToSpeech",), ("AudioOutput",)),
    **dict.fromkeys(("text-to-audio", "text-to-music", "audio-generation"), _SOUND),
    "translation": (("Translation",), ()),
    **dict.fromkeys(("image-classification", "zero-shot-image-classification"), _CLASSIFY),
    **dict.fromkeys(("object-detection", "zero-shot-object-detection"), _DETECT),
    "image-segmentation": (("ImageSegmentation",), ("VisionInput",)),
    **dict.fromkeys(("image-to-text", "image-text-to-text"), _SEE),
    "audio-text-to-text": (("Chat",), ("AudioInput", "MultiModalInput")),
    "video-text-to-text": (("Chat",), ("VideoInput", "MultiModalInput")),
    **dict.fromkeys(("visual-question-answering", "document-question-answering"), _ASK),
    **dict.fromkeys(("text-to-image", "image-generation", "unconditional-image-generation"), _PAINT),
    **dict.fromkeys(("image-to-image", "image-variation", "inpainting", "image-inpainting"), _REPAINT),
    **dict.fromkeys(("text-to-video", "video-generation"), _FILM),
    "image-to-video": (("VideoGeneration",), ("VisionInput", "VideoOutput")),
    "video-to-video": (("VideoGeneration",), ("VideoInput", "VideoOutput")),
}

_SYNONYMS = {
    **dict.fromkeys(("reranking", "text-ranking", "reranker"), "rerank"),
    **dict.fromkeys(("semantic-textual-similarity", "sts"), "sentence-similarity"),
}
_TRANSLATION = re.compile(r"translation[-_][a-z]+[-_]to[-_][a-z]+")

# The suffix of an architecture decides before its family (a Qwen2ForSequenceClassification does not chat).
_SUFFIXES = (
    (("ForCausalLM", "LMHeadModel", "ForCausalLMWithValueHead"), "text-generation"),
    (("ForSequenceClassification",), "text-classification"),
    (("ForTokenClassification",), "token-classification"),
    (("ForQuestionAnswering",), "question-answering"),
    (("ForMaskedLM", "ForPreTraining"), "fill-mask"),
    (("ForSpeechSeq2Seq", "ForCTC", "ForRNNT", "ForTDT"), "automatic-speech-recognition"),
    (("ForTextToSpeech", "ForTextToWaveform", "ForTextToSpectrogram"), "text-to-speech"),
    (("ForImageClassification",), "image-classification"),
    (("ForObjectDetection",), "object-detection"),
    (("ForSemanticSegmentation", "ForUniversalSegmentation", "ForInstanceSegmentation"), "image-segmentation"),
    (("ForVision2Seq", "ForImageTextToText", "VisionEncoderDecoderModel"), "image-text-to-text"),
    (("ForAudioClassification",), "audio-classification"),
    (("ForDepthEstimation",), "depth-estimation"),
    (("ForImageToImage",), "image-to-image"),
)
_SPEECH = frozenset({"whisper", "speech_to_text", "speech_to_text_2", "moonshine", "parakeet", "granite_speech"})
_VOICES = frozenset({"vits", "speecht5", "bark", "csm", "dia", "parler_tts", "xtts"})
_TRANSLATORS = frozenset({"marian", "m2m_100", "nllb-moe", "seamless_m4t", "fsmt"})
_AUTO = (
    ("AutoModelForCausalLM", "text-generation"),
    ("AutoModelForSeq2SeqLM", "text2text-generation"),
    ("AutoModelForSequenceClassification", "text-classification"),
)
_VISION_KEYS = ("vision_config", "visual_config", "vision_tower", "image_token_index", "image_token_id", "visual")
_AUDIO_KEYS = ("audio_config", "audio_token_index", "audio_token_id", "speech_config")

_PIPELINES = (
    ("image-to-video", ("imagetovideo", "image2video", "stablevideodiffusion")),
    ("video-to-video", ("videotovideo", "video2video")),
    ("text-to-video", ("texttovideo", "text2video", "wanpipeline", "cogvideox", "hunyuanvideo", "ltx", "mochi")),
    ("inpainting", ("inpaint",)),
    ("image-to-image", ("img2img", "imagetoimage", "imageedit", "kontext", "upscale", "pix2pix")),
    ("text-to-audio", ("audioldm", "audiogen", "musicldm", "stableaudio")),
    (
        "text-to-image",
        (
            *("texttoimage", "text2image", "stablediffusion", "stablecascade", "flux", "pixart", "kandinsky", "sana"),
            *("hunyuandit", "auraflow", "lumina", "qwenimage", "chroma", "latentconsistency", "wuerstchen", "cogview"),
            *("zimage", "hidream", "omnigen", "bria", "kolors"),
        ),
    ),
)
_PIPELINE_FAMILIES = (
    ("stable-diffusion", ("stablediffusion", "stablevideodiffusion")),
    ("flux", ("flux",)),
    ("cogvideo", ("cogvideo",)),
    ("hunyuan-dit", ("hunyuandit",)),
    ("hunyuan-video", ("hunyuanvideo",)),
    ("wan", ("wanpipeline", "wanimage", "wanvideo")),
    ("audioldm", ("audioldm",)),
    ("pixart", ("pixart",)),
    ("kandinsky", ("kandinsky",)),
    ("ltx-video", ("ltx",)),
    ("auraflow", ("auraflow",)),
    ("sana", ("sana",)),
    ("qwen-image", ("qwenimage",)),
)
_TOOL_MARKS = ("if tools", "tools is defined", "tools is not none", "for tool in tools", "<tools>", "tool_call")

ENCODER_ARCHITECTURES = ("bert", "t5encoder", "gemma-embedding", "llama-embed")


def declared(tag: str) -> str:
    """Normalise the task that a source declares; empty when it is not one with endpoints of its own.

    >>> [declared(tag) for tag in ("Text_Ranking", "translation_en_to_de", "fill-mask")]
    ['rerank', 'translation', '']
    """
    name = tag.strip().lower().replace("_", "-").replace(" ", "-")
    name = "translation" if _TRANSLATION.fullmatch(name) else _SYNONYMS.get(name, name)
    return name if name in TASKS else ""


def sees(config: Mapping[str, Any], architecture: str) -> bool:
    """Say whether a model takes images."""
    nested = config.get("thinker_config")
    inner = nested if isinstance(nested, dict) else {}
    return "vision" in architecture.lower() or any(key in config or key in inner for key in _VISION_KEYS)


def hears(config: Mapping[str, Any]) -> bool:
    """Say whether a model takes sound beside text."""
    nested = config.get("thinker_config")
    inner = nested if isinstance(nested, dict) else {}
    return any(key in config or key in inner for key in _AUDIO_KEYS)


def of_transformer(config: Mapping[str, Any], architecture: str, *, sentences: bool) -> str:
    """Infer the task of a model of the transformers kind: suffix, then family, then the bare encoder.

    Args:
        config: `config.json`.
        architecture: the first of its architectures.
        sentences: whether the model is a sentence-transformers one (`modules.json`).
    """
    family = str(config.get("model_type", "")).lower()
    if sentences:
        return "sentence-similarity"
    for suffixes, task in _SUFFIXES:
        if architecture.endswith(suffixes):
            return "image-text-to-text" if task == "text-generation" and sees(config, architecture) else task
    for families, task in (
        (_SPEECH, "automatic-speech-recognition"),
        (_VOICES, "text-to-speech"),
        (_TRANSLATORS, "translation"),
    ):
        if family in families:
            return task
    if architecture.endswith("ForConditionalGeneration"):
        return _conditional(config, architecture)
    return _bare(config, architecture)


def _conditional(config: Mapping[str, Any], architecture: str) -> str:
    if sees(config, architecture):
        return "image-text-to-text"
    return "audio-text-to-text" if hears(config) else "text2text-generation"


def _bare(config: Mapping[str, Any], architecture: str) -> str:
    auto_map = config.get("auto_map")
    for name, task in _AUTO:
        if isinstance(auto_map, dict) and name in auto_map:
            return task
    return "feature-extraction" if architecture.endswith("Model") and not sees(config, architecture) else ""


def of_pipeline(class_name: str) -> str:
    """Infer the task of a diffusers pipeline from its class."""
    return _first(_PIPELINES, class_name)


def family_of_pipeline(class_name: str) -> str:
    """Infer the family of a diffusers pipeline from its class."""
    return _first(_PIPELINE_FAMILIES, class_name)


def _first(rules: Iterable[tuple[str, tuple[str, ...]]], class_name: str) -> str:
    name = re.sub(r"[-_ .]", "", class_name.lower())
    return next((answer for answer, tokens in rules if any(token in name for token in tokens)), "")


def calls_tools(templates: Iterable[str]) -> bool:
    """Say whether any chat template speaks of tools."""
    return any(mark in template.lower() for template in templates for mark in _TOOL_MARKS)
