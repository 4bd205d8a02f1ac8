"""Settings of a ModuleConfig `ai-models`, version 1, as values of the chart. Pure.

The table below says the same as values.schema.json and files/forms.yaml of charts/ai-models; a test compares them.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from aimodels_core.errors import UsageError

API_VERSION, KIND, NAME, VERSION = "deckhouse.io/v1alpha1", "ModuleConfig", "ai-models", 1
_TYPES = {"string": str, "integer": int, "boolean": bool, "array": list, "object": dict}
_SHOWN_CHARS = 80


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """What one setting may be.

    Args:
        wanted: in words.
        schema: in terms of JSON Schema.
    """

    wanted: str
    schema: Mapping[str, Any]


def _text(wanted: str, pattern: str, most: int = 0, least: int = 0) -> Setting:
    lengths = {"maxLength": most} if most else {}
    return Setting(wanted, {"type": "string", "pattern": pattern, **lengths, **({"minLength": least} if least else {})})


def _one_of(*values: str) -> Setting:
    return Setting(f"one of {', '.join(values)}", {"enum": list(values)})


def _number(wanted: str, least: int, most: int) -> Setting:
    return Setting(wanted, {"type": "integer", "minimum": least, "maximum": most})


_NAME_PATTERN = "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$"
_SECRET = _text("the name of a Secret in d8-system", _NAME_PATTERN, 253)
_CLASS = _text("the name of a StorageClass", _NAME_PATTERN, 253)
_PRIORITY = _text("the name of a PriorityClass", _NAME_PATTERN, 253)
_ENDPOINT = _text("https://<host>, without a path", r"^(https?://[^/@?#\s]+/?)?$", 2048)
_SWITCH = Setting("true or false", {"type": "boolean"})
_QUANTITY = Setting(
    "a number of bytes such as 500Gi or 1Ti",
    {
        "type": ["string", "integer"],
        "minimum": 1,
        "maxLength": 32,
        "pattern": "^([0-9]+([.][0-9]+)?([KMGTPE]i|[kMGTPE]|[eE][+]?[0-9]{1,2})?)?$",
    },
)
_SIZE = Setting(_QUANTITY.wanted, {**_QUANTITY.schema, "minLength": 1})
_NETWORKS = Setting(
    "a list of networks such as 10.1.0.0/16",
    {"type": "array", "maxItems": 64, "items": {"type": "string", "pattern": "^[0-9A-Fa-f.:]+/[0-9]{1,3}$"}},
)
_PROXY = _text("http://<host>:<port>, without credentials", r"^(http://[^/@?#\s]+:[0-9]+/?)?$", 2048)
_HOSTS = Setting(
    "a list of hosts, domains, addresses and networks such as .example.com",
    {
        "type": "array",
        "maxItems": 64,
        "items": {"type": "string", "maxLength": 253, "pattern": r"^[A-Za-z0-9_.*:/\[\]-]+$"},
    },
)
_RESOURCES = Setting("requests and limits", {"type": "object"})
_LABELS = Setting("labels", {"type": "object", "additionalProperties": {"type": "string"}})
_SELECTOR = Setting("labels of nodes", {"type": "object", "additionalProperties": {"type": "string"}})
_TOLERATIONS = Setting("a list of tolerations", {"type": "array", "items": {"type": "object"}})

SERVED: Mapping[str, Setting] = {
    "logLevel": _one_of("Debug", "Info", "Warn", "Error"),
    "priorityClassName": _PRIORITY,
    "artifacts.bucket": _text("the name of a bucket", "^([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])?$"),
    "artifacts.endpoint": _ENDPOINT,
    "artifacts.region": _text("a region such as us-east-1", "^[A-Za-z0-9-]{1,64}$"),
    "artifacts.credentialsSecretName": _SECRET,
    "artifacts.caSecretName": _SECRET,
    "artifacts.usePathStyle": _SWITCH,
    "artifacts.capacityLimit": _QUANTITY,
    "embedded.accessMode": _one_of("ReadWriteMany", "ReadWriteOnce"),
    "embedded.storageClassName": _CLASS,
    "embedded.size": _SIZE,
    "sources.huggingFace.endpoint": _ENDPOINT,
    "sources.huggingFace.credentialsSecretName": _SECRET,
    "sources.huggingFace.caSecretName": _SECRET,
    "sources.allowedPrivateCIDRs": _NETWORKS,
    "sources.pickle": _one_of("Allow", "Refuse"),
    "proxy.httpProxy": _PROXY,
    "proxy.httpsProxy": _PROXY,
    "proxy.noProxy": _HOSTS,
    "ray.provider": _one_of("builtin", "kuberay"),
    "ray.head.resources": _RESOURCES,
    "ray.head.nodeSelector": _SELECTOR,
    "ray.head.tolerations": _TOLERATIONS,
    "ray.head.priorityClassName": _PRIORITY,
    "ray.workers.replicas": _number("a number from 1 to 1000", 1, 1000),
    "ray.workers.resources": _RESOURCES,
    "ray.workers.nodeSelector": _SELECTOR,
    "ray.workers.tolerations": _TOLERATIONS,
    "ray.workers.priorityClassName": _PRIORITY,
    "delivery.enabled": _SWITCH,
    "delivery.type": _one_of("NodeCache", "SharedPVC"),
    "delivery.maxGateWait": _text(
        "a duration such as 10m or 1h30m", "^(?:[0-9]{1,4}h)?(?:[0-9]{1,5}m)?(?:[0-9]{1,6}s)?$", 16, 2
    ),
    "delivery.nodeCacheSize": _QUANTITY,
    "delivery.hostFolder": _SWITCH,
    "delivery.sharedPVCStorageClassName": _CLASS,
    "delivery.sharedPVCGraceSeconds": _number("seconds, at most a year", 0, 31536000),
    "kubeletRootDir": _text("the absolute path of a folder", "^/[A-Za-z0-9._/-]+$", 256),
    "networkPolicies.enabled": _SWITCH,
    "monitoring.enabled": _SWITCH,
    "monitoring.labels": _LABELS,
    "monitoring.dashboard": _SWITCH,
}
"""Settings that the chart has under the same names."""

UNSERVED: Mapping[str, str] = {
    "distribution.mode": "no catalog is published for other clusters",
    "publicHost": "no Ingress is made",
}
"""Settings of the module that this version does not serve, and what follows; each is refused, or left out aloud."""


@dataclasses.dataclass(frozen=True, slots=True)
class Values:
    """What a ModuleConfig became.

    Args:
        values: for Helm.
        left_out: one sentence per setting that is not served.
    """

    values: Mapping[str, Any]
    left_out: tuple[str, ...]


def values(document: object) -> Values:
    """Turn a ModuleConfig into values of the chart.

    Raises:
        UsageError: it is not one of ours, not enabled, or has a setting that is unknown or wrong.
    """
    found: dict[str, Any] = {}
    left_out: list[str] = []
    for path, value in _leaves(_settings(document), ""):
        if path in UNSERVED:
            left_out.append(f"spec.settings.{path}: not served by this version: {UNSERVED[path]}")
            continue
        _check(path, value)
        _put(found, path.split("."), value)
    return Values(found, tuple(left_out))


def _settings(document: object) -> Mapping[str, Any]:
    """Settings of a document that is what it should be."""
    whole = _mapping(document, "document")
    spec = _mapping(whole.get("spec", {}), "spec")
    name = _mapping(whole.get("metadata", {}), "metadata").get("name")
    facts: tuple[tuple[str, object, object], ...] = (
        ("apiVersion", whole.get("apiVersion"), API_VERSION),
        ("kind", whole.get("kind"), KIND),
        ("metadata.name", name, NAME),
        ("spec.version", spec.get("version"), VERSION),
    )
    for path, value, wanted in facts:
        if type(value) is not type(wanted) or value != wanted:
            raise UsageError(f"{path}: want {wanted}, got {_shown(value)}")
    if spec.get("enabled", True) is not True:
        raise UsageError(f"spec.enabled: want true, got {_shown(spec['enabled'])}: a disabled module is uninstalled")
    if unknown := sorted(str(key) for key in spec.keys() - {"enabled", "version", "settings", "maintenance"}):
        raise UsageError(f"spec.{unknown[0][:_SHOWN_CHARS]}: unknown, want version, enabled and settings")
    return _mapping(spec.get("settings", {}), "spec.settings")


def _leaves(node: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Settings by their paths, known ones alone."""
    known = (*SERVED, *UNSERVED)
    for key, value in node.items():
        path = f"{prefix}{key}"
        if path in known:
            yield path, value
        elif any(name.startswith(f"{path}.") for name in known):
            yield from _leaves(_mapping(value, f"spec.settings.{path}"), f"{path}.")
        else:
            there = sorted({name[len(prefix) :].split(".")[0] for name in known if name.startswith(prefix)})
            raise UsageError(f"spec.settings.{path[:_SHOWN_CHARS]}: unknown, want one of {', '.join(there)}")


