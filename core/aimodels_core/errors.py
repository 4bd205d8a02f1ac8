"""Every error raised on purpose, as one tree.

    AiModelsError
    ├── PermanentError            a retry cannot help
    │   ├── UsageError            the command or a setting is wrong
    │   ├── UnsupportedSource     a URL form or host that is not served
    │   ├── SourceNotFound        repository or revision missing (for a caller that may see it)
    │   ├── SourceDenied          gated, private, disabled, bad token: access must be granted first
    │   ├── NoWeights             nothing in the source that can be published
    │   ├── UnsafeContent         a path, header, index or pointer that must not be published
    │   ├── DigestMismatch        bytes differ from the digest their source publishes
    │   ├── PlanRefused           it cannot be published as planned (too many files, too large)
    │   ├── ArtifactInvalid       a manifest or config that breaks its specification
    │   ├── NotPublished          no such model in the store
    │   └── StoreUnsafe           the store lacks a property that correctness needs
    └── TransientError            a retry may help
        ├── SourceUnavailable     5xx, time-out, DNS, reset, a short or wrong answer
        ├── RateLimited           the source asked to wait
        ├── TicketExpired         a signed URL is not accepted any more
        ├── StoreUnavailable      the store does not answer or answers 5xx
        ├── StoreFull             no space left, quota reached
        │   └── CapacityReached   the plan has no place within the capacity limit now
        ├── WriterBusy            another process is the writer of this store
        ├── MoverLost             a mover died or stopped answering
        ├── ClusterUnavailable    the Kubernetes API does not answer, or refuses: codes Conflict, NotFound, Forbidden, …
        ├── CoordinatorUnavailable  the coordinator does not answer, or cannot do it now
        ├── LeadershipLost        another replica may be the leader
        └── Cancelled             the caller asked to stop

`reason` is the closed set that status shows (design 2.1); `code` says more precisely what happened.
An error crosses process borders as `ErrorInfo`. Messages carry no secret and no signed URL.
"""

import dataclasses
from typing import ClassVar


class AiModelsError(Exception):
    """The root: anything ai-models raises on purpose.

    Args:
        message: thing first, then what was wanted and what came; no secrets, no signed URLs.
        code: CamelCase detail of the reason, the class name by default.
    """

    reason: ClassVar[str] = "PublicationFailed"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).__name__

    def __reduce__(self) -> tuple[object, ...]:
        """Keep every field when the error is pickled between processes."""
        return (_rebuild, (type(self), self.message, self.__dict__))


def _rebuild(cls: type["AiModelsError"], message: str, fields: dict[str, object]) -> "AiModelsError":
    error = cls.__new__(cls)
    Exception.__init__(error, message)
    error.__dict__.update(fields)
    return error


class PermanentError(AiModelsError):
    """A retry of the same request cannot help."""


class TransientError(AiModelsError):
    """A retry may help; `retry_after_seconds` is what the other side asked for, if it did."""

    retryable = True

    def __init__(self, message: str, *, code: str = "", retry_after_seconds: float | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after_seconds = retry_after_seconds


class UsageError(PermanentError):
    """The command line or a setting is wrong."""


class UnsupportedSource(PermanentError):
    """The source URL has a form or a host that is not served."""

    reason = "UnsupportedSource"


class SourceNotFound(PermanentError):
    """The repository or revision does not exist for a caller that would be allowed to see it."""


class SourceDenied(PermanentError):
    """Access must be granted first: codes Gated, PrivateOrMissing, Disabled, TokenRefused, ProxyRefused."""


class NoWeights(PermanentError):
    """The source has nothing that can be published; the message lists each format's reason."""


class UnsafeContent(PermanentError):
    """A path, header, index or pointer that must not be published.

    Args:
        path: the offending path within the model.
        code: such as LfsPointer, DuplicateTensor, UnsafePath, ContentTypeMismatch.
        detail: what was wanted and what came.
    """

    def __init__(self, path: str, *, code: str, detail: str) -> None:
        super().__init__(f"{path}: {code}: {detail}", code=code)
        self.path = path
        self.detail = detail


class DigestMismatch(PermanentError):
    """Bytes differ from the digest that their source publishes."""

    def __init__(self, path: str, *, want: str, got: str) -> None:
        super().__init__(f"{path}: bytes differ from the published digest: want {want}, got {got}")
        self.path = path
        self.want = want
        self.got = got


class PlanRefused(PermanentError):
    """The model cannot be published as planned; the message names the limit and the count."""


class ArtifactInvalid(PermanentError):
    """A manifest or a config breaks its specification."""

    reason = "ManifestInvalid"


class NotPublished(PermanentError):
    """No model of that name is in the store."""


class StoreUnsafe(PermanentError):
    """The store lacks a property that correctness needs, or refuses to be written."""


class SourceUnavailable(TransientError):
    """The source does not answer, or answers something that is not what was asked for."""


class RateLimited(TransientError):
    """The source asked to wait; `retry_after_seconds` says how long."""


class TicketExpired(TransientError):
    """A signed URL is not accepted any more; a new one is needed."""


class StoreUnavailable(TransientError):
    """The store does not answer, or answers with an error of its own."""


class StoreFull(TransientError):
    """No space left in the store, or its quota is reached."""

    reason = "InsufficientStorage"


class CapacityReached(StoreFull):
    """The plan has no place within the store's capacity limit now."""


class WriterBusy(TransientError):
    """Another process is the writer of this store; the message names it."""


class MoverLost(TransientError):
    """A mover died or stopped answering."""


class ClusterUnavailable(TransientError):
    """The Kubernetes API does not answer, or refuses: codes Conflict, NotFound, Forbidden, Refused, Unanswered."""


class CoordinatorUnavailable(TransientError):
    """The coordinator does not answer, or cannot do now what it was asked for."""


class LeadershipLost(TransientError):
    """This replica cannot prove that it is still the leader, so it must not write."""


class Cancelled(TransientError):
    """The caller asked to stop."""


@dataclasses.dataclass(frozen=True, slots=True)
class ErrorInfo:
    """An error as data, for reports that cross a process border.

    Args:
        kind: class name within this module.
        message: the error's message.
        code: the error's code.
        retry_after_seconds: what the other side asked for, if it did.
    """

    kind: str
    message: str
    code: str
    retry_after_seconds: float | None = None

    @classmethod
    def of(cls, error: AiModelsError) -> "ErrorInfo":
        """Describe an error of this tree."""
        return cls(type(error).__name__, error.message, error.code, getattr(error, "retry_after_seconds", None))

    def to_error(self) -> AiModelsError:
        """Make an error of the same class again; an unknown class becomes a TransientError."""
        found = globals().get(self.kind)
        cls = found if isinstance(found, type) and issubclass(found, AiModelsError) else TransientError
        fields: dict[str, object] = {"message": self.message, "code": self.code}
        if issubclass(cls, TransientError):
            fields["retry_after_seconds"] = self.retry_after_seconds
        return _rebuild(cls, self.message, fields)
