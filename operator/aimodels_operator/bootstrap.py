"""How the coordinator is had in a Ray cluster: which submission of its start is to be made, stopped or removed. Pure.

Its start (`aimodels_jobs.host`) is a submission to Ray's Jobs API under an id that follows from what it is told, so new
settings are another submission. Submissions live in the memory of Ray's head: a lost head has none, and gets one. Ray
itself restarts a coordinator that died, so one that started well is left alone until it has been silent for a while.
"""

import dataclasses
import enum
import hashlib
import json
import re
import shlex
from collections.abc import Collection, Sequence

from aimodels_core.hosts import redact

ID_PREFIX = "ai-models-coordinator-"
_ENTRY = ("python3", "-m", "aimodels_jobs.host")
_FINISHED = ("SUCCEEDED", "FAILED", "STOPPED")
_OWN_WORDS = "coordinator: "
_MAX_WORDS = 300
_URL = re.compile(r"\w+://\S+")

SILENT_SECONDS = 15.0
"""Ray brings a coordinator that died back sooner."""
START_SECONDS = 300.0
"""Longer than the start may take: to stop another one, make the actor, and see it serve."""
_FIRST_PAUSE_SECONDS = 2.0
_MOST_PAUSE_SECONDS = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """A start of the coordinator as it is to be.

    Args:
        id: of the submission.
        entrypoint: a line for a shell.
    """

    id: str
    entrypoint: str

    @classmethod
    def of(cls, arguments: Sequence[str], version: str) -> "Start":
        """Describe the start with these arguments of `aimodels_jobs.host`, of this version of ai-models."""
        told = json.dumps([version, *arguments]).encode()
        return cls(ID_PREFIX + hashlib.sha256(told).hexdigest()[:12], shlex.join([*_ENTRY, *arguments]))


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """A submission, as Ray tells it.

    Args:
        id: of the submission.
        status: PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED.
        message: about its end, up to 20,000 characters with the end of its output.
    """

    id: str
    status: str
    message: str = ""

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        return self.status in _FINISHED


@dataclasses.dataclass(frozen=True, slots=True)
class Past:
    """What is remembered from one look to the next; nothing is lost when it is.

    Args:
        status: of our submission; RUNNING for all that have not ended, empty when there was none.
        since: when that was first seen.
        failures: starts in a row that failed, or after which the coordinator stayed silent.
        rests_until: no new start before that.
        trouble: why the last start failed, for people.
    """

    status: str = ""
    since: float = 0.0
    failures: int = 0
    rests_until: float = 0.0
    trouble: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """All that a decision looks at.

    Args:
        start: as it is to be.
        jobs: submissions that Ray's head has, of anybody.
        silent_seconds: how long the coordinator has not answered; None while it answers.
        now: seconds of any clock that only goes forward.
        past: what the last decision wanted remembered.
    """

    start: Start
    jobs: Collection[Job]
    silent_seconds: float | None
    now: float
    past: Past = Past()


class Move(enum.StrEnum):
    """What is done with a submission."""

    NOTHING = "nothing"
    SUBMIT = "submit"
    STOP = "stop"
    DELETE = "delete"


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """What is to be done now; what comes after it follows from the next look.

    Args:
        move: what.
        id: of the submission.
        past: to be remembered once it is done.
        trouble: why the coordinator does not answer, for people; empty when the submission does not tell.
    """

    move: Move
    id: str
    past: Past
    trouble: str = ""


def decide(seen: Seen) -> Step:
    """Say what is to be done now.

    Submissions of other settings go first: one that runs would replace what ours has made, and one that has ended would
    pass for ours when these settings come back.
    """
    others = sorted((job for job in seen.jobs if _is_other(job, seen.start)), key=lambda job: job.finished)
    if others:
        move = Move.DELETE if others[0].finished else Move.STOP
        return Step(move, others[0].id, seen.past, "is replaced by one with other settings")
    mine = next((job for job in seen.jobs if job.id == seen.start.id), None)
    past = _remembered(seen, mine)
    seen = dataclasses.replace(seen, past=past)
    if mine is None:
        return _absent(seen)
    if not mine.finished:
        return _starting(seen)
    if mine.status == "SUCCEEDED":
        return _started(seen)
    stopped_here = mine.status == "STOPPED" and past.trouble
    return _again(seen, past.trouble if stopped_here else f"its start failed: {words_of(mine)}")


def words_of(job: Job) -> str:
    """Say why a submission failed, in words that carry no secret: ours, else the first of Ray's; never its output."""
    lines = job.message.splitlines()
    own = [line.removeprefix(_OWN_WORDS) for line in lines if line.startswith(_OWN_WORDS)]
    first = lines[0].partition(", last available")[0] if lines else ""
    words = own[-1] if own else first or job.status.lower()
    words = "".join(c if c.isprintable() else "?" for c in words[:_MAX_WORDS])
    return _URL.sub(lambda found: redact(found[0]), words)


def _is_other(job: Job, start: Start) -> bool:
    return job.id.startswith(ID_PREFIX) and job.id != start.id


def _remembered(seen: Seen, mine: Job | None) -> Past:
    """Take down what our submission does, and forget failures when the coordinator answers."""
    status = "" if mine is None else mine.status if mine.finished else "RUNNING"
    past = seen.past
    if status != past.status:
        past = dataclasses.replace(past, status=status, since=seen.now)
    if status == "SUCCEEDED" and seen.silent_seconds is None:
        past = dataclasses.replace(past, failures=0, rests_until=0.0, trouble="")
    return past


def _absent(seen: Seen) -> Step:
    trouble = seen.past.trouble or "is being started in Ray"
    move = Move.SUBMIT if seen.now >= seen.past.rests_until else Move.NOTHING
    return Step(move, seen.start.id, seen.past, trouble)


def _starting(seen: Seen) -> Step:
    if seen.now - seen.past.since <= START_SECONDS:
        return Step(Move.NOTHING, seen.start.id, seen.past, seen.past.trouble or "is being started in Ray")
    past = dataclasses.replace(seen.past, trouble=f"its start took longer than {START_SECONDS:.0f} s")
    return Step(Move.STOP, seen.start.id, past, past.trouble)


def _started(seen: Seen) -> Step:
    """It started; whether it is started again depends on whether anybody hears from it."""
    silent = min(seen.silent_seconds or 0.0, seen.now - seen.past.since)
    if silent <= SILENT_SECONDS:
        return Step(Move.NOTHING, seen.start.id, seen.past)
    return _again(seen, "")


def _again(seen: Seen, trouble: str) -> Step:
    """Remove our submission, and make room for the next one after a pause that grows."""
    failures = seen.past.failures + 1
    pause = min(_MOST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** min(failures - 1, 16))
    past = dataclasses.replace(seen.past, failures=failures, rests_until=seen.now + pause, trouble=trouble)
    return Step(Move.DELETE, seen.start.id, past, trouble)