def _check(path: str, value: object) -> None:
    setting = SERVED[path]
    if not _fits(setting.schema, value):
        raise UsageError(f"spec.settings.{path}: want {setting.wanted}, got {_shown(value)}")


def _fits(schema: Mapping[str, Any], value: object) -> bool:
    """Whether a value is what a schema of the table says; True is no number here."""
    if "enum" in schema:
        return isinstance(value, str) and value in schema["enum"]
    kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    if type(value) not in [_TYPES[kind] for kind in kinds]:
        return False
    if isinstance(value, str):
        long_enough = schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
        return long_enough and ("pattern" not in schema or re.fullmatch(schema["pattern"], value) is not None)
    if isinstance(value, list):
        return len(value) <= schema.get("maxItems", len(value)) and all(_fits(schema["items"], one) for one in value)
    if isinstance(value, dict):
        return all(_fits(schema["additionalProperties"], one) for one in value.values() if len(schema) > 1)
    return not isinstance(value, int) or schema.get("minimum", value) <= value <= schema.get("maximum", value)


def _put(target: dict[str, Any], keys: list[str], value: object) -> None:
    for key in keys[:-1]:
        target = target.setdefault(key, {})
    target[keys[-1]] = value


def _mapping(value: object, path: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{path}: want a mapping, got {_shown(value)}")
    return value


def _shown(value: object) -> str:
    """A value in an error: nothing, its kind if it is large, or itself, cut, without credentials of a URL."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return f"a {'mapping' if isinstance(value, dict) else 'list'}"
    return repr(re.sub(r".*@", "…@", value) if isinstance(value, str) else value)[:_SHOWN_CHARS]
