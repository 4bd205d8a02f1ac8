"""Settings, roles, tokens of Secrets, versions of objects: what surrounds the decisions."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from aimodels_core.api import CLUSTER_MODEL, MODEL, ModelObject
from aimodels_core.errors import ClusterUnavailable, UsageError
from aimodels_core.names import HomeSecret
from aimodels_operator import rules
from aimodels_operator.coordinator import checked_url
from aimodels_operator.credentials import Tokens
from aimodels_operator.known import Known
from aimodels_operator.kube import _path
from aimodels_operator.meters import Meters
from aimodels_operator.settings import coordinator_arguments, from_env, sources_of
from tests.support import definitions
from tests.support.modelobjects import URL, raw_model

ROLES = definitions.ROOT / "charts" / "ai-models" / "roles"
ENV = {
    "AI_MODELS_COORDINATOR_URL": "https://c:1",
    "AI_MODELS_IDENTITY": "pod-0",
}


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("everywhere", rules.EVERYWHERE),
        ("at-home", rules.AT_HOME),
        ("webhook", rules.WEBHOOK),
        ("sharedpvc", rules.SHARED_PVC),
        ("delivery", rules.DELIVERY),
        ("node-cache", rules.NODE_CACHE),
        ("at-nodes", rules.AT_NODES),
        ("uninstall", rules.UNINSTALL),
        ("uninstall-at-home", rules.UNINSTALL_AT_HOME),
    ],
)
def test_roles_of_the_chart_are_what_our_processes_use(name: str, wanted: tuple[rules.Rule, ...]) -> None:
    found = yaml.safe_load((ROLES / f"{name}.yaml").read_text())

    assert [
        rules.Rule(group, tuple(rule["resources"]), tuple(rule["verbs"]), tuple(rule.get("resourceNames", ())))
        for rule in found
        for group in rule["apiGroups"]
    ] == list(wanted)


def test_secrets_are_only_got_one_by_one() -> None:
    assert rules.allowed("", "secrets", "get")
    assert not rules.allowed("", "secrets", "list")
    assert not rules.allowed("", "secrets", "watch")


def test_only_our_own_secrets_are_written() -> None:
    assert rules.allowed("", "secrets", "update", "ai-models-ray")
    assert not rules.allowed("", "secrets", "update", "ai-models-other")
    assert not rules.allowed("", "secrets", "update")
    assert not rules.allowed("", "secrets", "delete", "ai-models-ray")


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (
            ("ai.deckhouse.io", "models/status", "ns", "m"),
            "/apis/ai.deckhouse.io/v1alpha1/namespaces/ns/models/m/status",
        ),
        (("ai.deckhouse.io", "clustermodels", "", "m"), "/apis/ai.deckhouse.io/v1alpha1/clustermodels/m"),
        (("", "secrets", "ns", "s"), "/api/v1/namespaces/ns/secrets/s"),
        (("events.k8s.io", "events", "ns", ""), "/apis/events.k8s.io/v1/namespaces/ns/events"),
        (("", "secrets", "ns", "../x"), "/api/v1/namespaces/ns/secrets/..%2Fx"),
    ],
)
def test_paths(arguments: tuple[str, str, str, str], wanted: str) -> None:
    assert _path(*arguments) == wanted


def test_settings_have_defaults() -> None:
    found = from_env(ENV | {"HOME": "/root", "KUBECONFIG": "/k", "AI_MODELS_LISTEN_PORT": "0"})

    assert (found.namespace, found.listen_port, found.kubeconfig) == ("d8-ai-models", 0, "/k")


def test_the_capacity_limit_goes_to_the_coordinator_in_bytes() -> None:
    env = ENV | {"AI_MODELS_COORDINATOR_COMMAND": '["--store","/s"]'}

    assert coordinator_arguments(from_env(env)) == ("--store", "/s")
    limited = from_env(env | {"AI_MODELS_CAPACITY_LIMIT": "1Gi"})
    assert coordinator_arguments(limited) == ("--store", "/s", "--capacity-limit", "1073741824")


def test_durations_and_sizes_of_delivery_are_read() -> None:
    found = from_env(ENV | {"AI_MODELS_MAX_GATE_WAIT": "1h30m5s", "AI_MODELS_NODE_CACHE_SIZE": "200Gi"})

    assert (found.max_gate_wait, found.node_cache_size) == (5405, 200 << 30)
    assert (from_env(ENV).max_gate_wait, from_env(ENV).node_cache_size) == (600, 0)


def test_only_secrets_that_the_settings_name_are_mirrored() -> None:
    found = from_env(ENV | {"AI_MODELS_S3_SECRET": "keys", "AI_MODELS_SYSTEM_NAMESPACE": "system"})

    assert sources_of(found) == {HomeSecret.S3: ("system", "keys")}
    assert sources_of(from_env(ENV)) == {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param({"AI_MODELS_COLOUR": "x"}, "unknown settings AI_MODELS_COLOUR", id="unknown"),
        pytest.param({"AI_MODELS_KUBECONFIG": "x"}, "unknown settings", id="other-name"),
        pytest.param({"AI_MODELS_IDENTITY": ""}, "AI_MODELS_IDENTITY", id="missing"),
        pytest.param({"AI_MODELS_LISTEN_PORT": "x"}, "want a port", id="port"),
        pytest.param({"AI_MODELS_LISTEN_PORT": "70000"}, "want a port", id="large-port"),
        pytest.param({"AI_MODELS_LOG_LEVEL": "info"}, "want one of", id="level"),
        pytest.param({"AI_MODELS_CAPACITY_LIMIT": "much"}, "want a number of bytes", id="capacity"),
        pytest.param({"AI_MODELS_DMCR_URL": "https://d"}, "AI_MODELS_DMCR_TOKEN_FILE", id="no-token-for-registry"),
        pytest.param({"AI_MODELS_MAX_GATE_WAIT": "600"}, "want a duration", id="gate"),
        pytest.param({"AI_MODELS_WEBHOOK_URL": "https://w"}, "AI_MODELS_DELIVERY_TYPE", id="webhook-without-delivery"),
        pytest.param({"AI_MODELS_DELIVERY_TYPE": "x"}, "want SharedPVC or NodeCache", id="delivery"),
        pytest.param({"AI_MODELS_DELIVERY_TYPE": "SharedPVC"}, "AI_MODELS_SHARED_PVC_IMAGE", id="no-image-for-jobs"),
        pytest.param({"AI_MODELS_SHARED_PVC_GRACE_SECONDS": "-1"}, "want a number of seconds", id="grace"),
        pytest.param({"AI_MODELS_SHARED_PVC_CLASS": "../x"}, "want a name", id="class"),
        pytest.param({"AI_MODELS_NAMESPACE": "A b"}, "want a name", id="namespace"),
        pytest.param({"AI_MODELS_SYSTEM_NAMESPACE": ""}, "want a name", id="no-system-namespace"),
        pytest.param({"AI_MODELS_HUB_SECRET": "../x"}, "AI_MODELS_HUB_SECRET: want a name", id="secret"),
    ],
)
def test_wrong_settings_are_told(change: Mapping[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        from_env({**ENV, **change})


@pytest.mark.parametrize("url", ["https://c.ns.svc:18270", "http://127.0.0.1:1", "http://localhost:1/"])
def test_addresses_of_coordinators(url: str) -> None:
    assert checked_url(url) == url.rstrip("/")


@pytest.mark.parametrize("url", ["http://c:1", "c:1", "https://", "https://u:p@c", "https://c?x=1", "ftp://c"])
def test_addresses_that_would_send_tokens_in_the_clear_are_refused(url: str) -> None:
    with pytest.raises(UsageError):
        checked_url(url)


class Values:
    """Secrets that are there, or are refused."""

    def __init__(self, found: Mapping[str, str] | ClusterUnavailable) -> None:
        self.found = found
        self.reads = 0

    async def read_secret(self, namespace: str, name: str) -> Mapping[str, str]:
        self.reads += 1
        if isinstance(self.found, ClusterUnavailable):
            raise self.found
        return self.found


def private(**fields: Any) -> ModelObject:
    return ModelObject.from_raw(MODEL, raw_model({"url": URL, "authSecretRef": {"name": "hf"}}, **fields))


@pytest.mark.asyncio
@pytest.mark.parametrize("key", ["token", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
async def test_token_is_found_under_each_key(key: str) -> None:
    found = await Tokens(Values({"other": "x", key: " hf_x\n"})).of(private())

    assert found is not None
    assert (found.token, found.trouble) == ("hf_x", "")
    assert "hf_x" not in repr(found)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("values", "words"),
    [
        pytest.param({}, "in key token", id="no-key"),
        pytest.param({"token": "  "}, "in key token", id="blank"),
        pytest.param({"token": "a\r\nX-Evil: 1"}, "visible ASCII", id="header"),
        pytest.param({"token": "x" * 9000}, "visible ASCII", id="long"),
        pytest.param(ClusterUnavailable("", code="NotFound"), "not found", id="missing"),
        pytest.param(ClusterUnavailable("", code="Forbidden"), "ClusterRole must allow get on secrets", id="forbidden"),
    ],
)
async def test_what_is_no_token_is_told_with_the_secret(values: Any, words: str) -> None:
    found = await Tokens(Values(values)).of(private())

    assert found is not None
    assert words in found.trouble
    assert "ai-demo/hf" in found.trouble
    assert "Evil" not in found.trouble


@pytest.mark.asyncio
async def test_silent_api_server_is_no_missing_secret() -> None:
    with pytest.raises(ClusterUnavailable):
        await Tokens(Values(ClusterUnavailable("", code="Unanswered"))).of(private())


@pytest.mark.asyncio
async def test_a_secret_is_read_anew_within_a_minute_and_not_more_often_than_needed() -> None:
    now = [0.0]
    values = Values({"token": "old"})
    tokens = Tokens(values, clock=lambda: now[0])
    await tokens.of(private())
    await tokens.of(private())
    assert values.reads == 1
    values.found, now[0] = {"token": "new"}, 50.0
    found = await tokens.of(private())

    assert found is not None
    assert (found.token, values.reads) == ("new", 2)


@pytest.mark.asyncio
async def test_no_secret_is_read_that_no_decision_wants() -> None:
    values = Values({"token": "x"})
    ready = {"conditions": [{"type": "Ready", "status": "True"}], "artifact": {"digest": "sha256:0"}}
    tokens = Tokens(values)
    assert await tokens.of(private(status=ready)) is None
    assert await tokens.of(private(deleting=True)) is None
    assert await tokens.of(ModelObject.from_raw(CLUSTER_MODEL, raw_model(kind=CLUSTER_MODEL))) is None

    assert values.reads == 0


def version(number: str, generation: int = 1) -> ModelObject:
    found = ModelObject.from_raw(MODEL, raw_model(generation=generation))
    return dataclasses.replace(found, resource_version=number)


def test_an_older_version_never_replaces_a_newer_one() -> None:
    known = Known()
    assert known.take(version("10"))
    assert not known.take(version("9"))
    assert known.take(version("10"))
    assert known.take(version("100"))

    assert [model.resource_version for model in known.models()] == ["100"]


def test_metrics_have_no_names_of_models() -> None:
    meters = Meters()
    meters.observe(0.01)
    meters.observe(99.0)
    meters.count("Conflict")
    text = meters.render([version("1")], {("patch", "models/status", 200): 3}, {"queue_depth": 2})

    assert "bge-m3" not in text
    assert 'aimodels_models{kind="Model",phase="",reason=""} 1' in text
    assert 'aimodels_reconcile_seconds_bucket{le="+Inf"} 2' in text
    assert 'aimodels_api_calls_total{verb="patch",resource="models/status",status="200"} 3' in text
    assert "aimodels_queue_depth 2" in text
