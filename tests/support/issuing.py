"""The webhook process as it is, over an API server that only reviews tokens, for registries that trust its tokens."""

import contextlib
import dataclasses
import datetime
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trustme

from aimodels_operator import tokens
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


@dataclasses.dataclass(slots=True)
class Issuing:
    """A webhook process that runs.

    Args:
        server: the process; its port is that of `/token`.
        health_port: of health and metrics.
        accounts: the API server that it asks.
        certificates: of its TLS.
        authority: of the signer.
        folder: with the signer's files.
    """

    server: Server
    health_port: int
    accounts: Accounts
    certificates: Certificates
    authority: trustme.CA
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
        _sign(self.authority, self.folder)

    def signer(self, **options: Any) -> tokens.Signer:
        """Make another signer of the same authority."""
        issued = self.authority.issue_cert("other-signer", **options)
        return tokens.Signer.from_pem(issued.cert_chain_pems[0].bytes(), issued.private_key_pem.bytes())

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self.server.process.send_signal(signal.SIGTERM)
        return self.server.process.wait(20)


def _sign(authority: trustme.CA, folder: Path, not_after: datetime.datetime | None = None) -> None:
    issued = authority.issue_cert("token-signer", not_after=not_after)
    parts = {"tls.key": issued.private_key_pem, "tls.crt": issued.cert_chain_pems[0], "ca.crt": authority.cert_pem}
    for name, blob in parts.items():
        made = folder / f"{name}.new"
        made.write_bytes(blob.bytes())
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
def issuing(folder: Path, *, signer_until: datetime.datetime | None = None) -> Iterator[Issuing]:
    """Run the webhook process over an API server of its own.

    Args:
        folder: for its files.
        signer_until: when the signer's certificate expires, if not for long.
    """
    tls, signer, accounts, authority = folder / "tls", folder / "signer", Accounts(), trustme.CA()
    for one in (tls, signer):
        one.mkdir(parents=True)
    made = certificates(tls)
    _sign(authority, signer, signer_until)
    health_port = free_port()
    with serve(accounts) as api:

        def command(port: int) -> list[str]:
            settings = {"LISTEN_HOST": HOST, "LISTEN_PORT": port, "HEALTH_PORT": health_port}
            settings |= {"TLS_DIR": tls, "SIGNER_DIR": signer}
            words = [f"AI_MODELS_{name}={value}" for name, value in settings.items()]
            words += [f"KUBECONFIG={_kubeconfig(folder, api.url)}"]
            return ["env", *words, sys.executable, "-m", "aimodels_operator.webhook"]

        with started(command, ready=lambda _: answers(health_port, path="/healthz"), tls=True) as server:
            yield Issuing(server, health_port, accounts, made, authority, signer)
