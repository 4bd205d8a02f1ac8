"""The services that kubelet calls, over gRPC: requests taken apart, answers put together, and counted."""

import logging
from collections.abc import Mapping
from typing import Any

import grpc  # type: ignore[import-untyped]  # has no types

from aimodels_core.names import CSI_DRIVER
from aimodels_nodecache import wire
from aimodels_nodecache.driver import Driver
from aimodels_nodecache.grants import Code, Refusal

log = logging.getLogger(__name__)

_MARGIN_SECONDS = 5.0
"""An answer is on its way this long before kubelet gives up."""


class Services:
    """Identity and Node of csi.v1.

    Args:
        driver: does what is asked.
        version: of this driver.
    """

    def __init__(self, driver: Driver, version: str) -> None:
        self._driver, self._version = driver, version

    def handlers(self) -> tuple[Any, ...]:
        """Make the handlers of a gRPC server."""
        info = {"name": CSI_DRIVER, "vendor_version": self._version}
        capability = {"rpc": {"type": wire.GET_VOLUME_STATS}}
        identity = {
            "GetPluginInfo": _constant("GetPluginInfoResponse", info),
            "GetPluginCapabilities": _constant("GetPluginCapabilitiesResponse", {}),
            "Probe": _constant("ProbeResponse", {"ready": {"value": True}}),
        }
        node = {
            "NodePublishVolume": self._publish,
            "NodeUnpublishVolume": self._unpublish,
            "NodeGetVolumeStats": self._stats,
            "NodeGetCapabilities": _constant("NodeGetCapabilitiesResponse", {"capabilities": [capability]}),
            "NodeGetInfo": _constant("NodeGetInfoResponse", {"node_id": self._driver.node}),
        }
        return wire.csi_service("Identity", identity), wire.csi_service("Node", node)

    async def _publish(self, request: Any, context: Any) -> Any:
        left = context.time_remaining()
        capability = request.volume_capability
        refused = await self._driver.publish(
            request.volume_id,
            request.target_path,
            dict(request.volume_context),
            mountable=request.HasField("volume_capability") and not capability.HasField("block"),
            seconds=self._driver.limits.wait_seconds if left is None else left - _MARGIN_SECONDS,
        )
        return await self._answer("NodePublishVolume", refused, context)

    async def _unpublish(self, request: Any, context: Any) -> Any:
        refused = await self._driver.unpublish(request.volume_id, request.target_path)
        return await self._answer("NodeUnpublishVolume", refused, context)

    async def _stats(self, request: Any, context: Any) -> Any:
        if not request.volume_id or not request.volume_path:
            refused = Refusal(Code.INVALID_ARGUMENT, "volume_id and volume_path: want both")
            return await self._answer("NodeGetVolumeStats", refused, context)
        found = await self._driver.usage(request.volume_path)
        if isinstance(found, Refusal):
            return await self._answer("NodeGetVolumeStats", found, context)
        usage = [
            {"unit": wire.BYTES, "total": found.size_bytes, "used": found.size_bytes},
            {"unit": wire.INODES, "total": found.files, "used": found.files},
        ]
        return await self._answer("NodeGetVolumeStats", None, context, {"usage": usage})

    async def _answer(self, method: str, refused: Refusal | None, context: Any, fields: Mapping[str, Any] = {}) -> Any:
        self._driver.figures.calls[method, refused.code.name if refused else "OK"] += 1
        if refused is not None:
            log.info("refused", extra={"method": method, "code": refused.code.name, "detail": refused.words})
            await context.abort(grpc.StatusCode[refused.code.name], refused.words)
        return wire.message(f"csi.v1.{method}Response")(**fields)


def _constant(name: str, fields: Mapping[str, Any]) -> Any:
    response = wire.message(f"csi.v1.{name}")(**fields)

    async def answer(_: Any, __: Any) -> Any:
        return response

    return answer
