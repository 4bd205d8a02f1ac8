"""The Secrets at home on a real API server, with the rights of the chart's roles alone."""

import base64
import json
import ssl
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from aimodels_core.names import HomeSecret
from tests.cluster import operating
from tests.cluster.operating import HOME, HUB_TOKEN, Operators, Served, phase, secret, wait_for_holder
from tests.cluster.stand.kubectl import Kubectl, Object
from tests.cluster.stand.waiting import command, until
from tests.support.certificates import certificates
from tests.support.hub.server import Hub
from tests.support.publishing import good_model

World = tuple[Hub, Served, Operators]
GROUP = "ai.deckhouse.io/v1alpha1"
SYSTEM = "d8-system"
MIRRORED = {
    "S3_SECRET": "home-s3",
    "S3_CA_SECRET": "home-s3-ca",
    "HUB_SECRET": "home-hub",
    "HUB_CA_SECRET": "home-hub-ca",
}
KEYS = {"accessKey": "an-access-key", "secretKey": "a-secret-key"}
FOLLOWED_SECONDS = 300.0
"""Five times the minute within which a change is followed."""
pytestmark = pytest.mark.timeout(4 * FOLLOWED_SECONDS)


@pytest.fixture(scope="module", autouse=True)
def _chart() -> None:
    operating.install()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    authority = certificates(tmp_path_factory.mktemp("administrators")).ca.read_text()
    system = Kubectl(SYSTEM)
    Kubectl()("delete", "namespace", SYSTEM, "--ignore-not-found", "--timeout=60s", seconds=70)
    Kubectl()("create", "namespace", SYSTEM)
    system.apply(
        secret("home-s3", KEYS),
        secret("home-s3-ca", {"ca.crt": authority}),
        secret("home-hub", {"HF_TOKEN": HUB_TOKEN}),
        secret("home-hub-ca", {"ca.crt": authority}),
    )
    home = Kubectl(HOME)
    home("delete", "secret", "--ignore-not-found", *HomeSecret)
    with operating.world(tmp_path_factory.mktemp("home")) as made:
        made[0].add(good_model("org/good"))
        made[2].start("home-0", **MIRRORED)
        wait_for_holder("home-0", seconds=40)
        yield made
        leaks = [word for word in (operating.TOKEN, HUB_TOKEN, *KEYS.values()) if word in made[2].logs()]
        assert leaks == []
    home("delete", "secret", "--ignore-not-found", *HomeSecret)
    Kubectl()("delete", "namespace", SYSTEM, "--wait=false")


def values(name: str) -> dict[str, str]:
    """What a Secret at home holds; nothing when there is none."""
    done = Kubectl(HOME).attempt("get", "secret", name, "--output=json")
    found: Object = json.loads(done.stdout) if done.returncode == 0 else {}
    return {key: base64.b64decode(value).decode() for key, value in found.get("data", {}).items()}


def complete() -> dict[str, str] | None:
    """Versions of all Secrets at home, when all are there."""
    found = {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in Kubectl(HOME).items("secrets")}
    return {name: found[name] for name in HomeSecret} if set(HomeSecret) <= found.keys() else None


def trouble(operators: Operators) -> float:
    """The gauge of the newest replica."""
    with urllib.request.urlopen(f"http://127.0.0.1:{operators.replicas[-1].port}/metrics", timeout=5) as answer:
        lines = answer.read(1 << 20).decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("aimodels_home_trouble "))


def model(name: str) -> Object:
    source = {"url": "https://huggingface.co/org/good"}
    return {"apiVersion": GROUP, "kind": "Model", "metadata": {"name": name}, "spec": {"source": source}}


def test_all_secrets_appear_and_are_used(world: World, space: Kubectl) -> None:
    _, served, operators = world
    until(complete, what="all Secrets", seconds=60, pause=0.5)
    space.apply(model("m"))
    space.until("model", "m", phase("Ready"))

    assert values("ai-models-s3") == KEYS
    assert values("ai-models-hub") == {"token": HUB_TOKEN}
    assert values("ai-models-coordinator")["token"] == operating.TOKEN
    assert values("ai-models-dmcr-tls")["ca.crt"] == served.certificates.ca.read_text()
    assert trouble(operators) == 0


def test_servers_get_certificates_that_openssl_takes(world: World, tmp_path: Any) -> None:
    until(complete, what="all Secrets", seconds=60, pause=0.5)
    held = values("ai-models-webhook-tls")
    for key, value in held.items():
        (tmp_path / key).write_text(value)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    name = f"ai-models-webhook.{HOME}.svc"
    arguments = (
        "verify",
        "-x509_strict",
        "-CAfile",
        tmp_path / "ca.crt",
        "-verify_hostname",
        name,
        tmp_path / "tls.crt",
    )

    assert command("openssl", *arguments).strip().endswith("tls.crt: OK")


def test_another_leader_leaves_them_as_they_are(world: World) -> None:
    _, _, operators = world
    before = until(complete, what="all Secrets", seconds=60, pause=0.5)
    assert operators.replicas[-1].stop() == 0
    operators.start("home-1", **MIRRORED)
    wait_for_holder("home-1", seconds=40)
    until(
        lambda: "coordinator answers" in operators.replicas[-1].log.read_text(), what="its link", seconds=60, pause=0.5
    )

    assert complete() == before


def test_deleted_ones_come_back_and_changed_ones_are_followed(world: World) -> None:
    until(complete, what="all Secrets", seconds=60, pause=0.5)
    before = values("ai-models-dmcr-tls")["tls.crt"]
    Kubectl(SYSTEM).apply(secret("home-s3", {**KEYS, "secretKey": "another-key"}))
    Kubectl(HOME)("delete", "secret", "ai-models-dmcr-tls", "ai-models-ray", "ai-models-hub")
    until(complete, what="all Secrets", seconds=FOLLOWED_SECONDS, pause=0.5)
    until(lambda: values("ai-models-s3")["secretKey"] == "another-key", what="it", seconds=FOLLOWED_SECONDS, pause=0.5)

    assert values("ai-models-dmcr-tls")["tls.crt"] != before
    assert values("ai-models-hub") == {"token": HUB_TOKEN}


def test_what_it_cannot_do_is_told_and_done_later(world: World) -> None:
    _, _, operators = world
    until(complete, what="all Secrets", seconds=60, pause=0.5)
    before = values("ai-models-s3")
    role = "ai-models-operator"
    home = Kubectl(HOME)
    rules = home.get("role", role)["rules"]
    less = [rule for rule in rules if "create" not in rule["verbs"] or "secrets" not in rule["resources"]]
    home("patch", "role", role, "--type=merge", f"--patch={json.dumps({'rules': less})}")
    try:
        home("delete", "secret", "ai-models-ray")
        Kubectl(SYSTEM)("delete", "secret", "home-s3")
        until(lambda: trouble(operators) == 2, what="two troubles", seconds=FOLLOWED_SECONDS, pause=0.5)
        assert f"Secret {SYSTEM}/home-s3: not found" in operators.logs()
        assert 'cannot create resource \\"secrets\\"' in operators.logs()
        assert values("ai-models-s3") == before
    finally:
        home("patch", "role", role, "--type=merge", f"--patch={json.dumps({'rules': rules})}")
    Kubectl(SYSTEM).apply(secret("home-s3", KEYS))

    until(lambda: trouble(operators) == 0, what="no trouble", seconds=FOLLOWED_SECONDS, pause=0.5)
    assert values("ai-models-s3") == KEYS
    assert complete() is not None
