"""What the store is asked before a plan is made."""

import asyncio
from pathlib import Path

import pytest

from aimodels_core.digest import Digest
from aimodels_core.errors import RateLimited
from aimodels_jobs.asking import Asking
from aimodels_jobs.folder import Folder
from aimodels_jobs.layout import Store
from aimodels_jobs.plan import Way
from aimodels_jobs.selection import Pickle
from aimodels_jobs.survey import survey
from aimodels_jobs.threads import Threads
from tests.support.memory import MemorySource
from tests.support.stores import stored
from tests.support.weights import tiny_safetensors

WEIGHTS = "model.safetensors"
FILES = {
    path: body if isinstance(body, bytes) else bytes(body.read(0, body.size_bytes))
    for path, body in tiny_safetensors().items()
}


@pytest.mark.parametrize(
    ("linked", "size", "way"),
    [
        pytest.param("ns/a", len(FILES[WEIGHTS]), Way.REUSE, id="own"),
        pytest.param("cluster", len(FILES[WEIGHTS]), Way.REUSE, id="cluster"),
        pytest.param("public", len(FILES[WEIGHTS]), Way.REUSE, id="public"),
        pytest.param("ns/b", len(FILES[WEIGHTS]), Way.PROVE, id="another tenant's"),
        pytest.param("ns/a", 10, Way.MOVE, id="cut short"),
    ],
)
def test_a_blob_is_reused_when_it_is_whole_and_linked_where_the_model_may_read(
    tmp_path: Path, linked: str, size: int, way: Way
) -> None:
    store = Store(Folder(tmp_path / "s"))
    digest = stored(store, linked, FILES[WEIGHTS])
    store.objects.put(store.blob_key(digest), FILES[WEIGHTS][:size])
    threads = Threads()

    async def limited(error: RateLimited | None) -> None:
        raise AssertionError(error)

    source = Asking(MemorySource(FILES, lfs=frozenset({WEIGHTS})), threads, limited)
    found = asyncio.run(survey(source, store, "ns/a", threads, pickle=Pickle.ALLOW))
    threads.close()

    ways = {row.file.path: row.way for row in found.plan.files}
    assert ways[WEIGHTS] is way
    assert found.digests[WEIGHTS] == Digest.of(FILES[WEIGHTS])
