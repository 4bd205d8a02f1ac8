"""What a status says to people about a publication, where the coordinator's own words are not enough. Pure."""

from aimodels_core.api import ModelObject, UrlSource
from aimodels_core.messages import Stage, Trouble
from aimodels_core.units import human_bytes

OF_STAGES = {
    Stage.QUEUED: "waits for its turn",
    Stage.RESOLVING: "asks the source for its revision and files",
    Stage.PLANNING: "reads headers and plans the transfer",
    Stage.MOVING: "moves the files",
    Stage.COMMITTING: "writes the manifest",
    Stage.WAITING: "waits for the next attempt",
}
READS_BACK = "reads it back through the registry"


def of_failure(trouble: Trouble, model: ModelObject, source: UrlSource) -> str:
    """Add to the words of a denied access which Secret was used, or how one is named."""
    if trouble.code not in ("Gated", "PrivateOrMissing", "TokenRefused", "SourceDenied"):
        return trouble.message
    if source.secret_name:
        return f"{trouble.message} (with the token of Secret {model.namespace}/{source.secret_name})"
    if model.kind.namespaced:
        return f"{trouble.message} (no token was sent: spec.source.authSecretRef names none)"
    return (
        f"{trouble.message} (with the administrator's token, sources.huggingFace.credentialsSecretName, if it is set)"
    )


def of_no_room(size_bytes: int, cache_bytes: int) -> str:
    """Say that no node may hold a model, and what to change."""
    return (
        f"the model has {human_bytes(size_bytes)}, the cache of a node may hold {human_bytes(cache_bytes)} "
        "(delivery.nodeCacheSize)"
    )
