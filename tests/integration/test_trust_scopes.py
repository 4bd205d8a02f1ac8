"""A claimed digest opens nothing: whoever has no bytes of his own gets none of another tenant's (design 4.1)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from aimodels_core import names
from aimodels_core.digest import Digest
from aimodels_core.messages import PublicationState, Stage
from aimodels_jobs.checkpoints import Checkpoints, Record
from aimodels_jobs.layout import Store
from aimodels_jobs.plan import PART_BYTES
from tests.support.hub.bodies import Body, BytesBody
from tests.support.hub.limits import Limits
from tests.support.hub.repository import File, Repository
from tests.support.hub.server import Hub
from tests.support.publishing import Desk, folder_place, wanted
from tests.support.stores import send, stored
from tests.support.weights import tiny_safetensors

WEIGHTS = "model.safetensors"
VICTIM, THIEF = "ns/victim", "ns/thief"


def _bytes(body: bytes | Body) -> bytes:
    return body if isinstance(body, bytes) else bytes(body.read(0, body.size_bytes))


SECRET = _bytes(tiny_safetensors(seed=1)[WEIGHTS])
DIGEST = Digest.of(SECRET)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with Desk(folder_place(tmp_path / "dmcr")) as running:
        yield running


def _claimed(desk: Desk) -> PublicationState:
    """Publish, as the thief, a repository that claims the victim's digest and has other bytes."""
    with Hub(limits=Limits.unlimited()) as hub:
        files = tiny_safetensors(seed=2)
        lie = File(WEIGHTS, BytesBody(_bytes(files[WEIGHTS])), sha256=DIGEST.hex)
        hub.add(Repository("thief/model", {**files, WEIGHTS: lie}))
        return desk.publish(wanted(hub, "loot", "thief/model", scope=THIEF))


def _on_its_way(store: Store) -> None:
    """All of the victim's blob is sent and hashed; only its commit is left."""
    upload = store.objects.create_upload(store.blob_key(DIGEST), len(SECRET))
    records = tuple(send(store.objects, upload, SECRET, part_bytes=PART_BYTES))
    Checkpoints(store.objects).save(DIGEST, VICTIM, Record(upload, 0, records, b"", DIGEST.hex))


def test_a_claimed_digest_does_not_go_on_with_the_upload_of_another_tenant(desk: Desk) -> None:
    _on_its_way(desk.store)

    state = _claimed(desk)

    assert (state.stage, state.trouble and state.trouble.code) == (Stage.FAILED, "DigestMismatch")
    assert not any(desk.store.is_linked(scope, DIGEST) for scope in (THIEF, names.PUBLIC))
    assert desk.store.blob_size(DIGEST) is None
    assert Checkpoints(desk.objects).load(DIGEST, VICTIM, len(SECRET), PART_BYTES).digest_hex == DIGEST.hex


def test_a_claimed_digest_does_not_open_the_blob_of_another_tenant(desk: Desk) -> None:
    stored(desk.store, VICTIM, SECRET)

    state = _claimed(desk)

    assert (state.stage, state.trouble and state.trouble.code) == (Stage.FAILED, "DigestMismatch")
    assert state.bytes_reused == 0
    assert not any(desk.store.is_linked(scope, DIGEST) for scope in (THIEF, names.PUBLIC))
    assert desk.store.read_blob(DIGEST, max_bytes=len(SECRET)) == SECRET
