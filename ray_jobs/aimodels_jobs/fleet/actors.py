"""Movers as Ray actors; nothing that must survive is kept there.

The plain class is wrapped here, at the call site. An actor is never restarted by Ray: its memory would be gone and its
state unknown, so a lost mover is killed for good, seen dead, and replaced. Every remote call has a deadline of ours.
"""

import asyncio
import contextlib
import functools
import itertools
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

import ray
import ray.exceptions

from aimodels_core.errors import MoverLost
from aimodels_jobs.executor import MoverHandle
from aimodels_jobs.fleet.cluster import Ray, translated
from aimodels_jobs.mover import Mover
from aimodels_jobs.orders import HashReport, MoverFacts, MoverStatus, RunOrder, RunReport

P = ParamSpec("P")
T = TypeVar("T")

_GROUPS: Final = {"fetch": 32, "hash": 32, "control": 4}
"""Threads of a mover by kind of call: `control` answers at once, whatever the others do."""

_JOIN_SECONDS: Final = 60.0
_JOIN_PAUSE_SECONDS: Final = 0.5
_START_SECONDS: Final = 120.0
_CONTROL_SECONDS: Final = 15.0
_HASH_SECONDS: Final = 660.0
_FETCH_SLACK_SECONDS: Final = 660.0
_DEATH_SECONDS: Final = 20.0
_FORCED_SECONDS: Final = 6.0  # Ray ends a process that does not listen after 5 s (kill_worker_timeout_milliseconds)

log = logging.getLogger(__name__)


def local(workers: int) -> "Fleet":
    """Run `workers` movers in a Ray of their own on this machine, ended by `close`."""
    return Fleet(Ray("local", workers), workers)


def attach(address: str = "", workers: int = 0, make: type[Mover] = Mover, *, nodes: int = 0) -> "Fleet":
    """Run movers in a running cluster; with 0 workers, one per node.

    Args:
        address: of the cluster; empty for the one this process is part of, or the one that RAY_ADDRESS names.
        workers: how many.
        make: the class of the movers.
        nodes: how many nodes that can run movers are waited for, for a minute at most.
    """
    return Fleet(Ray(address), workers, make, nodes=nodes)


