"""Where publications go: the lean S3 server, a registry that may be pushed to, folders that are removed again."""

import contextlib
import dataclasses
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from perf.support import spent
from perf.support.report import ROOT
from tests.support import servers
from tests.support.processes import started
from tests.support.servers import S3Server


@dataclasses.dataclass(frozen=True, slots=True)
class Registry:
    """A running registry (distribution v3)."""

    url: str
    pids: tuple[int, ...]


@contextlib.contextmanager
def registry(root: Path, s3: S3Server | None = None) -> Iterator[Registry]:
    """Run a registry that takes pushes, over a folder or a bucket."""
    before = spent.children()
    with servers.registry(root, readonly=False, s3=s3) as url:
        yield Registry(url, tuple(spent.children() - before))


@contextlib.contextmanager
def removed(folder: Path) -> Iterator[Path]:
    """A folder that is gone afterwards."""
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def lean_s3() -> Iterator[S3Server]:
    """Run the lean S3 server; it has every bucket."""

    def command(port: int) -> list[str]:
        return [sys.executable, "-m", "perf.support.lean_s3", "--port", str(port)]

    with started(command, cwd=ROOT) as server:
        yield S3Server(server.url, server)
