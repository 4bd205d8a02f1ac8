"""What an agent does next: which artifacts are fetched, whose fetching ends, which are removed. Pure.

Pods that were placed here come first (their records), then Pods that wait, then what is wanted ahead of time. Room is
made by removing what was used longest ago; nothing that a Pod uses, nothing for the sake of something less important.
"""

import dataclasses
import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from aimodels_core import names
from aimodels_core.digest import Digest
from aimodels_core.errors import UsageError
from aimodels_core.nodes import NodeWant
from aimodels_nodecache.cache import Kept
from aimodels_nodecache.podrecords import PodRecord

AT_ONCE = 2
"""Artifacts that are fetched at the same time."""
RESERVE = 50
"""One part of so many of a device stays free: file systems are slow when full."""


class Rank(enum.IntEnum):
    """How much an artifact matters, the least first."""

    AHEAD = 1
    WAITING = 2
    PLACED = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Need:
    """An artifact that should be here.

    Args:
        digest: of its manifest.
        repositories: where it may be, the likeliest first.
        rank: how much it matters.
        size_bytes: of its files; 0 while unknown.
    """

    digest: Digest
    repositories: tuple[str, ...]
    rank: Rank
    size_bytes: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Room:
    """A device.

    Args:
        folder: of it.
        size_bytes: of its file system.
        free_bytes: of that.
    """

    folder: Path
    size_bytes: int
    free_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """All that a decision looks at.

    Args:
        needs: what should be here, the most important first.
        kept: what is here.
        used: artifacts that Pods use.
        running: artifacts on their way, with the bytes that are still to come.
        resting: artifacts that failed a moment ago.
        rooms: devices that can be used.
        cache_bytes: how much may be here in all; 0 for what fits.
    """

    needs: Sequence[Need]
    kept: Mapping[Digest, Kept]
    used: Collection[Digest]
    running: Mapping[Digest, tuple[Path, int]]
    resting: Collection[Digest]
    rooms: Sequence[Room]
    cache_bytes: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Agenda:
    """What is to be done.

    Args:
        stop: artifacts whose fetching ends.
        remove: artifacts to remove first, for others.
        start: artifacts to fetch, with their devices.
        no_room: artifacts for which there is none.
    """

    stop: tuple[Digest, ...] = ()
    remove: tuple[Kept, ...] = ()
    start: tuple[tuple[Need, Path], ...] = ()
    no_room: tuple[Digest, ...] = ()


def needs_of(records: Iterable[PodRecord], want: NodeWant, sizes: Mapping[Digest, int]) -> tuple[Need, ...]:
    """Say what should be here, each artifact once, the most important first."""
    found: dict[Digest, Need] = {}
    for record in records:
        for model in record.models:
            places = (_repository(record.namespace), names.CLUSTER)
            need = Need(model.digest, places, Rank.PLACED, sizes.get(model.digest, 0))
            found.setdefault(model.digest, need)
    for warm in want.models:
        digest = Digest.parse(warm.digest)
        rank = Rank.WAITING if warm.pods else Rank.AHEAD
        size_bytes = warm.size_bytes or sizes.get(digest, 0)
        found.setdefault(digest, Need(digest, (warm.repository,), rank, size_bytes))
    return tuple(sorted(found.values(), key=lambda need: -need.rank))


def decide(seen: Seen) -> Agenda:
    """Say what is to be done now. Needs whose size is unknown wait until it is."""
    wanted = {need.digest: need for need in seen.needs}
    stop = tuple(digest for digest in seen.running if digest not in wanted)
    table = _Table(seen, wanted)
    slots = AT_ONCE - len(seen.running) + len(stop)
    start, no_room = [], []
    for need in seen.needs:
        if need.digest in seen.kept or need.digest in seen.running or not need.size_bytes:
            continue
        place = table.place(need, commit=slots > 0 and need.digest not in seen.resting)
        if place is None:
            no_room.append(need.digest)
        elif slots > 0 and need.digest not in seen.resting:
            start.append((need, place))
            slots -= 1
    return Agenda(stop, tuple(table.removed), tuple(start), tuple(no_room))


class _Table:
    """What is free where, while a decision is being made."""

    def __init__(self, seen: Seen, wanted: Mapping[Digest, Need]) -> None:
        self._rooms = {room.folder: room.free_bytes - room.size_bytes // RESERVE for room in seen.rooms}
        coming = 0
        for folder, left in seen.running.values():
            coming += left
            if folder in self._rooms:
                self._rooms[folder] -= left
        held = sum(kept.size_bytes for kept in seen.kept.values())
        self._left = seen.cache_bytes - held - coming if seen.cache_bytes else 1 << 62
        ranks = {digest: need.rank for digest, need in wanted.items()}
        idle = [kept for kept in seen.kept.values() if kept.digest not in seen.used]
        self._idle = sorted(idle, key=lambda kept: (ranks.get(kept.digest, 0), kept.used_at))
        self._ranks = ranks
        self.removed: list[Kept] = []

    def place(self, need: Need, *, commit: bool) -> Path | None:
        """Find a device for an artifact; with `commit`, take the room, and note what is removed for it."""
        best: tuple[int, Path, list[Kept]] | None = None
        for folder, free in self._rooms.items():
            victims = self._victims(need, folder, free)
            if victims is not None and (best is None or (len(victims), -free) < (best[0], -self._rooms[best[1]])):
                best = (len(victims), folder, victims)
        if best is None:
            return None
        if commit:
            for kept in best[2]:
                self._idle.remove(kept)
                self._left += kept.size_bytes
                self._rooms[kept.device] = self._rooms.get(kept.device, 0) + kept.size_bytes
            self.removed += best[2]
            self._left -= need.size_bytes
            self._rooms[best[1]] -= need.size_bytes
        return best[1]

    def _victims(self, need: Need, folder: Path, free: int) -> list[Kept] | None:
        """What has to go for an artifact on a device; None when even that is not enough."""
        victims: list[Kept] = []
        left = self._left
        for kept in (None, *self._idle):
            if kept is not None:
                if self._ranks.get(kept.digest, 0) >= need.rank or (
                    free >= need.size_bytes and left >= need.size_bytes
                ):
                    continue
                if kept.device != folder and left >= need.size_bytes:
                    continue
                victims.append(kept)
                left += kept.size_bytes
                free += kept.size_bytes if kept.device == folder else 0
            if free >= need.size_bytes and left >= need.size_bytes:
                return victims
        return None


def _repository(namespace: str) -> str:
    try:
        return names.namespace_repository(namespace)
    except UsageError:
        return names.CLUSTER
