"""Registry tokens as they are used: the webhook process, a real registry that asks for them, our reader and skopeo."""

import datetime
import http.client
import json
import random
import subprocess
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

from aimodels_core import folders, pull
from aimodels_core.errors import SourceDenied, SourceUnavailable
from aimodels_core.registry import Registry
from aimodels_core.transport import HostRules, Policy, Transport
from aimodels_operator import tokens
from aimodels_operator.certificates import LEAF_LIFE, make_authority, make_leaf
from aimodels_operator.tokens import Grant, Identity, Signer
from tests.support import binaries, servers
from tests.support.artifacts import files_in, sample, write_layout
from tests.support.binaries.debian import program
from tests.support.issuing import Issuing, basic, issuing
from tests.support.processes import HOST, wait_for

pytestmark = pytest.mark.timeout(120)

MODEL = sample({"config.json": b"{}", "model.safetensors": random.Random(5).randbytes(300_000)})
POD = Identity("team", "default")


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Issuing]:
    with issuing(tmp_path_factory.mktemp("issuing")) as made:
        yield made


@pytest.fixture(scope="module")
def registry(issuer: Issuing, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("layout")
    for repository in ("cluster", "public", "ns/team", "ns/other"):
        write_layout(root, repository, {"model": MODEL})
    with servers.registry(root, readonly=False, more=issuer.auth) as url:
        yield url


@pytest.fixture(autouse=True)
def api_server_is_up(issuer: Issuing) -> None:
    issuer.accounts.down = False


def reader(url: str, issuer: Issuing, repository: str, credential: str) -> Registry:
    policy = Policy(read_seconds=20, attempts=1)
    rules = HostRules(trusted=frozenset({HOST}))
    transport = Transport(rules, policy=policy, ca_file=str(issuer.certificates.ca), jitter=lambda: 0.0)
    return Registry(url, repository, transport=transport, credential=lambda: credential)


def health(issuer: Issuing, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(HOST, issuer.health_port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def manifest(url: str, repository: str, token: str) -> int:
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=20)
    try:
        path = f"/v2/{repository}/manifests/{MODEL.digest}"
        accept = "application/vnd.oci.image.manifest.v1+json"
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}", "Accept": accept})
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("repository", ["ns/team", "cluster"])
def test_a_pod_pulls_what_is_its_namespaces_and_what_is_everybodys(
    registry: str, issuer: Issuing, repository: str, tmp_path: Path
) -> None:
    found = reader(registry, issuer, repository, basic(issuer.accounts.add("team")))
    pull.pull(found, found.resolve("model")[0], tmp_path / "model")
    files = files_in(tmp_path / "model")
    folders.remove_tree(tmp_path / "model")

    assert files == MODEL.files


def test_bearer_is_as_good_as_basic(registry: str, issuer: Issuing) -> None:
    found = reader(registry, issuer, "ns/team", f"Bearer {issuer.accounts.add('team')}")

    assert found.resolve("model")[0] == MODEL.digest


@pytest.mark.parametrize("repository", ["ns/other", "public"])
def test_another_namespaces_repository_is_denied(registry: str, issuer: Issuing, repository: str) -> None:
    with pytest.raises(SourceDenied, match="401"):
        reader(registry, issuer, repository, basic(issuer.accounts.add("team"))).resolve("model")


@pytest.mark.parametrize(
    ("namespace", "name"), [("d8-ai-models", "ai-models-operator"), ("d8-ai-models-node", "agent")]
)
def test_our_own_read_every_repository(registry: str, issuer: Issuing, namespace: str, name: str) -> None:
    credential = basic(issuer.accounts.add(namespace, name))
    found = [reader(registry, issuer, r, credential).resolve("model")[0] for r in ("ns/team", "ns/other", "public")]

    assert set(found) == {MODEL.digest}


def test_tokens_for_others_and_unknown_ones_are_denied(registry: str, issuer: Issuing) -> None:
    foreign = issuer.accounts.add("team", audience="https://kubernetes.default.svc")
    for credential in (basic(foreign), basic("nobody"), "Bearer nobody", "", "Basic !!", basic("")):
        with pytest.raises(SourceDenied):
            reader(registry, issuer, "ns/team", credential).resolve("model")
        answer = issuer.ask(credential)
        assert (answer.status, answer.headers["www-authenticate"]) == (401, 'Basic realm="ai-models"')


def test_a_token_grants_what_is_asked_for_and_allowed_and_never_a_refusal(issuer: Issuing) -> None:
    credential = basic(issuer.accounts.add("team"))
    scopes = "scope=repository:ns/team:pull,push&scope=repository:ns/other:pull%20registry:catalog:*"
    some = issuer.ask(credential, f"account=x&service={tokens.SERVICE}&{scopes}")
    none = issuer.ask(credential, f"service={tokens.SERVICE}&scope=repository:ns/other:pull")
    plain = issuer.ask(credential)

    assert {answer.status for answer in (some, none, plain)} == {200}
    assert some.claims["access"] == [{"type": "repository", "name": "ns/team", "actions": ["pull"]}]
    assert (none.repositories, plain.repositories) == ([], [])
    assert 0 < some.claims["exp"] - some.claims["iat"] <= 300
    assert some.headers["cache-control"] == "no-store"
    assert some.claims["jti"] != none.claims["jti"]


@pytest.mark.parametrize(
    "query",
    [
        pytest.param("scope=repository:ns/team:pull", id="no-service"),
        pytest.param("service=other", id="other-service"),
        pytest.param(f"service={tokens.SERVICE}&service={tokens.SERVICE}", id="two-services"),
        pytest.param(f"service={tokens.SERVICE}&scope=ns/team", id="no-scope"),
        pytest.param(f"service={tokens.SERVICE}" + "&scope=repository:a:pull" * 40, id="many-scopes"),
    ],
)
def test_what_is_no_request_for_a_token_is_told(issuer: Issuing, query: str) -> None:
    answer = issuer.ask(basic(issuer.accounts.add("team")), query)

    assert answer.status == 400
    assert "want" in answer.document["errors"][0]["message"]


def test_very_long_requests_are_refused(issuer: Issuing) -> None:
    reviews = len(issuer.accounts.reviews)
    long = [(basic("x" * 6200), ""), (basic("x" * 60_000), ""), ("", "service=" + "x" * 60_000)]
    statuses = set()
    for authorization, query in long:
        try:
            statuses.add(issuer.ask(authorization, query).status)
        except OSError:  # it may hang up before all of it was sent
            statuses.add(0)

    assert statuses <= {0, 400, 401, 414, 431}
    assert len(issuer.accounts.reviews) == reviews


def test_who_is_known_is_not_asked_for_again_within_a_minute(issuer: Issuing) -> None:
    token = issuer.accounts.add("team")
    found = [issuer.ask(basic(token, user)).status for user in ("a", "b", "c")]

    assert found == [200, 200, 200]
    assert issuer.accounts.reviews.count(token) == 1


def test_without_an_api_server_nobody_is_refused_and_nobody_gets_a_token(registry: str, issuer: Issuing) -> None:
    known, stranger = issuer.accounts.add("team"), issuer.accounts.add("other")
    issuer.ask(basic(known))
    issuer.accounts.down = True
    with pytest.raises(SourceUnavailable):
        reader(registry, issuer, "ns/other", basic(stranger)).resolve("model")
    remembered, unknown = issuer.ask(basic(known)), issuer.ask(basic(stranger))

    assert (remembered.status, unknown.status) == (200, 503)
    assert "etcd" not in json.dumps(unknown.document)


def test_a_registry_takes_a_token_while_it_lives_and_from_its_authority_alone(registry: str, issuer: Issuing) -> None:
    now = datetime.datetime.now(datetime.UTC)
    hour = datetime.timedelta(hours=1)
    good = issuer.signer()
    stranger = make_leaf(make_authority("ai-models-token-root", now), "ai-models-token-signer", (), now)
    foreign = Signer.from_pem(stranger.certificate.encode(), stranger.key.encode())
    ended = issuer.signer(now - LEAF_LIFE - hour)

    def shown(signer: Signer, at: datetime.datetime, *repositories: str) -> int:
        token = Grant(POD, repositories, at, "n").answer(signer)["token"]
        return manifest(registry, "ns/team", token)

    assert shown(good, now, "ns/team") == 200
    assert shown(good, now - hour, "ns/team") == 401, "expired"
    assert shown(good, now + hour, "ns/team") == 401, "not yet"
    assert shown(foreign, now, "ns/team") == 401, "signed by somebody else"
    assert shown(ended, now, "ns/team") == 401, "the signer's certificate has expired"
    assert shown(good, now, "ns/other", "cluster") == 401, "for others"


def test_a_replaced_signer_signs_the_next_token_without_a_restart(registry: str, issuer: Issuing) -> None:
    credential = basic(issuer.accounts.add("team"))
    query = f"service={tokens.SERVICE}&scope=repository:ns/team:pull"

    def leaf() -> tuple[str, str]:
        token = issuer.ask(credential, query).token
        return token.split(".")[0], token

    before = leaf()[0]
    issuer.renew()
    wait_for(lambda: leaf()[0] != before, "another signer", seconds=20, pause_seconds=0.2)

    assert manifest(registry, "ns/team", leaf()[1]) == 200


def test_skopeo_pulls_and_cannot_push(registry: str, issuer: Issuing, tmp_path: Path) -> None:
    if program("skopeo") is None:
        binaries.install("base")
    place, creds = urllib.parse.urlsplit(registry).netloc, f"any:{issuer.accounts.add('team')}"

    def copy(*words: str) -> subprocess.CompletedProcess[str]:
        command = ["skopeo", "copy", "--insecure-policy", "--retry-times=0", *words]
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=50)

    source = ("--src-tls-verify=false", f"--src-creds={creds}")
    out = copy(*source, f"docker://{place}/ns/team:model", f"dir:{tmp_path}/out")
    denied = copy(*source, f"docker://{place}/ns/other:model", f"dir:{tmp_path}/denied")
    pushed = copy(
        "--dest-tls-verify=false", f"--dest-creds={creds}", f"dir:{tmp_path}/out", f"docker://{place}/ns/team:x"
    )

    assert out.returncode == 0, out.stderr
    assert denied.returncode != 0
    assert pushed.returncode != 0
    assert "denied" in pushed.stderr or "unauthorized" in pushed.stderr or "authentication required" in pushed.stderr


