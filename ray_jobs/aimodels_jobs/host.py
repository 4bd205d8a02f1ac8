"""`python -m aimodels_jobs.host …`: have the coordinator run as a detached actor of a Ray cluster.

What a submission to the cluster's Jobs API runs. Running it again changes nothing; when the settings differ, the actor
is stopped and replaced. Settings carry paths of secrets, never secrets. What the actor does is in `hosting`.
"""

import contextlib
import sys
from collections.abc import Sequence

from aimodels_core import serving
from aimodels_core.errors import AiModelsError, UsageError
from aimodels_jobs.host_options import HostOptions, parse
from aimodels_jobs.hosting import Host

ACTOR_NAME = "coordinator"
EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_TEMPORARY = 0, 1, 2, 75


def main(argv: Sequence[str] | None = None) -> int:
    """Make sure that the coordinator runs in the cluster; returns an exit code as `ai-models` does."""
    try:
        said = _carry_out(parse(sys.argv[1:] if argv is None else argv))
    except UsageError as error:
        sys.stderr.write(f"coordinator: {error.message}\n")
        return EXIT_USAGE
    except AiModelsError as error:
        sys.stderr.write(f"coordinator: {error.message}\n")
        return EXIT_TEMPORARY if error.retryable else EXIT_FAILED
    sys.stdout.write(f"coordinator {said}\n")
    return EXIT_DONE


def _carry_out(options: HostOptions) -> str:
    from aimodels_jobs.fleet.cluster import Ray
    from aimodels_jobs.fleet.detached import Detached

    serving.log_json(options.settings.log_level)
    place = Detached(Ray(options.ray_address), ACTOR_NAME, on=dict(options.on))
    with contextlib.closing(place):
        if options.remove:
            place.remove()
            return "is gone"
        port = place.ensure(Host, options.settings, ready_seconds=options.ready_seconds)
        return f"serves on port {port}"


if __name__ == "__main__":
    sys.exit(main())
