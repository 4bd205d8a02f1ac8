"""One operator works at a time: a Lease, taken before anything else, and a fence in front of every write.

A replica takes the lease when it is free, released, or was not renewed for its whole duration by this replica's own
clock. The holder stops writing `renew_seconds` after its last renewal began, which is earlier than anybody can take
over; a process that was frozen therefore cannot write when it thaws.
"""

import asyncio
import dataclasses
import datetime
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from aimodels_core.errors import ClusterUnavailable, LeadershipLost

log = logging.getLogger(__name__)

_API_VERSION = "coordination.k8s.io/v1"

Lease = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Times:
    """Seconds: others may take over after `duration`, the holder gives up after `renew`, tries come every `retry`."""

    duration_seconds: float = 10.0
    renew_seconds: float = 7.0
    retry_seconds: float = 2.0


class Leases(Protocol):
    """Where leases are kept."""

    async def get_lease(self, namespace: str, name: str) -> Lease | None:
        """Read a lease; None when there is none."""
        ...

    async def put_lease(self, namespace: str, name: str, lease: Lease) -> Lease:
        """Create a lease or replace the version that it names.

        Raises:
            ClusterUnavailable: code Conflict when somebody was faster.
        """
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Which lease, and who wants it."""

    namespace: str
    name: str
    identity: str


class Leader:
    """The right to work.

    Args:
        leases: where leases are kept.
        place: which lease, and who this is.
        times: of the protocol.
        clock: seconds, monotonic; it must go on while the process is frozen.
        sleep: waits.
    """

    def __init__(
        self,
        leases: Leases,
        place: Place,
        *,
        times: Times = Times(),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._leases = leases
        self._place = place
        self._times = times
        self._clock = clock
        self._sleep = sleep
        self._renewed_at: float | None = None
        self._seen: tuple[str, float] | None = None

    @property
    def leads(self) -> bool:
        """Whether this replica may write now."""
        return self._renewed_at is not None and self._clock() - self._renewed_at < self._times.renew_seconds

    def check(self) -> None:
        """Let a write pass.

        Raises:
            LeadershipLost: the last renewal is too long ago, or there was none.
        """
        if not self.leads:
            raise LeadershipLost(f"lease {self._place.namespace}/{self._place.name}: not renewed in time")

    async def acquire(self) -> None:
        """Wait until the lease is ours."""
        while not await self._try():
            pause = self._times.retry_seconds * random.uniform(0.8, 1.2)  # noqa: S311 - jitter
            await self._sleep(min(pause, self._free_in()))
        log.info("lease taken", extra={"identity": self._place.identity})

    async def keep(self) -> None:
        """Renew the lease until it is lost.

        Raises:
            LeadershipLost.
        """
        while True:
            await self._sleep(self._times.retry_seconds)
            self.check()
            await self._try()
            self.check()

    async def release(self) -> None:
        """Give the lease back, so that another replica need not wait."""
        if not self.leads:
            return
        lease = await self._leases.get_lease(self._place.namespace, self._place.name)
        self._renewed_at = None
        if lease is not None and _holder(lease) == self._place.identity:
            lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
            await self._leases.put_lease(self._place.namespace, self._place.name, lease)

    async def _try(self) -> bool:
        """Take or renew the lease if it may be; the time of a renewal is that before the request."""
        began = self._clock()
        try:
            async with asyncio.timeout(self._times.renew_seconds):
                lease = await self._leases.get_lease(self._place.namespace, self._place.name)
                if lease is not None and not self._free(lease):
                    self._renewed_at = None
                    return False
                await self._leases.put_lease(self._place.namespace, self._place.name, self._next(lease))
        except (ClusterUnavailable, TimeoutError) as error:
            log.warning("lease not renewed", extra={"error": getattr(error, "code", "TimedOut")})
            return False
        self._renewed_at = began
        return True

    def _free(self, lease: Lease) -> bool:
        holder = _holder(lease)
        if holder in ("", self._place.identity):
            return True
        version = str(lease["metadata"].get("resourceVersion", ""))
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, self._clock())
        return self._clock() - self._seen[1] >= self._times.duration_seconds

    def _free_in(self) -> float:
        """Seconds until the lease may be taken, if it is not renewed before; endless when that cannot be told."""
        left = self._seen[1] + self._times.duration_seconds - self._clock() if self._seen is not None else 0.0
        return left if left > 0.0 else float("inf")

    def _next(self, lease: Lease | None) -> Lease:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        old = lease.get("spec", {}) if lease is not None else {}
        changes = old.get("holderIdentity") != self._place.identity
        spec = {
            "holderIdentity": self._place.identity,
            "leaseDurationSeconds": int(self._times.duration_seconds),
            "renewTime": now,
            "acquireTime": now if changes else old.get("acquireTime", now),
            "leaseTransitions": int(old.get("leaseTransitions", 0)) + (1 if changes and lease is not None else 0),
        }
        meta = (
            lease["metadata"] if lease is not None else {"name": self._place.name, "namespace": self._place.namespace}
        )
        return {"apiVersion": _API_VERSION, "kind": "Lease", "metadata": meta, "spec": spec}


def _holder(lease: Lease) -> str:
    return str(lease.get("spec", {}).get("holderIdentity") or "")
