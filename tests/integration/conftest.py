"""What integration tests share: one Ray on this machine for the whole run."""

from collections.abc import Iterator

import pytest

from aimodels_jobs.fleet.cluster import Ray


@pytest.fixture(scope="session")
def ray_instance() -> Iterator[None]:
    """A local Ray; `actors.attach()` runs movers in it. Kill tests start their own."""
    cluster = Ray("local", 8)
    cluster.start()
    yield
    cluster.stop()
