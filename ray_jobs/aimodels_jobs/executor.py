"""Where movers run: the port, and its implementation inside this process. With Ray: `fleet`.

What movers are asked to do, and what follows when one is lost, is decided by the coordinator.
"""

import asyncio
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, Protocol, TypeVar

from aimodels_jobs.mover import Mover
from aimodels_jobs.orders import HashReport, MoverFacts, MoverStatus, RunOrder, RunReport

P = ParamSpec("P")
T = TypeVar("T")

_FETCHES: Final = 64
_HASHES: Final = 64


class MoverHandle(Protocol):
    """A mover, wherever it is. Every call raises MoverLost when the mover is dead or silent.

    Cancelling a call does not stop the mover: `drop` does. A cancelled `fetch` asks for it by itself.
    """

    @property
    def name(self) -> str:
        """Which mover, for logs."""
        ...

    async def fetch(self, order: RunOrder) -> RunReport:
        """See `mover.Mover.fetch`."""
        ...

    async def hash(self, run_id: str, state: bytes | None, last: bool) -> HashReport:  # noqa: FBT001 - as in Mover
        """See `mover.Mover.hash`."""
        ...

    async def drop(self, run_id: str) -> None:
        """See `mover.Mover.drop`."""
        ...

    async def poll(self) -> MoverStatus:
        """See `mover.Mover.poll`."""
        ...

    async def facts(self) -> MoverFacts:
        """See `mover.Mover.facts`."""
        ...


class Executor(Protocol):
    """Movers and their lives."""

    @property
    def engine(self) -> str:
        """`inline` or `ray`."""
        ...

    async def movers(self) -> Sequence[MoverHandle]:
        """Return the movers; starts them when called first.

        Raises:
            MoverLost: they cannot be started.
        """
        ...

    async def replace(self, handle: MoverHandle) -> MoverHandle:
        """End a mover for good, whatever state it is in, and start another one in its place.

        Raises:
            MoverLost: another one cannot be started.
        """
        ...

    async def close(self) -> None:
        """End all movers and everything that was started for them."""
        ...


class Inline:
    """One mover in this process.

    Args:
        make: makes the mover.
    """

    engine = "inline"

    def __init__(self, make: Callable[[], Mover] = Mover) -> None:
        self._make = make
        self._count = 0
        self._handle: _InlineMover | None = None

    async def movers(self) -> Sequence[MoverHandle]:
        """See `Executor`."""
        return [self._handle or self._start()]

    async def replace(self, handle: MoverHandle) -> MoverHandle:
        """See `Executor`."""
        if self._handle is not None and handle is self._handle:
            self._handle.close()
            self._start()
        return self._handle or self._start()

    async def close(self) -> None:
        """See `Executor`."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def _start(self) -> "_InlineMover":
        self._count += 1
        self._handle = _InlineMover(f"inline-{self._count}", self._make())
        return self._handle


class _InlineMover:
    """A mover whose blocking calls run in threads of their own, so that none of them waits for another kind."""

    def __init__(self, name: str, mover: Mover) -> None:
        self.name = name
        self._mover = mover
        self._fetches = ThreadPoolExecutor(_FETCHES, thread_name_prefix=f"{name}-fetch")
        self._hashes = ThreadPoolExecutor(_HASHES, thread_name_prefix=f"{name}-hash")

    async def fetch(self, order: RunOrder) -> RunReport:
        try:
            return await self._call(self._fetches, self._mover.fetch, order)
        except asyncio.CancelledError:
            self._mover.drop(order.id)
            raise

    async def hash(self, run_id: str, state: bytes | None, last: bool) -> HashReport:  # noqa: FBT001 - as in Mover
        return await self._call(self._hashes, self._mover.hash, run_id, state, last)

    async def drop(self, run_id: str) -> None:
        self._mover.drop(run_id)

    async def poll(self) -> MoverStatus:
        return self._mover.poll()

    async def facts(self) -> MoverFacts:
        return self._mover.facts()

    def close(self) -> None:
        self._mover.close()
        for pool in (self._fetches, self._hashes):
            pool.shutdown(wait=False, cancel_futures=True)

    async def _call(self, pool: ThreadPoolExecutor, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        call = functools.partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(pool, call)
