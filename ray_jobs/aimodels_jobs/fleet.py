"""Movers as Ray actors. The only module that imports Ray; nothing that must survive is kept there.

The plain class is wrapped here, at the call site. An actor is never restarted by Ray: its memory would be gone and its
state unknown, so a lost mover is killed for good, seen dead, and replaced. Every remote call has a deadline of ours.
"""

import asyncio
import contextlib
import dataclasses
import functools
import gc
import itertools
import logging
import os
import secrets
import socket
import time
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, ParamSpec, Protocol, TypeVar

import ray
import ray._private.worker
import ray._raylet
import ray.exceptions

from aimodels_core.errors import AiModelsError, MoverLost
from aimodels_jobs.executor import MoverHandle
from aimodels_jobs.mover import Mover
from aimodels_jobs.orders import HashReport, MoverFacts, MoverStatus, RunOrder, RunReport

P = ParamSpec("P")
T = TypeVar("T")

NAMESPACE: Final = "ai-models"

ENVIRONMENT: Final = {
    # A dead or frozen node is noticed in seconds instead of minutes.
    "RAY_health_check_initial_delay_ms": "3000",
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "5",
    "RAY_grpc_client_keepalive_time_ms": "10000",
    "RAY_grpc_client_keepalive_timeout_ms": "10000",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "120",
    "RAY_task_oom_retries": "3",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # else workers would run an uploaded copy of the working folder
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""What every Ray process of ours starts with, unless its environment says otherwise."""

_GROUPS: Final = {"fetch": 32, "hash": 32, "control": 4}
"""Threads of a mover by kind of call: `control` answers at once, whatever the others do."""

_TOKEN: Final = secrets.token_hex(32)
"""Of every Ray that this process starts: Ray's core keeps the first token it used, whatever the environment says."""

_TOKEN_VARIABLES: Final = ("RAY_AUTH_TOKEN", "RAY_AUTH_MODE")
_replaced: dict[str, str | None] = {}
"""What these variables were before a Ray was started here; its processes inherit them, nobody else should."""

_OBJECT_STORE_BYTES: Final = 80 * 1024 * 1024  # about the least that Ray takes; no payload goes through it
_CONNECT_SECONDS: Final = 10.0
_START_SECONDS: Final = 120.0
_CONTROL_SECONDS: Final = 15.0
_HASH_SECONDS: Final = 660.0
_FETCH_SLACK_SECONDS: Final = 660.0
_DEATH_SECONDS: Final = 20.0
_FORCED_SECONDS: Final = 6.0  # Ray ends a process that does not listen after 5 s (kill_worker_timeout_milliseconds)

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Ray:
    """Where the movers run.

    Args:
        address: of a running cluster; `local` starts one on this machine; empty for the one this process is part of.
        cpus: of a cluster that is started here.
    """

    address: str
    cpus: int = 0

    def start(self) -> bool:
        """Join the cluster, or start it; False when this process is part of one already. Blocks for seconds.

        What a failed start leaves behind is removed, so that another one may follow.

        Raises:
            MoverLost: code RayUnavailable.
        """
        if ray.is_initialized():
            return False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray's own, about its own
            try:
                settings = self._settings()
                ray._private.worker.print_to_stdstream = _log_words_of_ray  # noqa: SLF001 - it would print them on stdout
                ray._raylet.AuthenticationTokenLoader.instance().reset_cache()  # noqa: SLF001 - Ray has no other way
                ray.init(namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR, **settings)
            except Exception as error:  # whatever Ray raises: it has no tree of errors for this
                self.stop()
                why = f"{type(error).__name__}: {str(error)[:300]}"
                raise MoverLost(f"ray: not started: {why}", code="RayUnavailable") from error
        return True

    def stop(self) -> None:
        """Leave the cluster, and end it if it was started here."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.shutdown()
            gc.collect()  # Ray leaves process objects behind that complain when they go
        for name, value in _replaced.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _replaced.clear()

    def _settings(self) -> dict[str, Any]:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        if self.address != "local":
            _refuse_silent(self.address or os.environ.get("RAY_ADDRESS", ""))
            return {"address": self.address or "auto"}
        given = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
        _replaced.update({name: os.environ.get(name) for name in _TOKEN_VARIABLES})
        if not given and os.environ.get("RAY_AUTH_MODE", "token").lower() == "token":
            # A token of its own, in memory: Ray would write one below HOME. Its ports are open to the network.
            os.environ["RAY_AUTH_TOKEN"] = _TOKEN
        return {
            "address": "local",
            "num_cpus": self.cpus,
            "num_gpus": 0,
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE_BYTES,
        }


def local(workers: int) -> "Fleet":
    """Run `workers` movers in a Ray of their own on this machine, ended by `close`."""
    return Fleet(Ray("local", workers), workers)


def attach(address: str = "", workers: int = 0, make: type[Mover] = Mover) -> "Fleet":
    """Run movers in a running cluster; with 0 workers, one per node.

    Args:
        address: of the cluster; empty for the one this process is part of, or the one that RAY_ADDRESS names.
        workers: how many.
        make: the class of the movers.
    """
    return Fleet(Ray(address), workers, make)


class Fleet:
    """Mover actors; implements `executor.Executor`.

    Args:
        cluster: where.
        workers: how many; 0 for one per node.
        make: the class of the movers.
    """

    engine = "ray"

    def __init__(self, cluster: Ray, workers: int, make: type[Mover] = Mover) -> None:
        self._cluster = cluster
        self._workers = workers
        self._make = make
        self._started_here = False
        self._handles: list[_RayMover] = []
        self._numbers = itertools.count(1)
        # One thread for as long as the fleet lives: Ray's processes die with the thread that started them.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ray")

    async def movers(self) -> Sequence[MoverHandle]:
        """See `executor.Executor`."""
        if not self._handles:
            self._started_here = await self._blocking(self._cluster.start)
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
            raise _translated(self.name, error) from error


class Hosted(Protocol):
    """What `Detached` runs: an async class, made with one argument."""

    async def settings(self) -> object:
        """Return the argument it was made with."""
        ...

    async def ready(self, seconds: float) -> int:
        """Wait until it serves; return its port."""
        ...

    async def stop(self) -> None:
        """End cleanly."""
        ...


class Detached:
    """A named actor that outlives whoever made it, and that Ray restarts when it dies.

    Args:
        cluster: where; joined now.
        name: of the actor, in our namespace.
        on: labels of the node it must run on.

    Raises:
        MoverLost: code RayUnavailable.
    """

    def __init__(self, cluster: Ray, name: str, *, on: Mapping[str, str] | None = None) -> None:
        self._cluster = cluster
        self._name = name
        self._on = dict(on or {})
        self._joined_here = cluster.start()

    def close(self) -> None:
        """Leave the cluster; the actor stays."""
        if self._joined_here:
            self._cluster.stop()

    def ensure(self, make: Callable[[Any], Hosted], settings: object, *, ready_seconds: float) -> int:
        """Have the actor run with these settings, and wait until it serves; returns its port.

        One that runs with the same settings is left alone, one with others is stopped and replaced.

        Raises:
            AiModelsError: why it does not serve; MoverLost when nobody answers in time.
        """
        actor = self._get_or_create(make, settings)
        if not self._has(actor, settings, ready_seconds):
            log.info("actor is replaced", extra={"actor": self._name})
            self.remove(actor)
            actor = self._get_or_create(make, settings)
        port: int = self._ask(actor.ready.remote(ready_seconds), ready_seconds + _CONTROL_SECONDS)
        return port

    def remove(self, actor: Any = None) -> None:
        """Stop the actor cleanly and see its name free; harmless when there is none.

        Raises:
            MoverLost: the name is still taken.
        """
        with contextlib.suppress(ValueError):
            actor = actor or ray.get_actor(self._name, namespace=NAMESPACE)
        if actor is None:
            return
        with contextlib.suppress(AiModelsError):  # one that does not listen is killed all the same
            self._ask(actor.stop.remote(), _CONTROL_SECONDS)
        deadline = time.monotonic() + _DEATH_SECONDS
        with contextlib.suppress(ValueError, ray.exceptions.RayError):
            ray.kill(actor, no_restart=True)
        while time.monotonic() < deadline:
            try:
                ray.get_actor(self._name, namespace=NAMESPACE)
            except ValueError:
                return
            time.sleep(0.1)
        raise MoverLost(f"{self._name}: want it gone, got it still there", code="NotGone")

    def _get_or_create(self, make: Callable[[Any], Hosted], settings: object) -> Any:
        options: dict[str, Any] = {
            "name": self._name,
            "namespace": NAMESPACE,
            "lifetime": "detached",
            "get_if_exists": True,
            "max_restarts": -1,
            "max_task_retries": 0,
            "num_cpus": 0,
        }
        if self._on:
            options["label_selector"] = self._on
        try:
            return ray.remote(**options)(make).remote(settings)
        except (ray.exceptions.RayError, ValueError) as error:
            raise MoverLost(f"{self._name}: not started: {type(error).__name__}", code="NotStarted") from error

    def _has(self, actor: Any, settings: object, seconds: float) -> bool:
        """Tell whether it has these settings; those of another release may not even be readable."""
        try:
            return bool(self._ask(actor.settings.remote(), seconds) == settings)
        except MoverLost as error:
            if error.code == "Silent":
                raise
            return False

    def _ask(self, reference: Any, seconds: float) -> Any:
        try:
            return ray.get(reference, timeout=seconds)
        except ray.exceptions.GetTimeoutError as error:
            raise MoverLost(f"{self._name}: silent for {seconds:.0f} s", code="Silent") from error
        except ray.exceptions.RayError as error:
            raise _translated(self._name, error) from error


def _refuse_silent(address: str) -> None:
    """Make sure that somebody listens at `host:port`: Ray would wait for minutes, and then end this process.

    Raises:
        OSError: nobody does.
    """
    host, found, port = address.rpartition(":")
    if found and port.isdecimal() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()


def _log_words_of_ray(data: Mapping[str, Any], **_: object) -> None:
    """Take what Ray wants to tell people: stdout belongs to results."""
    for line in data.get("lines", ()):
        log.info("ray told something", extra={"words": str(line)[:500]})


def _translated(name: str, error: ray.exceptions.RayError) -> AiModelsError:
    cause = getattr(error, "cause", None)
    if isinstance(error, ray.exceptions.RayTaskError) and isinstance(cause, AiModelsError):
        return cause
    what = type(cause if cause is not None else error).__name__
    return MoverLost(f"{name}: lost: {what}", code=what)


def _start_actor(make: type[Mover]) -> Any:
    options: dict[str, Any] = {
        "num_cpus": 1,
        "max_restarts": 0,
        "max_task_retries": 0,
        "scheduling_strategy": "SPREAD",
        "concurrency_groups": _GROUPS,
    }
    return ray.remote(**options)(make).remote()


def _is_running(pid: int) -> bool:
    """Tell whether a process of that id is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


def _node_count() -> int:
    return max(1, sum(1 for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1))
