"""Asking many that answer at their own pace: nobody waits for the slowest, and nobody is asked twice at a time."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Inquiries(Generic[T]):
    """Questions that are on their way.

    Args:
        patience_seconds: how long a round waits for answers; later ones belong to the round in which they come.
    """

    def __init__(self, patience_seconds: float) -> None:
        self._patience = patience_seconds
        self._asked: dict[str, asyncio.Task[T | None]] = {}

    async def round(self, whom: Iterable[str], ask: Callable[[str], Coroutine[Any, Any, T | None]]) -> dict[str, T]:
        """Ask everyone who is not being asked already; returns the answers that came by now, None left out.

        Args:
            whom: by name.
            ask: ends by itself, sooner or later; None when there was no answer.

        Raises:
            Exception: what `ask` raised.
        """
        for name in whom:
            if name not in self._asked:
                self._asked[name] = asyncio.create_task(ask(name))
        if self._asked:
            await asyncio.wait(self._asked.values(), timeout=self._patience)
        ended = {name: task for name, task in self._asked.items() if task.done()}
        for name in ended:
            del self._asked[name]
        answers = {name: task.result() for name, task in ended.items()}
        return {name: answer for name, answer in answers.items() if answer is not None}
