"""The ledger of a store with a limit: never above it, the oldest first, nobody starves, shared blobs count once."""

from collections.abc import Mapping

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aimodels_core.units import GIB
from aimodels_jobs.capacity import Ledger, Need, Verdict

GRANTED, SOON, NO_ROOM, NEVER = Verdict.GRANTED, Verdict.SOON, Verdict.NO_ROOM, Verdict.NEVER


def need(uid: str, created: float, **blobs: int) -> Need:
    return Need(uid, created, blobs, sum(blobs.values()))


def holding(limit: int, **blobs: int) -> Ledger:
    ledger = Ledger(limit)
    ledger.listed(blobs, {})
    return ledger


def test_what_fits_is_granted_and_counted_until_it_is_stored() -> None:
    ledger = holding(10, old=3)

    assert ledger.ask(need("a", 1, x=4)) is GRANTED
    assert (ledger.used_bytes, ledger.reserved_bytes, ledger.free_bytes) == (3, 4, 3)

    ledger.settle("a", {"x": 4, "config": 1})
    assert (ledger.used_bytes, ledger.reserved_bytes, ledger.free_bytes) == (8, 0, 2)


def test_blobs_that_the_store_has_or_somebody_brings_cost_nothing() -> None:
    ledger = holding(10, shared=6)

    assert ledger.ask(need("a", 1, shared=6, x=4)) is GRANTED
    assert ledger.ask(need("b", 2, shared=6, x=4)) is GRANTED
    assert ledger.reserved_bytes == 4

    ledger.leave("a")
    assert (ledger.used_bytes, ledger.reserved_bytes) == (6, 4)


def test_one_larger_than_the_limit_says_so_and_blocks_nobody() -> None:
    ledger = holding(50 * GIB)

    assert ledger.ask(need("giant", 1, x=60 * GIB)) is NEVER
    assert ledger.words("giant") == "needs 60.0 GiB, the whole store may hold 50.0 GiB"
    assert ledger.ask(need("b", 2, y=50 * GIB)) is GRANTED


def test_one_that_waits_says_what_it_needs_and_how_much_is_free() -> None:
    ledger = holding(50 * GIB, old=46 * GIB)

    assert ledger.ask(need("a", 1, x=12 * GIB)) is NO_ROOM
    assert ledger.words("a") == "needs 12.0 GiB, 4.0 GiB of 50.0 GiB are free"
    assert ledger.ask(need("b", 2, y=GIB)) is NO_ROOM
    expected = "needs 1.0 GiB, 4.0 GiB of 50.0 GiB are free, and an older one that needs 12.0 GiB goes first"
    assert ledger.words("b") == expected


def test_words_count_what_the_asker_must_read_whatever_the_store_has() -> None:
    """Else a made-up list of digests would tell which of them other tenants have stored."""
    ledger = holding(10, secret=4, old=4)

    assert ledger.ask(need("a", 1, secret=4, x=3)) is NO_ROOM
    assert ledger.words("a") == "needs 7 B, 2 B of 10 B are free"


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_space_that_appears_goes_to_the_oldest_whoever_asked_first(order: str) -> None:
    ledger = holding(10, old=9)
    needs = {"a": need("a", 1, x=6), "b": need("b", 2, y=6)}
    for uid in order:
        assert ledger.ask(needs[uid]) is NO_ROOM

    ledger.listed({"old": 3}, {})
    assert (ledger.verdict("a"), ledger.verdict("b")) == (GRANTED, NO_ROOM)


def test_a_younger_one_goes_beside_an_older_one_only_with_blobs_that_this_waits_for_too() -> None:
    ledger = holding(10, old=6)
    assert ledger.ask(need("older", 1, x=3, y=3)) is NO_ROOM

    assert ledger.ask(need("stranger", 9, z=1)) is NO_ROOM
    assert ledger.ask(need("nothing new", 3, old=6)) is GRANTED
    assert ledger.ask(need("part of it", 4, x=3)) is GRANTED
    assert ledger.free_bytes == 1

    ledger.leave("older")
    assert ledger.verdict("stranger") is GRANTED


