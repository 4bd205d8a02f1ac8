"""The loop of delivery beside an API server: Pods are let go, workloads say why not, and take it back."""

import asyncio
import contextlib
import datetime
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from aimodels_core import names
from aimodels_core.api import MODEL
from aimodels_core.errors import LeadershipLost
from aimodels_core.nodes import Held, NodeReport
from aimodels_operator.delivering import Delivering
from aimodels_operator.delivery import Options
from aimodels_operator.kube import Kube
from aimodels_operator.kube_pods import PodCalls
from aimodels_operator.meters import Meters
from aimodels_operator.sharedpvc_values import Answer, Blocked, Need, Open
from aimodels_operator.surroundings import Around
from aimodels_operator.writes import Urgency
from tests.support.apiserver import ApiServer, Object, api_server

SPACE = "team"
DIGEST, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64
NOW = 1_800_000_000.0
GATES = [{"name": names.SCHEDULING_GATE}]
OURS = {names.ANNOTATION_MODEL: "bge"}
SECONDS = 10.0


class World:
    """A loop of delivery, its API server, and what nodes tell."""

    def __init__(self, server: ApiServer, kube: Kube) -> None:
        self.server = server
        self.now = NOW
        self.leads = True
        self.reports: dict[str, NodeReport] = {}
        self.says: Answer | None = None
        self.needs: list[Need] = []
        self.admitted: list[Urgency] = []
        self._kube = kube
        self.loop = self.made()

    def made(self, *, shared: bool = False) -> Delivering:
        around = Around(
            lambda uid: any(one["metadata"]["uid"] == uid for one in self.server.all("models")),
            lambda: dict(self.reports),
            self if shared else None,
            lambda kind, name: f"claim-{kind.singular}-{name}",
            now=lambda: datetime.datetime.fromtimestamp(self.now, datetime.UTC),
        )
        self.meters = Meters()
        self.loop = Delivering(PodCalls(self._kube), self._admit, self.meters, Options(shared=shared), around)
        return self.loop

    async def _admit(self, urgency: Urgency) -> None:
        if not self.leads:
            raise LeadershipLost("lost")
        self.admitted.append(urgency)

    async def answer(self, needs: Sequence[Need]) -> Answer:
        self.needs = list(needs)
        assert self.says is not None
        return self.says

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.ensure_future(self.loop.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not condition():
                self.watch()
                await asyncio.sleep(0.02)

    def watch(self) -> None:
        """What an informer would tell."""
        for one in self.server.all("models"):
            self.loop.see_model(MODEL, one, gone=False)
        for one in self.server.all("pods"):
            self.loop.see(one, gone=False)

    def node(self, name: str = "n1", *held: str, driver: str = names.CSI_DRIVER) -> None:
        labels = {names.LABEL_CACHE: "true"}
        self.server.put("nodes", {"metadata": {"name": name, "labels": labels}, "spec": {}})
        self.server.put("csinodes", {"metadata": {"name": name}, "spec": {"drivers": [{"name": driver}]}})
        kept = tuple(Held(digest, 10) for digest in held)
        self.reports[name] = NodeReport(name, NOW, held=kept, cache_bytes=1000)

    def model(self, digest: str = DIGEST, **more: Any) -> Object:
        ready: dict[str, Any] = {"type": "Ready", "status": "True" if digest else "False", "reason": "r", "message": ""}
        status: dict[str, Any] = {"phase": "Ready" if digest else "Publishing", "conditions": [ready]}
        status |= {"artifact": {"digest": digest, "sizeBytes": 10}} if digest else {}
        meta = {"name": "bge", "namespace": SPACE, "generation": 1, **more}
        return self.server.put("models", {"metadata": meta, "spec": {"source": {"url": "u"}}, "status": status})

    def pod(self, name: str = "web", owner: Object | None = None, kind: str = "", **spec: Any) -> Object:
        meta: dict[str, Any] = {"name": name, "namespace": SPACE, "labels": {names.LABEL_DELIVERY: "true"}}
        meta |= {"annotations": OURS, "creationTimestamp": "2027-01-15T08:00:00Z"}
        if owner is not None:
            meta["ownerReferences"] = [reference(owner, kind)]
            meta["labels"]["controller-revision-hash"] = "old"
        found = {"schedulingGates": GATES, "nodeSelector": {names.LABEL_CACHE: "true"}, **spec}
        return self.server.put("pods", {"metadata": meta, "spec": found, "status": {"phase": "Pending"}})

    def workload(self, resource: str, owner: Object | None = None, kind: str = "", **content: Any) -> Object:
        meta: dict[str, Any] = {"name": f"my-{resource}", "namespace": SPACE, "annotations": OURS, "generation": 1}
        meta |= {"ownerReferences": [reference(owner, kind)]} if owner is not None else {}
        return self.server.put(resource, {"metadata": meta, **content})

    def notes(self, resource: str = "pods", name: str = "web") -> Mapping[str, str]:
        return dict(self.server.objects[resource, SPACE, name]["metadata"].get("annotations") or {})

    def reason(self, resource: str, name: str) -> str:
        return self.notes(resource, name).get(names.ANNOTATION_BLOCKED_REASON, "")

    def gates(self, name: str = "web") -> list[Any]:
        return list(self.server.objects["pods", SPACE, name]["spec"]["schedulingGates"])

    def events(self) -> set[tuple[str, str]]:
        return {(one["regarding"]["kind"], one["reason"]) for one in self.server.all("events")}


def reference(owner: Object, kind: str) -> Object:
    group = "batch/v1" if kind in ("Job", "CronJob") else "apps/v1"
    meta = owner["metadata"]
    return {"apiVersion": group, "kind": kind, "name": meta["name"], "uid": meta["uid"], "controller": True}


@pytest.fixture
def world() -> Iterator[World]:
    with api_server() as (server, kube):
        yield World(server, kube)


@pytest.mark.asyncio
async def test_pod_waits_for_its_model_and_is_let_go(world: World) -> None:
    world.node("n1", DIGEST)
    world.pod()
    async with world.running():
        await world.until(lambda: world.reason("pods", "web") == "ModelNotFound")
        world.model("")
        await world.until(lambda: world.reason("pods", "web") == "ModelNotReady")
        waiting = world.loop.gated
        world.now += 3.0
        world.model()
        await world.until(lambda: world.gates() == [])
        await world.until(lambda: ("Pod", "ModelsDelivered") in world.events())

    assert f'"digest":"{DIGEST}"' in world.notes()[names.ANNOTATION_RESOLVED_MODELS]
    assert world.reason("pods", "web") == ""
    assert ("Pod", "ModelNotFound") in world.events()
    assert world.admitted.count(Urgency.UNGATE) == 1
    assert (waiting, world.loop.gated) == (1, 0)
    assert "aimodels_delivery_wait_seconds_count 1" in world.meters.render([], {}, {})


@pytest.mark.asyncio
async def test_annotation_that_warms_nothing_is_said_once_for_each_of_its_values(world: World) -> None:
    def told() -> list[str]:
        said = (one for one in world.server.all("events") if one["reason"] == "PrewarmIgnored")
        return [one["note"] for one in said]

    async with world.running():
        for selector in ("true", "gpu in (a100)", "gpu=a100", "gpu=a100,", "gpu=a100,"):
            world.model(uid="m", annotations={names.ANNOTATION_PREWARM: selector})
            world.watch()
            world.watch()
        await world.until(lambda: len(told()) >= 2)
        world.pod()
        await world.until(lambda: world.gates() == [])

    assert len(told()) == 2
    assert all(note.startswith('ai.deckhouse.io/prewarm: want "true", or labels of nodes') for note in told())
    assert "got 'gpu in (a100)'" in told()[0]
    assert ("Model", "PrewarmIgnored") in world.events()


@pytest.mark.asyncio
async def test_model_that_becomes_another_one_changes_nothing_for_a_pod_that_was_told(world: World) -> None:
    world.node("n1", DIGEST, OTHER)
    world.model()
    world.pod()
    async with world.running():
        await world.until(lambda: world.gates() == [])
        before = world.notes()
        world.server.objects.pop(("models", SPACE, "bge"))
        world.model(OTHER)
        world.pod("next")
        await world.until(lambda: world.gates("next") == [])

    assert world.notes() == before
    assert OTHER in world.notes("pods", "next")[names.ANNOTATION_RESOLVED_MODELS]


@pytest.mark.asyncio
async def test_deployment_speaks_for_its_pods_until_the_last_one_goes(world: World) -> None:
    deployment = world.workload("deployments")
    replicas = world.workload("replicasets", deployment, "Deployment")
    world.pod("a", replicas, "ReplicaSet")
    world.pod("b", replicas, "ReplicaSet")
    async with world.running():
        await world.until(lambda: world.reason("deployments", "my-deployments") == "ModelNotFound")
        await world.until(lambda: {("Deployment", "ModelNotFound"), ("Pod", "ModelNotFound")} <= world.events())
        gone = world.server.objects.pop(("pods", SPACE, "a"))
        world.loop.see(gone, gone=True)
        world.model("")
        await world.until(lambda: world.reason("deployments", "my-deployments") == "ModelNotReady")
        gone = world.server.objects.pop(("pods", SPACE, "b"))
        world.loop.see(gone, gone=True)
        await world.until(lambda: world.reason("deployments", "my-deployments") == "")

    assert world.reason("replicasets", "my-replicasets") == ""


@pytest.mark.asyncio
async def test_another_operator_takes_back_what_the_first_one_said(world: World) -> None:
    cron = world.workload("cronjobs")
    job = world.workload("jobs", cron, "CronJob")
    world.pod("a", job, "Job")
    async with world.running():
        await world.until(lambda: world.reason("cronjobs", "my-cronjobs") == "ModelNotFound")
    world.node("n1", DIGEST)
    world.model()
    world.made()
    async with world.running():
        await world.until(lambda: world.reason("cronjobs", "my-cronjobs") == "")

    assert world.gates("a") == []


@pytest.mark.asyncio
async def test_cold_pod_goes_when_a_node_has_its_model(world: World) -> None:
    world.node("n1")
    world.model()
    world.pod()
    async with world.running():
        await world.until(lambda: world.reason("pods", "web") == "ModelNotReady")
        assert [(pod.name, models[0].digest) for pod, models in world.loop.waiting()] == [("web", DIGEST)]
        world.node("n1", DIGEST)
        await world.until(lambda: world.gates() == [])


@pytest.mark.asyncio
async def test_pod_changed_by_others_is_looked_at_anew(world: World) -> None:
    world.node("n1", DIGEST)
    world.model()
    stale = world.pod()
    world.server.change("pods", SPACE, "web", {"metadata": {"labels": {"their": "label"}}})
    world.loop.see(stale, gone=False)
    async with world.running():
        await world.until(lambda: world.gates() == [])

    assert world.server.objects["pods", SPACE, "web"]["metadata"]["labels"]["their"] == "label"


@pytest.mark.asyncio
async def test_nothing_is_written_without_the_lease(world: World) -> None:
    world.pod()
    world.leads = False
    world.watch()
    with pytest.raises(ExceptionGroup) as broken:
        async with asyncio.timeout(SECONDS):
            await world.loop.run()

    assert broken.group_contains(LeadershipLost)
    assert world.reason("pods", "web") == ""


@pytest.mark.asyncio
@pytest.mark.parametrize(("revision", "partition", "stays"), [("new", 0, False), ("old", 0, True), ("new", 1, True)])
async def test_pod_of_an_old_revision_is_deleted_unless_its_set_wants_it(
    world: World, revision: str, partition: int, stays: bool
) -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}}
    status = {"updateRevision": revision, "observedGeneration": 1}
    owner = world.workload("statefulsets", spec={"updateStrategy": strategy}, status=status)
    world.pod("web-0", owner, "StatefulSet")
    async with world.running():
        if stays:
            await world.until(lambda: world.reason("statefulsets", "my-statefulsets") == "ModelNotFound")
        else:
            await world.until(lambda: ("pods", SPACE, "web-0") not in world.server.objects)

    assert (("pods", SPACE, "web-0") in world.server.objects) is stays


@pytest.mark.asyncio
async def test_pods_of_shared_claims_ask_and_go_when_all_is_there(world: World) -> None:
    world.made(shared=True)
    world.says = Blocked("SharedPVCClaimPending", "not bound")
    world.model()
    world.pod()
    async with world.running():
        await world.until(lambda: world.reason("pods", "web") == "SharedPVCClaimPending")
        world.says = Open()
        world.loop.claims_changed([(SPACE, "claim-model-bge")])
        await world.until(lambda: world.gates() == [])

    assert world.needs == [Need(SPACE, "claim-model-bge", "a" * 64, 10, "ns/team")]
    assert world.notes()[f"{names.ANNOTATION_RESOLVED_DIGEST}0"] == "a" * 64
