"""Workloads, Services, kubectl's own commands and admission by the API server behave as on any cluster."""

from pathlib import Path

from tests.cluster.stand.cluster import Cluster
from tests.cluster.stand.kubectl import Kubectl, Object, pod
from tests.cluster.stand.waiting import until

SERVE = "mkdir -p /tmp/www && hostname > /tmp/www/index.html && exec httpd -f -p 8080 -h /tmp/www"


def deployment(name: str, replicas: int) -> Object:
    template = pod(name, command=["sh", "-c", SERVE])
    ready = {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1}
    template["spec"]["containers"][0]["readinessProbe"] = ready
    template["spec"]["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": name}},
        }
    ]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": template["metadata"], "spec": template["spec"]},
        },
    }


def service(name: str, port: int = 8080) -> Object:
    spec = {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": port}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def test_deployment_spreads_over_three_nodes_and_its_service_answers_by_name_from_each(space: Kubectl) -> None:
    space.apply(deployment("web", 3), service("web"))
    space.rolled_out("deployment/web")
    pods = space.items("pods", "app=web")
    names = {entry["metadata"]["name"] for entry in pods}
    address = space.get("service", "web")["spec"]["clusterIP"]

    assert {entry["spec"]["nodeName"] for entry in pods} == {"node-a", "node-b", "node-c"}
    for name in names:
        found = space.exec(name, "nslookup", f"web.{space.namespace}.svc.cluster.local")
        assert address in found

    def all_answered() -> bool:
        answers.add(space.exec(min(names), "wget", "-q", "-O", "-", f"http://{address}").strip())
        return answers >= names

    answers: set[str] = set()
    until(all_answered, what="answers from Pods of every node", seconds=30)
    assert answers == names


def test_logs_exec_and_cp_reach_a_pod(space: Kubectl, tmp_path: Path) -> None:
    space.apply(pod("shell", command=["sh", "-c", "echo started; exec sleep infinity"]))
    space.ready("shell")
    there, back = tmp_path / "there", tmp_path / "back"
    there.write_bytes(bytes(range(256)) * 100)
    space("cp", str(there), "shell:/tmp/file")
    space("cp", "shell:/tmp/file", str(back))

    assert until(lambda: space("logs", "shell"), what="log", seconds=10) == "started\n"
    assert space.exec("shell", "cat", stdin="through stdin") == "through stdin"
    assert back.read_bytes() == there.read_bytes()


def test_image_of_the_users_manifests_comes_from_registry_example_com(space: Kubectl) -> None:
    wanted = pod("embedder", "registry.example.com/embedder:latest")
    wanted["spec"]["containers"][0]["imagePullPolicy"] = "Always"
    space.apply(wanted)
    space.ready("embedder")

    status = space.get("pod", "embedder")["status"]["containerStatuses"][0]
    assert status["imageID"].startswith("registry.example.com/embedder@sha256:")


def test_names_of_model_hosts_lead_into_the_stand(space: Kubectl) -> None:
    space.apply(pod("dns"))
    space.ready("dns")

    for name, address in {
        "huggingface.co": "10.77.0.4",
        "cas-bridge.xethub.hf.co": "10.77.0.4",
        "cdn-lfs-us-1.hf.co": "10.77.0.4",
        "registry.ollama.ai": "10.77.0.4",
        "ollama.com": "10.77.0.4",
        "s3.example.com": "10.77.0.3",
        "registry.example.com": "10.77.0.2",
    }.items():
        found = space.exec("dns", "nslookup", name)
        assert f"Address: {address}" in found, name


def test_scheduling_gate_holds_a_pod_until_it_is_removed(space: Kubectl) -> None:
    space.apply(pod("gated", schedulingGates=[{"name": "example.com/wait"}]))
    gated = space.until("pod", "gated", lambda found: found["status"].get("conditions"))
    space("patch", "pod", "gated", "--type=json", '--patch=[{"op":"remove","path":"/spec/schedulingGates"}]')
    space.ready("gated")

    assert [entry["reason"] for entry in gated["status"]["conditions"]] == ["SchedulingGated"]
    assert "nodeName" not in gated["spec"]


def test_resource_quota_refuses_a_claim(space: Kubectl) -> None:
    hard = {"requests.storage": "1Gi"}
    space.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small"}, "spec": {"hard": hard}})
    space.until("resourcequota", "small", lambda found: found.get("status", {}).get("used"))
    words = space.refusal(claim("large", "2Gi"))

    assert "exceeded quota: small" in words


def test_pod_security_levels_are_enforced(space: Kubectl) -> None:
    level = "pod-security.kubernetes.io/enforce=restricted"
    Kubectl()("label", "namespace", space.namespace, level)
    words = space.refusal(pod("root"))
    safe = {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "runAsUser": 65534,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    space.apply(pod("safe", container={"securityContext": safe}))
    space.ready("safe")

    assert 'violates PodSecurity "restricted:latest"' in words


def test_pod_reaches_the_api_server_by_its_service(space: Kubectl, stand: Cluster) -> None:
    space.apply(pod("client"))
    space.ready("client")
    script = "nc -w 5 kubernetes.default.svc.cluster.local 443 < /dev/null && echo connected"

    assert "connected" in space.exec("client", "sh", "-c", script)


def claim(name: str, size: str) -> Object:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": size}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}
