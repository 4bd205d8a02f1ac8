"""Many are asked at once: who is silent keeps nobody waiting, and is not asked again meanwhile."""

import asyncio
from collections import Counter

import pytest

from aimodels_jobs.fleet.inquiries import Inquiries


class Desk:
    """Answers for names at once, unless they are silent."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.silent = {"slow": asyncio.Event()}

    async def ask(self, name: str) -> str | None:
        self.asked[name] += 1
        if name in self.silent:
            await self.silent[name].wait()
        if name == "broken":
            raise ValueError(name)
        return None if name == "empty" else f"{name} {self.asked[name]}"


def test_silent_one_keeps_nobody_waiting_and_is_heard_when_it_answers() -> None:
    async def scenario() -> list[dict[str, str]]:
        desk, inquiries = Desk(), Inquiries[str](0.01)
        rounds = [await inquiries.round(["slow", "quick", "empty"], desk.ask) for _ in range(3)]
        desk.silent["slow"].set()
        late = await inquiries.round(["slow", "quick"], desk.ask)
        again = await inquiries.round(["slow", "quick"], desk.ask)
        return [*rounds, late, again]

    assert asyncio.run(scenario()) == [
        {"quick": "quick 1"},
        {"quick": "quick 2"},
        {"quick": "quick 3"},
        {"slow": "slow 1", "quick": "quick 4"},
        {"slow": "slow 2", "quick": "quick 5"},
    ]


def test_answers_are_not_waited_for_when_all_are_there() -> None:
    async def scenario() -> dict[str, str]:
        async with asyncio.timeout(5):
            return await Inquiries[str](60.0).round(["one", "two"], Desk().ask)

    assert asyncio.run(scenario()) == {"one": "one 1", "two": "two 1"}


def test_one_that_is_not_named_any_more_is_not_asked_again() -> None:
    async def scenario() -> tuple[dict[str, str], Counter[str]]:
        desk, inquiries = Desk(), Inquiries[str](0.01)
        await inquiries.round(["slow"], desk.ask)
        desk.silent["slow"].set()
        return await inquiries.round([], desk.ask), desk.asked

    assert asyncio.run(scenario()) == ({"slow": "slow 1"}, Counter(slow=1))


def test_fault_of_one_is_raised_once() -> None:
    async def scenario() -> dict[str, str]:
        desk, inquiries = Desk(), Inquiries[str](1.0)
        with pytest.raises(ValueError, match="broken"):
            await inquiries.round(["broken"], desk.ask)
        return await inquiries.round(["quick"], desk.ask)

    assert asyncio.run(scenario()) == {"quick": "quick 1"}


def test_nobody_is_asked() -> None:
    assert asyncio.run(Inquiries[str](60.0).round([], Desk().ask)) == {}
