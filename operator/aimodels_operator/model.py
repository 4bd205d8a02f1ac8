"""What is to be done about one Model: `decide(observed) -> writes`. Level-triggered and pure.

The status of the object is the only memory that outlives a process; the coordinator says what it works on; everything
else is looked at anew. How a status is rendered is in `status`; who carries writes out is `reconcile`.
"""

import dataclasses
import datetime
import hashlib
from typing import Any

from aimodels_core import names
from aimodels_core.api import FAILURES, CatalogSource, ModelObject, Phase, Reason, UploadSource, UrlSource
from aimodels_core.errors import UsageError
from aimodels_core.messages import PublicationState, Published, Stage, Trouble, Want
from aimodels_operator import events, status, wording
from aimodels_operator.readings import Reading
from aimodels_operator.status import Told
from aimodels_operator.writes import Again, PatchStatus, PutWant, ReadBack, Remove, SetFinalizers, Write

PATIENCE = datetime.timedelta(minutes=10)
"""A publication that has failed for longer than this shows Failed (design 2.1)."""
LOOK_EVERY = datetime.timedelta(seconds=60)
"""A changed or later created Secret, or a want that got lost, is seen within this time."""


@dataclasses.dataclass(frozen=True, slots=True)
class Credential:
    """A token read from a Secret, or why there is none.

    Args:
        token: never logged; empty when there is none.
        trouble: what to do about it, naming the Secret; empty when there is a token.
    """

    token: str = dataclasses.field(default="", repr=False)
    trouble: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Sent:
    """What the coordinator was last told of a model.

    Args:
        epoch: of the coordinator that was told.
        spec_hash: of the want.
        token_hash: of the credential; the token itself is not kept.
    """

    epoch: str
    spec_hash: str
    token_hash: str

    @classmethod
    def of(cls, want: Want, epoch: str) -> "Sent":
        """Describe a want that was sent."""
        return cls(epoch, want.spec_hash, hashlib.sha256(want.credential.encode()).hexdigest())


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """How the coordinator is doing.

    Args:
        epoch: of its last snapshot; empty before the first.
        silent_since: when it stopped answering; None while it answers.
        trouble: why it does not answer.
        holder: who writes to the store, when it is not this coordinator.
    """

    epoch: str = ""
    silent_since: datetime.datetime | None = None
    trouble: str = ""
    holder: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Observed:
    """All that a decision looks at.

    Args:
        model: the object.
        now: aware.
        link: how the coordinator is doing.
        publication: what the coordinator says of the model's uid.
        credential: of the Secret that the source names; None when it names none.
        sent: what the coordinator was last told.
        refused: why it did not take the last want.
        removed: it has removed the model.
        remove_trouble: why it could not.
        reading: what reading the artifact back has shown; None where no registry is read.
        node_cache_bytes: what the cache of a node may hold; 0 where that does not matter.
    """

    model: ModelObject
    now: datetime.datetime
    link: Link
    publication: PublicationState | None = None
    credential: Credential | None = None
    sent: Sent | None = None
    refused: str = ""
    removed: bool = False
    remove_trouble: str = ""
    reading: Reading | None = None
    node_cache_bytes: int = 0


def is_wanted(model: ModelObject) -> bool:
    """Whether the coordinator should have its want: it is to be published, and has neither succeeded nor failed."""
    done = model.deleting or status.is_ready(model) or status.has_failed_for_good(model)
    return isinstance(model.source, UrlSource) and not done


def needs_secret(model: ModelObject) -> str:
    """Name the Secret whose content a decision about this object wants; empty for none."""
    return model.source.secret_name if isinstance(model.source, UrlSource) and is_wanted(model) else ""


def decide(seen: Observed) -> list[Write]:
    """Say what is to be done now."""
    model = seen.model
    if model.deleting:
        return _deleting(seen)
    match model.source:
        case UsageError() as error:
            return _show(seen, Told(Reason.UNSUPPORTED_SOURCE, error.message, stage=Stage.FAILED))
        case UploadSource():
            words = "uploads are not taken by this version of ai-models"
            return _show(seen, Told(Reason.PENDING, words))
        case CatalogSource():
            words = "catalogs of other clusters are not read by this version of ai-models"
            return _show(seen, Told(Reason.CATALOG_SOURCE_NOT_READY, words))
        case UrlSource() as source:
            if names.FINALIZER not in model.finalizers:
                return [SetFinalizers((*model.finalizers, names.FINALIZER))]
            return _url(seen, source)


