"""When the coordinator is asked for a collection: only when it knows all that should be published."""

import asyncio
import dataclasses
from typing import Any

import pytest

from aimodels_core.api import MODEL, ModelObject
from aimodels_core.errors import CoordinatorUnavailable, LeadershipLost
from aimodels_core.messages import PublicationState
from aimodels_operator import collecting
from aimodels_operator.collecting import may_collect
from aimodels_operator.known import Memory
from aimodels_operator.meters import Meters
from aimodels_operator.model import Link
from tests.support.modelobjects import NOW, UID, raw_model

LINK = Link("e1")
STATES = {UID: PublicationState(UID, 1, "x")}
READY = {"conditions": [{"type": "Ready", "status": "True"}], "artifact": {"digest": "sha256:0"}}
FAILED = {
    "observedGeneration": 1,
    "publication": {"stage": "Failed"},
    "conditions": [{"type": "ArtifactResolved", "status": "False", "reason": "PublicationFailed"}],
}


def memory(raw: dict[str, Any], **fields: Any) -> Memory:
    return Memory(ModelObject.from_raw(MODEL, raw), **fields)


@pytest.mark.parametrize(
    "link",
    [
        pytest.param(Link(), id="never-answered"),
        pytest.param(Link("e1", silent_since=NOW), id="silent"),
        pytest.param(Link("e1", holder="host-1"), id="another-writes"),
    ],
)
def test_nothing_is_collected_without_a_coordinator_that_writes(link: Link) -> None:
    assert not may_collect([], {}, link)


@pytest.mark.parametrize(
    ("known", "sent", "wanted"),
    [
        pytest.param(memory(raw_model()), False, False, id="not-sent"),
        pytest.param(memory(raw_model()), True, True, id="sent"),
        pytest.param(memory(raw_model(finalizers=[])), False, False, id="no-finalizer-yet"),
        pytest.param(memory(raw_model(status=READY)), False, True, id="ready"),
        pytest.param(memory(raw_model(status=FAILED)), False, True, id="failed-for-good"),
        pytest.param(memory(raw_model(status=FAILED, retry="1")), False, False, id="retried"),
        pytest.param(memory(raw_model(deleting=True)), False, True, id="deleting"),
        pytest.param(memory(raw_model({"upload": {}})), False, True, id="upload"),
        pytest.param(memory(raw_model(), withheld=True), False, True, id="no-token"),
        pytest.param(memory(raw_model(), refused="too long"), False, True, id="refused"),
    ],
)
def test_every_model_that_is_to_be_published_is_known_first(known: Memory, sent: bool, wanted: bool) -> None:
    other = memory(raw_model(status=READY))

    assert may_collect([other, known], STATES if sent else {}, LINK) is wanted


@dataclasses.dataclass(slots=True)
class Coordinator:
    """A coordinator that counts what it is asked."""

    link: Link = LINK
    states: dict[str, PublicationState] = dataclasses.field(default_factory=dict)
    error: Exception | None = None
    asked: int = 0

    async def collect(self) -> int:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return 42


@dataclasses.dataclass(slots=True)
class Sleep:
    """Waits of no time, up to a number of them."""

    left: int
    slept: list[float] = dataclasses.field(default_factory=list)

    async def __call__(self, seconds: float) -> None:
        if not self.left:
            raise asyncio.CancelledError
        self.left -= 1
        self.slept.append(seconds)


async def run(coordinator: Coordinator, sleep: Sleep, meters: Meters, known: list[Memory]) -> None:
    with pytest.raises(asyncio.CancelledError):
        await collecting.run(coordinator, lambda: known, lambda: None, meters, sleep=sleep)


@pytest.mark.asyncio
async def test_it_is_asked_every_ten_minutes() -> None:
    coordinator, sleep, meters = Coordinator(), Sleep(3), Meters()
    await run(coordinator, sleep, meters, [])

    assert (coordinator.asked, sleep.slept) == (3, [600.0, 600.0, 600.0])
    assert 'aimodels_collections_asked_total{result="good"} 3' in meters.render([], {}, {})


@pytest.mark.asyncio
async def test_it_is_not_asked_while_a_want_is_missing() -> None:
    coordinator, sleep = Coordinator(), Sleep(3)
    await run(coordinator, sleep, Meters(), [memory(raw_model())])

    assert (coordinator.asked, sleep.slept) == (0, [600.0, 5.0, 5.0])


@pytest.mark.asyncio
async def test_failures_are_counted_and_the_next_one_comes() -> None:
    coordinator = Coordinator(error=CoordinatorUnavailable("not now", code="WriterBusy"))
    meters = Meters()
    await run(coordinator, Sleep(2), meters, [])
    text = meters.render([], {}, {})

    assert coordinator.asked == 2
    assert 'aimodels_errors_total{code="WriterBusy"} 2' in text
    assert 'aimodels_collections_asked_total{result="failed"} 2' in text


@pytest.mark.asyncio
async def test_a_replica_that_leads_no_more_asks_for_nothing() -> None:
    def check() -> None:
        raise LeadershipLost("lost")

    coordinator = Coordinator()
    with pytest.raises(LeadershipLost):
        await collecting.run(coordinator, list, check, Meters(), sleep=Sleep(1))

    assert coordinator.asked == 0
