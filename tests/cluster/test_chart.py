"""The whole product from its chart, in Pods on three nodes: a hub under its real name, movers, registry, upgrades."""

import base64
import json
import re
import secrets
import ssl
import threading
from collections.abc import Callable, Iterator

import boto3
import botocore.config
import pytest

from aimodels_core.names import HomeSecret
from tests.cluster import installed, operating, tenants
from tests.cluster.installed import model
from tests.cluster.operating import moved, phase, secret
from tests.cluster.stand import chart
from tests.cluster.stand.addons import S3_ACCESS_KEY, S3_SECRET_KEY
from tests.cluster.stand.chart import HOME, SYSTEM
from tests.cluster.stand.cluster import Cluster
from tests.cluster.stand.kubectl import Kubectl
from tests.cluster.stand.layout import CHECKOUT, S3_HOST
from tests.cluster.stand.waiting import until
from tests.support import models
from tests.support.hub.server import Hub
from tests.support.publishing import good_model

pytestmark = pytest.mark.timeout(900)

ADMIN_TOKEN = "hf_administrator"
MIB = 1024 * 1024
RUN_BYTES = 64 * MIB
LARGE_BYTES = 200 * MIB
"""Four runs."""
AUTHORITY = ("sources.huggingFace.caSecretName=chart-hub-ca",)
HUB = (
    "sources.huggingFace.endpoint=https://huggingface.co",
    "sources.huggingFace.credentialsSecretName=chart-hub",
    *AUTHORITY,
)
WEIGHTS_BYTES = (models.minilm_folder() / "model.safetensors").stat().st_size
LIMITED = (*HUB, "artifacts.capacityLimit=50Gi", "logLevel=Debug", "networkPolicies.enabled=true")
BUCKET = f"chart-{secrets.token_hex(3)}"
S3 = (
    *HUB,
    f"artifacts.bucket={BUCKET}",
    f"artifacts.endpoint=https://{S3_HOST}",
    "artifacts.credentialsSecretName=chart-s3",
    "artifacts.caSecretName=chart-s3-ca",
)
SERVERS = {"dmcr": 5000, "webhook": 8443}
FOLLOWED_SECONDS = 300.0
"""Five times the minute within which a change is followed."""
Upgrade = Callable[..., None]


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with operating.hub_under_its_names({ADMIN_TOKEN: "administrator"}) as made:
        made.add(models.bge_m3())
        made.add(models.gemma_3_4b(granted=[ADMIN_TOKEN]))
        made.add(models.minilm())
        made.add(good_model("org/good"))
        made.add(good_model("org/large", weights_bytes=LARGE_BYTES, seed=1))
        yield made


@pytest.fixture(scope="module")
def upgrade(hub: Hub, stand: Cluster) -> Iterator[Upgrade]:
    """Installs the chart with settings, and waits until it works; at once when nothing changes."""
    chart.namespaces()
    Kubectl(SYSTEM).apply(
        secret("chart-hub", {"HF_TOKEN": ADMIN_TOKEN}),
        secret("chart-hub-ca", {"ca.crt": hub.ca_pem.decode()}),
        secret("chart-s3", {"accessKey": S3_ACCESS_KEY, "secretKey": S3_SECRET_KEY}),
        secret("chart-s3-ca", {"ca.crt": stand.layout.ca.read_text()}),
    )
    applied: list[tuple[str, ...]] = []

    def change(*settings: str) -> None:
        if applied[-1:] != [settings]:
            chart.install_whole(*settings)
            applied.append(settings)

    try:
        yield change
        said = everything_said()
        kept = (ADMIN_TOKEN, S3_SECRET_KEY, installed.value("ai-models-coordinator", "token"))
        leaks = [word for word in kept if word in said]
    finally:
        operating.install()
        home = Kubectl(HOME)
        home("delete", "secret", "--ignore-not-found", *HomeSecret)
        home("delete", "persistentvolumeclaim", "--ignore-not-found", "ai-models-store", "--wait=false")
    assert leaks == []


def everything_said() -> str:
    """Logs of all Pods that stay, and their objects."""
    home = Kubectl(HOME)
    names = [pod["metadata"]["name"] for pod in home.items("pods") if "deletionTimestamp" not in pod["metadata"]]
    logs = [home("logs", name, "--all-containers", "--tail=-1") for name in names]
    return "\n".join([*logs, json.dumps(home.items("pods")), json.dumps(home.items("configmaps"))])