def test_a_younger_one_waits_for_the_plan_of_an_older_one() -> None:
    ledger = holding(10)
    ledger.expect("older", 1)
    ledger.expect("younger", 2)

    assert ledger.ask(need("younger", 2, y=6)) is SOON
    assert ledger.ask(need("older", 1, x=6)) is GRANTED
    assert ledger.verdict("younger") is NO_ROOM


def test_nobody_waits_for_one_that_will_not_ask() -> None:
    ledger = holding(10)
    ledger.expect("older", 1)
    assert ledger.ask(need("younger", 2, y=6)) is SOON

    ledger.unexpect("older")
    assert ledger.verdict("younger") is GRANTED


def test_before_it_opens_only_what_needs_nothing_goes_on() -> None:
    ledger = Ledger(10, opened=False)
    ledger.listed({"old": 5}, {})

    assert ledger.ask(need("b", 2, old=5)) is GRANTED
    assert ledger.ask(need("c", 3, y=4)) is SOON
    assert ledger.ask(need("a", 1, x=4)) is SOON
    ledger.open()
    assert (ledger.verdict("a"), ledger.verdict("c")) == (GRANTED, NO_ROOM)


def test_asking_again_keeps_the_place_but_more_must_wait() -> None:
    ledger = holding(10)
    assert ledger.ask(need("a", 2, x=6)) is GRANTED
    assert ledger.ask(need("b", 1, y=6)) is NO_ROOM

    assert ledger.ask(need("a", 2, x=6)) is GRANTED
    assert ledger.ask(need("a", 2, x=5)) is GRANTED
    assert ledger.reserved_bytes == 5
    assert ledger.ask(need("a", 2, x=5, z=4)) is NO_ROOM
    assert ledger.verdict("b") is GRANTED


def test_what_an_ended_one_may_have_left_counts_until_a_listing() -> None:
    ledger = holding(10)
    ledger.ask(need("a", 1, x=4, y=4))
    assert ledger.leave("a")
    assert ledger.ask(need("b", 2, z=5)) is NO_ROOM

    ledger.begin_listing()
    ledger.listed({"x": 4}, {})
    assert ledger.verdict("b") is GRANTED
    assert (ledger.used_bytes, ledger.drift_bytes) == (4, -4)


def test_unfinished_uploads_count_once() -> None:
    ledger = Ledger(10)
    ledger.listed({"old": 2}, {"x": 4})
    assert (ledger.used_bytes, ledger.free_bytes) == (6, 4)

    assert ledger.ask(need("a", 1, x=4, y=4)) is GRANTED
    assert (ledger.used_bytes, ledger.reserved_bytes) == (6, 4)
    ledger.settle("a", {"x": 4, "y": 4})
    assert (ledger.used_bytes, ledger.reserved_bytes) == (10, 0)


def test_what_is_stored_while_a_listing_runs_is_not_lost() -> None:
    ledger = holding(10)
    ledger.ask(need("a", 1, x=4))
    ledger.ask(need("b", 1, y=3))
    ledger.begin_listing()
    ledger.settle("a", {"x": 4})
    ledger.leave("b")
    ledger.listed({}, {})
    assert ledger.used_bytes == 7

    ledger.begin_listing()
    ledger.listed({"x": 4}, {})
    assert ledger.used_bytes == 4


def test_drift_is_what_a_listing_corrects_beyond_what_was_removed() -> None:
    ledger = holding(100, a=10, b=20)
    assert ledger.drift_bytes == 0

    ledger.listed({"a": 10, "foreign": 7}, {}, removed_bytes=20)
    assert ledger.drift_bytes == 7


def test_above_a_lowered_limit_only_what_needs_nothing_goes_on() -> None:
    ledger = holding(10, old=15)

    assert ledger.ask(need("a", 1, x=1)) is NO_ROOM
    assert ledger.ask(need("b", 2, old=15)) is NEVER
    assert ledger.free_bytes == 0


