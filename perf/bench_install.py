"""I1: how long is it from `helm install` to the first Model that is Ready, on a new cluster that has the images?"""

import json
import statistics
import subprocess
import sys

from perf.support.bench import Bench
from perf.support.report import ROOT, Goal, Result, Sample

QUESTION = "I1: from helm install to the first Model (all-MiniLM-L6-v2) Ready, on a new cluster of three nodes"
_SECONDS = 900


def run(bench: Bench, result: Result) -> None:
    """A new stand for each repetition."""
    for number in range(bench.repetitions):
        told = bench.work / f"install-{number}.json"
        loads = [sys.executable, "-m", "perf.support.install_loads", str(told)]
        subprocess.run(["tests/cluster/run", *loads], cwd=ROOT, timeout=_SECONDS, check=True)
        result.add("install", Sample(**json.loads(told.read_text(encoding="utf-8"))))
    seconds = statistics.median(one.seconds for one in result.samples["install"])
    result.goals.append(Goal("I1", "seconds to the first Ready, median", 120.0, seconds, at_least=False))
    result.notes += [
        "a claim for the store; the Model is there before the chart's operator; its hub is the simulator of the tests",
        "server of everything, the cluster included, are the cores of this machine",
    ]
