"""R1: how much faster is publishing than downloading and pushing, from the same source to the same disk?"""

import contextlib

from perf.support import baselines, models, product, source, stores
from perf.support.bench import Bench, measured
from perf.support.report import Result, Sample
from perf.support.spent import Spent

QUESTION = "R1: publish against hf download + skopeo, hf download + python-oras, and a lean sequential script"
_FILES = 4


def run(bench: Bench, result: Result) -> None:
    """All four variants in turn; the registry of the baselines lies on the same disk as our folder."""
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(models.folder(bench.work / "source", files=_FILES, file_bytes=bench.file_bytes))
        origin = stack.enter_context(source.serving({"model": model}, work=bench.work))
        variants = Variants(bench, origin, models.size_bytes(model))
        bench.rounds(
            {
                "hf download + skopeo": lambda: variants.baseline("skopeo"),
                "hf download + python-oras": lambda: variants.baseline("oras"),
                "lean sequential": lambda: variants.baseline("sequential"),
                "ai-models publish": variants.publish,
            },
            result,
        )
    result.faster("R1a", "hf download + skopeo", "ai-models publish", 4.0)
    result.faster("R1b", "hf download + python-oras", "ai-models publish", 3.5)
    result.faster("R1c", "lean sequential", "ai-models publish", 1.8)
    result.notes += [
        f"{_FILES} files of {bench.file_bytes // models.MIB} MiB and two small ones; plain HTTP; whole processes",
        "our store is durable when the command ends (fsync); the registry's pages are flushed after the clock",
    ]


class Variants:
    """One repetition of each."""

    def __init__(self, bench: Bench, origin: source.Source, size_bytes: int) -> None:
        self._bench, self._origin, self._size_bytes = bench, origin, size_bytes
        self._env = product.environment(bench.work / "home")

    def baseline(self, way: str) -> Sample:
        """A baseline into a fresh registry on the same disk."""
        root = self._bench.fresh("registry")
        with stores.removed(root), stores.registry(root) as registry:
            line = baselines.Baseline(self._origin, "model", registry.url, self._env, self._bench.work / "people")
            action = {"skopeo": line.skopeo, "oras": line.oras, "sequential": line.sequential}[way]
            groups = {"source": self._origin.pids, "target": registry.pids}
            return measured(action, self._size_bytes, groups)

    def publish(self) -> Sample:
        """The product into a fresh folder."""
        store = self._bench.fresh("store")

        def action() -> Spent:
            return product.published(product.command(self._origin, "model", str(store)), self._env)[0]

        with stores.removed(store):
            return measured(action, self._size_bytes, {"source": self._origin.pids, "target": ()})
