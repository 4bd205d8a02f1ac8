"""What the coordinator knows of caches of nodes: wants are passed on, news are shown, progress not at every byte."""

import asyncio
import dataclasses
from collections.abc import Mapping

import pytest

from aimodels_core.errors import MoverLost, UsageError
from aimodels_core.messages import Snapshot
from aimodels_core.nodes import Device, Held, NodeReport, NodeWant, Warm, Warming
from aimodels_jobs.nodes import ASK_SECONDS, Nodes

DIGEST = "sha256:" + "a" * 64
REPORT = NodeReport("n1", 1.0, (Device("one", 100, 50),), (), (Warming(DIGEST, 1, 10),))


class Asked:
    """Agents that tell what they were given to tell."""

    def __init__(self, *reports: NodeReport) -> None:
        self.reports = {one.node: one for one in reports}
        self.wants: Mapping[str, NodeWant] = {}

    async def exchange(self, wants: Mapping[str, NodeWant]) -> Mapping[str, NodeReport]:
        self.wants = wants
        return dict(self.reports)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def nodes(agents: Asked, clock: Clock, told: list[int]) -> Nodes:
    async def changed() -> None:
        told.append(1)

    return Nodes(agents, changed, clock=clock)


def test_wants_are_passed_on_and_the_last_one_counts(clock: Clock) -> None:
    agents = Asked()
    made = nodes(agents, clock, [])
    made.put(NodeWant("n1"))
    want = NodeWant("n1", (Warm(DIGEST, "cluster", 10),))
    made.put(want)
    asyncio.run(made.ask())

    assert agents.wants == {"n1": want}


def test_news_are_told_at_once_progress_every_few_seconds_and_the_rest_now_and_then(clock: Clock) -> None:
    agents, told = Asked(REPORT), list[int]()
    made = nodes(agents, clock, told)

    def ask(report: NodeReport, seconds: float) -> int:
        agents.reports["n1"] = report
        clock.now += seconds
        before = len(told)
        asyncio.run(made.ask())
        return len(told) - before

    further = dataclasses.replace(REPORT, at=2.0, warming=(Warming(DIGEST, 5, 10),))
    done = dataclasses.replace(REPORT, at=3.0, held=(Held(DIGEST, 10),), warming=())
    assert ask(REPORT, 0) == 1
    assert ask(further, 1) == 0
    assert made.reports == (REPORT,)
    assert ask(further, 5) == 1
    assert ask(done, 1) == 1
    assert ask(dataclasses.replace(done, at=9.0), 29) == 0
    assert ask(dataclasses.replace(done, at=10.0), 1) == 1
    assert made.reports[0].at == 10.0


def test_node_that_is_silent_keeps_its_last_report_and_goes_in_the_end(clock: Clock) -> None:
    agents = Asked(REPORT)
    made = nodes(agents, clock, [])
    asyncio.run(made.ask())
    agents.reports.clear()
    clock.now += 500
    asyncio.run(made.ask())
    assert made.reports == (REPORT,)
    clock.now += 101
    asyncio.run(made.ask())
    assert not made.reports


def test_too_many_nodes_are_refused(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    made = nodes(Asked(), clock, [])
    monkeypatch.setattr("aimodels_jobs.nodes._MAX_NODES", 1)
    made.put(NodeWant("n1"))
    made.put(NodeWant("n1"))
    with pytest.raises(UsageError):
        made.put(NodeWant("n2"))


def test_agents_that_cannot_be_asked_are_asked_again(clock: Clock) -> None:
    class Lost(Asked):
        async def exchange(self, wants: Mapping[str, NodeWant]) -> Mapping[str, NodeReport]:
            if not self.wants:
                self.wants = wants
                raise MoverLost("ray: away")
            return await super().exchange(wants)

    agents, told = Lost(REPORT), list[int]()
    made = nodes(agents, clock, told)
    made.put(NodeWant("n1"))
    with pytest.raises(MoverLost):
        asyncio.run(made.ask())
    asyncio.run(made.ask())

    assert told == [1]


def test_snapshots_with_and_without_nodes_are_read() -> None:
    snapshot = Snapshot("e", 1, True, "me", (), (REPORT,))
    older = snapshot.to_json().replace(b',"nodes":[', b',"unknown":[')

    assert Snapshot.from_json(snapshot.to_json()) == snapshot
    assert Snapshot.from_json(older).nodes == ()


def test_what_is_new_is_told_at_once(clock: Clock) -> None:
    class Once(Asked):
        def __init__(self) -> None:
            super().__init__()
            self.seen: asyncio.Queue[Mapping[str, NodeWant]] = asyncio.Queue()

        async def exchange(self, wants: Mapping[str, NodeWant]) -> Mapping[str, NodeReport]:
            await self.seen.put(wants)
            return {}

    async def run() -> Mapping[str, NodeWant]:
        agents = Once()
        made = nodes(agents, clock, [])
        task = asyncio.create_task(made.run())
        await agents.seen.get()
        made.put(NodeWant("n1"))
        found = await asyncio.wait_for(agents.seen.get(), ASK_SECONDS / 2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return found

    assert asyncio.run(run()) == {"n1": NodeWant("n1")}
