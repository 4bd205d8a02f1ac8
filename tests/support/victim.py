"""The model that is published while something is killed, and how far the store says that it got."""

from collections.abc import Mapping

from aimodels_core.digest import Digest
from aimodels_jobs import plan
from aimodels_jobs.layout import Store
from tests.support import auditing, weights
from tests.support.hub.repository import Content, File, Repository

MIB = 1024 * 1024
REPOSITORY = "org/model"
FILES = {"model-00001-of-00002.safetensors": 140 * MIB, "model-00002-of-00002.safetensors": 80 * MIB}
"""Three runs and two."""
DIGEST = "sha256:d02ba1082c48f911bc1c840452db5ffb56f73db9414c3b60086378987944eb65"
"""Of the model that is published; it changes with the recipe or the model only."""


def repository() -> Repository:
    """What is published."""
    files: dict[str, Content | File] = {"config.json": weights.llama_config()}
    for seed, (path, size) in enumerate(FILES.items(), start=1):
        body = weights.safetensors_of_size(size, seed=seed, name=f"layer{seed}.weight")
        files[path] = File(path, body, lfs=True)
    return Repository(REPOSITORY, files)


def recorded(store: Store, made: Repository) -> dict[str, int]:
    """How far each file is recorded as stored and hashed, without a gap; all of it when it is there as a blob."""
    runs: dict[str, set[int]] = {}
    for key in auditing.checkpoints(store):
        hex_digest, run = key.split("/")[3], key.rpartition("/")[2].partition("-")[0]
        runs.setdefault(hex_digest, set()).add(int(run))
    return {
        path: _recorded_of(store, Digest(made.head.files[path].sha256_hex), size, runs) for path, size in FILES.items()
    }


def _recorded_of(store: Store, digest: Digest, size: int, runs: Mapping[str, set[int]]) -> int:
    if store.blob_size(digest) is not None:
        return size
    stop = 0
    for each in plan.runs(size):
        if each.index not in runs.get(digest.hex, set()):
            break
        stop = each.stop
    return stop
