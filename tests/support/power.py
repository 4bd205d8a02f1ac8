"""A loss of power, replayed: the sequence of file operations, cut anywhere, with what was not flushed lost or torn.

The model is harsher than a journalling file system: every entry of a folder that was not flushed may be there or not,
in any combination, and every write that was not flushed may be there, missing, or torn.
"""

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path

from aimodels_jobs.disk import Disk


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One operation. `path` is relative to the root; `file` names an inode."""

    what: str
    path: str = ""
    file: int = 0
    offset: int = 0
    data: bytes = b""


class RecordingDisk(Disk):
    """Does everything for real, and writes it down.

    Args:
        root: of the store.
        without: an operation that is only pretended: to show that the replay notices.
    """

    def __init__(self, root: Path, *, without: str = "") -> None:
        self.steps: list[Step] = []
        self._root = root
        self._without = without
        self._names: dict[str, int] = {}
        self._open: dict[int, int] = {}
        self._next = 1

    def note(self, label: str) -> None:
        """Write down that something was promised."""
        self.steps.append(Step("note", label))

    def wrote(self, path: Path, offset: int, data: bytes) -> None:
        """Write as a mover does, past this object."""
        self.steps.append(Step("write", file=self._names[self._name(path)], offset=offset, data=data))
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(data)

    def create(self, path: Path) -> int:
        handle = super().create(path)
        self._open[handle] = self._names[self._name(path)] = self._next
        self.steps.append(Step("create", self._name(path), self._next))
        self._next += 1
        return handle

    def open(self, path: Path) -> int:
        handle = super().open(path)
        self._open[handle] = self._names[self._name(path)]
        return handle

    def allocate(self, handle: int, size_bytes: int) -> None:
        super().allocate(handle, size_bytes)
        self.steps.append(Step("allocate", file=self._open[handle], offset=size_bytes))

    def write(self, handle: int, data: bytes | memoryview, offset: int) -> None:
        super().write(handle, data, offset)
        self.steps.append(Step("write", file=self._open[handle], offset=offset, data=bytes(data)))

    def sync(self, handle: int) -> None:
        super().sync(handle)
        if self._without != "sync":
            self.steps.append(Step("sync", file=self._open[handle]))

    def sync_folder(self, path: Path) -> None:
        super().sync_folder(path)
        if self._without != "sync_folder":
            self.steps.append(Step("sync_folder", self._name(path)))

    def make_folder(self, path: Path) -> None:
        super().make_folder(path)
        self.steps.append(Step("make_folder", self._name(path)))

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        file = self._names.pop(self._name(source))
        self._names[self._name(target)] = file
        self.steps.append(Step("name", self._name(target), file))
        self.steps.append(Step("remove", self._name(source)))

    def link(self, source: Path, target: Path) -> None:
        super().link(source, target)
        file = self._names[self._name(target)] = self._names[self._name(source)]
        self.steps.append(Step("name", self._name(target), file))

    def remove(self, path: Path) -> None:
        super().remove(path)
        self._names.pop(self._name(path), None)
        self.steps.append(Step("remove", self._name(path)))

    def remove_folder(self, path: Path) -> None:
        super().remove_folder(path)
        self.steps.append(Step("remove", self._name(path)))

    def _name(self, path: Path) -> str:
        name = str(path.relative_to(self._root))
        return "" if name == "." else name


class _Tree:
    """What is on the device, and what is only in memory."""

    def __init__(self) -> None:
        self.entries: dict[str, int] = {"": 0}
        self.contents: dict[int, bytearray] = {}
        self.loose_entries: list[tuple[str, int | None]] = []
        self.loose_writes: dict[int, list[Step]] = {}

    def apply(self, step: Step) -> None:
        match step.what:
            case "make_folder":
                self.loose_entries.append((step.path, 0))
            case "create" | "name":
                self.contents.setdefault(step.file, bytearray())
                self.loose_entries.append((step.path, step.file))
            case "remove":
                self.loose_entries.append((step.path, None))
            case "write" | "allocate":
                self.loose_writes.setdefault(step.file, []).append(step)
            case "sync":
                for write in self.loose_writes.pop(step.file, []):
                    _write(self.contents[step.file], write, len(write.data))
            case "sync_folder":
                now = [entry for entry in self.loose_entries if _parent(entry[0]) == step.path]
                self.loose_entries = [entry for entry in self.loose_entries if _parent(entry[0]) != step.path]
                for path, file in now:
                    _enter(self.entries, path, file)
            case _:
                pass

    def cut(self, chance: random.Random, *, entries: float, writes: float) -> tuple[dict[str, int], dict[int, bytes]]:
        """Lose power: what was loose is kept with these probabilities."""
        kept = dict(self.entries)
        for path, file in self.loose_entries:
            if chance.random() < entries:
                _enter(kept, path, file)
        contents = {file: bytearray(data) for file, data in self.contents.items()}
        for file, loose in self.loose_writes.items():
            for write in loose:
                if chance.random() < writes:
                    torn = len(write.data) if writes == 1.0 else chance.randrange(len(write.data) + 1)
                    _write(contents[file], write, torn)
        return kept, {file: bytes(data) for file, data in contents.items()}


def _enter(entries: dict[str, int], path: str, file: int | None) -> None:
    if file is None:
        entries.pop(path, None)
    else:
        entries[path] = file


def _write(content: bytearray, step: Step, length: int) -> None:
    end = step.offset if step.what == "allocate" else step.offset + length
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    if step.what == "write":
        content[step.offset : step.offset + length] = step.data[:length]


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


LOSSES = ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.5, 0.5), (0.8, 0.2))
"""(share of loose folder entries kept, share of loose writes kept)"""


def cuts(steps: Sequence[Step]) -> "list[tuple[int, frozenset[str], dict[str, int], dict[int, bytes]]]":
    """Every prefix under every loss, each outcome once: (length, promises made by then, entries, contents)."""
    tree = _Tree()
    found = []
    seen: set[int] = set()
    notes: set[str] = set()
    for length in range(len(steps) + 1):
        if length:
            step = steps[length - 1]
            if step.what == "note":
                notes.add(step.path)
            tree.apply(step)
        for index, (entries, writes) in enumerate(LOSSES):
            chance = random.Random(length * 100 + index)
            kept, contents = tree.cut(chance, entries=entries, writes=writes)
            outcome = hash((frozenset(notes), frozenset((p, contents.get(f)) for p, f in kept.items())))
            if outcome not in seen:
                seen.add(outcome)
                found.append((length, frozenset(notes), kept, contents))
    return found


def materialise(root: Path, entries: dict[str, int], contents: dict[int, bytes]) -> None:
    """Make what is left of the store in an empty folder; what has no way from the root is lost."""
    root.mkdir()
    for path in sorted(entries):
        if not path or entries.get(_parent(path)) != 0 or not (root / _parent(path)).is_dir():
            continue
        if entries[path] == 0:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(contents[entries[path]])
