"""Our registry as its readers find it: which hosts take part, and how they show who they are.

The operator reads published models back through it, pull Jobs and node agents fetch them; all with the token of their
ServiceAccount, which the registry's issuer exchanges for one of a single repository and `pull`.
"""

import base64
import dataclasses
from pathlib import Path

from aimodels_core import watched
from aimodels_core.digest import Digest
from aimodels_core.errors import UsageError
from aimodels_core.hosts import HostRules, origin

_USER = "ai-models"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where artifacts are read.

    Args:
        url: of the registry, `https://…`; its token issuer lies in the same domain.
        token_file: token of the ServiceAccount; read for every exchange.
        redirect_url: where the registry sends readers of blobs; empty when it serves them itself.
    """

    url: str
    token_file: str
    redirect_url: str = ""

    def credential(self) -> str:
        """Return the Authorization value for the issuer.

        Raises:
            UsageError: the token cannot be read.
        """
        token = watched.read_secret(Path(self.token_file))
        return "Basic " + base64.b64encode(f"{_USER}:{token}".encode()).decode("ascii")


def rules_of(place: Place) -> HostRules:
    """Say which hosts take part: the registry, what lies beside it in its domain, and its store.

    Raises:
        UsageError: a place that would get the token in the clear, or no address.

    >>> rules_of(Place("https://dmcr.home.svc:5000", "/t")).may_redirect("https://dmcr.home.svc:5000/v2/", "https://i.home.svc")
    True
    """
    try:
        here = origin(place.url)
        store = [origin(place.redirect_url).host] if place.redirect_url else []
    except ValueError as error:
        raise UsageError(f"registry: {error}") from error
    if not here.tls and here.host not in _LOOPBACK:
        raise UsageError("registry: want https://<host>[:<port>] (or http on the loopback)")
    name, _, domain = here.host.partition(".")
    suffixes = [domain] if domain and not name.isdigit() else []
    return HostRules(
        trusted=frozenset({here.host}),
        suffixes=(*suffixes, *store),
        suffixes_private=True,
        allowed=frozenset(store),
    )


def address(url: str, repository: str, digest: Digest) -> str:
    """Write where an artifact is, as people and Jobs name it.

    >>> address("https://dmcr:5000/", "ns/team", Digest.of(b""))[:34]
    'https://dmcr:5000/ns/team@sha256:e'
    """
    return f"{url.rstrip('/')}/{repository}@{digest}"


def parse_address(text: str) -> tuple[str, str, Digest]:
    """Take such an address apart: the registry's URL, the repository, the digest.

    Raises:
        UsageError: not one.

    >>> parse_address(address("https://dmcr:5000", "ns/team", Digest.of(b"")))[:2]
    ('https://dmcr:5000', 'ns/team')
    """
    place, at, digest = text.partition("@")
    scheme, _, rest = place.partition("://")
    host, slash, repository = rest.partition("/")
    wrong = UsageError(f"want https://HOST[:PORT]/REPOSITORY@sha256:HEX, got {text[:200]!r}")
    if not (at and slash and host and repository) or scheme not in ("https", "http"):
        raise wrong
    try:
        return f"{scheme}://{host}", repository, Digest.parse(digest)
    except ValueError as error:
        raise wrong from error
