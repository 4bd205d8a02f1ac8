"""JSON Patch as RFC 6902 says it, as far as admission answers use it."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any


def patched(document: Any, operations: Iterable[Mapping[str, Any]]) -> Any:
    """Apply a patch; a path that leads nowhere is an error."""
    made = copy.deepcopy(document)
    for one in operations:
        *above, last = (part.replace("~1", "/").replace("~0", "~") for part in one["path"].split("/")[1:])
        target = made
        for part in above:
            target = target[int(part) if isinstance(target, list) else part]
        key: Any = int(last) if isinstance(target, list) else last
        match one["op"]:
            case "add" if isinstance(target, list):
                target.insert(key, one["value"])
            case "add":
                target[key] = one["value"]
            case "replace":
                _ = target[key]
                target[key] = one["value"]
            case "remove":
                del target[key]
            case other:
                raise ValueError(f"op: {other!r}")
    return made
