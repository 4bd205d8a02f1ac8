"""Decisions about one Model: every row of the fault table, deletion, retry, and laws about all of them."""

import dataclasses
import datetime
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aimodels_core import names
from aimodels_core.api import CLUSTER_MODEL, MODEL, MODEL_KINDS, Kind, ModelObject, Phase, Reason
from aimodels_core.messages import Stage, Trouble, Want
from aimodels_operator import model as decisions
from aimodels_operator.model import Credential, Link, Sent
from aimodels_operator.readings import Reading
from aimodels_operator.writes import Again, Emit, PatchStatus, PutWant, Remove, SetFinalizers, Urgency
from tests.support.decisions import (
    DIGEST,
    FULL,
    PUBLISHED,
    UNAVAILABLE,
    after,
    condition,
    of_kind,
    seconds_ago,
    seen,
    state_of,
    unreadable,
    want_of,
)
from tests.support.modelobjects import NOW, UID, URL, model, raw_model

READY = after(raw_model(), stage=Stage.READY, published=PUBLISHED, revision="c0ffee")


# A publication from its beginning to its end


def test_finalizer_comes_before_anything_else() -> None:
    raw = raw_model(finalizers=["other"])

    assert decisions.decide(seen(raw)) == [SetFinalizers(("other", names.FINALIZER))]


@pytest.mark.parametrize("source", [{"upload": {}}, {"catalog": {"name": "m"}}, {}], ids=["upload", "catalog", "none"])
def test_o81_finalizer_only_where_something_must_be_cleaned(source: dict[str, Any]) -> None:
    assert of_kind(decisions.decide(seen(raw_model(source, finalizers=[]))), SetFinalizers) == []


@pytest.mark.parametrize(("kind", "scope"), [(MODEL, "ns/ai-demo"), (CLUSTER_MODEL, "cluster")])
def test_new_model_is_sent_to_the_coordinator(kind: Kind, scope: str) -> None:
    writes = decisions.decide(seen(raw_model(kind=kind), kind=kind))
    (put,) = of_kind(writes, PutWant)

    assert put.want == Want(UID, ModelObject.from_raw(kind, raw_model(kind=kind)).path, 1, URL, scope)
    assert after(raw_model(kind=kind), kind=kind)["phase"] == "Pending"


def test_a_want_says_how_old_its_model_is() -> None:
    raw = raw_model()
    raw["metadata"]["creationTimestamp"] = "2026-01-02T03:04:05Z"
    (put,) = of_kind(decisions.decide(seen(raw)), PutWant)

    assert put.want.created == NOW.timestamp()


def test_a_want_is_sent_once_per_epoch() -> None:
    raw = raw_model()
    sent = Sent.of(want_of(ModelObject.from_raw(MODEL, raw)), "e1")

    assert of_kind(decisions.decide(seen(raw, sent=sent)), PutWant) == []
    assert len(of_kind(decisions.decide(seen(raw, sent=sent, link=Link("e2"))), PutWant)) == 1


def test_nothing_is_sent_before_the_first_snapshot() -> None:
    assert of_kind(decisions.decide(seen(raw_model(), link=Link())), PutWant) == []


@pytest.mark.parametrize("stage", [Stage.QUEUED, Stage.RESOLVING, Stage.PLANNING, Stage.MOVING, Stage.COMMITTING])
def test_running_publication_shows_publishing(stage: Stage) -> None:
    status = after(raw_model(), stage=stage, bytes_total=200, bytes_done=35, revision="c0ffee", workers=2)

    assert (status["phase"], status["progress"]) == ("Publishing", "17%")
    assert condition(status, "ArtifactResolved")[:2] == ("False", "Publishing")
    assert condition(status, "Ready")[:2] == ("False", "Publishing")
    assert status["publication"]["stage"] == stage.value
    assert status["source"]["resolvedRevision"] == "c0ffee"


