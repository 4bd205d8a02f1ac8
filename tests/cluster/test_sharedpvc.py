"""Shared claims on real nodes: filled by Jobs through the product's registry, read by Pods of several nodes, refused by
quotas, and gone when nobody refers to them.

Registry, issuer and Secrets are those of the chart; the claims are looked after by this process with the rights of the
chart's role alone, so that clocks and settings are the test's.
"""

import asyncio
import base64
import hashlib
import json
import random
import secrets
import threading
import time
from collections.abc import Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from aimodels_core import names
from aimodels_core.api import Kind
from aimodels_core.names import HomeSecret
from aimodels_core.units import MIB
from aimodels_operator import kube
from aimodels_operator.kube import Kube
from aimodels_operator.kube_claims import ClaimCalls
from aimodels_operator.sharedpvc_bodies import Puller
from aimodels_operator.sharedpvc_loop import Options, SharedClaims
from aimodels_operator.sharedpvc_values import CLAIM, CLASS_MISSING, FILLING, QUOTA, Answer, Blocked, Need, Open
from tests.cluster import installed, operating
from tests.cluster.stand import chart, product
from tests.cluster.stand.addons import STORAGE_CLASS
from tests.cluster.stand.chart import HOME
from tests.cluster.stand.cluster import Cluster
from tests.cluster.stand.kubectl import Kubectl, Object, pod
from tests.cluster.stand.layout import CHECKOUT, StandError
from tests.cluster.stand.waiting import until
from tests.support.artifacts import Sample, sample, write_layout

pytestmark = pytest.mark.timeout(400)

ROLE = CHECKOUT / "charts" / "ai-models" / "roles" / "sharedpvc.yaml"
FILLED_SECONDS = 120.0
T = TypeVar("T")
NAME = "ai-models-model-sample"
FOLDER = "by-digest/$(AI_MODELS_DIGEST_0)"
MODEL = sample({"config.json": b"{}", "model.safetensors": random.Random(11).randbytes(3 * MIB)})
NEXT = sample({"config.json": b"{}", "model.safetensors": random.Random(12).randbytes(2 * MIB)})


class Operator:
    """Looks after shared claims in a thread of its own, with a clock that may be put forward."""

    def __init__(self, kubeconfig: Path, class_name: str) -> None:
        self.ahead = 0.0
        self.class_name = class_name
        self._kube = Kube(kube.configuration(str(kubeconfig)))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._shared, self._running = self._call(self._start())

    def answer(self, *needs: Need) -> Answer:
        return self._call(self._shared.answer(needs))

    def close(self) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()
        self._kube.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _stop(self) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)

    async def _start(self) -> "tuple[SharedClaims, asyncio.Task[None]]":
        async def admit() -> None:
            """Let everything pass: nobody else leads."""

        def now() -> float:
            return time.time() + self.ahead

        def changed(_: Iterable[tuple[str, str]]) -> None:
            """Nobody waits to be told: the test asks."""

        options = Options(class_setting=self.class_name, grace_seconds=60.0)
        made = SharedClaims(ClaimCalls(self._kube), admit, puller, name_of, changed, options=options, now=now)
        return made, asyncio.create_task(made.run())


def name_of(kind: Kind, name: str) -> str:
    """As the operator names claims, for names that are short."""
    return f"ai-models-{kind.singular}-{name}"


def puller() -> Puller:
    """What Jobs have in common on this stand."""
    authority = base64.b64decode(Kubectl(HOME).get("secret", HomeSecret.SERVING_ROOT)["data"]["tls.crt"]).decode()
    return Puller(product.image_name("jobs"), HOME, f"https://ai-models-dmcr.{HOME}.svc:5000", authorities=authority)


