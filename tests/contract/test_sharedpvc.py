"""Shared claims beside an API server: what Pods are told from the first question to the end of the claim."""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from aimodels_core import names
from aimodels_core.api import Kind
from aimodels_core.errors import LeadershipLost
from aimodels_core.units import GIB
from aimodels_operator.kube_claims import ClaimCalls
from aimodels_operator.settings import from_env
from aimodels_operator.sharedpvc import RETRY_SECONDS
from aimodels_operator.sharedpvc_bodies import Puller
from aimodels_operator.sharedpvc_loop import FRESH_SECONDS, NEED_SECONDS, TELL_SECONDS, Options, SharedClaims
from aimodels_operator.sharedpvc_start import shared_claims
from aimodels_operator.sharedpvc_values import CLAIM, CLASS_MISSING, FILLING, QUOTA, Answer, Blocked, Need, Open
from tests.support.apiserver import ApiServer, api_server

SPACE, NAME = "team", "ai-models-model-bge-m3"
OLD, NEW = "a" * 64, "b" * 64
NEED = Need(SPACE, NAME, NEW, GIB, "ns/team")
GRACE = 600.0
CLASS = {"metadata": {"name": "nfs"}, "provisioner": "nfs.csi.k8s.io", "allowVolumeExpansion": True}
NO_CLASS = {"metadata": {"name": "local"}, "provisioner": "rancher.io/local-path"}
CLAIMS, JOBS = "persistentvolumeclaims", "jobs"
QUOTA_WORDS = 'persistentvolumeclaims "x" is forbidden: exceeded quota: q, requested: persistentvolumeclaims=1'


class World:
    """Shared claims, their API server, and a clock."""

    def __init__(self, server: ApiServer, calls: ClaimCalls) -> None:
        self.server = server
        self.now = 1_800_000_000.0
        self.told: list[tuple[str, str]] = []
        self.leads = True
        self.authorities = "PEM"
        self.shared = SharedClaims(
            calls, self._admit, self._puller, name_of, self._changed, options=Options(grace_seconds=GRACE),
            now=lambda: self.now,
        )  # fmt: skip

    async def _admit(self) -> None:
        if not self.leads:
            raise LeadershipLost("lost")

    def _puller(self) -> Puller:
        return Puller("image:1", "d8-ai-models", "https://dmcr:5000", authorities=self.authorities)

    def _changed(self, keys: Iterable[tuple[str, str]]) -> None:
        self.told += keys

    async def ask(self, *needs: Need, later: float = FRESH_SECONDS) -> Answer:
        self.now += later
        return await self.shared.answer(needs or (NEED,))

    async def look(self, later: float = FRESH_SECONDS) -> None:
        self.now += later
        await self.shared.look()

    def bind(self, name: str = NAME) -> None:
        claim = self.server.objects[CLAIMS, SPACE, name]
        capacity = dict(claim["spec"]["resources"]["requests"])
        self.server.change(CLAIMS, SPACE, name, {"status": {"phase": "Bound", "capacity": capacity}})

    def end(self, kind: str = "Complete") -> None:
        """All Jobs end."""
        for job in self.server.all(JOBS):
            condition = {"type": kind, "status": "True", "reason": "BackoffLimitExceeded", "message": "m"}
            condition["lastTransitionTime"] = "2027-01-15T08:00:00Z"
            self.server.change(JOBS, SPACE, job["metadata"]["name"], {"status": {"conditions": [condition]}})

    async def fill(self) -> None:
        await self.ask()
        self.bind()
        await self.ask()
        self.end()
        await self.ask()

    def pod(self, digest: str = NEW, *, gated: bool = False) -> None:
        """A Pod that models are delivered to; before it is let go it has no digest."""
        notes = {} if gated else {names.ANNOTATION_RESOLVED_DIGEST + "0": digest}
        meta = {"name": "web", "namespace": SPACE, "labels": {names.LABEL_DELIVERY: "true"}, "annotations": notes}
        volume = {"name": "v", "persistentVolumeClaim": {"claimName": NAME}}
        self.server.put("pods", {"metadata": meta, "spec": {"volumes": [volume]}, "status": {"phase": "Running"}})


