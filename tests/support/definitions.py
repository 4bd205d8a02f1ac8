"""The chart's resource definitions, and a reader of their structural schemas that refuses what the API server refuses.

Not a whole validator: types, required and unknown fields, enumerations, lengths, numbers. CEL rules are tested on a
real API server.
"""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "charts" / "ai-models" / "definitions"

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
}


@functools.cache
def load(plural: str) -> dict[str, Any]:
    """One definition, as YAML."""
    found: dict[str, Any] = yaml.safe_load((FOLDER / f"{plural}.yaml").read_text(encoding="utf-8"))
    return found


def schema(plural: str) -> dict[str, Any]:
    """Schema of a definition's only version."""
    (version,) = load(plural)["spec"]["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return found


def field(node: dict[str, Any], path: str) -> dict[str, Any]:
    """Schema of a field, `[]` for the items of a list."""
    for name in path.split("."):
        node = node["items"] if name == "[]" else node["properties"][name]
    return node


def problems(value: Any, node: dict[str, Any], path: str = "") -> Iterator[str]:
    """Everything in a value that a schema refuses or drops."""
    wanted = _TYPES[node["type"]]
    if not isinstance(value, wanted) or (isinstance(value, bool) and node["type"] != "boolean"):
        yield f"{path}: want {node['type']}, got {type(value).__name__}"
        return
    if "enum" in node and value not in node["enum"]:
        yield f"{path}: want one of {node['enum']}, got {value!r}"
    if isinstance(value, str) and not node.get("minLength", 0) <= len(value) <= node.get("maxLength", 1 << 30):
        yield f"{path}: length {len(value)}"
    if isinstance(value, int) and value < node.get("minimum", value):
        yield f"{path}: want at least {node['minimum']}, got {value}"
    if isinstance(value, list):
        if len(value) > node.get("maxItems", 1 << 30):
            yield f"{path}: {len(value)} items"
        for index, item in enumerate(value):
            yield from problems(item, node["items"], f"{path}[{index}]")
    if isinstance(value, dict):
        yield from _fields(value, node, path)


def _fields(value: dict[str, Any], node: dict[str, Any], path: str) -> Iterator[str]:
    yield from (f"{path}.{name}: missing" for name in node.get("required", ()) if name not in value)
    if path == ".metadata":
        return
    for name, item in value.items():
        if name in node.get("properties", {}):
            yield from problems(item, node["properties"][name], f"{path}.{name}")
        else:
            yield f"{path}.{name}: unknown"
