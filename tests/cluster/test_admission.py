"""Admission in the installed product, on a real API server: operator and webhook as the chart runs them, without Ray.

Models never come here, so Pods stay at their gate: what is looked at is what becomes of objects at their creation and
change. Nodes have no cache.
"""

import base64
import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from aimodels_core import names
from aimodels_operator import registration
from tests.cluster import operating
from tests.cluster.stand import chart, product
from tests.cluster.stand.chart import HOME
from tests.cluster.stand.cluster import Cluster
from tests.cluster.stand.kubectl import Kubectl, Object, pod
from tests.cluster.stand.waiting import command, until

MODEL = names.ANNOTATION_MODEL
REASON = names.ANNOTATION_BLOCKED_REASON
GATE = {"name": names.SCHEDULING_GATE}
EARLY = "admitted-early"
SETTINGS = (
    f"images.operator={product.image_name('operator')}",
    "dataplane.enabled=false",
    "coordinator.url=https://127.0.0.1:1",
    "delivery.type=NodeCache",
)


@pytest.fixture(scope="module", autouse=True)
def _installed(stand: Cluster) -> Iterator[None]:
    early = Kubectl(EARLY)
    operating.install()
    Kubectl()("create", "namespace", EARLY)
    early.until("serviceaccount", "default", bool)
    early.apply(workload(), workload("plain", asked=""), workload("bad", asked="a,a"))
    for name in ("web", "plain", "bad"):
        early.rolled_out(f"deployment/{name}")
    try:
        install()
        yield
    finally:
        with contextlib.suppress(Exception):
            Kubectl()("delete", "namespace", EARLY, "--wait=false")
        operating.install()
        Kubectl(HOME)("delete", "secret", "--ignore-not-found", *names.HomeSecret)


def install() -> None:
    """Install the product and wait until its webhooks are asked."""
    chart.namespaces()
    chart.install(*SETTINGS, wait=False)
    for part in ("operator", "webhook"):
        Kubectl(HOME).rolled_out(f"deployment/ai-models-{part}", seconds=180)
    until(lambda: len(registered()) == 3, what="webhooks registered", seconds=60, pause=0.5)


def registered() -> list[Object]:
    done = Kubectl().attempt("get", "mutatingwebhookconfiguration", registration.CONFIGURATION, "--output=json")
    return list(json.loads(done.stdout).get("webhooks", [])) if done.returncode == 0 else []


def workload(name: str = "web", kind: str = "Deployment", *, asked: str = "bge-m3", **spec: Any) -> Object:
    """A workload whose Pods sleep; it names models if any are asked for."""
    template = pod(name, command=("sleep", "3600"), **spec.pop("pod", {}))
    template = {"metadata": {"labels": {"app": name}}, "spec": template["spec"]}
    group = "batch/v1" if kind in ("Job", "CronJob") else "apps/v1"
    body: Object = {"template": template, **spec}
    if group == "batch/v1":
        template["spec"]["restartPolicy"] = "Never"
    else:
        body["selector"] = {"matchLabels": {"app": name}}
    if kind == "CronJob":
        body = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": body}}
    notes = {"annotations": {MODEL: asked}} if asked else {}
    return {"apiVersion": group, "kind": kind, "metadata": {"name": name, **notes}, "spec": body}


def template(found: Object) -> Any:
    spec = found["spec"]
    return (spec["jobTemplate"]["spec"] if "jobTemplate" in spec else spec)["template"]


def is_stamped(found: Object) -> bool:
    meta = template(found)["metadata"]
    asked = (meta.get("annotations") or {}).get(MODEL)
    return bool(asked) and (meta.get("labels") or {}).get(names.LABEL_DELIVERY) == "true"


def note(found: Object, key: str) -> str:
    return str((found["metadata"].get("annotations") or {}).get(key, ""))


def gated(found: Object) -> bool:
    return GATE in found["spec"].get("schedulingGates", [])


def pods_of(space: Kubectl, app: str, *, least: int = 1) -> list[Object]:
    def look() -> list[Object]:
        found = [one for one in space.items("pods", f"app={app}") if "deletionTimestamp" not in one["metadata"]]
        return found if len(found) >= least else []

    return list(until(look, what=f"Pods of {app}", seconds=30, pause=0.3))


