"""What tests of publishing share: stores of both kinds, a hub per test, and a good model that must never be lost."""

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aimodels_core.messages import Stage
from tests.support import servers
from tests.support.hub.limits import Limits
from tests.support.hub.server import Hub
from tests.support.publishing import Desk, Place, Shop, bucket_place, folder_place, good_model, want

PLACES = ("folder", "s3")


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub(limits=Limits.unlimited(), tokens={"hf_good": "someone", "hf_other": "another"}) as running:
        yield running


@pytest.fixture(scope="session")
def versity(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.S3Server]:
    with servers.versitygw(tmp_path_factory.mktemp("versity")) as server:
        yield server


Make = Callable[[], Place]


def maker(kind: str, request: pytest.FixtureRequest, tmp: Path) -> Make:
    if kind == "folder":
        return lambda: folder_place(tmp / f"dmcr-{secrets.token_hex(3)}")
    server = request.getfixturevalue("versity")
    return lambda: bucket_place(server, f"stores/{secrets.token_hex(4)}")


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty store, of each kind."""
    return maker(request.param, request, tmp_path)()


@pytest.fixture
def folder(tmp_path: Path) -> Place:
    """An empty store in a folder."""
    return folder_place(tmp_path / "dmcr")


@pytest.fixture(params=PLACES, scope="module")
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """One store of each kind for the tests of a module."""
    where = maker(request.param, request, tmp_path_factory.mktemp("shop"))()
    with Hub(limits=Limits.unlimited()) as quiet, Desk(where) as desk:
        quiet.add(good_model())
        state = desk.publish(want(f"{quiet.url}/org/good", "good"))
        assert state.stage is Stage.READY, state
        assert state.published
        yield Shop(desk, where, state.published.digest)