def test_progress_stays_below_a_hundred_until_the_tag() -> None:
    assert after(raw_model(), stage=Stage.COMMITTING, bytes_total=10, bytes_done=10)["progress"] == "99%"


def test_ready_says_what_the_model_is() -> None:
    assert READY["phase"] == "Ready"
    assert READY["artifact"] == {"kind": "OCI", "digest": DIGEST, "mediaType": "application/x", "sizeBytes": 42}
    assert READY["source"] == {"resolvedType": "HuggingFace", "resolvedRevision": "c0ffee"}
    assert READY["resolved"] == FULL
    assert "progress" not in READY
    assert [condition(READY, kind)[:2] for kind in ("ArtifactResolved", "MetadataResolved", "Ready")] == [
        ("True", "ArtifactPublished"),
        ("True", "ModelMetadataCalculated"),
        ("True", "Ready"),
    ]


def test_what_could_not_be_found_out_is_named() -> None:
    partial = dataclasses.replace(PUBLISHED, resolved={"format": "GGUF"})
    status = after(raw_model(), stage=Stage.READY, published=partial)

    found = condition(status, "MetadataResolved")
    assert found[:2] == ("True", "ModelMetadataPartial")
    assert "parameterCount" in found[2]


def test_pickled_weights_are_a_condition() -> None:
    noted = dataclasses.replace(PUBLISHED, notes=("PickleWeights: may run code", "Dropped: x"))
    status = after(raw_model(), stage=Stage.READY, published=noted)

    assert condition(status, "PickleWeights") == ("True", "PickleWeights", "may run code")


def test_facts_that_the_definition_does_not_allow_are_left_out() -> None:
    odd = {"format": "Tarball", "family": "x" * 999, "parameterCount": 0, "supportedEndpointTypes": ["Chat", "Magic"]}
    status = after(raw_model(), stage=Stage.READY, published=dataclasses.replace(PUBLISHED, resolved=odd))

    assert status["resolved"] == {"family": "x" * 256, "supportedEndpointTypes": ["Chat"]}


# Every row of the fault table


@pytest.mark.parametrize("stage", [Stage.WAITING, Stage.RESOLVING])
def test_passing_trouble_shows_publishing_for_ten_minutes_then_failed(stage: Stage) -> None:
    retry_at = NOW.timestamp() + 30 if stage is Stage.WAITING else None
    fields: dict[str, Any] = {"stage": stage, "trouble": UNAVAILABLE, "attempt": 4, "next_retry_at": retry_at}
    early = after(raw_model(), first_failed_at=seconds_ago(599), **fields)
    late = after(raw_model(), first_failed_at=seconds_ago(600), **fields)

    assert (early["phase"], condition(early, "Ready")[1:]) == ("Publishing", ("Publishing", UNAVAILABLE.message))
    assert (late["phase"], condition(late, "Ready")[1:]) == ("Failed", ("PublicationFailed", UNAVAILABLE.message))
    assert early["publication"]["attempt"] == 4
    if retry_at:
        assert late["publication"]["nextRetryTime"] == "2026-01-02T03:04:35Z"


def test_the_flip_to_failed_needs_no_event() -> None:
    fields: dict[str, Any] = {"trouble": UNAVAILABLE, "next_retry_at": NOW.timestamp() + 300}
    writes = decisions.decide(seen(raw_model(), stage=Stage.WAITING, first_failed_at=seconds_ago(590), **fields))

    assert of_kind(writes, Again) == [Again(datetime.timedelta(seconds=10))]


def test_failed_for_a_while_comes_back_to_publishing_and_ready() -> None:
    raw = raw_model()
    fields: dict[str, Any] = {"trouble": UNAVAILABLE, "first_failed_at": seconds_ago(900)}
    raw["status"] = after(raw, stage=Stage.WAITING, next_retry_at=NOW.timestamp() + 9, **fields)
    assert raw["status"]["phase"] == "Failed"
    raw["status"] = after(raw, stage=Stage.MOVING, bytes_total=10, bytes_done=1, **fields)
    assert raw["status"]["phase"] == "Publishing"

    assert after(raw, stage=Stage.READY, published=PUBLISHED)["phase"] == "Ready"


