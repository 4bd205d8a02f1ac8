"""R5: how much do 16 connections gain over one, when the source limits each of them; with one file, too?"""

import contextlib

from perf.support import lean_run, models
from perf.support.bench import Bench
from perf.support.report import Result

QUESTION = "R5: 16 connections against 1 at 50 MiB/s each, for four files and for a single one"
_BYTES_PER_SECOND = 50 * models.MIB
_FEW, _MANY = 1, 16


def run(bench: Bench, result: Result) -> None:
    """The same bytes as four files and as one file."""
    quarter = 2 * bench.file_bytes  # so much that starting does not count
    with contextlib.ExitStack() as stack:
        four = stack.enter_context(models.folder(bench.work / "source", files=4, file_bytes=quarter))
        one = stack.enter_context(models.folder(bench.work / "source", files=1, file_bytes=4 * quarter))
        folders = {"four": four, "one": one}
        line = stack.enter_context(lean_run.opened(bench, folders, bytes_per_second=_BYTES_PER_SECOND))
        bench.rounds(
            {
                "4 files, K=1": lambda: line.publish("four", connections=_FEW),
                "4 files, K=16": lambda: line.publish("four", connections=_MANY),
                "1 file, K=1": lambda: line.publish("one", connections=_FEW),
                "1 file, K=16": lambda: line.publish("one", connections=_MANY),
            },
            result,
        )
    result.faster("R5a", "4 files, K=1", "4 files, K=16", 10.0)
    result.faster("R5b", "1 file, K=1", "1 file, K=16", 10.0)
    result.notes.append(f"{4 * quarter // models.MIB} MiB; wall time of the publication as the product reports it")
