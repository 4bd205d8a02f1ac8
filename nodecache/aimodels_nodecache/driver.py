"""The CSI driver of a node: volumes of Pods published and unpublished, from what is on this node and from the live Pod.

A publication asks for the Pod, writes down what it gets, and binds the artifact's tree when it is there; what is not
there yet is waited for within the call, since kubelet's own pauses between calls grow to minutes.
"""

import asyncio
import contextlib
import dataclasses
import errno
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from aimodels_core.digest import Digest
from aimodels_core.errors import AiModelsError, ClusterUnavailable
from aimodels_nodecache import grants
from aimodels_nodecache.arrivals import Arrivals, Trees
from aimodels_nodecache.grants import Asked, Away, Code, Granted, LivePod, NotYet, Place, Refusal
from aimodels_nodecache.ledger import Ledger
from aimodels_nodecache.threads import Threads
from aimodels_nodecache.volumes import Usage, Volumes

log = logging.getLogger(__name__)

_AGAIN_SECONDS = 1.0
"""So often a Pod is asked for that was not told yet what it gets."""
_POD_SECONDS = 10.0
"""So often a Pod is asked for whose artifact is not here yet: it may be deleted meanwhile."""
_MAX_ID_CHARS = 256


class Reader(Protocol):
    """Who reads Pods."""

    async def get(self, namespace: str, name: str) -> LivePod | None:
        """Read one; None when there is none.

        Raises:
            ClusterUnavailable.
        """
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """How long, and how many at once.

    Args:
        wait_seconds: most that a publication waits within its call; kubelet gives up after two minutes.
        waiters: most that wait at once.
    """

    wait_seconds: float = 100.0
    waiters: int = 256


@dataclasses.dataclass(slots=True)
class Figures:
    """What is counted.

    Args:
        calls: by method and answer.
        waiting: publications that wait now.
        mounts: publications that were mounted.
        mount_seconds: what they took of this process's own time, after the Pod was read.
    """

    calls: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)
    waiting: int = 0
    mounts: int = 0
    mount_seconds: float = 0.0


