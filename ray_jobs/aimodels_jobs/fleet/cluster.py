"""Joining a Ray cluster or starting one on this machine, and leaving nothing behind when that fails or ends.

What Ray prints, reads from the environment and leaves there is dealt with here.
"""

import dataclasses
import gc
import logging
import os
import secrets
import socket
import warnings
from collections.abc import Mapping
from typing import Any, Final

import ray
import ray._private.worker
import ray._raylet
import ray.exceptions

from aimodels_core.errors import AiModelsError, MoverLost

NAMESPACE: Final = "ai-models"

ENVIRONMENT: Final = {
    # A dead or frozen node is noticed in seconds instead of minutes.
    "RAY_health_check_initial_delay_ms": "3000",
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "5",
    "RAY_grpc_client_keepalive_time_ms": "10000",
    "RAY_grpc_client_keepalive_timeout_ms": "10000",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "120",
    "RAY_task_oom_retries": "3",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # else workers would run an uploaded copy of the working folder
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""What every Ray process of ours starts with, unless its environment says otherwise."""

_TOKEN: Final = secrets.token_hex(32)
"""Of every Ray that this process starts: Ray's core keeps the first token it used, whatever the environment says."""

_TOKEN_VARIABLES: Final = ("RAY_AUTH_TOKEN", "RAY_AUTH_MODE")
_PROXY_VARIABLES: Final = tuple(
    form(name) for name in ("http_proxy", "https_proxy", "all_proxy") for form in (str.lower, str.upper)
)
"""Not for processes of one machine that talk to each other; movers are told of proxies by their tickets."""
_replaced: dict[str, str | None] = {}
"""What these variables were before a Ray was started here; its processes inherit them, nobody else should."""

_OBJECT_STORE_BYTES: Final = 80 * 1024 * 1024  # about the least that Ray takes; no payload goes through it
_CONNECT_SECONDS: Final = 10.0

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Ray:
    """Where the movers run.

    Args:
        address: of a running cluster; `local` starts one on this machine; empty for the one this process is part of.
        cpus: of a cluster that is started here.
    """

    address: str
    cpus: int = 0

    def start(self) -> bool:
        """Join the cluster, or start it; False when this process is part of one already. Blocks for seconds.

        What a failed start leaves behind is removed, so that another one may follow.

        Raises:
            MoverLost: code RayUnavailable.
        """
        if ray.is_initialized():
            return False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray's own, about its own
            try:
                settings = self._settings()
                ray._private.worker.print_to_stdstream = _log_words_of_ray  # noqa: SLF001 - it would print them on stdout
                ray._raylet.AuthenticationTokenLoader.instance().reset_cache()  # noqa: SLF001 - Ray has no other way
                ray.init(namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR, **settings)
            except Exception as error:  # whatever Ray raises: it has no tree of errors for this
                self.stop()
                why = f"{type(error).__name__}: {str(error)[:300]}"
                raise MoverLost(f"ray: not started: {why}", code="RayUnavailable") from error
        return True

    def stop(self) -> None:
        """Leave the cluster, and end it if it was started here."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.shutdown()
            gc.collect()  # Ray leaves process objects behind that complain when they go
        for name, value in _replaced.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _replaced.clear()

    def _settings(self) -> dict[str, Any]:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        if self.address != "local":
            _refuse_silent(self.address or os.environ.get("RAY_ADDRESS", ""))
            return {"address": self.address or "auto"}
        given = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
        _replaced.update({name: os.environ.get(name) for name in (*_TOKEN_VARIABLES, *_PROXY_VARIABLES)})
        for name in _PROXY_VARIABLES:
            os.environ.pop(name, None)
        if not given and os.environ.get("RAY_AUTH_MODE", "token").lower() == "token":
            # A token of its own, in memory: Ray would write one below HOME. Its ports are open to the network.
            os.environ["RAY_AUTH_TOKEN"] = _TOKEN
        return {
            "address": "local",
            "num_cpus": self.cpus,
            "num_gpus": 0,
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE_BYTES,
        }


def _refuse_silent(address: str) -> None:
    """Make sure that somebody listens at `host:port`: Ray would wait for minutes, and then end this process.

    Raises:
        OSError: nobody does.
    """
    host, found, port = address.rpartition(":")
    if found and port.isdecimal() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()


def _log_words_of_ray(data: Mapping[str, Any], **_: object) -> None:
    """Take what Ray wants to tell people: stdout belongs to results."""
    for line in data.get("lines", ()):
        log.info("ray told something", extra={"words": str(line)[:500]})


def translated(name: str, error: ray.exceptions.RayError) -> AiModelsError:
    """Turn what a remote call raised into an error of ours; a mover's own come back as they were."""
    cause = getattr(error, "cause", None)
    if isinstance(error, ray.exceptions.RayTaskError) and isinstance(cause, AiModelsError):
        return cause
    what = type(cause if cause is not None else error).__name__
    return MoverLost(f"{name}: lost: {what}", code=what)
