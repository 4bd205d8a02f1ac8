"""Samples, medians, goals; the table on the terminal, and the files in perf/results/."""

import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "perf" / "results"
GB = 1e9
_MIB = 1024 * 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One repetition of one variant.

    Args:
        seconds: wall time that the goal speaks of.
        payload_bytes: bytes of the model (0 when there is no rate to tell).
        cpu: CPU seconds by role: `client`, `source`, `target`.
        rss_bytes: largest resident memory of one process of the client.
        written_bytes: what the client wrote to disk.
        foreign: share of the machine that others used meanwhile, 0 to 1.
        more: further figures, by the name of their column.
    """

    seconds: float
    payload_bytes: int = 0
    cpu: Mapping[str, float] = dataclasses.field(default_factory=dict)
    rss_bytes: int = 0
    written_bytes: int | None = None
    foreign: float = 0.0
    more: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def per_gb(self, role: str) -> float:
        """CPU seconds of a role for each 1e9 bytes of payload."""
        return self.cpu[role] / (self.payload_bytes / GB)


@dataclasses.dataclass(frozen=True, slots=True)
class Goal:
    """What was to be reached, and what was.

    Args:
        id: such as R1a.
        text: what is compared.
        want: the bound.
        got: the figure.
        at_least: whether the bound is the smallest figure allowed, else the largest.
    """

    id: str
    text: str
    want: float
    got: float
    at_least: bool = True

    @property
    def reached(self) -> bool:
        """Whether the goal is met."""
        return self.got >= self.want if self.at_least else self.got <= self.want


@dataclasses.dataclass(slots=True)
class Result:
    """What one benchmark found."""

    name: str
    question: str
    samples: dict[str, list[Sample]] = dataclasses.field(default_factory=dict)
    goals: list[Goal] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    discarded: dict[str, list[Sample]] = dataclasses.field(default_factory=dict)

    def discard(self, variant: str, sample: Sample) -> None:
        """Count a repetition that others disturbed; it is in the JSON file only."""
        self.discarded.setdefault(variant, []).append(sample)
        say(f"  {variant}: {sample.seconds:.2f} s, done again: others used {sample.foreign:.0%} of the machine")

    def add(self, variant: str, sample: Sample) -> Sample:
        """Count a repetition, and say so."""
        self.samples.setdefault(variant, []).append(sample)
        more = "".join(f"  {name} {value:.4g}" for name, value in sample.more.items())
        client = f"  client {sample.cpu['client']:.2f} cpu-s" if "client" in sample.cpu else ""
        say(f"  {variant}: {sample.seconds:.2f} s{client}{more}  (foreign CPU {sample.foreign:.0%})")
        return sample

    def seconds(self, variant: str) -> float:
        """Median wall time."""
        return statistics.median(sample.seconds for sample in self.samples[variant])

    def per_gb(self, variant: str, role: str) -> float:
        """Median CPU seconds of a role per 1e9 bytes."""
        return statistics.median(sample.per_gb(role) for sample in self.samples[variant])

    def more(self, variant: str, column: str) -> float:
        """Median of a further figure."""
        return statistics.median(sample.more[column] for sample in self.samples[variant])

    def faster(self, goal: str, than: str, variant: str, want: float) -> None:
        """Add the goal that `variant` takes `want` times less wall time than `than`."""
        ratio = self.seconds(than) / self.seconds(variant)
        self.goals.append(Goal(goal, f"{variant}: times faster than {than}", want, ratio))


def say(line: str) -> None:
    """Print at once."""
    print(line, flush=True)


def _columns(samples: Sequence[Sample]) -> dict[str, str]:
    """Cells of one variant."""

    def median(values: Sequence[float]) -> float:
        return statistics.median(values)

    seconds = [sample.seconds for sample in samples]
    cells = {"n": str(len(samples)), "s": f"{median(seconds):.2f}", "range": f"{min(seconds):.2f}-{max(seconds):.2f}"}
    if all(sample.payload_bytes for sample in samples):
        cells["GB/s"] = f"{median([s.payload_bytes / GB / s.seconds for s in samples]):.2f}"
        for role in samples[0].cpu:
            cells[f"{role} cpu-s/GB"] = f"{median([s.per_gb(role) for s in samples]):.2f}"
    if any(sample.rss_bytes for sample in samples):
        cells["RSS MiB"] = f"{median([s.rss_bytes / _MIB for s in samples]):.0f}"
    if all(sample.written_bytes is not None for sample in samples):
        cells["written GB"] = f"{median([(s.written_bytes or 0) / GB for s in samples]):.3f}"
    for name in samples[0].more:
        cells[name] = f"{median([s.more[name] for s in samples if name in s.more]):.4g}"
    cells["foreign"] = f"{median([s.foreign for s in samples]):.0%}"
    return cells


def table(result: Result) -> list[str]:
    """The result as lines of Markdown."""
    rows = {variant: _columns(samples) for variant, samples in result.samples.items()}
    names = list(dict.fromkeys(name for cells in rows.values() for name in cells))
    lines = [["variant", *names], *([variant, *(cells.get(n, "") for n in names)] for variant, cells in rows.items())]
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    lines.insert(1, ["-" * width for width in widths])
    padded = ["| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in lines]
    goals = [
        f"- {'reached' if goal.reached else 'MISSED'} {goal.id}: {goal.text}: want "
        f"{'>=' if goal.at_least else '<='} {goal.want:g}, got {goal.got:.3g}"
        for goal in result.goals
    ]
    notes = [*result.notes]
    if result.discarded:
        counts = ", ".join(f"{len(each)} of {name}" for name, each in result.discarded.items())
        notes.append(f"done again because others used the machine: {counts}")
    return [f"# {result.question}", "", *padded, "", *goals, *(f"- note: {note}" for note in notes)]


def write(result: Result, surroundings: Mapping[str, Any], folder: Path = RESULTS) -> None:
    """Write `<name>.json` and `<name>.md`."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "name": result.name,
        "question": result.question,
        "goals": [{**dataclasses.asdict(goal), "reached": goal.reached} for goal in result.goals],
        "notes": result.notes,
        "samples": {name: [dataclasses.asdict(s) for s in each] for name, each in result.samples.items()},
        "discarded": {name: [dataclasses.asdict(s) for s in each] for name, each in result.discarded.items()},
        "surroundings": dict(surroundings),
    }
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    (folder / f"{result.name}.json").write_text(text, encoding="utf-8")
    machine = surroundings["machine"]
    where = f"{machine['cpu']}, {machine['cores']} cores, {machine['memoryGiB']} GiB, Linux {machine['kernel']}"
    tail = [f"- machine: {where}, {machine['fileSystem']}", f"- commit: {surroundings['commit']}"]
    tail += [f"- versions: {', '.join(f'{name} {value}' for name, value in surroundings['versions'].items())}"]
    (folder / f"{result.name}.md").write_text("\n".join([*table(result), *tail]) + "\n", encoding="utf-8")


