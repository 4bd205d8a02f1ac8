"""Our webhooks as the leader looks after them: registered, and asked about what nobody asked them about before."""

import asyncio
from collections.abc import Awaitable, Callable

from aimodels_operator import registering, registration
from aimodels_operator.kube import Kube
from aimodels_operator.readmitting import Readmitting
from aimodels_operator.registering import Registering
from aimodels_operator.settings import SHARED_PVC, Settings

_PROBE = "/mutate"


async def keep(
    settings: Settings,
    kube: Kube,
    admit: Callable[[], Awaitable[None]],
    authority: Callable[[], str],
    registered: asyncio.Event,
) -> None:
    """Work until cancelled; nothing to do without a URL of the webhooks.

    Args:
        settings: of the operator.
        kube: the API server.
        admit: waits for the rate limit and passes the fence; raises LeadershipLost.
        authority: PEM of the authority of our servers; empty while there is none.
        registered: is set when the API server knows of them.

    Raises:
        LeadershipLost.
    """
    if not settings.webhook_url:
        return
    answers = registering.over_https(settings.webhook_url.rstrip("/") + _PROBE)
    registers = Registering(kube, admit, settings.namespace, authority, answers, registered=registered)
    readmits = Readmitting(
        kube,
        admit,
        registered,
        shared=settings.delivery_type == SHARED_PVC,
        left_out=registration.left_out(settings.namespace),
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(registers.run())
        group.create_task(readmits.run())
