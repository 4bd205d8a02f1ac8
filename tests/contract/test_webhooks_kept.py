"""The leader looks after our webhooks, beside a simulated API server: when they are registered, who is asked about."""

import asyncio
import base64
import contextlib
import dataclasses
import datetime
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from aimodels_core import names
from aimodels_operator import registration, stamping
from aimodels_operator import webhooks as looked_after
from aimodels_operator.certificates import make_authority
from aimodels_operator.kube import Kube
from aimodels_operator.readmitting import Readmitting
from aimodels_operator.registering import KEEP_SECONDS, Registering, over_https
from aimodels_operator.settings import Settings
from aimodels_operator.stamping import Request
from tests.support.apiserver import ApiServer, Object
from tests.support.issuing import issuing
from tests.support.processes import HOST
from tests.support.scripted import serve

HOME = "d8-ai-models"
CONFIGURATIONS = "mutatingwebhookconfigurations"
NOW = datetime.datetime.now(datetime.UTC)
OLD, NEW = (f"-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n" for text in ("b2xk", "bmV3"))
MODEL = names.ANNOTATION_MODEL


@dataclasses.dataclass(slots=True)
class Admitting(ApiServer):
    """An API server that asks our webhook about changes, when it knows of it."""

    asks: bool = False
    stamped: threading.Event = dataclasses.field(default_factory=threading.Event)

    def put(self, resource: str, content: Mapping[str, Any]) -> Object:
        """Keep what the webhook makes of an object."""
        if self.asks and "template" in content.get("spec", {}):
            asked = Request("UPDATE", content["metadata"]["namespace"], content, content)
            content = stamping.decide(asked, shared=False).made
        kept = ApiServer.put(self, resource, content)
        if self.asks and stamping.is_stamped(kept):
            self.stamped.set()
        return kept


@pytest.fixture
def server() -> Admitting:
    found = Admitting()
    found.put(CONFIGURATIONS, {"metadata": {"name": registration.CONFIGURATION}})
    status = {"replicas": 2, "updatedReplicas": 2, "readyReplicas": 2}
    meta = {"namespace": HOME, "name": registration.SERVICE}
    found.put("deployments", {"metadata": meta, "spec": {"replicas": 2}, "status": status})
    return found


@pytest.fixture
def kube(server: Admitting) -> Iterator[Kube]:
    with serve(server) as running:
        configuration = client.Configuration()
        configuration.host = running.url
        made = Kube(configuration)
        yield made
        made.close()


class Webhooks:
    """Whether they answer, and whom they were asked with."""

    def __init__(self) -> None:
        self.up = True
        self.asked: list[str] = []

    async def __call__(self, authority: str) -> bool:
        self.asked.append(authority)
        return self.up


async def free() -> None:
    """A fence that lets everything pass."""


def authorities(server: ApiServer) -> list[str]:
    """Whom the API server trusts, by webhook."""
    found = server.objects[CONFIGURATIONS, "", registration.CONFIGURATION].get("webhooks", [])
    return [base64.b64decode(one["clientConfig"]["caBundle"]).decode() for one in found]


@pytest.mark.asyncio
async def test_webhooks_are_registered_when_they_answer(server: Admitting, kube: Kube) -> None:
    webhooks = Webhooks()
    registered = asyncio.Event()
    registering = Registering(kube, free, HOME, lambda: NEW, webhooks, registered=registered)
    webhooks.up = False
    await registering.look(NEW)
    assert authorities(server) == []
    webhooks.up = True
    server.change("deployments", HOME, registration.SERVICE, {"status": {"updatedReplicas": 1}})
    await registering.look(NEW)
    assert authorities(server) == []
    assert not registered.is_set()
    server.change("deployments", HOME, registration.SERVICE, {"status": {"updatedReplicas": 2}})
    await registering.look(NEW)

    assert authorities(server) == [NEW] * 3
    assert registered.is_set()
    assert webhooks.asked == [NEW, NEW]


@pytest.mark.asyncio
async def test_a_new_authority_joins_the_former_one_which_goes_later(server: Admitting, kube: Kube) -> None:
    now, webhooks = [0.0], Webhooks()
    registering = Registering(kube, free, HOME, lambda: NEW, webhooks, registered=asyncio.Event(), clock=lambda: now[0])
    await registering.look(OLD)
    webhooks.up = False
    await registering.look(NEW)
    assert authorities(server) == [NEW + OLD] * 3, "even while no webhook answers"
    now[0] = KEEP_SECONDS - 1
    await registering.look(NEW)
    assert authorities(server) == [NEW + OLD] * 3
    now[0] = KEEP_SECONDS
    await registering.look(NEW)
    assert authorities(server) == [NEW] * 3


