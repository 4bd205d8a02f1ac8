"""Models in Pods from caches of nodes: the users' workloads as they are, block devices, the whole product installed."""

import json
from collections.abc import Iterator

import pytest

from aimodels_core import names
from tests.cluster import installed, moduleconfigs, operating
from tests.cluster.installed import digests
from tests.cluster.operating import phase
from tests.cluster.stand import blockdevices, chart
from tests.cluster.stand.chart import HOME
from tests.cluster.stand.cluster import Cluster
from tests.cluster.stand.kubectl import Kubectl, Object, pod
from tests.cluster.stand.layout import CHECKOUT
from tests.cluster.stand.waiting import command, until
from tests.support import models
from tests.support.hub.repository import Repository
from tests.support.hub.server import Hub
from tests.support.publishing import good_model

pytestmark = pytest.mark.timeout(600)

ADMIN_TOKEN = "hf_administrator"
SETTINGS = ("delivery.maxGateWait=2m",)
NODES = ("node-a", "node-b")
"""With a labelled block device each; the third node has none."""
MIB = 1024 * 1024
SECONDS = 180.0


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with operating.hub_under_its_names({ADMIN_TOKEN: "administrator"}) as made:
        made.add(models.bge_m3())
        made.add(models.gemma_3_4b(granted=[ADMIN_TOKEN]))
        made.add(good_model("org/good"))
        yield made


@pytest.fixture(scope="module", autouse=True)
def demo(stand: Cluster, hub: Hub) -> Iterator[Kubectl]:
    """The namespace that the examples name, with both models Ready, in a product with two warm nodes."""
    with (
        blockdevices.labelled(stand, NODES, size_bytes=512 * MIB),
        moduleconfigs.installed(stand, hub, "moduleconfig-nodecache.yaml", *SETTINGS, token=ADMIN_TOKEN),
        installed.namespace("ai-demo") as space,
    ):
        example("model.yaml", "clustermodel.yaml")
        try:
            space.until("model", "bge-m3", phase("Ready"), seconds=SECONDS)
            Kubectl().until("clustermodel", "gemma-small", phase("Ready"), seconds=SECONDS)
            yield space
        finally:
            Kubectl()("delete", "clustermodel", "gemma-small", "--ignore-not-found", "--timeout=60s", seconds=70)


def example(*files: str) -> None:
    """Apply examples as they are."""
    for name in files:
        Kubectl()("apply", f"--filename={CHECKOUT / 'examples' / name}")


def pods_of(space: Kubectl, app: str) -> list[Object]:
    return [one for one in space.items("pods", f"app={app}") if "deletionTimestamp" not in one["metadata"]]


def available(space: Kubectl, app: str) -> list[Object]:
    """Wait until a Deployment is complete; returns its Pods."""
    try:
        space.rolled_out(f"deployment/{app}", seconds=SECONDS)
    except Exception as error:
        raise AssertionError(f"{error}\n{told(space)}") from error
    return pods_of(space, app)


def told(space: Kubectl) -> str:
    """What those who deliver said."""
    words = [space.attempt("describe", "pods").stdout[-3000:]]
    for home, app in (
        (HOME, "operator"),
        (HOME, "webhook"),
        (names.NODE_NAMESPACE, "node-csi"),
        (names.NODE_NAMESPACE, "node-agent"),
    ):
        words.append(
            Kubectl(home).attempt("logs", f"--selector=app=ai-models-{app}", "--tail=30", "--all-containers").stdout
        )
    return "\n".join(words)


def variable(space: Kubectl, name: str, variable: str) -> str:
    """What a variable of a Pod holds."""
    return space.exec(name, "sh", "-c", f"echo ${variable}").strip()


def published(repository: Repository, found: dict[str, str]) -> dict[str, str]:
    """What the hub has under these names."""
    return {path: file.sha256_hex for path, file in repository.head.files.items() if path in found}


def test_deployment_with_a_model(demo: Kubectl) -> None:
    example("embedder.yaml")
    for one in available(demo, "embedder"):
        name = one["metadata"]["name"]
        found = digests(demo, name, "bge-m3")
        (said,) = json.loads(variable(demo, name, names.VARIABLE_MODELS))

        assert one["spec"]["nodeName"] in NODES
        assert "config.json" in found
        assert found == published(models.bge_m3(), found)
        assert said["path"] == "/data/modelcache/models/bge-m3"
        assert said["digest"] == demo.get("model", "bge-m3")["status"]["artifact"]["digest"]
        assert variable(demo, name, names.VARIABLE_MODELS_DIR) == "/data/modelcache/models"
        assert demo.attempt("exec", name, "--", "touch", f"{said['path']}/new").returncode != 0
    assert len(demo.items("replicasets", "app=embedder")) == 1, "one rollout"


def test_deployments_with_a_cluster_model_and_with_both(demo: Kubectl) -> None:
    example("generator.yaml", "rag-service.yaml")
    (generator,) = available(demo, "generator")
    (rag,) = available(demo, "rag-service")
    gemma = digests(demo, generator["metadata"]["name"], "gemma-small")

    assert "config.json" in gemma
    assert gemma == published(models.gemma_3_4b(), gemma)
    assert digests(demo, rag["metadata"]["name"], "gemma-small") == gemma
    assert "config.json" in digests(demo, rag["metadata"]["name"], "bge-m3")
    caches = {one["metadata"]["name"]: one for one in Kubectl().items("nodemodelcaches")}
    assert set(NODES) <= set(caches)


