"""Who is above a Pod: its controllers, bottom up, remembered for a while. No decisions."""

import dataclasses
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping

from aimodels_operator.kube_pods import PodCalls
from aimodels_operator.pods import Owner, Pod

KEEP_SECONDS = 60.0
KEEP_MOST = 10_000
_LEVELS_MOST = 5


class Owners:
    """Controllers, by uid.

    Args:
        calls: the API server.
        clock: monotonic seconds.
    """

    def __init__(self, calls: PodCalls, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._calls = calls
        self._clock = clock
        self._kept: OrderedDict[str, tuple[float, tuple[Owner, Owner | None] | None]] = OrderedDict()

    async def of(self, pod: Pod) -> tuple[Owner, ...]:
        """Find the controllers of a Pod, the nearest first, as far as we know their kinds.

        Raises:
            ClusterUnavailable.
        """
        found: list[Owner] = []
        above = pod.owner
        while above is not None and len(found) < _LEVELS_MOST:
            looked = await self._look(above)
            if looked is None:
                break
            found.append(looked[0])
            above = looked[1]
        return tuple(found)

    def changed(self, owner: Owner, changes: Mapping[str, str | None]) -> None:
        """Take in that annotations of an object were changed."""
        kept = self._kept.get(owner.uid)
        if kept is not None and kept[1] is not None:
            notes = {**kept[1][0].annotations, **changes}
            left = {key: value for key, value in notes.items() if value is not None}
            self._kept[owner.uid] = (kept[0], (dataclasses.replace(kept[1][0], annotations=left), kept[1][1]))

    def newest(self, owner: Owner) -> Owner:
        """The newest that is remembered of an object, or the object as given."""
        kept = self._kept.get(owner.uid)
        return kept[1][0] if kept is not None and kept[1] is not None else owner

    def forget(self, owner: Owner) -> None:
        """Have an object looked at anew."""
        self._kept.pop(owner.uid, None)

    async def _look(self, owner: Owner) -> tuple[Owner, Owner | None] | None:
        kept = self._kept.get(owner.uid)
        if kept is not None and self._clock() - kept[0] < KEEP_SECONDS:
            return kept[1]
        looked = await self._calls.owner(owner)
        self._kept[owner.uid] = (self._clock(), looked)
        self._kept.move_to_end(owner.uid)
        while len(self._kept) > KEEP_MOST:
            self._kept.popitem(last=False)
        return looked
