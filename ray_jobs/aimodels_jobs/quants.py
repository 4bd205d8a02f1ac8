"""Which GGUF of a repository: by file, by quantisation, or the documented default. Names only, pure."""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

from aimodels_core.errors import NoWeights
from aimodels_core.source import SourceFile
from aimodels_jobs import shards

DEFAULT = "Q4_K_M"
_MAX_LISTED = 40

_SHARD = re.compile(r"(?P<base>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})", re.IGNORECASE)
_QUANT = re.compile(
    r"(?<![A-Za-z0-9])((?:UD-)?(?:I?Q[1-9]_(?:K(?:_(?:XXS|XS|XXL|XL|S|M|L))?|NL|XXS|XS|S|M|[01](?:_\d_\d)?)(?:_XL|_L)?"
    r"|Q[1-9]K|TQ[12]_0|MXFP4(?:_MOE)?|NVFP4|BF16|F16|F32|FP16|FP32|Q8|Q4|Q5|Q6|Q3|Q2))(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_ROLES = (
    ("projector", re.compile(r"(^|[-_.])mm-?proj([-_.]|$)", re.IGNORECASE)),
    ("importance matrix", re.compile(r"imatrix", re.IGNORECASE)),
    ("vocabulary", re.compile(r"^ggml-vocab", re.IGNORECASE)),
)
_PROJECTOR_ORDER = ("F16", "FP16", "BF16", "Q8_0", "F32", "FP32")


@dataclasses.dataclass(frozen=True, slots=True)
class Variant:
    """One GGUF model: a file or all its shards.

    Args:
        base: folder and name without the shard number.
        quant: upper-case quantisation named by the file or its folder, empty when neither does.
        files: in order of shard number; the first is what a loader opens.
        missing: names of shards that the listing lacks.
    """

    base: str
    quant: str
    files: tuple[SourceFile, ...]
    missing: tuple[str, ...] = ()

    @property
    def entry(self) -> str:
        """The file that a loader opens."""
        return self.files[0].path

    @property
    def paths(self) -> frozenset[str]:
        """All its files."""
        return frozenset(file.path for file in self.files)


@dataclasses.dataclass(frozen=True, slots=True)
class Chosen:
    """The outcome: one model, its projector if there is one, and why the rest is left out."""

    model: Variant
    projector: Variant | None
    dropped: Mapping[str, str]


def quant_of(path: str) -> str:
    """Read the quantisation from a file's name, else from its folder; upper case.

    >>> [quant_of(p) for p in ("m-q4_k_m.gguf", "UD-IQ2_XXS/m-00001-of-00002.gguf", "best-of-breed.gguf")]
    ['Q4_K_M', 'UD-IQ2_XXS', '']
    """
    folder, name = shards.split(path)
    for text in (name, folder.rpartition("/")[2]):
        found = _QUANT.findall(text)
        if found:
            return str(found[-1]).upper()
    return ""


def choose(files: Iterable[SourceFile], wanted: str) -> Chosen:
    """Choose one model of all GGUF files of a repository.

    Args:
        files: every `.gguf` of the listing.
        wanted: a path, a file name, a quantisation in any letter case, or empty for the default.

    Raises:
        NoWeights: codes ChoiceNotFound, ChooseOne, MissingShard, MalformedShards, NotAModel; says what there is.
    """
    dropped: dict[str, str] = {}
    projectors, candidates = [], []
    for file in files:
        role = _role(file.path)
        if role == "projector":
            projectors.append(file)
        elif role:
            dropped[file.path] = f"an {role}, not a model" if role[0] in "aeiou" else f"a {role}, not a model"
        else:
            candidates.append(file)
    variants, malformed = group(candidates)
    dropped |= dict.fromkeys(malformed, "malformed set: the shard number is not within its count")
    if not variants:
        raise NoWeights(_nothing(malformed, projectors), code="MalformedShards" if malformed else "NotAModel")
    model = _pick(variants, wanted)
    if model.missing:
        raise NoWeights(f"{model.entry}: want all its shards, missing {', '.join(model.missing)}", code="MissingShard")
    projector = _projector(projectors, model)
    taken = model.paths | (projector.paths if projector else frozenset())
    for file in (*candidates, *projectors):
        if file.path not in taken:
            dropped.setdefault(file.path, "another quantisation; one model is published")
    return Chosen(model, projector, dropped)


