"""The first SIGINT or SIGTERM asks a blocking command to stop, the second has its usual effect.

`publish` runs in an event loop and catches signals there.
"""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

EXITS = {signal.SIGINT: 130, signal.SIGTERM: 143}


class Stop:
    """Whether to stop, and with which exit code."""

    def __init__(self) -> None:
        self.exit_code = 0

    def asked(self) -> bool:
        """Whether a signal came."""
        return self.exit_code != 0


@contextlib.contextmanager
def on_signals() -> Iterator[Stop]:
    """Catch one signal meanwhile; must be called in the main thread."""
    stop = Stop()
    before = {number: signal.getsignal(number) for number in EXITS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def catch(number: int, _frame: FrameType | None) -> None:
        stop.exit_code = EXITS[signal.Signals(number)]
        restore()

    for number in EXITS:
        signal.signal(number, catch)
    try:
        yield stop
    finally:
        restore()
