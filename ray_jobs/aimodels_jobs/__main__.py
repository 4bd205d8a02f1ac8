"""Entry point of `ai-models`: parse, run, turn the end into an exit code.

0 done; 1 failed for good; 2 usage; 3 verify found a difference; 75 temporary, after the retry budget; 130 and 143 on
signals.
"""

import logging
import os
import sys
from collections.abc import Callable, Sequence

from aimodels_core.errors import AiModelsError, UsageError
from aimodels_jobs.cli import arguments, display

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_DIFFERENT = 3
EXIT_TEMPORARY = 75
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    command = arguments.parse(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(level=logging.CRITICAL, stream=sys.stderr)
    if command.verbose:
        display.log_to_stderr()
    try:
        return _runner(command)(command, os.environ)
    except UsageError as error:
        display.complain(error)
        return EXIT_USAGE
    except AiModelsError as error:
        display.complain(error)
        return EXIT_TEMPORARY if error.retryable else EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE


def _runner(command: arguments.Command) -> Callable[[arguments.Command, "os._Environ[str]"], int]:
    """Import only what the command needs."""
    name = command.name
    if name in ("plan", "publish"):
        from aimodels_jobs.cli import publish

        return publish.plan if name == "plan" else publish.publish
    if name == "pull" and command.registry.address:
        from aimodels_jobs.cli import pulling

        return pulling.from_registry
    if name == "values":
        from aimodels_jobs.cli import values

        return values.run
    from aimodels_jobs.cli import manage

    return manage.COMMANDS[name]


if __name__ == "__main__":
    sys.exit(main())
