"""Publish with Ray workers that run already: `python -m perf.support.workers '<json>'` prints seconds as JSON.

Starting Ray takes longer than the transfers of a benchmark and is no part of the question, so a small model goes first,
in the same process and through the same movers.
"""

import asyncio
import json
import os
import sys
import time
from typing import Any

from aimodels_jobs.cli import arguments, assembly
from aimodels_jobs.coordinator import Coordinator


async def _publish(coordinator: Coordinator, words: list[str]) -> dict[str, Any]:
    want = assembly.want_of(arguments.parse(words))
    began = time.monotonic()
    await coordinator.put(want)
    state = await coordinator.ended(want.uid)
    if state.published is None:
        raise SystemExit(f"{want.name}: {state.trouble}")
    return {"seconds": time.monotonic() - began, "bytes": state.bytes_transferred, "workers": state.workers}


async def _all(each: list[list[str]]) -> list[dict[str, Any]]:
    """Publish one after another; the options of the first command line hold for all."""
    coordinator, _ = assembly.open_coordinator(arguments.parse(each[0]), os.environ)
    await coordinator.start()
    try:
        await coordinator.own(budget_seconds=30)
        return [await _publish(coordinator, words) for words in each]
    finally:
        await coordinator.close()


def main(words: list[str]) -> int:
    """Run the command lines given as one JSON list of lists, each without the program's name."""
    print(json.dumps(asyncio.run(_all(json.loads(words[0])))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
