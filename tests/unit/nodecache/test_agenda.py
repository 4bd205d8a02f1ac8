"""What an agent does next: order, room, removal."""

from pathlib import Path

import pytest

from aimodels_core.digest import Digest
from aimodels_core.nodes import NodeWant, Warm
from aimodels_nodecache import agenda
from aimodels_nodecache.agenda import Need, Rank, Room, Seen
from aimodels_nodecache.cache import Kept
from aimodels_nodecache.podrecords import PodRecord, RecordedModel

A, B, C, D = (Digest.of(name) for name in (b"a", b"b", b"c", b"d"))
ONE, TWO = Path("/c/devices/one"), Path("/c/devices/two")
GIB = 1 << 30


def need(digest: Digest, rank: Rank = Rank.PLACED, size: int = GIB) -> Need:
    return Need(digest, ("cluster",), rank, size)


def kept(digest: Digest, *, used_at: float = 0, size: int = GIB, device: Path = ONE) -> Kept:
    return Kept(digest, device, size, used_at)


def room(free: float, folder: Path = ONE) -> Room:
    """`free` GiB and nothing in reserve."""
    return Room(folder, 0, int(free * GIB))


def seen(*needs: Need, here: tuple[Kept, ...] = (), rooms: tuple[Room, ...] = (room(100),), **more: object) -> Seen:
    fields: dict[str, object] = {"used": (), "running": {}, "resting": (), **more}
    return Seen(needs, {one.digest: one for one in here}, rooms=rooms, **fields)  # type: ignore[arg-type] # of a table


def started(found: agenda.Agenda) -> list[Digest]:
    return [one.digest for one, _ in found.start]


def test_placed_pods_come_before_waiting_ones_and_those_before_what_is_wanted_ahead() -> None:
    record = PodRecord("u", "team", "web", (RecordedModel("m", A), RecordedModel("n", B)))
    warm = (Warm(str(C), "cluster", 3), Warm(str(D), "ns/x", 4, pods=True), Warm(str(A), "cluster", 9))
    needs = agenda.needs_of([record, record], NodeWant("n", warm), {A: 1})

    assert [(one.digest, one.rank, one.size_bytes) for one in needs] == [
        (A, Rank.PLACED, 1),
        (B, Rank.PLACED, 0),
        (D, Rank.WAITING, 4),
        (C, Rank.AHEAD, 3),
    ]
    assert needs[0].repositories == ("ns/team", "cluster")
    assert needs[2].repositories == ("ns/x",)


def test_so_many_at_once_and_none_whose_size_is_unknown_or_that_failed_a_moment_ago() -> None:
    wants = [need(A, size=0), need(B), need(C), need(D)]

    assert started(agenda.decide(seen(*wants))) == [B, C]
    assert started(agenda.decide(seen(*wants, resting={B}))) == [C, D]
    assert started(agenda.decide(seen(*wants, running={B: (ONE, 1)}))) == [C]


def test_what_nobody_wants_any_more_ends() -> None:
    assert agenda.decide(seen(need(A), running={A: (ONE, 1), B: (ONE, 1)})).stop == (B,)


def test_device_with_most_room_is_taken() -> None:
    rooms = (room(2, ONE), room(5, TWO))

    assert agenda.decide(seen(need(A), rooms=rooms)).start == ((need(A), TWO),)
    assert agenda.decide(seen(need(A, size=6 * GIB), rooms=rooms)).no_room == (A,)


def test_what_is_on_its_way_counts_as_there() -> None:
    running = {B: (ONE, 2 * GIB)}

    assert agenda.decide(seen(need(A), need(B), rooms=(room(2.5),), running=running)).no_room == (A,)
    assert agenda.decide(seen(need(A), need(B), running=running, cache_bytes=int(2.5 * GIB))).no_room == (A,)


def test_longest_unused_goes_first_and_no_more_than_needed() -> None:
    here = (kept(B, used_at=3), kept(C, used_at=1), kept(D, used_at=2))
    found = agenda.decide(seen(need(A), here=here, rooms=(room(0.5),)))

    assert [one.digest for one in found.remove] == [C]
    assert started(found) == [A]


@pytest.mark.parametrize("limit", ["room", "bytes"])
def test_used_ones_and_more_important_ones_stay(limit: str) -> None:
    here = (kept(B, used_at=1), kept(C, used_at=2))
    tight = {"rooms": (room(0),)} if limit == "room" else {"cache_bytes": 2 * GIB}

    assert agenda.decide(seen(need(A), here=here, used={B, C}, **tight)).no_room == (A,)
    ahead = [need(A, Rank.AHEAD), need(B, Rank.AHEAD), need(C, Rank.WAITING)]
    assert agenda.decide(seen(*ahead, here=here, **tight)).remove == ()
    placed = [need(A), need(B, Rank.AHEAD), need(C, Rank.WAITING)]
    found = agenda.decide(seen(*placed, here=here, **tight))
    assert [one.digest for one in found.remove] == [B]


def test_limit_of_bytes_is_made_room_for_on_any_device_and_a_device_by_itself() -> None:
    here = (kept(B, device=TWO, used_at=1), kept(C, device=ONE, used_at=2))
    rooms = (room(0, ONE), room(0, TWO))

    by_bytes = agenda.decide(seen(need(A), here=here[:1], rooms=(room(9),), cache_bytes=GIB))
    assert ([one.digest for one in by_bytes.remove], started(by_bytes)) == ([B], [A])
    by_room = agenda.decide(seen(need(A), here=here, rooms=rooms))
    assert len(by_room.remove) == 1
    assert by_room.remove[0].device == by_room.start[0][1]


def test_two_never_take_the_same_room() -> None:
    found = agenda.decide(seen(need(A), need(B), rooms=(room(1.5),)))

    assert (started(found), found.no_room) == ([A], (B,))
