"""The coordinator's HTTP API, the same laws for one in this process and for a detached actor of Ray."""

import concurrent.futures
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aimodels_core import names
from aimodels_core.messages import Stage, Want
from aimodels_jobs.folder import Folder
from aimodels_jobs.headers import FIRST_WINDOW_BYTES
from aimodels_jobs.host_options import HostSettings
from aimodels_jobs.layout import Store
from tests.support import auditing, weights
from tests.support.coordinators import TOKEN, Detached, Here, Served
from tests.support.hub.bodies import Body
from tests.support.hub.faults import Fault, Rule
from tests.support.hub.limits import Limits
from tests.support.hub.repository import Access, Content, File, Repository
from tests.support.hub.routes import On
from tests.support.hub.server import Hub
from tests.support.processes import free_port, wait_for

pytestmark = pytest.mark.timeout(120)

MIB = 1024 * 1024
GRANTED = "hf_granted"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with Hub(limits=Limits.unlimited(), tokens={GRANTED: "ann"}) as made:
        yield made


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("coordinator")


@pytest.fixture(scope="module", params=["here", "actor"])
def served(request: pytest.FixtureRequest, hub: Hub, root: Path) -> Iterator[Served]:
    token = root / "token"
    token.write_text(TOKEN + "\n")
    here = request.param == "here"
    settings = HostSettings(
        store=str(root / f"store-{request.param}"),
        token_file=str(token),
        hub_endpoint=hub.url,
        port=free_port(),
        movers=1,
        inline=here,
    )
    if not here:
        request.getfixturevalue("ray_instance")
    made: Served = Here(settings) if here else Detached(settings, "coordinator-of-api-tests")
    made.api.writing()
    yield made
    made.close()


@pytest.fixture
def store(request: pytest.FixtureRequest, served: Served, root: Path) -> Store:
    return Store(Folder(root / f"store-{'here' if isinstance(served, Here) else 'actor'}"))


@pytest.fixture(autouse=True)
def clean(hub: Hub) -> Iterator[None]:
    yield
    hub.rules.clear()
    hub.throttle(None)


def model(hub: Hub, *, size_mib: float = 1.0, seed: int = 0, access: Access = Access.PUBLIC) -> Repository:
    """A model with contents of its own."""
    number = next(_numbers)
    body: Body = weights.safetensors_of_size(int(size_mib * MIB), seed=seed or number)
    files: dict[str, Content | File] = {
        "config.json": weights.llama_config(),
        "model.safetensors": File("model.safetensors", body, lfs=True),
    }
    return hub.add(Repository(f"org/model-{number}", files, access=access, granted=frozenset({GRANTED})))


def want(hub: Hub, repository: Repository, *, generation: int = 1, credential: str = "", uid: str = "") -> Want:
    name = uid or repository.id.replace("/", "-")
    return Want(name, name, generation, f"{hub.url}/{repository.id}", names.CLUSTER, credential=credential)


def stall(hub: Hub, repository: Repository, *, after_bytes: int = MIB) -> Rule:
    """Let its weights hang; the headers of the file, which are read first, pass."""
    return hub.fault(Fault.STALL, on=On.CDN, repository=repository.id, after_bytes=after_bytes, seconds=600)


def sent(hub: Hub, repository: Repository) -> int:
    return sum(each.sent_bytes for each in hub.log if each.payload and each.repository == repository.id)


def tagged(store: Store, uid: str) -> bool:
    return uid in store.tagged(names.CLUSTER)


def begun(store: Store) -> set[str]:
    """The sha256 of blobs that were begun and neither completed nor dropped."""
    return {key.split("/")[-2] for key in auditing.uploads(store)}


def test_a_want_becomes_a_model_and_repeating_it_moves_nothing(served: Served, hub: Hub, store: Store) -> None:
    repository = model(hub)
    wanted = want(hub, repository)
    first = served.api.put(wanted)
    state = served.api.ready(wanted.uid)
    before = sent(hub, repository)
    again = served.api.put(wanted)

    assert first.status == again.status == 202
    assert state.published is not None
    assert state.bytes_done == state.bytes_total > MIB
    assert str(store.resolve_tag(names.CLUSTER, wanted.uid)) == state.published.digest
    assert again.json["stage"] == "Ready"
    assert sent(hub, repository) == before


