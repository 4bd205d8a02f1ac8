"""The registry beside an API server: its Pods are replaced one at a time when what they mount has changed."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from aimodels_core.errors import ClusterUnavailable, LeadershipLost
from aimodels_core.names import HomeSecret
from aimodels_operator.rolling import APP, Rolling
from tests.support.apiserver import ApiServer, api_server

HOME = "home"
FIRST, SECOND, THIRD = (f"2027-01-15T08:0{minute}:00Z" for minute in range(3))


class World:
    """A leader beside an API server."""

    def __init__(self, server: ApiServer, rolling: Rolling) -> None:
        self.server, self._rolling = server, rolling

    def secret(self, name: str, at: str, **fields: Any) -> None:
        """Have a Secret whose data are of a time; other things of it were changed later."""
        managers = [
            {"manager": "ours", "time": at, "fieldsV1": {"f:data": {}}},
            {"manager": "theirs", "time": THIRD, "fieldsV1": {"f:metadata": {}}},
        ]
        meta = {"name": name, "namespace": HOME, "creationTimestamp": FIRST, "managedFields": managers}
        self.server.put("secrets", {"metadata": meta, **fields})

    def pod(self, name: str, began: str = "", **meta: Any) -> None:
        state = {"running": {"startedAt": began}} if began else {"waiting": {}}
        found = {"name": name, "namespace": HOME, "labels": {"app": APP}, **meta}
        self.server.put("pods", {"metadata": found, "status": {"containerStatuses": [{"state": state}]}})

    def look(self) -> list[str]:
        """Look once; returns what Pods are left."""
        asyncio.run(self._rolling.look())
        return [one["metadata"]["name"] for one in self.server.all("pods")]


@pytest.fixture
def leads() -> list[bool]:
    return [True]


@pytest.fixture
def world(leads: list[bool]) -> Iterator[World]:
    def check() -> None:
        if not leads[0]:
            raise LeadershipLost("lost")

    with api_server() as (server, kube):
        found = World(server, Rolling(kube, check, HOME))
        found.secret(HomeSecret.DMCR_TLS, FIRST)
        found.pod("a", FIRST)
        found.pod("b", SECOND)
        yield found


def test_pods_that_know_everything_stay(world: World) -> None:
    world.secret(HomeSecret.HUB, THIRD)

    assert world.look() == ["a", "b"]


@pytest.mark.parametrize("name", [HomeSecret.DMCR_TLS, HomeSecret.ISSUER, HomeSecret.S3, HomeSecret.S3_CA])
def test_pods_are_replaced_one_after_another(world: World, name: HomeSecret) -> None:
    world.secret(name, THIRD)
    assert world.look() == ["b"]
    world.pod("c")
    assert world.look() == ["b", "c"], "the new one does not run yet"
    world.pod("c", THIRD)
    assert world.look() == ["c"]
    world.pod("d", THIRD)
    assert world.look() == ["c", "d"]


def test_nobody_goes_while_another_one_leaves(world: World) -> None:
    world.secret(HomeSecret.S3, THIRD)
    world.pod("b", SECOND, deletionTimestamp=THIRD)

    assert world.look() == ["a", "b"]


def test_budget_is_kept_and_nothing_is_done_without_the_lease(world: World, leads: list[bool]) -> None:
    world.secret(HomeSecret.S3, THIRD)
    world.server.budget_spent = True
    with pytest.raises(ClusterUnavailable, match="status 429"):
        world.look()
    world.server.budget_spent, leads[0] = False, False
    with pytest.raises(LeadershipLost):
        world.look()
    leads[0] = True

    assert world.look() == ["b"]


def test_registry_without_its_secrets_is_left_alone(world: World) -> None:
    world.server.objects.pop(("secrets", HOME, HomeSecret.DMCR_TLS))

    assert world.look() == ["a", "b"]
