"""Tenants beside each other in an installed product: nobody gets at another's weights, and nothing moves twice.

The whole chart in Pods on three nodes, a hub under its real name.
"""

import contextlib
import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from aimodels_core import names
from aimodels_core.digest import Digest
from aimodels_jobs.collection import Collected
from tests.cluster import installed, operating, tenants
from tests.cluster.installed import model
from tests.cluster.operating import phase, secret
from tests.cluster.stand.chart import HOME
from tests.cluster.stand.cluster import Cluster
from tests.cluster.stand.kubectl import Kubectl, Object
from tests.support import auditing
from tests.support.hub.faults import Fault
from tests.support.hub.repository import Access, File, Repository
from tests.support.hub.routes import On
from tests.support.hub.server import Hub
from tests.support.publishing import WEIGHTS_BYTES, good_model

pytestmark = pytest.mark.timeout(900)

WEIGHTS = "model.safetensors"
TOKENS = {"hf_of_the_first": "first", "hf_of_the_second": "second"}
FIRST, SECOND = TOKENS
READY_SECONDS = 180.0
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with operating.hub_under_its_names(TOKENS) as made:
        yield made


@pytest.fixture(scope="module", autouse=True)
def _installed(hub: Hub) -> Iterator[None]:
    with installed.whole(hub):
        yield


@pytest.fixture
def other() -> Iterator[Kubectl]:
    """Another tenant's namespace."""
    with namespace() as made:
        yield made


@contextlib.contextmanager
def namespace() -> Iterator[Kubectl]:
    """A fresh namespace; it can be deleted with all that is in it."""
    made = Kubectl(f"test-{secrets.token_hex(3)}")
    Kubectl()("create", "namespace", made.namespace)
    made.until("serviceaccount", "default", bool)
    yield made
    Kubectl()("delete", "namespace", made.namespace, "--ignore-not-found", "--timeout=90s", seconds=100)


def private(name: str, granted: str, *, seed: int) -> Repository:
    """A private repository; the same seed gives the same weights."""
    files = good_model(seed=seed).files
    return Repository(name, files, access=Access.PRIVATE, granted=frozenset({granted}))


def weights_of(made: Repository) -> Digest:
    """Digest of its weights."""
    return Digest(made.head.files[WEIGHTS].sha256_hex)


def token(value: str) -> Object:
    """The Secret of a namespace with its token of the hub."""
    return secret("hub", {"token": value})


def sent(hub: Hub, repository: str) -> int:
    """Bytes of weights that the hub sent of a repository."""
    return sum(e.sent_bytes for e in hub.log if e.payload and e.repository == repository and e.path == WEIGHTS)


def linked(space: Kubectl, digest: Digest) -> bool:
    """Whether a namespace may use a blob."""
    return installed.store().is_linked(f"ns/{space.namespace}", digest)


def message(found: Object) -> str:
    """What its status says of it."""
    return " ".join(str(c["message"]) for c in found.get("status", {}).get("conditions", ()))


def publication(found: Object, name: str) -> int:
    """A number of its status about its publication."""
    return int(found.get("status", {}).get("publication", {}).get(name, -1))


def test_private_models_are_read_by_their_own_namespaces_alone(hub: Hub, space: Kubectl, other: Kubectl) -> None:
    first = hub.add(private("first/private", FIRST, seed=11))
    hub.add(private("second/private", SECOND, seed=12))
    space.apply(token(FIRST), model("private", "first/private", "hub"))
    other.apply(token(SECOND), model("private", "second/private", "hub"), model("stolen", "first/private", "hub"))
    mine = space.until("model", "private", phase("Ready"), seconds=READY_SECONDS)
    theirs = other.until("model", "private", phase("Ready"), seconds=READY_SECONDS)
    stolen = other.until("model", "stolen", phase("Failed"), seconds=READY_SECONDS)
    tenants.start(space)
    tenants.start(other)
    mine_digest, theirs_digest = (found["status"]["artifact"]["digest"] for found in (mine, theirs))
    files, complaint = tenants.read(space, f"ns/{space.namespace}", mine_digest)
    own, _ = tenants.read(other, f"ns/{other.namespace}", theirs_digest)
    refused = [
        tenants.read(space, f"ns/{other.namespace}", theirs_digest),
        tenants.read(other, f"ns/{space.namespace}", mine_digest),
        tenants.read(other, f"ns/{other.namespace}", mine_digest),
    ]

    assert complaint == ""
    assert files[WEIGHTS] == own[WEIGHTS] == WEIGHTS_BYTES
    assert [found for found, _ in refused] == [{}, {}, {}]
    assert ["SourceDenied" in words for _, words in refused[:2]] == [True, True]
    assert "the token may not see it" in message(stolen)
    assert not linked(other, weights_of(first))
    assert FIRST not in json.dumps([mine, theirs, stolen])


