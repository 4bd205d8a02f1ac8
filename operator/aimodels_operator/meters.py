"""What the operator counts, and how it is shown (Prometheus' text format); docs/metrics.md says what each means."""

import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from aimodels_core.api import ConditionType, ModelObject, Reason
from aimodels_core.messages import PublicationState, Stage
from aimodels_core.nodes import NodeReport

_RECONCILE_BOUNDS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0)
_DELIVERY_BOUNDS = (0.1, 0.5, 2.0, 10.0, 60.0, 600.0)
_READ_BACK_BOUNDS = (0.1, 0.5, 2.0, 10.0, 60.0, 300.0)
_REASONS = frozenset(reason.value for reason in Reason)


class Histogram:
    """How long something takes.

    Args:
        bounds: upper bounds of the buckets, in seconds, ascending.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect.bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str) -> list[str]:
        """Render it."""
        lines, total = [f"# TYPE {name} histogram"], 0
        for bound, n in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += n
            lines.append(f'{name}_bucket{{le="{bound}"}} {total}')
        return [*lines, f"{name}_sum {self._sum}", f"{name}_count {total}"]


class Moved:
    """Bytes that publications moved and reused, added up from snapshot to snapshot; the first one only begins it."""

    def __init__(self) -> None:
        self.transferred = 0
        self.reused = 0
        self._seen: Mapping[str, PublicationState] | None = None

    def take(self, states: Mapping[str, PublicationState]) -> None:
        """Take in a snapshot."""
        seen, self._seen = self._seen, dict(states)
        if seen is None:
            return
        for uid, state in states.items():
            before = seen.get(uid)
            if before is None or before.spec_hash != state.spec_hash:
                before = PublicationState(uid, state.generation, state.spec_hash)
            grown = state.bytes_transferred - before.bytes_transferred
            self.transferred += grown if grown >= 0 else state.bytes_transferred
            if state.stage is Stage.READY and before.stage is not Stage.READY:
                self.reused += state.bytes_reused


class Meters:
    """Counters; only the event loop touches them."""

    def __init__(self) -> None:
        self.writes = 0
        self.moved = Moved()
        self._errors: Counter[str] = Counter()
        self._reconcile = Histogram(_RECONCILE_BOUNDS)
        self._collections: Counter[str] = Counter()
        self._read_backs: Counter[str] = Counter()
        self._read_back = Histogram(_READ_BACK_BOUNDS)
        self._delivery = Histogram(_DELIVERY_BOUNDS)

    def count(self, code: str) -> None:
        """Count an error."""
        self._errors[code] += 1

    def observe(self, seconds: float) -> None:
        """Count a look at an object."""
        self._reconcile.observe(seconds)

    def read_back(self, seconds: float, *, good: bool) -> None:
        """Count a reading of an artifact through the registry."""
        self._read_backs["good" if good else "failed"] += 1
        self._read_back.observe(seconds)

    def delivered(self, seconds: float) -> None:
        """Count a Pod that was let go, by how long it had waited since its models were Ready."""
        self._delivery.observe(max(0.0, seconds))

    def collected(self, *, good: bool) -> None:
        """Count a collection that the coordinator was asked for."""
        self._collections["good" if good else "failed"] += 1

    def render(
        self, models: Iterable[ModelObject], calls: Mapping[tuple[str, str, int], int], gauges: Mapping[str, float]
    ) -> str:
        """Render everything; names of models are not in it."""
        kinds = Counter(map(_kind, models))
        lines = ["# TYPE aimodels_models gauge"]
        for (kind, phase, reason), n in sorted(kinds.items()):
            lines.append(f'aimodels_models{{kind="{kind}",phase="{phase}",reason="{reason}"}} {n}')
        lines += _counter("status_writes", "", {"": self.writes})
        lines += _counter("errors", "code", self._errors)
        lines += ["# TYPE aimodels_api_calls_total counter"]
        for (verb, resource, status), n in sorted(calls.items()):
            lines.append(f'aimodels_api_calls_total{{verb="{verb}",resource="{resource}",status="{status}"}} {n}')
        lines += _counter("publication_transferred_bytes", "", {"": self.moved.transferred})
        lines += _counter("publication_reused_bytes", "", {"": self.moved.reused})
        lines += _counter("collections_asked", "result", self._collections)
        lines += _counter("read_backs", "result", self._read_backs)
        lines += self._read_back.lines("aimodels_read_back_seconds")
        lines += self._delivery.lines("aimodels_delivery_wait_seconds")
        lines += self._reconcile.lines("aimodels_reconcile_seconds")
        for name, value in sorted(gauges.items()):
            lines += [f"# TYPE aimodels_{name} gauge", f"aimodels_{name} {value:g}"]
        return "\n".join(lines) + "\n"


def of_nodes(reports: Iterable[NodeReport]) -> dict[str, float]:
    """Gauges of the caches of all nodes together."""
    every = list(reports)
    warming = [one for report in every for one in report.warming]
    return {
        "node_caches": len(every),
        "node_cache_used_bytes": sum(held.size_bytes for report in every for held in report.held),
        "node_cache_free_bytes": sum(device.free_bytes for report in every for device in report.devices),
        "node_cache_models_held": sum(len(report.held) for report in every),
        "node_cache_models_warming": sum(not one.trouble for one in warming),
        "node_cache_models_stuck": sum(bool(one.trouble) for one in warming),
    }


def throttled(states: Iterable[PublicationState]) -> int:
    """How many publications wait because their source limits its rate."""
    return sum(s.stage.running and s.trouble is not None and s.trouble.code == "RateLimited" for s in states)


def _kind(model: ModelObject) -> tuple[str, str, str]:
    """Kind, phase and reason; what a stranger may have written as a reason is one of a closed set."""
    ready = model.condition(ConditionType.READY)
    reason = ready.reason if ready is not None else ""
    return model.kind.name, str(model.status.get("phase", "")), reason if not reason or reason in _REASONS else "other"


def _counter(name: str, label: str, counts: Mapping[str, int]) -> list[str]:
    full = f"aimodels_{name}_total"
    values = [f'{full}{{{label}="{key}"}} {n}' if label else f"{full} {n}" for key, n in sorted(counts.items())]
    return [f"# TYPE {full} counter", *values]
