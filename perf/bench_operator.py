"""O1-O5: what does the operator cost beside thousands of Models, and how fast is it, on a real API server?"""

import json
import subprocess
import sys

from perf.support.bench import Bench
from perf.support.report import ROOT, Goal, Result, Sample

QUESTION = "O1-O5: the operator beside 5,000 Models and 10,000 foreign Pods, on a real API server"
_MIB = 1024 * 1024
_MODELS, _QUICK_MODELS = 5000, 500
_ROUNDS, _QUICK_ROUNDS = 3, 1
_SECONDS = 3600
_NOTES = (
    "Ready Models were made by an administrator with the status that an operator left after a publication in earnest",
    "O1: from the start of the process until it has looked at all; memory is the largest so far",
    "O2: an operator without work for 30 s; Pods are on no node, churn is 20 times a second label, delete, create",
    "O3, O4: the coordinator is a simulator that speaks the API and moves no bytes; writes as a watch saw them",
    "O4: from before the creation of the object until its PUT arrives",
    "O5: from SIGKILL until the other replica has written a status, with the product's coordinator and a slow hub",
)


def run(bench: Bench, result: Result) -> None:
    """One stand for everything."""
    models, rounds = (_QUICK_MODELS, _QUICK_ROUNDS) if bench.quick else (_MODELS, _ROUNDS)
    folder = bench.fresh("operator")
    folder.mkdir()
    words = ["tests/cluster/run", "--no-images", "--nodes", "1"]
    loads = [sys.executable, "-m", "perf.support.operator_loads", str(folder), str(models), str(rounds)]
    done = subprocess.run([*words, *loads], cwd=ROOT, timeout=_SECONDS, check=False)
    samples = folder / "samples.json"
    for each in json.loads(samples.read_text(encoding="utf-8")) if samples.exists() else ():
        result.samples.setdefault(each["variant"], []).append(Sample(**each["sample"]))
    if done.returncode != 0:
        raise RuntimeError(f"loads: want exit code 0, got {done.returncode}")
    result.goals += [*_costs(result), *_rates(result)]
    result.notes += [f"{models} Models, {2 * models} foreign Pods", *_NOTES]


def _costs(result: Result) -> list[Goal]:
    resyncs, at_once = result.samples["resync"], result.samples["publish at once"]
    memory = max(sample.rss_bytes for sample in (*resyncs, *at_once)) / _MIB
    written = max(sample.more["writes"] for sample in resyncs)
    without, beside = "no foreign Pods", "foreign Pods, churn"
    cpu = result.more(beside, "CPU %") - result.more(without, "CPU %")
    grown = result.more(beside, "resident MiB") - result.more(without, "resident MiB")
    return [
        Goal("O1a", "MiB of the operator, also while many publish", 500, memory, at_least=False),
        Goal("O1b", "seconds of a full resync", 60, max(s.seconds for s in resyncs), at_least=False),
        Goal("O1c", "writes when nothing changed", 0, written, at_least=False),
        Goal("O2a", "foreign Pods with churn: % of a core more", 0.5, cpu, at_least=False),
        Goal("O2b", "foreign Pods with churn: MiB more", 4, grown, at_least=False),
    ]


def _rates(result: Result) -> list[Goal]:
    (at_once,) = result.samples["publish at once"]
    fail_overs = result.samples["fail-over"]
    slowest = max(sample.seconds for sample in fail_overs)
    restarted = sum(sample.more["restarted"] for sample in fail_overs)
    waits = result.samples["created one by one"][0].more["p99 s"]
    return [
        Goal("O3a", "status writes in any second", 200, at_once.more["most in 1 s"], at_least=False),
        Goal("O3b", "of one object: progress per 5 s", 1, at_once.more["progress in 5 s"], at_least=False),
        Goal("O4", "seconds from creation to PUT, p99", 1, waits, at_least=False),
        Goal("O5a", "seconds from SIGKILL to the next write", 15, slowest, at_least=False),
        Goal("O5b", "publications that began again", 0, restarted, at_least=False),
    ]