def test_who_has_the_bytes_of_his_own_reads_them_and_stores_nothing_again(
    hub: Hub, space: Kubectl, other: Kubectl
) -> None:
    first = hub.add(private("first/same", FIRST, seed=13))
    hub.add(private("second/same", SECOND, seed=13))
    space.apply(token(FIRST), model("m", "first/same", "hub"))
    mine = space.until("model", "m", phase("Ready"), seconds=READY_SECONDS)
    other.apply(token(SECOND), model("m", "second/same", "hub"))
    theirs = other.until("model", "m", phase("Ready"), seconds=READY_SECONDS)

    assert mine["status"]["artifact"]["digest"] == theirs["status"]["artifact"]["digest"]
    assert sent(hub, "second/same") >= WEIGHTS_BYTES
    assert publication(theirs, "bytesReused") == 0
    assert not installed.store().is_linked(names.PUBLIC, weights_of(first))


def test_a_public_model_moves_once_for_all_namespaces(hub: Hub, space: Kubectl, other: Kubectl) -> None:
    hub.add(good_model("org/public", seed=14))
    space.apply(model("m", "org/public"))
    space.until("model", "m", phase("Ready"), seconds=READY_SECONDS)
    once = sent(hub, "org/public")
    other.apply(model("m", "org/public"))
    found = other.until("model", "m", phase("Ready"), seconds=READY_SECONDS)

    assert sent(hub, "org/public") == once
    assert publication(found, "bytesReused") >= WEIGHTS_BYTES


@pytest.mark.parametrize("bytes_come", [True, False], ids=["other bytes", "no bytes"])
def test_a_repository_that_claims_another_tenants_digest_gets_nothing(
    hub: Hub, space: Kubectl, other: Kubectl, bytes_come: bool
) -> None:
    seed = 20 + 2 * bytes_come
    honest = hub.add(private("first/claimed", FIRST, seed=seed))
    digest = weights_of(honest)
    space.apply(token(FIRST), model("m", "first/claimed", "hub"))
    space.until("model", "m", phase("Ready"), seconds=READY_SECONDS)
    files = good_model(seed=seed + 1).head.files
    hub.add(Repository("thief/model", {**files, WEIGHTS: File(WEIGHTS, files[WEIGHTS].body, sha256=digest.hex)}))
    rule = None if bytes_come else hub.fault(Fault.STATUS, on=On.CDN, status=503, repository="thief/model")
    other.apply(model("loot", "thief/model"))
    tried = phase("Failed") if bytes_come else operating.stage("Waiting")
    found = other.until("model", "loot", tried, seconds=READY_SECONDS)
    other("delete", "model", "loot", "--timeout=60s", seconds=70)
    if rule is not None:
        hub.rules.remove(rule)

    assert found["status"]["phase"] != "Ready"
    assert "artifact" not in found["status"]
    assert publication(found, "bytesReused") == 0
    assert not any(installed.store().is_linked(name, digest) for name in (f"ns/{other.namespace}", names.PUBLIC))
    assert installed.store().blob_size(digest) == WEIGHTS_BYTES


def test_making_a_model_again_moves_nothing_until_its_bytes_were_collected(hub: Hub, space: Kubectl) -> None:
    again = hub.add(private("first/again", FIRST, seed=15))
    digest = weights_of(again)
    space.apply(token(FIRST), model("m", "first/again", "hub"))
    before = space.until("model", "m", phase("Ready"), seconds=READY_SECONDS)
    space("delete", "model", "m", "--timeout=60s", seconds=70)
    hub.log.clear()
    space.apply(model("m", "first/again", "hub"))
    after = space.until("model", "m", phase("Ready"), seconds=READY_SECONDS)
    moved = sent(hub, "first/again")
    space("delete", "model", "m", "--timeout=60s", seconds=70)
    collected = installed.coordinator().call("POST", "/v1/collect", b'{"now": true}')

    assert before["metadata"]["uid"] != after["metadata"]["uid"]
    assert before["status"]["artifact"] == after["status"]["artifact"]
    assert moved == 0
    assert publication(after, "bytesReused") >= WEIGHTS_BYTES
    assert collected.status == 200
    assert installed.store().blob_size(digest) is None


