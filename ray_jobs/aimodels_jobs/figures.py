"""The coordinator's metrics: what it counts since its start, and their text for Prometheus. No names of models.

The table of all metrics is in docs/metrics.md.
"""

import collections
import dataclasses
from collections.abc import Iterator, Mapping

from aimodels_core.messages import Snapshot, Stage
from aimodels_jobs.capacity import Ledger
from aimodels_jobs.collection import Collected
from aimodels_jobs.governor import Connections, RateGate, Throttled


class Tally:
    """Counts since the coordinator's start; only ever grows."""

    def __init__(self) -> None:
        self.transferred_bytes = 0
        self.reused_bytes = 0
        self.retries: collections.Counter[tuple[str, str]] = collections.Counter()
        """By reason and kind of the error."""
        self.collections = 0
        self.freed_bytes = 0

    def moved(self, size_bytes: int) -> None:
        """Count payload bytes that came over the wire, repeats included."""
        self.transferred_bytes += size_bytes

    def collected(self, found: Collected) -> None:
        """Count a collection."""
        self.collections += 1
        self.freed_bytes += found.size_bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its name without the prefix, its kind, what it says, and its values by rendered labels."""

    name: str
    kind: str
    words: str
    values: Mapping[str, float]

    def lines(self) -> Iterator[str]:
        """Render in Prometheus' text format (exposition_formats.md, "Text-based format")."""
        name = f"aimodels_{self.name}"
        yield f"# HELP {name} {self.words}"
        yield f"# TYPE {name} {self.kind}"
        for labels, value in self.values.items():
            yield f"{name}{labels} {value:.15g}"


def render(snapshot: Snapshot, tally: Tally, gate: RateGate, connections: Connections, ledger: Ledger | None) -> str:
    """Render everything that is known."""
    metrics = (*_publications(snapshot), *_counts(tally), *_sources(gate, connections), *_capacity(ledger))
    return "\n".join(line for metric in metrics for line in metric.lines()) + "\n"


def _publications(snapshot: Snapshot) -> Iterator[Metric]:
    stages = collections.Counter(publication.stage for publication in snapshot.publications)
    by_stage = {f'{{stage="{stage.value}"}}': stages[stage] for stage in Stage}
    yield Metric("publications", "gauge", "Publications by stage, running and just ended.", by_stage)
    yield Metric("writing", "gauge", "Whether this coordinator is the writer of the store.", {"": snapshot.writing})


def _counts(tally: Tally) -> Iterator[Metric]:
    words = "Payload bytes read from sources, repeats included."
    yield Metric("transferred_bytes_total", "counter", words, {"": tally.transferred_bytes})
    words = "Bytes of published models that were not read from their source."
    yield Metric("reused_bytes_total", "counter", words, {"": tally.reused_bytes})
    retries = {
        f'{{reason="{reason}",error="{kind}"}}': count for (reason, kind), count in sorted(tally.retries.items())
    }
    yield Metric("retries_total", "counter", "Attempts that failed and are made again.", retries)
    yield Metric("collections_total", "counter", "Collections of the store.", {"": tally.collections})
    yield Metric("collected_bytes_total", "counter", "Bytes that collections removed.", {"": tally.freed_bytes})


def _sources(gate: RateGate, connections: Connections) -> Iterator[Metric]:
    classes: dict[str, Throttled] = {**gate.throttled, "payload": connections.throttled}
    seconds = {f'{{class="{name}"}}': found.seconds for name, found in sorted(classes.items())}
    yield Metric("source_throttled_seconds_total", "counter", "Seconds that sources were left alone.", seconds)
    refusals = {f'{{class="{name}"}}': found.refusals for name, found in sorted(classes.items())}
    yield Metric("source_refusals_total", "counter", "Answers of sources that asked to slow down.", refusals)


def _capacity(ledger: Ledger | None) -> Iterator[Metric]:
    if ledger is None:
        return
    yield Metric("capacity_limit_bytes", "gauge", "Most that the store may hold.", {"": ledger.limit_bytes})
    yield Metric("capacity_used_bytes", "gauge", "What the store holds.", {"": ledger.used_bytes})
    words = "What running publications will add to it."
    yield Metric("capacity_reserved_bytes", "gauge", words, {"": ledger.reserved_bytes})
    words = "What the last listing of the store corrected."
    yield Metric("capacity_drift_bytes", "gauge", words, {"": ledger.drift_bytes})
    yield Metric("capacity_waiting", "gauge", "Publications that wait for space.", {"": len(ledger.waiting)})
