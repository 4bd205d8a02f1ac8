"""Settings of the operator, read once from the environment by a pure function."""

import dataclasses
import json
import re
from collections.abc import Mapping

from aimodels_core.errors import UsageError
from aimodels_core.names import HomeSecret
from aimodels_core.serving import LOG_LEVELS
from aimodels_core.units import quantity_bytes

PREFIX = "AI_MODELS_"
_DURATION = re.compile(r"(?=.)(?:([0-9]{1,4})h)?(?:([0-9]{1,5})m)?(?:([0-9]{1,6})s)?")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """What the operator is told.

    Args:
        coordinator_url: AI_MODELS_COORDINATOR_URL: `https://…`, required.
        identity: AI_MODELS_IDENTITY: the name of this replica, required; the Pod's name.
        namespace: AI_MODELS_NAMESPACE: where the Lease and the Secrets lie; the module's own by default.
        system_namespace: AI_MODELS_SYSTEM_NAMESPACE: where the administrator's Secrets lie.
        s3_secret: AI_MODELS_S3_SECRET: the administrator's Secret with accessKey and secretKey; none when empty.
        s3_ca_secret: AI_MODELS_S3_CA_SECRET: that with ca.crt of the store; none when empty.
        hub_secret: AI_MODELS_HUB_SECRET: that with the hub's token; none when empty.
        hub_ca_secret: AI_MODELS_HUB_CA_SECRET: that with ca.crt of the hub; none when empty.
        ray_url: AI_MODELS_RAY_URL: of the dashboard of Ray's head; empty when the coordinator is started otherwise.
        coordinator_command: AI_MODELS_COORDINATOR_COMMAND: arguments of `python3 -m aimodels_jobs.host`, a JSON list of
            strings; required with `ray_url`.
        capacity_limit: AI_MODELS_CAPACITY_LIMIT: bytes that the store may hold, given as a quantity such as 1Ti; 0 for
            no limit.
        dmcr_url: AI_MODELS_DMCR_URL: `https://…` of the registry that published models are read back through before
            they are Ready; empty for no reading back, which is only for operators beside tests without a registry.
        dmcr_token_file: AI_MODELS_DMCR_TOKEN_FILE: token of the Pod for its issuer, required with `dmcr_url`.
        dmcr_redirect_url: AI_MODELS_DMCR_REDIRECT_URL: of the S3 that it sends readers of blobs to; none when empty.
        delivery_type: AI_MODELS_DELIVERY_TYPE: SharedPVC or NodeCache; nothing is delivered when empty.
        max_gate_wait: AI_MODELS_MAX_GATE_WAIT: seconds, given as a duration such as 10m or 1h30m: how long a Pod whose
            models are Ready is kept from nodes that do not have them yet.
        node_cache_size: AI_MODELS_NODE_CACHE_SIZE: bytes that the cache of one node may hold, given as a quantity such
            as 200Gi; 0 for what fits.
        shared_pvc_image: AI_MODELS_SHARED_PVC_IMAGE: of pull Jobs; required with SharedPVC, and so is `dmcr_url`.
        shared_pvc_class: AI_MODELS_SHARED_PVC_CLASS: of storage for shared claims; empty for the one that is found.
        shared_pvc_grace_seconds: AI_MODELS_SHARED_PVC_GRACE_SECONDS: how long what nobody uses of them is kept.
        webhook_url: AI_MODELS_WEBHOOK_URL: `https://…` of the webhook process: when it answers, the API server is told
            to send workloads and Pods to it; empty for nothing of that.
        lease: AI_MODELS_LEASE: name of the Lease.
        listen_host: AI_MODELS_LISTEN_HOST: where health and metrics are served.
        listen_port: AI_MODELS_LISTEN_PORT: 0 takes any free one.
        log_level: AI_MODELS_LOG_LEVEL: Debug, Info, Warn or Error.
        kubeconfig: KUBECONFIG: empty for the ServiceAccount of the Pod.
    """

    coordinator_url: str
    identity: str
    namespace: str = "d8-ai-models"
    system_namespace: str = "d8-system"
    s3_secret: str = ""
    s3_ca_secret: str = ""
    hub_secret: str = ""
    hub_ca_secret: str = ""
    ray_url: str = ""
    coordinator_command: tuple[str, ...] = ()
    capacity_limit: int = 0
    dmcr_url: str = ""
    dmcr_token_file: str = ""
    dmcr_redirect_url: str = ""
    delivery_type: str = ""
    max_gate_wait: int = 600
    node_cache_size: int = 0
    shared_pvc_image: str = ""
    shared_pvc_class: str = ""
    shared_pvc_grace_seconds: int = 600
    webhook_url: str = ""
    lease: str = "ai-models-operator"
    listen_host: str = "0.0.0.0"  # noqa: S104 - a Pod is probed at its address
    listen_port: int = 8080
    log_level: str = "Info"
    kubeconfig: str = ""


