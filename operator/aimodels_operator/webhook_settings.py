"""Settings of the webhook process, read once from the environment by a pure function."""

import dataclasses
import re
from collections.abc import Mapping

from aimodels_core.errors import UsageError
from aimodels_core.serving import LOG_LEVELS
from aimodels_operator.settings import NODE_CACHE, PREFIX, SHARED_PVC

_PORTS = ("listen_port", "health_port")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclasses.dataclass(frozen=True, slots=True)
class WebhookSettings:
    """What the webhook process is told.

    Args:
        namespace: AI_MODELS_NAMESPACE: of the operator, whose ServiceAccount may read every repository.
        node_namespace: AI_MODELS_NODE_NAMESPACE: of the node agents, all of whom may.
        tls_dir: AI_MODELS_TLS_DIR: folder with tls.crt and tls.key of this server, followed when they change.
        signer_dir: AI_MODELS_SIGNER_DIR: folder with tls.crt and tls.key that sign registry tokens, followed too.
        delivery_type: AI_MODELS_DELIVERY_TYPE: SharedPVC or NodeCache; everything is admitted as it is when empty.
        listen_host: AI_MODELS_LISTEN_HOST: address of both ports.
        listen_port: AI_MODELS_LISTEN_PORT: of the server, over TLS; 0 takes any free one.
        health_port: AI_MODELS_HEALTH_PORT: of health and metrics, in the clear; 0 takes any free one.
        log_level: AI_MODELS_LOG_LEVEL: Debug, Info, Warn or Error.
        kubeconfig: KUBECONFIG: empty for the ServiceAccount of the Pod.
    """

    namespace: str = "d8-ai-models"
    node_namespace: str = "d8-ai-models-node"
    tls_dir: str = "/etc/ai-models/tls"
    signer_dir: str = "/etc/ai-models/signer"
    delivery_type: str = ""
    listen_host: str = "0.0.0.0"  # noqa: S104 - a Pod is reached at its address
    listen_port: int = 8443
    health_port: int = 8080
    log_level: str = "Info"
    kubeconfig: str = ""


def from_env(env: Mapping[str, str]) -> WebhookSettings:
    """Read the settings.

    Raises:
        UsageError: one is unknown or wrong.
    """
    known = {field.name for field in dataclasses.fields(WebhookSettings)} - {"kubeconfig"}
    own = {name.removeprefix(PREFIX).lower(): value for name, value in env.items() if name.startswith(PREFIX)}
    if unknown := sorted(PREFIX + name.upper() for name in own.keys() - known):
        raise UsageError(f"environment: unknown settings {', '.join(unknown)}")
    ports = {name: _port(name, own.pop(name)) for name in _PORTS if name in own}
    found = WebhookSettings(**own, **ports, kubeconfig=env.get("KUBECONFIG", ""))  # type: ignore[arg-type] # names were checked
    for name in ("namespace", "node_namespace"):
        if not _NAMESPACE.fullmatch(getattr(found, name)):
            raise UsageError(f"{PREFIX}{name.upper()}: want a namespace, got {getattr(found, name)[:80]!r}")
    if found.delivery_type not in ("", SHARED_PVC, NODE_CACHE):
        raise UsageError(f"{PREFIX}DELIVERY_TYPE: want SharedPVC or NodeCache, got {found.delivery_type[:20]!r}")
    if found.log_level not in LOG_LEVELS:
        raise UsageError(f"{PREFIX}LOG_LEVEL: want one of {', '.join(LOG_LEVELS)}, got {found.log_level[:20]!r}")
    return found


def _port(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise UsageError(f"{PREFIX}{name.upper()}: want a port, got {text[:20]!r}")
    return int(text)
