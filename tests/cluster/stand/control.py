"""What the supervisor tells the inside of a stand, written once as JSON before it starts."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.stand.layout import Layout


@dataclass(frozen=True, slots=True)
class Settings:
    """Choices of one stand."""

    nodes: int
    """How many nodes to start with."""
    images: str
    """Folder of the image template."""
    command: tuple[str, ...]
    """What to run beside the cluster."""
    install: bool = False
    """Whether to install the product first."""

    def save(self, layout: Layout) -> None:
        """Write them into the stand's folder."""
        layout.settings.write_text(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def load(cls, layout: Layout) -> "Settings":
        """Read what `save` wrote."""
        values = json.loads(layout.settings.read_text())
        return cls(values["nodes"], values["images"], tuple(values["command"]), install=values.get("install", False))

    @property
    def template(self) -> Path:
        """The image template as a path."""
        return Path(self.images)
