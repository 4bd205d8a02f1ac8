"""Has the coordinator collect now and then (design 4.9), when it knows everything that should be published.

What a publication counts on lives in the coordinator's memory; after its restart it learns that from the wants.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

from aimodels_core.errors import AiModelsError
from aimodels_core.messages import PublicationState
from aimodels_operator.known import Memory
from aimodels_operator.meters import Meters
from aimodels_operator.model import Link, is_wanted

log = logging.getLogger(__name__)

EVERY_SECONDS = 600.0
_LOOK_SECONDS = 5.0


class Coordinator(Protocol):
    """The coordinator, as far as this module uses it."""

    states: dict[str, PublicationState]
    link: Link

    async def collect(self) -> int:
        """Have it remove what nobody names; returns the bytes that were freed.

        Raises:
            CoordinatorUnavailable, UsageError.
        """
        ...


def may_collect(memories: Iterable[Memory], states: Mapping[str, PublicationState], link: Link) -> bool:
    """Say whether this coordinator writes to the store and knows every model that should be published.

    Models whose want is not sent, for lack of a token or because it was refused, have nothing in the store to lose.
    """
    if not link.epoch or link.silent_since is not None or link.holder:
        return False
    unsent = (m for m in memories if is_wanted(m.model) and m.model.uid not in states)
    return all(memory.withheld or memory.refused for memory in unsent)


async def run(
    coordinator: Coordinator,
    memories: Callable[[], Iterable[Memory]],
    check: Callable[[], None],
    meters: Meters,
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Ask for a collection every ten minutes until cancelled.

    Args:
        coordinator: who is asked.
        memories: all models.
        check: the fence; raises LeadershipLost.
        meters: counts.
        sleep: waits.

    Raises:
        LeadershipLost.
    """
    while True:
        await sleep(EVERY_SECONDS)
        while not may_collect(memories(), coordinator.states, coordinator.link):
            await sleep(_LOOK_SECONDS)
        check()
        try:
            freed = await coordinator.collect()
        except AiModelsError as error:
            meters.count(error.code)
            meters.collected(good=False)
            log.warning("collection failed", extra={"error": error.message})
        else:
            meters.collected(good=True)
            log.info("collection done", extra={"bytes": freed})
