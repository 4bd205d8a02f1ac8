"""Shared claims: which class, how large, what is made, filled, grown, emptied and deleted, and what Pods are told."""

import dataclasses
from typing import Any

import pytest

from aimodels_core.units import GIB, MIB
from aimodels_operator import sharedpvc_bodies as bodies
from aimodels_operator import sharedpvc_use
from aimodels_operator.sharedpvc import RETRY_SECONDS, choose_class, decide, room_for
from aimodels_operator.sharedpvc_objects import Claim, Content, Job, JobState, StorageClass, Work
from aimodels_operator.sharedpvc_values import (
    CLAIM,
    CLASS_MISSING,
    FILLING,
    GRACE_SECONDS,
    QUOTA,
    Blocked,
    CreateClaim,
    CreateJob,
    DeleteClaim,
    DeleteJob,
    GrowClaim,
    Need,
    NoteContents,
    Open,
    Seen,
    Trouble,
    Use,
)

NOW = 1_800_000_000.0
NAME = "ai-models-model-bge-m3"
OLD, NEW, THIRD = "a" * 64, "b" * 64, "c" * 64
NFS = StorageClass("nfs", "nfs.csi.k8s.io")
LOCAL = StorageClass("local", "rancher.io/local-path", default=True)
NEED = Need("team", NAME, NEW, GIB, "ns/team")
ROOM = room_for({NEW: Content(GIB)})
BOUND = Claim("team", NAME, "u", "7", ours=True, deleting=False, phase="Bound", class_name="nfs", requested_bytes=ROOM)
FILLED = dataclasses.replace(BOUND, contents={NEW: Content(GIB, held=True)})
NOTED = dataclasses.replace(BOUND, contents={NEW: Content(GIB)})
BOTH = {OLD: Content(GIB, held=True), NEW: Content(GIB, held=True)}
LONG_AGO = NOW - GRACE_SECONDS


def seen(claim: Claim | None = None, need: Need | None = NEED, **more: Any) -> Seen:
    return Seen(**{"name": NAME, "now": NOW, "need": need, "claim": claim, "classes": (NFS, LOCAL), **more})


def job(state: JobState = JobState.RUNNING, work: Work = Work.PULL, digest: str = NEW, **more: Any) -> Job:
    name = bodies.job_name(NAME, work, digest)
    return Job(
        **{
            "namespace": "team",
            "name": name,
            "uid": "j",
            "claim": NAME,
            "work": work,
            "digest": digest,
            "state": state,
            **more,
        }
    )


def reason(answer: object) -> str:
    assert isinstance(answer, Blocked), answer
    return answer.reason


# Which class


@pytest.mark.parametrize(
    ("classes", "setting", "wanted"),
    [
        pytest.param([LOCAL, NFS], "local", "local", id="the-administrators"),
        pytest.param([LOCAL, NFS], "", "nfs", id="the-only-known"),
        pytest.param([dataclasses.replace(LOCAL, shared="true")], "", "local", id="annotated"),
        pytest.param([NFS, dataclasses.replace(LOCAL, shared="true")], "", "local", id="default-of-several"),
        pytest.param([NFS, StorageClass("rook", "rook-ceph.cephfs.csi.ceph.com", shared="false")], "", "nfs", id="not"),
        pytest.param([StorageClass("rook", "rook-ceph.cephfs.csi.ceph.com"), LOCAL], "", "rook", id="with-instance"),
    ],
)
def test_the_class_is_named_or_the_only_one_or_the_default(
    classes: list[StorageClass], setting: str, wanted: str
) -> None:
    found = choose_class(classes, setting)

    assert isinstance(found, StorageClass)
    assert found.name == wanted


