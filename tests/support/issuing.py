"""The webhook process as it is, over an API server that only reviews tokens, for registries that trust its tokens."""

import base64
import contextlib
import dataclasses
import datetime
import http.client
import json
import os
import signal
import ssl
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from aimodels_operator import tokens
from aimodels_operator.certificates import LEAF_LIFE, Pair, make_authority, make_leaf
from tests.support.certificates import Certificates, certificates
from tests.support.processes import HOST, Server, answers, free_port, started
from tests.support.scripted import Call, Reply, serve


@dataclasses.dataclass(slots=True)
class Accounts:
    """An API server that knows some tokens (Kubernetes API, authentication.k8s.io/v1, TokenReview).

    Args:
        known: namespace, name and audience of a ServiceAccount by its token.
        down: it answers nothing but 500.
        reviews: tokens that were asked for.
    """

    known: dict[str, tuple[str, str, str]] = dataclasses.field(default_factory=dict)
    down: bool = False
    reviews: list[str] = dataclasses.field(default_factory=list)

    def add(self, namespace: str, name: str = "default", *, audience: str = tokens.SERVICE) -> str:
        """Make a token."""
        token = f"token-of-{namespace}.{name}.{len(self.known)}"
        self.known[token] = (namespace, name, audience)
        return token

    def __call__(self, call: Call) -> Reply:
        """Answer a request."""
        if self.down:
            return Reply(500, b'{"message": "etcdserver: request timed out"}')
        if (call.method, call.path) != ("POST", "/apis/authentication.k8s.io/v1/tokenreviews"):
            return Reply(403, b'{"message": "forbidden"}')
        spec = json.loads(call.body)["spec"]
        self.reviews.append(spec["token"])
        namespace, name, audience = self.known.get(spec["token"], ("", "", ""))
        status: dict[str, Any] = {"user": {}, "error": "invalid bearer token"}
        if audience in spec["audiences"]:
            user = {"username": f"system:serviceaccount:{namespace}:{name}", "groups": ["system:serviceaccounts"]}
            status = {"authenticated": True, "user": user, "audiences": [audience]}
        return Reply(201, json.dumps({"kind": "TokenReview", "status": status}).encode())


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What the issuer said."""

    status: int
    headers: Mapping[str, str]
    document: Mapping[str, Any]

    @property
    def token(self) -> str:
        """The token."""
        return str(self.document["token"])

    @property
    def claims(self) -> Any:
        """What the token claims."""
        part = self.token.split(".")[1]
        return json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))

    @property
    def repositories(self) -> list[str]:
        """What may be read with the token."""
        return [entry["name"] for entry in self.claims["access"]]


def basic(token: str, user: str = "any") -> str:
    """An Authorization header that shows a ServiceAccount's token."""
    return "Basic " + base64.b64encode(f"{user}:{token}".encode()).decode()


@dataclasses.dataclass(slots=True)
class Issuing:
    """A webhook process that runs.

    Args:
        server: the process; its port is that of `/token`.
        health_port: of health and metrics.
        accounts: the API server that it asks.
        certificates: of its TLS.
        authority: of the signer, made as the operator makes it.
        folder: with the signer's files.
    """

    server: Server
    health_port: int
    accounts: Accounts
    certificates: Certificates
    authority: Pair
    folder: Path

    @property
    def realm(self) -> str:
        """Where tokens are issued."""
        return f"https://{HOST}:{self.server.port}/token"

    @property
    def auth(self) -> dict[str, Any]:
        """The section of a registry's configuration."""
        section = {"realm": self.realm, "service": tokens.SERVICE, "issuer": tokens.ISSUER}
        bundle = {"rootcertbundle": str(self.folder / "ca.crt"), "signingalgorithms": ["ES256"]}
        return {"auth": {"token": {**section, **bundle}}}

    def renew(self) -> None:
        """Replace the signer, as a mounted Secret changes."""
        _sign(self.authority, self.folder, _now())

    def signer(self, at: datetime.datetime | None = None) -> tokens.Signer:
        """Make another signer of the same authority, now or at another time."""
        made = make_leaf(self.authority, "other-signer", (), at or _now())
        return tokens.Signer.from_pem(made.certificate.encode(), made.key.encode())

    def ask(self, authorization: str = "", query: str = "") -> "Answer":
        """Send one plain request for a token; knows nothing of our client."""
        context = ssl.create_default_context(cafile=str(self.certificates.ca))
        connection = http.client.HTTPSConnection(HOST, self.server.port, timeout=30, context=context)
        try:
            headers = {"Authorization": authorization} if authorization else {}
            connection.request("GET", f"/token?{query or f'service={tokens.SERVICE}'}", headers=headers)
            answer = connection.getresponse()
            received = {name.lower(): value for name, value in answer.getheaders()}
            body = answer.read()
            document = json.loads(body) if "json" in received.get("content-type", "") else {}
            return Answer(answer.status, received, document)
        finally:
            connection.close()

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self.server.process.send_signal(signal.SIGTERM)
        return self.server.process.wait(20)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _sign(authority: Pair, folder: Path, at: datetime.datetime) -> None:
    leaf = make_leaf(authority, "ai-models-token-signer", (), at)
    for name, text in {"tls.key": leaf.key, "tls.crt": leaf.certificate, "ca.crt": authority.certificate}.items():
        made = folder / f"{name}.new"
        made.write_text(text)
        made.replace(folder / name)


def _kubeconfig(folder: Path, url: str) -> Path:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "token-of-the-webhook"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(document), encoding="utf-8")  # JSON is YAML
    return path


@contextlib.contextmanager
def issuing(
    folder: Path,
    *,
    signer_left: datetime.timedelta = LEAF_LIFE,
    kubeconfig: Path | None = None,
    delivery: str = "",
) -> Iterator[Issuing]:
    """Run the webhook process.

    Args:
        folder: for its files.
        signer_left: until the signer's certificate expires.
        kubeconfig: of the API server that it asks; one that only reviews tokens if none is given.
        delivery: where Pods get models from; they get none if it is empty.
    """
    tls, signer, accounts = folder / "tls", folder / "signer", Accounts()
    for one in (tls, signer):
        one.mkdir(parents=True)
    made = certificates(tls)
    authority = make_authority("ai-models-token-root", _now() - 2 * LEAF_LIFE)
    _sign(authority, signer, _now() - LEAF_LIFE + signer_left)
    health_port = free_port()
    with serve(accounts) as api:

        def command(port: int) -> list[str]:
            settings = {"LISTEN_HOST": HOST, "LISTEN_PORT": port, "HEALTH_PORT": health_port}
            settings |= {"TLS_DIR": tls, "SIGNER_DIR": signer, "DELIVERY_TYPE": delivery}
            words = [f"AI_MODELS_{name}={value}" for name, value in settings.items()]
            words += [f"KUBECONFIG={kubeconfig or _kubeconfig(folder, api.url)}"]
            others = [f"--unset={name}" for name in os.environ if name.startswith("AI_MODELS_")]
            return ["env", *others, *words, sys.executable, "-m", "aimodels_operator.webhook"]

        with started(command, ready=lambda _: answers(health_port, path="/healthz"), tls=True) as server:
            yield Issuing(server, health_port, accounts, made, authority, signer)