@pytest.mark.asyncio
async def test_what_somebody_changes_is_put_right_and_what_is_right_is_left(server: Admitting, kube: Kube) -> None:
    registering = Registering(kube, free, HOME, lambda: NEW, Webhooks(), registered=asyncio.Event())
    await registering.look(NEW)
    version = server.objects[CONFIGURATIONS, "", registration.CONFIGURATION]["metadata"]["resourceVersion"]
    await registering.look(NEW)
    found = server.objects[CONFIGURATIONS, "", registration.CONFIGURATION]
    assert found["metadata"]["resourceVersion"] == version
    open_ = [{**one, "failurePolicy": "Ignore"} for one in found["webhooks"]]
    server.change(CONFIGURATIONS, "", registration.CONFIGURATION, {"webhooks": open_})
    await registering.look(NEW)

    found = server.objects[CONFIGURATIONS, "", registration.CONFIGURATION]
    assert {one["failurePolicy"] for one in found["webhooks"]} == {"Fail"}


@pytest.mark.asyncio
async def test_what_stands_for_an_uninstall_stays_empty(server: Admitting, kube: Kube) -> None:
    hook = {"name": registration.CONFIGURATION, "annotations": {"helm.sh/hook": "pre-delete"}}
    server.put(CONFIGURATIONS, {"metadata": hook})
    await Registering(kube, free, HOME, lambda: NEW, Webhooks(), registered=asyncio.Event()).look(NEW)

    assert authorities(server) == []


@pytest.mark.asyncio
async def test_the_leader_does_all_of_it_by_itself(server: Admitting, kube: Kube, tmp_path: Path) -> None:
    server.put("deployments", deployment("web", {MODEL: "m"}))
    server.asks = True
    with issuing(tmp_path, delivery="NodeCache") as webhook:
        url = f"https://{HOST}:{webhook.server.port}"
        settings = Settings("https://c:1", "pod-0", delivery_type="NodeCache", webhook_url=url)
        authority = webhook.certificates.ca.read_text()
        assert not await over_https(f"{settings.webhook_url}/mutate")(make_authority("x", NOW).certificate)
        registered = asyncio.Event()
        work = asyncio.create_task(looked_after.keep(settings, kube, free, lambda: authority, registered))
        async with asyncio.timeout(20):
            await registered.wait()
            assert await asyncio.to_thread(server.stamped.wait, 20)
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work

    assert authorities(server) == [authority] * 3


def deployment(name: str, notes: Mapping[str, str], namespace: str = "demo") -> Object:
    meta = {"namespace": namespace, "name": name, "annotations": dict(notes)}
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "main"}]}}
    return {"metadata": meta, "spec": {"template": template}}


def stamps(server: ApiServer) -> dict[str, bool]:
    found = [one for one in server.all("deployments") if one["metadata"]["name"] != registration.SERVICE]
    return {f"{one['metadata']['namespace']}/{one['metadata']['name']}": stamping.is_stamped(one) for one in found}


@pytest.mark.asyncio
async def test_workloads_from_before_are_stamped_once(server: Admitting, kube: Kube) -> None:
    for name, namespace in (("web", "demo"), ("own", HOME), ("dns", "kube-system")):
        server.put("deployments", deployment(name, {MODEL: "m"}, namespace))
    server.put("deployments", deployment("plain", {}))
    server.put("deployments", deployment("bad", {MODEL: "a,a"}))
    server.asks = True
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    readmits = Readmitting(kube, free, asyncio.Event(), shared=False, left_out=registration.left_out(HOME), sleep=sleep)
    await readmits.look()
    versions = {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in server.all("deployments")}
    await readmits.look()

    assert stamps(server) == {
        "demo/web": True,
        "demo/bad": False,
        "demo/plain": False,
        f"{HOME}/own": False,
        "kube-system/dns": False,
    }
    bad = server.objects["deployments", "demo", "bad"]["metadata"]["annotations"]
    assert bad[names.ANNOTATION_BLOCKED_REASON] == "InvalidSpec"
    after = {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in server.all("deployments")}
    assert after == versions, "the second time nothing is written"
    assert len(pauses) == 2


@pytest.mark.asyncio
async def test_who_changed_meanwhile_or_is_refused_does_not_stop_the_others(server: Admitting, kube: Kube) -> None:
    server.put("deployments", deployment("web", {MODEL: "m"}))
    server.put("statefulsets", deployment("db", {MODEL: "m"}))
    server.asks = True
    server.refuse = lambda method, resource: "no" if (method, resource) == ("PATCH", "deployments") else ""
    readmits = Readmitting(kube, free, asyncio.Event(), shared=False, left_out=(), sleep=lambda _: free())
    await readmits.look()
    assert stamps(server) == {"demo/web": False}
    assert stamping.is_stamped(server.objects["statefulsets", "demo", "db"])
    server.refuse = lambda _method, _resource: ""
    await readmits.look()

    assert stamps(server) == {"demo/web": True}
