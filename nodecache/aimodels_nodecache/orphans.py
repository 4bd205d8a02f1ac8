"""Collection of what Pods left that are gone: mounts below kubelet's folder, and records.

Kubelet forgets inline volumes at times (kubernetes#127229). Gone is a Pod that the API server does not have on this
node in two looks, one after another; while it does not answer, nothing is touched.
"""

import asyncio
import logging
from pathlib import Path
from typing import Protocol

from aimodels_core.errors import AiModelsError, ClusterUnavailable
from aimodels_nodecache.ledger import Ledger
from aimodels_nodecache.threads import Threads
from aimodels_nodecache.volumes import Volumes

log = logging.getLogger(__name__)

_FIRST_SECONDS = 30.0


class Lister(Protocol):
    """Who knows the Pods of a node."""

    async def uids_on(self, node: str) -> frozenset[str]:
        """Return the uids of all Pods that are bound to a node.

        Raises:
            ClusterUnavailable.
        """
        ...


class Orphans:
    """Looks for Pods that are gone.

    Args:
        node: name of this node.
        volumes: what is mounted.
        ledger: what is remembered.
        pods: knows which Pods there are.
        threads: where mounts are looked at.
        seconds: between looks.
    """

    def __init__(
        self, node: str, volumes: Volumes, ledger: Ledger, pods: Lister, threads: Threads, *, seconds: float
    ) -> None:
        self._seconds = seconds
        self._node, self._volumes, self._ledger = node, volumes, ledger
        self._pods, self._threads = pods, threads
        self._suspects: frozenset[str] = frozenset()
        self.collected = 0

    async def run(self) -> None:
        """Look now and then, for ever."""
        await asyncio.sleep(min(_FIRST_SECONDS, self._seconds))
        while True:
            try:
                await self.look()
            except (AiModelsError, OSError) as error:
                log.warning("orphans were not looked for", extra={"detail": str(error)})
            await asyncio.sleep(self._seconds)

    async def look(self) -> frozenset[str]:
        """Collect what belongs to Pods that were gone at the last look, too; returns them.

        Raises:
            ClusterUnavailable: the API server does not say which Pods there are; nothing was touched.
            OSError: the kernel does not say what is mounted.
        """
        # What is ours comes first: a Pod that is seen here was bound to this node before the list was made.
        mounted = await self._threads(self._volumes.all)
        ours = self._ledger.uids | mounted.keys()
        try:
            gone = ours - await self._pods.uids_on(self._node) if ours else frozenset[str]()
        except ClusterUnavailable:
            self._suspects = frozenset()
            raise
        done = set[str]()
        for uid in gone & self._suspects:
            try:
                if not self._ledger.publishes(uid) and await self._collect(uid, mounted.get(uid, ())):
                    done.add(uid)
            except (AiModelsError, OSError) as error:
                log.warning("orphan stays", extra={"pod_uid": uid, "detail": str(error)})
        self._suspects = frozenset(gone - done)
        self.collected += len(done)
        return frozenset(done)

    async def _collect(self, uid: str, targets: tuple[Path, ...]) -> bool:
        for target in targets:
            await self._threads(lambda: self._volumes.unpublish(target))  # noqa: B023 - awaited at once
        log.info("collected what a Pod left that is gone", extra={"pod_uid": uid, "mounts": len(targets)})
        return await self._ledger.forget(uid, lambda: bool(self._volumes.mounted(uid)))
