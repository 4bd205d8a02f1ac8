"""Where publications go: the lean S3 server. Folders and real servers need nothing of ours."""

import contextlib
import sys
from collections.abc import Iterator

from perf.support.report import ROOT
from tests.support.processes import started
from tests.support.servers import S3Server


@contextlib.contextmanager
def lean_s3() -> Iterator[S3Server]:
    """Run the lean S3 server; it has every bucket."""

    def command(port: int) -> list[str]:
        return [sys.executable, "-m", "perf.support.lean_s3", "--port", str(port)]

    with started(command, cwd=ROOT) as server:
        yield S3Server(server.url, server)