def group(files: Iterable[SourceFile]) -> tuple[tuple[Variant, ...], tuple[str, ...]]:
    """Group files into models; also return the paths whose shard number is impossible."""
    sets: dict[tuple[str, int], dict[int, SourceFile]] = {}
    malformed = []
    for file in files:
        stem = file.path[: -len(".gguf")]
        shard = _SHARD.fullmatch(stem)
        number, count = (int(shard["number"]), int(shard["count"])) if shard else (0, 0)
        if shard and not 1 <= number <= count:
            malformed.append(file.path)
            continue
        sets.setdefault((shard["base"] if shard else stem, count), {})[number] = file
    return tuple(_variant(base, count, members) for (base, count), members in sorted(sets.items())), tuple(malformed)


def _variant(base: str, count: int, members: Mapping[int, SourceFile]) -> Variant:
    files = tuple(members[number] for number in sorted(members))
    missing: list[str] = []
    for number in range(1, count + 1):
        if number not in members:
            missing.append(shards.renumbered(files[0].path, number))
        if len(missing) >= shards.MAX_NAMED:
            break
    return Variant(base, quant_of(files[0].path), files, tuple(missing))


def _role(path: str) -> str:
    name = shards.split(path)[1]
    return next((role for role, pattern in _ROLES if pattern.search(name)), "")


def _nothing(malformed: Sequence[str], projectors: Sequence[SourceFile]) -> str:
    if malformed:
        return f"GGUF: want whole sets of shards, got malformed names: {', '.join(malformed[:_MAX_LISTED])}"
    return f"GGUF: want a model, got {len(projectors)} projectors and nothing else"


def _pick(variants: Sequence[Variant], wanted: str) -> Variant:
    if not wanted:
        return _default(variants)
    found = _matching(variants, wanted)
    if len(found) == 1:
        return found[0]
    if found:
        raise NoWeights(f"{wanted}: matches several models; {_list(found)}", code="ChooseOne")
    raise NoWeights(f"{wanted}: no such file or quantisation; {_list(variants)}", code="ChoiceNotFound")


def _default(variants: Sequence[Variant]) -> Variant:
    if len(variants) == 1:
        return variants[0]
    found = _matching(variants, DEFAULT)
    if len(found) == 1:
        return found[0]
    raise NoWeights(f"GGUF: want one model, got {len(variants)}; {_list(found or variants)}", code="ChooseOne")


def _matching(variants: Sequence[Variant], wanted: str) -> list[Variant]:
    """Match by path, else by file name, by quantisation, by quantisation without a maker's prefix."""
    low, upper = wanted.lower(), wanted.upper()
    tests = (
        [one for one in variants if wanted in one.paths],
        [one for one in variants if any(low in {p.lower(), shards.split(p)[1].lower()} for p in one.paths)],
        [one for one in variants if one.quant == upper],
        [one for one in variants if one.quant.removeprefix("UD-") == upper.removeprefix("UD-")],
    )
    return next((_prefer_whole(found) for found in tests if found), [])


def _prefer_whole(found: list[Variant]) -> list[Variant]:
    """Of the same model as one file and as shards, take the one file."""
    if len({one.base.lower() for one in found}) > 1:
        return found
    return sorted(found, key=lambda one: (bool(one.missing), len(one.files)))[:1]


def _projector(files: Sequence[SourceFile], model: Variant) -> Variant | None:
    variants = [one for one in group(files)[0] if not one.missing]
    folder = shards.split(model.entry)[0]

    def order(one: Variant) -> tuple[bool, int, str]:
        rank = _PROJECTOR_ORDER.index(one.quant) if one.quant in _PROJECTOR_ORDER else len(_PROJECTOR_ORDER)
        return shards.split(one.entry)[0] != folder, rank, one.base

    return min(variants, key=order, default=None)


def _list(variants: Sequence[Variant]) -> str:
    names = sorted({one.quant or one.entry for one in variants})
    if len(names) < len(variants):
        names = sorted(one.entry for one in variants)
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f"choose one of: {', '.join(names[:_MAX_LISTED])}{more}"