def test_workloads_from_before_are_stamped_once_and_no_others() -> None:
    early = Kubectl(EARLY)
    early.until("deployment", "web", is_stamped)
    early.until("deployment", "bad", lambda found: note(found, REASON) == "InvalidSpec")
    until(lambda: len(early.items("replicasets", "app=web")) == 2, what="one rollout", seconds=30, pause=0.3)

    assert not is_stamped(early.get("deployment", "plain"))
    assert not is_stamped(early.get("deployment", "bad"))
    assert early.get("deployment", "plain")["metadata"]["generation"] == 1
    early.apply(workload("bad", asked="a"))
    assert note(early.get("deployment", "bad"), REASON) != "InvalidSpec"
    early("scale", "deployment", "web", "--replicas=2")
    early("rollout", "undo", "deployment", "web")
    assert is_stamped(early.get("deployment", "web")), "an old revision is stamped, too"


def test_pods_of_a_deployment_get_everything_and_wait(space: Kubectl) -> None:
    space.apply(workload())
    (found,) = pods_of(space, "web")
    spec = found["spec"]
    (container,) = spec["containers"]

    assert gated(found)
    assert spec["nodeSelector"] == {names.LABEL_CACHE: "true"}
    volume = next(one for one in spec["volumes"] if one["name"] == "ai-models-0-bge-m3")
    assert volume["csi"]["driver"] == names.CSI_DRIVER
    assert [one["name"] for one in container["env"]] == ["AI_MODELS_MODELS_DIR", "AI_MODELS_MODELS"]
    assert {"/data/modelcache/models/bge-m3"} < {one["mountPath"] for one in container["volumeMounts"]}
    space.until("deployment", "web", lambda seen: note(seen, REASON) == "ModelNotFound")
    space("annotate", "deployment", "web", "theirs=x")
    space("scale", "deployment", "web", "--replicas=3")
    assert all(map(gated, pods_of(space, "web", least=3)))
    assert len(space.items("replicasets")) == 1, "no other rollout"


@pytest.mark.parametrize("kind", ["StatefulSet", "DaemonSet", "Job", "CronJob"])
def test_other_kinds_are_stamped(space: Kubectl, kind: str) -> None:
    more = {"serviceName": "web"} if kind == "StatefulSet" else {}
    space.apply(workload(kind=kind, **more))
    if kind == "CronJob":
        space("create", "job", "--from=cronjob/web", "now")
        assert is_stamped(space.get("job", "now"))

    assert is_stamped(space.get(kind, "web"))
    assert all(map(gated, pods_of(space, "web")))


def test_a_suspended_job_can_be_annotated_later_and_one_that_runs_is_left(space: Kubectl) -> None:
    space.apply(workload("later", "Job", asked="", suspend=True), workload("runs", "Job", asked=""))
    pods_of(space, "runs")
    for name in ("later", "runs"):
        space("annotate", "job", name, f"{MODEL}=bge-m3")

    assert is_stamped(space.get("job", "later"))
    assert not is_stamped(space.get("job", "runs"))


def test_pods_that_nobody_stamped_are_served_too(space: Kubectl) -> None:
    bare = pod("bare", command=("sleep", "3600"))
    bare["metadata"]["annotations"] = {MODEL: "bge-m3"}
    pinned = pod("pinned", command=("sleep", "3600"), nodeName=Kubectl().items("nodes")[0]["metadata"]["name"])
    pinned["metadata"]["annotations"] = {MODEL: "bge-m3"}
    space.apply(bare, pinned, pod("plain", command=("sleep", "3600")))

    assert gated(space.get("pod", "bare"))
    assert space.get("pod", "bare")["metadata"]["labels"][names.LABEL_DELIVERY] == "true"
    assert not gated(space.get("pod", "pinned"))
    assert "ai-models-0-bge-m3" in json.dumps(space.get("pod", "pinned")["spec"]["volumes"])
    assert "ai-models" not in json.dumps(space.get("pod", "plain")["spec"])


def test_without_its_annotation_a_workload_is_as_it_was(space: Kubectl) -> None:
    plain = workload(asked="")
    space.apply(plain)
    before = template(space.get("deployment", "web"))
    space("annotate", "deployment", "web", f"{MODEL}=bge-m3")
    assert is_stamped(space.get("deployment", "web"))
    space("annotate", "deployment", "web", f"{MODEL}-")

    assert template(space.get("deployment", "web")) == before
    until(lambda: not any(map(gated, pods_of(space, "web"))), what="Pods without a gate", seconds=60, pause=0.5)