def test_a_want_put_many_times_at_once_runs_once(served: Served, hub: Hub) -> None:
    repository = model(hub, size_mib=4)
    wanted = want(hub, repository)
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        replies = list(pool.map(lambda _: served.api.put(wanted), range(12)))
    state = served.api.ready(wanted.uid)

    assert {reply.status for reply in replies} == {202}
    assert state.bytes_transferred <= state.bytes_total + FIRST_WINDOW_BYTES
    assert hub.log.times_sent("model.safetensors")


@pytest.mark.parametrize("path", ["/v1/state", "/v1/models/a", "/v1/collect", "/nothing"])
@pytest.mark.parametrize("token", ["wrong", TOKEN[:-1], TOKEN + "x", "\xff\xfe"])
def test_without_the_token_nothing_is_said(served: Served, path: str, token: str) -> None:
    reply = served.api.call("GET", path, token=token)

    assert reply.status == 401
    assert reply.json["code"] == "Unauthorized"
    assert TOKEN.encode() not in reply.body


def test_health_and_metrics_need_no_token_and_name_no_model(served: Served, hub: Hub) -> None:
    wanted = want(hub, model(hub))
    served.api.put(wanted)
    served.api.ready(wanted.uid)
    health = served.api.call("GET", "/healthz", token="none")
    metrics = served.api.call("GET", "/metrics", token="none")

    assert health.json["writing"] is True
    assert b'aimodels_publications{stage="Ready"}' in metrics.body
    assert wanted.name.encode() not in metrics.body + health.body


def test_an_older_generation_is_refused_and_a_newer_one_replaces(served: Served, hub: Hub, store: Store) -> None:
    slow, quick = model(hub, size_mib=40), model(hub)
    stall(hub, slow)
    first = want(hub, slow, uid=f"replaced-{next(_numbers)}", generation=2)
    served.api.put(first)
    served.api.until(first.uid, lambda s: s.stage is Stage.MOVING, "Moving")
    older = served.api.put(want(hub, quick, uid=first.uid, generation=1))
    newer = served.api.put(want(hub, quick, uid=first.uid, generation=3))
    state = served.api.ready(first.uid)

    assert (older.status, older.json["code"]) == (409, "StaleGeneration")
    assert newer.status == 202
    assert state.generation == 3
    assert state.published is not None
    assert auditing.content(store, names.CLUSTER, first.uid).keys() == {"config.json", "model.safetensors"}


def test_a_new_credential_is_tried_at_once(served: Served, hub: Hub) -> None:
    repository = model(hub, access=Access.GATED)
    wanted = want(hub, repository)
    served.api.put(wanted)
    denied = served.api.until(wanted.uid, lambda s: s.trouble is not None, "trouble")
    same = served.api.put(wanted)
    began = time.monotonic()
    served.api.put(want(hub, repository, credential=GRANTED))
    served.api.ready(wanted.uid, seconds=20)

    assert denied.stage is Stage.FAILED
    assert denied.next_retry_at is not None
    assert same.json["stage"] == "Failed"
    assert time.monotonic() - began < 20
    assert GRANTED.encode() not in served.api.call("GET", "/v1/state").body


def test_a_failed_publication_begins_anew_with_another_generation(served: Served, hub: Hub) -> None:
    repository = model(hub)
    missing = Want("lost", "lost", 1, f"{hub.url}/org/not-there", names.CLUSTER, credential=GRANTED)
    served.api.put(missing)
    failed = served.api.until("lost", lambda s: s.stage is Stage.FAILED, "Failed")
    served.api.put(want(hub, repository, uid="lost", generation=2))

    assert failed.trouble is not None
    assert not failed.trouble.retryable
    assert served.api.ready("lost").generation == 2