def test_what_is_killed_on_a_node_leaves_files_to_their_readers(demo: Kubectl) -> None:
    example("embedder.yaml")
    before = available(demo, "embedder")
    name = before[0]["metadata"]["name"]
    found = digests(demo, name, "bge-m3")
    node = Kubectl(names.NODE_NAMESPACE)
    for app in ("node-csi", "node-agent"):
        node("delete", "pod", f"--selector=app=ai-models-{app}", "--grace-period=0", "--force")
    until(lambda: all(map(ready, node.items("pods"))), what="Pods of nodes ready again", seconds=SECONDS, pause=1)

    assert digests(demo, name, "bge-m3") == found
    demo("scale", "deployment/embedder", "--replicas=4")
    available(demo, "embedder")
    demo("scale", "deployment/embedder", "--replicas=1")
    until(lambda: len(pods_of(demo, "embedder")) == 1, what="Pods gone", seconds=60, pause=1)


def test_upgrade_under_load_and_rollback_lose_nothing(demo: Kubectl, hub: Hub) -> None:
    before = demo.get("model", "bge-m3")["status"]["artifact"]
    demo.apply(reading("reader", "bge-m3"))
    demo.ready("reader", seconds=SECONDS)
    changes = {
        "upgraded": ("upgrade", "ai-models", str(chart.CHART), "--reuse-values", "--set=logLevel=Debug"),
        "rolled-back": ("rollback", "ai-models"),
    }
    for seed, (name, words) in enumerate(changes.items(), start=50):
        hub.add(good_model(f"org/{name}", seed=seed))
        demo.apply(installed.model(name, f"org/{name}"), reading(f"reads-{name}", name))
        command("helm", f"--namespace={HOME}", *words, seconds=120)
        chart.wait_until_it_works()
        demo.ready(f"reads-{name}", seconds=SECONDS)
        (container,) = Kubectl(HOME).get("deployment", "ai-models-operator")["spec"]["template"]["spec"]["containers"]

        level = {"name": "AI_MODELS_LOG_LEVEL", "value": "Debug" if name == "upgraded" else "Info"}
        assert level in container["env"]
        assert demo.get("model", name)["status"]["phase"] == "Ready"
    readers = [demo.get("pod", name) for name in ("reader", *(f"reads-{name}" for name in changes))]

    assert [one["status"]["containerStatuses"][0]["restartCount"] for one in readers] == [0, 0, 0]
    assert demo.get("model", "bge-m3")["status"]["artifact"] == before


def reading(name: str, model: str) -> Object:
    """A Pod that reads all files of a model again and again, and fails when they are not what they were."""
    script = """
        cd /data/modelcache/models/$0 && sums() { busybox find . -type f -exec busybox sha256sum {} + ; }
        first="$(sums)" && while [ "$(sums)" = "$first" ]; do sleep 0.5; done; exit 1"""
    made = pod(name, command=["sh", "-c", script, model])
    made["metadata"]["annotations"] = {names.ANNOTATION_MODEL: model}
    return made


def ready(one: Object) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in one["status"].get("conditions", []))


def test_model_of_another_namespace_is_not_there(space: Kubectl, demo: Kubectl) -> None:
    made = pod("web", command=["sleep", "infinity"])
    made["metadata"]["annotations"] = {names.ANNOTATION_MODEL: "bge-m3"}
    space.apply(made)
    found = space.until("pod", "web", lambda one: one["metadata"]["annotations"].get(names.ANNOTATION_BLOCKED_REASON))

    assert found["metadata"]["annotations"][names.ANNOTATION_BLOCKED_REASON] == "ModelNotFound"
    assert found["spec"]["schedulingGates"] == [{"name": names.SCHEDULING_GATE}]


def test_commands_of_the_users_guide(demo: Kubectl) -> None:
    """As they are, with the names of this cluster; the last in this file, since models are deleted."""
    example("model.yaml", "clustermodel.yaml")
    demo.until("model", "bge-m3", phase("Ready"), seconds=SECONDS)
    Kubectl().until("clustermodel", "gemma-small", phase("Ready"), seconds=SECONDS)
    digest = demo.get("model", "bge-m3")["status"]["artifact"]["digest"]
    kubectl = Kubectl()
    kubectl("label", "node", NODES[0], "ai.deckhouse.io/model-cache=true")
    kubectl("label", "blockdevice", f"dev-{NODES[0]}", "ai.deckhouse.io/model-cache=true")
    table = demo("get", "model", "bge-m3").splitlines()
    story = demo("describe", "model", "bge-m3")
    demo("delete", "model", "bge-m3", seconds=70)
    kubectl("delete", "clustermodel", "gemma-small", seconds=70)

    assert table[0].split() == ["NAME", "PHASE", "PROGRESS", "FORMAT", "SIZE", "AGE"]
    assert table[1].split()[:2] == ["bge-m3", "Ready"]
    assert digest in story
    assert "PublicationSucceeded" in story
    assert "bge-m3" not in {one["metadata"]["name"] for one in demo.items("models")}
    assert kubectl.items("clustermodels") == []