_REQUIRED = ("coordinator_url", "identity")
_OPTIONAL_NAMES = ("s3_secret", "s3_ca_secret", "hub_secret", "hub_ca_secret", "shared_pvc_class")
SHARED_PVC, NODE_CACHE = "SharedPVC", "NodeCache"


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
    numbers = _numbers(own)
    command = _command(own.pop("coordinator_command", ""))
    found = Settings(**own, **numbers, coordinator_command=command, kubeconfig=env.get("KUBECONFIG", ""))  # type: ignore[arg-type] # names were checked
    _check(found)
    return found


def _numbers(own: dict[str, str]) -> dict[str, int]:
    """Take the numbers out of what was given."""
    found: dict[str, int] = {}
    port = own.pop("listen_port", "")
    if port and not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise UsageError(f"{PREFIX}LISTEN_PORT: want a port, got {port[:20]!r}")
    found |= {"listen_port": int(port)} if port else {}
    if grace := own.pop("shared_pvc_grace_seconds", ""):
        if not (grace.isascii() and grace.isdigit() and len(grace) <= 9):
            raise UsageError(f"{PREFIX}SHARED_PVC_GRACE_SECONDS: want a number of seconds, got {grace[:20]!r}")
        found["shared_pvc_grace_seconds"] = int(grace)
    if limit := own.pop("capacity_limit", ""):
        found["capacity_limit"] = quantity_bytes(limit)
    if size := own.pop("node_cache_size", ""):
        found["node_cache_size"] = quantity_bytes(size)
    if wait := own.pop("max_gate_wait", ""):
        matched = _DURATION.fullmatch(wait)
        if matched is None:
            raise UsageError(f"{PREFIX}MAX_GATE_WAIT: want a duration such as 10m or 1h30m, got {wait[:20]!r}")
        hours, minutes, seconds = (int(part or 0) for part in matched.groups())
        found["max_gate_wait"] = hours * 3600 + minutes * 60 + seconds
    return found


def _check(found: Settings) -> None:
    """Refuse values that cannot be, and those that lack another one."""
    for name in ("namespace", "system_namespace", "lease", "identity", *_OPTIONAL_NAMES):
        value = getattr(found, name)
        if not _NAME.fullmatch(value) and not (name in _OPTIONAL_NAMES and not value):
            raise UsageError(f"{PREFIX}{name.upper()}: want a name of Kubernetes, got {value[:80]!r}")
    if found.ray_url and not found.coordinator_command:
        raise UsageError(f"environment: want {PREFIX}COORDINATOR_COMMAND beside {PREFIX}RAY_URL, got nothing")
    if found.dmcr_url and not found.dmcr_token_file:
        raise UsageError(f"environment: want {PREFIX}DMCR_TOKEN_FILE beside {PREFIX}DMCR_URL, got nothing")
    if found.delivery_type not in ("", SHARED_PVC, NODE_CACHE):
        raise UsageError(f"{PREFIX}DELIVERY_TYPE: want SharedPVC or NodeCache, got {found.delivery_type[:20]!r}")
    if found.delivery_type == SHARED_PVC and not (found.shared_pvc_image and found.dmcr_url):
        raise UsageError(f"environment: want {PREFIX}SHARED_PVC_IMAGE and {PREFIX}DMCR_URL for SharedPVC, got nothing")
    if found.webhook_url and not (found.webhook_url.startswith("https://") and found.delivery_type):
        raise UsageError(f"{PREFIX}WEBHOOK_URL: want https://<host> and {PREFIX}DELIVERY_TYPE beside it")
    if found.log_level not in LOG_LEVELS:
        raise UsageError(f"{PREFIX}LOG_LEVEL: want one of {', '.join(LOG_LEVELS)}, got {found.log_level[:20]!r}")


def sources_of(settings: Settings) -> dict[HomeSecret, tuple[str, str]]:
    """Namespace and name of the administrator's Secret that each wanted mirror follows."""
    named = {
        HomeSecret.S3: settings.s3_secret,
        HomeSecret.S3_CA: settings.s3_ca_secret,
        HomeSecret.HUB: settings.hub_secret,
        HomeSecret.HUB_CA: settings.hub_ca_secret,
    }
    return {name: (settings.system_namespace, source) for name, source in named.items() if source}


def coordinator_arguments(settings: Settings) -> tuple[str, ...]:
    """All arguments of `python3 -m aimodels_jobs.host`."""
    limit = ("--capacity-limit", str(settings.capacity_limit)) if settings.capacity_limit else ()
    return (*settings.coordinator_command, *limit)


def _command(text: str) -> tuple[str, ...]:
    try:
        found = json.loads(text or "[]")
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        raise UsageError(f"{PREFIX}COORDINATOR_COMMAND: want a JSON list of strings")
    return tuple(found)
