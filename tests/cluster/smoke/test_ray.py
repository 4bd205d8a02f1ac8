"""Ray in Pods of the product's image: a head and two raylets, as objects of our own and by KubeRay's operator."""

import json

import pytest

from tests.cluster.smoke.test_workloads import service
from tests.cluster.stand.cluster import Cluster
from tests.cluster.stand.kubectl import Kubectl, Object, pod
from tests.cluster.stand.layout import StandError
from tests.cluster.stand.waiting import until

IMAGE = "localhost/ai-models-jobs:1"
START_SECONDS = 240.0
NODES = ["node-a", "node-b", "node-c"]
ONE_TASK_ON_EACH = """
import json, os, ray
ray.init(address="auto", log_to_driver=False)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On
where = ray.remote(num_cpus=0)(lambda: os.environ["NODE_NAME"])
nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
print(json.dumps(sorted(ray.get([where.options(scheduling_strategy=On(node, soft=False)).remote() for node in nodes]))))
"""

pytestmark = pytest.mark.timeout(600)


def container(**more: object) -> Object:
    names = {"NODE_NAME": "spec.nodeName", "POD_IP": "status.podIP"}
    env = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in names.items()]
    env += [{"name": "RAY_USAGE_STATS_ENABLED", "value": "0"}]
    return {"env": env, "imagePullPolicy": "Never", **more}


def raylet(name: str, node: str, arguments: str) -> Object:
    start = f"exec ray start --block --num-cpus=1 --object-store-memory=80000000 --node-ip-address=$POD_IP {arguments}"
    where = {"kubernetes.io/hostname": node}
    return pod(name, IMAGE, command=["bash", "-c", start], nodeSelector=where, container=container())


def tasks(space: Kubectl, head: str) -> list[str]:
    """Names of the nodes on which one task each ran, once three raylets are there."""

    def ran() -> list[str]:
        done = space.attempt("exec", head, "--", "python3", "-c", ONE_TASK_ON_EACH)
        found: list[str] = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else []
        return found if len(found) == len(NODES) else []

    return until(ran, what="one task on each node", seconds=START_SECONDS, pause=2.0)


def test_head_and_raylets_in_pods_run_a_task_on_each_node(space: Kubectl) -> None:
    space.apply(raylet("head", NODES[0], "--head --port=6379 --include-dashboard=false"))
    ray = service("head", 6379)
    ray["spec"] |= {"clusterIP": "None", "ports": [{"port": 6379}]}
    space.apply(ray)
    space.ready("head")
    address = space.get("pod", "head")["status"]["podIP"]
    space.apply(*(raylet(f"raylet-{index}", NODES[index], f"--address={address}:6379") for index in (1, 2)))
    space.ready("raylet-1", "raylet-2")

    assert tasks(space, "head") == NODES


def group(node: str | None) -> Object:
    spread = {"labelSelector": {"matchLabels": {"ray.io/cluster": "ray"}}, "topologyKey": "kubernetes.io/hostname"}
    anti = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [spread]}}
    resources = {"requests": {"cpu": "100m", "memory": "500Mi"}, "limits": {"cpu": "1", "memory": "2Gi"}}
    spec = {
        "affinity": anti,
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "ray", "image": IMAGE, "resources": resources, **container()}],
    }
    if node is not None:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    start = {"num-cpus": "1", "object-store-memory": "80000000"}
    return {"rayStartParams": start, "template": {"spec": spec}}


def test_kuberay_makes_a_ray_cluster_over_the_nodes(space: Kubectl, stand: Cluster) -> None:
    if not stand.addons.kuberay.running():
        stand.addons.start_kuberay()
    workers = {**group(None), "groupName": "workers", "replicas": 2, "minReplicas": 2, "maxReplicas": 2}
    spec = {"rayVersion": "2.60.0", "headGroupSpec": group(NODES[0]), "workerGroupSpecs": [workers]}
    space.apply({"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "ray"}, "spec": spec})
    try:
        space.until(
            "raycluster", "ray", lambda found: found.get("status", {}).get("state") == "ready", seconds=START_SECONDS
        )
    except StandError as error:
        raise StandError(f"{error}\n{stand.addons.kuberay.tail()}") from None
    head = space.items("pods", "ray.io/node-type=head")[0]["metadata"]["name"]
    found = tasks(space, head)
    space("delete", "raycluster", "ray", "--wait=true")

    assert found == NODES