def want_of(model: ModelObject, source: UrlSource, token: str) -> Want:
    """Make the want of a model."""
    return Want(
        uid=model.uid,
        name=model.path,
        generation=model.generation,
        url=source.url,
        scope=model.scope,
        revision=status.kept_revision(model),
        credential=token,
        retry=model.retry,
        created=model.created_at,
    )


def _deleting(seen: Observed) -> list[Write]:
    model = seen.model
    if names.FINALIZER not in model.finalizers:
        return []
    if seen.removed:
        return [SetFinalizers(tuple(name for name in model.finalizers if name != names.FINALIZER))]
    words = seen.remove_trouble or "stops the publication and removes it from the store"
    writes = _show(seen, Told(Reason.PENDING, words, revision=status.kept_revision(model)))
    return [*writes, Remove(model.uid, model.scope)]


def _url(seen: Observed, source: UrlSource) -> list[Write]:
    model = seen.model
    credential = seen.credential or Credential()
    want = want_of(model, source, credential.token)
    state = seen.publication
    current = state if state is not None and state.spec_hash == want.spec_hash else None
    if current is not None and current.stage is Stage.READY and current.published is not None:
        return _published(seen, current, current.published)
    if current is None and status.is_ready(model):
        return _patch(seen, status.repaired(model, Phase.READY))
    if current is None and status.has_failed_for_good(model):
        return _patch(seen, status.repaired(model, Phase.FAILED))
    again: list[Write] = [Again(LOOK_EVERY)] if source.secret_name or current is None else []
    if credential.trouble and (current is None or not _works(current)):
        told = Told(Reason.PUBLICATION_FAILED, credential.trouble, stage=Stage.WAITING, revision=want.revision)
        return [*_show(seen, told), *again]
    told, flips_in = _told(seen, current, source, want.revision)
    put: list[Write] = [PutWant(want)] if _must_put(seen, want, current, credential) else []
    if flips_in is not None:
        again.append(Again(flips_in))
    return [*put, *_show(seen, told), *again]


def _published(seen: Observed, state: PublicationState, published: Published) -> list[Write]:
    """Decide about a model that the coordinator has published: it is Ready once the registry serves it."""
    model, digest = seen.model, published.digest
    if 0 < seen.node_cache_bytes < published.size_bytes and status.ready_digest(model) != digest:
        words = wording.of_no_room(published.size_bytes, seen.node_cache_bytes)
        return _show(seen, Told(Reason.INSUFFICIENT_STORAGE, words, state, Stage.WAITING, state.revision))
    if seen.reading is None or seen.reading.of(digest).good or status.ready_digest(model) == digest:
        return _patch(seen, status.ready(model, state, seen.now))
    found = seen.reading.of(digest)
    wait = found.wait(seen.now)
    due: list[Write] = [ReadBack(model.scope, digest)] if wait <= datetime.timedelta() else []
    again: list[Write] = [] if due else [Again(wait)]
    if found.trouble is None:
        told = Told(Reason.PUBLISHING, wording.READS_BACK, state, Stage.COMMITTING, state.revision)
        return [*due, *_show(seen, told), *again]
    told, flips_in = _hindered(seen, found.shown(state), found.trouble, state.revision)
    again += [Again(flips_in)] if flips_in is not None else []
    return [*due, *_show(seen, told), *again]


def _works(state: PublicationState) -> bool:
    return state.stage.running and state.stage is not Stage.WAITING


def _must_put(seen: Observed, want: Want, current: PublicationState | None, credential: Credential) -> bool:
    """Say whether the coordinator must be told: it lacks this want, or the credential may be another one."""
    if credential.trouble or not seen.link.epoch or seen.link.silent_since is not None:
        return False
    told = Sent.of(want, seen.link.epoch) == seen.sent
    if current is None:
        return not told
    finished = current.stage is Stage.FAILED and current.next_retry_at is None
    return bool(want.credential) and not told and not finished


