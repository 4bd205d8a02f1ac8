"""The ledger of a store with a limit: what it holds, what publications have reserved, who may go on next. Pure.

Space is counted in blobs, each once, however many models and publications share it. A key is a digest, or any name of
its own for a file whose digest is not known yet. Who asks for space gets all that its plan lacks, or waits; older ones
go first: a younger one may store nothing while an older one waits, unless the older one needs the same blobs too.
"""

import dataclasses
import enum
from collections.abc import Collection, Mapping

from aimodels_core.units import human_bytes
from aimodels_jobs.occupancy import Occupancy


class Verdict(enum.Enum):
    """What the ledger says to a publication."""

    GRANTED = "granted"
    """All it lacks is reserved."""
    SOON = "soon"
    """There is room, but older ones have not said yet what they need."""
    NO_ROOM = "no room"
    """It waits until space appears."""
    NEVER = "never"
    """It is larger than the limit. It blocks nobody."""


@dataclasses.dataclass(frozen=True, slots=True)
class Need:
    """What a publication needs.

    Args:
        uid: of its want.
        created: Unix seconds; the older one goes first.
        blobs: size of everything that it consists of, what the store has included.
        asked_bytes: of what it must read, for people: says nothing of blobs that it may not know of.
    """

    uid: str
    created: float
    blobs: Mapping[str, int]
    asked_bytes: int

    @property
    def order(self) -> tuple[float, str]:
        """Sort key: by age."""
        return (self.created, self.uid)

    @property
    def size_bytes(self) -> int:
        """Bytes of all blobs."""
        return sum(self.blobs.values())


