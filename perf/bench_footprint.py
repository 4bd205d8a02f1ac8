"""R9: what does publishing write to disk, and how much memory does a mover take, whatever the size of the file?"""

import contextlib
import signal
import time

from perf.support import lean_run, models, product, source, stores
from perf.support.bench import Bench, measured, sample
from perf.support.report import GB, ROOT, Goal, Result, Sample
from perf.support.spent import Running, Spent, Watch
from tests.support.hub.process import HubProcess

QUESTION = "R9: bytes written to disk by the client, and its memory, also for a file of 1 TB that is cut off"
_FILES = 4
_MIB = models.MIB
_SLACK_BYTES = 4 * _MIB
"""Room for manifests, checkpoints and the interpreter's own files."""


def run(bench: Bench, result: Result) -> None:
    """Into S3, into a folder, and the beginning of a file that is larger than any memory."""
    with (
        models.folder(bench.work / "source", files=_FILES, file_bytes=bench.file_bytes) as model,
        lean_run.opened(bench, {"model": model}) as line,
    ):
        size = line.sizes["model"]
        bench.rounds(
            {
                "to S3": lambda: line.publish("model"),
                "to a folder": lambda: _to_folder(bench, line.source, size),
                "1 TB, cut off": lambda: _huge(bench, 16 * bench.file_bytes),
            },
            result,
        )
    written = {name: max(s.written_bytes or 0 for s in samples) for name, samples in result.samples.items()}
    result.goals += [
        Goal("R9a", "to S3: GB written", _SLACK_BYTES / GB, written["to S3"] / GB, at_least=False),
        Goal("R9b", "to a folder: bytes written, times the model", 1.01, written["to a folder"] / size, at_least=False),
        *(
            Goal("R9c", f"{name}: MiB of memory", 400, max(s.rss_bytes for s in samples) / _MIB, at_least=False)
            for name, samples in result.samples.items()
        ),
    ]
    result.notes.append("written: what the kernel accounted to the process (ru_oublock); worst of all repetitions")


def _to_folder(bench: Bench, origin: source.Source, size_bytes: int) -> Sample:
    store = bench.fresh("store")
    words = product.command(origin, "model", str(store))

    def action() -> Spent:
        return product.published(words, product.environment(bench.work / "home"))[0]

    with stores.removed(store):
        return measured(action, size_bytes, {"source": origin.pids, "target": ()})


def _huge(bench: Bench, cut_bytes: int) -> Sample:
    """Publish a file that claims to be 1 TB until `cut_bytes` have left the source, then interrupt the client."""
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(HubProcess("--generated", f"{source.ORG}/huge=1T", "--no-rate-limit"))
        s3 = stack.enter_context(stores.lean_s3())
        env = product.environment(bench.work / "home", s3.environment())
        origin = source.Source(hub.url, "", (hub.pid,))
        words = product.command(origin, "huge", f"s3://{s3.bucket}/huge", s3_endpoint=s3.endpoint)
        watch = Watch({"source": origin.pids, "target": (s3.server.process.pid,)})
        running = stack.enter_context(Running(words, env=env, cwd=ROOT))
        deadline = time.monotonic() + 300
        while (sent := int(hub.stats()["payloadBytes"])) < cut_bytes and running.alive and time.monotonic() < deadline:
            time.sleep(0.1)
        running.signal(signal.SIGINT)
        spent = running.wait(timeout_seconds=60, codes=(130,))
        return sample(spent, sent, watch)
