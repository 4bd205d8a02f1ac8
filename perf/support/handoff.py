"""One file over Ray actors on one node: `python -m perf.support.handoff '<json>'` prints seconds and digest.

`chain`: the product's movers keep the bytes, and the hash state travels from run to run. `ship`: actors fetch and
store in the same way, then hand each run's bytes through Ray's object store to one actor that hashes them.
"""

import asyncio
import collections
import dataclasses
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import ray

from aimodels_core.source import ReadTicket
from aimodels_jobs import plan
from aimodels_jobs.executor import MoverHandle
from aimodels_jobs.fleet import actors
from aimodels_jobs.mover import Mover
from aimodels_jobs.orders import ChecksumKind, PartOrder, RunOrder, S3PartTicket
from aimodels_jobs.partbuffer import PartBuffer

_WINDOW = 2
"""Runs under way per actor: what the movers' memory (256 MiB) would allow is four, of which some wait to be hashed."""
_STORE_BYTES = 2 * 1024**3


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """What is to be done.

    Args:
        way: `chain` or `ship`.
        url: of the file.
        size_bytes: of the file.
        target: URL of an upload, up to the part number.
        actors: how many movers.
    """

    way: str
    url: str
    size_bytes: int
    target: str
    actors: int

    def orders(self) -> list[RunOrder]:
        """The runs of the file, as the product cuts them."""
        read = ReadTicket(self.url, size_bytes=self.size_bytes, host="source", trusted=True)
        return [
            RunOrder(
                str(run.index),
                "file",
                tuple(
                    PartOrder(p.number, p.start, p.stop, S3PartTicket(f"{self.target}{p.number}")) for p in run.parts
                ),
                read,
                ChecksumKind.CRC64NVME,
                len(run.parts),
                300.0,
                run.index,
            )
            for run in plan.runs(self.size_bytes)
        ]


async def chain(task: Task) -> dict[str, Any]:
    """The product's way."""
    executor = actors.local(task.actors)
    try:
        movers = await executor.movers()
        began = time.monotonic()
        digest = await _chained(task.orders(), movers)
        return {"seconds": time.monotonic() - began, "digest": digest}
    finally:
        await executor.close()


async def _chained(orders: Sequence[RunOrder], movers: Sequence[MoverHandle]) -> str:
    waiting = collections.deque(enumerate(orders))
    fetches: dict[str, asyncio.Task[Any]] = {}

    def launch() -> None:
        if waiting:
            at, order = waiting.popleft()
            fetches[order.id] = asyncio.create_task(movers[at % len(movers)].fetch(order))

    for _ in range(_WINDOW * len(movers)):
        launch()
    state, digest = None, ""
    for at, order in enumerate(orders):
        report = await fetches.pop(order.id)
        if report.error is not None:
            raise report.error.to_error()
        hashed = await movers[at % len(movers)].hash(order.id, state, order is orders[-1])
        state, digest = hashed.state, hashed.digest_hex
        launch()
    return digest


class Shipper(Mover):
    """A mover that puts its bytes into the object store instead of hashing them, with one copy."""

    def ship(self, order: RunOrder) -> Any:
        """Fetch and store a run; answers a reference to its bytes, in order."""
        import numpy as np

        report = self.fetch(order)
        if report.error is not None:
            raise report.error.to_error()
        parts = sorted(self._runs[order.id]._parts.values(), key=lambda part: part.start)
        reference = ray.put([np.frombuffer(view, dtype=np.uint8) for part in parts for view in _views(part)])
        self.drop(order.id)
        return [reference]


def _views(part: PartBuffer) -> Iterator[memoryview]:
    """The bytes of a stored part as they lie in the mover's memory."""
    left = part.size_bytes
    for block in part._blocks:
        if block is not None:
            yield block[: min(left, len(block))]
            left -= min(left, len(block))


class Hasher:
    """Hashes what it is given, in order."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()

    def update(self, references: Sequence[Any]) -> None:
        """Take the bytes of a run in."""
        for data in ray.get(references[0]):
            self._sha256.update(data)

    def hexdigest(self) -> str:
        """The digest so far."""
        return self._sha256.hexdigest()


def ship(task: Task) -> dict[str, Any]:
    """The other way."""
    ray.init(
        address="local",
        num_cpus=task.actors + 1,
        num_gpus=0,
        include_dashboard=False,
        object_store_memory=_STORE_BYTES,
        log_to_driver=False,
        logging_level=40,
    )
    shippers = [ray.remote(num_cpus=1, max_concurrency=4)(Shipper).remote() for _ in range(task.actors)]
    hasher = ray.remote(num_cpus=1)(Hasher).remote()
    ray.get([*(s.facts.remote() for s in shippers), hasher.hexdigest.remote()])
    began = time.monotonic()
    for done in _shipped(task.orders(), shippers, hasher):
        ray.get(done)
    digest = ray.get(hasher.hexdigest.remote())
    seconds = time.monotonic() - began
    ray.shutdown()
    return {"seconds": seconds, "digest": digest}


def _shipped(orders: Sequence[RunOrder], shippers: Sequence[Any], hasher: Any) -> Iterator[Any]:
    """Keep as many runs under way as the chain has; gives the hashing of each run once it must be waited for."""
    hashing: collections.deque[Any] = collections.deque()
    for at, order in enumerate(orders):
        if at >= _WINDOW * len(shippers):
            yield hashing.popleft()
        hashing.append(hasher.update.remote(shippers[at % len(shippers)].ship.remote(order)))
    yield from hashing


def main(words: list[str]) -> int:
    """Do the task."""
    task = Task(**json.loads(words[0]))
    print(json.dumps(asyncio.run(chain(task)) if task.way == "chain" else ship(task)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
