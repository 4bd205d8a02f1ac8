"""Servers of benchmarks end with the process that started them, however that one ends."""

import os
import signal
import threading
import time

_POLL_SECONDS = 1.0


def end_with_parent() -> None:
    """Send this process SIGTERM once its parent is another one than now."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
