"""One publication from nginx to the lean S3 server, measured: the pipeline with nothing in its way."""

import contextlib
import dataclasses
import itertools
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from perf.support import models, product, source, stores
from perf.support.bench import Bench, sample
from perf.support.report import ROOT, Sample
from perf.support.source import Source
from perf.support.spent import Spent, Watch, run
from tests.support.servers import S3Server

SMALL = "small"
_prefixes = itertools.count(1)


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """A source, the lean S3 server, and what is served.

    Args:
        source: where from.
        s3: where to.
        sizes: bytes of each model that is served.
        env: of the product.
    """

    source: Source
    s3: S3Server
    sizes: Mapping[str, int]
    env: Mapping[str, str]

    def publish(self, model: str, *, workers: int = 0, connections: int = 0) -> Sample:
        """Publish once; wall time as the product reports it, `process s` is that of the whole command."""
        store = f"s3://{self.s3.bucket}/{next(_prefixes)}"
        words = product.command(
            self.source, model, store, s3_endpoint=self.s3.endpoint, workers=workers, connections=connections
        )
        watch = Watch({"source": self.source.pids, "target": (self.s3.server.process.pid,)})
        spent, told = product.published(words, self.env)
        more = {"process s": spent.seconds}
        return sample(spent, self.sizes[model], watch, more, seconds=told["seconds"])


@contextlib.contextmanager
def opened(
    bench: Bench, folders: Mapping[str, Path], *, tls: bool = False, bytes_per_second: int = 0
) -> Iterator[Line]:
    """Serve these folders, and a model of a few kilobytes beside them, all in one parent folder."""
    parent = next(iter(folders.values())).parent
    every = {**folders, SMALL: models.small(parent)}
    with (
        source.serving(every, tls=tls, bytes_per_second=bytes_per_second, work=bench.work) as origin,
        stores.lean_s3() as s3,
    ):
        sizes = {name: models.size_bytes(folder) for name, folder in every.items()}
        yield Line(origin, s3, sizes, product.environment(bench.work / "home", s3.environment()))


def hashlib_alone(bench: Bench, size_bytes: int) -> Sample:
    """Hash as many bytes with hashlib and nothing else."""
    env = product.environment(bench.work / "home")
    watch = Watch({})
    spent = run([sys.executable, "-m", "perf.support.hashing", str(size_bytes)], env=env, cwd=ROOT)
    told = json.loads(spent.out)
    alone = Spent(told["seconds"], told["cpuSeconds"], spent.rss_bytes, 0, "", 0)
    return sample(alone, size_bytes, watch)
