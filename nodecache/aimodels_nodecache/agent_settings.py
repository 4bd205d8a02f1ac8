"""Settings of the agent of a node, from the environment of the raylet that its actor runs under. Pure."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from aimodels_core.dmcr import Place
from aimodels_core.errors import UsageError
from aimodels_nodecache.fetching import Access

PREFIX = "AI_MODELS_AGENT_"
_MOST_BYTES_PER_SECOND = 1 << 40


@dataclasses.dataclass(frozen=True, slots=True)
class AgentSettings:
    """What an agent is told.

    Args:
        node: AI_MODELS_AGENT_NODE: its name in Kubernetes.
        cache_dir: AI_MODELS_AGENT_CACHE_DIR: folder of the node's cache.
        registry_url: AI_MODELS_AGENT_REGISTRY_URL: of our registry.
        token_file: AI_MODELS_AGENT_TOKEN_FILE: token of the agents' ServiceAccount.
        redirect_url: AI_MODELS_AGENT_REDIRECT_URL: where the registry sends readers of blobs; empty when it does not.
        ca_file: AI_MODELS_AGENT_CA_FILE: authorities of registry, issuer and store.
        audit_bytes_per_second: AI_MODELS_AGENT_AUDIT_BYTES_PER_SECOND: of reading again what is here; 0 for never.
    """

    node: str
    cache_dir: str = "/var/lib/ai-models/node-cache"
    registry_url: str = ""
    token_file: str = ""
    redirect_url: str = ""
    ca_file: str = ""
    audit_bytes_per_second: int = 20_000_000

    @property
    def access(self) -> Access:
        """How the registry is reached."""
        return Access(Place(self.registry_url, self.token_file, self.redirect_url), self.ca_file)


def from_env(env: Mapping[str, str]) -> AgentSettings:
    """Read the settings.

    Raises:
        UsageError: one is unknown, missing or wrong.
    """
    known = {field.name for field in dataclasses.fields(AgentSettings)}
    own = {name.removeprefix(PREFIX).lower(): value for name, value in env.items() if name.startswith(PREFIX)}
    if unknown := sorted(PREFIX + name.upper() for name in own.keys() - known):
        raise UsageError(f"environment: unknown settings {', '.join(unknown)}")
    pace = own.pop("audit_bytes_per_second", "")
    if pace and not (pace.isascii() and pace.isdigit() and int(pace) <= _MOST_BYTES_PER_SECOND):
        raise UsageError(f"{PREFIX}AUDIT_BYTES_PER_SECOND: want a number, got {pace[:40]!r}")
    found = AgentSettings(**{"node": "", **own}, **({"audit_bytes_per_second": int(pace)} if pace else {}))  # type: ignore[arg-type] # names were checked
    for name in ("node", "registry_url"):
        if not getattr(found, name):
            raise UsageError(f"{PREFIX}{name.upper()}: want a value, got nothing")
    if not Path(found.cache_dir).is_absolute():
        raise UsageError(f"{PREFIX}CACHE_DIR: want an absolute path, got {found.cache_dir[:80]!r}")
    return found
