"""A named actor that outlives whoever made it: how the coordinator runs in a cluster, once, and is replaced."""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import ray
import ray.exceptions

from aimodels_core.errors import AiModelsError, MoverLost
from aimodels_jobs.fleet.cluster import NAMESPACE, Ray, translated

_CONTROL_SECONDS: Final = 15.0
_DEATH_SECONDS: Final = 20.0

log = logging.getLogger(__name__)


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

        One that runs with the same settings is left alone, one with others is stopped and replaced; one that says
        nothing for `ready_seconds` hangs, or waits for a node that is not there, and is replaced as well.

        Raises:
            AiModelsError: why it does not serve; MoverLost when nobody answers in time.
        """
        actor = self._get_or_create(make, settings)
        if (why := self._unfit(actor, settings, ready_seconds)) is not None:
            log.info("actor is replaced", extra={"actor": self._name, "why": why})
            self.remove(actor, ask=why != "Silent")
            actor = self._get_or_create(make, settings)
        port: int = self._ask(actor.ready.remote(ready_seconds), ready_seconds + _CONTROL_SECONDS)
        return port

    def remove(self, actor: Any = None, *, ask: bool = True) -> None:
        """Stop the actor cleanly and see its name free; harmless when there is none.

        Args:
            actor: the one with the name by default.
            ask: have it end cleanly before it is killed; of no use with one that does not listen.

        Raises:
            MoverLost: the name is still taken.
        """
        with contextlib.suppress(ValueError):
            actor = actor or ray.get_actor(self._name, namespace=NAMESPACE)
        if actor is None:
            return
        if ask:
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

    def _unfit(self, actor: Any, settings: object, seconds: float) -> str | None:
        """Say why it must be replaced; None for one with these settings. Those of another release may be unreadable."""
        try:
            return None if self._ask(actor.settings.remote(), seconds) == settings else "Changed"
        except MoverLost as error:
            return error.code

    def _ask(self, reference: Any, seconds: float) -> Any:
        try:
            return ray.get(reference, timeout=seconds)
        except ray.exceptions.GetTimeoutError as error:
            raise MoverLost(f"{self._name}: silent for {seconds:.0f} s", code="Silent") from error
        except ray.exceptions.RayError as error:
            raise translated(self._name, error) from error
