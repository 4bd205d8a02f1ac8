"""Decisions about a Model that the coordinator has published: Ready only after reading back through the registry."""

import datetime
from typing import Any

import pytest

from aimodels_core.messages import Stage
from aimodels_operator import model as decisions
from aimodels_operator.readings import Reading
from aimodels_operator.writes import Again, PatchStatus, ReadBack, Remove
from tests.support.decisions import DIGEST, PUBLISHED, after, condition, of_kind, seen, unreadable
from tests.support.modelobjects import NOW, UID, raw_model

READY = after(raw_model(), stage=Stage.READY, published=PUBLISHED, revision="c0ffee")


def test_what_the_coordinator_published_is_read_back_before_it_is_ready() -> None:
    raw = raw_model()
    fields: dict[str, Any] = {"stage": Stage.READY, "published": PUBLISHED, "revision": "c0ffee"}
    status = after(raw, reading=Reading(), bytes_total=42, bytes_done=42, **fields)

    assert (status["phase"], status["progress"]) == ("Publishing", "99%")
    assert status["publication"]["stage"] == "Committing"
    assert condition(status, "Ready") == ("False", "Publishing", "reads it back through the registry")
    assert "artifact" not in status
    writes = decisions.decide(seen(raw, reading=Reading(), **fields))
    assert of_kind(writes, ReadBack) == [ReadBack("ns/ai-demo", DIGEST)]
    raw["status"] = status
    assert after(raw, reading=Reading(DIGEST), **fields)["phase"] == "Ready"
    assert of_kind(decisions.decide(seen(raw, reading=Reading(DIGEST), **fields)), ReadBack) == []


def test_another_artifact_that_was_read_back_proves_nothing() -> None:
    fields: dict[str, Any] = {"stage": Stage.READY, "published": PUBLISHED}
    for other in (Reading("sha256:" + "b" * 64), unreadable(first_seconds_ago=9, next_in_seconds=9, digest="sha256:c")):
        writes = decisions.decide(seen(raw_model(), reading=other, **fields))

        assert of_kind(writes, ReadBack) == [ReadBack("ns/ai-demo", DIGEST)]


@pytest.mark.parametrize(
    ("ago", "phase", "reason"),
    [(599.0, "Publishing", "Publishing"), (600.0, "Failed", "PublicationFailed")],
)
def test_what_cannot_be_read_back_says_why_and_after_ten_minutes_fails(ago: float, phase: str, reason: str) -> None:
    raw = raw_model()
    fields: dict[str, Any] = {"stage": Stage.READY, "published": PUBLISHED, "revision": "c0ffee"}
    found = unreadable(first_seconds_ago=ago, next_in_seconds=30)
    status = after(raw, reading=found, **fields)

    assert status["phase"] == phase
    for kind in ("ArtifactResolved", "Ready"):
        assert condition(status, kind) == ("False", reason, "registry: blob sha256:b: not in the registry")
    assert (status["publication"]["stage"], status["publication"]["nextRetryTime"]) == (
        "Waiting",
        "2026-01-02T03:04:35Z",
    )
    writes = decisions.decide(seen(raw, reading=found, **fields))
    assert of_kind(writes, ReadBack) == []
    assert Again(datetime.timedelta(seconds=30)) in writes
    raw["status"] = status
    assert after(raw, reading=Reading(DIGEST), **fields)["phase"] == "Ready"


def test_what_could_not_be_read_back_is_read_again_in_time_without_another_write() -> None:
    raw = raw_model()
    fields: dict[str, Any] = {"stage": Stage.READY, "published": PUBLISHED}
    raw["status"] = after(raw, reading=unreadable(first_seconds_ago=9, next_in_seconds=0), **fields)
    later = NOW + datetime.timedelta(seconds=1)

    writes = decisions.decide(
        seen(raw, reading=unreadable(first_seconds_ago=9, next_in_seconds=0), now=later, **fields)
    )
    assert of_kind(writes, ReadBack) == [ReadBack("ns/ai-demo", DIGEST)]
    assert of_kind(writes, PatchStatus) == []


def test_the_flip_to_failed_of_what_cannot_be_read_back_needs_no_event() -> None:
    fields: dict[str, Any] = {"stage": Stage.READY, "published": PUBLISHED}
    found = unreadable(first_seconds_ago=590, next_in_seconds=60)
    writes = decisions.decide(seen(raw_model(), reading=found, **fields))

    assert Again(datetime.timedelta(seconds=10)) in writes


def test_a_ready_model_is_not_read_back_again_after_a_restart() -> None:
    fields: dict[str, Any] = {"stage": Stage.READY, "published": PUBLISHED, "revision": "c0ffee"}

    assert decisions.decide(seen(raw_model(status=READY), reading=Reading(), **fields)) == []
    assert decisions.decide(seen(raw_model(status=READY), reading=Reading())) == []


def test_readiness_that_a_stranger_invented_is_read_back() -> None:
    invented = READY | {"artifact": {"kind": "OCI", "digest": "sha256:" + "b" * 64, "sizeBytes": 1}}
    writes = decisions.decide(
        seen(raw_model(status=invented), stage=Stage.READY, published=PUBLISHED, reading=Reading())
    )

    assert of_kind(writes, ReadBack) == [ReadBack("ns/ai-demo", DIGEST)]


def test_deletion_does_not_wait_for_the_registry() -> None:
    writes = decisions.decide(seen(raw_model(deleting=True), stage=Stage.READY, published=PUBLISHED, reading=Reading()))

    assert of_kind(writes, ReadBack) == []
    assert of_kind(writes, Remove) == [Remove(UID, "ns/ai-demo")]
