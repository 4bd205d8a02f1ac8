"""Laws of shared claims, whatever is there: a Pod that may go goes, and nobody's files are taken away."""

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from aimodels_core.units import GIB
from aimodels_operator import sharedpvc_bodies as bodies
from aimodels_operator.sharedpvc import RETRY_SECONDS, decide, room_for
from aimodels_operator.sharedpvc_objects import Claim, Content, Job, JobState, StorageClass, Work
from aimodels_operator.sharedpvc_values import (
    GRACE_SECONDS,
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
    Use,
    Write,
)

NAME = "ai-models-model-m"
DIGESTS = [letter * 64 for letter in "abc"]
NEED = Need("team", NAME, DIGESTS[0], GIB, "ns/team")
STEPS = 40


@dataclasses.dataclass
class World:
    """A claim, its Jobs, and what the cluster does with them; folders that are really there are in `folders`."""

    expands: bool
    waits: bool
    used: frozenset[str]
    referred: bool
    claim: Claim | None
    jobs: dict[str, Job]
    folders: set[str]
    now: float = 2_000_000_000.0

    def seen(self, need: Need | None, use: Use | None) -> Seen:
        storage = StorageClass("nfs", "nfs.csi.k8s.io", expands=self.expands, waits=self.waits)
        unused = dict.fromkeys(["", *DIGESTS], self.now - GRACE_SECONDS)
        unused = {key: at for key, at in unused.items() if key not in self.used}
        jobs = tuple(self.jobs.values())
        return Seen(NAME, self.now, need, self.claim, jobs, (storage,), use=use, unused_since=unused)

    def step(self, need: Need | None) -> Open | Blocked | None:
        """Decide, do it, and let the cluster go on."""
        decision = decide(self.seen(need, None))
        if decision.asks_use:
            decision = decide(self.seen(need, Use(self.referred or bool(self.used), self.used)))
        for write in decision.writes:
            self.apply(write, need)
        if isinstance(decision.answer, Open):
            assert need is not None
            assert need.digest in self.folders, "a Pod is let go only to files that are there"
        self.go_on()
        return decision.answer

    def apply(self, write: Write, need: Need | None) -> None:
        match write:
            case CreateClaim(class_name, size_bytes):
                assert self.claim is None
                self.claim = Claim("team", NAME, "u", "1", True, False, "Pending", class_name, size_bytes)
            case GrowClaim(claim, size_bytes):
                assert self.expands
                assert claim.phase == "Bound"
                self.claim = dataclasses.replace(claim, requested_bytes=size_bytes)
            case NoteContents(_, contents):
                assert self.claim is not None
                self.claim = dataclasses.replace(self.claim, contents=contents)
            case DeleteClaim():
                assert not self.used, "what Pods use is not deleted"
                self.claim, self.folders = None, set()
            case DeleteJob(job):
                del self.jobs[job.name]
            case CreateJob(claim, work, digest):
                name = bodies.job_name(claim.name, work, digest)
                assert name not in self.jobs
                if work is Work.DROP:
                    assert digest not in self.used, "what Pods use is not removed"
                    assert need is None or digest != need.digest, "what is needed is not removed"
                    assert self.claim is not None
                    assert not self.claim.contents[digest].held, "nobody counts on it any more"
                self.jobs[name] = Job("team", name, "j", claim.name, work, digest)

    def go_on(self) -> None:
        """Volumes are bound and expanded, Jobs end."""
        self.now += RETRY_SECONDS
        if self.claim is None:
            return
        if self.claim.phase == "Pending" and (not self.waits or self.jobs):
            self.claim = dataclasses.replace(self.claim, phase="Bound")
        if self.claim.phase == "Bound":
            self.claim = dataclasses.replace(self.claim, capacity_bytes=self.claim.requested_bytes)
            for name, job in self.jobs.items():
                if job.state is JobState.RUNNING:
                    self.jobs[name] = dataclasses.replace(job, state=JobState.DONE)
                    self.folders = self.folders | {job.digest} if job.work is Work.PULL else self.folders - {job.digest}


@st.composite
def worlds(draw: st.DrawFn) -> World:
    there = draw(st.dictionaries(st.sampled_from(DIGESTS), st.booleans()))
    contents = {digest: Content(GIB, held) for digest, held in there.items()}
    held = [digest for digest, one in contents.items() if one.held]
    used = frozenset(draw(st.sets(st.sampled_from(held)))) if held else frozenset()
    phase = "Bound" if held else draw(st.sampled_from(["Pending", "Bound", "Lost"]))
    size_bytes = room_for(contents) + draw(st.sampled_from([0, 2 * GIB]))
    claim = Claim("team", NAME, "u", "1", True, False, phase, "nfs", size_bytes, size_bytes, contents)
    jobs = [draw(job_of(claim, digest)) for digest in there if digest not in held and draw(st.booleans())]
    done = {job.digest for job in jobs if job.state is JobState.DONE and job.work is Work.PULL}
    exists = draw(st.booleans()) or bool(there)
    return World(
        expands=draw(st.booleans()),
        waits=draw(st.booleans()),
        used=used,
        referred=draw(st.booleans()),
        claim=claim if exists else None,
        jobs={job.name: job for job in jobs} if exists else {},
        folders=set(held) | done,
    )


@st.composite
def job_of(draw: st.DrawFn, claim: Claim, digest: str) -> Job:
    work, state = draw(st.sampled_from(list(Work))), draw(st.sampled_from(list(JobState)))
    if claim.phase != "Bound":
        state = JobState.RUNNING
    return Job("team", bodies.job_name(NAME, work, digest), "j", NAME, work, digest, state)


@settings(max_examples=300)
@given(worlds())
def test_a_pod_that_is_needed_is_let_go_to_its_files_unless_what_others_use_leaves_no_room(world: World) -> None:
    stuck = world.claim is not None and not world.expands and world.used - {NEED.digest}
    answers = [world.step(NEED) for _ in range(STEPS)]

    assert stuck or isinstance(answers[-1], Open), answers[-1]
    assert world.used <= world.folders


@settings(max_examples=300)
@given(worlds())
def test_without_need_everything_comes_to_rest_and_what_is_used_stays(world: World) -> None:
    gone = world.claim is not None and not world.used and not world.referred
    for _ in range(STEPS):
        world.step(None)

    assert world.used <= world.folders
    assert (world.claim is None) or not gone
    decision = decide(world.seen(None, Use(world.referred or bool(world.used), world.used)))
    assert decision.writes == ()
