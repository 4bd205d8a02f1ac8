"""The agent of a node: it keeps on the node's devices what its Pods use and what it was told to warm.

A plain class; Ray runs it as an actor (`aimodels_jobs.fleet`), tests as it is. It shares the folder of the cache with
the CSI driver and nothing else. One agent per node works: it holds a lock in that folder, and another one waits for it.
"""

import asyncio
import contextlib
import dataclasses
import fcntl
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from aimodels_core.digest import Digest
from aimodels_core.errors import AiModelsError, Cancelled, StoreFull
from aimodels_core.nodes import Held, NodeReport, NodeWant, Warming
from aimodels_nodecache import agenda, agent_settings, audit
from aimodels_nodecache.agenda import Agenda, Need, Room, Seen
from aimodels_nodecache.cache import Cache, Kept
from aimodels_nodecache.fetching import Fetcher, Progress, Source
from aimodels_nodecache.podrecords import PodRecords
from aimodels_nodecache.trees import LOCK

T = TypeVar("T")
log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
CHECK_SECONDS = 30.0
_TOUCH_SECONDS = 60.0
_TIDY_SECONDS = 30.0
_AUDIT_SECONDS = 600.0
_REST_SECONDS = (1.0, 60.0)
_MAX_SIZES = 10_000
_MAX_TEXT = 512


@dataclasses.dataclass(slots=True)
class _Running:
    """An artifact on its way."""

    need: Need
    device: Path
    progress: Progress


@dataclasses.dataclass(frozen=True, slots=True)
class _Failed:
    """An artifact that could not be fetched.

    Args:
        times: in a row.
        until: when it is tried again, in monotonic seconds.
        words: why.
        no_room: whether room is what lacks.
    """

    times: int
    until: float
    words: str
    no_room: bool = False