@pytest.mark.parametrize(
    ("classes", "setting", "words"),
    [
        pytest.param([LOCAL], "", "got none", id="none-is-shared"),
        pytest.param([], "", "classes: none", id="none-at-all"),
        pytest.param([NFS, StorageClass("efs", "efs.csi.aws.com"), LOCAL], "", "several: efs, nfs", id="several"),
        pytest.param([NFS], "gone", "want a class that there is, got gone", id="named-and-gone"),
    ],
)
def test_without_one_class_pods_are_told_what_there_is(classes: list[StorageClass], setting: str, words: str) -> None:
    found = decide(seen(classes=tuple(classes), class_setting=setting))

    assert (reason(found.answer), found.writes) == (CLASS_MISSING, ())
    assert isinstance(found.answer, Blocked)
    assert words in found.answer.message
    assert all(one.name in found.answer.message for one in classes)


def test_a_class_says_what_it_is() -> None:
    meta = {
        "name": "x",
        "annotations": {"ai.deckhouse.io/shared": "True", "storageclass.kubernetes.io/is-default-class": "true"},
    }
    raw = {
        "metadata": meta,
        "provisioner": "p",
        "allowVolumeExpansion": True,
        "volumeBindingMode": "WaitForFirstConsumer",
    }

    assert StorageClass.from_raw(raw) == StorageClass("x", "p", "true", default=True, expands=True, waits=True)


# From nothing to a folder


def test_a_claim_is_made_a_tenth_larger_than_its_model() -> None:
    found = decide(seen())

    assert found.writes == (CreateClaim("nfs", ROOM),)
    assert reason(found.answer) == CLAIM
    assert ROOM >= 1.1 * GIB
    assert ROOM % MIB == 0
    assert room_for({NEW: Content(1)}) == GIB


def test_a_claim_that_is_not_bound_is_waited_for() -> None:
    pending = dataclasses.replace(BOUND, phase="Pending", trouble="no space left on server")
    found = decide(seen(pending))

    assert (reason(found.answer), found.writes) == (CLAIM, ())
    assert "no space left on server" in str(found.answer)


def test_a_class_that_waits_for_a_pod_gets_the_jobs() -> None:
    pending = dataclasses.replace(BOUND, phase="Pending")
    found = decide(seen(pending, classes=(dataclasses.replace(NFS, waits=True),)))

    assert reason(found.answer) == CLAIM
    assert [type(write) for write in found.writes] == [NoteContents, CreateJob]


def test_what_is_brought_is_noted_first() -> None:
    found = decide(seen(BOUND))

    assert found.writes == (NoteContents(BOUND, {NEW: Content(GIB)}), CreateJob(BOUND, Work.PULL, NEW, NEED))
    assert reason(found.answer) == FILLING


def test_while_a_job_runs_nothing_is_done() -> None:
    found = decide(seen(NOTED, jobs=(job(),)))

    assert (reason(found.answer), found.writes) == (FILLING, ())


@pytest.mark.parametrize(("quota", "wanted"), [(False, FILLING), (True, QUOTA)])
def test_why_a_job_does_not_go_on_is_told(quota: bool, wanted: str) -> None:
    running = job()
    found = decide(seen(NOTED, jobs=(running,), troubles={running.name: Trouble("0/3 nodes are available", quota)}))

    assert reason(found.answer) == wanted
    assert "0/3 nodes are available" in str(found.answer)


def test_a_job_that_is_done_is_taken_in_and_the_pod_goes_after_the_next_look() -> None:
    done = job(JobState.DONE)
    found = decide(seen(NOTED, jobs=(done,)))

    assert found.writes == (NoteContents(NOTED, {NEW: Content(GIB, held=True)}), DeleteJob(done))
    assert reason(found.answer) == FILLING
    assert decide(seen(FILLED)).answer == Open()


