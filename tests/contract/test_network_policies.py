"""What the chart's NetworkPolicies let through: all that the parts need of each other, and nothing beside it."""

from collections.abc import Mapping

import pytest

from tests.contract.test_chart import IMAGES, NODE_CACHE, S3, Object, render
from tests.support.network_policies import End, allowed

HOME, NODES = "home", "d8-ai-models-node"
ON = {**IMAGES, "networkPolicies.enabled": "true"}
WHOLE = {**ON, **NODE_CACHE, **S3, "artifacts.endpoint": "https://s3.example.com:9000", "monitoring.enabled": "true"}
OUTSIDE = End()
TENANT = End("team", {"app": "web"})
PARTS = {name: End(HOME, {"app": f"ai-models-{name}"}) for name in ("operator", "webhook", "dmcr", "uninstall")}
RAY = {name: End(HOME, {"app": f"ai-models-{name}"}) for name in ("ray-head", "ray-worker")}
ON_NODES = {name: End(NODES, {"app": f"ai-models-{name}"}) for name in ("node-csi", "node-agent")}
ENDS = {**PARTS, **RAY, **ON_NODES, "outside": OUTSIDE, "tenant": TENANT}
NEEDED = [
    ("operator", "outside", 6443),
    ("operator", "outside", 9000),
    ("operator", "ray-head", 18270),
    ("operator", "ray-head", 8265),
    ("operator", "dmcr", 5000),
    ("operator", "webhook", 8443),
    ("webhook", "outside", 6443),
    ("outside", "webhook", 8443),
    ("tenant", "webhook", 8443),
    ("tenant", "dmcr", 5000),
    ("dmcr", "outside", 9000),
    ("ray-head", "outside", 443),
    ("ray-head", "outside", 9000),
    ("ray-worker", "outside", 443),
    ("ray-worker", "outside", 9000),
    ("ray-worker", "ray-head", 6379),
    ("ray-worker", "ray-worker", 10500),
    ("ray-head", "ray-worker", 6380),
    ("ray-head", "node-agent", 10002),
    ("node-agent", "ray-head", 6379),
    ("node-agent", "dmcr", 5000),
    ("node-agent", "webhook", 8443),
    ("node-agent", "outside", 9000),
    ("node-csi", "outside", 6443),
    ("uninstall", "outside", 443),
    ("tenant", "operator", 8080),
    ("tenant", "node-csi", 8080),
    ("tenant", "ray-head", 18270),
]
"""Metrics are for a Prometheus wherever it is; the coordinator's want a token."""
UNWANTED = [
    ("tenant", "ray-head", 8265),
    ("tenant", "ray-head", 6379),
    ("tenant", "ray-worker", 10002),
    ("tenant", "node-agent", 10002),
    ("outside", "ray-head", 8265),
    ("webhook", "ray-head", 18270),
    ("dmcr", "outside", 443),
    ("dmcr", "ray-head", 18270),
    ("ray-worker", "outside", 6443),
    ("ray-worker", "operator", 8081),
    ("ray-head", "dmcr", 5000),
    ("node-agent", "outside", 443),
    ("node-agent", "outside", 6443),
    ("node-csi", "ray-head", 6379),
    ("operator", "ray-worker", 10002),
    ("operator", "tenant", 8080),
]


def policies(values: Mapping[str, str]) -> list[Object]:
    return [found for found in render(values) if found["kind"] == "NetworkPolicy"]


@pytest.fixture(scope="module")
def whole() -> list[Object]:
    return policies(WHOLE)


@pytest.mark.parametrize(("source", "target", "port"), NEEDED)
def test_what_parts_need_is_let_through(whole: list[Object], source: str, target: str, port: int) -> None:
    assert allowed(whole, ENDS[source], ENDS[target], port)


@pytest.mark.parametrize(("source", "target", "port"), UNWANTED)
def test_nothing_else_is_let_through(whole: list[Object], source: str, target: str, port: int) -> None:
    assert not allowed(whole, ENDS[source], ENDS[target], port)


def test_names_are_resolved_by_all_and_pods_that_nobody_knows_are_cut_off(whole: list[Object]) -> None:
    for end in (*PARTS.values(), *RAY.values(), *ON_NODES.values()):
        assert allowed(whole, end, End("kube-system"), 53, "UDP")
    for namespace in (HOME, NODES):
        assert not allowed(whole, End(namespace, {"app": "other"}), OUTSIDE, 443)
        assert not allowed(whole, OUTSIDE, End(namespace, {"app": "other"}), 443)


def test_without_monitoring_the_coordinator_is_for_the_operator_alone() -> None:
    found = policies(ON)

    assert allowed(found, PARTS["operator"], RAY["ray-head"], 18270)
    assert not allowed(found, TENANT, RAY["ray-head"], 18270)
    assert not allowed(found, PARTS["dmcr"], OUTSIDE, 443), "no bucket"
    assert {one["metadata"]["namespace"] for one in found} == {HOME}


def test_dashboard_is_open_to_the_operator_of_kuberay() -> None:
    assert allowed(policies({**ON, "ray.provider": "kuberay"}), TENANT, RAY["ray-head"], 8265)


def test_ports_of_mirrors_proxies_and_other_coordinators_are_let_through() -> None:
    more = {
        "sources.huggingFace.endpoint": "https://mirror.example.com:8444",
        "proxy.httpsProxy": "http://proxy.example.com:3128",
    }
    found = policies({**ON, **more})
    elsewhere = {"dataplane.enabled": "false", "coordinator.url": "https://ray.example.com:18271"}
    apart = policies({**ON, **elsewhere, "delivery.type": "NodeCache"})

    for port in (443, 8444, 3128):
        assert allowed(found, RAY["ray-worker"], OUTSIDE, port)
        assert allowed(found, RAY["ray-head"], OUTSIDE, port)
    assert allowed(apart, PARTS["operator"], OUTSIDE, 18271)
    assert not allowed(policies(ON), PARTS["operator"], OUTSIDE, 18271)


@pytest.mark.parametrize(
    "values", [WHOLE, {**WHOLE, "ray.provider": "kuberay"}, ON], ids=["nodes", "kuberay", "claims"]
)
def test_every_port_of_ours_is_reached_by_somebody(values: Mapping[str, str]) -> None:
    objects = render(values)
    found = [one for one in objects if one["kind"] == "NetworkPolicy"]
    kinds = ("Deployment", "DaemonSet")
    served = [
        (End(one["metadata"]["namespace"], one["spec"]["template"]["metadata"]["labels"]), port["containerPort"])
        for one in objects
        if one["kind"] in kinds
        for container in one["spec"]["template"]["spec"]["containers"]
        for port in container["ports"]
    ]
    ends = list(ENDS.values())

    assert served
    for end, port in served:
        assert any(allowed(found, source, end, port) for source in ends), (end.labels["app"], port)


def test_there_is_none_by_default() -> None:
    assert policies(IMAGES) == []
