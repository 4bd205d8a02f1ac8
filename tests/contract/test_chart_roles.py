"""What the chart gives people and Pods around its processes: roles, budgets, priorities, pull secrets, notes."""

import itertools
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from aimodels_core import names
from aimodels_core.api import KINDS
from tests.contract.test_chart import CHART, IMAGES, S3, Object, helm, pods, render, template

READ = {"get", "list", "watch"}
WRITE = {"create", "update", "patch", "delete", "deletecollection"}
ALL_KINDS = {kind.plural for kind in KINDS}
KUBERAY = {**IMAGES, **S3, "ray.provider": "kuberay"}


def role(name: str) -> Object:
    (found,) = (one for one in render(IMAGES) if one["metadata"]["name"] == name and one["kind"] == "ClusterRole")
    return found


def verbs(name: str) -> dict[str, set[str]]:
    """Verbs by resource."""
    found: dict[str, set[str]] = {}
    for rule in role(name)["rules"]:
        assert rule["apiGroups"] == [names.GROUP]
        for resource in rule["resources"]:
            found.setdefault(resource, set()).update(rule["verbs"])
    return found


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("view", {**dict.fromkeys(ALL_KINDS, READ), "modelcatalogsources/catalog-import": {"get"}}),
        ("edit", {"models": WRITE}),
        ("admin", {"clustermodels": WRITE}),
        ("distribution:reader", {"clustermodels/distribution": {"get"}}),
    ],
)
def test_roles_for_people_allow_exactly_this(name: str, wanted: Mapping[str, set[str]]) -> None:
    assert verbs(f"d8:ai-models:{name}") == wanted


def test_roles_are_parts_of_those_of_the_cluster_but_not_the_one_for_other_clusters() -> None:
    def aggregated(name: str) -> list[str]:
        labels = role(f"d8:ai-models:{name}")["metadata"]["labels"]
        return [label for label in labels if label.startswith("rbac.authorization.k8s.io/")]

    for name in ("view", "edit", "admin"):
        assert aggregated(name) == [f"rbac.authorization.k8s.io/aggregate-to-{name}"]
    assert aggregated("distribution:reader") == []


def test_roles_are_there_without_processes_and_with_them() -> None:
    bare = {one["metadata"]["name"] for one in render({"operator.enabled": "false", "dataplane.enabled": "false"})}

    assert {f"d8:ai-models:{name}" for name in ("view", "edit", "admin", "distribution:reader")} <= bare


def test_nobody_is_given_status_finalizers_or_secrets() -> None:
    granted = itertools.chain(*(verbs(f"d8:ai-models:{name}") for name in ("view", "edit", "admin")))

    assert {resource for resource in granted if "/" in resource} == {"modelcatalogsources/catalog-import"}


def test_a_drain_leaves_one_of_each_pair() -> None:
    objects = render(IMAGES)
    paired = {one["metadata"]["name"]: one for one in objects if one.get("spec", {}).get("replicas", 1) > 1}
    budgets = {one["metadata"]["name"]: one["spec"] for one in objects if one["kind"] == "PodDisruptionBudget"}

    assert budgets.keys() == paired.keys() - {"ai-models-ray-worker"}
    for name, budget in budgets.items():
        assert budget["maxUnavailable"] == 1
        assert budget["selector"]["matchLabels"] == paired[name]["spec"]["selector"]["matchLabels"]
    for name, found in paired.items():
        (spread,) = found["spec"]["template"]["spec"]["topologySpreadConstraints"]
        assert spread["labelSelector"]["matchLabels"] == {"app": name}
        assert spread["whenUnsatisfiable"] == "ScheduleAnyway"


def specs(objects: list[Object]) -> dict[str, Object]:
    """Specs of all Pods, also of those that KubeRay keeps."""
    found = dict(pods(objects))
    for one in objects:
        if one["kind"] == "RayCluster":
            (workers,) = one["spec"]["workerGroupSpecs"]
            found["ai-models-ray-head"] = one["spec"]["headGroupSpec"]["template"]["spec"]
            found["ai-models-ray-worker"] = workers["template"]["spec"]
    return found


