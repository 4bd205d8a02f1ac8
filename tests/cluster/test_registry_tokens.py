"""The webhook process beside a real API server, with the rights of the chart's role alone: whose token it is."""

import json
import secrets
from collections.abc import Iterator

import pytest
import yaml

from aimodels_operator import tokens
from tests.cluster.stand.kubectl import Kubectl
from tests.cluster.stand.layout import CHECKOUT
from tests.cluster.stand.waiting import until
from tests.support.issuing import Answer, Issuing, basic, issuing

ROLE = CHECKOUT / "charts" / "ai-models" / "roles" / "webhook.yaml"


@pytest.fixture(scope="module")
def home() -> Iterator[Kubectl]:
    """A namespace with a ServiceAccount that has the role of the webhook process."""
    name = f"webhook-{secrets.token_hex(3)}"
    kubectl = Kubectl(name)
    Kubectl()("create", "namespace", name)
    kubectl("create", "serviceaccount", "webhook")
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}}
    kubectl.apply({**role, "rules": yaml.safe_load(ROLE.read_text(encoding="utf-8"))})
    Kubectl()("create", "clusterrolebinding", name, f"--clusterrole={name}", f"--serviceaccount={name}:webhook")
    yield kubectl
    Kubectl()("delete", "clusterrolebinding,clusterrole", name)
    Kubectl()("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="module")
def issuer(home: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Issuing]:
    folder = tmp_path_factory.mktemp("issuing")
    found = json.loads(Kubectl()("config", "view", "--raw", "--output=json"))
    for user in found["users"]:
        user["user"] = {"token": home("create", "token", "webhook").strip()}
    kubeconfig = folder / "webhook.kubeconfig"
    kubeconfig.write_text(json.dumps(found))
    with issuing(folder / "files", kubeconfig=kubeconfig) as made:
        yield made


def token_of(space: Kubectl, name: str = "default", *, audience: str = tokens.SERVICE) -> str:
    audiences = [f"--audience={audience}"] if audience else []
    return space("create", "token", name, *audiences).strip()


def ask(issuer: Issuing, token: str, *repositories: str) -> Answer:
    scopes = "".join(f"&scope=repository:{name}:pull,push" for name in repositories)
    return issuer.ask(basic(token), f"service={tokens.SERVICE}{scopes}")


def test_a_service_account_gets_what_is_its_namespaces(issuer: Issuing, space: Kubectl) -> None:
    own = f"ns/{space.namespace}"
    answer = ask(issuer, token_of(space), own, "cluster", "ns/default", "public")

    assert answer.repositories == [own, "cluster"]
    assert answer.claims["sub"] == f"system:serviceaccount:{space.namespace}:default"


@pytest.mark.parametrize("audience", ["", "https://example.com"])
def test_a_token_for_another_audience_is_nobodys(issuer: Issuing, space: Kubectl, audience: str) -> None:
    assert ask(issuer, token_of(space, audience=audience), "cluster").status == 401


def test_the_token_of_a_service_account_that_is_gone_is_nobodys(issuer: Issuing, space: Kubectl) -> None:
    space("create", "serviceaccount", "short")
    token = token_of(space, "short")
    space("delete", "serviceaccount", "short")

    def refused() -> bool:
        return ask(issuer, token, "cluster").status == 401

    until(refused, what="the token to be nobody's", seconds=90, pause=1.0)


def test_without_the_right_to_review_nobody_is_refused(issuer: Issuing, home: Kubectl, space: Kubectl) -> None:
    token = token_of(space)
    Kubectl()("delete", "clusterrolebinding", home.namespace)

    def unavailable() -> bool:
        return ask(issuer, token_of(space), "cluster").status == 503

    try:
        until(unavailable, what="no token", seconds=30, pause=0.5)
        printed = issuer.server.log.read_text()
    finally:
        words = (f"--clusterrole={home.namespace}", f"--serviceaccount={home.namespace}:webhook")
        Kubectl()("create", "clusterrolebinding", home.namespace, *words)

    assert '"error": "Forbidden"' in printed
    assert "tokenreviews" in printed
    assert token not in printed
