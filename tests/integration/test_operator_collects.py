"""The operator has a real coordinator collect, through its HTTP API: nothing goes that may just have been written."""

import asyncio
import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest

from aimodels_core import names
from aimodels_core.digest import Digest
from aimodels_jobs.folder import Folder
from aimodels_jobs.host_options import HostSettings
from aimodels_jobs.layout import Store
from aimodels_operator import collecting
from aimodels_operator.coordinator import Access, CoordinatorClient
from aimodels_operator.meters import Meters
from tests.support.certificates import certificates
from tests.support.coordinators import TOKEN, Here
from tests.support.processes import free_port
from tests.support.stores import publish

STRAY = b"nobody names these bytes"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Here]:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    store = Store(Folder(tmp_path / "store"))
    publish(store, names.CLUSTER, "kept", {"model.safetensors": b"bytes"})
    store.put_blob(STRAY)
    settings = HostSettings(store=str(tmp_path / "store"), token_file=str(token), port=free_port(), inline=True)
    made = Here(settings)
    made.api.writing()
    yield made
    made.close()


def test_rounds_of_the_operator_are_passes_of_the_coordinator(served: Here, tmp_path: Path) -> None:
    authority = certificates(tmp_path).ca.read_text()
    meters, rounds = Meters(), 0

    async def sleep(seconds: float) -> None:
        nonlocal rounds
        rounds += seconds == collecting.EVERY_SECONDS
        if rounds > 2:
            raise asyncio.CancelledError
        await asyncio.sleep(0.05)

    async def run() -> None:
        client = CoordinatorClient(
            f"http://127.0.0.1:{served.api.port}",
            lambda: Access(TOKEN, authority),
            lambda _: None,
            now=lambda: datetime.datetime.now(datetime.UTC),
        )
        following = asyncio.create_task(client.follow())
        try:
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(collecting.run(client, list, lambda: None, meters, sleep=sleep), 40)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await client.close()

    asyncio.run(run())
    metrics = served.api.call("GET", "/metrics").body.decode()
    found = {digest for digest, _ in Store(Folder(tmp_path / "store")).blobs()}

    assert 'aimodels_collections_asked_total{result="good"} 2' in meters.render([], {}, {})
    assert "aimodels_collections_total 2" in metrics
    assert Digest.of(STRAY) in found, "it was found by two passes that are not an interval apart"