def test_a_failed_job_is_made_anew_after_a_while() -> None:
    failed = job(JobState.FAILED, ended_at=NOW - RETRY_SECONDS + 1, words="BackoffLimitExceeded: x")
    later = dataclasses.replace(failed, ended_at=NOW - RETRY_SECONDS)

    assert "BackoffLimitExceeded" in str(decide(seen(NOTED, jobs=(failed,))).answer)
    assert decide(seen(NOTED, jobs=(failed,))).writes == ()
    assert decide(seen(NOTED, jobs=(later,))).writes == (DeleteJob(later),)
    assert decide(seen(NOTED, jobs=(dataclasses.replace(later, deleting=True),))).writes == ()


# Claims that cannot be used


@pytest.mark.parametrize(
    ("change", "writes"),
    [
        pytest.param({"ours": False}, (), id="of-somebody-else"),
        pytest.param({"deleting": True}, (), id="terminating"),
        pytest.param({"phase": "Lost"}, (DeleteClaim(dataclasses.replace(FILLED, phase="Lost")),), id="lost"),
        pytest.param({"phase": "Pending"}, (), id="not-bound"),
    ],
)
def test_a_claim_that_cannot_be_used_keeps_the_gate(change: dict[str, Any], writes: tuple[object, ...]) -> None:
    found = decide(seen(dataclasses.replace(FILLED, **change)))

    assert (reason(found.answer), found.writes) == (CLAIM, writes)


# Refusals


@pytest.mark.parametrize(("quota", "wanted"), [(False, FILLING), (True, QUOTA)])
def test_a_refused_write_is_told_and_tried_again_later(quota: bool, wanted: str) -> None:
    early = decide(seen(refusal=Trouble("no", quota, again_at=NOW + 1)))
    due = decide(seen(refusal=Trouble("no", quota, again_at=NOW)))

    assert (reason(early.answer), early.writes) == (wanted, ())
    assert (reason(due.answer), due.writes) == (wanted, (CreateClaim("nfs", ROOM),))


def test_an_old_refusal_hides_neither_what_is_there_nor_another_reason() -> None:
    refusal = Trouble("no", quota=True, again_at=NOW + 1)

    assert decide(seen(FILLED, refusal=refusal)).answer == Open()
    assert reason(decide(seen(dataclasses.replace(BOUND, phase="Pending"), refusal=refusal)).answer) == CLAIM


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ('persistentvolumeclaims "x" is forbidden: exceeded quota: q, requested: persistentvolumeclaims=1', True),
        ("Error creating: pods is forbidden: failed quota: q: must specify limits.cpu", True),
        ('User "x" cannot create resource "jobs"', False),
        ("violates PodSecurity", False),
    ],
)
def test_quotas_are_known_by_their_words(words: str, wanted: bool) -> None:
    assert sharedpvc_use.trouble_of(words).quota is wanted


# Another digest


def test_a_claim_grows_with_a_new_digest_if_its_class_allows() -> None:
    small = dataclasses.replace(FILLED, contents={OLD: Content(GIB, held=True)}, capacity_bytes=ROOM)
    expands = (dataclasses.replace(NFS, expands=True),)
    wanted = room_for({OLD: Content(GIB), NEW: Content(GIB)})
    asked = dataclasses.replace(small, requested_bytes=wanted, trouble="waits for the controller")
    grown = dataclasses.replace(asked, capacity_bytes=wanted)

    assert decide(seen(small, classes=expands)).writes == (GrowClaim(small, wanted),)
    assert (decide(seen(asked, classes=expands)).writes, reason(decide(seen(asked, classes=expands)).answer)) == (
        (),
        CLAIM,
    )
    assert "waits for the controller" in str(decide(seen(asked, classes=expands)).answer)
    assert [type(write) for write in decide(seen(grown, classes=expands)).writes] == [NoteContents, CreateJob]


def test_where_it_cannot_grow_what_no_pod_uses_is_removed() -> None:
    small = dataclasses.replace(BOUND, contents={OLD: Content(GIB, held=True)})
    looks = decide(seen(small))
    removes = decide(seen(small, use=Use(referred=True)))
    kept = decide(seen(small, use=Use(referred=True, digests=frozenset({OLD}))))

    assert (looks.asks_use, looks.writes) == (True, ())
    assert removes.writes == (NoteContents(small, {OLD: Content(GIB)}), CreateJob(small, Work.DROP, OLD))
    assert (reason(kept.answer), kept.writes) == (CLAIM, ())
    assert "does not let it grow" in str(kept.answer)