class Agent:
    """Looks after one node's cache.

    Args:
        node: its name in Kubernetes.
        root: folder of the cache.
        source: where artifacts come from.
        cache: what is on the devices.
        audit_bytes_per_second: how fast what is here is read again; 0 for never.
        check_seconds: between looks whether all files are there in their sizes.
        clock: monotonic seconds.
        now: Unix seconds.
    """

    def __init__(
        self,
        node: str,
        root: Path,
        source: Source,
        cache: Cache,
        *,
        audit_bytes_per_second: int = 0,
        check_seconds: float = CHECK_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._node, self._root, self._source, self._cache = node, root, source, cache
        self._records = PodRecords(root / "records")
        self._pace, self._check, self._clock, self._now = audit_bytes_per_second, check_seconds, clock, now
        self._want = NodeWant(node)
        self._sizes: dict[Digest, int] = {}
        self._running: dict[Digest, _Running] = {}
        self._failed: dict[Digest, _Failed] = {}
        self._audited: dict[Digest, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._done: dict[str, float] = {}
        self._report = NodeReport(node, now(), trouble="begins")
        # Fetches, looks, and one audit.
        self._pool = ThreadPoolExecutor(agenda.AT_ONCE + 3, "agent")

    async def want(self, body: bytes) -> None:
        """Take in what the node should hold beside what its Pods use.

        Raises:
            ValueError: not a want.
        """
        self._want = NodeWant.from_json(self._node, body)

    async def report(self) -> NodeReport:
        """Say what the node holds and fetches."""
        return self._report

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            with contextlib.ExitStack() as held:
                while words := await self._blocking(lambda: _lock(self._root, held)):
                    self._report = NodeReport(self._node, self._now(), trouble=words)
                    await asyncio.sleep(LOOK_SECONDS)
                while not await self._works(self._recover):  # noqa: ASYNC110 - devices tell nobody
                    await asyncio.sleep(LOOK_SECONDS)
                while True:
                    await self._works(self.look)
                    await asyncio.sleep(LOOK_SECONDS)
        finally:
            for running in self._running.values():
                running.progress.stop()
            for task in self._tasks:
                task.cancel()
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def _recover(self) -> None:
        await self._blocking(self._cache.recover)

    async def _works(self, step: Callable[[], Awaitable[None]]) -> bool:
        """Do a step, and report what is wrong when it breaks: nobody starts the agent anew while its actor lives."""
        try:
            await step()
        except (AiModelsError, OSError) as error:
            log.warning("looked in vain", extra={"detail": str(error)})
            words = str(error)
        except Exception as error:
            log.exception("look broke")
            words = f"internal: {type(error).__name__}"
        else:
            return True
        self._report = dataclasses.replace(self._report, at=self._now(), trouble=words[:_MAX_TEXT])
        return False

    async def look(self) -> None:
        """Look once at what is wanted and there, begin what is to be done, and make the report.

        Raises:
            AiModelsError, OSError: records or devices cannot be read.
        """
        records = await self._blocking(self._records.all)
        kept = await self._blocking(self._cache.kept)
        devices = await self._blocking(self._cache.devices)
        folders = {folder.name: folder for folder in await self._blocking(self._cache.folders)}
        self._sizes |= {digest: one.size_bytes for digest, one in kept.items()}
        needs = agenda.needs_of(records, self._want, self._sizes)
        used = {model.digest for record in records for model in record.models}
        rooms = [Room(folders[d.id], d.size_bytes, d.free_bytes) for d in devices if d.id in folders and not d.trouble]
        seen = Seen(needs, kept, used, self._coming(), self._resting(), rooms, self._want.cache_bytes)
        todo = agenda.decide(seen)
        await self._carry_out(todo, used)
        for need in needs:
            if not need.size_bytes and need.digest not in self._resting() and need.digest not in self._running:
                self._begin(need, None)
        await self._housework(kept, used, {need.digest for need in needs})
        held = tuple(Held(str(one.digest), one.size_bytes, one.digest in used) for one in kept.values())
        trouble = "" if folders else "no device: label a block device, or set delivery.hostFolder"
        self._failed = {digest: one for digest, one in self._failed.items() if digest in {n.digest for n in needs}}
        self._report = NodeReport(
            self._node, self._now(), devices, held, self._warming(seen, todo), self._want.cache_bytes, trouble
        )

    async def _carry_out(self, todo: Agenda, used: set[Digest]) -> None:
        for digest in todo.stop:
            self._running[digest].progress.stop()
        gone = set[Digest]()
        for kept in todo.remove:
            if await self._blocking(lambda: self._cache.remove(kept, lambda: self._is_used(kept.digest))):  # noqa: B023 - awaited at once
                gone.add(kept.digest)
                log.info("artifact removed", extra={"digest": str(kept.digest), "size_bytes": kept.size_bytes})
        if len(gone) == len(todo.remove):
            for need, device in todo.start:
                self._begin(need, device)

    def _is_used(self, digest: Digest) -> bool:
        return any(model.digest == digest for record in self._records.all() for model in record.models)

    def _begin(self, need: Need, device: Path | None) -> None:
        """Begin to fetch an artifact; without a device, to ask how large it is."""
        running = _Running(need, device or self._root, Progress())
        self._running[need.digest] = running
        task = asyncio.get_running_loop().create_task(self._fetch(running, device))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fetch(self, running: _Running, device: Path | None) -> None:
        need = running.need
        try:
            if device is None:
                if len(self._sizes) >= _MAX_SIZES:
                    self._sizes.clear()
                self._sizes[need.digest] = await self._blocking(
                    lambda: self._source.size(need.digest, need.repositories)
                )
            else:
                began = self._clock()
                await self._blocking(
                    lambda: self._source.fetch(need.digest, need.repositories, device, running.progress)
                )
                self._failed.pop(need.digest, None)
                seconds = round(self._clock() - began, 3)
                log.info("artifact fetched", extra={"digest": str(need.digest), "seconds": seconds})
        except Cancelled:
            log.info("fetching ended", extra={"digest": str(need.digest)})
        except (AiModelsError, OSError) as error:
            before = self._failed.get(need.digest)
            times = before.times + 1 if before else 1
            pause = min(_REST_SECONDS[0] * 2.0 ** (times - 1), _REST_SECONDS[1]) * random.uniform(0.8, 1.2)  # noqa: S311 - jitter
            words = error.message if isinstance(error, AiModelsError) else str(error)
            full = isinstance(error, StoreFull)
            self._failed[need.digest] = _Failed(times, self._clock() + pause, words[:_MAX_TEXT], full)
            log.warning("artifact not fetched", extra={"digest": str(need.digest), "detail": words})
        finally:
            self._running.pop(need.digest, None)

    async def _housework(self, kept: dict[Digest, Kept], used: set[Digest], wanted: set[Digest]) -> None:
        """Note what is used, clear away what is not, read again what is here."""
        if self._due("touch", _TOUCH_SECONDS):
            for digest in used & kept.keys():
                await self._blocking(lambda: self._cache.touch(kept[digest].device, digest))  # noqa: B023 - awaited at once
        if self._due("check", self._check):
            await self._blocking(self._cache.hide_incomplete)
        if self._due("tidy", _TIDY_SECONDS):
            await self._blocking(lambda: self._cache.tidy(used, wanted | self._running.keys()))
        self._audited = {digest: at for digest, at in self._audited.items() if digest in kept}
        if self._pace and kept and not self._running and self._due("audit", _AUDIT_SECONDS):
            oldest = min(kept.values(), key=lambda one: self._audited.get(one.digest, 0.0))
            task = asyncio.get_running_loop().create_task(self._audit(oldest))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _audit(self, kept: Kept) -> None:
        tree = kept.device / "trees" / kept.digest.hex
        try:
            wrong = await self._blocking(
                lambda: audit.wrong_blobs(tree, bytes_per_second=self._pace, stopped=lambda: bool(self._running))
            )
            if wrong is not None:
                self._audited[kept.digest] = self._now()
            if wrong:
                spoilt = await self._blocking(lambda: self._cache.spoil(kept.device, wrong))
                log.error("wrong bytes on a device", extra={"device": kept.device.name, "artifacts": len(spoilt)})
        except (AiModelsError, OSError) as error:
            log.warning("not read again", extra={"digest": str(kept.digest), "detail": str(error)})

    def _due(self, what: str, seconds: float) -> bool:
        if self._clock() - self._done.get(what, float("-inf")) < seconds:
            return False
        self._done[what] = self._clock()
        return True

    def _coming(self) -> dict[Digest, tuple[Path, int]]:
        return {
            digest: (one.device, max(0, one.need.size_bytes - one.progress.bytes_done))
            for digest, one in self._running.items()
        }

    def _resting(self) -> set[Digest]:
        return {digest for digest, failed in self._failed.items() if self._clock() < failed.until}

    def _warming(self, seen: Seen, todo: Agenda) -> tuple[Warming, ...]:
        found = []
        for need in seen.needs:
            if need.digest in seen.kept:
                continue
            running, failed = self._running.get(need.digest), self._failed.get(need.digest)
            full = need.digest in todo.no_room or bool(failed and failed.no_room)
            words = failed.words if failed else "no device has the room for it" if full else ""
            done = running.progress.bytes_done if running else 0
            found.append(Warming(str(need.digest), done, need.size_bytes, words, full))
        return tuple(found)

    async def _blocking(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


def from_environment(env: Mapping[str, str]) -> Agent:
    """Make the agent that an environment describes.

    Raises:
        UsageError: a setting is unknown, missing or wrong.
    """
    settings = agent_settings.from_env(env)
    root = Path(settings.cache_dir)
    cache = Cache(root)
    source = Fetcher(settings.access, cache)
    return Agent(settings.node, root, source, cache, audit_bytes_per_second=settings.audit_bytes_per_second)


def _lock(root: Path, held: contextlib.ExitStack) -> str:
    """Take the lock of a node's cache for as long as `held`; returns why it cannot be had, if so."""
    try:
        root.mkdir(mode=0o755, parents=True, exist_ok=True)
        descriptor = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return "another agent of this node runs"
    held.callback(os.close, descriptor)
    return ""
