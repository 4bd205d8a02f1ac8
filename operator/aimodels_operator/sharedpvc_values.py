"""Values about shared claims: what Pods want of them, what is seen of them, what is to be done. Pure."""

import dataclasses
from collections.abc import Mapping

from aimodels_operator.sharedpvc_objects import Claim, Contents, Job, StorageClass, Work

CLASS_MISSING = "SharedPVCStorageClassMissing"
QUOTA = "SharedPVCQuotaExceeded"
CLAIM = "SharedPVCClaimPending"
FILLING = "SharedPVCMaterializerPending"

GRACE_SECONDS = 600.0
"""How long a claim that nobody refers to, or a folder that no Pod uses, is kept."""


@dataclasses.dataclass(frozen=True, slots=True)
class Open:
    """All that a Pod mounts is there."""


@dataclasses.dataclass(frozen=True, slots=True)
class Blocked:
    """A Pod has to wait.

    Args:
        reason: of the closed set (design 2.3).
        message: for people.
    """

    reason: str
    message: str


Answer = Open | Blocked


@dataclasses.dataclass(frozen=True, slots=True)
class Need:
    """What a gated Pod wants of a claim.

    Args:
        namespace: of Pod and claim.
        claim: its name.
        digest: hex digits of the manifest's digest.
        size_bytes: of all files.
        scope: repository that the model is read from.
    """

    namespace: str
    claim: str
    digest: str
    size_bytes: int
    scope: str


@dataclasses.dataclass(frozen=True, slots=True)
class Use:
    """What refers to a claim.

    Args:
        referred: whether a Pod, gated or not, or a workload does.
        digests: hex digits of those that Pods mount.
    """

    referred: bool
    digests: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class Trouble:
    """Why a Job does not go on, or why a write was refused.

    Args:
        words: for people.
        quota: whether a quota is why.
        again_at: Unix seconds from when on a refused write may be tried again.
    """

    words: str
    quota: bool = False
    again_at: float = 0.0

    @property
    def blocked(self) -> Blocked:
        """As an answer."""
        return Blocked(QUOTA if self.quota else FILLING, self.words)


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """All that a decision looks at.

    Args:
        name: of the claim.
        now: Unix seconds.
        need: of gated Pods; None when none waits.
        claim: as it is; None when there is none.
        jobs: that work on it.
        classes: all classes of storage.
        class_setting: the class that the administrator has named; empty for none.
        use: what refers to the claim; None when that was not looked at.
        unused_since: Unix seconds since when nobody refers to the claim (key: empty), or uses a digest of it.
        troubles: of Jobs, by their names.
        refusal: of the last write about this claim.
        grace_seconds: how long what is not used is kept.
    """

    name: str
    now: float
    need: Need | None = None
    claim: Claim | None = None
    jobs: tuple[Job, ...] = ()
    classes: tuple[StorageClass, ...] = ()
    class_setting: str = ""
    use: Use | None = None
    unused_since: Mapping[str, float] = dataclasses.field(default_factory=dict)
    troubles: Mapping[str, Trouble] = dataclasses.field(default_factory=dict)
    refusal: Trouble | None = None
    grace_seconds: float = GRACE_SECONDS


@dataclasses.dataclass(frozen=True, slots=True)
class CreateClaim:
    """Make the claim."""

    class_name: str
    size_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class GrowClaim:
    """Ask for more room."""

    claim: Claim
    size_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class NoteContents:
    """Write down what lies in the claim."""

    claim: Claim
    contents: Contents


@dataclasses.dataclass(frozen=True, slots=True)
class DeleteClaim:
    """Delete the claim."""

    claim: Claim


@dataclasses.dataclass(frozen=True, slots=True)
class CreateJob:
    """Have a folder filled or removed.

    Args:
        claim: in which.
        work: which of the two.
        digest: hex digits.
        need: of a pull.
    """

    claim: Claim
    work: Work
    digest: str
    need: Need | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete a Job and its Pods."""

    job: Job


Write = CreateClaim | GrowClaim | NoteContents | DeleteClaim | CreateJob | DeleteJob


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done.

    Args:
        answer: to the Pods that wait; None when none does.
        writes: in order; what follows a refused one is not done.
        asks_use: more could be said if `Seen.use` were known.
    """

    answer: Answer | None
    writes: tuple[Write, ...] = ()
    asks_use: bool = False
