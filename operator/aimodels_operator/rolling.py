"""Replaces Pods of the registry that began before their Secrets changed: distribution reads keys and certificates once.

One at a time, by evictions, so that their disruption budget keeps another one serving meanwhile.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from aimodels_core.errors import ClusterUnavailable
from aimodels_core.names import HomeSecret
from aimodels_operator.kube import Kube, Raw
from aimodels_operator.pods import unix_seconds

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 10.0
APP: Final = "ai-models-dmcr"
SECRETS: Final = (HomeSecret.DMCR_TLS, HomeSecret.ISSUER, HomeSecret.S3, HomeSecret.S3_CA)
"""What its Pods mount."""


@dataclass(frozen=True, slots=True)
class Server:
    """A Pod of the registry.

    Args:
        name: of the Pod.
        began: when its container did, Unix seconds; 0 while it does not run.
        leaving: whether it is on its way out.
    """

    name: str
    began: float
    leaving: bool = False

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self:
        """Read a Pod."""
        meta, states = raw["metadata"], (raw.get("status") or {}).get("containerStatuses") or ()
        running = [(each.get("state") or {}).get("running") for each in states]
        began = min((unix_seconds(each["startedAt"]) for each in running if each), default=0.0)
        return cls(str(meta["name"]), began if all(running) else 0.0, "deletionTimestamp" in meta)


def changed_at(secret: Raw) -> float:
    """When a Secret came to hold what it holds, Unix seconds, as the managers of its data say (server-side apply)."""
    meta = secret["metadata"]
    managers = meta.get("managedFields") or ()
    times = [unix_seconds(each["time"]) for each in managers if "f:data" in (each.get("fieldsV1") or {})]
    return max(times, default=unix_seconds(meta["creationTimestamp"]))


def outdated(servers: Iterable[Server], changed: float) -> list[Server]:
    """Those that serve what was before, oldest first; none while one comes or goes."""
    found = list(servers)
    if any(one.leaving or not one.began for one in found):
        return []
    return sorted((one for one in found if one.began < changed), key=lambda one: (one.began, one.name))


class Rolling:
    """Keeps the registry at the present Secrets.

    Args:
        cluster: the API server.
        check: the fence; raises LeadershipLost.
        home: namespace of Pods and Secrets.
        sleep: waits.
    """

    def __init__(
        self,
        cluster: Kube,
        check: Callable[[], None],
        home: str,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._kube, self._check, self._home, self._sleep = cluster, check, home, sleep

    async def keep(self) -> None:
        """Look after it until cancelled.

        Raises:
            LeadershipLost.
        """
        while True:
            try:
                await self.look()
            except ClusterUnavailable as error:
                log.warning("registry not looked after", extra={"error": error.message})
            await self._sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Look once, and have at most one Pod replaced.

        Raises:
            ClusterUnavailable: look again; its budget does not let a Pod go, for one.
            LeadershipLost.
        """
        secrets = [await self._kube.get_secret(self._home, name) for name in SECRETS]
        changed = max((changed_at(one) for one in secrets if one is not None), default=0.0)
        answer = await self._kube.call("list", "", "pods", self._home, query={"labelSelector": f"app={APP}"})
        for server in outdated(map(Server.from_raw, answer["items"]), changed)[:1]:
            self._check()
            meta = {"name": server.name, "namespace": self._home}
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}
            await self._kube.call("create", "", "pods/eviction", self._home, server.name, body=body)
            log.info("registry replaced for its secrets", extra={"pod": server.name})
