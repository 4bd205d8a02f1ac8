"""What operator, coordinator and node agents tell each other about the caches of nodes, as values and their JSON. Pure.

A want says which artifacts a node should hold, the most important first; a report says what it holds and fetches. Both
are whole each time: the last one counts, and a lost one is simply told again.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Self

from aimodels_core import names
from aimodels_core.digest import Digest

MAX_BYTES = 1024 * 1024
MAX_MODELS = 4096
MAX_DEVICES = 256
_MAX_TEXT = 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Warm:
    """An artifact that a node should hold.

    Args:
        digest: of the manifest, `sha256:<hex>`.
        repository: where it is read: `cluster` or `ns/<namespace>`.
        size_bytes: of all its files.
        pods: whether a Pod waits for it; else it is wanted ahead of time.
    """

    digest: str
    repository: str
    size_bytes: int
    pods: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class NodeWant:
    """`PUT /v1/nodes/{name}`: what a node should hold beside what its own Pods use.

    Args:
        node: its name in Kubernetes.
        models: the most important first.
        cache_bytes: how much all devices of the node together may hold; 0 for what fits.
    """

    node: str
    models: tuple[Warm, ...] = ()
    cache_bytes: int = 0

    def to_json(self) -> bytes:
        """Render the body."""
        raw = dataclasses.asdict(self)
        raw.pop("node")
        return json.dumps(raw, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, node: str, data: bytes) -> Self:
        """Parse the body.

        Raises:
            ValueError: too long, not JSON, or not of that shape.
        """
        raw = _object(data, {"models", "cache_bytes"})
        models = tuple(_warm(entry) for entry in _list(raw, "models", MAX_MODELS))
        return cls(node, models, _count(raw, "cache_bytes"))


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """A device, or a folder, of a node's cache.

    Args:
        id: stable over restarts.
        size_bytes: of its file system; 0 when it cannot be used.
        free_bytes: of that.
        trouble: why it is not used; empty when it is.
    """

    id: str
    size_bytes: int = 0
    free_bytes: int = 0
    trouble: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """An artifact that a node holds whole.

    Args:
        digest: of the manifest.
        size_bytes: of all its files.
        used: whether a Pod uses it.
    """

    digest: str
    size_bytes: int
    used: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Warming:
    """An artifact that a node fetches, or cannot fetch for now.

    Args:
        digest: of the manifest.
        bytes_done: of its files.
        bytes_total: 0 while unknown.
        trouble: why it does not go on; empty while it does.
        no_room: whether the node lacks the room.
    """

    digest: str
    bytes_done: int = 0
    bytes_total: int = 0
    trouble: str = ""
    no_room: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class NodeReport:
    """What an agent tells of its node.

    Args:
        node: its name in Kubernetes.
        at: Unix seconds.
        devices: all that are meant for the cache.
        held: whole artifacts.
        warming: those on their way, or wanted and stuck.
        cache_bytes: how much the node may hold.
        trouble: why the node takes nothing; empty when it does.
    """

    node: str
    at: float
    devices: tuple[Device, ...] = ()
    held: tuple[Held, ...] = ()
    warming: tuple[Warming, ...] = ()
    cache_bytes: int = 0
    trouble: str = ""

    def to_raw(self) -> dict[str, Any]:
        """Render as plain JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self:
        """Parse what `to_raw` made.

        Raises:
            KeyError, TypeError, ValueError: not of that shape.
        """
        return cls(
            node=str(raw["node"]),
            at=float(raw["at"]),
            devices=tuple(Device(**entry) for entry in raw["devices"]),
            held=tuple(Held(**entry) for entry in raw["held"]),
            warming=tuple(Warming(**entry) for entry in raw["warming"]),
            cache_bytes=int(raw["cache_bytes"]),
            trouble=str(raw["trouble"])[:_MAX_TEXT],
        )


def _object(data: bytes, known: set[str]) -> dict[str, Any]:
    if len(data) > MAX_BYTES:
        raise ValueError(f"node: want at most {MAX_BYTES} bytes, got {len(data)}")
    raw = json.loads(data)
    if not isinstance(raw, dict):
        raise ValueError(f"node: want a JSON object, got {type(raw).__name__}")  # noqa: TRY004 - bad input, not a bug
    if unknown := raw.keys() - known:
        raise ValueError(f"node: unknown fields {sorted(unknown)}")
    return raw


def _list(raw: Mapping[str, Any], key: str, limit: int) -> list[Any]:
    value = raw.get(key, [])
    if not isinstance(value, list) or len(value) > limit:
        raise ValueError(f"{key}: want a list of at most {limit}")
    return value


def _count(raw: Mapping[str, Any], key: str) -> int:
    value = raw.get(key, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise ValueError(f"{key}: want a number of at least 0")
    return value


def _warm(raw: object) -> Warm:
    if not isinstance(raw, dict) or raw.keys() - {"digest", "repository", "size_bytes", "pods"}:
        raise ValueError("models: want objects of digest, repository, size_bytes and pods")
    digest, repository, pods = raw.get("digest"), raw.get("repository"), raw.get("pods", False)
    if not isinstance(repository, str) or not names.is_scope(repository):
        raise ValueError("repository: want cluster or ns/<namespace>")
    if not isinstance(pods, bool):
        raise ValueError("pods: want true or false")  # noqa: TRY004 - bad input, not a bug
    return Warm(str(Digest.parse(str(digest)[:128])), repository, _count(raw, "size_bytes"), pods)