def test_a_waiting_publication_that_the_coordinator_lost_is_sent_again() -> None:
    raw = raw_model()
    fields: dict[str, Any] = {"trouble": UNAVAILABLE, "first_failed_at": seconds_ago(900), "revision": "c0ffee"}
    raw["status"] = after(raw, stage=Stage.WAITING, next_retry_at=NOW.timestamp() + 9, **fields)

    (put,) = of_kind(decisions.decide(seen(raw)), PutWant)
    assert put.want.revision == "c0ffee"


@pytest.mark.parametrize(
    ("code", "source", "words"),
    [
        pytest.param("Gated", {"url": URL}, "authSecretRef names none", id="no-secret"),
        pytest.param("PrivateOrMissing", {"url": URL, "authSecretRef": {"name": "hf"}}, "ai-demo/hf", id="secret"),
    ],
)
def test_denied_names_the_secret_or_how_to_name_one(code: str, source: dict[str, Any], words: str) -> None:
    trouble = Trouble("PublicationFailed", code, "accept the licence", retryable=True)
    raw = raw_model(source)
    fields: dict[str, Any] = {"trouble": trouble, "next_retry_at": NOW.timestamp() + 600, "credential": Credential("t")}
    status = after(raw, stage=Stage.FAILED, **fields)

    assert (status["phase"], condition(status, "ArtifactResolved")[1]) == ("Failed", "PublicationFailed")
    assert words in condition(status, "Ready")[2]
    assert status["publication"]["stage"] == "Waiting"
    raw["status"] = status
    assert of_kind(decisions.decide(seen(raw, credential=Credential("t"))), PutWant) != []


def test_denied_cluster_model_names_the_administrators_setting() -> None:
    trouble = Trouble("PublicationFailed", "Gated", "gated", retryable=True)
    raw = raw_model(kind=CLUSTER_MODEL)
    status = after(raw, kind=CLUSTER_MODEL, stage=Stage.FAILED, trouble=trouble, next_retry_at=NOW.timestamp() + 6)

    assert "sources.huggingFace.credentialsSecretName" in condition(status, "Ready")[2]


def test_missing_secret_fails_and_is_looked_for_again() -> None:
    raw = raw_model({"url": URL, "authSecretRef": {"name": "hf"}})
    missing = Credential(trouble="Secret ai-demo/hf: not found")
    status = after(raw, credential=missing)

    assert (status["phase"], condition(status, "Ready")[1]) == ("Failed", "PublicationFailed")
    writes = decisions.decide(seen(raw, credential=missing))
    assert of_kind(writes, PutWant) == []
    assert of_kind(writes, Again) == [Again(decisions.LOOK_EVERY)]
    raw["status"] = status
    assert len(of_kind(decisions.decide(seen(raw, credential=Credential("t"))), PutWant)) == 1


def test_a_secret_that_vanishes_does_not_disturb_what_runs() -> None:
    raw = raw_model({"url": URL, "authSecretRef": {"name": "hf"}})
    status = after(raw, stage=Stage.MOVING, credential=Credential(trouble="Secret ai-demo/hf: not found"))

    assert status["phase"] == "Publishing"


def test_a_changed_secret_is_sent_and_the_same_one_is_not() -> None:
    raw = raw_model({"url": URL, "authSecretRef": {"name": "hf"}})
    sent = Sent.of(want_of(ModelObject.from_raw(MODEL, raw), "old"), "e1")
    trouble = Trouble("PublicationFailed", "TokenRefused", "token refused", retryable=True)
    fields: dict[str, Any] = {"stage": Stage.FAILED, "trouble": trouble, "next_retry_at": 2e9, "sent": sent}

    (put,) = of_kind(decisions.decide(seen(raw, credential=Credential("new"), **fields)), PutWant)
    assert put.want.credential == "new"
    assert of_kind(decisions.decide(seen(raw, credential=Credential("old"), **fields)), PutWant) == []


