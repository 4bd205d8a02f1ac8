"""R11: what does publishing an unchanged model again cost, and how many requests does a hub see at all?"""

from typing import Any

from perf.support import models, product, source, stores
from perf.support.bench import Bench, measured
from perf.support.report import Goal, Result, Sample
from perf.support.spent import Spent
from tests.support.hub.process import HubProcess

QUESTION = "R11: the second publication of an unchanged repository; requests to the hub"
_FILES = 4
_PAGES = 1
_URL_LIFETIMES = 1


def run(bench: Bench, result: Result) -> None:
    """With two workers asked for, so that not starting Ray is a decision and not the default."""
    with models.folder(bench.work / "source", files=_FILES, file_bytes=bench.file_bytes // 4) as model:
        for _ in range(bench.repetitions):
            _twice(bench, result, str(model), models.size_bytes(model))
        files = len(list(model.iterdir()))
    most = files * (1 + _URL_LIFETIMES) + _PAGES
    again = [sample.more for sample in result.samples["second time"]]
    requests = max(sample.more["hub requests"] for sample in result.samples["first time"])
    result.goals += [
        Goal("R11a", "second time: payload bytes", 0, max(m["payload bytes"] for m in again), at_least=False),
        Goal("R11b", "second time: times that Ray was started", 0, max(m["Ray"] for m in again), at_least=False),
        Goal("R11c", "first time: requests to the hub", most, requests, at_least=False),
        Goal("R11d", "second time: requests to the hub", most, max(m["hub requests"] for m in again), at_least=False),
    ]
    result.notes.append(
        f"requests allowed: {files} files x (1 + {_URL_LIFETIMES} URL lifetime) + {_PAGES} page = {most}"
    )


def _twice(bench: Bench, result: Result, model: str, size_bytes: int) -> None:
    store = bench.fresh("store")
    with HubProcess("--folder", f"{source.ORG}/model={model}", "--no-rate-limit") as hub, stores.removed(store):
        for name in ("first time", "second time"):
            result.add(name, _once(bench, hub, str(store), size_bytes))
            hub.reset()


def _once(bench: Bench, hub: HubProcess, store: str, size_bytes: int) -> Sample:
    origin = source.Source(hub.url, "", (hub.pid,))
    words = product.command(origin, "model", store, workers=2)
    more: dict[str, float] = {}

    def action() -> Spent:
        spent, told = product.published(words, product.environment(bench.work / "home"), deep=True)
        more.update(_counts(hub.stats(), told))
        return spent

    return measured(action, size_bytes, {"source": origin.pids}, more)


def _counts(stats: dict[str, Any], told: dict[str, Any]) -> dict[str, float]:
    asked = sum(count for kind, count in stats["requests"].items() if kind != "cdn")
    return {
        "hub requests": asked,
        "payload bytes": stats["payloadBytes"],
        "said moved": told["bytesTransferred"],
        "Ray": 0.0 if told["engine"] == "none" else 1.0,
    }
