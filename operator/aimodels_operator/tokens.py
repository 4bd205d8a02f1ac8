"""Registry tokens: what is asked for, what an identity may read, and the signed answer. Pure.

DMCR, a read-only registry, sends its clients here; they show the token of a ServiceAccount and get one for its
repositories. Who is asked whether that token is good, and over which wire, is in `webhook`.
Source: distribution v3.1, docs/content/spec/auth: token.md, scope.md, jwt.md; RFC 7515; RFC 7518, 3.4.
"""

import base64
import dataclasses
import datetime
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from aimodels_core import names
from aimodels_core.errors import UsageError

SERVICE = "ai-models-dmcr"
"""Name of the registry: `service` of its challenge, `aud` of its tokens, audience of the ServiceAccounts' tokens."""
ISSUER = "ai-models-webhook"
"""Who signs: `iss`."""
LIFETIME = datetime.timedelta(minutes=4)
"""Of a token; the registry allows one minute of leeway, so it works for five at most."""
OPERATOR = "ai-models-operator"
"""The ServiceAccount at home that reads published models back."""

_MAX_SCOPES = 32
_MAX_SCOPE_CHARS = 4096
_PULL = "pull"
# scope.md, "Resource Scope Grammar"; the name ends at the last colon, since it may begin with a host and a port.
_SCOPE = re.compile(r"([a-z0-9]+)(?:\([a-z0-9]+\))?:([A-Za-z0-9._:/-]+):([a-z*]*(?:,[a-z*]*)*)")
_ACCOUNT = re.compile(r"system:serviceaccount:([a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?):([a-z0-9][-a-z0-9.]{0,252})")


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """A ServiceAccount."""

    namespace: str
    name: str

    @property
    def subject(self) -> str:
        """Its user name at the API server."""
        return f"system:serviceaccount:{self.namespace}:{self.name}"


@dataclasses.dataclass(frozen=True, slots=True)
class Homes:
    """Namespaces of our own.

    Args:
        home: of the operator.
        nodes: of the node agents.
    """

    home: str
    nodes: str


def reviewed(status: Mapping[str, Any]) -> Identity | None:
    """Read the status of a TokenReview; None when it is no ServiceAccount's token for this registry.

    Source: Kubernetes API, authentication.k8s.io/v1, TokenReviewStatus: an authenticated token without our audience is
    meant for somebody else.
    """
    user = status.get("user")
    audiences = status.get("audiences")
    if status.get("authenticated") is not True or not isinstance(user, Mapping) or not isinstance(audiences, Sequence):
        return None
    found = _ACCOUNT.fullmatch(str(user.get("username", "")))
    return Identity(found[1], found[2]) if found and SERVICE in audiences else None


def asked_repositories(scopes: Sequence[str]) -> tuple[str, ...]:
    """Name the repositories that are asked for with the action `pull`, each once, in order.

    Args:
        scopes: values of the parameter `scope`; each may have several, separated by spaces.

    Raises:
        UsageError: too many, or one that is none.

    >>> asked_repositories(["repository:ns/a:pull,push registry:catalog:*", "repository:cluster:pull"])
    ('ns/a', 'cluster')
    """
    words = [word for text in scopes for word in text.split(" ") if word]
    if len(words) > _MAX_SCOPES or sum(map(len, words)) > _MAX_SCOPE_CHARS:
        raise UsageError(f"scope: want at most {_MAX_SCOPES} in {_MAX_SCOPE_CHARS} characters, got {len(words)}")
    found: dict[str, None] = {}
    for word in words:
        match = _SCOPE.fullmatch(word)
        if match is None:
            raise UsageError(f"scope: want repository:<name>:pull, got {word[:80]!r}")
        if match[1] == "repository" and _PULL in match[3].split(","):
            found[match[2]] = None
    return tuple(found)


def may_pull(identity: Identity, repository: str, homes: Homes) -> bool:
    """Say whether an identity may read a repository: what belongs to all or to its namespace; our own read everything.

    >>> homes = Homes("d8-ai-models", "d8-ai-models-node")
    >>> [may_pull(Identity("a", "default"), name, homes) for name in ("cluster", "ns/a", "ns/b", "public")]
    [True, True, False, False]
    """
    own = identity.namespace == homes.nodes or identity == Identity(homes.home, OPERATOR)
    if own:
        return names.is_scope(repository) or repository == names.PUBLIC
    return repository in (names.CLUSTER, names.namespace_repository(identity.namespace))


@dataclasses.dataclass(frozen=True, slots=True)
class Grant:
    """A token before it is signed.

    Args:
        identity: for whom.
        repositories: that it may read.
        at: when it is made, aware.
        number: unique among tokens.
    """

    identity: Identity
    repositories: tuple[str, ...]
    at: datetime.datetime
    number: str

    def claims(self) -> dict[str, Any]:
        """Render the claims (jwt.md, "Claim Set")."""
        made = int(self.at.timestamp())
        access = [{"type": "repository", "name": name, "actions": [_PULL]} for name in self.repositories]
        return {
            "iss": ISSUER,
            "sub": self.identity.subject,
            "aud": SERVICE,
            "exp": made + int(LIFETIME.total_seconds()),
            "nbf": made,
            "iat": made,
            "jti": self.number,
            "access": access,
        }

    def answer(self, signer: "Signer") -> dict[str, Any]:
        """Render what the client gets (token.md, "Token Response Fields")."""
        token = signer.sign(self.claims())
        at = self.at.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        seconds = int(LIFETIME.total_seconds())
        return {"token": token, "access_token": token, "expires_in": seconds, "issued_at": at}


@dataclasses.dataclass(frozen=True, slots=True)
class Signer:
    """Signs with the key of a certificate that the registry trusts.

    Args:
        certificate: DER.
        not_after: when the registry stops to trust it.
        key: its key; never shown.
    """

    certificate: bytes
    not_after: datetime.datetime
    key: ec.EllipticCurvePrivateKey = dataclasses.field(repr=False)

    @classmethod
    def from_pem(cls, certificate: bytes, key: bytes) -> Self:
        """Read a certificate and its key.

        Raises:
            UsageError: not a pair on the curve P-256.
        """
        try:
            leaf = x509.load_pem_x509_certificate(certificate)
            public = leaf.public_key()
            private = serialization.load_pem_private_key(key, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise UsageError("signer: want a certificate and its key in PEM, got something else") from None
        if not isinstance(private, ec.EllipticCurvePrivateKey) or not isinstance(private.curve, ec.SECP256R1):
            raise UsageError("signer: want a key on the curve P-256, got another kind")
        if public != private.public_key():
            raise UsageError("signer: want the certificate of its key, got another one")
        return cls(leaf.public_bytes(serialization.Encoding.DER), leaf.not_valid_after_utc, private)

    def usable(self, at: datetime.datetime) -> bool:
        """Whether the registry trusts it for the life of a token made now."""
        return at + LIFETIME < self.not_after

    def sign(self, claims: Mapping[str, Any]) -> str:
        """Render a JSON Web Token with the algorithm ES256, and the certificate by which it is verified.

        The chain is this one certificate: the registry has its authority (RFC 7515, 4.1.6).
        """
        header = {"typ": "JWT", "alg": "ES256", "x5c": [base64.b64encode(self.certificate).decode()]}
        text = f"{_encoded(header)}.{_encoded(claims)}"
        r, s = decode_dss_signature(self.key.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{text}.{_base64(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def _encoded(part: Mapping[str, Any]) -> str:
    return _base64(json.dumps(part, separators=(",", ":")).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
