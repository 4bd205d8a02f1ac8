"""The writer of a bucket: lease objects `ai-models/v1/writer/<n>`, rewritten while their holder lives.

The highest number holds. `n+1` may be made, if it is free, when `n` did not change for `quiet` seconds by the taker's
own clock; after such a takeover a writer commits and deletes nothing for another `quiet` seconds. The old holder
knows itself to be the writer only for `quiet` seconds after the *beginning* of a beat that ended without seeing
`n+1`, and it signs no deletion that lives longer. So when a frozen holder thaws, its clock refuses, and if it was
frozen later than that, the server does: R + quiet is before (taken after R) + quiet. Proof in the tests: a process
stopped before and after signing.
"""

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable

from aimodels_core import names
from aimodels_core.errors import AiModelsError, WriterBusy
from aimodels_jobs.s3 import S3
from aimodels_jobs.writer import Holder, busy

log = logging.getLogger(__name__)

_MAX_BYTES = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class Terms:
    """Times of a lease, in seconds: between two beats, until a silent holder may be followed, between two looks."""

    beat: float = 3.0
    quiet: float = 10.0
    poll: float = 0.5


class LeaseWriter:
    """Holds a bucket by a lease.

    Args:
        objects: the store; its deletions depend on the lease from `acquire` on.
        terms: the times; all writers of a store must agree on them.
        clock: Unix seconds, for people.
        monotonic: measures the lease.
        sleep: waits that many seconds.
    """

    def __init__(
        self,
        objects: S3,
        *,
        terms: Terms | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._objects = objects
        self._terms = terms or Terms()
        self._clock = clock
        self._monotonic = monotonic
        self._sleep = sleep
        self._number = 0
        self._mine: Holder | None = None
        self._sure_until = 0.0
        self._beating = threading.Lock()
        self._stop = threading.Event()
        self._beats: threading.Thread | None = None

    @property
    def holder(self) -> str:
        """Who writes, for people."""
        if self._mine is not None:
            return str(self._mine)
        _, data = self._highest()
        found = Holder.parse(data)
        return str(found) if found and not found.released else ""

    def acquire(self, budget_seconds: float) -> None:
        """Become the writer (see `writer.Writer`); returns when committing and deleting are allowed."""
        with contextlib.suppress(WriterBusy):
            self.check()
            return
        began = self._monotonic()
        deadline = began + budget_seconds
        seen: tuple[int, bytes] | None = None
        since = began
        while True:
            number, data = self._highest()
            holder = Holder.parse(data)
            free = number == 0 or (holder is not None and holder.released)
            if (number, data) != seen:
                seen, since = (number, data), self._monotonic()
            silent = self._monotonic() - since >= self._terms.quiet
            if (free or silent) and self._taken(number + 1):
                break
            if self._monotonic() >= deadline:
                raise busy(holder, self._objects.description)
            self._sleep(self._terms.poll)
        self._begin(taken_over=not free)

    def check(self) -> None:
        """Make sure that this process is still the writer (see `writer.Writer`)."""
        self.sure_seconds()

    def sure_seconds(self) -> float:
        """Say for how long this process surely is the writer.

        Raises:
            WriterBusy: code Lost: not even now.
        """
        left = self._sure_until - self._monotonic()
        if self._mine is None or left < 1.0:
            raise WriterBusy(
                f"{self._objects.description}: want to be the writer, got no proof of it for too long", code="Lost"
            )
        return left

    def release(self) -> None:
        """Give the right back, so that the next writer need not wait."""
        self._stop.set()
        if self._beats is not None:
            self._beats.join(timeout=30.0)
            self._beats = None
        mine, self._mine = self._mine, None
        if mine is None or self._monotonic() >= self._sure_until:
            return
        with contextlib.suppress(AiModelsError):  # the next writer waits a little longer
            self._objects.put(names.writer_lease(self._number), dataclasses.replace(mine, released=True).render())

    def _taken(self, number: int) -> bool:
        started = self._monotonic()
        mine = Holder.here(self._clock())
        if not self._objects.put_if_absent(names.writer_lease(number), mine.render()):
            return False
        self._number, self._mine = number, mine
        self._sure_until = started + self._terms.quiet
        return True

    def _begin(self, *, taken_over: bool) -> None:
        self._stop = threading.Event()
        self._objects.fence_with(self.sure_seconds)
        self._beats = threading.Thread(target=self._beat_on, args=(self._stop,), name="writer-lease", daemon=True)
        self._beats.start()
        if taken_over:
            log.warning("writer lease was taken over", extra={"number": self._number})
            self._sleep(self._terms.quiet)
            if not self._beat():
                self._sure_until = 0.0
            self.check()
        self._remove_older()

    def _beat_on(self, stop: threading.Event) -> None:
        while not stop.wait(self._terms.beat):
            try:
                if not self._beat():
                    log.error("writer lease was lost", extra={"number": self._number})
                    self._sure_until = 0.0
                    return
            except AiModelsError as error:
                log.warning("writer lease was not renewed", extra={"error": str(error)})

    def _beat(self) -> bool:
        """Say that the holder lives; False when there is a newer lease."""
        with self._beating:
            if self._mine is None:
                return False
            started = self._monotonic()
            if self._newest() != self._number:
                return False
            self._mine = dataclasses.replace(self._mine, beat=self._mine.beat + 1)
            self._objects.put(names.writer_lease(self._number), self._mine.render())
            if self._newest() != self._number:
                return False
            self._sure_until = started + self._terms.quiet
            return True

    def _highest(self) -> tuple[int, bytes]:
        """Read the newest lease; (0, b"") when there is none."""
        highest = self._newest()
        if not highest:
            return 0, b""
        return highest, self._objects.get(names.writer_lease(highest), max_bytes=_MAX_BYTES) or b""

    def _newest(self) -> int:
        return max((_number(info.key) for info in self._objects.list(names.writer_prefix())), default=0)

    def _remove_older(self) -> None:
        if self._number == 1:
            return
        for info in list(self._objects.list(names.writer_prefix())):
            if 0 < _number(info.key) < self._number:
                with contextlib.suppress(AiModelsError):  # the next writer removes it
                    self._objects.delete(info.key)


def _number(key: str) -> int:
    text = key.removeprefix(names.writer_prefix())
    return int(text) if text.isdigit() else 0