@pytest.mark.parametrize(
    ("reason", "code"),
    [("UnsupportedSource", "UnsupportedSource"), ("PublicationFailed", "NoWeights"), ("ManifestInvalid", "X")],
)
def test_terminal_failure_stays_when_the_coordinator_forgets_it(reason: str, code: str) -> None:
    raw = raw_model()
    raw["status"] = after(raw, stage=Stage.FAILED, trouble=Trouble(reason, code, "no weights", retryable=False))

    assert raw["status"]["phase"] == "Failed"
    assert condition(raw["status"], "ArtifactResolved") == ("False", reason, "no weights")
    assert condition(raw["status"], "Ready") == ("False", reason, "no weights")
    assert decisions.decide(seen(raw)) == []


def test_unknown_reason_of_a_newer_coordinator_is_a_failure() -> None:
    status = after(raw_model(), stage=Stage.FAILED, trouble=Trouble("Novel", "X", "w", retryable=False))

    assert condition(status, "Ready")[1] == "PublicationFailed"


def test_full_store_shows_at_once_and_clears_itself() -> None:
    raw = raw_model()
    trouble = Trouble("InsufficientStorage", "StoreFull", "no space left", retryable=True)
    fields: dict[str, Any] = {"trouble": trouble, "first_failed_at": seconds_ago(0), "next_retry_at": 2e9}
    raw["status"] = after(raw, stage=Stage.WAITING, **fields)

    assert (raw["status"]["phase"], condition(raw["status"], "Ready")[1]) == ("Failed", "InsufficientStorage")
    assert after(raw, stage=Stage.MOVING)["phase"] == "Publishing"


def test_model_that_no_node_may_hold_waits_until_one_may_and_a_ready_one_stays_so() -> None:
    raw, fields = raw_model(), {"stage": Stage.READY, "published": PUBLISHED}
    raw["status"] = after(raw, node_cache_bytes=41, **fields)

    shown = condition(raw["status"], "Ready")
    assert (raw["status"]["phase"], shown[1]) == ("Failed", "InsufficientStorage")
    assert shown[2] == "the model has 42 B, the cache of a node may hold 41 B (delivery.nodeCacheSize)"
    raw["status"] = after(raw, node_cache_bytes=42, **fields)
    assert raw["status"]["phase"] == "Ready"
    assert after(raw, node_cache_bytes=1, **fields)["phase"] == "Ready"


def test_rate_limit_is_shown_with_its_end_and_never_fails() -> None:
    limited = Trouble("PublicationFailed", "RateLimited", "huggingface.co limits its rate", retryable=True)
    status = after(raw_model(), stage=Stage.MOVING, trouble=limited, next_retry_at=NOW.timestamp() + 60)

    assert (status["phase"], condition(status, "Ready")[2]) == ("Publishing", limited.message)
    assert status["publication"]["nextRetryTime"] == "2026-01-02T03:05:05Z"


@pytest.mark.parametrize(("minutes", "phase"), [(9, "Publishing"), (10, "Failed")])
def test_silent_coordinator_shows_and_after_ten_minutes_fails(minutes: int, phase: str) -> None:
    since = NOW - datetime.timedelta(minutes=minutes)
    link = Link("e1", silent_since=since, trouble="does not answer")
    status = after(raw_model(), link=link)

    assert (status["phase"], condition(status, "Ready")[2]) == (phase, "coordinator: does not answer")
    assert of_kind(decisions.decide(seen(raw_model(), link=link)), PutWant) == []


