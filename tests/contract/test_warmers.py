"""Caches of nodes beside an API server: what agents are told, what NodeModelCache objects say, the Secret of nodes."""

import asyncio
import base64
from collections.abc import Iterator, Sequence

import pytest

from aimodels_core import names
from aimodels_core.errors import ClusterUnavailable, CoordinatorUnavailable, LeadershipLost, UsageError
from aimodels_core.nodes import Device, Held, NodeReport, NodeWant
from aimodels_operator.kube import Kube
from aimodels_operator.nodehome import NodeHome
from aimodels_operator.placement import Node
from aimodels_operator.pods import Delivered, Pod
from aimodels_operator.warmers import SHOW_SECONDS, Warmers
from aimodels_operator.writes import Urgency
from tests.support.apiserver import ApiServer, api_server

DIGEST = "sha256:" + "a" * 64
REPORT = NodeReport("n1", 1.0, (Device("d", 100, 50),), (Held(DIGEST, 10),))


class World:
    """Two labelled nodes, a model for all of them, a coordinator; plays what a loop needs of each."""

    def __init__(self, kube: Kube) -> None:
        self.nodes = tuple(Node(name, {names.LABEL_CACHE: "true"}, driver=True) for name in ("n1", "n2"))
        self.models: list[Delivered] = [Delivered("u", DIGEST, 10, "", "cluster", 0.0, "", "1", "true")]
        self.reports: dict[str, NodeReport] | None = None
        self.epoch = "one"
        self.told: list[NodeWant] = []
        self.away = False
        self.refused = ""
        self.now = 0.0
        self.loop = Warmers(self, self, kube, self._admit, lambda: self.reports, cache_bytes=99, clock=lambda: self.now)

    async def _admit(self, _: Urgency) -> None:
        return

    def waiting(self) -> Sequence[tuple[Pod, Sequence[Delivered]]]:
        return ()

    def ahead(self) -> Sequence[Delivered]:
        return self.models

    async def labelled(self) -> tuple[Node, ...]:
        return self.nodes

    async def put_node(self, want: NodeWant) -> None:
        if self.away:
            raise CoordinatorUnavailable("away")
        if want.node == self.refused:
            raise UsageError("not a want")
        self.told.append(want)

    def look(self) -> list[NodeWant]:
        """Look once; returns what was told."""
        self.told.clear()
        asyncio.run(self.loop.look())
        return list(self.told)


@pytest.fixture
def server() -> Iterator[tuple[ApiServer, Kube]]:
    with api_server() as made:
        yield made


def told(wants: list[NodeWant]) -> dict[str, list[str]]:
    return {want.node: [one.digest for one in want.models] for want in wants}


def test_each_node_is_told_once_and_again_by_another_coordinator_or_after_a_failure(
    server: tuple[ApiServer, Kube],
) -> None:
    world = World(server[1])
    assert told(world.look()) == {"n1": [DIGEST], "n2": [DIGEST]}
    assert world.look() == []
    world.epoch = "two"
    assert told(world.look()) == {"n1": [DIGEST], "n2": [DIGEST]}
    world.epoch = ""
    assert world.look() == []
    world.epoch, world.away = "three", True
    with pytest.raises(CoordinatorUnavailable):
        world.look()
    world.away = False
    assert set(told(world.look())) == {"n1", "n2"}


def test_node_without_its_label_is_told_to_warm_nothing(server: tuple[ApiServer, Kube]) -> None:
    world = World(server[1])
    world.look()
    world.nodes = world.nodes[:1]

    assert told(world.look()) == {"n2": []}
    assert world.look() == []


def test_node_whose_want_is_refused_keeps_others_from_nothing(server: tuple[ApiServer, Kube]) -> None:
    world = World(server[1])
    world.refused = "n1"
    assert told(world.look()) == {"n2": [DIGEST]}
    world.refused = ""
    assert world.look() == [], "the same want would be refused again"
    world.models = []
    assert told(world.look()) == {"n1": [], "n2": []}


def test_node_whose_object_is_refused_keeps_others_from_nothing(server: tuple[ApiServer, Kube]) -> None:
    api, kube = server
    api.invalid.add("n1")
    world = World(kube)
    world.reports = {"n1": REPORT, "n2": NodeReport("n2", 1.0)}
    with pytest.raises(ClusterUnavailable):
        world.look()
    world.look()
    assert [one["metadata"]["name"] for one in api.all("nodemodelcaches")] == ["n2"]
    api.invalid.clear()
    world.now += SHOW_SECONDS
    world.look()
    assert [one["metadata"]["name"] for one in api.all("nodemodelcaches")] == ["n1", "n2"]


def test_objects_show_reports_not_too_often_and_go_with_their_nodes(server: tuple[ApiServer, Kube]) -> None:
    api, kube = server
    api.put("nodemodelcaches", {"metadata": {"name": "gone"}})
    world = World(kube)
    world.reports = {"n1": REPORT}
    world.look()
    (shown,) = api.all("nodemodelcaches")
    assert shown["metadata"]["name"] == "n1"
    assert shown["status"]["usedBytes"] == 10
    version = shown["metadata"]["resourceVersion"]
    world.reports = {"n1": NodeReport("n1", 2.0, REPORT.devices)}
    world.look()
    assert api.all("nodemodelcaches")[0]["metadata"]["resourceVersion"] == version
    world.now += SHOW_SECONDS
    world.look()
    assert api.all("nodemodelcaches")[0]["status"]["usedBytes"] == 0
    version = api.all("nodemodelcaches")[0]["metadata"]["resourceVersion"]
    world.now += SHOW_SECONDS
    world.look()
    assert api.all("nodemodelcaches")[0]["metadata"]["resourceVersion"] == version, "nothing new"


def test_secret_of_nodes_is_kept_as_its_sources_are(server: tuple[ApiServer, Kube]) -> None:
    api, kube = server
    values = {"auth_token": "", "ca.crt": "c"}
    leads = [True]

    def check() -> None:
        if not leads[0]:
            raise LeadershipLost("lost")

    home = NodeHome(kube, check, lambda: dict(values))
    asyncio.run(home.look())
    assert api.all("secrets") == []
    values["auth_token"] = "t"
    asyncio.run(home.look())
    values["ca.crt"] = "d"
    asyncio.run(home.look())
    (found,) = api.all("secrets")
    assert (found["metadata"]["namespace"], found["metadata"]["name"]) == (names.NODE_NAMESPACE, names.NODE_SECRET)
    assert {key: base64.b64decode(value).decode() for key, value in found["data"].items()} == values
    leads[0], values["ca.crt"] = False, "e"
    with pytest.raises(LeadershipLost):
        asyncio.run(home.look())
