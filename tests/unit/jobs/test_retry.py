"""When a publication is tried again."""

import pytest

from aimodels_core import errors
from aimodels_core.errors import AiModelsError
from aimodels_jobs.retry import Retry

RETRY = Retry(first_seconds=1.0, most_seconds=600.0, denied_seconds=500.0)


def test_pauses_double_with_jitter_up_to_the_most() -> None:
    error = errors.SourceUnavailable("h: away")
    for attempt in (1, 2, 3, 8, 50, 10_000):
        whole = min(2.0 ** min(attempt - 1, 20), 600.0)
        pauses = [RETRY.pause(attempt, error) or 0.0 for _ in range(50)]

        assert all(0.7 * whole <= pause <= whole for pause in pauses)
        assert len(set(pauses)) > 1


def test_what_the_source_asks_for_is_kept_and_bounded() -> None:
    asked = errors.RateLimited("h: 429", retry_after_seconds=90.0)
    absurd = errors.RateLimited("h: 429", retry_after_seconds=1e9)

    assert RETRY.pause(1, asked) == 90.0
    assert RETRY.pause(1, absurd) == 600.0


def test_denied_access_is_tried_slowly() -> None:
    assert RETRY.pause(1, errors.SourceDenied("org/m: gated")) == 500.0
    assert RETRY.pause(99, errors.SourceDenied("org/m: gated")) == 500.0


@pytest.mark.parametrize(
    "error",
    [
        errors.SourceNotFound("m"),
        errors.NoWeights("m"),
        errors.DigestMismatch("f", want="a", got="b"),
        errors.PlanRefused("m"),
        errors.UnsupportedSource("m"),
        errors.UsageError("m"),
        errors.UnsafeContent("p", code="UnsafePath", detail="d"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_cannot_get_better_is_not_tried_again(error: AiModelsError) -> None:
    assert RETRY.pause(1, error) is None
