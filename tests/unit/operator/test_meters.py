"""What is counted of publications from snapshot to snapshot, and of models by their reasons."""

from typing import Any

from aimodels_core.api import MODEL, ModelObject
from aimodels_core.messages import PublicationState, Stage, Trouble
from aimodels_core.nodes import Device, Held, NodeReport, Warming
from aimodels_operator.meters import Meters, of_nodes, throttled
from tests.support.modelobjects import raw_model


def state(
    uid: str, transferred: int, reused: int = 0, *, stage: Stage = Stage.MOVING, spec: str = "s", **fields: Any
) -> PublicationState:
    return PublicationState(uid, 1, spec, stage, bytes_transferred=transferred, bytes_reused=reused, **fields)


def moved(*snapshots: list[PublicationState]) -> tuple[int, int]:
    """Bytes transferred and reused after these snapshots."""
    meters = Meters()
    for snapshot in snapshots:
        meters.moved.take({one.uid: one for one in snapshot})
    return meters.moved.transferred, meters.moved.reused


def test_bytes_are_added_up_from_snapshot_to_snapshot() -> None:
    assert moved([], [state("a", 5)], [state("a", 8), state("b", 1)], [state("b", 1)]) == (9, 0)


def test_what_was_before_the_first_snapshot_was_counted_by_another_process() -> None:
    done = state("b", 50, 50, stage=Stage.READY)

    assert moved([state("a", 100), done], [state("a", 103), done]) == (3, 0)


def test_reused_bytes_count_once_when_a_publication_is_done() -> None:
    done = state("a", 5, 7, stage=Stage.READY)

    assert moved([], [state("a", 5, 7)], [state("a", 5, 7)], [done], [done]) == (5, 7)


def test_a_publication_that_begins_anew_counts_anew() -> None:
    assert moved([], [state("a", 10)], [state("a", 4)]) == (14, 0)
    assert moved([], [state("a", 10)], [state("a", 12, spec="t")]) == (22, 0)


def test_waits_of_pods_and_caches_of_nodes() -> None:
    meters, held = Meters(), (Held("sha256:" + "a" * 64, 10), Held("sha256:" + "b" * 64, 5))
    reports = [
        NodeReport("n", 1.0, (Device("d", 100, 60), Device("e", 10, 7)), held),
        NodeReport("m", 1.0, warming=(Warming("x"), Warming("y", trouble="no room"))),
    ]
    for seconds in (0.3, -1.0, 30.0):
        meters.delivered(seconds)
    lines = meters.render([], {}, of_nodes(reports)).splitlines()

    for line in (
        'aimodels_delivery_wait_seconds_bucket{le="0.5"} 2',
        "aimodels_delivery_wait_seconds_count 3",
        "aimodels_node_caches 2",
        "aimodels_node_cache_used_bytes 15",
        "aimodels_node_cache_free_bytes 67",
        "aimodels_node_cache_models_held 2",
        "aimodels_node_cache_models_warming 1",
        "aimodels_node_cache_models_stuck 1",
    ):
        assert line in lines


def test_publications_that_their_source_slows_down() -> None:
    limited = Trouble("PublicationFailed", "RateLimited", "w", retryable=True)
    other = Trouble("PublicationFailed", "SourceUnavailable", "w", retryable=True)
    states = [
        state("a", 0, trouble=limited),
        state("b", 0, trouble=other),
        state("c", 0),
        state("d", 0, stage=Stage.FAILED, trouble=limited),
    ]

    assert throttled(states) == 1


def test_reasons_that_strangers_wrote_make_no_new_series() -> None:
    def with_reason(reason: str) -> ModelObject:
        conditions = [{"type": "Ready", "status": "False", "reason": reason}]
        return ModelObject.from_raw(MODEL, raw_model(status={"phase": "Failed", "conditions": conditions}))

    text = Meters().render([with_reason("InsufficientStorage"), with_reason('Odd"}')], {}, {})

    assert 'aimodels_models{kind="Model",phase="Failed",reason="InsufficientStorage"} 1' in text
    assert 'aimodels_models{kind="Model",phase="Failed",reason="other"} 1' in text
    assert "Odd" not in text
