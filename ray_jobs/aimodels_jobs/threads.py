"""Blocking calls beside an event loop, in a pool of their own with a bounded number of threads."""

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """A pool for the blocking ports: sources and stores.

    Args:
        most: threads at once; further calls wait.
    """

    def __init__(self, most: int = 32) -> None:
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="aimodels")

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` in a thread and wait for it."""
        call = functools.partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def close(self) -> None:
        """Let running calls end on their own; calls that have not begun are dropped."""
        self._pool.shutdown(wait=False, cancel_futures=True)