@pytest.mark.asyncio
async def test_jobs_are_as_the_settings_say() -> None:
    env = {"COORDINATOR_URL": "https://c", "IDENTITY": "i", "DMCR_URL": "https://dmcr:5000", "DMCR_TOKEN_FILE": "/t"}
    env |= {"DELIVERY_TYPE": "SharedPVC", "SHARED_PVC_IMAGE": "image:2", "DMCR_REDIRECT_URL": "https://s3:9000"}
    told = from_env({f"AI_MODELS_{name}": value for name, value in {**env, "SHARED_PVC_CLASS": "fast"}.items()})

    async def admit() -> None:
        """Let everything pass."""

    with api_server() as (server, kube):
        server.put("storageclasses", {"metadata": {"name": "fast"}, "provisioner": "p"})
        shared = shared_claims(told, kube, admit, lambda: "PEM", name_of, lambda _: None)
        await shared.answer([NEED])
        server.change(CLAIMS, SPACE, NAME, {"status": {"phase": "Bound"}})
        await shared.look()
        (claim,), (job,), (policy,) = (server.all(kind) for kind in (CLAIMS, JOBS, "networkpolicies"))
    container = job["spec"]["template"]["spec"]["containers"][0]

    assert claim["spec"]["storageClassName"] == "fast"
    assert container["image"] == "image:2"
    assert container["command"][-2:] == ["--redirect-url", "https://s3:9000"]
    assert policy["spec"]["egress"][-1]["ports"][0]["port"] == 9000


def name_of(kind: Kind, name: str) -> str:
    return f"ai-models-{kind.singular}-{name}"


def reason(answer: Answer) -> str:
    return answer.reason if isinstance(answer, Blocked) else ""


@pytest.fixture
def world() -> Iterator[World]:
    with api_server() as (server, kube):
        server.put("storageclasses", CLASS)
        yield World(server, ClaimCalls(kube))


@pytest.mark.asyncio
async def test_from_the_first_question_to_a_folder(world: World) -> None:
    assert reason(await world.ask()) == CLAIM
    assert reason(await world.ask()) == CLAIM, "not bound"
    world.bind()
    assert reason(await world.ask()) == FILLING
    assert [one["metadata"]["name"] for one in world.server.all("networkpolicies")] == [NAME]
    (job,) = world.server.all(JOBS)
    assert f"https://dmcr:5000/ns/team@sha256:{NEW}" in job["spec"]["template"]["spec"]["containers"][0]["command"]
    assert reason(await world.ask()) == FILLING
    world.end()
    assert reason(await world.ask()) == FILLING
    assert await world.ask() == Open()

    assert world.server.all(JOBS) == []
    assert (SPACE, NAME) in world.told


@pytest.mark.asyncio
async def test_another_operator_knows_what_lies_in_a_claim(world: World) -> None:
    await world.fill()
    other = World(world.server, world.shared._calls)

    assert await other.ask() == Open()


@pytest.mark.asyncio
async def test_many_questions_at_once_share_a_look_and_a_fresh_look_answers(world: World) -> None:
    await world.fill()
    calls = world.shared._calls._kube.calls
    world.now += FRESH_SECONDS
    before = calls["list", CLAIMS, 200]
    answers = await asyncio.gather(*(world.shared.answer([NEED]) for _ in range(20)))

    assert set(answers) == {Open()}
    assert calls["list", CLAIMS, 200] == before + 1


@pytest.mark.asyncio
async def test_a_pod_waits_for_all_its_claims(world: World) -> None:
    await world.fill()
    other = Need(SPACE, "ai-models-clustermodel-x", OLD, GIB, "cluster")

    assert reason(await world.ask(NEED, other)) == CLAIM
    assert await world.ask(NEED) == Open()
    assert len(world.server.all(CLAIMS)) == 2


@pytest.mark.asyncio
async def test_without_a_class_nothing_is_made_until_there_is_one(world: World) -> None:
    world.server.objects.clear()
    world.server.put("storageclasses", NO_CLASS)
    assert reason(await world.ask()) == CLASS_MISSING
    assert world.server.all(CLAIMS) == []
    world.server.put("storageclasses", CLASS)

    assert reason(await world.ask()) == CLAIM
    assert len(world.server.all(CLAIMS)) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("resource", [CLAIMS, JOBS])
