"""Publishing what the store has already moves nothing; what it has in part moves the rest."""

from aimodels_core import names
from aimodels_core.digest import Digest
from aimodels_jobs.checkpoints import Checkpoints, Record
from aimodels_jobs.headers import FIRST_WINDOW_BYTES
from aimodels_jobs.orders import PartRecord
from tests.support.auditing import assert_no_leftovers, content
from tests.support.hub.server import Hub
from tests.support.publishing import Desk, Place, good_model, wanted


def test_republication_moves_no_byte_and_starts_no_mover(place: Place, hub: Hub) -> None:
    repository = hub.add(good_model("org/name"))
    with Desk(place) as desk:
        first = desk.publish(wanted(hub, "m"))
    moved = hub.log.payload_bytes()
    hub.log.clear()
    with Desk(place) as desk:
        again = desk.publish(wanted(hub, "m"))
        movers = desk.movers.dispatcher

    assert first.published
    assert again.published == first.published
    assert first.bytes_transferred == moved == first.bytes_total + FIRST_WINDOW_BYTES
    assert (again.bytes_transferred, again.bytes_reused) == (0, again.bytes_total)
    assert movers is None
    assert hub.log.payload_bytes() == 0
    assert content(place.store, names.LOCAL, "m") == {f.path: f.sha256_hex for f in repository.head.files.values()}
    assert_no_leftovers(place.store)


def test_what_a_process_left_that_died_between_the_blob_and_its_checkpoints_is_cleared(place: Place, hub: Hub) -> None:
    repository = hub.add(good_model("org/name"))
    with Desk(place) as desk:
        first = desk.publish(wanted(hub, "m"))
    weights = repository.head.files["model.safetensors"]
    digest, objects = Digest(weights.sha256_hex), place.store.objects
    upload = objects.create_upload(place.store.blob_key(digest), weights.size_bytes)
    record = Record(upload, 0, (PartRecord(1, 0, weights.size_bytes, "e", "0" * 16),), b"state", "")
    Checkpoints(objects).save(digest, names.LOCAL, record)
    with Desk(place) as desk:
        again = desk.publish(wanted(hub, "m"))

    assert first.published
    assert again.published == first.published
    assert_no_leftovers(place.store)