def test_a_claim_that_was_too_small_from_the_beginning_is_made_anew_when_nobody_uses_it() -> None:
    tiny = dataclasses.replace(BOUND, requested_bytes=MIB)

    assert decide(seen(tiny, use=Use(referred=True))).writes == (DeleteClaim(tiny),)


def test_a_removal_is_taken_in() -> None:
    small = dataclasses.replace(BOUND, contents={OLD: Content(GIB)})
    done = job(JobState.DONE, Work.DROP, OLD)

    found = decide(seen(small, jobs=(done,), use=Use(referred=True)))
    assert found.writes == (NoteContents(small, {}), DeleteJob(done))


def test_what_is_needed_while_it_is_removed_is_brought_back_afterwards() -> None:
    running, done = job(work=Work.DROP), job(JobState.DONE, Work.DROP)

    assert decide(seen(NOTED, jobs=(running,))).writes == ()
    assert decide(seen(NOTED, jobs=(done,))).writes == (NoteContents(NOTED, {}), DeleteJob(done))
    assert [type(write) for write in decide(seen(BOUND)).writes] == [NoteContents, CreateJob]


def test_a_pull_of_what_nobody_needs_any_more_ends() -> None:
    large = dataclasses.replace(BOUND, requested_bytes=10 * GIB, contents={OLD: Content(GIB)})
    former = job(digest=OLD)

    assert decide(seen(large, jobs=(former,))).writes[0] == DeleteJob(former)


@pytest.mark.parametrize("need", [NEED, None])
def test_folders_that_no_pod_uses_go_after_the_grace(need: Need | None) -> None:
    large = dataclasses.replace(BOUND, requested_bytes=10 * GIB, contents=BOTH)
    use = Use(referred=True, digests=frozenset({NEW}))
    early = decide(seen(large, need, use=use, unused_since={OLD: LONG_AGO + 1}))
    late = decide(seen(large, need, use=use, unused_since={OLD: LONG_AGO}))

    assert early.writes == ()
    assert late.writes == (NoteContents(large, {**BOTH, OLD: Content(GIB)}), CreateJob(large, Work.DROP, OLD))
    assert late.answer == (Open() if need else None)


def test_the_only_folder_stays_and_so_do_all_while_no_pod_says_which_is_in_use() -> None:
    large = dataclasses.replace(BOUND, requested_bytes=10 * GIB, contents=BOTH)
    unused = {OLD: LONG_AGO, NEW: LONG_AGO}

    assert decide(seen(FILLED, None, use=Use(referred=True), unused_since=unused)).writes == ()
    assert decide(seen(large, None, use=Use(referred=True), unused_since=unused)).writes == ()


# The end


def test_a_claim_goes_with_its_jobs_when_nobody_refers_to_it_for_the_grace() -> None:
    running, nobody = job(), Use(referred=False)
    early = decide(seen(FILLED, None, use=nobody, unused_since={"": LONG_AGO + 1}))
    late = decide(seen(FILLED, None, use=nobody, jobs=(running,), unused_since={"": LONG_AGO}))

    assert early.writes == ()
    assert late.writes == (DeleteJob(running), DeleteClaim(FILLED))
    assert decide(seen(FILLED, None, use=Use(referred=True), unused_since={"": LONG_AGO})).writes == ()
    assert decide(seen(FILLED, None)).asks_use


def test_claims_of_others_are_never_touched() -> None:
    foreign = dataclasses.replace(FILLED, ours=False)
    found = decide(seen(foreign, None, use=Use(referred=False), unused_since={"": LONG_AGO}))

    assert (found.answer, found.writes, found.asks_use) == (None, (), False)
