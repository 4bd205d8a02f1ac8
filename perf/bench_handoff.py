"""R8: one file over many actors: is passing the hash state along faster than bringing the bytes to one hasher?"""

import dataclasses
import json
import sys

from perf.support import lean_run, models
from perf.support.bench import Bench, sample
from perf.support.handoff import Task
from perf.support.lean_run import Line
from perf.support.report import ROOT, Goal, Result, Sample
from perf.support.spent import Watch
from perf.support.spent import run as run_command

QUESTION = "R8: one file over 3 Ray actors: the hash state travels, or the bytes do, through Ray's object store"
_ACTORS = 3


def run(bench: Bench, result: Result) -> None:
    """Every byte also goes to the lean S3 server; Ray runs already when the clock starts."""
    with (
        models.folder(bench.work / "source", files=1, file_bytes=2 * bench.file_bytes) as model,
        lean_run.opened(bench, {"model": model}) as line,
    ):
        path = "model.safetensors"
        digests: set[str] = set()
        chain, ship = (
            Task(way, f"{line.source.payload}/{model.name}/{path}", (model / path).stat().st_size, "", _ACTORS)
            for way in ("chain", "ship")
        )
        bench.rounds(
            {
                "bytes through the object store": lambda: _measured(line, ship, digests),
                "hash state along the runs": lambda: _measured(line, chain, digests),
            },
            result,
        )
    result.faster("R8a", "bytes through the object store", "hash state along the runs", 1.2)
    result.goals.append(Goal("R8b", "digests that were seen", 1, len(digests), at_least=False))
    result.notes.append("one node: across nodes, the object store also sends every byte a second time")


def _measured(line: Line, task: Task, digests: set[str]) -> Sample:
    client = line.s3.client()
    upload = client.create_multipart_upload(Bucket=line.s3.bucket, Key="file")["UploadId"]
    target = f"{line.s3.endpoint}/{line.s3.bucket}/file?uploadId={upload}&partNumber="
    words = json.dumps(dataclasses.asdict(dataclasses.replace(task, target=target)))
    watch = Watch({"source": line.source.pids, "target": (line.s3.server.process.pid,)})
    spent = run_command([sys.executable, "-m", "perf.support.handoff", words], env=line.env, cwd=ROOT, deep=True)
    told = json.loads(spent.out.splitlines()[-1])
    digests.add(told["digest"])
    more = {"process s": spent.seconds}
    return sample(spent, task.size_bytes, watch, more, seconds=told["seconds"])
