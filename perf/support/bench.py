"""What every benchmark is given, and the loop that all of them share."""

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from perf.support.report import Result, Sample
from perf.support.spent import Spent, Watch


@dataclasses.dataclass(frozen=True, slots=True)
class Bench:
    """How a benchmark runs.

    Args:
        work: a folder of its own on a real disk, removed afterwards.
        repetitions: of each variant.
        file_bytes: of one weight file.
    """

    work: Path
    repetitions: int
    file_bytes: int

    def rounds(self, variants: Mapping[str, Callable[[], Sample]], result: Result) -> None:
        """Repeat all variants in turn, so that what drifts meets all of them alike."""
        for _ in range(self.repetitions):
            for name, once in variants.items():
                os.sync()  # what one variant left for later must not be paid by the next
                result.add(name, once())

    def fresh(self, name: str) -> Path:
        """An unused folder below `work`."""
        return next(path for path in _numbered(self.work / name) if not path.exists())


def _numbered(path: Path) -> Iterator[Path]:
    number = 1
    while True:
        yield path.with_name(f"{path.name}-{number}")
        number += 1


def measured(
    action: Callable[[], Spent],
    payload_bytes: int,
    groups: Mapping[str, Sequence[int]],
    more: Mapping[str, float] = {},
) -> Sample:
    """Run a command while the CPU of servers is watched."""
    watch = Watch(groups)
    return sample(action(), payload_bytes, watch, more)


def sample(
    spent: Spent, payload_bytes: int, watch: Watch, more: Mapping[str, float] = {}, *, seconds: float | None = None
) -> Sample:
    """Put together what a command and the servers spent; `seconds` replaces the wall time of the process."""
    roles, foreign = watch.stop(spent.cpu_seconds)
    cpu = {"client": spent.cpu_seconds, **roles}
    wall = spent.seconds if seconds is None else seconds
    return Sample(wall, payload_bytes, cpu, spent.rss_bytes, spent.written_bytes, foreign, dict(more))
