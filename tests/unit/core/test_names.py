"""Names and keys: deterministic, apart, and as other readers expect them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aimodels_core import names
from aimodels_core.digest import Digest
from aimodels_core.errors import UsageError

DIGEST = Digest.of(b"")
HEX = DIGEST.hex
ODD = ["Qwen/Qwen2.5-7B_Instruct", "a__b/C--d", "Foo/Bar", "foo/bar", "org/model.", "refs/pr/1", "v1+cu12", "a" * 140]


def test_o75_odd_names_map_to_valid_tags_that_differ() -> None:
    tags = [names.model_tag(name) for name in ODD]

    assert len(set(tags)) == len(ODD)
    assert all(names.is_mapped(tag) and len(tag) <= 128 for tag in tags)
    assert tags == [names.model_tag(name) for name in ODD]


def test_o75_mapped_names_cannot_be_forged() -> None:
    tag = names.model_tag("Foo/Bar")

    assert names.model_tag(tag) != tag


@pytest.mark.parametrize("name", ["bge-m3", "a", "_x", "v1.0_x", "a" * 128])
def test_plain_lower_case_names_are_their_own_tags(name: str) -> None:
    assert names.model_tag(name) == name


@given(st.sets(st.text(min_size=1, max_size=60).filter(lambda t: t.isprintable()), min_size=2, max_size=8))
def test_no_two_names_share_a_tag_even_where_case_is_folded(some: set[str]) -> None:
    assert len({names.model_tag(name).casefold() for name in some}) == len(some)


@pytest.mark.parametrize("name", ["", "a\nb", "a" * 513])
def test_names_that_cannot_be_kept_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        names.model_tag(name)


def test_repositories_are_trust_scopes() -> None:
    assert names.namespace_repository("ai-demo") == "ns/ai-demo"
    for bad in ("", "A", "a/b", "a" * 64, "..", "-a"):
        with pytest.raises(UsageError):
            names.namespace_repository(bad)


def test_a_uid_is_a_tag() -> None:
    uid = "0b0d1a4e-7f2b-4c53-9f6e-2f7d5a3c9e10"

    assert names.uid_tag(uid) == uid
    assert names.model_tag(uid) == uid
    with pytest.raises(UsageError):
        names.uid_tag("../x")


def test_registry_keys_are_those_of_distribution() -> None:
    root = "docker/registry/v2"

    assert names.blob_data(DIGEST) == f"{root}/blobs/sha256/{HEX[:2]}/{HEX}/data"
    assert names.layer_link("ns/x", DIGEST) == f"{root}/repositories/ns/x/_layers/sha256/{HEX}/link"
    assert names.revision_link("ns/x", DIGEST) == f"{root}/repositories/ns/x/_manifests/revisions/sha256/{HEX}/link"
    assert names.tag_current_link("local", "m") == f"{root}/repositories/local/_manifests/tags/m/current/link"
    assert (
        names.tag_index_link("local", "m", DIGEST)
        == f"{root}/repositories/local/_manifests/tags/m/index/sha256/{HEX}/link"
    )


def test_blob_keys_parse_back_and_others_do_not() -> None:
    assert names.blob_of_key(names.blob_data(DIGEST)) == DIGEST
    assert names.blob_of_key(names.blob_data(DIGEST) + "x") is None
    assert names.blob_of_key(f"{names.blobs_prefix()}00/{HEX}/data") is None
    assert names.blob_of_key("ai-models/v1/staging/x") is None


def test_keys_of_our_own_lie_beside_the_registry() -> None:
    keys = [
        names.checkpoint(DIGEST, "local", "run"),
        names.staging("x"),
        names.writer_lease(7),
        names.probe_prefix(),
        names.name_record("m"),
        names.TEMPORARY,
    ]

    assert all(key.startswith("ai-models/") for key in keys)
    assert names.writer_lease(9) < names.writer_lease(10)


def test_user_visible_names_are_the_contract() -> None:
    assert names.CSI_DRIVER == "node-cache.ai-models.deckhouse.io"
    assert names.ANNOTATION_MODEL == "ai.deckhouse.io/model"
    assert names.ANNOTATION_CLUSTER_MODEL == "ai.deckhouse.io/clustermodel"
    assert names.FINALIZER == "ai.deckhouse.io/model-cleanup"
