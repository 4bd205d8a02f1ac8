"""What is in a store and what is held in it for publications, each blob once, by key and size. Pure.

Who may hold what is decided in `capacity`.
"""

import collections
from collections.abc import Collection, Mapping


class Occupancy:
    """The totals: `used_bytes` of what is there, `reserved_bytes` of what is held and not there yet."""

    def __init__(self) -> None:
        self.used_bytes = 0
        self.reserved_bytes = 0
        self._stored: dict[str, int] = {}
        self._unsure: dict[str, int] = {}
        """Unfinished uploads, and what ended publications may have left: counted until a listing tells."""
        self._held: dict[str, int] = {}
        self._holders: collections.Counter[str] = collections.Counter()

    @property
    def held(self) -> Collection[str]:
        """Keys that somebody holds, there or not."""
        return self._held.keys()

    def is_present(self, key: str) -> bool:
        """Whether the store has a blob, or may have it."""
        return key in self._stored or key in self._unsure

    def missing(self, blobs: Mapping[str, int]) -> frozenset[str]:
        """Keys that are neither there nor held."""
        return frozenset(key for key in blobs if not self.is_present(key) and key not in self._held)

    def hold(self, blobs: Mapping[str, int]) -> None:
        """Keep space for blobs; several may hold one."""
        for key, size in blobs.items():
            self._holders[key] += 1
            if self._holders[key] == 1:
                self._held[key] = size
                self.reserved_bytes += 0 if self.is_present(key) else size

    def release(self, blobs: Mapping[str, int]) -> None:
        """Take a `hold` back."""
        for key in blobs:
            self._holders[key] -= 1
            if not self._holders[key]:
                del self._holders[key]
                size = self._held.pop(key)
                self.reserved_bytes -= 0 if self.is_present(key) else size

    def put(self, blobs: Mapping[str, int], *, sure: bool) -> None:
        """Count blobs as there; those that are not sure only until the next listing."""
        for key, size in blobs.items():
            if not self.is_present(key):
                self.used_bytes += size
                self.reserved_bytes -= self._held.get(key, 0)
            if key not in self._stored and not sure:
                self._unsure[key] = size
            elif key not in self._stored:
                self._unsure.pop(key, None)
                self._stored[key] = size

    def replace(self, blobs: Mapping[str, int], unsure: Mapping[str, int]) -> None:
        """Believe a listing: this is there, and that may be."""
        self._stored, self._unsure = {}, {}
        self.used_bytes, self.reserved_bytes = 0, sum(self._held.values())
        self.put(blobs, sure=True)
        self.put(unsure, sure=False)