@pytest.mark.parametrize(("words", "wanted"), [(QUOTA_WORDS, QUOTA), ("denied by a policy", FILLING)])
async def test_a_refusal_is_told_and_mended(world: World, resource: str, words: str, wanted: str) -> None:
    if resource == JOBS:
        await world.ask()
        world.bind()
    world.server.refuse = lambda method, what: words if (method, what) == ("POST", resource) else ""
    refused = await world.ask()
    assert reason(refused) == wanted
    assert words in str(refused)
    world.server.refuse = lambda _method, _what: ""
    assert reason(await world.ask()) == wanted, "not tried at once"

    assert reason(await world.ask(later=RETRY_SECONDS)) == wanted
    assert len(world.server.all(resource)) == 1
    assert reason(await world.ask()) in (CLAIM, FILLING)
    assert words not in str(await world.ask())


@pytest.mark.asyncio
async def test_a_pod_that_a_quota_refuses_is_told_by_its_jobs_events(world: World) -> None:
    await world.ask()
    world.bind()
    await world.ask()
    (job,) = world.server.all(JOBS)
    about = {"metadata": {"name": "e", "namespace": SPACE}, "involvedObject": {"name": job["metadata"]["name"]}}
    words = "Error creating: pods is forbidden: exceeded quota: q, requested: pods=1"
    world.server.put("events", {**about, "type": "Warning", "reason": "FailedCreate", "message": words})
    told = await world.ask()
    world.server.put(
        "pods",
        {"metadata": {"name": "p", "namespace": SPACE, "labels": {
            names.LABEL_SHARED: "true", "batch.kubernetes.io/job-name": job["metadata"]["name"]}}, "status": {}},
    )  # fmt: skip

    assert (reason(told), "exceeded quota" in str(told)) == (QUOTA, True)
    assert reason(await world.ask()) == FILLING


@pytest.mark.asyncio
async def test_a_failed_job_tells_its_last_words_and_is_made_anew(world: World) -> None:
    await world.ask()
    world.bind()
    await world.ask()
    (job,) = world.server.all(JOBS)
    world.end("Failed")
    ended = {"state": {"terminated": {"exitCode": 1, "message": "ai-models: not in the registry"}}}
    labels = {names.LABEL_SHARED: "true", "batch.kubernetes.io/job-name": job["metadata"]["name"]}
    meta = {"name": "p", "namespace": SPACE, "labels": labels}
    world.server.put("pods", {"metadata": meta, "status": {"containerStatuses": [ended]}})
    told = await world.ask()
    await world.ask(later=RETRY_SECONDS)
    await world.ask()
    (again,) = world.server.all(JOBS)

    assert (reason(told), "not in the registry" in str(told)) == (FILLING, True)
    assert again["metadata"]["uid"] != job["metadata"]["uid"]


@pytest.mark.asyncio
async def test_without_the_registrys_authority_no_job_is_made(world: World) -> None:
    world.authorities = ""
    await world.ask()
    world.bind()
    told = await world.ask()
    assert (reason(told), world.server.all(JOBS)) == (FILLING, [])
    world.authorities = "PEM"
    await world.ask(later=RETRY_SECONDS)

    assert len(world.server.all(JOBS)) == 1


@pytest.mark.asyncio
async def test_a_claim_of_somebody_else_is_not_touched(world: World) -> None:
    foreign = world.server.put(CLAIMS, {"metadata": {"name": NAME, "namespace": SPACE}, "spec": {}})

    assert reason(await world.ask()) == CLAIM
    assert "not of ai-models" in str(await world.ask())
    assert world.server.all(CLAIMS) == [foreign]


@pytest.mark.asyncio
async def test_a_policy_of_somebody_else_is_not_touched(world: World) -> None:
    foreign = world.server.put("networkpolicies", {"metadata": {"name": NAME, "namespace": SPACE}, "spec": {}})
    await world.ask()
    world.bind()
    told = await world.ask()

    assert (reason(told), "not of ai-models" in str(told)) == (FILLING, True)
    assert (world.server.all("networkpolicies"), world.server.all(JOBS)) == ([foreign], [])


