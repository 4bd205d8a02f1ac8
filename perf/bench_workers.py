"""R6: how well do more Ray workers help, when the source limits each connection?"""

import functools
import itertools
import json
import sys

from perf.support import lean_run, models, product
from perf.support.bench import Bench, sample
from perf.support.lean_run import Line
from perf.support.report import ROOT, Result, Sample
from perf.support.spent import Watch
from perf.support.spent import run as run_command

QUESTION = "R6: Ray workers 1, 2, 4 with 4 connections each at 25 MiB/s"
_FILES = 2
_CONNECTIONS = 4
_BYTES_PER_SECOND = 25 * models.MIB
"""The source is the limit then: two cores move what 16 such connections bring."""
_prefixes = itertools.count(1)


def run(bench: Bench, result: Result) -> None:
    """Two files, so that runs of one file go over several workers and the hash state travels between them."""
    with (
        models.folder(bench.work / "source", files=_FILES, file_bytes=2 * bench.file_bytes) as model,
        lean_run.opened(bench, {"model": model}, bytes_per_second=_BYTES_PER_SECOND) as line,
    ):
        bench.rounds({name: functools.partial(_publish, line, n) for n, name in _NAMES.items()}, result)
    for goal, workers, want in (("R6a", 2, 1.8), ("R6b", 4, 3.2)):
        result.faster(goal, _NAMES[1], _NAMES[workers], want)
    result.notes += [
        f"{_FILES} files of {2 * bench.file_bytes // models.MIB} MiB to the lean S3 server; Ray here, running already",
        "CPU of the client includes starting Ray",
    ]


_NAMES = {1: "1 worker", 2: "2 workers", 4: "4 workers"}


def _publish(line: Line, workers: int) -> Sample:
    store = f"s3://{line.s3.bucket}/{next(_prefixes)}"
    each = []
    for name in (lean_run.SMALL, "model"):
        words = product.command(
            line.source,
            name,
            store,
            s3_endpoint=line.s3.endpoint,
            workers=workers,
            connections=workers * _CONNECTIONS,
        )
        each.append(words[1:])
    watch = Watch({"source": line.source.pids, "target": (line.s3.server.process.pid,)})
    spent = run_command(
        [sys.executable, "-m", "perf.support.workers", json.dumps(each)], env=line.env, cwd=ROOT, deep=True
    )
    told = json.loads(spent.out.splitlines()[-1])[-1]
    more = {"process s": spent.seconds}
    return sample(spent, line.sizes["model"], watch, more, seconds=told["seconds"])
