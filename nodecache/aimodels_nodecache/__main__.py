"""`python3 -m aimodels_nodecache csi`: the CSI driver of this node, with its settings in the environment.

0 asked to stop; 1 broken; 2 wrong command or settings.
"""

import asyncio
import logging
import os
import sys

from aimodels_core import serving
from aimodels_core.errors import AiModelsError, UsageError
from aimodels_nodecache import csi_server
from aimodels_nodecache.settings import CsiSettings, from_env

log = logging.getLogger("aimodels_nodecache")

EXIT_DONE, EXIT_BROKEN, EXIT_USAGE = 0, 1, 2


async def _run(settings: CsiSettings) -> None:
    await csi_server.serve(settings, serving.stop_event())


def _settings(words: list[str]) -> CsiSettings:
    if words != ["csi"]:
        raise UsageError(f"command: want csi, got {' '.join(words)[:80]!r}")
    return from_env(os.environ)


def main(words: list[str]) -> int:
    """Run a process of the node; returns the exit code."""
    try:
        settings = _settings(words)
        serving.log_json(settings.log_level, quiet=("aiohttp", "grpc"))
        asyncio.run(_run(settings))
    except UsageError as error:
        print(f"error: {error.message}", file=sys.stderr)  # noqa: T201 - logging may not be set up yet
        return EXIT_USAGE
    except AiModelsError as error:
        log.critical("driver ended", extra={"error": error.code, "detail": error.message})
        return EXIT_BROKEN
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
