"""What is to be done about one shared claim: `decide(seen) -> answer, writes`. Level-triggered and pure.

A claim belongs to a namespace and a model; its Pods mount one folder per digest of it. It is made, filled, grown and
emptied by Jobs as gated Pods need it, and deleted when nobody refers to it any more (design 6). What it decides about
and what it asks for is in `sharedpvc_values`; who looks and writes is `sharedpvc_loop`.
"""

import dataclasses
from collections.abc import Sequence

from aimodels_core import names
from aimodels_core.units import GIB, MIB, human_bytes, round_up
from aimodels_operator.sharedpvc_objects import Claim, Content, Contents, Job, JobState, StorageClass, Work
from aimodels_operator.sharedpvc_values import (
    CLAIM,
    CLASS_MISSING,
    FILLING,
    Blocked,
    CreateClaim,
    CreateJob,
    Decision,
    DeleteClaim,
    DeleteJob,
    GrowClaim,
    Need,
    NoteContents,
    Open,
    Seen,
    Trouble,
    Write,
)

RETRY_SECONDS = 30.0
"""After this a failed Job is made anew, and a refused write tried again."""
SETTING = "delivery.sharedPVCStorageClassName"
KNOWN_PROVISIONERS = (
    *("cephfs.csi.ceph.com", "nfs.csi.k8s.io", "nfs.manila.csi.openstack.org", "cephfs.manila.csi.openstack.org"),
    *("efs.csi.aws.com", "fsx.csi.aws.com", "file.csi.azure.com", "filestore.csi.storage.gke.io"),
    *("csi.juicefs.com", "seaweedfs-csi-driver", "beegfs.csi.netapp.com", "csi.weka.io"),
)
"""Whose volumes several nodes may write to; also with an instance's name in front, as Rook does it."""
_LEAST_BYTES = GIB
_SPARE_BYTES = 64 * MIB
_MAX_LISTED = 10


def choose_class(classes: Sequence[StorageClass], setting: str) -> StorageClass | Blocked:
    """Choose the class of a new claim: the administrator's; else the only one known to be shared, or the default."""
    if setting:
        named = [one for one in classes if one.name == setting]
        return named[0] if named else _missing_class(f"{SETTING}: want a class that there is, got {setting}", classes)
    shared = [one for one in classes if is_shared(one)]
    if len(shared) == 1:
        return shared[0]
    defaults = [one for one in shared if one.default]
    if len(defaults) == 1:
        return defaults[0]
    what = "none" if not shared else "several: " + ", ".join(sorted(one.name for one in shared)[:_MAX_LISTED])
    mark = f'{names.ANNOTATION_SHARED_CLASS}: "true"'
    words = f"want one storage class for claims of many nodes (known, or annotated {mark}), got {what}"
    return _missing_class(f"{words}; name it in {SETTING}", classes)


def is_shared(one: StorageClass) -> bool:
    """Say whether several nodes may write to volumes of a class, as far as is known."""
    known = any(one.provisioner == name or one.provisioner.endswith("." + name) for name in KNOWN_PROVISIONERS)
    return one.shared == "true" or (known and one.shared != "false")