def test_metrics_count_answers_and_the_log_has_no_token(issuer: Issuing) -> None:
    issuer.ask(basic(issuer.accounts.add("team")))
    status, text = health(issuer, "/metrics")
    printed = issuer.server.log.read_text()

    assert (status, health(issuer, "/readyz")[0]) == (200, 200)
    assert 'aimodels_registry_tokens_total{result="empty"}' in text
    assert 'aimodels_api_calls_total{verb="create",resource="tokenreviews",status="201"}' in text
    assert "registry token issued" in printed
    assert "token-of-" not in text + printed
    assert all(json.loads(line)["level"] for line in printed.splitlines())


def test_a_signer_that_expires_makes_it_unready_and_sigterm_ends_it(tmp_path: Path) -> None:
    with issuing(tmp_path, signer_left=datetime.timedelta(minutes=2)) as issuer:
        credential = basic(issuer.accounts.add("team"))
        before = (health(issuer, "/readyz")[0], health(issuer, "/healthz")[0], issuer.ask(credential).status)
        issuer.renew()
        wait_for(lambda: health(issuer, "/readyz")[0] == 200, "ready again", seconds=20, pause_seconds=0.2)
        after = issuer.ask(credential).status
        code = issuer.stop()

    assert before == (503, 200, 503)
    assert (after, code) == (200, 0)
