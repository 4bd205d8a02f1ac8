"""R2: how many times the CPU of SHA-256 alone does the client need for each byte, plain and with a TLS source?"""

import statistics
from collections.abc import Sequence

from perf.support import lean_run, models
from perf.support.bench import Bench
from perf.support.report import GB, Goal, Result, Sample

QUESTION = "R2: client CPU per GB against hashlib.sha256 alone; source nginx, target the lean S3 server"
_FILES = 4


def run(bench: Bench, result: Result) -> None:
    """A publication without payload shows what starting costs; the rest is what bytes cost."""
    with (
        models.folder(bench.work / "source", files=_FILES, file_bytes=2 * bench.file_bytes) as model,
        lean_run.opened(bench, {"model": model}) as plain,
        lean_run.opened(bench, {"model": model}, tls=True) as tls,
    ):
        size = plain.sizes["model"]
        bench.rounds(
            {
                "hashlib.sha256 alone": lambda: lean_run.hashlib_alone(bench, size),
                "publish, no payload": lambda: plain.publish(lean_run.SMALL),
                "publish, HTTP source": lambda: plain.publish("model"),
                "publish, HTTPS source": lambda: tls.publish("model"),
            },
            result,
        )
    alone = result.per_gb("hashlib.sha256 alone", "client")
    start = _cpu(result.samples["publish, no payload"])
    for goal, variant, want in (("R2a", "publish, HTTP source", 2.2), ("R2b", "publish, HTTPS source", 4.0)):
        each = (_cpu(result.samples[variant]) - start) / (size / GB)
        text = f"{variant}: {each:.2f} cpu-s/GB for the bytes, times hashlib's {alone:.2f}"
        result.goals.append(Goal(goal, text, want, each / alone, at_least=False))
    result.notes += [
        f"{size / GB:.2f} GB in {_FILES} files",
        (
            f"starting, asking the hub, probing the store and committing cost {start:.2f} cpu-s whatever the size; "
            "the goals are about the bytes: the CPU of a publication less that"
        ),
        "the column `client cpu-s/GB` has the start in it",
    ]


def _cpu(samples: Sequence[Sample]) -> float:
    return statistics.median(sample.cpu["client"] for sample in samples)