def room_for(contents: Contents) -> int:
    """How large a claim must be: 10 % more than its models, since file systems need some, and at least 1 GiB."""
    total = sum(one.size_bytes for one in contents.values())
    return max(_LEAST_BYTES, round_up(total + total // 10 + _SPARE_BYTES, MIB))


def decide(seen: Seen) -> Decision:
    """Say what is to be done now."""
    found = _needed(seen, seen.need) if seen.need is not None else _idle(seen)
    if seen.refusal is None or not found.writes:
        return found
    writes = found.writes if seen.now >= seen.refusal.again_at else ()
    answer = seen.refusal.blocked if isinstance(found.answer, Blocked) else found.answer
    return dataclasses.replace(found, answer=answer, writes=writes)


def _needed(seen: Seen, need: Need) -> Decision:
    claim = seen.claim
    if claim is None:
        chosen = choose_class(seen.classes, seen.class_setting)
        if isinstance(chosen, Blocked):
            return Decision(chosen)
        size_bytes = room_for({need.digest: Content(need.size_bytes)})
        return Decision(_pending(f"claim {need.claim} is made"), (CreateClaim(chosen.name, size_bytes),))
    if not claim.ours:
        return Decision(_pending(f"claim {claim.name} is there and is not of ai-models: delete it"))
    if claim.deleting:
        return Decision(_pending(f"claim {claim.name} is being deleted; it is made anew then"))
    if claim.phase == "Lost":
        return Decision(_pending(f"claim {claim.name} has lost its volume; it is made anew"), _gone(seen, claim))
    content = claim.contents.get(need.digest)
    if content is not None and content.held and claim.phase == "Bound":
        return dataclasses.replace(_keep(seen, claim), answer=Open())
    wanted = room_for({**claim.contents, need.digest: Content(need.size_bytes)})
    return _fill(seen, claim, need) if wanted <= claim.offered_bytes else _make_room(seen, claim, need, wanted)


def _make_room(seen: Seen, claim: Claim, need: Need, wanted: int) -> Decision:
    storage = _class_of(seen, claim)
    words = f"claim {claim.name} of {human_bytes(claim.offered_bytes)} has to be {human_bytes(wanted)} large"
    if claim.phase == "Bound" and storage is not None and storage.expands:
        grow = (GrowClaim(claim, wanted),) if claim.requested_bytes < wanted else ()
        more = f": {claim.trouble}" if claim.trouble else ""
        return Decision(_pending(f"{words}: it is being expanded{more}"), grow)
    if seen.use is None:
        return Decision(_pending(words), asks_use=True)
    free = [key for key in sorted(claim.contents) if key != need.digest and key not in seen.use.digests]
    if free:
        return Decision(_pending(f"{words}: what no Pod uses is removed"), _drop(seen, claim, free[0]))
    if claim.contents.keys() <= {need.digest} and need.digest not in seen.use.digests:
        return Decision(_pending(f"{words}: it is made anew"), _gone(seen, claim))
    cannot = f"its class {claim.class_name or '(none)'} does not let it grow, and Pods use what lies in it"
    return Decision(_pending(f"{words}, but {cannot}"))


def _fill(seen: Seen, claim: Claim, need: Need) -> Decision:
    """Decide about a claim that has room for a model, and lacks it."""
    storage = _class_of(seen, claim)
    bound = claim.phase == "Bound"
    if not bound and (storage is None or not storage.waits):
        more = f": {claim.trouble}" if claim.trouble else ""
        return Decision(_pending(f"claim {claim.name} of class {claim.class_name or '(none)'} is not bound{more}"))
    writes, blocked = _pull(seen, claim, need)
    if not bound and blocked.reason == FILLING:
        blocked = _pending(f"claim {claim.name} is bound when its first Pod starts: {blocked.message}")
    return Decision(blocked, writes)


def _pull(seen: Seen, claim: Claim, need: Need) -> tuple[tuple[Write, ...], Blocked]:
    jobs = [job for job in seen.jobs if job.digest == need.digest]
    what = f"sha256:{need.digest[:12]}… is brought into claim {claim.name}"
    for job in jobs:
        if job.deleting:
            return (), Blocked(FILLING, f"{what} when Job {job.name} is gone")
        if job.work is Work.DROP:
            return _dropped(claim, job), Blocked(FILLING, f"{what} when Job {job.name} has removed what was there")
    if not jobs:
        note: tuple[Write, ...] = ()
        if need.digest not in claim.contents:
            note = (NoteContents(claim, {**claim.contents, need.digest: Content(need.size_bytes)}),)
        others = tuple(DeleteJob(job) for job in seen.jobs if job.work is Work.PULL and job.state is JobState.RUNNING)
        return (*others, *note, CreateJob(claim, Work.PULL, need.digest, need)), Blocked(FILLING, what)
    job = jobs[0]
    if job.state is JobState.DONE:
        return _pulled(claim, job, need.size_bytes), Blocked(FILLING, what)
    trouble = seen.troubles.get(job.name)
    if job.state is JobState.FAILED:
        why = trouble.words if trouble is not None else job.words
        again = (DeleteJob(job),) if seen.now >= job.ended_at + RETRY_SECONDS else ()
        return again, Blocked(FILLING, f"{what} anew in a while; Job {job.name} failed: {why}")
    if trouble is not None:
        return (), Trouble(f"Job {job.name}: {trouble.words}", trouble.quota).blocked
    return (), Blocked(FILLING, f"{what} by Job {job.name}")


def _idle(seen: Seen) -> Decision:
    """Decide about a claim that no gated Pod waits for."""
    claim = seen.claim
    if claim is None or not claim.ours or claim.deleting:
        return Decision(None)
    if seen.use is None:
        return Decision(None, asks_use=True)
    if not seen.use.referred:
        return Decision(None, _gone(seen, claim) if _is_over(seen, "") else ())
    return _keep(seen, claim)


def _keep(seen: Seen, claim: Claim) -> Decision:
    """Look after a claim that is in use: take in what Jobs have done, remove what no Pod uses."""
    for job in seen.jobs:
        if job.deleting:
            continue
        if job.state is JobState.DONE:
            return Decision(None, _dropped(claim, job) if job.work is Work.DROP else _pulled(claim, job))
        if job.state is JobState.FAILED and seen.now >= job.ended_at + RETRY_SECONDS:
            return Decision(None, (DeleteJob(job),))
    if len(claim.contents) < 2 or seen.jobs:
        return Decision(None)
    if seen.use is None:
        return Decision(None, asks_use=True)
    used = seen.use.digests | ({seen.need.digest} if seen.need is not None else set())
    if not any(one.held and key in used for key, one in claim.contents.items()):
        return Decision(None)
    over = [key for key in sorted(claim.contents) if key not in used and _is_over(seen, key)]
    return Decision(None, _drop(seen, claim, over[0]) if over else ())


def _pulled(claim: Claim, job: Job, size_bytes: int = 0) -> tuple[Write, ...]:
    """Take in that a folder is there whole."""
    known = claim.contents.get(job.digest, Content(size_bytes))
    note: tuple[Write, ...] = ()
    if not known.held:
        note = (NoteContents(claim, {**claim.contents, job.digest: dataclasses.replace(known, held=True)}),)
    return (*note, DeleteJob(job))


def _dropped(claim: Claim, job: Job) -> tuple[Write, ...]:
    """Take in that a folder is gone, if the Job has ended so."""
    if job.state is JobState.RUNNING:
        return ()
    left = {key: one for key, one in claim.contents.items() if key != job.digest}
    note = (NoteContents(claim, left),) if job.state is JobState.DONE and left.keys() != claim.contents.keys() else ()
    return (*note, DeleteJob(job))


def _drop(seen: Seen, claim: Claim, digest: str) -> tuple[Write, ...]:
    """Have a folder removed: first nobody may count on it any more."""
    jobs = [job for job in seen.jobs if job.digest == digest]
    for job in jobs:
        if job.work is Work.DROP:
            return () if job.deleting else _dropped(claim, job)
    if jobs:
        return tuple(DeleteJob(job) for job in jobs if not job.deleting)
    content = claim.contents[digest]
    note: tuple[Write, ...] = ()
    if content.held:
        note = (NoteContents(claim, {**claim.contents, digest: dataclasses.replace(content, held=False)}),)
    return (*note, CreateJob(claim, Work.DROP, digest))


def _gone(seen: Seen, claim: Claim) -> tuple[Write, ...]:
    """Delete a claim; its Jobs first, since their Pods would keep it."""
    return (*(DeleteJob(job) for job in seen.jobs if not job.deleting), DeleteClaim(claim))


def _is_over(seen: Seen, key: str) -> bool:
    return seen.now - seen.unused_since.get(key, seen.now) >= seen.grace_seconds


def _class_of(seen: Seen, claim: Claim) -> StorageClass | None:
    return next((one for one in seen.classes if one.name == claim.class_name), None)


def _pending(words: str) -> Blocked:
    return Blocked(CLAIM, words)


def _missing_class(words: str, classes: Sequence[StorageClass]) -> Blocked:
    listed = [f"{one.name} ({one.provisioner}{', default' if one.default else ''})" for one in classes[:_MAX_LISTED]]
    more = f" and {len(classes) - _MAX_LISTED} more" if len(classes) > _MAX_LISTED else ""
    return Blocked(CLASS_MISSING, f"{words}; classes: {', '.join(listed) or 'none'}{more}")
