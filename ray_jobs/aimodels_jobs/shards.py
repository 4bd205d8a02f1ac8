"""Weight files of one folder as sets that a loader takes whole, and which set to take. Names only, pure.

A set is one file, or the shards `…-00001-of-0000N`; a folder may hold several sets with the same weights: in two
formats, in variants such as `fp16`, sharded and not. Which tensors a set really has is told later, by its index.
"""

import dataclasses
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from aimodels_core.source import SourceFile

MAIN_STEMS = frozenset({"model", "pytorch_model", "diffusion_pytorch_model"})
"""What loaders look for first."""
MAX_NAMED = 100
"""Most missing shards that a message names."""

_SHARD = re.compile(r"(?P<base>.+)[-_](?P<number>\d{4,6})-of-(?P<count>\d{4,6})(?:\.(?P<variant>\w+))?")
_INDEX = re.compile(r"(?P<base>.+)\.(?P<suffix>safetensors|bin)\.index(?:\.(?P<variant>\w+))?\.json")
_SHARD_NUMBER = re.compile(r"([-_])(\d{4,6})(-of-\d{4,6})(?=[^/]*$)")
_VARIANTS = frozenset(
    {
        *("fp16", "bf16", "fp32", "fp8", "fp4", "f16", "f32", "int8", "int4", "nf4", "8bit", "4bit"),
        *("ema", "non_ema", "no_ema", "ema_only"),
    }
)


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Key:
    """What tells a set: `count` is N of `-of-N`, 0 for a single file; `suffix` without its dot."""

    folder: str
    stem: str
    variant: str
    suffix: str
    count: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class WeightSet:
    """Files that a loader takes together.

    Args:
        key: what they have in common.
        files: in order of shard number.
        missing: names of shards that the listing lacks, at most MAX_NAMED of them.
        index: the index of these shards, if there is one.
    """

    key: Key
    files: tuple[SourceFile, ...]
    missing: tuple[str, ...] = ()
    index: SourceFile | None = None

    @property
    def torch(self) -> bool:
        """Whether loading it may run code."""
        return self.key.suffix != "safetensors"

    @property
    def main(self) -> bool:
        """Whether loaders look for it without being told its name."""
        return self.key.stem in MAIN_STEMS

    @property
    def paths(self) -> frozenset[str]:
        """The weight files."""
        return frozenset(file.path for file in self.files)


def split(path: str) -> tuple[str, str]:
    """Split a path into folder (empty for the root) and name."""
    folder, _, name = path.rpartition("/")
    return folder, name


def parse(path: str) -> tuple[Key, int]:
    """Tell the set a weight file belongs to and its number in it, 0 for a single file; a bad number gives -1.

    >>> parse("unet/diffusion_pytorch_model.fp16-00002-of-00003.safetensors")[1]
    2
    >>> parse("best-of-breed.safetensors")[0].stem
    'best-of-breed'
    """
    folder, name = split(path)
    base, _, suffix = name.rpartition(".")
    shard = _SHARD.fullmatch(base)
    if not shard:
        stem, variant = _variant(base, "")
        return Key(folder, stem, variant, suffix.lower()), 0
    number, count = int(shard["number"]), int(shard["count"])
    stem, variant = _variant(shard["base"], shard["variant"] or "")
    return Key(folder, stem, variant, suffix.lower(), count), number if 1 <= number <= count else -1


def _variant(base: str, after: str) -> tuple[str, str]:
    stem, _, last = base.rpartition(".")
    if after:
        return base, after.lower()
    if stem and (last.lower() in _VARIANTS or stem in MAIN_STEMS):
        return stem, last.lower()
    return base, ""


def index_key(path: str) -> Key | None:
    """Tell which set an index speaks of, without its count; None for any other file.

    >>> index_key("model.safetensors.index.fp16.json")
    Key(folder='', stem='model', variant='fp16', suffix='safetensors', count=0)
    """
    folder, name = split(path)
    found = _INDEX.fullmatch(name)
    if not found:
        return None
    stem, variant = _variant(found["base"], found["variant"] or "")
    return Key(folder, stem, variant, found["suffix"])


def renumbered(path: str, number: int) -> str:
    """Name another shard of the set that `path` belongs to.

    >>> renumbered("Q4/m-00001-of-00003.gguf", 2)
    'Q4/m-00002-of-00003.gguf'
    """
    return _SHARD_NUMBER.sub(lambda found: f"{found[1]}{number:0{len(found[2])}}{found[3]}", path)