@contextlib.contextmanager
def stalled(hub: Hub, repository: str, *, seed: int) -> Iterator[Digest]:
    """A public repository whose last part does not come; the digest of its weights."""
    made = hub.add(good_model(repository, weights_bytes=100 * MIB, seed=seed))
    rule = hub.fault(Fault.STALL, on=On.CDN, repository=repository, path=WEIGHTS, offset=99 * MIB, seconds=600)
    yield weights_of(made)
    hub.rules.remove(rule)


def half_way(found: Object) -> bool:
    """Whether a good part of it was moved."""
    return publication(found, "bytesDone") >= 60 * MIB


def uploads(digest: Digest) -> list[str]:
    """Unfinished uploads of a blob, and its checkpoints."""
    store = installed.store()
    begun = [key for key in auditing.uploads(store) if key == store.blob_key(digest)]
    return begun + [key for key in auditing.checkpoints(store) if digest.hex in key]


def assert_nothing_left(space: Kubectl, digest: Digest) -> None:
    """The store has neither tags of a namespace nor what its publication had begun."""
    assert uploads(digest) == []
    assert installed.store().tagged(f"ns/{space.namespace}") == {}


def test_a_model_is_deleted_while_it_is_published(hub: Hub, space: Kubectl) -> None:
    with stalled(hub, "org/stalled", seed=16) as digest:
        space.apply(model("m", "org/stalled"))
        found = space.until("model", "m", half_way, seconds=READY_SECONDS)
        begun = uploads(digest)
        space("delete", "model", "m", "--timeout=30s", seconds=40)

        assert found["status"]["phase"] == "Publishing"
        assert begun != []
        assert_nothing_left(space, digest)


def test_a_model_is_deleted_when_it_has_failed(hub: Hub, space: Kubectl) -> None:
    space.apply(model("absent", "org/absent"), model("odd", "org/odd"))
    hub.add(Repository("org/odd", {"README.md": b"no weights"}))
    space.until("model", "odd", phase("Failed"), seconds=READY_SECONDS)
    space.until("model", "absent", phase("Failed"), seconds=READY_SECONDS)

    space("delete", "model", "odd", "absent", "--timeout=30s", seconds=40)


def test_a_namespace_goes_away_while_its_models_are_published(hub: Hub) -> None:
    with stalled(hub, "org/interrupted", seed=17) as digest, namespace() as space:
        space.apply(model("publishing", "org/interrupted"), model("failed", "org/absent"))
        space.apply(token(FIRST), model("unseen", "org/interrupted", "no-such-secret"))
        space.until("model", "failed", phase("Failed"), seconds=READY_SECONDS)
        space.until("model", "publishing", half_way, seconds=READY_SECONDS)
        Kubectl()("delete", "namespace", space.namespace, "--timeout=60s", seconds=70)

        assert_nothing_left(space, digest)


def collect_through_the_service(stand: Cluster, folder: Path) -> Collected:
    """Ask for a collection as the operator does: by the name of the Service, which nodes lead to the head."""
    address = Kubectl(HOME).get("service", "ai-models-coordinator")["spec"]["clusterIP"]
    host = f"ai-models-coordinator.{HOME}.svc"
    authority, options = folder / "ca.crt", folder / "curl"
    authority.write_text(installed.value("ai-models-serving-root", "tls.crt"))
    options.write_text(f'header = "Authorization: Bearer {installed.value("ai-models-coordinator", "token")}"')
    answer = stand.node("node-a").run(
        *("curl", "--silent", "--show-error", "--fail-with-body", "--max-time", "50", "--config", str(options)),
        *("--cacert", str(authority), "--resolve", f"{host}:{installed.PORT}:{address}", "--noproxy", "*"),
        *("--data", '{"now": true}', f"https://{host}:{installed.PORT}/v1/collect"),
    )
    return Collected(**json.loads(answer))


def test_after_a_namespace_its_bytes_go_with_the_next_collection(hub: Hub, stand: Cluster, tmp_path: Path) -> None:
    gone = hub.add(good_model("org/gone", seed=18))
    with namespace() as space:
        space.apply(model("m", "org/gone"))
        space.until("model", "m", phase("Ready"), seconds=READY_SECONDS)
    collected = collect_through_the_service(stand, tmp_path)

    assert collected.blobs >= 1
    assert installed.store().blob_size(weights_of(gone)) is None