def _told(
    seen: Observed, current: PublicationState | None, source: UrlSource, revision: str
) -> tuple[Told, datetime.timedelta | None]:
    """Say what the status should tell, and when it would tell something else though nothing happens."""
    if seen.link.silent_since is not None:
        return _silent(seen, current, revision)
    if current is None:
        if seen.refused:
            return Told(Reason.PUBLISHING, f"coordinator: {seen.refused}", None, Stage.WAITING, revision), None
        reason = Reason.PUBLISHING if status.has_begun(seen.model) else Reason.PENDING
        return Told(reason, "goes to the coordinator", None, Stage.QUEUED, revision), None
    revision = current.revision or revision
    trouble = current.trouble
    if current.stage is Stage.FAILED:
        final = current.next_retry_at is None
        words = wording.of_failure(trouble, seen.model, source) if trouble is not None else "failed"
        stage = Stage.FAILED if final else Stage.WAITING
        return Told(_reason(trouble), words, current, stage, revision), None
    if trouble is not None and _hinders(current):
        return _hindered(seen, current, trouble, revision)
    words = wording.OF_STAGES.get(current.stage, "")
    if seen.link.holder and current.stage is Stage.QUEUED:
        words = f"waits for the store, which {seen.link.holder} writes to"
    return Told(Reason.PUBLISHING, words, current, current.stage, revision), None


def _hinders(state: PublicationState) -> bool:
    """Whether the last trouble is still what people should know: waiting, or trying again and not moving yet."""
    if state.next_retry_at is not None:
        return True
    return state.first_failed_at is not None and state.stage not in (Stage.MOVING, Stage.COMMITTING)


def _hindered(
    seen: Observed, state: PublicationState, trouble: Trouble, revision: str
) -> tuple[Told, datetime.timedelta | None]:
    reason = _reason(trouble)
    if reason is Reason.INSUFFICIENT_STORAGE:
        return Told(reason, trouble.message, state, Stage.WAITING, revision), None
    stage = Stage.WAITING if state.next_retry_at is not None else state.stage
    if state.first_failed_at is None:
        return Told(Reason.PUBLISHING, trouble.message, state, stage, revision), None
    first = datetime.datetime.fromtimestamp(state.first_failed_at, datetime.UTC)
    left = PATIENCE - (seen.now - first)
    if left <= datetime.timedelta():
        return Told(reason, trouble.message, state, Stage.WAITING, revision), None
    return Told(Reason.PUBLISHING, trouble.message, state, stage, revision), left


def _silent(seen: Observed, current: PublicationState | None, revision: str) -> tuple[Told, datetime.timedelta | None]:
    """Say that the coordinator does not answer; numbers of its last snapshot are not shown as if they were new."""
    since = seen.link.silent_since or seen.now
    left = PATIENCE - (seen.now - since)
    words = f"coordinator: {seen.link.trouble}"
    known = current.revision if current is not None and current.revision else revision
    if left <= datetime.timedelta():
        return Told(Reason.PUBLICATION_FAILED, words, None, Stage.WAITING, known), None
    return Told(Reason.PUBLISHING, words, None, Stage.WAITING, known), left


def _reason(trouble: Trouble | None) -> Reason:
    """The reason of a failure; one that is not of the closed set is a PublicationFailed."""
    failures = {reason.value: reason for reason in FAILURES}
    return failures.get(trouble.reason, Reason.PUBLICATION_FAILED) if trouble is not None else Reason.PUBLICATION_FAILED


def _show(seen: Observed, told: Told) -> list[Write]:
    return _patch(seen, status.unfinished(seen.model, told, seen.now))


def _patch(seen: Observed, new: dict[str, Any]) -> list[Write]:
    old = seen.model.status
    patch = status.difference(old, new)
    if not patch:
        return []
    return [PatchStatus(patch, status.urgency(old, patch)), *events.of_change(seen.model, new)]