def test_a_ready_model_does_not_care_for_a_silent_coordinator() -> None:
    link = Link("e1", silent_since=NOW - datetime.timedelta(hours=1), trouble="does not answer")

    assert decisions.decide(seen(raw_model(status=READY), link=link)) == []


def test_a_want_that_the_coordinator_refuses_is_shown() -> None:
    assert "url: too long" in condition(after(raw_model(), refused="url: too long"), "Ready")[2]


def test_waiting_for_another_writer_names_it() -> None:
    status = after(raw_model(), stage=Stage.QUEUED, link=Link("e1", holder="host-1"))

    assert "host-1" in condition(status, "Ready")[2]


def test_a_wrong_spec_from_before_the_rules_fails_with_what_to_write() -> None:
    status = after(raw_model({"url": URL, "upload": {}}))

    assert (status["phase"], condition(status, "Ready")[1]) == ("Failed", "UnsupportedSource")
    assert "exactly one" in condition(status, "Ready")[2]


# Retry, change, repair


def test_retry_annotation_tries_again_what_failed_for_good_once() -> None:
    raw = raw_model()
    raw["status"] = after(
        raw,
        stage=Stage.FAILED,
        revision="c0ffee",
        trouble=Trouble("PublicationFailed", "NoWeights", "w", retryable=False),
    )
    again = raw_model(status=raw["status"], retry="1")
    (put,) = of_kind(decisions.decide(seen(again)), PutWant)

    assert (put.want.retry, put.want.revision) == ("1", "")
    failed = Trouble("PublicationFailed", "NoWeights", "still", retryable=False)
    again["status"] = after(again, stage=Stage.FAILED, trouble=failed)
    assert decisions.decide(seen(again)) == []


def test_retry_annotation_on_a_ready_model_changes_nothing() -> None:
    assert decisions.decide(seen(raw_model(status=READY, retry="1"))) == []


def test_changed_source_forgets_the_revision_of_the_old_one() -> None:
    raw = raw_model()
    raw["status"] = after(raw, stage=Stage.MOVING, revision="c0ffee")
    changed = raw_model({"url": "https://huggingface.co/a/b"}, status=raw["status"], generation=2)
    (put,) = of_kind(decisions.decide(seen(changed)), PutWant)

    assert (put.want.revision, put.want.generation) == ("", 2)
    assert "source" not in after(changed)


def test_a_publication_stays_publishing_when_another_coordinator_has_to_be_told() -> None:
    raw = raw_model()
    raw["status"] = after(raw, stage=Stage.MOVING, revision="c0ffee")

    status = after(raw, link=Link("e2"))

    assert status["phase"] == "Publishing"
    assert status["source"]["resolvedRevision"] == "c0ffee"
    assert after(raw_model(status=status, generation=2))["phase"] == "Pending"


def test_a_snapshot_of_an_older_spec_is_not_shown() -> None:
    old = model()
    changed = raw_model(generation=2)
    state = state_of(old, Stage.READY, published=PUBLISHED)

    assert after(changed, publication=state)["phase"] == "Pending"


def test_ready_survives_restarts_of_everything_without_a_write() -> None:
    assert decisions.decide(seen(raw_model(status=READY))) == []
    assert decisions.decide(seen(raw_model(status=READY), link=Link())) == []


def test_mended_secret_reference_of_a_ready_model_is_only_observed() -> None:
    raw = raw_model({"url": URL, "authSecretRef": {"name": "hf"}}, status=READY, generation=2)
    writes = decisions.decide(seen(raw))

    assert [write.patch for write in of_kind(writes, PatchStatus)] == [{"observedGeneration": 2}]
    assert of_kind(writes, PutWant) == []
    assert decisions.needs_secret(ModelObject.from_raw(MODEL, raw)) == ""


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param({"phase": "Failed"}, id="phase"),
        pytest.param({"progress": "5%"}, id="progress"),
        pytest.param({"upload": {"secretName": "x"}}, id="upload"),
    ],
)
def test_status_edited_by_a_stranger_is_repaired(edit: dict[str, Any]) -> None:
    assert after(raw_model(status=READY | edit)) == READY