def weight_sets(
    weights: Iterable[SourceFile], indexes: Iterable[SourceFile]
) -> tuple[tuple[WeightSet, ...], frozenset[str]]:
    """Group weight files into sets; also return the paths whose shard number is impossible."""
    members: dict[Key, dict[int, SourceFile]] = defaultdict(dict)
    malformed = set()
    for file in weights:
        key, number = parse(file.path)
        if number < 0:
            malformed.add(file.path)
        else:
            members[key][number] = file
    by_key = {index_key(file.path): file for file in indexes}
    sharded = {dataclasses.replace(key, count=0) for key in members if key.count}
    sets = []
    for key, files in members.items():
        plain = dataclasses.replace(key, count=0)
        owns_index = bool(key.count) or plain not in sharded
        sets.append(_weight_set(key, files, by_key.get(plain) if owns_index else None))
    return tuple(sorted(sets, key=lambda one: one.key)), frozenset(malformed)


def _weight_set(key: Key, files: Mapping[int, SourceFile], index: SourceFile | None) -> WeightSet:
    absent = (number for number in range(1, key.count + 1) if number not in files)
    some = next(iter(files.values())).path
    names = tuple(renumbered(some, number) for number in itertools.islice(absent, MAX_NAMED))
    return WeightSet(key, tuple(files[number] for number in sorted(files)), names, index)


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """The outcome for one folder.

    Args:
        kept: sets that are published.
        dropped: path → why, of everything else.
        fallback: the wanted variant is not there, so the plain weights were taken.
        only_variant: there are no plain weights; the variant that was taken instead.
    """

    kept: tuple[WeightSet, ...]
    dropped: Mapping[str, str]
    fallback: bool = False
    only_variant: str = ""


def choose(sets: Sequence[WeightSet], *, variant: str, torch: bool) -> Choice:
    """Choose the sets of one folder: the weights loaders look for, once, and what is not a copy of them.

    Args:
        sets: all sets of the folder.
        variant: the wanted variant, empty for the plain weights.
        torch: whether pickled weights may be taken where there is no safetensors twin.
    """
    usable = [one for one in sets if torch or not one.torch]
    mains = sorted((one for one in usable if one.main), key=lambda one: _rank(one, variant))
    dropped: dict[str, str] = {}
    if mains:
        best = mains[0]
        kept = [best, *(one for one in sets if not one.main and _keeps(one, best))]
    else:
        best = None
        kept = _named(usable)
    for one in sets:
        if one not in kept:
            dropped |= dict.fromkeys(one.paths, _why(one, best))
            dropped |= {one.index.path: "the index of weights that are left out"} if one.index else {}
    found = best.key.variant if best else ""
    return Choice(
        tuple(kept), dropped, bool(best and variant and found != variant), found if found and found != variant else ""
    )


def _rank(one: WeightSet, variant: str) -> tuple[object, ...]:
    """Order main sets: wanted variant, plain, then the rest; safetensors before torch; whole; with an index; single."""
    wanted = 0 if one.key.variant == variant else 1 if not one.key.variant else 2
    return wanted, one.torch, bool(one.missing), one.index is None, one.key.count > 0, one.key


def _keeps(one: WeightSet, best: WeightSet) -> bool:
    """Say whether a set that loaders do not look for stays beside the one they do."""
    if best.torch:
        return one.torch and not one.key.variant
    copy = one.key.stem.startswith(("consolidated", "adapter_model"))
    return not one.torch and best.index is None and not copy and not one.key.variant and not one.missing


def _named(usable: Sequence[WeightSet]) -> list[WeightSet]:
    """Without main weights: everything once, safetensors before torch, plain before its variants."""
    safe = any(not one.torch for one in usable)
    pool = [one for one in usable if not (safe and one.torch)]
    best: dict[str, WeightSet] = {}
    for one in sorted(pool, key=lambda one: (bool(one.missing), one.index is None, bool(one.key.variant), one.key)):
        best.setdefault(one.key.stem, one)
    others = [stem for stem in best if not stem.startswith("consolidated")]
    return [one for stem, one in best.items() if stem in others or not others]


def _why(one: WeightSet, best: WeightSet | None) -> str:
    if best is not None and one.key.stem.startswith("adapter_model"):
        return "an adapter beside the model"
    if one.torch and (best is None or not best.torch):
        return "pickled weights beside safetensors"
    if best is not None and one.main and one.key.variant != best.key.variant:
        return f"the same weights in another variant ({one.key.variant or 'plain'})"
    if best is not None and best.index is not None:
        return f"not among the shards of {best.index.path}"
    return "a copy of the weights"
