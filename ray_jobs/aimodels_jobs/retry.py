"""When a publication is tried again: the one retry loop's times (design 2.1). Decides; waits for nothing."""

import dataclasses
import random

from aimodels_core.errors import AiModelsError, SourceDenied, TransientError


@dataclasses.dataclass(frozen=True, slots=True)
class Retry:
    """The times.

    Args:
        first_seconds: before the second attempt; doubled each time, with jitter.
        most_seconds: never longer than this.
        denied_seconds: between attempts while access is denied.
    """

    first_seconds: float = 1.0
    most_seconds: float = 600.0
    denied_seconds: float = 600.0

    def pause(self, attempt: int, error: AiModelsError) -> float | None:
        """Seconds before the next attempt after `attempt` failed; None when the error is terminal."""
        if isinstance(error, SourceDenied):
            return self.denied_seconds
        if not isinstance(error, TransientError):
            return None
        backed_off = min(self.first_seconds * 2.0 ** min(attempt - 1, 20), self.most_seconds)
        jittered = backed_off * random.uniform(0.7, 1.0)  # noqa: S311 - jitter
        return max(jittered, min(error.retry_after_seconds or 0.0, self.most_seconds))
