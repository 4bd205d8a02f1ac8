"""Block devices of a stand: loop devices over sparse files in the stand's folder.

Loop devices are not namespaced: any node sees all of them, and the janitor detaches those of its stand.
"""

from dataclasses import dataclass
from pathlib import Path

from tests.cluster.stand.layout import Layout
from tests.cluster.stand.waiting import attempt, command


@dataclass(frozen=True, slots=True)
class Block:
    """One block device."""

    device: Path
    file: Path

    def detach(self) -> None:
        """Take the device away, its content too; a device that is mounted goes when it is unmounted."""
        attempt("losetup", "--detach", self.device)
        self.file.unlink(missing_ok=True)


def attach(layout: Layout, name: str, *, size_bytes: int) -> Block:
    """Make an empty block device of that size.

    Raises:
        StandError: no loop device is free.
    """
    folder = layout.root / "blocks"
    folder.mkdir(exist_ok=True)
    file = folder / name
    with file.open("wb") as handle:
        handle.truncate(size_bytes)
    return Block(Path(command("losetup", "--find", "--show", file).strip()), file)
