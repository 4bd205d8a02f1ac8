"""A Hugging Face source against the hub simulator, made in one call; the fixture of the test folder closes it."""

from collections.abc import Mapping

import pytest

from aimodels_core.errors import AiModelsError
from aimodels_core.source import SourceFile
from aimodels_jobs.sources import hub_url
from aimodels_jobs.sources.hub_settings import HubSettings
from aimodels_jobs.sources.hub_wire import Patience
from aimodels_jobs.sources.huggingface import HuggingFace
from tests.support.hub.server import Hub

WEIGHTS = bytes(range(256)) * 4000
FILES = {"config.json": b"{}\n", "model.safetensors": WEIGHTS, "README.md": b"# name\n"}
GRANTED = frozenset({"hf_good"})
QUICK = Patience(attempts=3, first_pause_seconds=0.001)


OPEN: list[HuggingFace] = []
"""Sources that a test made; its fixture closes them."""


class OpenGate:
    """Lets every request pass, and remembers what it was told."""

    def __init__(self) -> None:
        self.waits: list[tuple[str, str, str]] = []
        self.answers: list[tuple[str, int, Mapping[str, str]]] = []

    def wait(self, host: str, kind: str, identity: str) -> None:
        self.waits.append((host, kind, identity))

    def learn(self, host: str, kind: str, identity: str, status: int, headers: Mapping[str, str]) -> None:
        self.answers.append((kind, status, headers))


def source(hub: Hub, path: str = "org/name", *, token: str = "", **fields: object) -> HuggingFace:
    settings = HubSettings(endpoint=hub.url, token=token)
    reference = hub_url.parse(f"{hub.url}/{path}", endpoint=hub.url)
    known: dict[str, object] = {"settings": settings, "gate": OpenGate(), "patience": QUICK, **fields}
    made = HuggingFace(reference, **known)  # type: ignore[arg-type]  # fields are those of the constructor
    OPEN.append(made)
    return made


def file_of(made: HuggingFace, path: str) -> SourceFile:
    return next(file for file in made.resolve().files if file.path == path)


def read_all(made: HuggingFace, path: str) -> bytes:
    file = file_of(made, path)
    return made.read(file, 0, file.size_bytes)


def refused(made: HuggingFace) -> AiModelsError:
    with pytest.raises(AiModelsError) as caught:
        made.resolve()
    return caught.value
