"""Wants and snapshots survive the wire as they are; nothing else gets through."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aimodels_core.messages import PublicationState, Published, Snapshot, Stage, Trouble, Want

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
VISIBLE = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=50)
NUMBERS = st.integers(min_value=0, max_value=2**53)
SECONDS = st.floats(min_value=0, max_value=1e12)
WANTS = st.builds(
    Want,
    uid=st.just("u"),
    name=TEXT,
    generation=NUMBERS,
    url=TEXT.filter(bool),
    scope=st.sampled_from(["cluster", "local", "ns/team-a"]),
    revision=TEXT,
    credential=VISIBLE,
    created=SECONDS,
)
STATES = st.builds(
    PublicationState,
    uid=TEXT,
    generation=NUMBERS,
    spec_hash=TEXT,
    stage=st.sampled_from(Stage),
    revision=TEXT,
    bytes_total=NUMBERS,
    bytes_done=NUMBERS,
    bytes_reused=NUMBERS,
    bytes_transferred=NUMBERS,
    bytes_per_second=SECONDS,
    eta_seconds=st.none() | SECONDS,
    attempt=NUMBERS,
    next_retry_at=st.none() | SECONDS,
    first_failed_at=st.none() | SECONDS,
    workers=NUMBERS,
    trouble=st.none() | st.builds(Trouble, TEXT, TEXT, TEXT, st.booleans()),
    published=st.none()
    | st.builds(
        Published,
        digest=TEXT,
        media_type=TEXT,
        size_bytes=NUMBERS,
        kind=TEXT,
        resolved=st.dictionaries(TEXT, TEXT | NUMBERS | st.lists(TEXT, max_size=2), max_size=3),
        notes=st.lists(TEXT, max_size=2).map(tuple),
    ),
)
SNAPSHOTS = st.builds(Snapshot, TEXT, NUMBERS, st.booleans(), TEXT, st.lists(STATES, max_size=3).map(tuple))


@given(WANTS)
def test_a_want_survives_the_wire(want: Want) -> None:
    assert Want.from_json("u", want.to_json()) == want


@given(SNAPSHOTS)
def test_a_snapshot_survives_the_wire(snapshot: Snapshot) -> None:
    assert Snapshot.from_json(snapshot.to_json()) == snapshot


@given(WANTS, st.text(min_size=1, max_size=20))
def test_credential_revision_and_age_do_not_change_what_was_asked_for(want: Want, other: str) -> None:
    same = dataclasses.replace(want, credential=other, revision=other, created=7.0)
    newer = dataclasses.replace(want, generation=want.generation + 1)

    assert same.spec_hash == want.spec_hash != newer.spec_hash


@given(VISIBLE.filter(lambda text: len(text) > 4))
def test_a_credential_is_in_no_representation(credential: str) -> None:
    want = Want("u", "n", 1, "https://h/a/b", "cluster", credential=f"secret-{credential}")

    assert f"secret-{credential}" not in f"{want!r} {want} {want.spec_hash}"


@given(st.binary(max_size=200))
def test_any_bytes_are_a_want_or_a_value_error(data: bytes) -> None:
    try:
        Want.from_json("u", data)
    except ValueError:
        return


@pytest.mark.parametrize("field", ["name", "url", "scope", "revision", "credential", "generation"])
@pytest.mark.parametrize("value", [None, [], {}, 1.5, True], ids=repr)
def test_a_field_of_another_type_is_refused_by_name(field: str, value: object) -> None:
    raw = {"name": "n", "generation": 1, "url": "https://h/a/b", "scope": "cluster", field: value}
    with pytest.raises(ValueError, match=field):
        Want.from_json("u", json.dumps(raw).encode())


@pytest.mark.parametrize("value", ["null", '"1"', "true", "-1", "NaN", "Infinity", "1e13", "9" * 400])
def test_an_age_that_is_no_time_is_refused_by_name(value: str) -> None:
    raw = f'{{"name": "n", "generation": 1, "url": "https://h/a/b", "scope": "cluster", "created": {value}}}'
    with pytest.raises(ValueError, match="created"):
        Want.from_json("u", raw.encode())


def test_the_etag_changes_with_epoch_and_version() -> None:
    tags = {Snapshot(epoch, version, True, "", ()).etag for epoch in "ab" for version in (1, 2)}

    assert len(tags) == 4
    assert all(tag.startswith('"') and tag.endswith('"') for tag in tags)
