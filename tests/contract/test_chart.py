"""What the chart renders, by the real Helm: settings that are needed, settings that are refused, nothing secret."""

import json
import os
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from aimodels_core import names
from aimodels_core.names import HomeSecret
from aimodels_core.proxies import Proxy
from aimodels_jobs import host_options
from aimodels_nodecache import settings as node_settings
from aimodels_operator import registration, settings, uninstall, webhook_settings
from tests.support import binaries, definitions

CHART = definitions.ROOT / "charts" / "ai-models"
IMAGES = {f"images.{name}": f"registry.example.com/{name}:1" for name in ("operator", "jobs", "nodecache", "dmcr")}
HUB = {
    f"sources.huggingFace.{key}": value for key, value in (("credentialsSecretName", "hub"), ("caSecretName", "hub-ca"))
}
S3 = {
    "artifacts.bucket": "models",
    "artifacts.endpoint": "https://s3.example.com",
    "artifacts.credentialsSecretName": "keys",
    "artifacts.caSecretName": "ca",
}
NODE_CACHE = {"delivery.type": "NodeCache"}
COORDINATOR = {"dataplane.enabled": "false", "coordinator.url": "https://c:1"}
UNDELIVERED = {"delivery.enabled": "false"}
VARIANTS = [pytest.param(IMAGES, id="embedded"), pytest.param({**IMAGES, **S3, **HUB}, id="s3")]
Object = dict[str, Any]


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    program = binaries.path("helm")
    quiet = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    return subprocess.run([program, *words], env=quiet, capture_output=True, text=True, timeout=60, check=False)


def template(values: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    chosen = [f"--set={name}={value}" for name, value in values.items()]
    return helm("template", "ai-models", str(CHART), "--namespace=home", "--kube-version=1.36.3", *chosen)


def render(values: Mapping[str, str]) -> list[Object]:
    done = template(values)
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def pods(objects: list[Object], *kinds: str) -> Iterator[tuple[str, Object]]:
    """Names of Deployments, or of other kinds, and specs of their Pods."""
    for found in objects:
        if found["kind"] in (kinds or ("Deployment",)):
            yield found["metadata"]["name"], found["spec"]["template"]["spec"]


def container(objects: list[Object], name: str) -> Object:
    """The one container of a Deployment."""
    (found,) = dict(pods(objects))[name]["containers"]
    return dict(found)


def environment(objects: list[Object], name: str) -> dict[str, str]:
    """What the process of a Deployment is told, with a name for what Kubernetes fills in."""
    return {entry["name"]: entry.get("value", "filled-in") for entry in container(objects, name)["env"]}


def test_lint_finds_nothing() -> None:
    done = helm("lint", "--strict", str(CHART), *(f"--set={name}={value}" for name, value in IMAGES.items()))

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", IMAGES)
def test_images_are_required(name: str) -> None:
    done = template({**IMAGES, **NODE_CACHE, name: ""})

    assert done.returncode != 0
    assert f"{name}: want an image, got nothing" in done.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"logLevel": "Trace"}, "at '/logLevel': value must be one of 'Debug', 'Info', 'Warn', 'Error'"),
        ({"delivery.type": "HostPath"}, "at '/delivery/type': value must be one of 'NodeCache', 'SharedPVC'"),
        ({"artifacts.credentialSecretName": "keys"}, "additional properties 'credentialSecretName' not allowed"),
        (
            {"artifacts.bucket": "models"},
            "artifacts.credentialsSecretName: want a Secret of d8-system with keys accessKey",
        ),
        ({"artifacts.endpoint": "https://s3.example.com"}, "artifacts.endpoint: want artifacts.bucket beside it"),
        ({"artifacts.caSecretName": "ca"}, "artifacts.caSecretName: want artifacts.bucket beside it"),
        (
            {**S3, "artifacts.endpoint": "ftp://x"},
            "artifacts.endpoint: want https://<host>, without a path, got ftp://x",
        ),
        ({**S3, "artifacts.endpoint": "https://key@x"}, "artifacts.endpoint: want https://<host>, without a path"),
        (
            {**S3, "artifacts.credentialsSecretName": "d8-system/keys"},
            "artifacts.credentialsSecretName: want the name of a Secret",
        ),
        ({"artifacts.capacityLimit": "lots"}, "capacityLimit: want a number of bytes such as 500Gi or 1Ti, got lots"),
        ({"artifacts.capacityLimit": "-1"}, "at '/artifacts/capacityLimit': minimum: got -1, want 1"),
        (
            {"embedded.accessMode": "RWO"},
            "at '/embedded/accessMode': value must be one of 'ReadWriteMany', 'ReadWriteOnce'",
        ),
        ({"embedded.size": ""}, "at '/embedded/size': minLength: got 0, want 1"),
        ({"sources.pickle": "Maybe"}, "at '/sources/pickle': value must be one of 'Allow', 'Refuse'"),
        (
            {"sources.allowedPrivateCIDRs[0]": "10.0.0.0"},
            "sources.allowedPrivateCIDRs: want a list of networks such as 10",
        ),
        ({"sources.huggingFace.endpoint": "huggingface.co"}, "sources.huggingFace.endpoint: want https://<host>"),
        (
            {"proxy.httpsProxy": "http://me:s3cr3t@proxy:1"},
            "proxy.httpsProxy: want http://<host>:<port>, without credentials",
        ),
        ({"proxy.httpProxy": "https://proxy:1"}, "proxy.httpProxy: want http://<host>:<port>, without credentials"),
        ({"proxy.noProxy[0]": "a b"}, "proxy.noProxy: want a list of hosts, domains, addresses and networks"),
        ({"ray.provider": "theirs"}, "at '/ray/provider': value must be one of 'builtin', 'kuberay'"),
        ({"ray.workers.replicas": "0"}, "at '/ray/workers/replicas': minimum: got 0, want 1"),
        (
            {"dataplane.enabled": "false"},
            "coordinator.url: want https://<host>:<port>, since dataplane.enabled is false",
        ),
        ({"coordinator.url": "http://c:1"}, "coordinator.url: want https://<host>:<port>, got http://c:1"),
    ],
)
def test_bad_settings_are_refused_in_clear_words(change: Mapping[str, str], words: str) -> None:
    done = template({**IMAGES, **change})

    assert done.returncode != 0
    assert words in done.stderr
    assert "s3cr3t" not in done.stderr


