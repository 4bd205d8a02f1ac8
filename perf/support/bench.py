"""What every benchmark is given, and the loop that all of them share."""

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from perf.support.report import Result, Sample
from perf.support.spent import Spent, Watch, wait_for_quiet

DISTURBED = 0.25
"""A repetition during which others used more of the machine than this is done again while there is patience."""


@dataclasses.dataclass(frozen=True, slots=True)
class Bench:
    """How a benchmark runs.

    Args:
        work: a folder of its own on a real disk, removed afterwards.
        repetitions: of each variant.
        file_bytes: of one weight file.
        patience_seconds: how long to wait before a repetition for the rest of the machine to be quiet.
        again: how often a disturbed repetition is done again, for each variant in all.
        quick: only whether it runs at all is asked.
    """

    work: Path
    repetitions: int
    file_bytes: int
    patience_seconds: float = 0.0
    again: int = 0
    quick: bool = False

    def rounds(self, variants: Mapping[str, Callable[[], Sample]], result: Result) -> None:
        """Repeat all variants in turn, so that what drifts meets all of them alike."""
        left = dict.fromkeys(variants, self.again)
        for _ in range(self.repetitions):
            for name, once in variants.items():
                while (sample := self._once(once)).foreign > DISTURBED and left[name]:
                    left[name] -= 1
                    result.discard(name, sample)
                result.add(name, sample)

    def _once(self, once: Callable[[], Sample]) -> Sample:
        os.sync()  # what one variant left for later must not be paid by the next
        wait_for_quiet(self.patience_seconds)
        return once()

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