class Ledger:
    """What a store holds and what is reserved in it.

    Args:
        limit_bytes: of all blobs together, > 0.
        opened: grants may be given from the start; else from `open` on, once it is known who is there.
    """

    def __init__(self, limit_bytes: int, *, opened: bool = True) -> None:
        if limit_bytes <= 0:
            raise ValueError(f"capacity: want a limit of at least one byte, got {limit_bytes}")
        self.limit_bytes = limit_bytes
        self.opened = opened
        self.drift_bytes = 0
        """What the last listing corrected: found less believed."""
        self._space = Occupancy()
        self._recent: dict[str, int] | None = None
        """What may have been stored since a listing began; None while there is none."""
        self._granted: dict[str, Need] = {}
        self._waiting: dict[str, Need] = {}
        self._planning: dict[str, float] = {}
        self._listed = False

    @property
    def used_bytes(self) -> int:
        """What the store holds, unfinished uploads included as far as their size is known."""
        return self._space.used_bytes

    @property
    def reserved_bytes(self) -> int:
        """What publications that may go on will add to it."""
        return self._space.reserved_bytes

    @property
    def free_bytes(self) -> int:
        """What is neither used nor reserved; never negative."""
        return max(0, self.limit_bytes - self.used_bytes - self.reserved_bytes)

    @property
    def waiting(self) -> Collection[str]:
        """Who waits for space; those larger than the limit too."""
        return tuple(self._waiting)

    @property
    def is_short(self) -> bool:
        """Whether somebody waits who would go on if there were more space."""
        return any(need.size_bytes <= self.limit_bytes for need in self._waiting.values())

    @property
    def planning(self) -> bool:
        """Whether somebody has not said yet what it needs."""
        return not self.opened or bool(self._planning)

    @property
    def reserved(self) -> Collection[str]:
        """Keys of all blobs of publications that may go on, stored or not."""
        return tuple(self._space.held)

    def holds(self, uid: str) -> bool:
        """Whether a publication was granted what it asked for."""
        return uid in self._granted

    def open(self) -> None:
        """From now on grants are given: everybody who was there before has had time to come."""
        self.opened = True
        self._grant()

    def expect(self, uid: str, created: float) -> None:
        """A publication begins and will ask: younger ones let it do so first."""
        if uid not in self._granted:
            self._planning[uid] = created

    def unexpect(self, uid: str) -> None:
        """It will not ask soon."""
        if self._planning.pop(uid, None) is not None:
            self._grant()

    def ask(self, need: Need) -> Verdict:
        """Ask for all that a plan lacks, or ask again: who does not need more than it was granted keeps its place."""
        self._planning.pop(need.uid, None)
        self._waiting.pop(need.uid, None)
        before = self._granted.get(need.uid)
        if before is not None:
            self._release(before)
        if before is not None and self._lacks(need) <= self._lacks(before):
            self._hold(need)
        else:
            self._waiting[need.uid] = need
        self._grant()
        return self.verdict(need.uid)

    def verdict(self, uid: str) -> Verdict:
        """Say what became of a publication that has asked."""
        need = self._waiting.get(uid)
        if need is None:
            return Verdict.GRANTED
        if need.size_bytes > self.limit_bytes:
            return Verdict.NEVER
        if self._lacks(need) > self.free_bytes or self._ahead(need):
            return Verdict.NO_ROOM
        return Verdict.SOON

    def words(self, uid: str) -> str:
        """Say why a publication waits; empty when it does not."""
        need = self._waiting.get(uid)
        if need is None:
            return ""
        limit = human_bytes(self.limit_bytes)
        if need.size_bytes > self.limit_bytes:
            return f"needs {human_bytes(need.size_bytes)}, the whole store may hold {limit}"
        words = f"needs {human_bytes(need.asked_bytes)}, {human_bytes(self.free_bytes)} of {limit} are free"
        ahead = self._ahead(need)
        return f"{words}, and an older one that needs {human_bytes(ahead.asked_bytes)} goes first" if ahead else words

    def settle(self, uid: str, blobs: Mapping[str, int]) -> None:
        """A publication is done: these are its blobs, and nothing else of it is in the store."""
        need = self._granted.get(uid)
        if need is not None:
            self._release(need)
        self._put(blobs, sure=True)

    def leave(self, uid: str) -> bool:
        """A publication has ended without being done; says whether it may have left something to collect."""
        self._planning.pop(uid, None)
        self._waiting.pop(uid, None)
        need = self._granted.get(uid)
        if need is None:
            self._grant()
            return False
        self._release(need)
        self._put({key: need.blobs[key] for key in self._space.missing(need.blobs)}, sure=False)
        return True

    def begin_listing(self) -> None:
        """A listing begins; what happens from now on may or may not be in it."""
        self._recent = {}

    def listed(self, blobs: Mapping[str, int], uploads: Mapping[str, int], *, removed_bytes: int = 0) -> None:
        """Believe a listing.

        Args:
            blobs: what the store holds.
            uploads: unfinished uploads, as far as the store tells their size.
            removed_bytes: what was removed in the course of it.
        """
        believed = self.used_bytes + self.reserved_bytes - removed_bytes
        self._space.replace(blobs, {**uploads, **(self._recent or {})})
        self._recent = None
        if self._listed:
            self.drift_bytes = self.used_bytes + self.reserved_bytes - believed
        self._listed = True
        self._grant()

    def _lacks(self, need: Need) -> int:
        return sum(need.blobs[key] for key in self._space.missing(need.blobs))

    def _ahead(self, need: Need) -> Need | None:
        """The oldest one that waits for space before another, and may get it one day."""
        before = (other for other in self._waiting.values() if other.order < need.order)
        fitting = (other for other in before if other.size_bytes <= self.limit_bytes)
        oldest = min(fitting, key=lambda other: other.order, default=None)
        return oldest if oldest is not None and self._lacks(oldest) > self.free_bytes else None

    def _grant(self) -> None:
        """Let go on who may, in order of age.

        Whoever comes after one that waits may only store what all those before it wait for too.
        """
        fitting = [(need.order, need) for need in self._waiting.values() if need.size_bytes <= self.limit_bytes]
        unknown = [((created, uid), None) for uid, created in self._planning.items()]
        shared = None if self.opened else frozenset[str]()
        for _, need in sorted((*fitting, *unknown), key=lambda item: item[0]):
            if need is None:
                shared = frozenset()
                continue
            missing = self._space.missing(need.blobs)
            if (shared is None or missing <= shared) and self._lacks(need) <= self.free_bytes:
                del self._waiting[need.uid]
                self._hold(need)
            else:
                shared = missing if shared is None else shared & missing

    def _hold(self, need: Need) -> None:
        self._granted[need.uid] = need
        self._space.hold(need.blobs)

    def _release(self, need: Need) -> None:
        del self._granted[need.uid]
        self._space.release(need.blobs)

    def _put(self, blobs: Mapping[str, int], *, sure: bool) -> None:
        self._space.put(blobs, sure=sure)
        if self._recent is not None:
            self._recent.update(blobs)
        self._grant()
