"""What the operator keeps in memory of each object: its newest version, and what was done about it. No decisions."""

import dataclasses

from aimodels_core.api import ModelObject
from aimodels_operator.model import Sent
from aimodels_operator.readings import Reading


@dataclasses.dataclass(slots=True)
class Memory:
    """One object; lost at a restart without harm.

    Args:
        model: its newest version that was seen.
        sent: what the coordinator was last told.
        sent_at: monotonic seconds of that.
        refused: why the coordinator did not take it.
        withheld: there is no token to send it with.
        removed: the coordinator has removed it.
        remove_trouble: why it could not.
        reading: what reading its artifact back has shown.
        being_read: that goes on now.
        written_at: monotonic seconds of the last write to its status.
        failures: in a row.
    """

    model: ModelObject
    sent: Sent | None = None
    sent_at: float = 0.0
    refused: str = ""
    withheld: bool = False
    removed: bool = False
    remove_trouble: str = ""
    reading: Reading = dataclasses.field(default_factory=Reading)
    being_read: bool = False
    written_at: float = float("-inf")
    failures: int = 0


class Known:
    """All objects, by uid."""

    def __init__(self) -> None:
        self._memories: dict[str, Memory] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._memories

    def uids(self) -> set[str]:
        """All uids, as of now."""
        return set(self._memories)

    def get(self, uid: str) -> Memory | None:
        """What is kept of an object."""
        return self._memories.get(uid)

    def models(self) -> tuple[ModelObject, ...]:
        """The newest version of each object."""
        return tuple(memory.model for memory in self._memories.values())

    def memories(self) -> tuple[Memory, ...]:
        """What is kept of each object."""
        return tuple(self._memories.values())

    def take(self, model: ModelObject) -> bool:
        """Keep a version of an object unless a newer one is known; says whether it was kept."""
        memory = self._memories.get(model.uid)
        if memory is None:
            self._memories[model.uid] = Memory(model)
            return True
        if _older(model.resource_version, memory.model.resource_version):
            return False
        if model.generation != memory.model.generation:
            memory.refused = ""
        memory.model = model
        return True

    def drop(self, uid: str) -> None:
        """Forget an object."""
        self._memories.pop(uid, None)


def _older(new: str, kept: str) -> bool:
    """Compare resource versions of one object (Kubernetes 1.35: numbers that grow); odd ones count as newer."""
    return new.isdigit() and kept.isdigit() and int(new) < int(kept)
