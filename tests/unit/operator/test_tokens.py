"""Registry tokens: scopes, who may read what, claims, signatures."""

import base64
import dataclasses
import datetime
import json
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from hypothesis import given
from hypothesis import strategies as st

from aimodels_core.errors import UsageError
from aimodels_operator import tokens
from aimodels_operator.tokens import Grant, Homes, Identity, Signer, asked_repositories, may_pull, reviewed

HOMES = Homes("d8-ai-models", "d8-ai-models-node")
NOW = datetime.datetime(2026, 12, 1, 12, tzinfo=datetime.UTC)
POD = Identity("team", "default")
REPOSITORIES = ["cluster", "public", "local", "ns/team", "ns/other", "ns/d8-ai-models", "ns/team/x", "ns/", "other", ""]


@pytest.mark.parametrize(
    ("scopes", "wanted"),
    [
        pytest.param([], (), id="none"),
        pytest.param([""], (), id="empty"),
        pytest.param(["repository:ns/a:pull"], ("ns/a",), id="one"),
        pytest.param(["repository:ns/a:pull,push"], ("ns/a",), id="pull-among-others"),
        pytest.param(["repository:ns/a:push", "repository:cluster:delete"], (), id="no-pull"),
        pytest.param(["repository:ns/a:*"], (), id="star-is-not-pull"),
        pytest.param(["repository:cluster:pull repository:ns/a:pull"], ("cluster", "ns/a"), id="in-one-parameter"),
        pytest.param(["repository:ns/a:pull", "repository:ns/a:pull"], ("ns/a",), id="once"),
        pytest.param(["repository(plugin):ns/a:pull"], ("ns/a",), id="class"),
        pytest.param(["registry:catalog:*"], (), id="catalogue"),
        pytest.param(["repository:host:5000/ns/a:pull"], ("host:5000/ns/a",), id="host-and-port"),
    ],
)
def test_scopes(scopes: list[str], wanted: tuple[str, ...]) -> None:
    assert asked_repositories(scopes) == wanted


@pytest.mark.parametrize(
    "scopes",
    [
        pytest.param(["ns/a"], id="no-type"),
        pytest.param(["repository:ns/a"], id="no-action"),
        pytest.param(["repository::pull"], id="no-name"),
        pytest.param(["repository:ns/a:pull\r\nX-Evil:1"], id="header"),
        pytest.param(["repository:ns/ä:pull"], id="other-letters"),
        pytest.param(["repository:cluster:pull"] * 33, id="many"),
        pytest.param([f"repository:{'a' * 4100}:pull"], id="long"),
    ],
)
def test_scopes_that_are_none_are_told(scopes: list[str]) -> None:
    with pytest.raises(UsageError, match="scope: want"):
        asked_repositories(scopes)


@given(st.lists(st.text(max_size=60), max_size=5))
def test_any_scope_is_parsed_or_refused(scopes: list[str]) -> None:
    try:
        found = asked_repositories(scopes)
    except UsageError:
        return

    assert all(f":{name}:" in " ".join(scopes) for name in found)


@pytest.mark.parametrize(
    ("identity", "wanted"),
    [
        pytest.param(POD, {"cluster", "ns/team"}, id="pod"),
        pytest.param(Identity("ns", "team"), {"cluster"}, id="names-do-not-mix"),
        pytest.param(Identity("d8-ai-models", "default"), {"cluster", "ns/d8-ai-models"}, id="others-at-home"),
        pytest.param(Identity("team", "ai-models-operator"), {"cluster", "ns/team"}, id="operator-elsewhere"),
    ],
)
def test_a_service_account_reads_what_is_everybodys_and_its_namespaces(identity: Identity, wanted: set[str]) -> None:
    assert {name for name in REPOSITORIES if may_pull(identity, name, HOMES)} == wanted


@pytest.mark.parametrize(
    "identity", [Identity("d8-ai-models", "ai-models-operator"), Identity("d8-ai-models-node", "x")]
)
def test_our_own_read_every_repository_that_models_have(identity: Identity) -> None:
    wanted = {"cluster", "public", "local", "ns/team", "ns/other", "ns/d8-ai-models"}

    assert {name for name in REPOSITORIES if may_pull(identity, name, HOMES)} == wanted


def status(**change: Any) -> dict[str, Any]:
    user = {"username": "system:serviceaccount:team:default", "uid": "u", "groups": ["system:serviceaccounts"]}
    return {"authenticated": True, "user": user, "audiences": [tokens.SERVICE], **change}


