"""What the operator counts, and how it is shown (Prometheus' text format)."""

import bisect
from collections import Counter
from collections.abc import Iterable, Mapping

from aimodels_core.api import ModelObject

_BOUNDS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0)


class Meters:
    """Counters; only the event loop touches them."""

    def __init__(self) -> None:
        self.writes = 0
        self._errors: Counter[str] = Counter()
        self._seconds = [0] * (len(_BOUNDS) + 1)
        self._sum = 0.0

    def count(self, code: str) -> None:
        """Count an error."""
        self._errors[code] += 1

    def observe(self, seconds: float) -> None:
        """Count a look at an object."""
        self._seconds[bisect.bisect_left(_BOUNDS, seconds)] += 1
        self._sum += seconds

    def render(
        self, models: Iterable[ModelObject], calls: Mapping[tuple[str, str, int], int], gauges: Mapping[str, float]
    ) -> str:
        """Render everything; names of models are not in it."""
        phases = Counter((model.kind.name, str(model.status.get("phase", ""))) for model in models)
        lines = ["# TYPE aimodels_models gauge"]
        lines += [
            f'aimodels_models{{kind="{kind}",phase="{phase}"}} {n}' for (kind, phase), n in sorted(phases.items())
        ]
        lines += ["# TYPE aimodels_status_writes_total counter", f"aimodels_status_writes_total {self.writes}"]
        lines += ["# TYPE aimodels_errors_total counter"]
        lines += [f'aimodels_errors_total{{code="{code}"}} {n}' for code, n in sorted(self._errors.items())]
        lines += ["# TYPE aimodels_api_calls_total counter"]
        for (verb, resource, status), n in sorted(calls.items()):
            lines.append(f'aimodels_api_calls_total{{verb="{verb}",resource="{resource}",status="{status}"}} {n}')
        lines += ["# TYPE aimodels_reconcile_seconds histogram"]
        total = 0
        for bound, n in zip((*map(str, _BOUNDS), "+Inf"), self._seconds, strict=True):
            total += n
            lines.append(f'aimodels_reconcile_seconds_bucket{{le="{bound}"}} {total}')
        lines += [f"aimodels_reconcile_seconds_sum {self._sum}", f"aimodels_reconcile_seconds_count {total}"]
        for name, value in sorted(gauges.items()):
            lines += [f"# TYPE aimodels_{name} gauge", f"aimodels_{name} {value:g}"]
        return "\n".join(lines) + "\n"
