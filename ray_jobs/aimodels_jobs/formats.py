"""What to publish of a repository: one format, every weight once, and what a loader needs beside them. Pure.

`select` decides from the listing alone, before any byte is read. `refine` narrows its answer once the small files in
`config_paths` and `index_paths` are read. What is inside weight files is judged by `headers` and `contents`.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from aimodels_core import paths
from aimodels_core.errors import NoWeights, UnsafeContent
from aimodels_core.source import SourceFile, check_path
from aimodels_jobs import documents, filekinds, quants, shards
from aimodels_jobs.filekinds import Kind
from aimodels_jobs.selection import MAX_DOCUMENT_BYTES, Dropped, Format, Notice, Pickle, Selected, Selection
from aimodels_jobs.shards import WeightSet

__all__ = ["Dropped", "Format", "Notice", "Pickle", "Selected", "Selection", "refine", "select"]

_ROOT_CONFIGS = ("config.json", "adapter_config.json", "modules.json", "params.json", "open_clip_config.json")
_DOCUMENT_NAMES = frozenset(
    {
        *("config.json", "model_index.json", "adapter_config.json", "params.json", "modules.json"),
        *("tokenizer_config.json", "processor_config.json", "chat_template.json", "chat_template.jinja"),
        *("generation_config.json", "open_clip_config.json"),
    }
)


@dataclasses.dataclass(frozen=True, slots=True)
class _Shop:
    """The listing by kind, and what was asked for."""

    listing: tuple[SourceFile, ...]
    kinds: Mapping[str, Kind]
    choose: str
    pickle: Pickle

    def of(self, kind: Kind) -> list[SourceFile]:
        """All files of one kind, in order of path."""
        return [file for file in self.listing if self.kinds[file.path] is kind]

    def has(self, path: str) -> bool:
        """Whether the listing has this very path."""
        return path in self.kinds

    def folders(self) -> dict[str, tuple[WeightSet, ...]]:
        """The safetensors and torch sets of each folder that has any."""
        indexes = [file for file in self.listing if shards.index_key(file.path)]
        found, _ = shards.weight_sets([*self.of(Kind.SAFETENSORS), *self.of(Kind.TORCH)], indexes)
        by_folder: dict[str, list[WeightSet]] = {}
        for one in found:
            by_folder.setdefault(one.key.folder, []).append(one)
        return {folder: tuple(sets) for folder, sets in by_folder.items()}


@dataclasses.dataclass(slots=True)
class _Picked:
    """The weights of a format while they are being picked."""

    format: Format
    entry: str
    kept: set[str] = dataclasses.field(default_factory=set)
    dropped: dict[str, str] = dataclasses.field(default_factory=dict)
    indexes: set[str] = dataclasses.field(default_factory=set)
    warnings: list[Notice] = dataclasses.field(default_factory=list)

    def take(self, one: WeightSet) -> None:
        """Keep a set; a set with missing shards is refused by name."""
        if one.missing:
            detail = f"want all its shards, missing {', '.join(one.missing)}"
            raise NoWeights(f"{one.files[0].path}: {detail}", code="MissingShard")
        self.kept |= one.paths
        if one.index:
            self.indexes.add(one.index.path)

    def take_choice(self, choice: shards.Choice, folder: str, variant: str) -> None:
        """Keep what was chosen of one folder."""
        for one in choice.kept:
            self.take(one)
        self.dropped |= choice.dropped
        where = folder or "the root"
        if choice.fallback:
            self.warnings.append(Notice("VariantFallback", f"{where}: no {variant} weights; other ones are published"))
        elif choice.only_variant:
            detail = f"{where}: only {choice.only_variant} weights; load with variant={choice.only_variant!r}"
            self.warnings.append(Notice("VariantOnly", detail))


def select(files: Sequence[SourceFile], *, choose: str = "", pickle: Pickle = Pickle.ALLOW) -> Selection:
    """Decide from a listing what is published.

    Args:
        files: the complete listing of a revision.
        choose: a weight file, a quantisation or a variant; empty for the default.
        pickle: whether weights that may run code when loaded are published.

    Raises:
        NoWeights: nothing that can be published; the message says why each format does not apply.
        UnsafeContent: codes UnsafePath, PathCollision, EmptyWeight.
    """
    listing = tuple(sorted(files, key=lambda file: file.path))
    kinds = {check_path(file.path): filekinds.kind_of(file.path, file.size_bytes) for file in listing}
    shop = _Shop(listing, kinds, choose, pickle)
    return _assembled(shop, _picked(shop))


def _picked(shop: _Shop) -> _Picked:
    if _wants_gguf(shop):
        return _gguf(shop)
    if shop.has("model_index.json"):
        return _diffusers(shop)
    folders = shop.folders()
    entry = next((name for name in _ROOT_CONFIGS if shop.has(name)), "")
    if entry and _has_safetensors(folders):
        return _transformers(shop, folders, Format.SAFETENSORS, entry)
    if shop.of(Kind.GGUF):
        return _gguf(shop)
    if entry and folders:
        return _transformers(shop, folders, Format.PYTORCH, entry)
    raise NoWeights(_reasons(shop, folders), code="NoWeights")


def _has_safetensors(folders: Mapping[str, tuple[WeightSet, ...]]) -> bool:
    """Say whether the model itself is in safetensors, not only something beside torch weights in the root."""
    root = folders.get("", ())
    if any(one.torch and one.main for one in root):
        return any(not one.torch and not one.key.stem.startswith("adapter_model") for one in root)
    return any(not one.torch for sets in folders.values() for one in sets)


def _wants_gguf(shop: _Shop) -> bool:
    """Say whether the choice names a GGUF, so that it overrides the precedence of formats."""
    if not shop.choose or not shop.of(Kind.GGUF):
        return False
    if shop.has(shop.choose):
        return shop.kinds[shop.choose] is Kind.GGUF
    variants = {one.key.variant for sets in shop.folders().values() for one in sets}
    return shop.choose.lower() not in variants


def _reasons(shop: _Shop, folders: Mapping[str, object]) -> str:
    split = [path for path in shop.kinds if filekinds.raw_split(path)]
    weights = shop.of(Kind.SAFETENSORS)
    lacking = "config.json in the root" if weights else "*.safetensors"
    torch = "config.json in the root" if folders else "torch weights"
    joined = f"{split[0]} is a piece of a GGUF cut by bytes: join the pieces first" if split else "no *.gguf"
    return (
        f"no supported weights among {len(shop.listing)} files. Safetensors: no {lacking}. "
        f"Diffusers: no model_index.json in the root. GGUF: {joined}. PyTorch: no {torch}"
    )


def _gguf(shop: _Shop) -> _Picked:
    chosen = quants.choose(shop.of(Kind.GGUF), shop.choose)
    picked = _Picked(Format.GGUF, chosen.model.entry, set(chosen.model.paths), dict(chosen.dropped))
    picked.kept |= chosen.projector.paths if chosen.projector else set()
    picked.dropped |= {file.path: "code; GGUF loaders run none" for file in shop.of(Kind.CODE)}
    return picked


def _diffusers(shop: _Shop) -> _Picked:
    picked = _Picked(Format.DIFFUSERS, "model_index.json")
    folders = shop.folders()
    if shop.has(shop.choose):
        detail = "want a variant such as fp16; one file of a pipeline is not published alone"
        raise NoWeights(f"{shop.choose}: {detail}", code="ChoiceNotFound")
    variant = _variant(shop, folders)
    for folder, sets in folders.items():
        if not folder:
            picked.dropped |= {p: "a single-file copy beside the component folders" for one in sets for p in one.paths}
            picked.dropped |= {one.index.path: "the index of weights that are left out" for one in sets if one.index}
            continue
        if shop.pickle is Pickle.REFUSE and all(one.torch for one in sets):
            raise _refused(sets)
        choice = shards.choose(sets, variant=variant, torch=shop.pickle is Pickle.ALLOW)
        picked.take_choice(choice, folder, variant)
    if not picked.kept:
        raise NoWeights("Diffusers: want *.safetensors or *.bin in component folders, got none", code="NoWeights")
    return picked


def _transformers(shop: _Shop, folders: Mapping[str, tuple[WeightSet, ...]], what: Format, entry: str) -> _Picked:
    picked = _Picked(what, entry)
    variant = "" if shop.has(shop.choose) else _variant(shop, folders)
    _without_adapter(shop, folders, picked)
    chosen_folder = shards.split(shop.choose)[0] if shop.has(shop.choose) else None
    if chosen_folder is not None and chosen_folder not in folders:
        raise NoWeights(f"{shop.choose}: want a weight file to choose, got another file", code="ChoiceNotFound")
    for folder, sets in folders.items():
        choice = shards.choose(sets, variant=variant, torch=_torch(shop, sets, folder, what))
        if folder == chosen_folder:
            choice = _only(shop.choose, sets)
        picked.take_choice(choice, folder, variant)
    return picked


def _torch(shop: _Shop, sets: Sequence[WeightSet], folder: str, what: Format) -> bool:
    """Say whether a folder's pickled weights may be taken.

    Beside safetensors in the root they may only be those of a module folder (sentence-transformers) without any other.
    """
    allowed = what is Format.PYTORCH or (bool(folder) and shop.has("modules.json") and all(one.torch for one in sets))
    if allowed and shop.pickle is Pickle.REFUSE:
        raise _refused(sets)
    return allowed


def _refused(sets: Sequence[WeightSet]) -> NoWeights:
    detail = "pickled weights may run code when loaded, and the setting sources.pickle refuses them"
    return NoWeights(f"{sets[0].files[0].path}: {detail}", code="PickleRefused")


def _without_adapter(shop: _Shop, folders: Mapping[str, tuple[WeightSet, ...]], picked: _Picked) -> None:
    """Tell an adapter from a model that has one beside it, which loaders would pick up by themselves."""
    if not shop.has("adapter_config.json"):
        return
    root = folders.get("", ())
    if any(one.main for one in root) and picked.entry != "adapter_config.json":
        picked.dropped["adapter_config.json"] = "an adapter beside the model"
    elif any(one.key.stem.startswith("adapter_model") for one in root):
        picked.entry = "adapter_config.json"


def _only(path: str, sets: Sequence[WeightSet]) -> shards.Choice:
    """Keep the set of one named file, and nothing else of its folder."""
    kept = tuple(one for one in sets if path in one.paths)
    if not kept:
        raise NoWeights(f"{path}: want a weight file to choose, got another file", code="ChoiceNotFound")
    dropped = {p: f"{path} was chosen" for one in sets if one not in kept for p in one.paths}
    dropped |= {one.index.path: f"{path} was chosen" for one in sets if one not in kept and one.index}
    return shards.Choice(kept, dropped)


def _variant(shop: _Shop, folders: Mapping[str, tuple[WeightSet, ...]]) -> str:
    wanted = shop.choose.lower()
    have = {one.key.variant for sets in folders.values() for one in sets} - {""}
    if wanted and wanted not in have:
        there = ", ".join(sorted(have)) or "none"
        raise NoWeights(f"{shop.choose}: no such weight file or variant; variants: {there}", code="ChoiceNotFound")
    return wanted


def _assembled(shop: _Shop, picked: _Picked) -> Selection:
    """Join the picked weights with what belongs beside them; every file of the listing ends up kept or dropped."""
    kept, dropped = [], []
    for file in shop.listing:
        why = _why_dropped(shop.kinds[file.path], file.path, picked)
        if why:
            dropped.append(Dropped(file.path, file.size_bytes, why))
        else:
            kept.append(Selected(file))
    paths.check_all(item.path for item in kept)
    torch = sorted(path for path in picked.kept if shop.kinds[path] is Kind.TORCH)
    if torch:
        picked.warnings.append(_pickle_notice(torch))
    for item in kept:
        if item.path in picked.kept and not item.file.size_bytes:
            raise UnsafeContent(item.path, code="EmptyWeight", detail="want weights, got an empty file")
    return Selection(
        format=picked.format,
        files=tuple(kept),
        dropped=tuple(dropped),
        warnings=tuple(picked.warnings),
        entry=picked.entry,
        config_paths=tuple(item.path for item in kept if _is_document(item.file)),
        index_paths=tuple(item.path for item in kept if item.path in picked.indexes),
        listing=shop.listing,
    )


def _pickle_notice(torch: Sequence[str]) -> Notice:
    more = f" and {len(torch) - 3} more" if len(torch) > 3 else ""
    return Notice("PickleWeights", f"pickled weights may run code when loaded: {', '.join(torch[:3])}{more}")


def _why_dropped(kind: Kind, path: str, picked: _Picked) -> str:
    if path in picked.kept:
        return ""
    if path in picked.dropped:
        return picked.dropped[path]
    if kind in {Kind.SIDE, Kind.CODE, Kind.DOC}:
        stray = shards.index_key(path) is not None and path not in picked.indexes
        return "the index of weights that are left out" if stray else ""
    if kind in {Kind.SAFETENSORS, Kind.TORCH} and shards.parse(path)[1] < 0:
        return "malformed set: the shard number is not within its count"
    if kind in {Kind.SAFETENSORS, Kind.GGUF, Kind.TORCH}:
        return f"{kind.value} weights beside the published {picked.format.value} ones"
    if filekinds.raw_split(path):
        return "a piece of a GGUF that was cut by bytes; join the pieces first"
    return str(kind.value)


def _is_document(file: SourceFile) -> bool:
    folder, name = shards.split(file.path)
    wanted = name in _DOCUMENT_NAMES if not folder else folder == "additional_chat_templates"
    return wanted and file.size_bytes <= MAX_DOCUMENT_BYTES


def refine(selection: Selection, read: Mapping[str, bytes]) -> Selection:
    """Narrow a selection by the bytes of its small files.

    Args:
        selection: what `select` answered.
        read: path → bytes of `config_paths` and `index_paths`; those that are missing are not judged.

    Raises:
        NoWeights: codes MissingShard, MissingComponent.
        UnsafeContent: codes UnsafePath, LfsPointer, IndexInvalid, ConfigInvalid.
    """
    for path in selection.index_paths:
        if path in read:
            selection = documents.by_index(selection, path, read[path])
    if selection.format is Format.DIFFUSERS and "model_index.json" in read:
        selection = documents.by_model_index(selection, read["model_index.json"])
    return documents.with_notices(selection, read)