def epoch() -> str:
    """Which start of the coordinator answers."""
    return installed.coordinator().snapshot().epoch


def wait_for_another(before: str) -> None:
    """Wait until the coordinator that answers is another one."""

    def answers() -> bool:
        try:
            return epoch() != before
        except OSError:
            return False

    until(answers, what="another coordinator", seconds=120, pause=0.5)


def nodes_with_movers() -> set[str]:
    """Nodes on which a mover runs."""
    found = set()
    for pod in chart.pods("ray-worker"):
        names = Kubectl(HOME).exec(pod["metadata"]["name"], "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        if "ray::Mover" in names:
            found.add(pod["spec"]["nodeName"])
    return found


def test_hub_at_a_private_address_is_refused_until_the_administrator_names_it(
    upgrade: Upgrade, hub: Hub, space: Kubectl
) -> None:
    upgrade(*AUTHORITY)
    space.apply(model("m", models.BGE_M3))
    refused = space.until("model", "m", lambda found: "want a public address" in json.dumps(found.get("status", {})))
    asked = len(hub.log)
    before = epoch()
    upgrade(*HUB)
    wait_for_another(before)
    ready = space.until("model", "m", phase("Ready"), seconds=120)

    assert refused["status"]["phase"] != "Ready"
    assert asked == 0
    assert ready["status"]["resolved"]["family"] == "xlm-roberta"


def test_model_is_published_by_movers_on_different_nodes_and_read_by_its_namespace_alone(
    upgrade: Upgrade, hub: Hub, space: Kubectl, other: Kubectl
) -> None:
    upgrade(*HUB)
    space.apply(model("minilm", models.MINILM))
    found = space.until("model", "minilm", phase("Ready"), seconds=180)
    digest = found["status"]["artifact"]["digest"]
    tenants.start(space)
    tenants.start(other)
    files, complaint = tenants.read(space, f"ns/{space.namespace}", digest)
    stolen, refusal = tenants.read(other, f"ns/{space.namespace}", digest)

    assert len(nodes_with_movers()) == 2
    assert complaint == ""
    assert files["model.safetensors"] == WEIGHTS_BYTES
    assert stolen == {}
    assert "SourceDenied" in refusal


@pytest.fixture
def other() -> Iterator[Kubectl]:
    """Another tenant's namespace."""
    kubectl = Kubectl("test-other-tenant")
    Kubectl()("create", "namespace", kubectl.namespace)
    kubectl.until("serviceaccount", "default", bool)
    yield kubectl
    Kubectl()("delete", "namespace", kubectl.namespace, "--timeout=60s", seconds=70)


def test_gated_cluster_model_by_the_administrators_token_is_read_by_every_namespace(
    upgrade: Upgrade, space: Kubectl
) -> None:
    upgrade(*HUB)
    Kubectl()("apply", f"--filename={CHECKOUT / 'examples' / 'clustermodel.yaml'}")
    try:
        found = Kubectl().until("clustermodel", "gemma-small", phase("Ready"), seconds=120)
        tenants.start(space)
        files, complaint = tenants.read(space, "cluster", found["status"]["artifact"]["digest"])
    finally:
        Kubectl()("delete", "clustermodel", "gemma-small", "--timeout=60s", seconds=70)

    assert complaint == ""
    assert "config.json" in files


def test_upgrade_replaces_the_coordinator_and_loses_nothing(upgrade: Upgrade, hub: Hub, space: Kubectl) -> None:
    upgrade(*HUB)
    space.apply(model("done", "org/good"))
    done = space.until("model", "done", phase("Ready"), seconds=120)
    upgraded = threading.Event()
    hub.fault(
        "stall",
        path="model.safetensors",
        repository="org/large",
        offset=2 * RUN_BYTES,
        after_bytes=0,
        seconds=5.0,
        when=lambda _: not upgraded.is_set(),
    )
    try:
        space.apply(model("large", "org/large"))
        space.until("model", "large", moved(2 * RUN_BYTES), seconds=120)
        before = epoch()
        upgrade(*LIMITED)
        wait_for_another(before)
    finally:
        upgraded.set()
    found = space.until("model", "large", phase("Ready"), seconds=180)
    sent = sum(each.sent_bytes for each in hub.log if each.payload and each.repository == "org/large")

    assert found["status"]["artifact"]["sizeBytes"] > LARGE_BYTES
    assert sent < LARGE_BYTES + (LARGE_BYTES - 2 * RUN_BYTES) + 4 * MIB
    assert space.get("model", "done")["status"]["artifact"] == done["status"]["artifact"]
    assert space.get("model", "done")["status"]["phase"] == "Ready"


def test_requests_of_our_processes_have_their_own_place_at_the_api_server(upgrade: Upgrade) -> None:
    upgrade(*LIMITED)
    flows = {one["metadata"]["uid"]: one["metadata"]["name"] for one in Kubectl().items("flowschemas")}

    def flow_of(account: str, namespace: str, *words: str) -> str:
        said = Kubectl(namespace).attempt("get", *words, f"--as=system:serviceaccount:{HOME}:{account}", "--v=8").stderr
        *_, last = re.findall(r"X-Kubernetes-Pf-Flowschema-Uid: (\S+)", said, re.IGNORECASE)
        return str(flows[last])

    assert flow_of("ai-models-operator", HOME, "leases.coordination.k8s.io", "ai-models-operator") == "ai-models-lease"
    assert flow_of("ai-models-operator", "default", "models", "m") == "ai-models"
    assert flow_of("ai-models-webhook", "default", "models", "m") == "ai-models"
    assert not flow_of("default", "default", "models", "m").startswith("ai-models-lease")


def test_certificates_that_were_made_anew_are_served_and_every_request_on_the_way(
    upgrade: Upgrade, space: Kubectl
) -> None:
    upgrade(*LIMITED)
    home = Kubectl(HOME)
    tenants.start_prober(space)
    before = [{issued(part)} for part in SERVERS]
    home("delete", "secret", *(f"ai-models-{part}-tls" for part in SERVERS))
    until(lambda: all(issued(part) for part in SERVERS), what="certificates made anew", seconds=FOLLOWED_SECONDS)
    # Kubelet looks at the Secrets of a Pod once a minute, or when the Pod has changed.
    home("annotate", "pods", "--selector=app=ai-models-webhook", "test=changed")
    what = "Pods that serve new certificates"
    until(lambda: all(served(part) == {issued(part)} for part in SERVERS), what=what, seconds=FOLLOWED_SECONDS)

    answers, failures = tenants.probed(space)

    assert [served(part) for part in SERVERS] != before
    assert failures == []
    assert answers > 50


def served(part: str) -> set[bytes]:
    """Certificates that the Pods of a server show."""
    shown = set()
    for pod in chart.pods(part):
        address = pod["status"].get("podIP")
        try:
            shown.add(_certificate(address, SERVERS[part]) if address else b"")
        except OSError:
            shown.add(b"")
    return shown


def _certificate(address: str, port: int) -> bytes:
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate((address, port), timeout=5))


