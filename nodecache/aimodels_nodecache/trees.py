"""Whole artifacts on this node: `<cache>/devices/<id>/trees/<hex of the manifest's digest>`, found and nothing else.

A folder of a device counts when it carries our mark: an empty folder where a device should be mounted does not. A tree
is whole because it gets its name last.
"""

from pathlib import Path
from typing import Final

from aimodels_core.digest import Digest

MARK: Final = ".ai-models"
"""File in the folder of each device that is ours."""
LOCK: Final = "node-agent.lock"
"""File in the folder of the cache, held by the agent that works."""


class NodeTrees:
    """Finds artifacts; its calls block.

    Args:
        root: folder of the node's cache.
    """

    def __init__(self, root: Path) -> None:
        self._devices = root / "devices"

    def tree(self, digest: Digest) -> Path | None:
        """Return the folder of an artifact; None when no device has it."""
        try:
            devices = sorted(self._devices.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return None
        for device in devices:
            tree = device / "trees" / digest.hex
            if (device / MARK).is_file() and tree.is_dir() and not (tree.is_symlink() or tree.parent.is_symlink()):
                return tree
        return None
