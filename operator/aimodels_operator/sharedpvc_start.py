"""Shared claims as the settings want them: the parts put together."""

from collections.abc import Awaitable, Callable, Iterable

from aimodels_core import hosts
from aimodels_core.errors import UsageError
from aimodels_operator.kube import Kube
from aimodels_operator.kube_claims import ClaimCalls
from aimodels_operator.settings import Settings
from aimodels_operator.sharedpvc_bodies import Puller
from aimodels_operator.sharedpvc_look import Key
from aimodels_operator.sharedpvc_loop import Options, SharedClaims
from aimodels_operator.sharedpvc_use import ClaimName


def shared_claims(
    settings: Settings,
    kube: Kube,
    admit: Callable[[], Awaitable[None]],
    authorities: Callable[[], str],
    claim_name: ClaimName,
    changed: Callable[[Iterable[Key]], None],
) -> SharedClaims:
    """Put the parts together.

    Args:
        settings: of the operator.
        kube: the API server.
        admit: waits for the rate limit and passes the fence.
        authorities: PEM text of the authorities of registry, issuer and store, now; empty while they are not known.
        claim_name: names the claim of a model.
        changed: is told of claims whose Pods should ask again.

    Raises:
        UsageError: an address of the store that is none.
    """
    redirect_url = settings.dmcr_redirect_url
    try:
        port = hosts.origin(redirect_url).port if redirect_url else 0
    except ValueError as error:
        raise UsageError(f"AI_MODELS_DMCR_REDIRECT_URL: {error}") from error

    def puller() -> Puller:
        place = (settings.shared_pvc_image, settings.namespace, settings.dmcr_url)
        return Puller(*place, redirect_url, port, authorities())

    options = Options(settings.shared_pvc_class, settings.shared_pvc_grace_seconds)
    return SharedClaims(ClaimCalls(kube), admit, puller, claim_name, changed, options=options)
