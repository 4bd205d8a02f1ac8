"""How a hub is reached: endpoint, token, certificate authority, hosts. Values and the pure reading of an environment.

Only `saved_token` touches the disk. Nothing here asks a host.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from aimodels_core import hosts, proxies
from aimodels_core.errors import UsageError
from aimodels_core.hosts import HostRules
from aimodels_core.proxies import Proxies
from aimodels_jobs.sources import hub_url

_TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_TRUE = frozenset({"1", "true", "yes", "on"})
_MAX_TOKEN_BYTES = 4096
_CDN_SUFFIXES = (".hf.co", ".huggingface.co")


@dataclasses.dataclass(frozen=True, slots=True)
class HubSettings:
    """How a hub is reached.

    Args:
        endpoint: base URL given explicitly by the user or the administrator; empty for huggingface.co. An explicit
            endpoint is trusted: http and addresses that are not global are allowed, for its CDN hosts too.
        token: access token; empty for none. It goes to the endpoint's own host only.
        ca_file: PEM file of certificate authorities; empty for the system's.
        allowed_hosts: further hosts that files may be read from, with any address.
        private_cidrs: networks that are not global and may be reached all the same.
        proxies: what requests to the hub and its CDN go through.
    """

    endpoint: str = ""
    token: str = dataclasses.field(default="", repr=False)
    ca_file: str = ""
    allowed_hosts: frozenset[str] = frozenset()
    private_cidrs: tuple[str, ...] = ()
    proxies: Proxies = proxies.DIRECT


def host_rules(endpoint: str, settings: HubSettings) -> HostRules:
    """Return where a hub's requests and redirects may go.

    An endpoint that was given explicitly is trusted as it is, and so are the addresses of its CDN hosts.
    """
    explicit = frozenset({hosts.origin(endpoint).host}) if settings.endpoint else frozenset[str]()
    return HostRules(
        trusted=explicit,
        suffixes=_CDN_SUFFIXES,
        suffixes_private=bool(settings.endpoint),
        allowed=settings.allowed_hosts,
        private_cidrs=settings.private_cidrs,
    )


def from_env(env: Mapping[str, str]) -> HubSettings:
    """Read endpoint and token from the hub's own variables, proxies from the usual ones.

    Raises:
        UsageError: a value that cannot be one.

    >>> from_env({"HF_ENDPOINT": "http://hub.local/"}).endpoint
    'http://hub.local'
    """
    endpoint = env.get("HF_ENDPOINT", "").strip()
    return HubSettings(
        endpoint=hub_url.parse_endpoint(endpoint) if endpoint else "",
        token=_token(env),
        proxies=proxies.from_env(env),
    )


def token_path(env: Mapping[str, str], home: Path) -> Path | None:
    """Return the file in which the hub's own client keeps its token; None when the user forbids its use.

    Source: huggingface_hub, "Environment variables": HF_TOKEN_PATH, HF_HOME, XDG_CACHE_HOME,
    HF_HUB_DISABLE_IMPLICIT_TOKEN.
    """
    if env.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").strip().lower() in _TRUE:
        return None
    if named := env.get("HF_TOKEN_PATH", ""):
        return _expand(named, home)
    if hub_home := env.get("HF_HOME", ""):
        return _expand(hub_home, home) / "token"
    cache = env.get("XDG_CACHE_HOME", "")
    return (_expand(cache, home) if cache else home / ".cache") / "huggingface" / "token"


def saved_token(path: Path | None) -> str:
    """Read the token that the hub's own client saved; empty when there is none.

    Raises:
        UsageError: the file is there and cannot be read, or holds no token.
    """
    if path is None:
        return ""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_TOKEN_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise UsageError(f"{path}: cannot read the token: {error.strerror}") from error
    return check_token(content.decode("utf-8", "replace"), where=str(path))


def check_token(text: str, *, where: str) -> str:
    """Return a token without the white space around it.

    Args:
        text: what was given; never shown in a message.
        where: what to name in the message.

    Raises:
        UsageError: too long, or with characters that cannot be sent in a header.
    """
    token = text.strip()
    if len(token) > _MAX_TOKEN_BYTES or not all(0x21 <= ord(c) <= 0x7E for c in token):
        raise UsageError(f"{where}: want a token of visible ASCII characters on one line")
    return token


def _token(env: Mapping[str, str]) -> str:
    for name in _TOKEN_VARIABLES:
        if token := check_token(env.get(name, ""), where=name):
            return token
    return ""


def _expand(text: str, home: Path) -> Path:
    if text == "~" or text.startswith("~/"):
        return home / text[2:]
    return Path(text)