@pytest.fixture(scope="module", autouse=True)
def _registry(stand: Cluster) -> Iterator[None]:
    """Registry, issuer and their Secrets; Ray is there and not waited for."""
    chart.namespaces()
    images = (f"images.{name}={product.image_name(name)}" for name in ("operator", "jobs", "dmcr"))
    chart.install(*images, "ray.workers.replicas=1", "delivery.enabled=false", wait=False)
    home = Kubectl(HOME)
    try:
        for part in ("operator", "webhook", "dmcr"):
            home.rolled_out(f"deployment/ai-models-{part}", seconds=chart.START_SECONDS)
        yield
    finally:
        operating.install()
        home("delete", "secret", "--ignore-not-found", *HomeSecret)
        home("delete", "pvc", "--ignore-not-found", installed.CLAIM, "--wait=false")


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory, stand: Cluster) -> Iterator[Path]:
    """The rights of the role, and no other."""
    name = f"shared-{secrets.token_hex(3)}"
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}}
    Kubectl().apply({**role, "rules": yaml.safe_load(ROLE.read_text(encoding="utf-8"))})
    Kubectl("default")("create", "serviceaccount", name)
    Kubectl()("create", "clusterrolebinding", name, f"--clusterrole={name}", f"--serviceaccount=default:{name}")
    found = json.loads(Kubectl()("config", "view", "--raw", "--output=json"))
    for user in found["users"]:
        user["user"] = {"token": Kubectl("default")("create", "token", name).strip()}
    path = tmp_path_factory.mktemp("shared") / "kubeconfig"
    path.write_text(json.dumps(found))
    yield path
    Kubectl()("delete", "clusterrolebinding,clusterrole", name)
    Kubectl("default")("delete", "serviceaccount", name)


@pytest.fixture
def operator(kubeconfig: Path) -> Iterator[Operator]:
    made = Operator(kubeconfig, STORAGE_CLASS)
    yield made
    made.close()


@pytest.fixture
def strict(space: Kubectl) -> Kubectl:
    """A namespace as strict about Pods as Kubernetes can be."""
    Kubectl()("label", "namespace", space.namespace, "pod-security.kubernetes.io/enforce=restricted")
    return space


def need(space: Kubectl, model: Sample = MODEL) -> Need:
    size_bytes = sum(len(data) for data in model.files.values())
    return Need(space.namespace, NAME, model.digest.hex, size_bytes, names.namespace_repository(space.namespace))


def publish(space: Kubectl, *models: Sample) -> None:
    """Have models in the store, as the coordinator would."""
    write_layout(
        installed.store_folder(),
        names.namespace_repository(space.namespace),
        {one.digest.hex[:12]: one for one in models},
    )


def wait_for(operator: Operator, wanted: Need, *, reason: str = "", words: str = "") -> Answer:
    """Ask until the answer is the wanted one: a reason, or that the Pod may go."""

    last: list[Answer] = []

    def look() -> bool:
        last[:] = [operator.answer(wanted)]
        there = last[0].reason if isinstance(last[0], Blocked) else ""
        return there == reason and words in str(last[0])

    try:
        until(look, what=f"the answer {reason or 'Open'} {words}", seconds=FILLED_SECONDS, pause=0.5)
    except StandError as error:
        raise StandError(f"{error}: {last}") from error
    return last[0]


