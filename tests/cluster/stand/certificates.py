"""The stand's one CA: server and client certificates, kubeconfigs, the service-account key."""

import base64
import json
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.cluster.stand.layout import ADDRESS, Layout


@dataclass(frozen=True, slots=True)
class Pair:
    """Files of a certificate with its chain, and of its key."""

    certificate: Path
    key: Path


class Authority:
    """The CA, kept in the stand's folder so that any process of the sandbox can issue from it."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        key = layout.pki / "ca.key"
        if key.exists():
            self._ca = trustme.CA.from_pem(layout.ca.read_bytes(), key.read_bytes())
        else:
            self._ca = trustme.CA(organization_name="ai-models test stand")
            self._ca.private_key_pem.write_to_path(key)
            self._ca.cert_pem.write_to_path(layout.ca)

    def server(self, name: str, *identities: str) -> Pair:
        """Certificate of a server for host names, wildcards and IP addresses."""
        return self._write(name, self._ca.issue_cert(*identities))

    def client(self, user: str, group: str | None = None) -> Pair:
        """Certificate of a Kubernetes user."""
        return self._write(
            f"user-{user.replace(':', '-')}", self._ca.issue_cert("client", common_name=user, organization_name=group)
        )

    def kubeconfig(self, user: str, group: str | None = None, *, into: Path) -> Path:
        """Write a kubeconfig of a user, with everything embedded."""
        pair = self.client(user, group)
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "stand",
                    "cluster": {
                        "server": f"https://{ADDRESS}:6443",
                        "certificate-authority-data": _encoded(self._layout.ca),
                    },
                }
            ],
            "users": [
                {
                    "name": user,
                    "user": {
                        "client-certificate-data": _encoded(pair.certificate),
                        "client-key-data": _encoded(pair.key),
                    },
                }
            ],
            "contexts": [{"name": "stand", "context": {"cluster": "stand", "user": user}}],
            "current-context": "stand",
        }
        into.write_text(json.dumps(content))
        into.chmod(0o600)
        return into

    def service_account_key(self) -> Pair:
        """Key that signs ServiceAccount tokens, and its public half."""
        pair = Pair(self._layout.pki / "sa.pub", self._layout.pki / "sa.key")
        if not pair.key.exists():
            key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
            encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
            pair.key.write_bytes(key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain))
            public = serialization.PublicFormat.SubjectPublicKeyInfo
            pair.certificate.write_bytes(key.public_key().public_bytes(encoding, public))
        return pair

    def _write(self, name: str, issued: trustme.LeafCert) -> Pair:
        pair = Pair(self._layout.pki / f"{name}.crt", self._layout.pki / f"{name}.key")
        pair.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        pair.key.write_bytes(issued.private_key_pem.bytes())
        pair.key.chmod(0o600)
        return pair


def _encoded(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode("ascii")
