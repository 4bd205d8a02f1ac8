"""The small JSON files of a model: which weights belong to it, and what a user should know. Pure, on bytes.

Indexes of shards and `model_index.json` narrow a selection; configs give notices. Facts for people are in `metadata`.
"""

import dataclasses
import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from aimodels_core import paths
from aimodels_core.errors import NoWeights, UnsafeContent
from aimodels_core.source import check_path
from aimodels_jobs import headers, shards
from aimodels_jobs.selection import MAX_DOCUMENT_BYTES, Dropped, Format, Notice, Selected, Selection

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def parse_object(path: str, data: bytes, *, code: str = "ConfigInvalid") -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        UnsafeContent: code LfsPointer, or `code` for anything that is not a JSON object.
    """
    headers.refuse_pointer(path, data)
    if len(data) > MAX_DOCUMENT_BYTES:
        raise UnsafeContent(path, code=code, detail=f"want at most {MAX_DOCUMENT_BYTES} bytes, got {len(data)}")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnsafeContent(path, code=code, detail="want JSON, got something else") from error
    if not isinstance(document, dict):
        raise UnsafeContent(path, code=code, detail=f"want a JSON object, got {type(document).__name__}")
    return document


def weight_map(path: str, data: bytes) -> Mapping[str, str]:
    """Read an index of shards: tensor name → path of its file within the model.

    Raises:
        UnsafeContent: codes LfsPointer, IndexInvalid, UnsafePath (a shard outside the model).
    """
    found = parse_object(path, data, code="IndexInvalid").get("weight_map")
    if not isinstance(found, dict) or not found or not all(isinstance(name, str) for name in found.values()):
        raise UnsafeContent(path, code="IndexInvalid", detail="want a weight_map of names, got something else")
    folder, key = shards.split(path)[0], shards.index_key(path)
    full = {name: _shard_path(path, folder, name) for name in set(found.values())}
    for name in full:
        if key and not name.lower().endswith(f".{key.suffix}"):
            raise UnsafeContent(path, code="IndexInvalid", detail=f"want *.{key.suffix}, got {name[:200]!r}")
    return {tensor: full[name] for tensor, name in found.items()}


def _shard_path(path: str, folder: str, name: str) -> str:
    try:
        check_path(name)
    except UnsafeContent as error:
        detail = f"it names a shard outside the model: {name[:200]!r}: {error.detail}"
        raise UnsafeContent(path, code="UnsafePath", detail=detail) from error
    return f"{folder}/{name}" if folder else name


def by_index(selection: Selection, path: str, data: bytes) -> Selection:
    """Keep exactly the shards that an index names, of the weights of its folder.

    Raises:
        NoWeights: code MissingShard: names shards that the source does not have.
        UnsafeContent: codes LfsPointer, IndexInvalid, UnsafePath, EmptyWeight, PathCollision.
    """
    named = set(weight_map(path, data).values())
    listed = {file.path for file in selection.listing} or selection.paths
    missing = sorted(named - listed)
    if missing:
        more = f" and {len(missing) - shards.MAX_NAMED} more" if len(missing) > shards.MAX_NAMED else ""
        detail = f"the index names shards that are not there: {', '.join(missing[: shards.MAX_NAMED])}{more}"
        raise NoWeights(f"{path}: {detail}", code="MissingShard")
    folder, suffix = shards.split(path)[0], path.rpartition(".index")[0].rpartition(".")[2]
    others = {
        item.path: f"not among the shards of {path}"
        for item in selection.weights
        if item.path not in named and shards.split(item.path)[0] == folder and item.path.endswith(f".{suffix}")
    }
    return moved(selection, keep=named, drop=others)


def by_model_index(selection: Selection, data: bytes) -> Selection:
    """Keep the weights of declared components only; a declared component whose folder is missing is refused.

    Raises:
        NoWeights: codes MissingComponent, NoWeights.
        UnsafeContent: codes LfsPointer, ConfigInvalid.
    """
    document = parse_object("model_index.json", data)
    declared = {name for name, value in document.items() if _is_component(name, value)}
    there = {path.partition("/")[0] for path in selection.paths if "/" in path}
    missing = sorted(declared - there)
    if missing:
        raise NoWeights(f"model_index.json: components without a folder: {', '.join(missing)}", code="MissingComponent")
    outside = [item.path for item in selection.weights if item.path.partition("/")[0] not in declared]
    dropped = set(outside)
    if all(item.path in dropped for item in selection.weights):
        raise NoWeights("model_index.json: no declared component has weights", code="NoWeights")
    indexes = [path for path in selection.index_paths if path.partition("/")[0] not in declared]
    return moved(selection, drop=dict.fromkeys([*outside, *indexes], "not a component that model_index.json names"))


def _is_component(name: str, value: object) -> bool:
    return not name.startswith("_") and isinstance(value, list) and len(value) == 2 and all(value)


def moved(selection: Selection, *, keep: Collection[str] = (), drop: Mapping[str, str] = dict[str, str]()) -> Selection:
    """Keep or drop files of a selection's listing; whatever is in neither stays as it is.

    Raises:
        UnsafeContent: codes EmptyWeight, PathCollision.
    """
    back = set(keep) - selection.paths
    if not back and not drop:
        return selection
    kept = [item for item in selection.files if item.path not in drop]
    restored = [Selected(file) for file in selection.listing if file.path in back]
    for item in restored:
        if not item.file.size_bytes:
            raise UnsafeContent(item.path, code="EmptyWeight", detail="want weights, got an empty file")
    files = tuple(sorted([*kept, *restored]))
    paths.check_all(item.path for item in files)
    gone = [Dropped(item.path, item.file.size_bytes, drop[item.path]) for item in selection.files if item.path in drop]
    dropped = tuple(sorted([*(item for item in selection.dropped if item.path not in back), *gone]))
    there = {item.path for item in files}
    return dataclasses.replace(
        selection,
        files=files,
        dropped=dropped,
        config_paths=tuple(path for path in selection.config_paths if path in there),
        index_paths=tuple(path for path in selection.index_paths if path in there),
    )


def with_notices(selection: Selection, read: Mapping[str, bytes]) -> Selection:
    """Add what a user should know: code that the model brings, an adapter's base.

    Raises:
        UnsafeContent: codes LfsPointer, ConfigInvalid.
    """
    notices = [*selection.warnings]
    for path in ("config.json", "tokenizer_config.json", "processor_config.json"):
        if path in read and path in selection.paths:
            document = parse_object(path, read[path])
            notices += _remote_code(path, document.get("auto_map"), selection.paths)
    if selection.format is Format.DIFFUSERS:
        notices += _pipeline_code(selection)
    if selection.entry == "adapter_config.json" and selection.entry in read:
        notices.append(_base(parse_object(selection.entry, read[selection.entry])))
    return dataclasses.replace(selection, warnings=tuple(dict.fromkeys(notices)))


def _remote_code(path: str, auto_map: object, have: Collection[str]) -> list[Notice]:
    """Tell what `trust_remote_code` would run: files of the model, files that it lacks, files of other repositories."""
    if not isinstance(auto_map, dict):
        return []
    classes = sorted({name for value in auto_map.values() for name in _texts(value)})
    elsewhere = [name for name in classes if "--" in name]
    files = sorted({f"{name.rpartition('.')[0].replace('.', '/')}.py" for name in classes if "--" not in name})
    found = []
    if files:
        lacking = [file for file in files if file not in have]
        tail = f"; not in the repository: {', '.join(lacking[:5])}" if lacking else ""
        found.append(Notice("RemoteCode", f"{path}: loading runs code of the model: {', '.join(files[:5])}{tail}"))
    if elsewhere:
        detail = f"{path}: loading fetches code from other repositories: {', '.join(elsewhere[:5])}"
        found.append(Notice("RemoteCodeElsewhere", detail))
    return found


def _texts(value: object) -> Iterable[str]:
    if isinstance(value, str):
        return [value]
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _pipeline_code(selection: Selection) -> list[Notice]:
    code = [path for path in sorted(selection.paths) if path.endswith(".py")]
    return [Notice("RemoteCode", f"the pipeline brings code: {', '.join(code[:5])}")] if code else []


def _base(document: Mapping[str, object]) -> Notice:
    base = document.get("base_model_name_or_path")
    if isinstance(base, str) and _HUB_ID.fullmatch(base):
        return Notice("Adapter", f"an adapter of {base}; the base model is not part of it")
    return Notice("BaseUnresolved", "an adapter whose base model is not named by a hub id; it is published alone")