def reading(name: str, model: Sample, node: str = "", **more: Any) -> Object:
    """A Pod as it is injected and let go: it mounts the folder of one digest."""
    field = f"metadata.annotations['{names.ANNOTATION_RESOLVED_DIGEST}0']"
    made = pod(
        name,
        command=["sleep", "infinity"],
        nodeSelector={"kubernetes.io/hostname": node} if node else {},
        securityContext={"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
        volumes=[{"name": "m", "persistentVolumeClaim": {"claimName": NAME, "readOnly": True}}],
        container={
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            "env": [{"name": "AI_MODELS_DIGEST_0", "valueFrom": {"fieldRef": {"fieldPath": field}}}],
            "volumeMounts": [
                {
                    "name": "m",
                    "mountPath": "/models",
                    "readOnly": True,
                    "subPathExpr": "by-digest/$(AI_MODELS_DIGEST_0)",
                }
            ],
        },
        **more,
    )
    made["metadata"]["labels"][names.LABEL_DELIVERY] = "true"
    made["metadata"]["annotations"] = {f"{names.ANNOTATION_RESOLVED_DIGEST}0": model.digest.hex}
    return made


def sums(space: Kubectl, name: str, model: Sample) -> bool:
    """Whether a Pod reads every file as it was published."""
    said = space.exec(name, "sh", "-c", "cd /models && sha256sum *")
    return all(f"{hashlib.sha256(data).hexdigest()}  {path}" in said for path, data in model.files.items())


def test_one_claim_is_filled_by_jobs_and_read_on_several_nodes_until_nobody_refers_to_it(
    operator: Operator, strict: Kubectl
) -> None:
    publish(strict, MODEL, NEXT)
    wait_for(operator, need(strict))
    strict.apply(reading("one", MODEL, "node-a"), reading("two", MODEL, "node-b"))
    wait_for(operator, need(strict, NEXT))
    strict.apply(reading("three", NEXT, "node-c"))
    strict.ready("one", "two", "three")

    assert all(sums(strict, name, model) for name, model in (("one", MODEL), ("two", MODEL), ("three", NEXT)))
    assert strict.attempt("exec", "one", "--", "touch", "/models/x").returncode != 0
    (claim,) = strict.items("pvc")
    assert (claim["spec"]["accessModes"], claim["metadata"].get("ownerReferences")) == (["ReadWriteMany"], None)
    assert [one["metadata"]["name"] for one in strict.items("networkpolicy")] == [NAME]
    assert strict.items("secrets") == strict.items("configmaps", "module=ai-models") == []

    strict("delete", "pod", "one", "two", "three")
    strict.apply(reading("gated", MODEL, schedulingGates=[{"name": names.SCHEDULING_GATE}]))
    operator.ahead += 600.0
    until(lambda: operator.answer() == Open(), what="a look", seconds=20)
    assert strict.items("pvc"), "a gated Pod refers to it"
    strict("delete", "pod", "gated")

    def gone() -> bool:
        operator.ahead += 120.0
        assert operator.answer() == Open(), "nobody asks for anything, and it looks"
        return not strict.items("pvc") and not strict.items("networkpolicy")

    until(gone, what="an end of the claim and its policy", seconds=90, pause=1.0)


def test_quotas_are_told_and_lifted(operator: Operator, space: Kubectl) -> None:
    publish(space, MODEL)
    quota: Object = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}}
    space.apply({**quota, "spec": {"hard": {"persistentvolumeclaims": "0"}}})
    space.until("resourcequota", "q", lambda found: "hard" in found.get("status", {}))
    wait_for(operator, need(space), reason=QUOTA, words="persistentvolumeclaims")
    space.apply({**quota, "spec": {"hard": {"persistentvolumeclaims": "1", "count/jobs.batch": "1", "pods": "0"}}})
    space.until("resourcequota", "q", lambda found: "pods" in found.get("status", {}).get("hard", {}))
    operator.ahead += 60.0
    wait_for(operator, need(space), reason=QUOTA, words="pods")
    space("delete", "resourcequota", "q")

    assert wait_for(operator, need(space)) == Open()


def test_without_a_class_and_without_the_model_pods_are_told_why(kubeconfig: Path, space: Kubectl) -> None:
    seeking = Operator(kubeconfig, "")
    try:
        wait_for(seeking, need(space), reason=CLASS_MISSING, words=f"{STORAGE_CLASS} (rancher.io/local-path, default)")
        Kubectl()("annotate", "storageclass", STORAGE_CLASS, f"{names.ANNOTATION_SHARED_CLASS}=true")
        found = wait_for(seeking, need(space), reason=FILLING, words="not in the registry")
        assert isinstance(found, Blocked)
    finally:
        Kubectl()("annotate", "storageclass", STORAGE_CLASS, f"{names.ANNOTATION_SHARED_CLASS}-")
        seeking.close()


def test_a_claim_that_somebody_else_made_is_left_alone(operator: Operator, space: Kubectl) -> None:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    space.apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": NAME}, "spec": spec})
    wait_for(operator, need(space), reason=CLAIM, words="not of ai-models")

    assert space.items("job") == []
