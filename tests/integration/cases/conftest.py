"""One hub and one coordinator for the cases of a module; every case has a repository of its own."""

from collections.abc import Iterator

import pytest

from tests.support.hub.limits import Limits
from tests.support.hub.server import Hub
from tests.support.publisher import Publisher
from tests.support.publishing import Desk, folder_place


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Publisher]:
    tokens = {"hf_good": "someone", "hf_other": "another"}
    place = folder_place(tmp_path_factory.mktemp("cases") / "dmcr")
    with Hub(limits=Limits.unlimited(), tokens=tokens) as hub, Desk(place) as desk:
        yield Publisher(hub, desk)


@pytest.fixture
def cases(shared: Publisher) -> Iterator[Publisher]:
    """The module's publisher, without faults and with an empty log."""
    shared.hub.log.clear()
    yield shared
    shared.hub.rules.clear()
