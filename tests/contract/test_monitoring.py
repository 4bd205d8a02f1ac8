"""What the chart tells Prometheus and Grafana: it fits Pods and metrics that are there, and promtool agrees."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.test_chart import CHART, IMAGES, S3, Object, helm, render
from tests.support import binaries, definitions

ALERTS = sorted((CHART / "files/alerts").glob("*.yaml"))
TESTS = Path(__file__).with_name("alerts")
DOCS = definitions.ROOT / "docs"
MONITORED = {**IMAGES, "monitoring.enabled": "true"}
NODES = {"delivery.type": "NodeCache"}
SILENT = {"ai-models-ray-worker", "ai-models-node-agent"}
"""They serve no metrics of ours: movers and agents tell the coordinator."""
PARTS = ("_bucket", "_sum", "_count")
"""Suffixes of what a histogram consists of."""


def rules(file: Path) -> list[Object]:
    return [rule for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]


def expressions() -> list[str]:
    """All that alerts and dashboard ask for."""
    dashboard = json.loads((CHART / "files/dashboard.json").read_text())
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    variables = [variable["query"]["query"] for variable in dashboard["templating"]["list"] if "datasource" in variable]
    return [*shown, *variables, *(rule["expr"] for file in ALERTS for rule in rules(file))]


def asked() -> set[str]:
    """Names of metrics in them."""
    found = set(re.findall(r"\b(?:aimodels|registry)_[a-z_]+\b(?=[{\[) ,=<>/+]|$)", "\n".join(expressions())))
    return {name.removesuffix(part) if (part := next(filter(name.endswith, PARTS), "")) else name for name in found}


def documented() -> set[str]:
    return set(re.findall(r"^\| `([a-z_]+)` \|", (DOCS / "metrics.md").read_text(encoding="utf-8"), re.M))


def monitors(objects: list[Object]) -> dict[str, Any]:
    return {found["metadata"]["name"]: found["spec"] for found in objects if found["kind"] == "PodMonitor"}


def promtool(*words: str) -> None:
    done = subprocess.run(
        [binaries.path("promtool"), *words], capture_output=True, text=True, timeout=60, check=False, env={}
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_is_made_for_prometheus_unless_asked() -> None:
    assert {found["kind"] for found in render(IMAGES)} & {"PodMonitor", "PrometheusRule"} == set()
    assert not [found for found in render(IMAGES) if "dashboard" in found["metadata"]["name"]]


def test_helm_finds_nothing_wrong() -> None:
    done = helm("lint", "--strict", str(CHART), *(f"--set={name}={value}" for name, value in MONITORED.items()))

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "values", [MONITORED, {**MONITORED, **S3}, {**MONITORED, **NODES}], ids=["embedded", "s3", "nodes"]
)
def test_every_process_is_scraped_where_its_pods_listen(values: Object) -> None:
    objects = render(values)
    listening = {
        found["spec"]["template"]["metadata"]["labels"]["app"]: {
            port["name"] for port in found["spec"]["template"]["spec"]["containers"][0]["ports"]
        }
        for found in objects
        if found["kind"] in {"Deployment", "DaemonSet"} and found["metadata"]["name"] not in SILENT
    }
    scraped = {
        spec["selector"]["matchLabels"]["app"]: {one["port"] for one in spec["podMetricsEndpoints"]}
        for spec in monitors(objects).values()
    }

    assert scraped.keys() == listening.keys()
    assert [app for app, ports in scraped.items() if not ports <= listening[app]] == []


def test_the_coordinator_is_scraped_by_tls_under_our_authority() -> None:
    (endpoint,) = monitors(render(MONITORED))["ai-models-coordinator"]["podMetricsEndpoints"]

    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"] == {
        "ca": {"secret": {"name": "ai-models-coordinator-tls", "key": "ca.crt"}},
        "serverName": "ai-models-coordinator.home.svc",
    }


def test_alerts_name_jobs_that_are_scraped() -> None:
    set_here = {
        rule["replacement"]
        for spec in monitors(render({**MONITORED, **NODES})).values()
        for rule in spec["podMetricsEndpoints"][0]["relabelings"]
        if rule["targetLabel"] == "job"
    }
    named = set(re.findall(r'job="([^"]+)"', "\n".join(expressions())))

    assert named <= set_here
    assert set_here - named == {"ai-models-operator", "ai-models-coordinator"}


def test_rules_are_installed_as_they_are_checked() -> None:
    objects = render({**MONITORED, **NODES, "monitoring.labels.release": "prometheus"})
    installed = [found for found in objects if found["kind"] == "PrometheusRule"]

    assert {found["metadata"]["name"]: found["spec"] for found in installed} == {
        f"ai-models-{file.stem}": yaml.safe_load(file.read_text()) for file in ALERTS
    }
    assert {found["metadata"]["labels"]["release"] for found in installed} == {"prometheus"}


def test_alerts_follow_what_is_installed() -> None:
    apart = {"dataplane.enabled": "false", "coordinator.url": "https://c:1", "delivery.enabled": "false"}
    elsewhere = {**MONITORED, **apart}
    names = {found["metadata"]["name"] for found in render(elsewhere) if found["kind"] == "PrometheusRule"}

    assert names == {"ai-models-operator"}
    assert monitors(render(elsewhere)).keys() == {"ai-models-operator", "ai-models-webhook"}
    nothing = {"operator.enabled": "false", "dataplane.enabled": "false", "monitoring.enabled": "true"}
    assert {found["kind"] for found in render(nothing)} & {"PodMonitor", "PrometheusRule"} == set()


def test_the_dashboard_is_installed_as_grafana_wants_it() -> None:
    (found,) = [one for one in render(MONITORED) if one["metadata"]["labels"].get("grafana_dashboard")]
    dashboard = json.loads(found["data"]["ai-models.json"])
    ids = [panel["id"] for panel in dashboard["panels"]]

    assert dashboard == json.loads((CHART / "files/dashboard.json").read_text())
    assert len(set(ids)) == len(ids)
    without = render({**MONITORED, "monitoring.dashboard": "false"})
    assert not [one for one in without if one["metadata"]["labels"].get("grafana_dashboard")]


def test_every_metric_that_is_asked_for_is_documented() -> None:
    assert len(asked()) > 25
    assert sorted(asked() - documented()) == []


def test_every_documented_metric_is_in_the_code() -> None:
    roots = ("core", "ray_jobs", "nodecache", "operator")
    sources = [path for root in roots for path in (definitions.ROOT / root).rglob("*.py")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    ours = {name.removeprefix("aimodels_") for name in documented() if name.startswith("aimodels_")}
    words = set(re.findall(r"[a-z_]+", code))
    words |= {word.removeprefix("aimodels_") for word in words}

    assert sorted(name for name in ours if not {name, name.removesuffix("_total")} & words) == []


def test_every_alert_has_its_runbook_and_every_runbook_its_alert() -> None:
    found = [rule for file in ALERTS for rule in rules(file)]
    sections = re.findall(r"^## (.+)$", (DOCS / "runbooks.md").read_text(encoding="utf-8"), re.M)

    assert sorted(sections) == sorted(rule["alert"] for rule in found)
    for rule in found:
        assert rule["annotations"]["runbook"] == f"docs/runbooks.md#{rule['alert'].lower()}"
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}
        assert rule["labels"]["severity"] in {"warning", "critical"}


@pytest.mark.parametrize("file", ALERTS, ids=lambda file: file.stem)
def test_promtool_takes_the_rules(file: Path) -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", str(file))


@pytest.mark.parametrize("file", sorted(TESTS.glob("*.yaml")), ids=lambda file: file.stem)
def test_alerts_begin_when_they_should(file: Path) -> None:
    promtool("test", "rules", str(file))
