"""R7: what does writing to S3 directly, with a link, gain over pushing through a registry's own S3 driver?"""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

from perf.support import baselines, models, product, source, stores
from perf.support.bench import Bench, measured
from perf.support.report import Goal, Result, Sample
from perf.support.spent import Spent
from tests.support import servers
from tests.support.servers import S3Server

QUESTION = "R7: direct S3 parts and a link against a push through the registry's S3 driver, same Versity Gateway"
_FILES = 4


def run(bench: Bench, result: Result) -> None:
    """The baseline streams four files at once through the registry, without a disk: the best that a pusher can do."""
    with contextlib.ExitStack() as stack:
        size = bench.file_bytes
        model = stack.enter_context(models.folder(bench.work / "source", files=_FILES, file_bytes=size))
        origin = stack.enter_context(source.serving({"model": model}, work=bench.work))
        variants = _Variants(bench, origin, models.size_bytes(model))
        bench.rounds({"push, registry's S3 driver": variants.push, "ai-models publish": variants.publish}, result)
    result.faster("R7a", "push, registry's S3 driver", "ai-models publish", 2.5)
    ratio = result.more("ai-models publish", "total cpu-s") / result.more("push, registry's S3 driver", "total cpu-s")
    result.goals.append(
        Goal("R7b", "ai-models publish: CPU in all, times that of the push", 0.6, ratio, at_least=False)
    )
    result.notes += [
        f"{_FILES} files of {size // models.MIB} MiB; Versity Gateway over a folder on the disk; a fresh one each time",
        "total cpu-s: client, registry and S3 server; the source is the same for both and left out",
    ]


class _Variants:
    def __init__(self, bench: Bench, origin: source.Source, size_bytes: int) -> None:
        self._bench, self._origin, self._size_bytes = bench, origin, size_bytes
        self._prefixes = itertools.count(1)

    def push(self) -> Sample:
        """Through the registry."""
        with self._s3() as s3, stores.registry(Path("registry"), s3=s3) as registry:
            env = product.environment(self._bench.work / "home")
            line = baselines.Baseline(self._origin, "model", registry.url, env, self._bench.work / "people")
            return self._measured(line.relay, s3, registry.pids)

    def publish(self) -> Sample:
        """Directly."""
        with self._s3() as s3:
            env = product.environment(self._bench.work / "home", s3.environment())
            store = f"s3://{s3.bucket}/{next(self._prefixes)}"
            words = product.command(self._origin, "model", store, s3_endpoint=s3.endpoint)
            return self._measured(lambda: product.published(words, env)[0], s3, ())

    @contextlib.contextmanager
    def _s3(self) -> Iterator[S3Server]:
        with stores.removed(self._bench.fresh("versity")) as root, servers.versitygw(root) as s3:
            yield s3

    def _measured(self, action: Callable[[], Spent], s3: S3Server, registry: tuple[int, ...]) -> Sample:
        groups = {"source": self._origin.pids, "registry": registry, "S3": (s3.server.process.pid,)}
        found = measured(action, self._size_bytes, groups)
        total = sum(seconds for role, seconds in found.cpu.items() if role != "source")
        return dataclasses.replace(found, more={"total cpu-s": total})