def test_server_side_apply_again_changes_nothing(space: Kubectl) -> None:
    for _ in range(3):
        space("apply", "--server-side", "--filename=-", stdin=json.dumps(workload()))

    assert is_stamped(space.get("deployment", "web"))
    assert len(space.items("replicasets")) == 1, "no other rollout"


def test_wrong_lists_and_conflicts_are_refused_when_they_come(space: Kubectl) -> None:
    assert "InvalidSpec: metadata.annotations: ai.deckhouse.io/model: want every name once" in space.refusal(
        workload(asked="a,a")
    )
    assert "got 'team/bge'" in space.refusal(workload(kind="CronJob", asked="team/bge"))
    mount = {"volumeMounts": [{"name": "own", "mountPath": "/data"}]}
    config = [{"name": "own", "configMap": {"name": "x"}}]
    conflict = workload(pod={"container": mount, "volumes": config})
    assert "/data is read-only" in space.refusal(conflict)
    bare = pod("bare", container={"env": [{"name": "AI_MODELS_MODELS", "value": "x"}]})
    bare["metadata"]["annotations"] = {MODEL: "m"}
    assert "AI_MODELS_MODELS is set by ai-models" in space.refusal(bare)
    space.apply(workload())
    done = space.attempt("annotate", "--overwrite", "deployment", "web", f"{MODEL}=a,,b")
    assert "want names of Models" in done.stderr


@contextlib.contextmanager
def no_webhook() -> Iterator[None]:
    home = Kubectl(HOME)
    home("scale", "deployment", "ai-models-webhook", "--replicas=0")
    try:
        until(lambda: not home.items("pods", "app=ai-models-webhook"), what="no webhook", seconds=90, pause=0.5)
        yield
    finally:
        home("scale", "deployment", "ai-models-webhook", "--replicas=2")
        home.rolled_out("deployment/ai-models-webhook")


def test_while_the_webhook_is_away_only_what_names_models_waits(space: Kubectl) -> None:
    held = workload("held")
    held["metadata"]["finalizers"] = ["example.com/held"]
    space.apply(workload(), held)
    with no_webhook():
        assert "failed calling webhook" in space.refusal(workload("new"))
        space.apply(workload("plain", asked=""), pod("bare", command=("sleep", "3600")))
        space("scale", "deployment", "web", "--replicas=2")
        space("delete", "deployment", "web", "--timeout=30s")
        space("delete", "deployment", "held", "--wait=false")
        space("patch", "deployment", "held", "--type=merge", '--patch={"metadata":{"finalizers":null}}')
        assert space.attempt("get", "deployment", "held").returncode != 0

    space.apply(workload("new"))
    assert is_stamped(space.get("deployment", "new"))


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_new_authority_is_followed_without_a_gap(space: Kubectl) -> None:
    home, before = Kubectl(HOME), registered()[0]["clientConfig"]["caBundle"]
    served = home.get("secret", names.HomeSecret.WEBHOOK_TLS)["data"]["tls.crt"]
    home("delete", "secret", names.HomeSecret.SERVING_ROOT)
    stop = time.monotonic() + 240
    while time.monotonic() < stop:
        done = space.attempt("create", "--dry-run=server", "--filename=-", stdin=json.dumps(workload("try")))
        assert done.returncode == 0, done.stderr
    after = base64.b64decode(registered()[0]["clientConfig"]["caBundle"]).decode()

    assert after.count("BEGIN CERTIFICATE") == 2
    assert base64.b64decode(before).decode().strip() in after
    assert home.get("secret", names.HomeSecret.WEBHOOK_TLS)["data"]["tls.crt"] != served


def test_uninstall_takes_the_webhooks_out_before_their_server(space: Kubectl) -> None:
    command("helm", f"--namespace={HOME}", "uninstall", "ai-models", seconds=120)
    space.apply(workload())
    assert not is_stamped(space.get("deployment", "web"))
    assert registered() == []
    until(lambda: not chart.pods("webhook"), what="no webhook", seconds=60, pause=0.5)
    install()

    space.until("deployment", "web", is_stamped)
