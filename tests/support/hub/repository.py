"""Repositories, commits and files as a hub keeps them. Values and git arithmetic; no HTTP."""

import enum
import functools
import hashlib
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.hub import bodies
from tests.support.hub.bodies import Body, BytesBody, FileBody

Content = bytes | str | Path | Body
"""Short forms of a body: bytes, text, a path on disk, or a body."""

_LFS_SUFFIXES = (
    *(".7z", ".arrow", ".bin", ".ckpt", ".ftz", ".gguf", ".gz", ".h5", ".joblib", ".mlmodel", ".model", ".msgpack"),
    *(".npy", ".npz", ".onnx", ".onnx_data", ".ot", ".parquet", ".pb", ".pickle", ".pkl", ".pt", ".pth", ".rar"),
    *(".safetensors", ".tar", ".tflite", ".tgz", ".wasm", ".xz", ".zip", ".zst"),
)
_LFS_BYTES = 10 * 1024 * 1024


class Access(enum.StrEnum):
    """Who may read a repository."""

    PUBLIC = "public"
    GATED = "gated"
    PRIVATE = "private"
    DISABLED = "disabled"


def as_body(content: Content) -> Body:
    """Accept the short forms of a body."""
    match content:
        case bytes():
            return BytesBody(content)
        case str():
            return BytesBody(content.encode())
        case Path():
            return FileBody(content)
        case _:
            return content


@dataclass(frozen=True)
class File:
    """One file of a commit.

    `sha256` is what the hub claims; it is computed when absent. `listed_size_bytes` makes the listing (and the
    redirect) lie about the size. `lfs` says whether the file is kept in LFS; by default its name and size decide.
    """

    path: str
    body: Body
    lfs: bool | None = None
    sha256: str | None = None
    listed_size_bytes: int | None = None

    @functools.cached_property
    def is_lfs(self) -> bool:
        by_name = self.path.endswith(tuple(_LFS_SUFFIXES)) or self.body.size_bytes > _LFS_BYTES
        return by_name if self.lfs is None else self.lfs

    @functools.cached_property
    def sha256_hex(self) -> str:
        return self.sha256 or bodies.sha256_hex(self.body)

    @functools.cached_property
    def size_bytes(self) -> int:
        return self.body.size_bytes if self.listed_size_bytes is None else self.listed_size_bytes

    @functools.cached_property
    def pointer(self) -> bytes:
        """The LFS pointer that git keeps instead of the content."""
        text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256_hex}\nsize {self.size_bytes}\n"
        return text.encode()

    @functools.cached_property
    def git_hex(self) -> str:
        return bodies.git_blob_hex(BytesBody(self.pointer) if self.is_lfs else self.body)


@dataclass(frozen=True)
class Commit:
    """One immutable state of a repository."""

    hex: str
    files: Mapping[str, File]
    title: str

    @functools.cached_property
    def directories(self) -> tuple[str, ...]:
        found = {
            "/".join(parts[:count])
            for parts in (path.split("/") for path in self.files)
            for count in range(1, len(parts))
        }
        return tuple(sorted(found))

    @functools.cached_property
    def paths(self) -> tuple[str, ...]:
        """Files and directories in listing order."""
        return tuple(sorted({*self.files, *self.directories}))


@dataclass
class Repository:
    """A repository: commits, names that move, and who may read it.

    `granted` are the tokens that may read a gated or private repository.
    """

    id: str
    files: Mapping[str, Content | File] = field(default_factory=dict)
    access: Access = Access.PUBLIC
    granted: frozenset[str] = frozenset()
    tags: tuple[str, ...] = ()
    library: str | None = "transformers"
    branches: dict[str, str] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)
    git_tags: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        self.commit(self.files, title="initial commit")

    @property
    def head(self) -> Commit:
        return self.commits[self.branches["main"]]

    def commit(self, files: Mapping[str, Content | File], *, revision: str = "main", title: str = "update") -> Commit:
        """Add a commit that holds exactly `files`, and move `revision` (a branch or refs/…) to it."""
        kept = {path: _as_file(path, content) for path, content in files.items()}
        with self._lock:
            seed = f"{self.id.lower()} {len(self.commits)} {title}".encode()
            made = Commit(hashlib.sha1(seed, usedforsecurity=False).hexdigest(), kept, title)
            self.commits[made.hex] = made
            self.branches[revision] = made.hex
        return made

    def update(self, changes: Mapping[str, Content | File | None], *, revision: str = "main") -> Commit:
        """Add a commit on top of `revision` with some files changed, or removed where the value is None."""
        files: dict[str, Content | File] = dict(self.commits[self.branches[revision]].files)
        for path, content in changes.items():
            if content is None:
                files.pop(path)
            else:
                files[path] = content
        return self.commit(files, revision=revision)

    def tag(self, name: str, commit: Commit | None = None) -> None:
        """Give a commit (default: the head of main) a tag."""
        self.git_tags[name] = (commit or self.head).hex

    def find(self, revision: str) -> Commit | None:
        """Resolve a branch, a tag, refs/pr/N, or a commit (whole, or abbreviated to at least 7 digits)."""
        name = self.branches.get(revision) or self.git_tags.get(revision)
        if name is None and revision.startswith("refs/heads/"):
            name = self.branches.get(revision.removeprefix("refs/heads/"))
        if name is None and len(revision) >= 7:
            name = next((known for known in self.commits if known.startswith(revision)), None)
        return None if name is None else self.commits[name]


def _as_file(path: str, content: Content | File) -> File:
    return content if isinstance(content, File) else File(path, as_body(content))


def folder(root: Path, *, leave_out: Iterable[str] = ()) -> dict[str, Content | File]:
    """Every file below a folder, by its path relative to it."""
    skipped = set(leave_out)
    found = sorted(path for path in root.rglob("*") if path.is_file())
    return {name: path for path in found if (name := path.relative_to(root).as_posix()) not in skipped}
