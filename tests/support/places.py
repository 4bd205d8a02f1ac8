"""Movers that move nothing: an executor and its handles whose answers a test decides, for leases and flights."""

import asyncio
import dataclasses
from collections.abc import Sequence

from aimodels_core.errors import Cancelled, MoverLost
from aimodels_jobs.executor import MoverHandle
from aimodels_jobs.orders import HashReport, MoverFacts, MoverStatus, PartRecord, RunOrder, RunReport

POOL_BYTES = 100


@dataclasses.dataclass(eq=False)
class Place:
    """A mover that is asked: polls wait for `polled`, fetches for `fetched`; a dead one then raises."""

    name: str
    dead: bool = False
    polled: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    fetched: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    asked: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    ordered: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    orders: list[RunOrder] = dataclasses.field(default_factory=list)
    dropped: list[str] = dataclasses.field(default_factory=list)

    async def fetch(self, order: RunOrder) -> RunReport:
        """Store every part, in no time once `fetched` is set."""
        self.orders.append(order)
        self.ordered.set()
        await self.fetched.wait()
        if self.dead:
            raise MoverLost(f"{self.name}: dead")
        records = tuple(PartRecord(p.number, p.start, p.stop - p.start, "", "0" * 16) for p in order.parts)
        return RunReport(order.id, records, (), None, order.size_bytes, 1.0)

    async def hash(self, run_id: str, state: bytes | None, last: bool) -> HashReport:
        """Nothing was fetched."""
        del state, last
        raise Cancelled(f"run {run_id}: dropped")

    async def drop(self, run_id: str) -> None:
        """Remember."""
        self.dropped.append(run_id)

    async def poll(self) -> MoverStatus:
        """Say nothing new."""
        self.asked.set()
        await self.polled.wait()
        if self.dead:
            raise MoverLost(f"{self.name}: dead")
        return MoverStatus({}, 0, POOL_BYTES)

    async def facts(self) -> MoverFacts:
        """Say that it is like any other."""
        return MoverFacts("libcrypto", True, POOL_BYTES, "here", 1)


@dataclasses.dataclass
class Places:
    """An executor of such movers."""

    count: int
    made: list[Place] = dataclasses.field(default_factory=list)
    engine: str = "places"

    async def movers(self) -> Sequence[MoverHandle]:
        """Make them."""
        self.made = [Place(f"place-{index}") for index in range(self.count)]
        return tuple(self.made)

    async def replace(self, handle: MoverHandle) -> MoverHandle:
        """Make another one."""
        self.made.append(Place(f"{handle.name}-again"))
        return self.made[-1]

    async def close(self) -> None:
        """Nothing is left."""
