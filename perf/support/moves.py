"""A client for benchmarks of the mover: `python -m perf.support.moves '<json>'` prints what it spent as JSON.

Several files at once, each as a chain of runs through one mover, as the coordinator would ask for them; no coordinator,
no Ray. CPU is counted from the first order to the last digest, without the start of the interpreter.
"""

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import http.client
import json
import mmap
import re
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from aimodels_core.source import ReadTicket
from aimodels_core.units import MIB
from aimodels_jobs.mover import Mover
from aimodels_jobs.orders import (
    ChecksumKind,
    DiscardTicket,
    FilePartTicket,
    PartOrder,
    RunOrder,
    S3PartTicket,
    WriteTicket,
)

PART = 16 * MIB
RUN_PARTS = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """What the client is to do.

    Args:
        url: of the file.
        size_bytes: of the file.
        files: how many times it is moved, each as a file of its own.
        streams: how many of them at once.
        ca_file: to verify the source with.
        sink: `s3`, `folder`, `nowhere`, or `hash` (read a local file and hash it with hashlib alone).
        target: base URL of the S3 server, path of a folder, or path of the local file.
    """

    url: str
    size_bytes: int
    files: int
    streams: int
    ca_file: str
    sink: str
    target: str
    uploads: tuple[str, ...] = ()

    def begun(self) -> "Task":
        """Create the uploads of an S3 server."""
        if self.sink != "s3":
            return self
        made = []
        with contextlib.closing(http.client.HTTPConnection(self.target.partition("//")[2])) as connection:
            for file in range(self.files):
                connection.request("POST", f"/b/{file}?uploads", headers={"x-amz-checksum-type": "FULL_OBJECT"})
                made += re.findall("<UploadId>(.*)</UploadId>", connection.getresponse().read().decode())
        return dataclasses.replace(self, uploads=tuple(made))

    def ticket(self, file: int, number: int, start: int) -> WriteTicket:
        """Leave to write a part."""
        if self.sink == "nowhere":
            return DiscardTicket()
        if self.sink == "folder":
            return FilePartTicket(f"{self.target}/{file}", start)
        return S3PartTicket(f"{self.target}/b/{file}?partNumber={number}&uploadId={self.uploads[file]}")

    def orders(self, file: int) -> Iterator[RunOrder]:
        """The runs of one file."""
        read = ReadTicket(self.url, (), self.size_bytes, None, "source", self.ca_file, trusted=True)
        checksum = ChecksumKind.XXH3 if self.sink == "folder" else ChecksumKind.CRC64NVME
        edges = [(n + 1, a, min(a + PART, self.size_bytes)) for n, a in enumerate(range(0, self.size_bytes, PART))]
        for at in range(0, len(edges), RUN_PARTS):
            parts = tuple(PartOrder(n, a, b, self.ticket(file, n, a)) for n, a, b in edges[at : at + RUN_PARTS])
            yield RunOrder(f"{file}-{at}", "file", parts, read, checksum, RUN_PARTS, 300.0, at)


def move(task: Task, mover: Mover, file: int, pool: concurrent.futures.Executor) -> str:
    """Move one file: at most two runs under way, hashed in order."""
    orders = list(task.orders(file))
    fetches = [pool.submit(mover.fetch, order) for order in orders[:2]]
    state: bytes | None = None
    digest = ""
    for at, order in enumerate(orders):
        report = mover.hash(order.id, state, at == len(orders) - 1)
        state, digest = report.state, report.digest_hex
        if at + 2 < len(orders):
            fetches.append(pool.submit(mover.fetch, orders[at + 2]))
    for fetch in fetches:
        error = fetch.result().error
        if error is not None:
            raise error.to_error()
    return digest


def hash_alone(path: Path) -> str:
    """Hash with hashlib from memory that is read again and again, as a yardstick."""
    data = memoryview(mmap.mmap(-1, PART, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    sha = hashlib.sha256()
    left = path.stat().st_size
    with path.open("rb", buffering=0) as file:
        file.readinto(data)
    while left > 0:
        sha.update(data[: min(left, PART)])
        left -= PART
    return sha.hexdigest()


def main(words: list[str]) -> int:
    """Do the task; print what it took."""
    task = Task(**json.loads(words[0])).begun()
    mover = Mover()
    began, cpu = time.monotonic(), time.process_time()
    with (
        concurrent.futures.ThreadPoolExecutor(64) as fetches,
        concurrent.futures.ThreadPoolExecutor(task.streams) as files,
    ):
        if task.sink == "hash":
            digests = {hash_alone(Path(task.target)) for _ in range(task.files)}
        else:
            digests = set(files.map(lambda file: move(task, mover, file, fetches), range(task.files)))
    spent = {"seconds": time.monotonic() - began, "cpu": time.process_time() - cpu}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({**spent, "rss": peak, "digests": sorted(digests)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
