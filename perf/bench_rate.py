"""R3: how near does the whole pipeline, with its servers on the same machine, come to one core's SHA-256?"""

from perf.support import lean_run, models
from perf.support.bench import Bench
from perf.support.report import GB, Goal, Result

QUESTION = "R3: GB/s of a publication against hashlib.sha256 on one core; source nginx, target the lean S3 server"
_FILES = 4


def run(bench: Bench, result: Result) -> None:
    """Wall time of the publication as the product reports it."""
    with (
        models.folder(bench.work / "source", files=_FILES, file_bytes=2 * bench.file_bytes) as model,
        lean_run.opened(bench, {"model": model}) as line,
    ):
        size = line.sizes["model"]
        bench.rounds(
            {
                "hashlib.sha256 alone": lambda: lean_run.hashlib_alone(bench, size),
                "publish": lambda: line.publish("model"),
            },
            result,
        )
    ratio = result.seconds("hashlib.sha256 alone") / result.seconds("publish")
    result.goals.append(Goal("R3", "publish: GB/s, times those of hashlib.sha256", 0.6, ratio))
    result.notes += [
        f"{size / GB:.2f} GB in {_FILES} files",
        "seconds from the start of the command to its result; `process s` has the interpreter's start too",
    ]