def test_delete_stops_within_a_second_and_leaves_nothing(served: Served, hub: Hub, store: Store) -> None:
    repository = model(hub, size_mib=200)
    stall(hub, repository, after_bytes=5 * MIB)
    wanted = want(hub, repository)
    served.api.put(wanted)
    served.api.until(wanted.uid, lambda s: s.stage is Stage.MOVING and s.bytes_done > 0, "bytes on their way")
    began = time.monotonic()
    reply = served.api.delete(wanted.uid, names.CLUSTER)
    took = time.monotonic() - began
    again = served.api.delete(wanted.uid, names.CLUSTER)

    assert (reply.status, again.status) == (204, 204)
    assert took < 3.0, "a second, and what a busy machine adds"
    assert served.api.state(wanted.uid) is None
    assert not tagged(store, wanted.uid)
    weights_hex = repository.head.files["model.safetensors"].sha256_hex
    assert weights_hex not in begun(store)
    assert not any(weights_hex in key for key in auditing.checkpoints(store))


def test_delete_removes_a_published_model_and_collection_frees_it(served: Served, hub: Hub, store: Store) -> None:
    kept, gone = want(hub, model(hub)), want(hub, model(hub))
    for each in (kept, gone):
        served.api.put(each)
        served.api.ready(each.uid)
    deleted = served.api.delete(gone.uid, names.CLUSTER)
    collected = served.api.call("POST", "/v1/collect", b'{"now": true}')

    assert deleted.status == 204
    assert collected.status == 200
    assert collected.json["size_bytes"] >= MIB
    assert not tagged(store, gone.uid)
    assert f"{names.CLUSTER}:{kept.uid}" in auditing.audit(store)


def test_delete_of_one_of_two_that_share_a_blob_lets_the_other_finish(served: Served, hub: Hub, store: Store) -> None:
    one, two = model(hub, size_mib=40, seed=4711), model(hub, size_mib=40, seed=4711)
    rules = [stall(hub, each, after_bytes=5 * MIB) for each in (one, two)]
    first, second = want(hub, one), want(hub, two)
    served.api.put(first)
    served.api.until(first.uid, lambda s: s.stage is Stage.MOVING and s.bytes_done > 0, "bytes on their way")
    served.api.put(second)
    served.api.until(second.uid, lambda s: s.stage is Stage.MOVING, "Moving")
    began = time.monotonic()
    reply = served.api.delete(first.uid, names.CLUSTER)
    took = time.monotonic() - began
    for rule in rules:
        hub.rules.remove(rule)
    hub.rules.clear()
    served.api.put(want(hub, two, generation=2))

    assert (reply.status, took < 3.0) == (204, True)
    served.api.ready(second.uid)
    assert f"{names.CLUSTER}:{second.uid}" in auditing.audit(store)


def test_an_unchanged_state_is_not_sent_again_and_a_change_ends_the_wait(served: Served, hub: Hub) -> None:
    etag = served.api.call("GET", "/v1/state").headers["etag"]
    unchanged = served.api.call("GET", "/v1/state", headers={"If-None-Match": etag})
    began = time.monotonic()
    patient = served.api.call("GET", "/v1/state?wait=0.5", headers={"If-None-Match": etag})
    waited = time.monotonic() - began
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(served.api.call, "GET", "/v1/state?wait=30", headers={"If-None-Match": etag})
        wanted = want(hub, model(hub))
        served.api.put(wanted)
        changed = waiting.result(10)
    served.api.ready(wanted.uid)

    assert (unchanged.status, patient.status, changed.status) == (304, 304, 200)
    assert unchanged.headers["etag"] == etag
    assert waited >= 0.45
    assert changed.headers["etag"] != etag
    assert wanted.uid in changed.body.decode()


def raw(**changes: object) -> bytes:
    fields: dict[str, object] = {"name": "n", "generation": 1, "url": "https://huggingface.co/a/b", "scope": "cluster"}
    return json.dumps({**fields, **changes}).encode()


