"""Start the simulator as a process of its own, so that its work does not share an interpreter with what is measured."""

import json
import select
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

_ROOT = Path(__file__).parents[3]
_FIRST_LINE_BYTES = 65536


class HubStartError(Exception):
    """The process did not say where it listens."""


class HubProcess:
    """A running `python -m tests.support.hub`; the words are its arguments.

    Raises:
        HubStartError: nothing usable was printed within `start_seconds`.
    """

    def __init__(self, *words: str, start_seconds: float = 60) -> None:
        command = [sys.executable, "-m", "tests.support.hub", *words]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=_ROOT)
        try:
            started = json.loads(self._first_line(start_seconds))
        except (HubStartError, ValueError):
            self.close()
            raise
        self.url: str = started["url"]
        self.cdn_url: str = started["cdnUrl"]
        self.repositories: Sequence[str] = started["repositories"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=10)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def stats(self) -> dict[str, Any]:
        """What was asked and sent so far (see `Log.summary`)."""
        return self._call("stats")

    def throttle(self, bytes_per_second: float | None) -> None:
        """Limit what each connection to a CDN host may carry."""
        self._call("throttle", {"bytesPerSecond": bytes_per_second})

    def fault(self, kind: str, **fields: Any) -> None:
        """Make requests go wrong; the fields are those of `Rule`."""
        self._call("fault", {"kind": kind, **fields})

    def reset(self) -> None:
        """Forget the log and the faults."""
        self._call("reset", {})

    def _call(self, name: str, content: dict[str, Any] | None = None) -> dict[str, Any]:
        body = None if content is None else json.dumps(content).encode()
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(urllib.request.Request(f"{self.url}/-/{name}", data=body), timeout=10) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found

    def _first_line(self, seconds: float) -> bytes:
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], max(0, deadline - time.monotonic()))
            more = self._process.stdout.readline(_FIRST_LINE_BYTES) if ready else b""
            if not more:
                raise HubStartError(f"hub process: want a line within {seconds} s, got {line!r}")
            line += more
        return line
