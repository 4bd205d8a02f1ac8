"""The devices of a node made ready, again and again: what is labelled is made ours, what is ours is mounted.

For each device of ours a file `<cache>/owned/<id>` has the UUID of its file system: after a reboot it is found and
mounted by that, though the API server is away or its object is gone. Why one is not used is in `<cache>/trouble/<id>`.
"""

import asyncio
import logging
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from aimodels_core.errors import AiModelsError, ClusterUnavailable
from aimodels_nodecache import disks, substrates
from aimodels_nodecache.substrates import Mounted, Probed, Wanted
from aimodels_nodecache.threads import Threads
from aimodels_nodecache.trees import LOCK

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
LIST_SECONDS = 15.0
"""Between two lists of all labelled objects."""
HOST = "host"
_NODE = "node"
_MAX_UUID_CHARS = 128


class Blocks(Protocol):
    """Who knows BlockDevice objects."""

    async def block_devices(self) -> Iterable[Mapping[str, Any]]:
        """Return all that carry our label.

        Raises:
            ClusterUnavailable.
        """
        ...


class Programs(Protocol):
    """Looks at devices; see `disks.Disks`."""

    def probe(self, path: str) -> Probed: ...  # noqa: D102 - see there
    def find(self, uuid: str) -> str: ...  # noqa: D102
    def uuid(self, path: str) -> str: ...  # noqa: D102
    def make(self, path: str) -> None: ...  # noqa: D102
    def mount(self, path: str, target: Path) -> None: ...  # noqa: D102
    def mounted(self, target: Path) -> Mounted | None: ...  # noqa: D102


class Devices:
    """Makes the devices of a node ready.

    Args:
        node: its name in Kubernetes.
        root: folder of the cache.
        blocks: knows objects.
        programs: look at devices.
        threads: where that is done.
        folder: whether a plain folder of the node is a device too.
    """

    def __init__(
        self, node: str, root: Path, blocks: Blocks, programs: Programs, threads: Threads, *, folder: bool
    ) -> None:
        self._node, self._root, self._blocks = node, root, blocks
        self._programs, self._threads, self._folder = programs, threads, folder
        self._found: dict[str, Wanted] | None = None
        self._listed_at = float("-inf")
        self.troubles: dict[str, str] = {}

    async def run(self) -> None:
        """Look for ever."""
        while True:
            try:
                await self.look()
            except (AiModelsError, OSError) as error:
                log.warning("devices not looked after", extra={"detail": str(error)})
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Look once, and make ready what is not.

        Raises:
            OSError: the folder of the cache cannot be written.
        """
        await self._threads(self._prepare)
        owned = await self._threads(self._owned)
        await self._list()
        found = self._found or {}
        troubles = {}
        for name in sorted(owned.keys() | found.keys()):
            words = await self._threads(lambda: self._ready(name, found.get(name), owned.get(name, "")))  # noqa: B023 - awaited at once
            if words:
                troubles[name] = words
        words = substrates.nothing_usable([*owned, *found], folder=self._folder)
        if words and self._found is not None:
            troubles[_NODE] = words
        await self._threads(lambda: self._tell(troubles))

    async def _list(self) -> None:
        """Read the objects now and then; while the API server is away, those that were seen last count."""
        if time.monotonic() - self._listed_at < LIST_SECONDS:
            return
        try:
            found = substrates.wanted_on(self._node, await self._blocks.block_devices())
        except ClusterUnavailable as error:
            log.warning("block devices not read", extra={"detail": error.message})
            return
        self._found, self._listed_at = {one.id: one for one in found}, time.monotonic()

    def _prepare(self) -> None:
        """Make the folders: ours, so that the agent, which owns what is on the devices, cannot replace them."""
        for name in ("devices", "owned", "trouble", "records"):
            (self._root / name).mkdir(mode=0o755, parents=True, exist_ok=True)
        os.chown(self._root, 0, 0)
        lock = self._root / LOCK
        os.close(os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644))
        os.chown(lock, disks.OWNER, disks.OWNER, follow_symlinks=False)
        if self._folder:
            (self._root / "devices" / HOST).mkdir(mode=0o755, exist_ok=True)
            disks.own(self._root / "devices" / HOST, HOST)

    def _owned(self) -> dict[str, str]:
        return {
            path.name: path.read_text(encoding="ascii")[:_MAX_UUID_CHARS].strip()
            for path in sorted((self._root / "owned").iterdir())
            if not path.name.startswith(".")
        }

    def _ready(self, name: str, wanted: Wanted | None, uuid: str) -> str:
        """Make a device ready; returns why it is not."""
        target = self._root / "devices" / name
        try:
            mounted = self._programs.mounted(target)
            path = wanted.path if wanted is not None else ""
            if mounted is None and uuid:
                path = self._programs.find(uuid)
            probed = self._programs.probe(path) if mounted is None and path else Probed(there=False)
            step = substrates.decide(probed, mounted, owned=bool(uuid))
            if step.make:
                log.warning("a file system is made", extra={"device": name, "path": path})
                self._programs.make(path)
            if step.mount:
                self._programs.mount(path, target)
                self._own(name, self._programs.uuid(path))
                log.info("device mounted", extra={"device": name, "path": path})
        except (AiModelsError, OSError) as error:
            return error.message if isinstance(error, AiModelsError) else str(error)
        return step.trouble

    def _own(self, name: str, uuid: str) -> None:
        if not uuid:
            return
        scratch = self._root / "owned" / f".{name}.tmp"
        with scratch.open("w", encoding="ascii") as file:
            file.write(uuid)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(self._root / "owned" / name)

    def _tell(self, troubles: dict[str, str]) -> None:
        """Write down why devices are not used, and that others are."""
        for name, words in troubles.items():
            if self.troubles.get(name) != words:
                log.warning("device not used", extra={"device": name, "detail": words})
                scratch = self._root / "trouble" / f".{name}.tmp"
                scratch.write_text(words)
                scratch.replace(self._root / "trouble" / name)
        for path in (self._root / "trouble").iterdir():
            if path.name not in troubles:
                path.unlink(missing_ok=True)
        self.troubles = troubles