def test_a_limit_of_nothing_is_no_limit() -> None:
    with pytest.raises(ValueError, match="at least one byte"):
        Ledger(0)


LIMIT = 20
KEYS = [f"k{number}" for number in range(8)]
SIZES = {key: 1 + number * 2 for number, key in enumerate(KEYS)}
UIDS = ["a", "b", "c", "d", "e"]


class Life(RuleBasedStateMachine):
    """A store that follows the ledger: only who was granted stores, deletion is seen by listings."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(LIMIT)
        self.ledger.listed({}, {})
        self.store: dict[str, int] = {}
        self.needs: dict[str, Need] = {}

    @property
    def waiting(self) -> list[Need]:
        found = (self.needs[uid] for uid in self.ledger.waiting)
        return sorted((need for need in found if need.size_bytes <= LIMIT), key=lambda need: need.order)

    def _total_with(self, extra: Mapping[str, int]) -> int:
        held = [self.needs[uid].blobs for uid in self.needs if self.ledger.holds(uid)]
        return sum({key: size for blobs in (self.store, extra, *held) for key, size in blobs.items()}.values())

    @rule(uid=st.sampled_from(UIDS), created=st.integers(0, 3), keys=st.sets(st.sampled_from(KEYS), min_size=1))
    def ask(self, uid: str, created: int, keys: set[str]) -> None:
        if uid in self.needs:
            return
        before = {need.uid: self._total_with(need.blobs) for need in self.waiting}
        asked = Need(uid, created, {key: SIZES[key] for key in keys}, 0)
        self.needs[uid] = asked
        verdict = self.ledger.ask(asked)

        assert (verdict is NEVER) == (asked.size_bytes > LIMIT)
        for other in self.waiting:
            if other.order < asked.order and other.uid in before:
                assert self._total_with(other.blobs) <= before[other.uid], "an older one's space was taken"

    @rule(uid=st.sampled_from(UIDS))
    def ask_again(self, uid: str) -> None:
        if uid in self.needs and self.ledger.holds(uid):
            assert self.ledger.ask(self.needs[uid]) is GRANTED

    @rule(uid=st.sampled_from(UIDS), part=st.sets(st.sampled_from(KEYS)))
    def store_some(self, uid: str, part: set[str]) -> None:
        if uid in self.needs and self.ledger.holds(uid):
            self.store.update({key: size for key, size in self.needs[uid].blobs.items() if key in part})

    @rule(uid=st.sampled_from(UIDS))
    def finish(self, uid: str) -> None:
        if uid in self.needs and self.ledger.holds(uid):
            self.store.update(self.needs[uid].blobs)
            self.ledger.settle(uid, self.needs.pop(uid).blobs)

    @rule(uid=st.sampled_from(UIDS))
    def give_up(self, uid: str) -> None:
        if self.needs.pop(uid, None) is not None:
            self.ledger.leave(uid)

    @rule(keys=st.sets(st.sampled_from(KEYS)))
    def collect(self, keys: set[str]) -> None:
        self.ledger.begin_listing()
        gone = {key for key in keys if key not in self.ledger.reserved}
        self.store = {key: size for key, size in self.store.items() if key not in gone}
        self.ledger.listed(dict(self.store), {})

    @precondition(lambda self: self.waiting)
    @rule()
    def drain(self) -> None:
        """Whatever happened before, the oldest one goes on once the others are done and gone."""
        oldest = self.waiting[0]
        for uid in [uid for uid in self.needs if self.ledger.holds(uid)]:
            self.finish(uid)
        self.collect(set(KEYS))
        if oldest.uid in self.needs:
            assert self.ledger.verdict(oldest.uid) is GRANTED

    @invariant()
    def never_above_the_limit(self) -> None:
        assert self._total_with({}) <= self.ledger.used_bytes + self.ledger.reserved_bytes <= LIMIT

    @invariant()
    def nobody_waits_who_could_go(self) -> None:
        if self.waiting:
            assert self.ledger.verdict(self.waiting[0].uid) is NO_ROOM


Life.TestCase.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
TestLife = Life.TestCase
