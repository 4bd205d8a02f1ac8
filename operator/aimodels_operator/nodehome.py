"""The Secret of what runs on nodes, in their namespace: a copy of Ray's token and of the authorities of our servers."""

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aimodels_core import names
from aimodels_core.errors import ClusterUnavailable
from aimodels_operator.household import SecretStore
from aimodels_operator.kube import texts_of

log = logging.getLogger(__name__)

LOOK_SECONDS = 15.0
_LABELS = {"heritage": "deckhouse", "module": "ai-models", "app.kubernetes.io/name": "ai-models"}


class NodeHome:
    """Keeps the Secret as its sources are.

    Args:
        store: the API server.
        check: the fence; raises LeadershipLost.
        values: what should be in it, now; a missing value leaves the Secret alone.
        sleep: waits.
    """

    def __init__(
        self,
        store: SecretStore,
        check: Callable[[], None],
        values: Callable[[], dict[str, str]],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store, self._check, self._values, self._sleep = store, check, values, sleep

    async def keep(self) -> None:
        """Look after it until cancelled.

        Raises:
            LeadershipLost.
        """
        while True:
            try:
                await self.look()
            except ClusterUnavailable as error:
                log.warning("secret of nodes not looked after", extra={"error": error.message})
            await self._sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Look once, and write it when it differs.

        Raises:
            ClusterUnavailable: look again.
            LeadershipLost.
        """
        wanted = self._values()
        if not all(wanted.values()):
            return
        found = await self._store.get_secret(names.NODE_NAMESPACE, names.NODE_SECRET)
        if found is not None and texts_of(found) == wanted:
            return
        meta = {"name": names.NODE_SECRET, "namespace": names.NODE_NAMESPACE, "labels": _LABELS}
        raw: dict[str, Any] = found or {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": meta}
        data = {key: base64.b64encode(value.encode()).decode("ascii") for key, value in wanted.items()}
        self._check()
        await self._store.put_secret({**raw, "data": data})
        log.info("secret of nodes written")
