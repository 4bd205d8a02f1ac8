"""What can be seen of an operator process: metrics, memory, CPU; and what others used of the machine meanwhile."""

import contextlib
import os
import time
import urllib.request
from pathlib import Path

from perf.support import spent
from perf.support.report import Sample
from tests.cluster.operating import Replica


class Spending:
    """Time, CPU of a replica, and what others outside of the stand use, from its making on."""

    def __init__(self, replica: Replica | None = None) -> None:
        self._replica = replica
        self.began = time.monotonic()
        self._cpu = self._own()
        self._stand, self._busy = spent.tree_cpu_seconds(1), spent.machine_busy_seconds()

    def sample(self, seconds: float | None = None, **more: float) -> Sample:
        """What was spent so far; the column `CPU s` is that of the replica."""
        wall = time.monotonic() - self.began
        stand = spent.tree_cpu_seconds(1) - self._stand
        foreign = max(0.0, spent.machine_busy_seconds() - self._busy - stand) / wall / (os.cpu_count() or 1)
        cpu = {} if self._replica is None else {"CPU s": self._own() - self._cpu}
        memory = peak_bytes(self._replica) if self._replica is not None else 0
        return Sample(
            wall if seconds is None else seconds, rss_bytes=memory, foreign=min(1.0, foreign), more={**more, **cpu}
        )

    def _own(self) -> float:
        return spent.tree_cpu_seconds(self._replica.process.pid) if self._replica is not None else 0.0


def metrics(replica: Replica) -> dict[str, float]:
    """All numbers of a replica."""
    with urllib.request.urlopen(f"http://127.0.0.1:{replica.port}/metrics", timeout=10) as answer:
        lines = answer.read(1 << 20).decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def answers(replica: Replica) -> bool:
    """Whether a replica serves."""
    with contextlib.suppress(OSError):
        return bool(metrics(replica))
    return False


def looked_at(replica: Replica, models: int) -> bool:
    """Whether a replica has looked at so many objects and has nothing left to do."""
    if not answers(replica):
        return False
    counts = metrics(replica)
    return counts["aimodels_reconcile_seconds_count"] >= models and counts["aimodels_queue_depth"] == 0


def memory_bytes(replica: Replica, field: str) -> int:
    """A field of `status` in proc(5)."""
    lines = Path(f"/proc/{replica.process.pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def resident_bytes(replica: Replica) -> int:
    """Resident memory now."""
    return memory_bytes(replica, "VmRSS")


def peak_bytes(replica: Replica) -> int:
    """Most resident memory so far."""
    return memory_bytes(replica, "VmHWM")
