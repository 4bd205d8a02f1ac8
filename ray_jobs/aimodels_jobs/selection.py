"""What was selected of a model's files: the values that `formats` makes and the plan uses. No rules here."""

import dataclasses
import enum

from aimodels_core import modelpack
from aimodels_core.modelpack import LayerClass
from aimodels_core.source import SourceFile
from aimodels_core.units import MIB

MAX_DOCUMENT_BYTES = 32 * MIB
"""Longest small file (config, index) that is read whole before the rest is moved."""


class Format(enum.Enum):
    """What `status.resolved.format` shows."""

    SAFETENSORS = "Safetensors"
    GGUF = "GGUF"
    DIFFUSERS = "Diffusers"
    PYTORCH = "PyTorch"


class Pickle(enum.Enum):
    """Whether weights that can run code when loaded are published (setting `sources.pickle`)."""

    ALLOW = "Allow"
    REFUSE = "Refuse"


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Selected:
    """A file that is published."""

    file: SourceFile

    @property
    def layer(self) -> LayerClass:
        """What the file is to the model."""
        return modelpack.layer_class(self.file.path)

    @property
    def path(self) -> str:
        """The path within the model."""
        return self.file.path


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Dropped:
    """A file that is left out, and why."""

    path: str
    size_bytes: int
    why: str


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Notice:
    """Something the user should know of a model that is published all the same.

    Args:
        code: such as PickleWeights, RemoteCode, BaseUnresolved, VariantFallback.
        message: for people.
    """

    code: str
    message: str


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """What is published of a listing, in order of path.

    Args:
        format: one per model.
        files: what is published.
        dropped: what is not; together with `files` the whole listing.
        warnings: what the user should know.
        entry: the file that a loader opens first.
        config_paths: small files whose bytes say what the model is and which of its files belong to it.
        index_paths: indexes of sharded weights; their bytes decide which shards belong to the model.
        listing: everything the source has, for the rules that need an index's bytes.
    """

    format: Format
    files: tuple[Selected, ...]
    dropped: tuple[Dropped, ...]
    warnings: tuple[Notice, ...]
    entry: str
    config_paths: tuple[str, ...]
    index_paths: tuple[str, ...]
    listing: tuple[SourceFile, ...] = dataclasses.field(repr=False, default=())

    @property
    def paths(self) -> frozenset[str]:
        """The paths of all published files."""
        return frozenset(item.path for item in self.files)

    @property
    def weights(self) -> tuple[Selected, ...]:
        """The published weight files, in order of path."""
        return tuple(item for item in self.files if item.layer is LayerClass.WEIGHT)

    @property
    def size_bytes(self) -> int:
        """All published bytes, equal files counted each time."""
        return sum(item.file.size_bytes for item in self.files)
