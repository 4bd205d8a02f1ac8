"""R12: how many bytes move again after the client was killed half way?"""

import contextlib
import signal
import time

from aimodels_core.units import GIB
from aimodels_jobs import buffers, plan
from perf.support import models, product, source, stores
from perf.support.bench import Bench, sample
from perf.support.report import ROOT, Goal, Result, Sample
from perf.support.spent import Running, Watch
from tests.support.hub.process import HubProcess
from tests.support.servers import S3Server

QUESTION = "R12: bytes fetched again after kill -9 at half of the bytes"
_FILES = 4
_MOST_FILE_BYTES = 4 * GIB


def run(bench: Bench, result: Result) -> None:
    """Generated files, so that the rest is large against what is in flight; the store throws parts away."""
    file_bytes = min(8 * bench.file_bytes, _MOST_FILE_BYTES)
    words = ("--generated", f"{source.ORG}/model={file_bytes}x{_FILES}", "--no-rate-limit")
    with HubProcess(*words, start_seconds=180) as hub:
        for _ in range(bench.repetitions):
            with stores.lean_s3() as s3:
                result.add("killed at 50 %", _killed(bench, hub, s3, _FILES * file_bytes))
            hub.reset()
    again = max(s.more["MiB again"] for s in result.samples["killed at 50 %"])
    rest = min(s.more["MiB rest"] for s in result.samples["killed at 50 %"])
    window = (buffers.POOL_BYTES + _FILES * plan.RUN_BYTES) / models.MIB
    result.goals += [
        Goal("R12a", "MiB fetched again, against the window and one run per file", window, again, at_least=False),
        Goal("R12b", "fetched again, as a share of the rest", 0.05, again / rest, at_least=False),
    ]
    result.notes += [
        (
            f"{_FILES} files of {file_bytes // models.MIB} MiB; worst of all repetitions; counted by the source, "
            "which counts what lay in socket buffers too"
        ),
        (
            f"the window is the mover's memory ({buffers.POOL_BYTES // models.MIB} MiB); one run "
            f"({plan.RUN_BYTES // models.MIB} MiB) per file may be hashed while its checkpoint is not written yet"
        ),
    ]
    if file_bytes < _MOST_FILE_BYTES:
        result.notes.append("the rest is too small here for R12b: the window alone is more than 5 % of it")


def _killed(bench: Bench, hub: HubProcess, s3: S3Server, size_bytes: int) -> Sample:
    env = product.environment(bench.work / "home", s3.environment())
    origin = source.Source(hub.url, "", (hub.pid,))
    words = product.command(origin, "model", f"s3://{s3.bucket}/crash", s3_endpoint=s3.endpoint)
    with contextlib.ExitStack() as stack:
        running = stack.enter_context(Running(words, env=env, cwd=ROOT))
        deadline = time.monotonic() + 300
        while _sent(hub) < size_bytes // 2 and running.alive and time.monotonic() < deadline:
            time.sleep(0.05)
        running.signal(signal.SIGKILL)
        running.wait(timeout_seconds=60, codes=(-signal.SIGKILL,))
    before = _sent(hub)
    watch = Watch({"source": origin.pids, "target": (s3.server.process.pid,)})
    spent, _ = product.published(words, env)
    rest = size_bytes - before
    again = _sent(hub) - size_bytes
    mib = models.MIB
    more = {"MiB before": before / mib, "MiB rest": rest / mib, "MiB again": again / mib}
    return sample(spent, rest + again, watch, more)


def _sent(hub: HubProcess) -> int:
    return int(hub.stats()["payloadBytes"])