class Fleet:
    """Mover actors; implements `executor.Executor`.

    Args:
        cluster: where.
        workers: how many; 0 for one per node.
        make: the class of the movers.
        nodes: how many nodes are waited for: they join one by one after the loss of a head, and movers stay where they
            began.
    """

    engine = "ray"

    def __init__(self, cluster: Ray, workers: int, make: type[Mover] = Mover, *, nodes: int = 0) -> None:
        self._cluster = cluster
        self._workers = workers
        self._make = make
        self._nodes = nodes
        self._started_here = False
        self._handles: list[_RayMover] = []
        self._numbers = itertools.count(1)
        # One thread for as long as the fleet lives: Ray's processes die with the thread that started them.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ray")

    async def movers(self) -> Sequence[MoverHandle]:
        """See `executor.Executor`."""
        if not self._handles:
            self._started_here = await self._blocking(self._cluster.start)
            await self._wait_for_nodes()
            count = self._workers or await self._blocking(_node_count)
            self._handles = list(await asyncio.gather(*(self._new() for _ in range(count))))
            log.info("movers started", extra={"movers": count, "engine": self.engine})
        return tuple(self._handles)

    async def replace(self, handle: MoverHandle) -> MoverHandle:
        """See `executor.Executor`."""
        found = next((index for index, known in enumerate(self._handles) if known is handle), None)
        if found is None:
            raise MoverLost(f"{handle.name}: not a mover of this fleet", code="UnknownMover")
        await self._end(self._handles[found])
        self._handles[found] = await self._new()
        log.info("mover replaced", extra={"mover": handle.name, "successor": self._handles[found].name})
        return self._handles[found]

    async def close(self) -> None:
        """See `executor.Executor`."""
        handles, self._handles = self._handles, []
        for handle in handles:
            await self._blocking(handle.kill)
        if self._started_here:
            await self._blocking(self._cluster.stop)
            self._started_here = False
        self._thread.shutdown(wait=False)

    async def _wait_for_nodes(self) -> None:
        deadline = time.monotonic() + _JOIN_SECONDS
        while self._nodes and (found := await self._blocking(_node_count)) < self._nodes:
            if time.monotonic() > deadline:
                log.warning("nodes are missing", extra={"want": self._nodes, "got": found})
                return
            await asyncio.sleep(_JOIN_PAUSE_SECONDS)

    async def _new(self) -> "_RayMover":
        name = f"ray-{next(self._numbers)}"
        handle = _RayMover(name, await self._blocking(_start_actor, self._make))
        try:
            await handle.ready()
        except MoverLost:
            await self._blocking(handle.kill)
            raise
        return handle

    async def _end(self, handle: "_RayMover") -> None:
        """Kill a mover and see it dead: until then it may still write.

        Ray calls a killed actor dead at once; a process that does not listen is ended by its node some seconds later.
        """
        if await handle.is_dead():
            return
        deadline = time.monotonic() + _DEATH_SECONDS
        await self._blocking(handle.kill)
        while time.monotonic() < deadline:
            await asyncio.sleep(0.05)
            if await handle.is_dead() and not handle.runs_here():
                await asyncio.sleep(0.0 if handle.is_here else _FORCED_SECONDS)
                return
        log.warning("mover was not seen dead", extra={"mover": handle.name})

    async def _blocking(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        call = functools.partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


class _RayMover:
    """A mover actor; implements `executor.MoverHandle`."""

    def __init__(self, name: str, actor: Any) -> None:  # Ray's handles have no static type
        self.name = name
        self._actor = actor
        self._place = ("", 0)

    @property
    def is_here(self) -> bool:
        """Tell whether the mover runs on this machine."""
        return self._place[0] == socket.gethostname()

    def runs_here(self) -> bool:
        """Tell whether its process can still be seen on this machine."""
        return self.is_here and _is_running(self._place[1])

    async def fetch(self, order: RunOrder) -> RunReport:
        deadline = order.part_deadline_seconds * (len(order.parts) + 1) + _FETCH_SLACK_SECONDS
        try:
            return await self._answer(self._remote("fetch", "fetch", order), deadline)
        except asyncio.CancelledError:
            self._remote("control", "drop", order.id)
            raise

    async def hash(self, run_id: str, state: bytes | None, last: bool) -> HashReport:  # noqa: FBT001 - as in Mover
        return await self._answer(self._remote("hash", "hash", run_id, state, last), _HASH_SECONDS)

    async def drop(self, run_id: str) -> None:
        await self._answer(self._remote("control", "drop", run_id), _CONTROL_SECONDS)

    async def poll(self) -> MoverStatus:
        return await self._answer(self._remote("control", "poll"), _CONTROL_SECONDS)

    async def facts(self) -> MoverFacts:
        return await self._answer(self._remote("control", "facts"), _CONTROL_SECONDS)

    async def ready(self) -> None:
        """Wait until the actor runs.

        Raises:
            MoverLost: it does not, within two minutes.
        """
        facts = await self._answer(self._remote("control", "facts"), _START_SECONDS)
        self._place = (facts.node, facts.pid)

    def kill(self) -> None:
        """End the actor's process at once."""
        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            ray.kill(self._actor, no_restart=True)

    async def is_dead(self) -> bool:
        """Ask the actor for a sign of life; only Ray's word that it died counts as death."""
        try:
            async with asyncio.timeout(1.0):
                await self._remote("control", "facts")
        except ray.exceptions.ActorDiedError:
            return True
        except (ray.exceptions.RayError, TimeoutError):
            return False
        return False

    def _remote(self, group: str, method: str, *args: object) -> Any:
        reference: Awaitable[object] = getattr(self._actor, method).options(concurrency_group=group).remote(*args)
        return reference

    async def _answer(self, reference: Awaitable[T], deadline_seconds: float) -> T:
        try:
            async with asyncio.timeout(deadline_seconds):
                return await reference
        except TimeoutError as error:
            raise MoverLost(f"{self.name}: silent for {deadline_seconds:.0f} s", code="Silent") from error
        except ray.exceptions.RayError as error:
            raise translated(self.name, error) from error


def _start_actor(make: type[Mover]) -> Any:
    options: dict[str, Any] = {
        "num_cpus": 1,
        "max_restarts": 0,
        "max_task_retries": 0,
        "scheduling_strategy": "SPREAD",
        "concurrency_groups": _GROUPS,
    }
    try:
        return ray.remote(**options)(make).remote()
    except (ray.exceptions.RayError, RuntimeError, OSError) as error:
        raise MoverLost(f"mover: not started: {type(error).__name__}", code="NotStarted") from error


def _is_running(pid: int) -> bool:
    """Tell whether a process of that id is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


def _node_count() -> int:
    """How many nodes can run a mover; 1 when there is none yet."""
    return max(1, sum(1 for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1))