def test_artifact_removed_by_a_stranger_is_published_again() -> None:
    edited = {name: value for name, value in READY.items() if name != "artifact"}

    assert len(of_kind(decisions.decide(seen(raw_model(status=edited))), PutWant)) == 1


def test_readiness_that_a_stranger_invented_is_taken_back() -> None:
    assert after(raw_model(status=READY), stage=Stage.MOVING)["phase"] == "Publishing"


def test_conditions_of_others_are_kept() -> None:
    theirs = {"type": "Theirs", "status": "True", "reason": "R", "message": "m", "lastTransitionTime": "x"}
    status = after(raw_model(status={"conditions": [theirs]}), stage=Stage.MOVING)

    assert theirs | {"observedGeneration": 0} in status["conditions"]


def test_transition_time_stays_while_the_status_of_the_condition_does() -> None:
    raw = raw_model()
    raw["status"] = after(raw, stage=Stage.RESOLVING)
    later = NOW + datetime.timedelta(minutes=1)
    first = {c["lastTransitionTime"] for c in raw["status"]["conditions"]}
    moving = after(raw, stage=Stage.MOVING, now=later)
    done = after(raw, stage=Stage.READY, published=PUBLISHED, now=later)

    assert {c["lastTransitionTime"] for c in moving["conditions"]} == first == {"2026-01-02T03:04:05Z"}
    assert {c["lastTransitionTime"] for c in done["conditions"]} == {"2026-01-02T03:05:05Z"}


def test_numbers_may_wait_and_news_may_not() -> None:
    raw = raw_model()
    raw["status"] = after(raw, stage=Stage.MOVING, bytes_total=100, bytes_done=1)

    def urgency(**fields: Any) -> list[Urgency]:
        return [write.urgency for write in of_kind(decisions.decide(seen(raw, **fields)), PatchStatus)]

    assert urgency(stage=Stage.MOVING, bytes_total=100, bytes_done=50) == [Urgency.PROGRESS]
    assert urgency(stage=Stage.MOVING, bytes_total=100, bytes_done=1, revision="c0ffee") == [Urgency.PHASE]
    assert urgency(stage=Stage.READY, published=PUBLISHED) == [Urgency.PHASE]


def test_o82_status_stays_small_whatever_is_reported() -> None:
    many = dataclasses.replace(PUBLISHED, notes=tuple("PickleWeights: " + "x" * 9000 for _ in range(3000)))
    long = Trouble("PublicationFailed", "NoWeights", "y" * 1_000_000, retryable=False)

    assert len(json.dumps(after(raw_model(), stage=Stage.READY, published=many))) < 100_000
    assert len(json.dumps(after(raw_model(), stage=Stage.FAILED, trouble=long))) < 100_000


# Deletion


@pytest.mark.parametrize("status", [{}, READY], ids=["new", "ready"])
@pytest.mark.parametrize("source", [{"url": URL}, {"upload": {}}, {}], ids=["url", "upload", "none"])
def test_deletion_removes_from_the_store_then_from_the_cluster(status: dict[str, Any], source: dict[str, Any]) -> None:
    raw = raw_model(source, status=status, deleting=True, finalizers=["a", names.FINALIZER, "b"])

    assert of_kind(decisions.decide(seen(raw)), Remove) == [Remove(UID, "ns/ai-demo")]
    assert after(raw)["phase"] == "Deleting"
    assert decisions.decide(seen(raw, removed=True)) == [SetFinalizers(("a", "b"))]


def test_deletion_that_fails_says_why() -> None:
    status = after(raw_model(status=READY, deleting=True), remove_trouble="store: written by host-1")

    assert (status["phase"], condition(status, "Ready")) == (
        "Deleting",
        ("False", "Pending", "store: written by host-1"),
    )


