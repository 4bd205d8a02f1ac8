"""Blocking calls beside an event loop, in a pool of their own with a bounded number of threads."""

import asyncio
import functools
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from aimodels_core.errors import Cancelled

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 8
"""How many small requests one caller sends at a time."""


class Pause:
    """A sleep for threads that can be ended for all of them at once."""

    def __init__(self) -> None:
        self._ended = threading.Event()

    def sleep(self, seconds: float) -> None:
        """Wait.

        Raises:
            Cancelled: `end` was called.
        """
        if self._ended.wait(seconds):
            raise Cancelled("wait: cancelled")

    def end(self) -> None:
        """End every wait, now and later."""
        self._ended.set()


def each(call: Callable[[T], R], items: Iterable[T], *, at_once: int = AT_ONCE) -> list[R]:
    """Call for each item, several at a time; results in order, the first error once all that began have ended.

    >>> each(str, [1, 2])
    ['1', '2']
    """
    todo = list(items)
    if len(todo) <= 1:
        return [call(item) for item in todo]
    with ThreadPoolExecutor(min(at_once, len(todo)), thread_name_prefix="aimodels-each") as pool:
        return list(pool.map(call, todo))


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

    async def to_end(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Do as `run`; when cancelled, wait for the call's end all the same: it has no effect after this returned."""
        call = asyncio.ensure_future(self.run(function, *args, **kwargs))
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            await asyncio.wait({call})
            raise

    def close(self) -> None:
        """Let running calls end on their own; calls that have not begun are dropped."""
        self._pool.shutdown(wait=False, cancel_futures=True)
