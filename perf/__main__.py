"""Run benchmarks: `python -m perf [NAME…] [--quick] [--full]`; a table for each question, and perf/results/."""

import argparse
import dataclasses
import importlib
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from perf.support import report
from perf.support.bench import Bench

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Every benchmark, in the order in which they run."""
    return sorted(path.stem.removeprefix("bench_") for path in FOLDER.glob("bench_*.py"))


def main(words: Sequence[str]) -> int:
    """Run what was asked for; 0 when all goals were reached, 1 when one was missed, 2 when a benchmark broke."""
    parser = argparse.ArgumentParser(prog="python -m perf", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names())}")
    parser.add_argument("--quick", action="store_true", help="two repetitions of smaller data: does it run at all?")
    parser.add_argument("--full", action="store_true", help="weight files of 1 GiB instead of 512 MiB")
    parser.add_argument("--repetitions", type=int, default=0, metavar="N", help="5, with --quick 2")
    parser.add_argument(
        "--patience", type=float, default=30.0, metavar="S", help="wait so long for a quiet machine (30)"
    )
    parser.add_argument("--again", type=int, default=3, metavar="N", help="repeat so many disturbed repetitions (3)")
    parser.add_argument("--work", type=Path, default=report.ROOT / "build" / "perf", metavar="DIR", help="for data")
    parser.add_argument("--results", type=Path, default=report.RESULTS, metavar="DIR", help="for results")
    options = parser.parse_args(words)
    unknown = set(options.names) - set(names())
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; want of {', '.join(names())}")
    file_mib = 128 if options.quick else 1024 if options.full else 512
    repetitions = options.repetitions or (2 if options.quick else 5)
    work: Path = options.work.resolve() / str(os.getpid())
    patience, again = (0.0, 0) if options.quick else (options.patience, options.again)
    bench = Bench(work, repetitions, file_mib * 1024 * 1024, patience, again, options.quick)
    work.mkdir(parents=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and data are cleaned up then, too
    try:
        codes = [_run(name, bench, options.results) for name in options.names or names()]
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return max(codes)


def _run(name: str, bench: Bench, results: Path) -> int:
    module = importlib.import_module(f"perf.bench_{name}")
    report.say(f"\n== {name}: {module.QUESTION}")
    began, where = time.monotonic(), report.surroundings(bench.work)
    here = dataclasses.replace(bench, work=bench.work / name)
    here.work.mkdir(parents=True, exist_ok=True)
    result = report.Result(name, module.QUESTION)
    try:
        module.run(here, result)
    except Exception:  # one broken benchmark must not hide the others
        traceback.print_exc()
        return 2
    finally:
        shutil.rmtree(here.work, ignore_errors=True)
    report.write(result, where, results)
    report.say("\n".join(report.table(result)))
    report.say(f"== {name}: {time.monotonic() - began:.0f} s")
    return 0 if all(goal.reached for goal in result.goals) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
