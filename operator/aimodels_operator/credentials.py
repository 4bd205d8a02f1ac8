"""Tokens of sources: read from Secrets when a decision needs one, kept for less than a minute, never shown."""

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from aimodels_core.api import ModelObject
from aimodels_core.errors import ClusterUnavailable
from aimodels_core.names import TOKEN_KEYS
from aimodels_operator.model import Credential, needs_secret

_MAX_TOKEN_CHARS = 8192
_FRESH_SECONDS = 50.0
_KEPT_MOST = 10_000


class Secrets(Protocol):
    """Where Secrets are read."""

    async def read_secret(self, namespace: str, name: str) -> Mapping[str, str]:
        """Read the values of a Secret.

        Raises:
            ClusterUnavailable: codes NotFound, Forbidden among others.
        """
        ...


class Tokens:
    """Reads the token that a Model names.

    Args:
        secrets: where Secrets are read.
        clock: seconds, monotonic.
    """

    def __init__(self, secrets: Secrets, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._secrets = secrets
        self._clock = clock
        self._kept: dict[str, tuple[str, float, Credential]] = {}

    async def of(self, model: ModelObject) -> Credential | None:
        """Return the token that a decision about this object wants; None when it wants none.

        Raises:
            ClusterUnavailable: the API server does not answer.
        """
        name = needs_secret(model)
        if not name:
            self._kept.pop(model.uid, None)
            return None
        kept = self._kept.get(model.uid)
        if kept is not None and kept[0] == name and self._clock() - kept[1] < _FRESH_SECONDS:
            return kept[2]
        found = await self._read(model.namespace, name)
        if len(self._kept) >= _KEPT_MOST:
            self._kept.pop(next(iter(self._kept)))
        self._kept[model.uid] = (name, self._clock(), found)
        return found

    def forget(self, uid: str) -> None:
        """Read anew the next time, or drop what belongs to an object that is gone."""
        self._kept.pop(uid, None)

    async def _read(self, namespace: str, name: str) -> Credential:
        keys = ", ".join(TOKEN_KEYS)
        try:
            values = await self._secrets.read_secret(namespace, name)
        except ClusterUnavailable as error:
            if error.code == "NotFound":
                return Credential(
                    trouble=f"Secret {namespace}/{name}: not found: make it, with the token in key {keys}"
                )
            if error.code == "Forbidden":
                words = "ai-models may not get it: its ClusterRole must allow get on secrets"
                return Credential(trouble=f"Secret {namespace}/{name}: {words}")
            raise
        for key in TOKEN_KEYS:
            token = values.get(key, "").strip()
            if token and len(token) <= _MAX_TOKEN_CHARS and all(0x21 <= ord(c) <= 0x7E for c in token):
                return Credential(token=token)
        return Credential(trouble=f"Secret {namespace}/{name}: want a token of visible ASCII characters in key {keys}")
