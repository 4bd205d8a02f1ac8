"""Agents of nodes as Ray actors: one per node that says that it has a cache, pinned to it, detached, restarted by Ray.

The raylet of a node's agent is labelled with the node's name and lends no CPU, so movers never run there. The class of
the actor is made in the node's own process, from the environment of its raylet.
"""

import asyncio
import functools
import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, ParamSpec, TypeVar

import ray
import ray.exceptions

from aimodels_core import names, serving
from aimodels_core.errors import AiModelsError, MoverLost
from aimodels_core.nodes import NodeReport, NodeWant
from aimodels_jobs.fleet.cluster import NAMESPACE, Ray, translated
from aimodels_jobs.fleet.inquiries import Inquiries

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger(__name__)

_ANSWER_SECONDS: Final = 10.0
_PATIENCE_SECONDS: Final = 1.0
"""So long an exchange waits for the slowest node."""
_CLUSTER_SECONDS: Final = 30.0


class NodeAgent:
    """The actor: runs the agent of its node from the moment it is made."""

    def __init__(self) -> None:
        from aimodels_nodecache.agent import from_environment

        if not logging.getLogger().handlers:  # an actor's process has nobody else to do it
            serving.log_json(os.environ.get("AI_MODELS_LOG_LEVEL", "Info"), quiet=("urllib3",))
        self._agent = from_environment(os.environ)
        self._task = asyncio.get_event_loop().create_task(self._agent.run())

    async def exchange(self, want: bytes | None) -> dict[str, Any]:
        """Take in what is wanted, if it is said, and tell what there is.

        Raises:
            ValueError: not a want.
        """
        if self._task.done():
            self._task.result()
        if want is not None:
            await self._agent.want(want)
        return (await self._agent.report()).to_raw()


class RayAgents:
    """Implements `nodes.Agents` in a running cluster.

    Args:
        cluster: where.
        make: the class of the actors.
    """

    def __init__(self, cluster: Ray, make: type[Any] = NodeAgent) -> None:
        self._cluster, self._make = cluster, make
        self._actors: dict[str, Any] = {}
        self._inquiries: Inquiries[NodeReport] = Inquiries(_PATIENCE_SECONDS)
        # One thread: Ray's processes die with the thread that started them.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ray-agents")

    async def exchange(self, wants: Mapping[str, NodeWant]) -> Mapping[str, NodeReport]:
        """See `nodes.Agents`."""
        nodes = await self._blocking(self._nodes)
        return await self._inquiries.round(nodes, lambda node: self._ask(node, wants.get(node)))

    async def _ask(self, node: str, want: NodeWant | None) -> NodeReport | None:
        try:
            actor: Any = self._actors.get(node) or await self._blocking(self._get_or_create, node)
            async with asyncio.timeout(_ANSWER_SECONDS):
                raw = await actor.exchange.remote(want.to_json() if want is not None else None)
            self._actors[node] = actor
            return NodeReport.from_raw(raw)
        except ray.exceptions.RayError as error:
            self._actors.pop(node, None)
            self._say(node, translated(f"agent of {node}", error))
        except TimeoutError:
            self._say(node, MoverLost(f"agent of {node}: silent for {_ANSWER_SECONDS:.0f} s", code="Silent"))
        except (AiModelsError, KeyError, TypeError, ValueError) as error:
            self._say(node, error)
        return None

    def _say(self, node: str, error: Exception) -> None:
        log.warning("agent does not answer", extra={"node": node, "detail": str(error)[:500]})

    def _nodes(self) -> list[str]:
        self._cluster.start()
        labels = [node.get("Labels") or {} for node in ray.nodes() if node["Alive"]]
        return sorted({one[names.RAY_NODE_LABEL] for one in labels if one.get(names.RAY_NODE_LABEL)})

    def _get_or_create(self, node: str) -> Any:
        options: dict[str, Any] = {
            "name": f"node-agent-{node}",
            "namespace": NAMESPACE,
            "lifetime": "detached",
            "get_if_exists": True,
            "max_restarts": -1,
            "max_task_retries": 0,
            "num_cpus": 0,
            "label_selector": {names.RAY_NODE_LABEL: node},
        }
        try:
            return ray.remote(**options)(self._make).remote()
        except (ray.exceptions.RayError, ValueError, RuntimeError) as error:
            raise MoverLost(f"agent of {node}: not started: {type(error).__name__}", code="NotStarted") from error

    async def _blocking(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        call = functools.partial(function, *args, **kwargs)
        async with asyncio.timeout(_CLUSTER_SECONDS):
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
