"""Before an uninstall, beside a simulated API server: the operator stops, and models lose its finalizer alone."""

import asyncio
import contextlib
import dataclasses
from collections.abc import Iterator, Mapping

import pytest
from kubernetes import client

from aimodels_core import names
from aimodels_core.errors import LeadershipLost, UsageError
from aimodels_operator import uninstall
from aimodels_operator.kube import Kube
from aimodels_operator.leader import Leader, Place, Times
from aimodels_operator.model import Link, Observed, decide
from aimodels_operator.rules import OPERATOR
from aimodels_operator.uninstall import Uninstall
from aimodels_operator.writes import SetFinalizers
from tests.support.apiserver import ApiServer, Object
from tests.support.modelobjects import NOW, model, raw_model
from tests.support.scripted import Call, Reply, serve

HOME = "d8-ai-models"
OURS, FOREIGN = names.FINALIZER, "example.com/keep"
WAIT_SECONDS = 20.0


@dataclasses.dataclass(slots=True)
class Changing(ApiServer):
    """An API server at which somebody else is faster the first time; it knows who led when models were changed."""

    faster: set[str] = dataclasses.field(default_factory=set)
    led: set[str] = dataclasses.field(default_factory=set)
    waits: list[dict[str, list[str]]] = dataclasses.field(default_factory=list)

    async def sleep(self, _: float) -> None:
        """Note which finalizers there are while somebody waits, and refuse nothing after that."""
        self.waits.append(self.finalizers())
        self.invalid.clear()

    def __call__(self, call: Call) -> Reply:
        """Answer a request."""
        name = call.path.rpartition("/")[2]
        if call.method == "PATCH" and "/models/" in call.path:
            self.led.add(self.objects["leases", HOME, OPERATOR]["spec"]["holderIdentity"])
        if call.method == "PATCH" and name in self.faster:
            self.faster.remove(name)
            self.change("models", "ns", name, {"metadata": {"labels": {"changed": "true"}}})
        return ApiServer.__call__(self, call)

    def add(self, resource: str, namespace: str, name: str, *finalizers: str) -> None:
        """Have a model."""
        meta = {"namespace": namespace, "name": name, "finalizers": list(finalizers)}
        self.put(resource, {"metadata": meta, "spec": raw_model()["spec"], "status": {"phase": "Ready"}})

    def finalizers(self) -> dict[str, list[str]]:
        """Finalizers of all models, by name."""
        found: list[Object] = [*self.all("models"), *self.all("clustermodels")]
        return {one["metadata"]["name"]: one["metadata"]["finalizers"] for one in found}


@pytest.fixture
def server() -> Changing:
    found = Changing()
    found.put("deployments", {"metadata": {"namespace": HOME, "name": OPERATOR}, "spec": {"replicas": 2}})
    return found


@pytest.fixture
def work(server: Changing) -> Iterator[Uninstall]:
    with serve(server) as running:
        kube = Kube(client.Configuration(host=running.url))
        with contextlib.closing(kube):
            times = Times(duration_seconds=0.3, renew_seconds=5.0, retry_seconds=0.05)
            leader = Leader(kube, Place(HOME, OPERATOR, "job"), times=times)
            yield Uninstall(kube, leader, HOME, sleep=server.sleep)


async def run(work: Uninstall) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        await work.run()


@pytest.mark.asyncio
async def test_the_operator_stops_and_models_keep_all_but_our_finalizer(server: Changing, work: Uninstall) -> None:
    server.add("models", "ns", "plain", OURS)
    server.add("models", "ns", "two", FOREIGN, OURS)
    server.add("models", "ns", "none")
    server.add("clustermodels", "", "wide", OURS)
    await run(work)

    assert server.objects["deployments", HOME, OPERATOR]["spec"]["replicas"] == 0
    assert server.finalizers() == {"plain": [], "two": [FOREIGN], "none": [], "wide": []}
    assert {one["status"]["phase"] for one in server.all("models")} == {"Ready"}
    assert work.freed == 3


@pytest.mark.asyncio
async def test_nothing_is_changed_before_the_lease_is_ours_and_it_is_kept(server: Changing, work: Uninstall) -> None:
    server.put("leases", {"metadata": {"namespace": HOME, "name": OPERATOR}, "spec": {"holderIdentity": "frozen"}})
    server.add("models", "ns", "plain", OURS)
    await run(work)

    assert server.led == {"job"}
    assert server.objects["leases", HOME, OPERATOR]["spec"]["holderIdentity"] == "job"


@pytest.mark.asyncio
async def test_a_model_that_changes_meanwhile_is_looked_at_again(server: Changing, work: Uninstall) -> None:
    server.add("models", "ns", "busy", FOREIGN, OURS)
    server.faster.add("busy")
    await run(work)

    assert server.finalizers() == {"busy": [FOREIGN]}
    assert server.objects["models", "ns", "busy"]["metadata"]["labels"] == {"changed": "true"}


@pytest.mark.asyncio
async def test_a_model_that_cannot_be_changed_keeps_no_other_from_it(server: Changing, work: Uninstall) -> None:
    server.add("models", "ns", "bad", OURS)
    server.add("models", "ns", "good", OURS)
    server.invalid.add("bad")
    await run(work)

    assert server.waits == [{"bad": [OURS], "good": []}]
    assert server.finalizers() == {"bad": [], "good": []}


@pytest.mark.asyncio
async def test_what_is_gone_already_is_no_trouble(server: Changing, work: Uninstall) -> None:
    server.objects.clear()
    await run(work)

    assert work.freed == 0


@pytest.mark.asyncio
async def test_nothing_is_changed_once_the_lease_is_lost(server: Changing, work: Uninstall) -> None:
    server.add("models", "ns", "plain", OURS)
    with pytest.raises(LeadershipLost):
        await work._free(model())

    assert server.finalizers() == {"plain": [OURS]}


@pytest.mark.parametrize("status", [{}, {"conditions": [{"type": "Ready", "status": "True"}]}], ids=["new", "ready"])
def test_the_next_operator_puts_the_finalizer_back(status: Mapping[str, object]) -> None:
    found = decide(Observed(model(finalizers=[FOREIGN], status=status), NOW, Link()))

    assert found == [SetFinalizers((FOREIGN, OURS))]


def test_settings_are_read() -> None:
    found = uninstall.from_env(
        {"AI_MODELS_IDENTITY": "pod", "AI_MODELS_NAMESPACE": "home", "KUBECONFIG": "/k", "X": "y"}
    )

    assert found == uninstall.UninstallSettings("pod", "home", "Info", "/k")


@pytest.mark.parametrize(
    ("env", "words"),
    [
        pytest.param({}, "AI_MODELS_IDENTITY: want a name", id="no-identity"),
        pytest.param({"AI_MODELS_IDENTITY": "p", "AI_MODELS_NAMESPACE": "../x"}, "AI_MODELS_NAMESPACE", id="namespace"),
        pytest.param({"AI_MODELS_IDENTITY": "p", "AI_MODELS_LOG_LEVEL": "info"}, "want one of Debug", id="level"),
        pytest.param({"AI_MODELS_IDENTITY": "p", "AI_MODELS_COLOUR": "x"}, "unknown settings", id="unknown"),
    ],
)
def test_wrong_settings_are_told(env: Mapping[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        uninstall.from_env(env)
