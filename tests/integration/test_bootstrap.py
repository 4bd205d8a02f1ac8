"""The operator has the coordinator run in a real Ray: from before its head until after the loss of it.

What happens is in `tests.support.rayhead`; it is played once, and each test looks at one side of it.
"""

from typing import Any

import pytest

from aimodels_jobs.fleet import cluster
from tests.support.rayhead import HeadArena, charted

pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN", "of-the-ray-that-other-tests-have-in-this-process")
        arena = HeadArena(tmp_path_factory.mktemp("head"))
    with arena:
        found = arena.play("life", 0, seconds=400)
    print(found)
    return found


def test_before_there_is_a_head_and_after_its_loss_people_are_told_why(seen: dict[str, Any]) -> None:
    assert seen["before"].startswith("Ray's head does not answer (")
    assert seen["lost"].startswith("Ray's head does not answer (")


def test_it_is_started_on_the_head_and_moves_on_the_workers(seen: dict[str, Any]) -> None:
    assert seen["coordinator_on_head"]
    assert not seen["mover_on_head"]
    assert seen["published"].startswith("sha256:")


def test_another_operator_finds_it_and_starts_nothing(seen: dict[str, Any]) -> None:
    assert seen["found_again"]
    assert seen["submissions"] == [True]


def test_other_settings_replace_it_and_leave_one_submission(seen: dict[str, Any]) -> None:
    assert "replaced" in seen["seconds"]
    assert seen["submissions_after"] == [True]


def test_a_new_head_gets_it_again_and_what_is_stored_moves_no_byte(seen: dict[str, Any]) -> None:
    assert "back" in seen["seconds"]
    assert seen["moved_again"] == 0


def test_the_worker_leaves_the_lost_head_for_the_new_one(seen: dict[str, Any]) -> None:
    assert seen["moved_then"] > 0


def test_a_token_that_is_not_rays_is_told(seen: dict[str, Any]) -> None:
    assert seen["denied"] == "Ray's head refuses the token"


def test_why_a_start_fails_is_found_in_what_ray_keeps_of_it(seen: dict[str, Any]) -> None:
    assert seen["failed"] == ["store: want a folder or s3://bucket/prefix"]


def test_the_chart_sets_what_every_ray_process_of_ours_starts_with() -> None:
    set_there = charted()

    assert set_there == {**set_there, **cluster.ENVIRONMENT}
    assert set_there["RAY_AUTH_MODE"] == "token"
