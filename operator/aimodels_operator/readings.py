"""What reading a published artifact back through the registry has shown so far, and when it is due again. Pure.

Kept in memory only: a model that its status calls Ready is not read back again.
"""

import dataclasses
import datetime

from aimodels_core.errors import AiModelsError
from aimodels_core.messages import PublicationState, Trouble


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """One artifact and the registry.

    Args:
        digest: of the manifest that was read last; empty before the first.
        trouble: why it cannot be read; None when it can.
        failures: in a row.
        failing_since: of the first of them.
        next_at: when it is tried again.
    """

    digest: str = ""
    trouble: Trouble | None = None
    failures: int = 0
    failing_since: datetime.datetime | None = None
    next_at: datetime.datetime | None = None

    def of(self, digest: str) -> "Reading":
        """What is known of this artifact: nothing, when another one was read."""
        return self if self.digest == digest else Reading()

    @property
    def good(self) -> bool:
        """Whether it can be read."""
        return bool(self.digest) and self.trouble is None

    def failed(self, digest: str, error: AiModelsError, now: datetime.datetime, pause_seconds: float) -> "Reading":
        """What is known after a failure that happened now."""
        known = self.of(digest)
        trouble = Trouble("PublicationFailed", error.code, f"registry: {error.message}", retryable=True)
        since = known.failing_since or now
        return Reading(digest, trouble, known.failures + 1, since, now + datetime.timedelta(seconds=pause_seconds))

    def wait(self, now: datetime.datetime) -> datetime.timedelta:
        """How long to wait before it is read; nothing or less means now."""
        return datetime.timedelta() if self.next_at is None else self.next_at - now

    def shown(self, state: PublicationState) -> PublicationState:
        """The publication as people should see it while it cannot be read: waiting for the next try."""
        return dataclasses.replace(
            state,
            trouble=self.trouble,
            first_failed_at=self.failing_since.timestamp() if self.failing_since else None,
            next_retry_at=self.next_at.timestamp() if self.next_at else None,
        )
