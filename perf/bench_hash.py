"""What a hash state that can travel costs: libcrypto through ctypes against hashlib, in one thread and in two."""

import hashlib
import mmap
import threading
import time
from collections.abc import Callable

from aimodels_core.units import MIB
from aimodels_jobs import midstate
from perf.support import report
from perf.support.bench import Bench

QUESTION = "What does SHA-256 with an exportable state cost, against hashlib?"

_BUFFER = 4 * MIB


def run(bench: Bench, result: report.Result) -> None:
    """Hash the same 4 MiB again and again."""
    times = bench.file_bytes // _BUFFER

    def by_hashlib() -> None:
        sha, view = hashlib.sha256(), _memory()
        for _ in range(times):
            sha.update(view)

    def by_midstate() -> None:
        sha, view = midstate.new(), _memory()
        for _ in range(times):
            sha.update(view)
            sha = midstate.resume(sha.state())  # handed over after each buffer, far more often than in a transfer

    variants = {
        "hashlib": lambda: _sample(by_hashlib, 1, times),
        f"{midstate.backend()} with hand-over": lambda: _sample(by_midstate, 1, times),
        "hashlib, 2 threads": lambda: _sample(by_hashlib, 2, times),
        f"{midstate.backend()} with hand-over, 2 threads": lambda: _sample(by_midstate, 2, times),
    }
    bench.rounds(variants, result)
    for tail in ("", ", 2 threads"):
        mine, theirs = f"{midstate.backend()} with hand-over{tail}", f"hashlib{tail}"
        ratio = result.per_gb(mine, "client") / result.per_gb(theirs, "client")
        result.goals.append(report.Goal("hash", f"{mine}: CPU of {theirs}", 1.1, ratio, at_least=False))


def _memory() -> memoryview:
    return memoryview(mmap.mmap(-1, _BUFFER, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def _sample(work: Callable[[], None], threads: int, times: int) -> report.Sample:
    running = [threading.Thread(target=work) for _ in range(threads)]
    began, cpu = time.monotonic(), time.process_time()
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    spent = {"client": time.process_time() - cpu}
    return report.Sample(time.monotonic() - began, threads * times * _BUFFER, spent)