MALFORMED = {
    "empty": b"",
    "not JSON": b"{",
    "not UTF-8": b'{"name": "\xff"}',
    "a list": b"[]",
    "nested": b"[" * 100_000,
    "unknown field": raw(password="x"),
    "no url": raw(url=""),
    "no scope": raw(scope=""),
    "url is a number": raw(url=1),
    "url too long": raw(url="h" * 3000),
    "generation is text": raw(generation="1"),
    "generation is true": raw(generation=True),
    "generation is negative": raw(generation=-1),
    "scope climbs": raw(scope="../../etc"),
    "scope of nobody": raw(scope="ns/"),
    "scope with capitals": raw(scope="ns/Team"),
    "scope public": raw(scope="public"),
    "credential with a line": raw(credential="a\nb"),
}


@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in MALFORMED.items()])
def test_a_malformed_want_is_refused_with_a_reason(served: Served, body: bytes) -> None:
    reply = served.api.call("PUT", "/v1/models/bad", body)

    assert reply.status == 400
    assert reply.json["message"]
    assert served.api.state("bad") is None


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        pytest.param("PUT", "/v1/models/..%2f..%2fetc", raw(), 400, id="uid climbs"),
        pytest.param("PUT", f"/v1/models/{'u' * 200}", raw(), 400, id="uid too long"),
        pytest.param("PUT", "/v1/models/big", raw(url="h" * 300_000), 413, id="oversized"),
        pytest.param("DELETE", "/v1/models/a", None, 400, id="no scope"),
        pytest.param("DELETE", "/v1/models/a?scope=../x", None, 400, id="scope climbs"),
        pytest.param("POST", "/v1/models/a", raw(), 405, id="method"),
        pytest.param("GET", "/v2/state", None, 404, id="path"),
        pytest.param("POST", "/v1/collect", b"[]", 400, id="collect a list"),
        pytest.param("POST", "/v1/collect", b'{"now": "yes"}', 400, id="collect yes"),
        pytest.param("GET", "/v1/state?wait=soon", None, 400, id="wait soon"),
        pytest.param("GET", "/v1/state?wait=nan", None, 400, id="wait nan"),
        pytest.param("GET", "/v1/state?wait=-inf", None, 400, id="wait infinite"),
    ],
)
def test_a_bad_request_is_refused(served: Served, method: str, path: str, body: bytes | None, status: int) -> None:
    assert served.api.call(method, path, body).status == status


def test_after_a_restart_there_is_a_new_epoch_and_a_repeated_want_moves_nothing(
    served: Served, hub: Hub, store: Store
) -> None:
    repository = model(hub)
    wanted = want(hub, repository)
    served.api.put(wanted)
    first = served.api.ready(wanted.uid)
    before = served.api.snapshot()
    sent_before = sent(hub, repository)
    served.restart()
    epoch = served.api.writing(other_than=before.epoch)
    after = served.api.call("GET", "/v1/state", headers={"If-None-Match": before.etag})
    served.api.put(wanted)
    second = served.api.ready(wanted.uid)

    assert epoch != before.epoch
    assert after.status == 200
    assert not json.loads(after.body)["publications"]
    assert (second.bytes_transferred, sent(hub, repository)) == (0, sent_before)
    assert first.published == second.published


def test_a_restart_in_the_middle_is_gone_on_with_when_the_want_is_put_again(
    served: Served, hub: Hub, store: Store
) -> None:
    repository = model(hub, size_mib=150)
    hub.throttle(4 * MIB)
    wanted = want(hub, repository)
    served.api.put(wanted)
    wait_for(lambda: bool(auditing.checkpoints(store)), "a checkpoint", seconds=40)
    epoch = served.api.snapshot().epoch
    served.restart()
    served.api.writing(other_than=epoch)
    visible = tagged(store, wanted.uid)
    hub.throttle(None)
    served.api.put(wanted)
    state = served.api.ready(wanted.uid)

    assert not visible
    assert state.bytes_transferred < state.bytes_total
    assert f"{names.CLUSTER}:{wanted.uid}" in auditing.audit(store)
    assert not set(auditing.content(store, names.CLUSTER, wanted.uid).values()) & begun(store)