@pytest.mark.parametrize("values", [IMAGES, KUBERAY], ids=["builtin", "kuberay"])
def test_pull_secrets_and_priorities_reach_every_pod_and_are_absent_by_default(values: Mapping[str, str]) -> None:
    chosen = {
        "images.pullSecrets[0]": "registry",
        "images.pullSecrets[1]": "mirror",
        "priorityClassName": "system-cluster-critical",
        "ray.head.priorityClassName": "high",
        "ray.workers.priorityClassName": "low",
    }
    found = specs(render({**values, **chosen}))
    plain = specs(render(values))

    assert {name: spec["priorityClassName"] for name, spec in found.items()} == {
        "ai-models-operator": "system-cluster-critical",
        "ai-models-webhook": "system-cluster-critical",
        "ai-models-dmcr": "system-cluster-critical",
        "ai-models-ray-head": "high",
        "ai-models-ray-worker": "low",
    }
    for spec in found.values():
        assert spec["imagePullSecrets"] == [{"name": "registry"}, {"name": "mirror"}]
    assert [name for name, spec in plain.items() if spec.keys() & {"imagePullSecrets", "priorityClassName"}] == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"operator.enabled": "false"}, "dataplane.enabled: want operator.enabled beside it, since the operator makes"),
        ({"images.pullSecrets[0]": "d8-system/x"}, "images.pullSecrets: want a list of names of Secrets"),
        ({"images.pullSecrets": "x"}, "at '/images/pullSecrets': got string, want array"),
        ({"priorityClassName": "High"}, "priorityClassName: want the name of a PriorityClass, got High"),
        ({"ray.workers.priorityClassName": "High"}, "ray.workers.priorityClassName: want the name"),
        ({"images.pullSecrets[0]": "ok", "images.pullSecrets[1]": ""}, "images.pullSecrets: want a list of names"),
    ],
)
def test_what_cannot_be_is_refused(change: Mapping[str, str], words: str) -> None:
    assert words in template({**IMAGES, **change}).stderr


@pytest.mark.parametrize("namespace", ["default", "kube-system", "d8-system"])
def test_a_namespace_of_others_is_refused_with_what_to_write(namespace: str) -> None:
    images = [f"--set={name}={value}" for name, value in IMAGES.items()]
    done = helm("template", "x", str(CHART), f"--namespace={namespace}", "--kube-version=1.36.3", *images)

    assert done.returncode != 0
    assert f"namespace: want one of its own, got {namespace}" in done.stderr
    assert "write --namespace d8-ai-models --create-namespace" in done.stderr


def notes(values: Mapping[str, str], folder: Path) -> str:
    """What an install prints, rendered without a cluster."""
    copied = folder / uuid.uuid4().hex
    shutil.copytree(CHART, copied)
    (copied / "templates/shown.yaml").write_text('shown: {{ include "ai-models/templates/NOTES.txt" . | quote }}')
    chosen = [f"--set={name}={value}" for name, value in values.items()]
    words = ("--namespace=home", "--kube-version=1.36.3", "--show-only=templates/shown.yaml")
    done = helm("template", "x", str(copied), *words, *chosen)
    assert done.returncode == 0, done.stderr
    return str(yaml.safe_load(done.stdout)["shown"])


def test_notes_say_what_there_is_and_what_to_do_next(tmp_path: Path) -> None:
    plain = notes({**IMAGES, "delivery.enabled": "false"}, tmp_path)
    full = notes({**IMAGES, **S3}, tmp_path)
    manifest = plain.partition("<<END\n")[2].partition("    END\n")[0]

    assert yaml.safe_load(manifest)["kind"] == "Model"
    assert "the claim ai-models-store (100Gi), which an uninstall keeps" in plain
    assert "not delivered to workloads (delivery.enabled)" in plain
    assert "d8-system" not in plain
    assert "the bucket models." in full
    assert "Workloads get models (SharedPVC)" in full
    assert "expected in d8-system; nothing starts without them: keys, ca." in full


def test_notes_say_what_was_left_out(tmp_path: Path) -> None:
    shown = notes({"operator.enabled": "false", "dataplane.enabled": "false"}, tmp_path)

    assert "Left out: operator and webhook (operator.enabled), Ray, store and registry (dataplane.enabled)." in shown
