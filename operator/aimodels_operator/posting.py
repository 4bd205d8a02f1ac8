"""Posts Events about models, in order, when nothing more urgent has to be written; when too many wait, new ones go."""

import asyncio
import datetime
import logging
from collections.abc import Awaitable, Callable

from aimodels_core.api import ModelObject
from aimodels_core.errors import ClusterUnavailable
from aimodels_operator.kube import Kube
from aimodels_operator.meters import Meters
from aimodels_operator.writes import Emit, Urgency

log = logging.getLogger(__name__)

_WAITING_MOST = 1000


class Poster:
    """The queue of Events.

    Args:
        kube: the API server.
        admit: waits for the rate limit and passes the fence; raises LeadershipLost.
        meters: counts.
        now: aware.
    """

    def __init__(
        self,
        kube: Kube,
        admit: Callable[[Urgency], Awaitable[None]],
        meters: Meters,
        now: Callable[[], datetime.datetime],
    ) -> None:
        self._kube = kube
        self._admit = admit
        self._meters = meters
        self._now = now
        self._waiting: asyncio.Queue[tuple[ModelObject, Emit]] = asyncio.Queue(_WAITING_MOST)

    def add(self, model: ModelObject, write: Emit) -> None:
        """Have an Event posted."""
        try:
            self._waiting.put_nowait((model, write))
        except asyncio.QueueFull:
            self._meters.count("EventDropped")

    async def run(self) -> None:
        """Post until cancelled.

        Raises:
            LeadershipLost.
        """
        while True:
            model, write = await self._waiting.get()
            await self._admit(Urgency.EVENT)
            note = ("Warning" if write.warning else "Normal", write.reason, write.message)
            try:
                await self._kube.post_event(model, note, self._now())
            except ClusterUnavailable as error:
                self._meters.count("EventRefused")
                log.info("event not posted", extra={"model": model.path, "error": error.message})
