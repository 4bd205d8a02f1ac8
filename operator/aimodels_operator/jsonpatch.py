"""What leads from one JSON document to another, as JSON Patch (RFC 6902). Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

Operation = dict[str, Any]


def difference(old: Any, new: Any, path: str = "") -> list[Operation]:
    """Say what has to be done to `old` for it to be `new`; lists of another length are replaced as a whole.

    >>> difference({"a": 1, "b/c": [1, 2]}, {"b/c": [1, 3]})
    [{'op': 'remove', 'path': '/a'}, {'op': 'replace', 'path': '/b~1c/1', 'value': 3}]
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        made: list[Operation] = []
        for key in [*old, *(key for key in new if key not in old)]:
            where = f"{path}/{_escaped(key)}"
            if key not in new:
                made.append({"op": "remove", "path": where})
            elif key not in old:
                made.append({"op": "add", "path": where, "value": new[key]})
            else:
                made += difference(old[key], new[key], where)
        return made
    if _is_list(old) and _is_list(new) and len(old) == len(new):
        return [one for n, pair in enumerate(zip(old, new, strict=True)) for one in difference(*pair, f"{path}/{n}")]
    same = old == new and isinstance(old, bool) == isinstance(new, bool)
    return [] if same else [{"op": "replace", "path": path, "value": new}]


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
