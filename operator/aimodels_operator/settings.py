"""Settings of the operator, read once from the environment by a pure function."""

import dataclasses
import re
from collections.abc import Mapping

from aimodels_core.errors import UsageError

PREFIX = "AI_MODELS_"
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """What the operator is told.

    Args:
        coordinator_url: AI_MODELS_COORDINATOR_URL: `https://…`, required.
        coordinator_token_file: AI_MODELS_COORDINATOR_TOKEN_FILE: the bearer token, required.
        coordinator_ca_file: AI_MODELS_COORDINATOR_CA_FILE: PEM; the system's authorities when empty.
        namespace: AI_MODELS_NAMESPACE: where the Lease lies; the module's own by default.
        identity: AI_MODELS_IDENTITY: the name of this replica, required; the Pod's name.
        lease: AI_MODELS_LEASE: name of the Lease.
        listen_host: AI_MODELS_LISTEN_HOST: where health and metrics are served.
        listen_port: AI_MODELS_LISTEN_PORT: 0 takes any free one.
        log_level: AI_MODELS_LOG_LEVEL: Debug, Info, Warn or Error.
        kubeconfig: KUBECONFIG: empty for the ServiceAccount of the Pod.
    """

    coordinator_url: str
    coordinator_token_file: str
    identity: str
    coordinator_ca_file: str = ""
    namespace: str = "d8-ai-models"
    lease: str = "ai-models-operator"
    listen_host: str = "0.0.0.0"  # noqa: S104 - a Pod is probed at its address
    listen_port: int = 8080
    log_level: str = "Info"
    kubeconfig: str = ""


_LEVELS = ("Debug", "Info", "Warn", "Error")
_REQUIRED = ("coordinator_url", "coordinator_token_file", "identity")


def from_env(env: Mapping[str, str]) -> Settings:
    """Read the settings.

    Raises:
        UsageError: one is missing, unknown or wrong.
    """
    fields = {field.name: field for field in dataclasses.fields(Settings)}
    own = {name.removeprefix(PREFIX).lower(): value for name, value in env.items() if name.startswith(PREFIX)}
    unknown = sorted(PREFIX + name.upper() for name in own.keys() - (fields.keys() - {"kubeconfig"}))
    if unknown:
        raise UsageError(f"environment: unknown settings {', '.join(unknown)}")
    missing = [PREFIX + name.upper() for name in _REQUIRED if not own.get(name)]
    if missing:
        raise UsageError(f"environment: want {', '.join(missing)}, got nothing")
    port = own.pop("listen_port", "")
    if port and not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise UsageError(f"{PREFIX}LISTEN_PORT: want a port, got {port[:20]!r}")
    numbers = {"listen_port": int(port)} if port else {}
    found = Settings(**own, **numbers, kubeconfig=env.get("KUBECONFIG", ""))  # type: ignore[arg-type] # names were checked
    for name, value in (("NAMESPACE", found.namespace), ("LEASE", found.lease), ("IDENTITY", found.identity)):
        if not _NAME.fullmatch(value):
            raise UsageError(f"{PREFIX}{name}: want a name of Kubernetes, got {value[:80]!r}")
    if found.log_level not in _LEVELS:
        raise UsageError(f"{PREFIX}LOG_LEVEL: want one of {', '.join(_LEVELS)}, got {found.log_level[:20]!r}")
    return found