def test_deletion_of_what_never_had_the_finalizer_is_left_alone() -> None:
    assert decisions.decide(seen(raw_model(deleting=True, finalizers=["other"]))) == []


# Events


def test_events_tell_the_story_once() -> None:
    raw = raw_model()
    told: list[str] = []
    story: list[dict[str, Any]] = [
        {},
        {"stage": Stage.RESOLVING},
        {"stage": Stage.MOVING},
        {"stage": Stage.WAITING, "trouble": UNAVAILABLE, "next_retry_at": 2e9, "first_failed_at": seconds_ago(1)},
        {"stage": Stage.RESOLVING, "trouble": UNAVAILABLE, "first_failed_at": seconds_ago(2)},
        {"stage": Stage.WAITING, "trouble": UNAVAILABLE, "next_retry_at": 2e9, "first_failed_at": seconds_ago(700)},
        {"stage": Stage.MOVING},
        {"stage": Stage.READY, "published": PUBLISHED},
    ]
    for step in story:
        told += [write.reason for write in of_kind(decisions.decide(seen(raw, **step)), Emit)]
        raw["status"] = after(raw, **step)

    assert told == [
        "PublicationStarted",
        "PublicationDelayed",
        "PublicationFailed",
        "PublicationStarted",
        "PublicationSucceeded",
    ]


# Laws


TROUBLES = st.builds(
    Trouble,
    st.sampled_from([reason.value for reason in Reason]),
    st.sampled_from(["Gated", "SourceUnavailable", "X"]),
    st.text(max_size=9000),
    st.booleans(),
)
MAYBE_TIME = st.none() | st.floats(1.6e9, 1.9e9)
READINGS = st.none() | st.builds(
    lambda digest, ago, ahead: (
        unreadable(first_seconds_ago=ago, next_in_seconds=ahead, digest=digest) if ago else Reading(digest)
    ),
    st.sampled_from([DIGEST, "", "sha256:" + "b" * 64]),
    st.sampled_from([0.0, 1.0, 599.0, 601.0]),
    st.sampled_from([-1.0, 0.0, 60.0]),
)
STATUSES = st.sampled_from([{}, READY, {"phase": "Ready"}, {"publication": {"stage": "Failed"}}, {"conditions": []}])


@settings(max_examples=300, deadline=None)
@given(
    stage=st.sampled_from(Stage),
    trouble=st.none() | TROUBLES,
    next_retry_at=MAYBE_TIME,
    first_failed_at=MAYBE_TIME,
    total=st.integers(0, 2**50),
    done=st.integers(0, 2**50),
    status=STATUSES,
    deleting=st.booleans(),
    kind=st.sampled_from(MODEL_KINDS),
    silent=st.booleans(),
    reading=READINGS,
)
def test_every_status_is_valid_and_a_second_look_writes_nothing(
    stage: Stage,
    trouble: Trouble | None,
    next_retry_at: float | None,
    first_failed_at: float | None,
    total: int,
    done: int,
    status: dict[str, Any],
    deleting: bool,
    kind: Kind,
    silent: bool,
    reading: Reading | None,
) -> None:
    link = Link("e1", silent_since=NOW if silent else None, trouble="t")
    new = after(
        raw_model(status=status, deleting=deleting, kind=kind),
        kind=kind,
        stage=stage,
        trouble=trouble,
        next_retry_at=next_retry_at,
        first_failed_at=first_failed_at,
        bytes_total=total,
        bytes_done=done,
        published=PUBLISHED if stage is Stage.READY else None,
        link=link,
        reading=reading,
    )
    ready = condition(new, "Ready")

    assert (ready[0] == "True") == (new["phase"] == Phase.READY.value)
    assert ready[1] in {reason.value for reason in Reason}
    assert (new["phase"] == Phase.DELETING.value) == deleting
    if new["phase"] == "Failed":
        assert condition(new, "ArtifactResolved") == ready
