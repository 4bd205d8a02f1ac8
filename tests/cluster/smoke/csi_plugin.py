"""A CSI node plugin as small as kubelet accepts: inline volumes that are a tmpfs with one file.

It runs inside a Pod as `python3 -c`; messages are taken apart and put together by hand. A stand-in for
tests of the stand only: nothing of the product.
"""

import concurrent.futures
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import grpc  # type: ignore[import-untyped]  # has no types

NAME, ROOT = "smoke.example.com", "/var/lib/kubelet"
SOCKET = f"{ROOT}/plugins/{NAME}/csi.sock"
Handler = Callable[[bytes], bytes]


def text(field: int, value: str) -> bytes:
    """A string field of a message (shorter than 128 bytes)."""
    return bytes([field << 3 | 2, len(value)]) + value.encode()


def fields(message: bytes) -> dict[int, bytes]:
    """Length-delimited fields of a message by number, the last of each; numbers are skipped."""
    found, at = {}, 0
    while at < len(message):
        key, at = varint(message, at)
        size, at = varint(message, at)
        if key & 7 == 2:
            found[key >> 3], at = message[at : at + size], at + size
    return found


def varint(message: bytes, at: int) -> tuple[int, int]:
    """A number and where it ends."""
    value, shift = 0, 0
    while True:
        byte, at = message[at], at + 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def publish(request: bytes) -> bytes:
    """Mount a tmpfs with the volume's name in a file, read-only."""
    target = Path(fields(request)[4].decode())
    target.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", target], check=True)
    (target / "volume").write_bytes(fields(request)[1])
    subprocess.run(["mount", "-o", "remount,ro", target], check=True)
    return b""


def unpublish(request: bytes) -> bytes:
    """Unmount; an unknown target is fine."""
    target = Path(fields(request)[2].decode())
    subprocess.run(["umount", target], check=False)
    if target.is_dir():
        target.rmdir()
    return b""


def service(name: str, methods: dict[str, Handler]) -> grpc.GenericRpcHandler:
    """A gRPC service over raw bytes."""

    def unary(handle: Handler) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(lambda request, _context: handle(request))

    return grpc.method_handlers_generic_handler(name, {method: unary(handle) for method, handle in methods.items()})


def main() -> None:
    """Serve CSI and register with kubelet."""
    answers: dict[str, dict[str, Handler]] = {
        "csi.v1.Identity": {
            "GetPluginInfo": lambda _: text(1, NAME) + text(2, "1"),
            "GetPluginCapabilities": lambda _: b"",
            "Probe": lambda _: b"",
        },
        "csi.v1.Node": {
            "NodeGetInfo": lambda _: text(1, os.environ["NODE_NAME"]),
            "NodeGetCapabilities": lambda _: b"",
            "NodePublishVolume": publish,
            "NodeUnpublishVolume": unpublish,
        },
        "pluginregistration.Registration": {
            "GetInfo": lambda _: text(1, "CSIPlugin") + text(2, NAME) + text(3, SOCKET) + text(4, "1.0.0"),
            "NotifyRegistrationStatus": lambda _: b"",
        },
    }
    Path(SOCKET).parent.mkdir(parents=True, exist_ok=True)
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers([service(name, methods) for name, methods in answers.items()])
    for socket in (SOCKET, f"{ROOT}/plugins_registry/{NAME}-reg.sock"):
        Path(socket).unlink(missing_ok=True)
        server.add_insecure_port(f"unix://{socket}")
    server.start()
    sys.stderr.write("serving\n")
    server.wait_for_termination()


if __name__ == "__main__":
    main()
