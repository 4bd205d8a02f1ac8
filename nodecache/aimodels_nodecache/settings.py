"""Settings of the node's CSI driver, read once from the environment by a pure function."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

from aimodels_core.errors import UsageError

PREFIX = "AI_MODELS_"
LOG_LEVELS = ("Debug", "Info", "Warn", "Error")

_NUMBERS = {"wait_seconds": 110, "waiters": 10_000, "orphan_seconds": 86_400, "health_port": 65535}
_FOLDERS = ("cache_dir", "kubelet_dir", "account_dir")
_NODE = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_URL = re.compile(r"https://(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?/?")


@dataclasses.dataclass(frozen=True, slots=True)
class CsiSettings:
    """What the driver is told.

    Args:
        node: AI_MODELS_NODE: its name in Kubernetes.
        cache_dir: AI_MODELS_CACHE_DIR: folder of the node's cache.
        kubelet_dir: AI_MODELS_KUBELET_DIR: kubelet's folder, at the path that kubelet has for it.
        api_url: AI_MODELS_API_URL: https://<host>:<port> of the API server; when empty, from what every Pod is told.
        account_dir: AI_MODELS_ACCOUNT_DIR: folder with token and ca.crt of a ServiceAccount.
        wait_seconds: AI_MODELS_WAIT_SECONDS: most that a publication waits for its model; kubelet gives up after 120.
        waiters: AI_MODELS_WAITERS: most that wait at once.
        orphan_seconds: AI_MODELS_ORPHAN_SECONDS: between looks for what Pods left that are gone.
        host_folder: AI_MODELS_HOST_FOLDER: `true` when a folder of the node holds models too, beside block devices.
        listen_host: AI_MODELS_LISTEN_HOST: address of health and metrics.
        health_port: AI_MODELS_HEALTH_PORT: their port; 0 takes any free one.
        log_level: AI_MODELS_LOG_LEVEL: Debug, Info, Warn or Error.
    """

    node: str
    cache_dir: str = "/var/lib/ai-models/node-cache"
    kubelet_dir: str = "/var/lib/kubelet"
    api_url: str = ""
    account_dir: str = "/var/run/secrets/kubernetes.io/serviceaccount"
    wait_seconds: int = 100
    waiters: int = 256
    orphan_seconds: int = 300
    host_folder: bool = False
    listen_host: str = "0.0.0.0"  # noqa: S104 - a Pod is reached at its address
    health_port: int = 8080
    log_level: str = "Info"


def from_env(env: Mapping[str, str]) -> CsiSettings:
    """Read the settings.

    Raises:
        UsageError: one is unknown, missing or wrong.
    """
    known = {field.name for field in dataclasses.fields(CsiSettings)}
    own = {name.removeprefix(PREFIX).lower(): value for name, value in env.items() if name.startswith(PREFIX)}
    if unknown := sorted(PREFIX + name.upper() for name in own.keys() - known):
        raise UsageError(f"environment: unknown settings {', '.join(unknown)}")
    own.setdefault("node", "")
    if not own.get("api_url"):
        own["api_url"] = _api_url(env)
    numbers = {name: _number(name, own.pop(name), most) for name, most in _NUMBERS.items() if name in own}
    if (folder := own.pop("host_folder", "false")) not in ("true", "false"):
        raise UsageError(f"{PREFIX}HOST_FOLDER: want true or false, got {folder[:20]!r}")
    own["host_folder"] = folder == "true"  # type: ignore[assignment] # this one is no text
    found = CsiSettings(**own, **numbers)  # type: ignore[arg-type] # names were checked
    _check(found)
    return found


def _api_url(env: Mapping[str, str]) -> str:
    host, port = env.get("KUBERNETES_SERVICE_HOST", ""), env.get("KUBERNETES_SERVICE_PORT", "443")
    return f"https://{f'[{host}]' if ':' in host else host}:{port}" if host else ""


def _check(found: CsiSettings) -> None:
    if not _NODE.fullmatch(found.node):
        raise UsageError(f"{PREFIX}NODE: want the name of this node, got {found.node[:80]!r}")
    if not _URL.fullmatch(found.api_url):
        raise UsageError(f"{PREFIX}API_URL: want https://<host>:<port>, got {found.api_url[:80]!r}")
    for name in _FOLDERS:
        path = Path(getattr(found, name))
        if not path.is_absolute() or ".." in path.parts or path == Path("/"):
            raise UsageError(f"{PREFIX}{name.upper()}: want the absolute path of a folder, got {str(path)[:80]!r}")
    if found.log_level not in LOG_LEVELS:
        raise UsageError(f"{PREFIX}LOG_LEVEL: want one of {', '.join(LOG_LEVELS)}, got {found.log_level[:20]!r}")


def _number(name: str, text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and int(text) <= most):
        raise UsageError(f"{PREFIX}{name.upper()}: want a number up to {most}, got {text[:20]!r}")
    return int(text)
