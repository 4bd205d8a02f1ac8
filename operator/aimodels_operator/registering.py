"""Has the API server send objects to our webhooks, when they answer, and trust whoever they are. See `registration`.

Filled once, it stays: while no webhook answers, objects that name models are refused, not let through without them.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable

import aiohttp

from aimodels_core.errors import ClusterUnavailable
from aimodels_operator import registration
from aimodels_operator.kube import Kube, Raw
from aimodels_operator.pacing import back_off

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""How soon a new authority is followed."""
CHECK_SECONDS = 30.0
"""How soon a configuration that somebody else has changed is put right."""
KEEP_SECONDS = 900.0
"""How long a former authority is trusted: kubelet brings a new certificate to its Pods within two minutes."""
_CALL_SECONDS = 5.0
_GROUP, _RESOURCE = "admissionregistration.k8s.io", "mutatingwebhookconfigurations"

Answers = Callable[[str], Awaitable[bool]]


class Registering:
    """Keeps the configuration of our webhooks.

    Args:
        kube: the API server.
        admit: waits for the rate limit and passes the fence; raises LeadershipLost.
        home: our namespace.
        authority: PEM of the present authority of our servers; empty while there is none.
        answers: whether the webhooks answer, to somebody who trusts only these authorities.
        registered: is set when the API server knows of them.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        kube: Kube,
        admit: Callable[[], Awaitable[None]],
        home: str,
        authority: Callable[[], str],
        answers: Answers,
        *,
        registered: asyncio.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._admit = admit
        self._home = home
        self._authority = authority
        self._answers = answers
        self._registered = registered
        self._clock = clock
        self._present = ""
        self._since = 0.0
        self._said = ""

    async def run(self) -> None:
        """Work until cancelled.

        Raises:
            LeadershipLost.
        """
        failures, looked_at, looked_for = 0, float("-inf"), ""
        while True:
            authority = self._authority()
            due = self._clock() - looked_at >= CHECK_SECONDS or not self._registered.is_set()
            if authority and (due or authority != looked_for):
                try:
                    await self.look(authority)
                    failures, looked_at, looked_for = 0, self._clock(), authority
                except ClusterUnavailable as error:
                    failures += 1
                    self._say(error.message)
            pause = back_off(failures, first_seconds=LOOK_SECONDS, most_seconds=CHECK_SECONDS)
            await asyncio.sleep(pause if failures else LOOK_SECONDS)

    async def look(self, authority: str) -> None:
        """Look once, and write what differs.

        Raises:
            ClusterUnavailable, LeadershipLost.
        """
        if authority != self._present:
            self._present, self._since = authority, self._clock()
        name = registration.CONFIGURATION
        found = await self._kube.call("get", _GROUP, _RESOURCE, name=name)
        held = registration.trusted(found)
        if registration.is_leaving(found):
            self._say("the configuration is being removed")
            return
        if not held and (why := await self._trouble(authority)):
            self._say(why)
            return
        bundle = registration.bundle(authority, held, alone=self._clock() - self._since >= KEEP_SECONDS)
        wanted = registration.webhooks(self._home, bundle)
        if not registration.covers(found.get("webhooks") or [], wanted):
            await self._admit()
            body: Raw = {"metadata": {"resourceVersion": found["metadata"]["resourceVersion"]}, "webhooks": wanted}
            await self._kube.call("patch", _GROUP, _RESOURCE, name=name, body=body)
            log.info("webhooks registered", extra={"authorities": bundle.count("BEGIN CERTIFICATE")})
        self._said = ""
        self._registered.set()

    async def _trouble(self, authority: str) -> str:
        """Say why the webhooks are not registered for the first time yet; empty when they may be."""
        deployment = await self._kube.call("get", "apps", "deployments", self._home, registration.SERVICE)
        if not registration.rolled_out(deployment):
            return f"Deployment {self._home}/{registration.SERVICE} is not rolled out"
        return "" if await self._answers(authority) else f"Service {self._home}/{registration.SERVICE} does not answer"

    def _say(self, words: str) -> None:
        if words != self._said:
            log.warning("webhooks not registered", extra={"why": words})
        self._said = words


def over_https(url: str) -> Answers:
    """Make what asks the webhooks at a URL whether they admit."""

    async def answers(authority: str) -> bool:
        try:
            context = ssl.create_default_context(cadata=authority)
            timeout = aiohttp.ClientTimeout(total=_CALL_SECONDS)
            connector = aiohttp.TCPConnector(ssl=context, force_close=True)
            async with (
                aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False) as session,
                session.get(url, allow_redirects=False) as answer,
            ):
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            log.info("webhooks do not answer", extra={"error": type(error).__name__})
            return False

    return answers
