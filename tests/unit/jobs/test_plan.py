import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aimodels_core.digest import Digest, GitDigest
from aimodels_core.source import SourceFile
from aimodels_core.units import GIB, MIB, TIB
from aimodels_jobs import plan
from aimodels_jobs.plan import Plan, PlanFile, Way

ONE = Digest("1" * 64)
TWO = Digest("2" * 64)


@given(st.integers(1, 5 * TIB))
def test_parts_tile_the_file_and_never_exceed_what_s3_takes(size: int) -> None:
    step = plan.part_bytes(size)

    assert step % (8 * MIB) == 0
    assert step >= plan.PART_BYTES
    assert -(-size // step) <= plan.PARTS_MAX


@given(st.integers(0, 3 * GIB))
def test_runs_tile_the_file_in_order(size: int) -> None:
    at = 0
    for index, run in enumerate(plan.runs(size)):
        assert run.index == index
        assert run.start == at
        assert run.size_bytes == sum(part.stop - part.start for part in run.parts) <= plan.RUN_BYTES
        at = run.stop

    assert at == size


@pytest.mark.parametrize(
    ("size", "last"),
    [
        pytest.param(1, (0, 1), id="one byte"),
        pytest.param(16 * MIB, (0, 16 * MIB), id="exactly one part"),
        pytest.param(16 * MIB + 1, (16 * MIB, 16 * MIB + 1), id="a last part of one byte"),
    ],
)
def test_last_part(size: int, last: tuple[int, int]) -> None:
    part = plan.parts(size)[-1]

    assert (part.start, part.stop) == last


def test_o52_parts_of_a_huge_file_stay_below_ten_thousand() -> None:
    assert len(plan.parts(TIB)) <= 9000
    assert len(plan.runs(TIB)) == len(plan.parts(TIB)), "a part above 64 MiB is a run of its own"


@pytest.mark.parametrize(
    ("size", "digest", "usable", "stored", "way"),
    [
        pytest.param(0, ONE, False, False, Way.EMPTY, id="empty"),
        pytest.param(9, ONE, False, False, Way.MOVE, id="new"),
        pytest.param(9, ONE, True, True, Way.REUSE, id="linked in a scope of ours"),
        pytest.param(9, ONE, False, True, Way.PROVE, id="there, but another tenant's"),
        pytest.param(9, None, False, False, Way.READ, id="small without sha256"),
        pytest.param(17 * MIB, None, False, False, Way.LEARN, id="large without sha256"),
    ],
)
def test_way(size: int, digest: Digest | None, usable: bool, stored: bool, way: Way) -> None:
    file = SourceFile("f", size, digest)

    assert plan.way_of(file, digest, usable=usable, stored=stored) is way


@given(st.dictionaries(st.text("abc", min_size=1), st.integers(1, GIB), max_size=12), st.integers(1, 5), st.booleans())
def test_every_file_is_assigned_and_whole_when_the_state_cannot_travel(
    sizes: dict[str, int], movers: int, portable: bool
) -> None:
    assigned = plan.assign(sizes, movers, portable=portable)

    assert assigned.keys() == sizes.keys()
    for slots in assigned.values():
        assert set(slots) <= set(range(movers))
        assert len(slots) == 1 or portable


def _plan() -> Plan:
    files = (
        PlanFile(SourceFile("a.safetensors", 100 * MIB, ONE), "weight", Way.MOVE, ONE),
        PlanFile(SourceFile("copy.safetensors", 100 * MIB, ONE), "weight", Way.MOVE, ONE),
        PlanFile(SourceFile("b.safetensors", 50, TWO), "weight", Way.REUSE, TWO),
        PlanFile(SourceFile("config.json", 7, None, GitDigest("0" * 40)), "weight.config", Way.READ, None),
    )
    return Plan("HuggingFace", "org/model", "c" * 40, "Safetensors", files, listing_requests=3)


def test_totals() -> None:
    made = _plan()

    assert made.bytes_total == 200 * MIB + 57
    assert made.bytes_reused == 50
    assert made.bytes_new == 200 * MIB + 7
    assert made.parts == 14
    assert made.hub_requests == 6


def test_o58_two_paths_with_the_same_bytes_are_stored_once() -> None:
    assert _plan().bytes_stored == 100 * MIB + 7


def test_lines_are_json_and_the_first_is_the_summary() -> None:
    first, *rows = (json.loads(line) for line in _plan().lines())

    assert first["schema"] == plan.PLAN_SCHEMA
    assert first["files"] == len(rows) == 4
    assert rows[0] == {
        "path": "a.safetensors",
        "sizeBytes": 100 * MIB,
        "digest": str(ONE),
        "layer": "weight",
        "way": "move",
        "parts": 7,
        "runs": 2,
    }