def test_a_reviewed_service_account_is_known() -> None:
    found = reviewed(status(audiences=["other", tokens.SERVICE]))

    assert found == POD
    assert found.subject == "system:serviceaccount:team:default"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"authenticated": False}, id="refused"),
        pytest.param({"authenticated": "true"}, id="not-a-boolean"),
        pytest.param({"audiences": []}, id="no-audience"),
        pytest.param({"audiences": None}, id="audiences-unknown"),
        pytest.param({"audiences": ["https://kubernetes.default.svc"]}, id="other-audience"),
        pytest.param({"user": None}, id="nobody"),
        pytest.param({"user": {"username": "admin"}}, id="person"),
        pytest.param({"user": {"username": "system:serviceaccount:team"}}, id="half"),
        pytest.param({"user": {"username": "system:serviceaccount:a/b:default"}}, id="odd-namespace"),
        pytest.param({"user": {"username": "x:system:serviceaccount:team:default"}}, id="prefixed"),
    ],
)
def test_what_is_no_service_account_of_ours_is_nobody(change: dict[str, Any]) -> None:
    assert reviewed(status(**change)) is None


@pytest.fixture(scope="module")
def signer() -> Signer:
    return Signer.from_pem(*pair(trustme.CA()))


def pair(authority: trustme.CA, **options: Any) -> tuple[bytes, bytes]:
    issued = authority.issue_cert("token-signer", **options)
    return issued.cert_chain_pems[0].bytes(), issued.private_key_pem.bytes()


def decoded(part: str) -> Any:
    return json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))


def test_a_token_says_who_may_read_what_for_minutes_and_is_signed(signer: Signer) -> None:
    answer = Grant(POD, ("cluster", "ns/team"), NOW, "n1").answer(signer)
    header, claims, signature = answer["token"].split(".")
    raw = base64.urlsafe_b64decode(signature + "==")
    (leaf,) = decoded(header)["x5c"]
    key = x509.load_der_x509_certificate(base64.b64decode(leaf)).public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert len(raw) == 64
    der = encode_dss_signature(int.from_bytes(raw[:32]), int.from_bytes(raw[32:]))
    key.verify(der, f"{header}.{claims}".encode(), ec.ECDSA(hashes.SHA256()))
    with pytest.raises(InvalidSignature):
        key.verify(der, f"{header}.{claims}x".encode(), ec.ECDSA(hashes.SHA256()))

    made = int(NOW.timestamp())
    assert {name: value for name, value in decoded(header).items() if name != "x5c"} == {"typ": "JWT", "alg": "ES256"}
    assert decoded(claims) == {
        "iss": "ai-models-webhook",
        "sub": "system:serviceaccount:team:default",
        "aud": "ai-models-dmcr",
        "exp": made + 240,
        "nbf": made,
        "iat": made,
        "jti": "n1",
        "access": [
            {"type": "repository", "name": "cluster", "actions": ["pull"]},
            {"type": "repository", "name": "ns/team", "actions": ["pull"]},
        ],
    }
    assert answer == {
        "token": answer["token"],
        "access_token": answer["token"],
        "expires_in": 240,
        "issued_at": "2026-12-01T12:00:00Z",
    }


def test_signatures_are_64_bytes_however_small_their_numbers(signer: Signer) -> None:
    lengths = {len(signer.sign({"n": n}).rpartition(".")[2]) for n in range(300)}

    assert lengths == {86}


def test_a_signer_is_used_only_while_its_tokens_will_be_trusted(signer: Signer) -> None:
    ends = dataclasses.replace(signer, not_after=NOW + datetime.timedelta(minutes=10))

    assert ends.usable(NOW)
    assert ends.usable(NOW + datetime.timedelta(minutes=5))
    assert not ends.usable(NOW + datetime.timedelta(minutes=6))
    assert not ends.usable(NOW + datetime.timedelta(minutes=60))


def test_what_cannot_sign_is_refused_and_never_shown() -> None:
    certificate, key = pair(trustme.CA())
    other = pair(trustme.CA())
    rsa = pair(trustme.CA(), key_type=trustme.KeyType.RSA)
    for one, two in [(certificate, other[1]), rsa, (certificate, b""), (b"x", key), (key, certificate)]:
        with pytest.raises(UsageError) as caught:
            Signer.from_pem(one, two)
        assert "PRIVATE" not in str(caught.value)

    assert "key" not in repr(Signer.from_pem(certificate, key))