def test_without_processes_no_image_is_needed() -> None:
    objects = render({"operator.enabled": "false", "dataplane.enabled": "false"})

    assert list(pods(objects)) == []
    assert {found["kind"] for found in objects} >= {
        "CustomResourceDefinition",
        "ValidatingAdmissionPolicy",
        "ClusterRole",
    }


@pytest.mark.parametrize("values", VARIANTS)
def test_no_secret_is_rendered(values: Mapping[str, str]) -> None:
    assert "Secret" not in {found["kind"] for found in render(values)}


@pytest.mark.parametrize("values", VARIANTS)
def test_pods_are_restricted_and_bounded(values: Mapping[str, str]) -> None:
    for name, spec in pods(render(values), "Deployment", "Job"):
        (one,) = spec["containers"]
        assert spec["securityContext"]["runAsNonRoot"], name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        confined = {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert one["securityContext"] == confined, name
        assert spec["enableServiceLinks"] is False, name
        assert "readinessProbe" in one or spec.get("restartPolicy") == "Never", name
        assert one["resources"]["limits"]["memory"], name
        assert set(one["resources"]["requests"]) == {"cpu", "memory"}, name


def test_of_what_runs_on_nodes_only_the_driver_has_rights_there() -> None:
    found = [one for one in render({**IMAGES, **NODE_CACHE}) if one["kind"] == "DaemonSet"]
    specs = {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in found}
    (driver,), (agent,) = (specs[f"ai-models-node-{name}"]["containers"] for name in ("csi", "agent"))

    assert {one["metadata"]["namespace"] for one in found} == {names.NODE_NAMESPACE}
    assert driver["securityContext"]["privileged"]
    assert driver["securityContext"]["readOnlyRootFilesystem"]
    assert agent["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert specs["ai-models-node-agent"]["securityContext"]["runAsNonRoot"]
    assert specs["ai-models-node-agent"]["automountServiceAccountToken"] is False
    assert specs["ai-models-node-csi"]["priorityClassName"] == "system-node-critical"
    for name, spec in specs.items():
        (one,) = spec["containers"]
        assert one["readinessProbe"], name
        assert one["resources"]["limits"]["memory"], name
        assert spec["nodeSelector"] == {names.LABEL_CACHE: "true"}, name


def test_only_operator_and_webhook_have_a_token_for_the_api_server_and_what_uninstalls_them() -> None:
    objects = render(IMAGES)
    bound = {subject["name"] for found in objects for subject in found.get("subjects", ())}

    assert bound == {"ai-models-operator", "ai-models-webhook", "ai-models-uninstall"}
    for name, spec in pods(objects):
        assert spec.get("automountServiceAccountToken", True) is (spec["serviceAccountName"] in bound), name


@pytest.mark.parametrize("values", VARIANTS)
def test_pods_wait_for_secrets_that_the_operator_makes(values: Mapping[str, str]) -> None:
    volumes = [volume for _, spec in pods(render(values)) for volume in spec["volumes"] if "secret" in volume]

    assert {volume["secret"]["secretName"] for volume in volumes} <= set(HomeSecret)
    assert [volume for volume in volumes if volume["secret"]["optional"]] == []


@pytest.mark.parametrize("values", VARIANTS)
def test_every_volume_is_mounted_and_every_mount_has_a_volume(values: Mapping[str, str]) -> None:
    for name, spec in pods(render(values)):
        (one,) = spec["containers"]
        assert sorted(mount["name"] for mount in one["volumeMounts"]) == sorted(v["name"] for v in spec["volumes"]), (
            name
        )


@pytest.mark.parametrize("values", VARIANTS)
def test_the_operator_understands_what_it_is_told(values: Mapping[str, str]) -> None:
    found = settings.from_env(environment(render({**values, "artifacts.capacityLimit": "1Ti"}), "ai-models-operator"))

    assert found.capacity_limit == 2**40
    assert found.coordinator_url == "https://ai-models-coordinator.home.svc:18270"
    assert bool(found.s3_secret) == bool(found.dmcr_redirect_url) == ("artifacts.bucket" in values)


def test_shared_claims_are_switched_on_with_their_rights() -> None:
    objects = render({**IMAGES, "delivery.sharedPVCStorageClassName": "nfs"})
    found = settings.from_env(environment(objects, "ai-models-operator"))
    name = "d8:ai-models:operator:sharedpvc"

    assert (found.delivery_type, found.shared_pvc_class, found.shared_pvc_grace_seconds) == ("SharedPVC", "nfs", 600)
    assert found.shared_pvc_image == IMAGES["images.jobs"]
    assert {one["kind"] for one in objects if one["metadata"]["name"] == name} == {"ClusterRole", "ClusterRoleBinding"}
    assert name not in {one["metadata"]["name"] for one in render({**IMAGES, **UNDELIVERED})}
    assert "delivery.type" in template({**IMAGES, **COORDINATOR}).stderr


def test_delivery_is_switched_on_with_its_rights_and_policies() -> None:
    objects = render({**IMAGES, **NODE_CACHE, "delivery.maxGateWait": "1h", "delivery.nodeCacheSize": "1Ti"})
    found = settings.from_env(environment(objects, "ai-models-operator"))
    made = {(one["kind"], one["metadata"]["name"]) for one in objects}
    without = {(one["kind"], one["metadata"]["name"]) for one in render({**IMAGES, **UNDELIVERED})}

    assert (found.delivery_type, found.max_gate_wait, found.node_cache_size) == ("NodeCache", 3600, 1 << 40)
    assert {name for kind, name in made - without if kind == "ValidatingAdmissionPolicy"} == {
        "ai-models-resolved-is-ours",
        "ai-models-operator-and-pods",
        "ai-models-operator-and-deletions",
        "ai-models-operator-and-workloads",
    }
    assert ("ClusterRole", "d8:ai-models:operator:delivery") in made - without


def test_webhooks_are_registered_by_the_operator_and_gone_before_anything_else() -> None:
    objects = render(IMAGES)
    operator = settings.from_env(environment(objects, "ai-models-operator"))
    webhook = webhook_settings.from_env(environment(objects, "ai-models-webhook"))
    kept, hook = (found for found in objects if found["kind"] == "MutatingWebhookConfiguration")

    assert operator.webhook_url == "https://ai-models-webhook.home.svc"
    assert webhook.delivery_type == operator.delivery_type
    assert kept["metadata"]["name"] == hook["metadata"]["name"] == registration.CONFIGURATION
    assert "webhooks" not in kept, "Helm leaves what the operator fills in"
    assert "webhooks" not in hook
    assert hook["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    assert registration.is_leaving(hook)
    assert not registration.is_leaving(kept)
    assert "MutatingWebhookConfiguration" not in {found["kind"] for found in render({**IMAGES, **UNDELIVERED})}


@pytest.mark.parametrize("values", [IMAGES, {**IMAGES, **COORDINATOR, **UNDELIVERED}])
def test_before_an_uninstall_a_bounded_job_runs_with_rights_of_its_own(values: Mapping[str, str]) -> None:
    ours = ("ai-models-uninstall", "d8:ai-models:uninstall")
    hooks = {one["kind"]: one for one in render(values) if one["metadata"]["name"] in ours}
    job = hooks["Job"]["spec"]
    told = job["template"]["spec"]["containers"][0]["env"]
    marks = {kind: one["metadata"]["annotations"] for kind, one in hooks.items()}

    assert hooks.keys() == {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Job"}
    assert {mark["helm.sh/hook"] for mark in marks.values()} == {"pre-delete"}
    assert {mark["helm.sh/hook-delete-policy"] for mark in marks.values()} == {"before-hook-creation,hook-succeeded"}
    assert {kind for kind, mark in marks.items() if mark["helm.sh/hook-weight"] == "2"} == {"Job"}
    assert (job["backoffLimit"] + 1) * uninstall.DEADLINE_SECONDS < job["activeDeadlineSeconds"] < 300
    assert uninstall.from_env({one["name"]: one.get("value", "filled-in") for one in told}).identity == "filled-in"
    assert "Job" not in {one["kind"] for one in render({"operator.enabled": "false", "dataplane.enabled": "false"})}


def test_the_webhook_understands_what_it_is_told() -> None:
    found = webhook_settings.from_env(environment(render({**IMAGES, "logLevel": "Debug"}), "ai-models-webhook"))

    assert found.log_level == "Debug"


@pytest.mark.parametrize("values", VARIANTS)
def test_the_coordinator_understands_what_it_is_told_and_its_head_has_the_files(values: Mapping[str, str]) -> None:
    sources = {"sources.pickle": "Refuse", "sources.allowedPrivateCIDRs[0]": "10.0.0.0/8"}
    proxy = {"proxy.httpsProxy": "http://proxy:3128", "proxy.httpProxy": "http://proxy:3129"}
    without = {"proxy.noProxy[0]": "10.0.0.0/8", "proxy.noProxy[1]": ".lan"}
    objects = render({**values, **sources, **proxy, **without})
    told = settings.from_env(environment(objects, "ai-models-operator"))
    words = settings.coordinator_arguments(told)
    found = host_options.parse(words)
    mounted = {Path(mount["mountPath"]) for mount in container(objects, "ai-models-ray-head")["volumeMounts"]}
    named = [Path(word) for word in words if word.startswith("/")]

    assert found.settings.proxies.find("hub.org", 443, tls=True) == Proxy("proxy", 3128)
    assert found.settings.proxies.find("hub.org", 80, tls=False) == Proxy("proxy", 3129)
    assert found.settings.proxies.find("10.1.1.1", 443, tls=True) is None
    assert found.settings.proxies.find("a.lan", 80, tls=False) is None
    assert found.settings.refuse_pickle
    assert found.settings.private_cidrs == ("10.0.0.0/8",)
    assert [path for path in named if not {path, path.parent} & mounted] == []


def test_head_and_workers_see_the_store_and_authorities_at_the_same_places() -> None:
    for values in (IMAGES, {**IMAGES, **S3, **HUB}):
        objects = render(values)
        head, worker = (container(objects, f"ai-models-ray-{name}")["volumeMounts"] for name in ("head", "worker"))
        keys = [mount for mount in worker if mount["mountPath"] in ("/etc/ai-models/s3", "/etc/ai-models/hub")]

        assert [mount for mount in worker if mount not in head] == []
        assert keys == []


def test_the_registry_only_reads_and_asks_our_issuer() -> None:
    for values in (IMAGES, {**IMAGES, **S3}):
        (config,) = (found for found in render(values) if found["kind"] == "ConfigMap")
        told = yaml.safe_load(config["data"]["config.yml"])

        assert told["storage"]["maintenance"]["readonly"] == {"enabled": True}
        assert told["storage"]["delete"] == {"enabled": False}
        assert "cache" not in told["storage"]
        assert told["auth"]["token"]["realm"] == "https://ai-models-webhook.home.svc/token"
        assert ("s3" in told["storage"], "filesystem" in told["storage"]) == (values is not IMAGES, values is IMAGES)


def test_a_changed_registry_setting_rolls_its_pods() -> None:
    def checksum(values: Mapping[str, str]) -> str:
        (found,) = (one for one in render(values) if one["kind"] == "Deployment" and "dmcr" in one["metadata"]["name"])
        return str(found["spec"]["template"]["metadata"]["annotations"]["checksum/config"])

    assert checksum({**IMAGES, "logLevel": "Debug"}) != checksum(IMAGES)


def test_the_store_is_kept_and_is_there_only_without_a_bucket() -> None:
    (claim,) = (found for found in render(IMAGES) if found["kind"] == "PersistentVolumeClaim")

    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert "storageClassName" not in claim["spec"]
    assert "PersistentVolumeClaim" not in {found["kind"] for found in render({**IMAGES, **S3})}


def test_whoever_uses_a_claim_that_one_node_has_is_on_that_node() -> None:
    objects = render({**IMAGES, "embedded.accessMode": "ReadWriteOnce"})
    (claim,) = (found for found in objects if found["kind"] == "PersistentVolumeClaim")
    templates = {each["metadata"]["name"]: each["spec"]["template"] for each in objects if each["kind"] == "Deployment"}
    users = {
        name
        for name, found in templates.items()
        if any("persistentVolumeClaim" in volume for volume in found["spec"]["volumes"])
    }

    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert users == {"ai-models-ray-head", "ai-models-ray-worker", "ai-models-dmcr"}
    for name in users:
        (rule,) = templates[name]["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert rule["topologyKey"] == "kubernetes.io/hostname"
        assert rule["labelSelector"]["matchLabels"].items() <= templates[name]["metadata"]["labels"].items()
    for values in (IMAGES, {**IMAGES, **S3, "embedded.accessMode": "ReadWriteOnce"}):
        assert [name for name, spec in pods(render(values)) if "affinity" in spec] == []


def test_defaults_are_in_the_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    assert set(values) == set(schema["properties"]) - {"global", "aiModels"}
    for name, section in values.items():
        if isinstance(section, dict):
            assert set(section) == set(schema["properties"][name]["properties"]), name


def test_kuberay_keeps_the_same_pods_in_a_cluster_that_is_named_after_what_is_in_it() -> None:
    kuberay = {**IMAGES, **S3, "ray.provider": "kuberay"}
    builtin, objects = dict(pods(render({**IMAGES, **S3}))), render(kuberay)
    (cluster,) = [found for found in objects if found["kind"] == "RayCluster"]
    head, (workers,) = cluster["spec"]["headGroupSpec"], cluster["spec"]["workerGroupSpecs"]

    assert builtin["ai-models-ray-head"] == head["template"]["spec"]
    assert builtin["ai-models-ray-worker"] == workers["template"]["spec"]
    assert not {"ai-models-ray-head", "ai-models-ray-worker"} & dict(pods(objects)).keys()
    assert workers["minReplicas"] == workers["maxReplicas"] == 2
    locked = tomllib.loads((definitions.ROOT / "uv.lock").read_text())["package"]
    assert [cluster["spec"]["rayVersion"]] == [one["version"] for one in locked if one["name"] == "ray"]
    other = render({**kuberay, "images.jobs": "registry.example.com/jobs:2"})
    assert cluster["metadata"]["name"] not in [found["metadata"]["name"] for found in other]


@pytest.mark.parametrize("folder", ["/var/lib/k0s/kubelet", "/var/snap/microk8s/common/var/lib/kubelet"])
def test_o68_kubelets_folder_is_the_one_that_is_set(folder: str) -> None:
    objects = render({**IMAGES, **NODE_CACHE, "kubeletRootDir": folder})
    (driver,) = (
        one for one in objects if (one["kind"], one["metadata"]["name"]) == ("DaemonSet", "ai-models-node-csi")
    )
    spec = driver["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    (mount,) = (one for one in container["volumeMounts"] if one["name"] == "kubelet")

    assert (mount["mountPath"], mount["mountPropagation"]) == (folder, "Bidirectional")
    assert {one["name"]: one["hostPath"]["path"] for one in spec["volumes"] if "hostPath" in one}["kubelet"] == folder
    assert {one["name"]: one.get("value") for one in container["env"]}["AI_MODELS_KUBELET_DIR"] == folder
    assert '"/var/lib/kubelet' not in json.dumps(objects)
    told = node_settings.from_env(
        {one["name"]: one.get("value", "node-a") for one in container["env"]} | {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    )
    assert told.kubelet_dir == folder
