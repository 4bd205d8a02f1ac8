"""The webhook process as the API server meets it: AdmissionReview v1 over TLS.

Source: Kubernetes, "Dynamic Admission Control".
"""

import base64
import http.client
import json
import ssl
from collections.abc import Iterator
from typing import Any

import pytest

from aimodels_core import names
from tests.support.issuing import Issuing, issuing
from tests.support.patching import patched
from tests.support.processes import HOST

pytestmark = pytest.mark.timeout(60)

BGE = {names.ANNOTATION_MODEL: "bge-m3"}
POD = {"metadata": {"generateName": "web-", "annotations": BGE}, "spec": {"containers": [{"name": "main"}]}}
TEMPLATE = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "main"}]}}
DEPLOYMENT = {"kind": "Deployment", "metadata": {"name": "web", "annotations": BGE}, "spec": {"template": TEMPLATE}}
Object = dict[str, Any]


@pytest.fixture(scope="module")
def webhook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Issuing]:
    with issuing(tmp_path_factory.mktemp("webhook"), delivery="NodeCache") as made:
        yield made


def post(webhook: Issuing, path: str, body: bytes, method: str = "POST") -> tuple[int, bytes]:
    context = ssl.create_default_context(cafile=str(webhook.certificates.ca))
    connection = http.client.HTTPSConnection(HOST, webhook.server.port, timeout=20, context=context)
    try:
        connection.request(method, f"{path}?timeout=5s", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def review(new: Object | None, old: Object | None = None, operation: str = "CREATE") -> Object:
    request = {"uid": "705ab4f5", "operation": operation, "namespace": "demo", "object": new, "oldObject": old}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def ask(webhook: Issuing, path: str, document: Object) -> Object:
    status, data = post(webhook, path, json.dumps(document).encode())
    assert status == 200, data
    answer = json.loads(data)
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response = answer["response"]
    assert response["uid"] == "705ab4f5"
    return dict(response)


def changed(response: Object, content: Object) -> Object:
    """The object as the API server goes on with it."""
    assert response["allowed"], response
    if "patch" not in response:
        return content
    assert response["patchType"] == "JSONPatch"
    return dict(patched(content, json.loads(base64.b64decode(response["patch"]))))


def metric(webhook: Issuing, line: str) -> bool:
    connection = http.client.HTTPConnection(HOST, webhook.health_port, timeout=10)
    try:
        connection.request("GET", "/metrics")
        return line in connection.getresponse().read().decode().splitlines()
    finally:
        connection.close()


def test_templates_and_pods_get_what_they_need(webhook: Issuing) -> None:
    workload = changed(ask(webhook, "/mutate/workloads", review(DEPLOYMENT)), DEPLOYMENT)
    template = workload["spec"]["template"]
    pod = changed(ask(webhook, "/mutate/pods", review(template)), template)

    assert template["metadata"] == {"labels": {"app": "web", names.LABEL_DELIVERY: "true"}, "annotations": BGE}
    assert pod["spec"]["schedulingGates"] == [{"name": names.SCHEDULING_GATE}]
    assert pod["spec"]["containers"][0]["volumeMounts"][0]["mountPath"] == "/data/modelcache/models/bge-m3"
    assert "patch" not in ask(webhook, "/mutate/pods", review(pod)), "asked again, nothing is to be done"
    assert "patch" not in ask(webhook, "/mutate/workloads", review(workload, workload, "UPDATE"))


def test_the_leader_can_ask_whether_objects_may_be_sent(webhook: Issuing) -> None:
    assert post(webhook, "/mutate", b"", "GET") == (200, b"ok\n")


def test_refusals_say_what_is_wrong(webhook: Issuing) -> None:
    bad = {**DEPLOYMENT, "metadata": {"name": "web", "annotations": {names.ANNOTATION_MODEL: "team/bge"}}}
    response = ask(webhook, "/mutate/workloads", review(bad))

    assert (response["allowed"], response["status"]["code"]) == (False, 422)
    words = response["status"]["message"]
    assert words.startswith("InvalidSpec: metadata.annotations: ai.deckhouse.io/model: want names of Models")
    assert words.endswith("got 'team/bge'")
    later = ask(webhook, "/mutate/workloads", review(bad, bad, "UPDATE"))
    assert later["allowed"]
    assert later["warnings"] == [words]
    mounted = {**POD, "spec": {"containers": [{"name": "main", "env": [{"name": "AI_MODELS_MODELS", "value": "x"}]}]}}
    assert not ask(webhook, "/mutate/pods", review(mounted))["allowed"]
    assert metric(webhook, 'aimodels_admissions_total{about="pods",result="refused"} 1')


def test_deletion_is_never_in_the_way(webhook: Issuing) -> None:
    meta: Object = {"name": "web", "annotations": {names.ANNOTATION_MODEL: "a,a"}}
    bad = {**DEPLOYMENT, "metadata": meta}
    going = {**bad, "metadata": {**meta, "deletionTimestamp": "2027-01-01T00:00:00Z"}}

    assert ask(webhook, "/mutate/workloads", review(going, bad, "UPDATE")) == {"uid": "705ab4f5", "allowed": True}
    for path in ("/mutate/workloads", "/mutate/pods"):
        assert ask(webhook, path, review(None, bad, "DELETE"))["allowed"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"[" * 100_000,
        json.dumps({**review(POD), "apiVersion": "admission.k8s.io/v1beta1"}).encode(),
        json.dumps(review(None)).encode(),
        json.dumps({**review(POD), "request": {"object": POD}}).encode(),
    ],
)
def test_what_is_no_review_is_told_so(webhook: Issuing, body: bytes) -> None:
    status, words = post(webhook, "/mutate/pods", body)

    assert (status, words[:11]) == (400, b"body: want ")


def test_reviews_have_a_bound(webhook: Issuing) -> None:
    large = {**POD, "metadata": {"annotations": {**BGE, "theirs": "x" * (6 << 20)}}}

    assert ask(webhook, "/mutate/pods", review(large))["allowed"]
    status, _ = post(webhook, "/mutate/pods", b" " * (8 << 20) + json.dumps(review(POD)).encode())
    assert status == 413


def test_without_delivery_everything_is_let_through(tmp_path_factory: pytest.TempPathFactory) -> None:
    with issuing(tmp_path_factory.mktemp("off")) as off:
        assert post(off, "/mutate", b"", "GET")[0] == 503
        assert ask(off, "/mutate/workloads", review(DEPLOYMENT)) == {"uid": "705ab4f5", "allowed": True}
        assert ask(off, "/mutate/pods", review(POD)) == {"uid": "705ab4f5", "allowed": True}
        assert metric(off, 'aimodels_admissions_total{about="pods",result="unchanged"} 1')