def issued(part: str) -> bytes:
    """The certificate in the Secret of a server; empty while there is none."""
    found = (
        Kubectl(HOME).attempt("get", "secret", f"ai-models-{part}-tls", "--output=jsonpath={.data.tls\\.crt}").stdout
    )
    return ssl.PEM_cert_to_DER_cert(base64.b64decode(found).decode()) if found else b""


def test_bucket_instead_of_a_claim(upgrade: Upgrade, stand: Cluster, space: Kubectl) -> None:
    s3 = boto3.client(
        "s3",
        endpoint_url=f"https://{S3_HOST}",
        aws_access_key_id=S3_ACCESS_KEY,
        aws_secret_access_key=S3_SECRET_KEY,
        region_name="us-east-1",
        verify=str(stand.layout.ca),
        config=botocore.config.Config(s3={"addressing_style": "path"}),
    )
    s3.create_bucket(Bucket=BUCKET)
    upgrade(*S3)
    space.apply(model("minilm", models.MINILM))
    found = space.until("model", "minilm", phase("Ready"), seconds=180)
    tenants.start(space, stand.layout.ca.read_text())
    files, complaint = tenants.read(space, f"ns/{space.namespace}", found["status"]["artifact"]["digest"], S3_HOST)
    space("delete", "model", "minilm", "--timeout=60s", seconds=70)

    assert complaint == ""
    assert files["model.safetensors"] == WEIGHTS_BYTES
