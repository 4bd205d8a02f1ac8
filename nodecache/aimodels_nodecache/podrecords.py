"""Records of Pods, one file each in `<cache>/records`: what a Pod of this node gets, so that nobody removes it.

The driver writes them before it mounts anything and drops them with the last volume; whoever fetches or removes
artifacts reads them. A record is there whole or not at all, also after a power cut.
"""

import dataclasses
import json
import logging
import os
import re
from pathlib import Path

from aimodels_core.digest import Digest
from aimodels_core.folders import disk_errors, sync_folder

log = logging.getLogger(__name__)

_MAX_BYTES = 512 * 1024
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9]{0,63})\.json")


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedModel:
    """A model that a Pod gets.

    Args:
        name: by which the Pod asks for it.
        digest: of the artifact's manifest.
    """

    name: str
    digest: Digest


@dataclasses.dataclass(frozen=True, slots=True)
class PodRecord:
    """What is remembered of a Pod.

    Args:
        uid: of this very Pod.
        namespace: where it is.
        name: its name there.
        models: all that it gets.
    """

    uid: str
    namespace: str
    name: str
    models: tuple[RecordedModel, ...]

    def to_json(self) -> bytes:
        """Render the file."""
        models = [{"name": model.name, "digest": str(model.digest)} for model in self.models]
        return json.dumps({"uid": self.uid, "namespace": self.namespace, "name": self.name, "models": models}).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "PodRecord":
        """Parse the file.

        Raises:
            ValueError: not JSON, or not of that shape.
        """
        try:
            raw = json.loads(data)
            models = tuple(RecordedModel(str(one["name"]), Digest.parse(one["digest"])) for one in raw["models"])
            return cls(str(raw["uid"]), str(raw["namespace"]), str(raw["name"]), models)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"record: want a Pod and its models, got {type(error).__name__}") from error


class PodRecords:
    """The records of a node; its calls block.

    Args:
        folder: where they are; made when the first one is written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, record: PodRecord) -> None:
        """Write a record, durable when this returns.

        Raises:
            StoreFull, StoreUnsafe, StoreUnavailable.
            ValueError: a uid that cannot be a file's name.
        """
        path = self._path(record.uid)
        scratch = path.with_suffix(".tmp")
        with disk_errors(path):
            self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            with os.fdopen(descriptor, "wb") as file:
                file.write(record.to_json())
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(path)
            sync_folder(self._folder)

    def all(self) -> tuple[PodRecord, ...]:
        """Return all records; what is none is left alone and told in the log.

        Raises:
            StoreUnsafe, StoreUnavailable.
        """
        found = []
        with disk_errors(self._folder):
            for path in sorted(self._folder.iterdir()) if self._folder.is_dir() else ():
                uid = _NAME.fullmatch(path.name)
                record = _read(path) if uid else None
                if uid and record is not None and record.uid == uid[1]:
                    found.append(record)
                elif uid:
                    log.warning("not a record of a Pod", extra={"path": str(path)})
        return tuple(found)

    def drop(self, uid: str) -> None:
        """Drop a record; none is fine.

        Raises:
            StoreUnsafe, StoreUnavailable.
        """
        path = self._path(uid)
        with disk_errors(path):
            path.unlink(missing_ok=True)

    def _path(self, uid: str) -> Path:
        name = f"{uid}.json"
        if not _NAME.fullmatch(name):
            raise ValueError(f"uid: want letters, digits and dashes, got {uid[:80]!r}")
        return self._folder / name


def _read(path: Path) -> PodRecord | None:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    try:
        return PodRecord.from_json(data) if len(data) <= _MAX_BYTES else None
    except ValueError:
        return None