class Driver:
    """Does what kubelet asks for.

    Args:
        node: name of this node in Kubernetes.
        kubelet_dir: kubelet's folder.
        volumes: mounts.
        trees: what is on this node.
        ledger: what is remembered.
        pods: reads Pods.
        threads: where mounts are made.
        limits: how long, how many.
    """

    def __init__(
        self,
        node: str,
        kubelet_dir: Path,
        *,
        volumes: Volumes,
        trees: Trees,
        ledger: Ledger,
        pods: Reader,
        threads: Threads,
        limits: Limits,
    ) -> None:
        self.node, self.limits, self.figures = node, limits, Figures()
        self._kubelet = str(kubelet_dir)
        self._volumes, self._trees, self._ledger, self._pods = volumes, trees, ledger, pods
        self._threads, self._arrivals = threads, Arrivals(trees, threads)
        self._busy: set[str] = set()

    async def publish(
        self, volume: str, target: str, context: Mapping[str, str], *, mountable: bool, seconds: float
    ) -> Refusal | None:
        """Have a volume mounted; returns why it is not.

        Args:
            volume: its id.
            target: where.
            context: its attributes, and its Pod as kubelet has it.
            mountable: whether a file system is asked for, not a block device.
            seconds: most that may be waited for what is missing.
        """
        wanted = grants.asked(volume, target, context, mountable=mountable, kubelet_dir=self._kubelet)
        if isinstance(wanted, Refusal):
            return wanted
        until = time.monotonic() + min(seconds, self.limits.wait_seconds)
        return await self._alone(volume, lambda: self._publish(wanted, until))

    async def unpublish(self, volume: str, target: str) -> Refusal | None:
        """Have nothing mounted at a target, and forget its Pod with its last volume; returns why it is not so."""
        if not volume or not target:
            return Refusal(Code.INVALID_ARGUMENT, f"{'target_path' if volume else 'volume_id'}: want one, got nothing")
        place = grants.place_of(target, self._kubelet)
        if place is None:
            log.warning("not a volume of a Pod: nothing of ours is there", extra={"target": target[:512]})
            return None
        return await self._alone(volume, lambda: self._unpublish(place))

    async def usage(self, target: str) -> Usage | Refusal:
        """Say what the volume at a target holds, or why that is not known."""
        place = grants.place_of(target, self._kubelet)
        try:
            found = await self._threads(lambda: self._volumes.usage(Path(place.target))) if place else None
        except OSError as error:
            return Refusal(Code.INTERNAL, f"{error.filename}: {error.strerror}")
        return found or Refusal(Code.NOT_FOUND, "volume_path: no volume is mounted there")

    async def _alone(self, volume: str, work: Callable[[], Awaitable[Refusal | None]]) -> Refusal | None:
        """Do something about a volume unless it is being worked at; errors of the node become refusals."""
        if len(volume) > _MAX_ID_CHARS:
            return Refusal(Code.INVALID_ARGUMENT, f"volume_id: want at most {_MAX_ID_CHARS} characters")
        if volume in self._busy:
            return Refusal(Code.ABORTED, f"volume {volume}: it is being worked at already")
        self._busy.add(volume)
        try:
            return await work()
        except AiModelsError as error:
            return Refusal(Code.UNAVAILABLE if error.retryable else Code.INTERNAL, error.message)
        except OSError as error:
            busy = error.errno == errno.EBUSY
            return Refusal(Code.UNAVAILABLE if busy else Code.INTERNAL, f"{error.filename}: {error.strerror}")
        finally:
            self._busy.discard(volume)

    async def _publish(self, wanted: Asked, until: float) -> Refusal | None:
        """Have a volume mounted, and wait for what is missing; returns why it is not.

        Args:
            wanted: the volume.
            until: when to give up, in monotonic seconds.

        Raises:
            AiModelsError, OSError: the node cannot do it.
        """
        with self._ledger.publishing(wanted.place.uid), contextlib.ExitStack() as waiting:
            waits = False
            while True:
                decided = await self._decide(wanted)
                if isinstance(decided, Refusal):
                    return decided
                if isinstance(decided, Granted) and await self._mount(decided, wanted):
                    return None
                words = _missing(decided, wanted)
                left = until - time.monotonic()
                if left <= 0 or (isinstance(decided, Granted) and decided.deleting):
                    return Refusal(Code.UNAVAILABLE, words)
                if not waits:
                    if self.figures.waiting >= self.limits.waiters:
                        return Refusal(Code.UNAVAILABLE, f"{words}; {self.figures.waiting} others wait on this node")
                    waiting.enter_context(self._waiting())
                    waits = True
                if isinstance(decided, Granted):
                    await self._arrivals.wait(decided.digest, min(left, _POD_SECONDS))
                else:
                    await asyncio.sleep(min(left, _AGAIN_SECONDS))

    async def _unpublish(self, place: Place) -> None:
        await self._threads(lambda: self._volumes.unpublish(Path(place.target)))
        await self._ledger.forget(place.uid, lambda: bool(self._volumes.mounted(place.uid)))

    async def _decide(self, wanted: Asked) -> Granted | Refusal | NotYet:
        live: LivePod | Away | None
        try:
            live = await self._pods.get(wanted.namespace, wanted.pod)
        except ClusterUnavailable as error:
            live = Away(error.message)
        return grants.grant(wanted, live, self._ledger.of(wanted.place.uid), self.node)

    async def _mount(self, granted: Granted, wanted: Asked) -> bool:
        """Write down what a Pod gets, and mount it; returns False when it is not here."""
        began = time.monotonic()
        await self._ledger.remember(granted.record)
        there = await self._threads(lambda: self._bind(granted.digest, Path(wanted.place.target)))
        if there:
            self.figures.mounts += 1
            self.figures.mount_seconds += time.monotonic() - began
        return there

    def _bind(self, digest: Digest, target: Path) -> bool:
        """Bind a tree. Who removes trees looks at records once one is out of sight: what is in sight then stays."""
        tree = self._trees.tree(digest)
        if tree is None:
            return False
        try:
            self._volumes.publish(tree, target)
        except FileNotFoundError:
            if self._trees.tree(digest) is not None:
                raise
            return False
        if self._trees.tree(digest) != tree:
            self._volumes.unpublish(target)
            return False
        return True

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        self.figures.waiting += 1
        try:
            yield
        finally:
            self.figures.waiting -= 1


def _missing(decided: Granted | NotYet, wanted: Asked) -> str:
    if isinstance(decided, NotYet):
        return decided.words
    return f"{wanted.words}: model {wanted.model} ({decided.digest}) is not on this node yet; it is being fetched"
