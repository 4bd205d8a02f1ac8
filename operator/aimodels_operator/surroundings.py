"""What delivery looks at beside Pods: Models as they were last seen, nodes and what they tell. No decisions."""

import asyncio
import dataclasses
import datetime
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from aimodels_core.api import Kind, ModelObject
from aimodels_core.nodes import NodeReport
from aimodels_operator.kube_pods import PodCalls
from aimodels_operator.placement import Node
from aimodels_operator.pods import Delivered, Named, older
from aimodels_operator.sharedpvc_values import Answer, Need

NODES_SECONDS = 5.0
"""How old what is known of nodes may be."""
_ABSENT_SECONDS = 5.0
_ABSENT_MOST = 10_000

Reports = Mapping[str, NodeReport]


class Shared(Protocol):
    """Shared claims, as far as this module uses them."""

    async def answer(self, needs: Sequence[Need]) -> Answer:
        """Say whether a Pod that needs all this may go, and remember that it is needed.

        Raises:
            ClusterUnavailable, LeadershipLost.
        """
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Around:
    """What there is beside the API server.

    Args:
        lives: whether a Model with a uid is still there, as far as is known.
        reports: what nodes tell, by name; None while that is not known.
        shared: shared claims; None when models come from caches of nodes.
        claim_name: names the shared claim of a model.
        clock: monotonic seconds.
        now: aware.
    """

    lives: Callable[[str], bool]
    reports: Callable[[], Reports | None]
    shared: Shared | None = None
    claim_name: Callable[[Kind, str], str] = lambda _kind, name: name
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC)


class Models:
    """Models by kind, namespace and name; those that seem not to be there are looked for now and then.

    Args:
        calls: the API server.
        lives: whether the object with a uid is still there, as far as is known.
        clock: monotonic seconds.
    """

    def __init__(
        self, calls: PodCalls, lives: Callable[[str], bool], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._calls = calls
        self._lives = lives
        self._clock = clock
        self._found: dict[Named, Delivered] = {}
        self._absent: dict[Named, float] = {}

    def see(self, kind: Kind, raw: Mapping[str, Any], *, gone: bool) -> Named:
        """Take in a version of an object; says whom it may matter to."""
        model = ModelObject.from_raw(kind, raw)
        named = Named(kind, model.namespace, model.name)
        kept = self._found.get(named)
        if gone:
            if kept is not None and kept.uid == model.uid:
                del self._found[named]
        elif kept is None or not older(model.resource_version, kept.version):
            self._found[named] = Delivered.of(model)
            self._absent.pop(named, None)
        return named

    def known(self, named: Named) -> Delivered | None:
        """The last version that was seen of a Model; None when it is not there."""
        found = self._found.get(named)
        return found if found is not None and self._lives(found.uid) else None

    def all(self) -> tuple[Delivered, ...]:
        """All that were seen and are there."""
        return tuple(found for found in self._found.values() if self._lives(found.uid))

    async def of(self, named: Named) -> Delivered | None:
        """Find a Model; None when it is not there.

        Raises:
            ClusterUnavailable.
        """
        found = self.known(named)
        if found is not None:
            return found
        if self._clock() - self._absent.get(named, float("-inf")) < _ABSENT_SECONDS:
            return None
        model = await self._calls.model(named)
        if model is not None:
            return Delivered.of(model)
        if len(self._absent) >= _ABSENT_MOST:
            self._absent.clear()
        self._absent[named] = self._clock()
        return None


class Nodes:
    """Nodes that carry our label.

    Args:
        calls: the API server.
        clock: monotonic seconds.
    """

    def __init__(self, calls: PodCalls, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._calls = calls
        self._clock = clock
        self._lock = asyncio.Lock()
        self._at = float("-inf")
        self._found: tuple[Node, ...] = ()

    async def all(self) -> tuple[Node, ...]:
        """All of them, as they were a moment ago.

        Raises:
            ClusterUnavailable.
        """
        async with self._lock:
            if self._clock() - self._at >= NODES_SECONDS:
                self._found = await self._calls.nodes()
                self._at = self._clock()
            return self._found


def gist(reports: Reports | None) -> Mapping[str, frozenset[str]] | None:
    """What of reports lets Pods go: artifacts that nodes hold, and those that they have no room for."""
    if reports is None:
        return None
    return {
        name: frozenset(
            {one.digest for one in report.held} | {f"no room: {one.digest}" for one in report.warming if one.no_room}
        )
        for name, report in reports.items()
    }
