"""Waiting until artifacts are on this node: one look at all that are waited for, several times a second."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from aimodels_core.digest import Digest
from aimodels_core.errors import AiModelsError
from aimodels_nodecache.threads import Threads

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.2


class Trees(Protocol):
    """Where whole artifacts are; calls block."""

    def tree(self, digest: Digest) -> Path | None:
        """Return the folder of an artifact; None when it is not here whole."""
        ...


class Arrivals:
    """Tells who waits when an artifact is there.

    Args:
        trees: are looked at.
        threads: where that is done.
    """

    def __init__(self, trees: Trees, threads: Threads) -> None:
        self._trees, self._threads = trees, threads
        self._wanted: dict[Digest, set[asyncio.Future[None]]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def wait(self, digest: Digest, seconds: float) -> bool:
        """Wait until an artifact is there; returns whether it came in time."""
        told = asyncio.get_running_loop().create_future()
        self._wanted.setdefault(digest, set()).add(told)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            async with asyncio.timeout(seconds):
                await told
        except TimeoutError:
            return False
        finally:
            self._wanted[digest].discard(told)
            if not self._wanted[digest]:
                del self._wanted[digest]
        return True

    async def _look(self) -> None:
        while self._wanted:
            await asyncio.sleep(LOOK_SECONDS)
            wanted = tuple(self._wanted)
            for digest in await self._threads(lambda: self._there(wanted)):  # noqa: B023 - awaited at once
                for told in self._wanted.get(digest, ()):
                    if not told.done():
                        told.set_result(None)

    def _there(self, wanted: Sequence[Digest]) -> tuple[Digest, ...]:
        found = []
        for digest in wanted:
            try:
                if self._trees.tree(digest) is not None:
                    found.append(digest)
            except (AiModelsError, OSError) as error:
                log.warning("cache cannot be read", extra={"digest": str(digest), "detail": str(error)})
        return tuple(found)
