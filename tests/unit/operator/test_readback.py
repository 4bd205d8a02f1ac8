"""Reading artifacts back: one at a time and model, in the background, with back-off; which hosts take part."""

import asyncio
import datetime

import pytest

from aimodels_core.api import MODEL, ModelObject
from aimodels_core.dmcr import Place, rules_of
from aimodels_core.errors import AiModelsError, ArtifactInvalid, SourceUnavailable, UsageError
from aimodels_operator.known import Memory
from aimodels_operator.meters import Meters
from aimodels_operator.readback import ReadBacks
from aimodels_operator.writes import ReadBack
from tests.support.modelobjects import NOW, raw_model

DIGEST, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64
WRITE = ReadBack("ns/ai-demo", DIGEST)
DOWN = SourceUnavailable("dmcr: no connection", code="ConnectFailed")


class Source:
    """A registry that answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self._answers: asyncio.Queue[Exception | None] = asyncio.Queue()

    def answer(self, error: Exception | None = None) -> None:
        """Answer one question, or the next one."""
        self._answers.put_nowait(error)

    async def read(self, scope: str, digest: str) -> None:
        self.asked.append((scope, digest))
        error = await self._answers.get()
        if error is not None:
            raise error


class Bench:
    """A model's memory, and what reads its artifact back."""

    def __init__(self) -> None:
        self.source = Source()
        self.meters = Meters()
        self.memory = Memory(ModelObject.from_raw(MODEL, raw_model()))
        self.now = NOW
        self._done = asyncio.Event()
        self._readbacks = ReadBacks(self.source, self.meters, clock=lambda: 0.0, now=lambda: self.now)

    def begin(self, write: ReadBack = WRITE) -> None:
        """Carry a write out."""
        self._readbacks.begin(self.memory, write, self._done.set)

    async def once(self, error: Exception | None = None, write: ReadBack = WRITE) -> None:
        """Read once, with this answer."""
        self._done.clear()
        self.begin(write)
        self.source.answer(error)
        await asyncio.wait_for(self._done.wait(), 5)


@pytest.mark.asyncio
async def test_what_could_be_read_is_remembered_by_its_digest() -> None:
    bench = Bench()
    await bench.once()

    assert bench.source.asked == [("ns/ai-demo", DIGEST)]
    assert bench.memory.reading.of(DIGEST).good
    assert not bench.memory.reading.of(OTHER).good
    assert 'aimodels_read_backs_total{result="good"} 1' in bench.meters.render([], {}, {})


@pytest.mark.asyncio
async def test_one_model_is_read_once_at_a_time() -> None:
    bench = Bench()
    bench.begin()
    await bench.once()

    assert len(bench.source.asked) == 1
    await bench.once()
    assert len(bench.source.asked) == 2


@pytest.mark.asyncio
async def test_failures_are_told_counted_and_tried_again_after_a_minute_at_most() -> None:
    bench = Bench()
    pauses = []
    for step in range(12):
        bench.now = NOW + datetime.timedelta(minutes=step)
        await bench.once(DOWN)
        pauses.append(bench.memory.reading.wait(bench.now).total_seconds())
    found = bench.memory.reading

    assert (found.failures, found.failing_since) == (12, NOW)
    assert found.trouble is not None
    assert (found.trouble.message, found.trouble.retryable) == ("registry: dmcr: no connection", True)
    assert 0.5 < pauses[0] <= 1.0
    assert all(40.0 < pause <= 60.0 for pause in pauses[6:])
    text = bench.meters.render([], {}, {})
    assert 'aimodels_errors_total{code="ConnectFailed"} 12' in text
    assert 'aimodels_read_backs_total{result="failed"} 12' in text
    await bench.once()
    assert bench.memory.reading.of(DIGEST).good


@pytest.mark.asyncio
async def test_another_artifact_begins_anew() -> None:
    bench = Bench()
    await bench.once(DOWN)
    bench.now = NOW + datetime.timedelta(hours=1)
    await bench.once(DOWN, ReadBack("ns/ai-demo", OTHER))

    assert (bench.memory.reading.failures, bench.memory.reading.failing_since) == (1, bench.now)


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [ValueError("secret words"), AiModelsError("said"), ArtifactInvalid("no model")])
async def test_whatever_goes_wrong_the_next_try_comes(error: Exception) -> None:
    bench = Bench()
    await bench.once(error)
    trouble = bench.memory.reading.trouble

    assert trouble is not None
    assert trouble.reason == "PublicationFailed"
    assert "secret words" not in trouble.message
    assert not bench.memory.being_read


REGISTRY = "https://ai-models-dmcr.home.svc:5000"


@pytest.mark.parametrize(
    ("target", "redirect_url", "wanted"),
    [
        pytest.param("https://ai-models-webhook.home.svc/token", "", True, id="issuer"),
        pytest.param("https://ai-models-webhook.other.svc/token", "", False, id="foreign-issuer"),
        pytest.param("http://ai-models-webhook.home.svc/token", "", False, id="in-the-clear"),
        pytest.param("https://s3.example.com/b/k?x", "", False, id="no-store"),
        pytest.param("https://s3.example.com/b/k?x", "https://s3.example.com", True, id="store"),
        pytest.param("https://bucket.s3.example.com/k?x", "https://s3.example.com", True, id="bucket-in-the-name"),
        pytest.param("http://minio.team.svc:9000/b/k", "http://minio.team.svc:9000", True, id="plain-store"),
        pytest.param("https://evil.example.com/b/k", "https://s3.example.com", False, id="neighbour"),
    ],
)
def test_where_the_registry_may_send_its_readers(target: str, redirect_url: str, wanted: bool) -> None:
    rules = rules_of(Place(REGISTRY, "/t", redirect_url))

    assert rules.may_redirect(f"{REGISTRY}/v2/", target) is wanted


@pytest.mark.parametrize("url", ["http://ai-models-dmcr:5000", "ai-models-dmcr:5000", "https://", "ftp://dmcr"])
def test_a_registry_that_would_get_tokens_in_the_clear_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="registry"):
        rules_of(Place(url, "/t"))


def test_an_address_has_no_domain() -> None:
    rules = rules_of(Place("https://127.0.0.1:5000", "/t"))

    assert not rules.may_redirect("https://127.0.0.1:5000", "https://1.0.0.1/token")
