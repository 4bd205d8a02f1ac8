"""Hubs as they are, and what becomes of a publication from them: transfer, identity, access, choice (O-01 to O-16).

Every way in which a request can go wrong is tested beside the source; here are the cases as users met them.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from aimodels_core import names, pull
from aimodels_core.digest import Digest, GitDigest
from aimodels_core.messages import Stage
from aimodels_jobs.storeblobs import StoreBlobs
from tests.support.hub.bodies import BytesBody
from tests.support.hub.faults import Fault
from tests.support.hub.limits import Limits
from tests.support.hub.repository import Access, Content, File, Repository
from tests.support.hub.routes import On
from tests.support.hub.server import Hub
from tests.support.publisher import Outcome, Publisher
from tests.support.publishing import Desk, folder_place, wanted
from tests.support.weights import safetensors_of_size, tiny_sharded

WEIGHTS = "model.safetensors"
MIB = 1024 * 1024
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 1048576\n"
Files = dict[str, Content | File]


def model(seed: int, size_bytes: int = MIB) -> Files:
    """A model whose weights no other test has."""
    return {"config.json": b"{}\n", WEIGHTS: safetensors_of_size(size_bytes, seed=seed)}


def delivered(cases: Publisher, found: Outcome, target: Path) -> dict[str, str]:
    """Pull a model, and hash what is in the folder."""
    pull.pull(StoreBlobs(cases.desk.store, names.LOCAL), Digest.parse(found.published.digest), target)
    files = [path for path in target.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {path.relative_to(target).as_posix(): Digest.of(path.read_bytes()).hex for path in files}


# Transfer


def test_o01_a_pointer_that_the_cdn_serves_is_fetched_again_once_and_then_refused(cases: Publisher) -> None:
    once, twice = cases.add(model(101)), cases.add(model(102))
    cases.hub.fault(Fault.POINTER, on=On.CDN, repository=once.id, times=1)
    cases.hub.fault(Fault.POINTER, on=On.CDN, repository=twice.id)
    cases.ready_of(once)
    oid = twice.head.files[WEIGHTS].sha256_hex

    cases.refused_of(twice, "LfsPointer", WEIGHTS, oid, str(MIB))


def test_o01_a_pointer_where_the_listing_promises_a_mebibyte_is_refused(cases: Publisher) -> None:
    lying = File(WEIGHTS, BytesBody(POINTER), lfs=True, sha256="a" * 64, listed_size_bytes=MIB)

    cases.refused({"config.json": b"{}", WEIGHTS: lying}, "LfsPointer", WEIGHTS, "1048576")


def test_o02_a_page_instead_of_the_file_is_never_published_and_says_what_came(cases: Publisher) -> None:
    repository = cases.add(model(103))
    cases.hub.fault(Fault.HTML, on=On.CDN, repository=repository.id)
    cases.waiting_of(repository, WEIGHTS, "text/html", "200")

    assert len([each for each in cases.asked(repository) if each.on is On.CDN]) < 40


def test_o02_a_body_cut_in_the_middle_is_gone_on_with(cases: Publisher) -> None:
    repository = cases.add(model(104, 20 * MIB))
    rule = cases.hub.fault(
        Fault.TRUNCATE, on=On.CDN, repository=repository.id, offset=10 * MIB, after_bytes=5 * MIB, times=1
    )
    cases.ready_of(repository)

    assert rule.hits == 1


def test_o03_a_416_that_stays_ends_in_bounded_requests(cases: Publisher) -> None:
    repository = cases.add(model(105))
    cases.hub.fault(Fault.STATUS, on=On.CDN, repository=repository.id, status=416)
    cases.waiting_of(repository, WEIGHTS, "416")

    assert len([each for each in cases.asked(repository) if each.on is On.CDN]) < 40


def test_o05_a_url_that_ends_in_the_middle_costs_one_more_resolve_and_no_denial(cases: Publisher) -> None:
    repository = cases.add(model(106, 40 * MIB))
    cases.hub.fault(Fault.EXPIRED, on=On.CDN, repository=repository.id, offset=24 * MIB, after_bytes=4 * MIB, times=1)
    uid = cases.desk.put(cases.want(repository, credential="hf_good")).uid
    state = cases.desk.ready(uid)

    assert state.attempt == 1
    assert {each.token for each in cases.asked(repository) if each.on is On.CDN} == {False}
    resolves = [each for each in cases.asked(repository) if each.on is On.RESOLVE and each.path == WEIGHTS]
    assert len(resolves) == 2


def test_o06_four_publications_wait_together_in_sight_and_none_uses_up_an_attempt(tmp_path: Path) -> None:
    limits = Limits(resolvers=150, window_seconds=3)
    with Hub(limits=limits) as hub, Desk(folder_place(tmp_path / "dmcr")) as desk:
        for number in range(4):
            small: Files = {f"f{k:02}.json": b"%d" % (100 * number + k) for k in range(60)}
            hub.add(Repository(f"org/m{number}", model(110 + number, 4096) | small))
        states = [desk.put(wanted(hub, f"m{number}", f"org/m{number}")) for number in range(4)]
        limited = desk.until(states[-1].uid, lambda s: s.trouble is not None or s.stage is Stage.READY, "a wait")
        ended = [desk.ready(state.uid) for state in states]

    assert limited.trouble
    assert (limited.trouble.code, limited.trouble.retryable) == ("RateLimited", True)
    assert limited.next_retry_at
    assert [state.attempt for state in ended] == [1, 1, 1, 1]
    assert len(hub.log.select(status=429)) <= 4 * 16  # at most those that were on their way when the window closed


@pytest.mark.parametrize(("on", "retry_after"), [(On.RESOLVE, "1"), (On.RESOLVE, None), (On.CDN, "1"), (On.CDN, None)])
def test_o06_a_429_from_the_hub_or_its_cdn_passes(cases: Publisher, on: On, retry_after: str | None) -> None:
    repository = cases.add(model(120 + len(on) + bool(retry_after)))
    rule = cases.hub.fault(Fault.STATUS, on=on, repository=repository.id, status=429, retry_after=retry_after, times=1)

    assert cases.ready_of(repository).state.attempt == 1
    assert rule.hits == 1


# Identity, listing, access


def test_o07_a_renamed_repository_is_the_same_model(cases: Publisher) -> None:
    repository = cases.add(model(130))
    old = repository.id
    first = cases.ready_of(repository)
    cases.hub.rename(old, "org/renamed")
    cases.hub.log.clear()
    again = cases.desk.publish(wanted(cases.hub, "old", old))

    assert again.published
    assert again.published.digest == first.published.digest
    assert cases.hub.log.payload_bytes(WEIGHTS) == 0


def test_o08_letter_case_makes_no_second_copy(cases: Publisher) -> None:
    cases.hub.add(Repository("Org/Model", model(131)))
    one = cases.desk.publish(wanted(cases.hub, "one", "Org/Model"))
    moved = cases.hub.log.payload_bytes()
    two = cases.desk.publish(wanted(cases.hub, "two", "org/MODEL"))

    assert one.published
    assert two.published
    assert one.published.digest == two.published.digest
    assert moved
    assert (two.bytes_transferred, cases.hub.log.payload_bytes()) == (0, moved)


@pytest.mark.parametrize(
    ("revision", "tail"),
    [("refs/pr/1", "/tree/refs/pr/1"), ("feature/x", "/tree/feature/x"), ("my%25branch", "/tree/my%2525branch")],
)
def test_o09_odd_revisions_name_the_commit_that_is_published(cases: Publisher, revision: str, tail: str) -> None:
    repository = cases.add(model(132))
    other = repository.commit({**model(132), "only-here.json": b"[]"}, revision=revision)
    state = cases.desk.publish(cases.want(repository, tail))

    assert (state.stage, state.revision) == (Stage.READY, other.hex)


def test_o10_reserved_characters_survive_until_the_folder(cases: Publisher, tmp_path: Path) -> None:
    odd = ("C1_or_C2?_premise/a b+c#1%20.json", "x@main.txt", "模型 😀.txt")
    found = cases.ready(model(133) | {name: b"bytes %4d" % at for at, name in enumerate(odd)})

    assert found.paths >= set(odd)
    assert delivered(cases, found, tmp_path / "out") == found.files
    for name in odd:
        assert sum(each.path == name and each.payload for each in cases.asked(found.repository)) == 1


@pytest.mark.parametrize(
    ("kind", "on", "code"), [(Fault.LIST_CUT, On.TREE, "ListingIncomplete"), (Fault.LINK_LOOP, On.TREE, "ListingLoop")]
)
def test_o11_a_listing_that_is_not_whole_is_never_published(cases: Publisher, kind: Fault, on: On, code: str) -> None:
    repository = cases.add(tiny_sharded(seed=134))
    cases.hub.page_size = 3
    cases.hub.fault(kind, on=on, repository=repository.id, count=4)
    try:
        state = cases.waiting_of(repository)
    finally:
        cases.hub.page_size = 1000

    assert state.trouble
    assert state.trouble.code == code
    assert cases.payload_bytes(repository) == 0


def test_o11_every_page_is_published(cases: Publisher) -> None:
    repository = cases.add(tiny_sharded(seed=135))
    cases.hub.page_size = 3
    cases.hub.fault(Fault.LIST_CUT, on=On.INFO, repository=repository.id, count=2)
    try:
        found = cases.ready_of(repository)
    finally:
        cases.hub.page_size = 1000

    assert found.paths == set(repository.head.files)


@pytest.mark.parametrize(("path", "on"), [("config.json", On.RESOLVE), (WEIGHTS, On.CDN)])
def test_o12_a_flipped_byte_is_caught_by_whichever_digest_the_hub_has(cases: Publisher, path: str, on: On) -> None:
    repository = cases.add(model(136 + len(path), 2 * MIB) | {"config.json": b'{"a": "%d"}' % len(path)})
    # The byte is behind the header, so that the digest alone can tell.
    cases.hub.fault(
        Fault.FLIP_BIT, on=on, repository=repository.id, path=path, offset=2 if on is On.RESOLVE else MIB + 7
    )
    file = repository.head.files[path]
    published = str(GitDigest(file.git_hex)) if on is On.RESOLVE else f"sha256:{file.sha256_hex}"

    cases.refused_of(repository, "DigestMismatch", path, published, "got")


def test_o12_weak_entity_tags_of_small_files_are_fine(cases: Publisher) -> None:
    repository = cases.add(model(140))
    cases.hub.fault(Fault.WEAK_ETAG, repository=repository.id)

    cases.ready_of(repository)


def test_o13_a_gated_model_waits_for_its_credential_and_is_not_hammered(cases: Publisher) -> None:
    repository = Repository("org/gated", model(141), access=Access.GATED, granted=frozenset({"hf_good"}))
    cases.hub.add(repository)
    refused = cases.want(repository, credential="hf_other")
    state = cases.desk.publish(refused)
    asked = len(cases.hub.log)

    assert (state.stage, state.trouble and state.trouble.reason) == (Stage.FAILED, "PublicationFailed")
    assert state.trouble
    assert state.trouble.code == "Gated"
    assert f"{cases.hub.url}/org/gated" in state.trouble.message
    assert not cases.hub.log.payload_bytes(WEIGHTS)

    cases.desk.put(refused)
    assert len(cases.hub.log) == asked
    cases.desk.put(dataclasses.replace(refused, credential="hf_good"))
    ready = cases.desk.until(refused.uid, lambda s: s.stage is Stage.READY, "Ready")

    assert ready.published
    assert {each.token for each in cases.hub.log if each.on is On.CDN} == {False}
    assert b"hf_" not in cases.desk.coordinator.snapshot().to_json()


@pytest.mark.parametrize(
    ("path", "token", "code"),
    [
        *(("org/private", "", "PrivateOrMissing"), ("org/private", "hf_other", "RepoNotFound")),
        *(("org/missing", "", "PrivateOrMissing"), ("org/missing", "hf_good", "RepoNotFound")),
        *(("org/disabled", "hf_good", "Disabled"), ("org/private", "hf_bad", "TokenRefused")),
        ("org/empty", "", "NoWeights"),
    ],
)
def test_o13_refusals_are_told_apart(cases: Publisher, path: str, token: str, code: str) -> None:
    good = frozenset({"hf_good"})
    cases.hub.add(Repository("org/private", model(142), access=Access.PRIVATE, granted=good))
    cases.hub.add(Repository("org/disabled", model(143), access=Access.DISABLED))
    cases.hub.add(Repository("org/empty", {}))
    uid = f"x-{path.partition('/')[2]}-{token.replace('_', '-')}"
    state = cases.desk.publish(wanted(cases.hub, uid, path, credential=token))

    assert state.trouble
    assert (state.stage, state.trouble.code) == (Stage.FAILED, code)
    assert not token or token not in state.trouble.message
    assert not cases.hub.log.payload_bytes()


# Choice


def test_o14_the_same_weights_are_moved_once_and_the_rest_is_named(cases: Publisher) -> None:
    files: Files = dict(tiny_sharded(seed=150))
    kib = bytes(1024)
    copies: Files = {
        **dict.fromkeys(("consolidated.safetensors", "pytorch_model.bin", "tf_model.h5"), kib),
        **dict.fromkeys(("flax_model.msgpack", "original/consolidated.00.pth", "metal/model.bin"), kib),
        "onnx/model.onnx": kib,
    }
    found = cases.ready(files | copies)

    assert found.paths == set(files)
    assert {note.partition(":")[0] for note in found.notes("LeftOut")} == set(copies)
    assert {each.path for each in cases.asked(found.repository)}.isdisjoint(copies)


def test_o14_an_explicit_choice_overrides(cases: Publisher) -> None:
    files: Files = {**tiny_sharded(seed=151), "consolidated.safetensors": safetensors_of_size(4096, seed=151)}
    found = cases.ready(files, "/blob/main/consolidated.safetensors")

    assert {path for path in found.paths if path.endswith(".safetensors")} == {"consolidated.safetensors"}


def test_o15_a_stray_file_beside_the_shards_is_left_out_and_named(cases: Publisher) -> None:
    files: Files = dict(tiny_sharded(seed=152))
    found = cases.ready(files | {WEIGHTS: safetensors_of_size(4096, seed=152, name="lm_head.weight")})

    assert WEIGHTS not in found.paths
    assert found.paths == set(files)
    assert [note for note in found.notes("LeftOut") if note.startswith(f"{WEIGHTS}: not among the shards of")]


@pytest.mark.parametrize("more", [(), ("config.json",)])
@pytest.mark.parametrize("base", ["/home/u/llama", ""])
def test_o16_an_adapter_is_published_alone_and_its_base_is_never_opened(
    cases: Publisher, base: str, more: tuple[str, ...]
) -> None:
    document: dict[str, Any] = {"peft_type": "LORA", "base_model_name_or_path": base}
    weights = safetensors_of_size(4096, seed=153)
    files: Files = {"adapter_config.json": json.dumps(document).encode(), "adapter_model.safetensors": weights}
    found = cases.ready(files | dict.fromkeys(more, b"{}"))

    assert found.paths == {*files, *more}
    assert len(found.notes("BaseUnresolved")) == 1
    assert {each.repository for each in cases.hub.log} == {found.repository.id}