def surroundings(folder: Path) -> dict[str, Any]:
    """Machine, load, commit and versions; `folder` is where the data lie."""
    return {
        "machine": _machine(folder),
        "loadAtStart": os.getloadavg(),
        "commit": _commit(),
        "versions": _versions(),
    }


def _machine(folder: Path) -> dict[str, Any]:
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    cpu = next((line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")), "?")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    system = _printed("findmnt", "-no", "FSTYPE,OPTIONS", "-T", str(folder))
    return {
        "cpu": cpu or platform.machine(),
        "cores": os.cpu_count(),
        "memoryGiB": round(memory / 1024**3),
        "kernel": platform.release(),
        "fileSystem": system.partition(" ")[0] or "?",
    }


def _commit() -> str:
    commit = _printed("git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD")
    changed = _printed("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no")
    return f"{commit or '?'}{' with changes' if changed else ''}"


def _versions() -> dict[str, str]:
    from tests.support import binaries

    names = ("huggingface_hub", "oras", "ray", "boto3", "xxhash", "awscrt")
    found = {name: metadata.version(name) for name in names}
    found["python"] = platform.python_version()
    found["openssl"] = _printed(sys.executable, "-c", "import ssl; print(ssl.OPENSSL_VERSION)").split(" ")[1]
    found["skopeo"] = _printed("skopeo", "--version").rpartition(" ")[2]
    found["nginx"] = _printed("nginx", "-v").rpartition("/")[2]
    found["registry"] = _printed(str(binaries.path("registry")), "--version").split(" ")[-1]
    return found


def _printed(*command: str) -> str:
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
