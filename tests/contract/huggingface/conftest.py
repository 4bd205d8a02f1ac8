"""A simulated hub for each test, and the end of the sources that it made."""

from collections.abc import Iterator

import pytest

from tests.support.hub.repository import Repository
from tests.support.hub.server import Hub
from tests.support.hub_source import FILES, OPEN


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub(tokens={"hf_good": "u", "hf_other": "v"}) as made:
        made.add(Repository("org/name", FILES))
        yield made


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Close what a test opened: the connections of a source live as long as it."""
    yield
    while OPEN:
        OPEN.pop().close()