@pytest.mark.asyncio
async def test_a_new_digest_lies_beside_the_old_one_until_no_pod_uses_that(world: World) -> None:
    await world.fill()
    world.pod(NEW)
    later = Need(SPACE, NAME, OLD, GIB, "ns/team")
    assert reason(await world.ask(later)) == CLAIM, "grows"
    world.bind()
    await world.ask(later)
    world.end()
    await world.ask(later)
    assert await world.ask(later) == Open()
    await world.ask(later, later=2 * GRACE)
    assert world.server.all(JOBS) == [], "the first one is in use"

    world.pod(OLD)
    await world.look(NEED_SECONDS + 1)
    await world.look(GRACE)
    (job,) = world.server.all(JOBS)
    assert job["spec"]["template"]["spec"]["containers"][0]["command"][-1].endswith(NEW)
    assert reason(await world.ask(NEED)) == FILLING, "what is being removed is not there"
    world.end()
    await world.ask(NEED)
    assert reason(await world.ask(NEED)) == FILLING
    (job,) = world.server.all(JOBS)
    assert "pull" in job["spec"]["template"]["spec"]["containers"][0]["command"]


@pytest.mark.asyncio
@pytest.mark.parametrize("by", ["gated", "workload"])
async def test_a_claim_stays_while_anybody_refers_to_it_and_goes_after_the_grace(world: World, by: str) -> None:
    await world.fill()
    if by == "gated":
        world.pod(gated=True)
    else:
        notes = {names.ANNOTATION_MODEL: "other, bge-m3"}
        world.server.put("deployments", {"metadata": {"name": "web", "namespace": SPACE, "annotations": notes}})
    await world.look(NEED_SECONDS + 1)
    await world.look(10 * GRACE)
    assert len(world.server.all(CLAIMS)) == 1
    for resource in ("pods", "deployments"):
        world.server.objects.pop((resource, SPACE, "web"), None)
    await world.look()
    await world.look(GRACE - 1)
    assert len(world.server.all(CLAIMS)) == 1
    await world.look(1)

    assert world.server.all(CLAIMS) == []


@pytest.mark.asyncio
async def test_who_comes_back_within_the_grace_finds_the_claim(world: World) -> None:
    await world.fill()
    await world.look(NEED_SECONDS + 1)
    await world.look(GRACE - 1)
    assert await world.ask() == Open()
    await world.look(NEED_SECONDS + 1)

    assert len(world.server.all(CLAIMS)) == 1, "the grace begins anew"


@pytest.mark.asyncio
async def test_a_terminating_claim_keeps_the_gate_and_is_made_anew(world: World) -> None:
    await world.fill()
    before = world.server.change(CLAIMS, SPACE, NAME, {"metadata": {"deletionTimestamp": "2027-01-15T08:00:00Z"}})
    assert reason(await world.ask()) == CLAIM
    del world.server.objects[CLAIMS, SPACE, NAME]
    await world.ask()
    (after,) = world.server.all(CLAIMS)

    assert after["metadata"]["uid"] != before["metadata"]["uid"]


@pytest.mark.asyncio
async def test_who_waits_is_told_now_and_then_to_ask_again(world: World) -> None:
    await world.ask()
    await world.ask()
    world.told.clear()
    await world.look()
    assert world.told == []
    await world.look(TELL_SECONDS)

    assert world.told == [(SPACE, NAME)]


@pytest.mark.asyncio
async def test_who_does_not_lead_writes_nothing(world: World) -> None:
    world.leads = False
    with pytest.raises(LeadershipLost):
        await world.ask()

    assert world.server.all(CLAIMS) == []


@pytest.mark.asyncio
async def test_trouble_with_one_claim_is_not_that_of_another(world: World) -> None:
    await world.fill()
    meta: dict[str, Any] = {"name": "ai-models-model-odd", "namespace": "other", "labels": {names.LABEL_SHARED: "true"}}
    world.server.put(CLAIMS, {"metadata": meta, "spec": {}})
    world.server.refuse = lambda _method, what: "no" if what == "pods" else ""

    assert await world.ask() == Open()
