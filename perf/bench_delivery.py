"""D1-D3: how much later is a Pod Ready because it gets a model, warm and cold, on a real cluster?"""

import json
import statistics
import subprocess
import sys

from perf.support.bench import Bench
from perf.support.report import ROOT, Goal, Result, Sample

QUESTION = "D1-D3: Pods with models from caches of nodes against Pods without, on a real cluster of three nodes"
_ROUNDS, _QUICK_ROUNDS = 20, 4
_SECONDS = 3600
_PLAIN, _WARM, _COLD = "no model", "warm model", "cold model"
_NOTES = (
    "no model, warm model: from the first status without a gate until Ready, one Pod after another, in turn",
    "cold model: from the artifact's folder on a node until Ready; the Pod was there before, no node had the model",
    "the whole product is installed; two nodes have a block device (a loop device); models have 8 MiB",
)


def run(bench: Bench, result: Result) -> None:
    """One stand for everything."""
    rounds = _QUICK_ROUNDS if bench.quick else _ROUNDS
    folder = bench.fresh("delivery")
    folder.mkdir()
    loads = [sys.executable, "-m", "perf.support.delivery_loads", str(folder), str(rounds)]
    done = subprocess.run(["tests/cluster/run", *loads], cwd=ROOT, timeout=_SECONDS, check=False)
    samples = folder / "samples.json"
    for each in json.loads(samples.read_text(encoding="utf-8")) if samples.exists() else ():
        result.samples.setdefault(each["variant"], []).append(Sample(**each["sample"]))
    if done.returncode != 0:
        raise RuntimeError(f"loads: want exit code 0, got {done.returncode}")
    plain, warm, cold = (
        statistics.median(one.seconds for one in result.samples[name]) for name in (_PLAIN, _WARM, _COLD)
    )
    result.goals += [
        Goal("D1", "seconds from the gate to Ready, warm, median", 1.0, warm, at_least=False),
        Goal("D2", "seconds more than a Pod without a model, medians", 0.3, warm - plain, at_least=False),
        Goal("D3", "seconds from the artifact on the node to Ready, cold, median", 2.0, cold, at_least=False),
    ]
    result.notes += [f"{rounds} Pods of each kind", *_NOTES]
