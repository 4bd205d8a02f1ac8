"""OCI manifests of models: build one from files, parse and validate one that somebody else made. Pure.

Source: OCI image-spec 1.1, manifest.md ("Image Manifest Property Descriptions", "Guidelines for Artifact Usage") and
descriptor.md; the media types come from `aimodels_core.modelpack`. Bytes are a function of the files and the recipe:
the same files give the same digest, whatever source they came from.
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from aimodels_core import modelpack, names, paths
from aimodels_core.digest import Digest
from aimodels_core.errors import ArtifactInvalid, PlanRefused, UnsafeContent
from aimodels_core.modelpack import ConfigFacts, LayerClass
from aimodels_core.source import check_path
from aimodels_core.units import MIB, human_bytes

MANIFEST_MEDIA_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"
ANNOTATION_FILEPATH: Final = "org.cncf.model.filepath"
ANNOTATION_FILE_METADATA: Final = "org.cncf.model.file.metadata+json"
RECIPE: Final = 1
MAX_MANIFEST_BYTES: Final = 4 * MIB
"""What a registry accepts at most."""
MAX_PLANNED_MANIFEST_BYTES: Final = 7 * MIB // 2
"""What is refused before anything moves."""

_ANY_DIGEST: Final = Digest("0" * 64)
_MAX_SIZE: Final = 2**63 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Descriptor:
    """A pointer to a blob (descriptor.md, "Properties")."""

    media_type: str
    digest: Digest
    size_bytes: int
    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def path(self) -> str:
        """The file that a layer holds, relative to the model root; empty when it names none."""
        return self.annotations.get(ANNOTATION_FILEPATH, "")


@dataclasses.dataclass(frozen=True, slots=True)
class ArtifactFile:
    """One file of an artifact: its path within the model, its size, its digest."""

    path: str
    size_bytes: int
    digest: Digest

    @property
    def layer(self) -> LayerClass:
        """What the file is to the model."""
        return modelpack.layer_class(self.path)


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """A parsed manifest."""

    media_type: str
    artifact_type: str
    config: Descriptor
    layers: tuple[Descriptor, ...]
    annotations: Mapping[str, str]

    @property
    def size_bytes(self) -> int:
        """Config and all layers: what `status.artifact.sizeBytes` shows."""
        return self.config.size_bytes + sum(layer.size_bytes for layer in self.layers)

    @property
    def blobs(self) -> Mapping[Digest, int]:
        """Size of each distinct blob, the config included: files with the same bytes count once."""
        return {item.digest: item.size_bytes for item in (*self.layers, self.config)}


@dataclasses.dataclass(frozen=True, slots=True)
class Artifact:
    """A built artifact: the two documents and their digests."""

    config: bytes
    config_digest: Digest
    manifest: bytes
    digest: Digest
    size_bytes: int


def build(recipe: int, files: Iterable[ArtifactFile], facts: ConfigFacts) -> Artifact:
    """Make config and manifest of a model: one raw layer per file, in order of path.

    Raises:
        ArtifactInvalid: no files, or an unknown recipe.
        UnsafeContent: a path that must not be published, or two that meet in one place.
        PlanRefused: the manifest would be larger than a registry accepts.
    """
    ordered = sorted(files, key=lambda file: file.path)
    if recipe != RECIPE or not ordered:
        raise ArtifactInvalid(f"artifact: want recipe {RECIPE} and files, got recipe {recipe}, {len(ordered)} files")
    paths.check_all(file.path for file in ordered)
    config = modelpack.config_bytes(facts, [file.digest for file in ordered])
    manifest = _manifest_bytes(ordered, config)
    if len(manifest) > MAX_MANIFEST_BYTES:
        raise _too_large(len(ordered), len(manifest))
    size_bytes = len(config) + sum(file.size_bytes for file in ordered)
    return Artifact(config, Digest.of(config), manifest, Digest.of(manifest), size_bytes)


def _manifest_bytes(files: Sequence[ArtifactFile], config: bytes) -> bytes:
    return modelpack.canonical_json(
        {
            "annotations": {names.ANNOTATION_RECIPE: str(RECIPE)},
            "artifactType": modelpack.ARTIFACT_TYPE,
            "config": {
                "digest": str(Digest.of(config)),
                "mediaType": modelpack.CONFIG_MEDIA_TYPE,
                "size": len(config),
            },
            "layers": [_layer(file) for file in files],
            "mediaType": MANIFEST_MEDIA_TYPE,
            "schemaVersion": 2,
        }
    )


def _layer(file: ArtifactFile) -> dict[str, object]:
    return {
        "annotations": {
            ANNOTATION_FILEPATH: file.path,
            ANNOTATION_FILE_METADATA: _file_metadata(file).decode(),
        },
        "digest": str(file.digest),
        "mediaType": file.layer.media_type,
        "size": file.size_bytes,
    }


def _file_metadata(file: ArtifactFile) -> bytes:
    """Describe a file: its name and size; the rest is constant (specs-go/v1/annotations.go, FileMetadata)."""
    return modelpack.canonical_json(
        {
            "gid": 0,
            "mode": 0o644,
            "mtime": "1970-01-01T00:00:00Z",
            "name": file.path.rsplit("/", 1)[-1],
            "size": file.size_bytes,
            "typeflag": 0,
            "uid": 0,
        }
    )


def manifest_size(files: Iterable[tuple[str, int]]) -> int:
    """Compute the size of the manifest of (path, size in bytes) before any digest is known, a few bytes exact."""
    stand_ins = [ArtifactFile(path, size_bytes, _ANY_DIGEST) for path, size_bytes in files]
    config_guess = b"0" * (1024 + 74 * len(stand_ins))
    return len(_manifest_bytes(stand_ins, config_guess))


def check_plan(files: Iterable[tuple[str, int]]) -> None:
    """Refuse a model whose manifest no registry would take, before anything moves.

    Raises:
        PlanRefused: names the number of files and the limit.
        UnsafeContent: a path that must not be published, or two that meet in one place.
    """
    listed = list(files)
    paths.check_all(path for path, _ in listed)
    size_bytes = manifest_size(listed)
    if size_bytes > MAX_PLANNED_MANIFEST_BYTES:
        raise _too_large(len(listed), size_bytes)


def _too_large(count: int, size_bytes: int) -> PlanRefused:
    limit = human_bytes(MAX_PLANNED_MANIFEST_BYTES)
    detail = f"manifest: want at most {limit}, got {human_bytes(size_bytes)} for {count} files; publish fewer files"
    return PlanRefused(detail, code="ManifestTooLarge")


def parse_manifest(data: bytes, max_bytes: int = MAX_MANIFEST_BYTES) -> Manifest:
    """Parse an image manifest.

    Raises:
        ArtifactInvalid: too long, not JSON, or without the shape of a manifest.
    """
    document = _parse(data, max_bytes, "manifest")
    try:
        return _manifest(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArtifactInvalid(f"manifest: want an image manifest, got a wrong {_of(error)}") from error


def _parse(data: bytes, max_bytes: int, what: str) -> dict[str, Any]:
    if len(data) > max_bytes:
        raise ArtifactInvalid(f"{what}: want at most {max_bytes} bytes, got {len(data)}", code="TooLong")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ArtifactInvalid(f"{what}: want JSON, got something else") from error
    if not isinstance(document, dict):
        raise ArtifactInvalid(f"{what}: want a JSON object, got {type(document).__name__}")
    return document


def _manifest(document: dict[str, Any]) -> Manifest:
    if document["schemaVersion"] != 2:
        raise ValueError("schemaVersion")
    return Manifest(
        media_type=_text(document.get("mediaType", "")),
        artifact_type=_text(document.get("artifactType", "")),
        config=_descriptor(document["config"]),
        layers=tuple(_descriptor(layer) for layer in _list(document["layers"])),
        annotations=_annotations(document),
    )


def _descriptor(value: dict[str, Any]) -> Descriptor:
    size = value["size"]
    if type(size) is not int or not 0 <= size <= _MAX_SIZE:
        raise ValueError("size of a descriptor")
    return Descriptor(_text(value["mediaType"]), Digest.parse(_text(value["digest"])), size, _annotations(value))


def _annotations(value: dict[str, Any]) -> Mapping[str, str]:
    found = value.get("annotations") or {}
    return {_text(key): _text(item) for key, item in found.items()}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("value where text belongs")
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("value where a list belongs")
    return value


def _of(error: Exception) -> str:
    return f"field {error}" if isinstance(error, KeyError) else str(error)[:200] or "field"


def validate(manifest: Manifest, config: bytes) -> tuple[str, ...]:
    """List everything in a model artifact that breaks its specifications or would be unsafe to unpack.

    Source: model-spec docs/spec.md, "OCI Image Manifest Specification For Model Artifacts".
    """
    return (*_manifest_violations(manifest), *_path_violations(manifest), *_config_violations(manifest, config))


def _manifest_violations(manifest: Manifest) -> Iterator[str]:
    for name, want, got in (
        ("mediaType", MANIFEST_MEDIA_TYPE, manifest.media_type),
        ("artifactType", modelpack.ARTIFACT_TYPE, manifest.artifact_type),
        ("config.mediaType", modelpack.CONFIG_MEDIA_TYPE, manifest.config.media_type),
    ):
        if got != want:
            yield f"manifest.{name}: want {want}, got {got[:120]!r}"
    if not manifest.layers:
        yield "manifest.layers: want at least one, got none"
    for index, layer in enumerate(manifest.layers):
        if not modelpack.is_layer_media_type(layer.media_type):
            yield f"manifest.layers[{index}].mediaType: want one of ModelPack, got {layer.media_type[:120]!r}"


def _path_violations(manifest: Manifest) -> Iterator[str]:
    seen: dict[str, str] = {}
    for index, layer in enumerate(manifest.layers):
        where = f"manifest.layers[{index}]"
        try:
            check_path(layer.path)
        except UnsafeContent as error:
            yield f"{where}.{ANNOTATION_FILEPATH}: {error.detail}, got {layer.path[:120]!r}"
            continue
        key = paths.fold(layer.path)
        if key in seen:
            yield f"{where}.{ANNOTATION_FILEPATH}: want one layer per path, got {layer.path!r} beside {seen[key]!r}"
        seen[key] = layer.path
    for key, path in seen.items():
        if any(parent in seen for parent in paths.parents(key)):
            yield f"manifest.layers: want a folder or a file, got both above {path!r}"


def _config_violations(manifest: Manifest, config: bytes) -> Iterator[str]:
    if len(config) != manifest.config.size_bytes or Digest.of(config) != manifest.config.digest:
        yield f"config: want {manifest.config.digest} of {manifest.config.size_bytes} bytes, got {Digest.of(config)}"
    try:
        document = _parse(config, modelpack.MAX_CONFIG_BYTES, "config")
    except ArtifactInvalid as error:
        yield error.message
        return
    violations = modelpack.config_violations(document)
    yield from violations
    if violations:
        return
    ids = document["modelfs"]["diffIds"]
    if len(ids) != len(manifest.layers):
        yield f"config.modelfs.diffIds: want {len(manifest.layers)}, one per layer, got {len(ids)}"
    for index, (diff_id, layer) in enumerate(zip(ids, manifest.layers, strict=False)):
        if modelpack.is_raw(layer.media_type) and diff_id != str(layer.digest):
            yield f"config.modelfs.diffIds[{index}]: want {layer.digest}, got {diff_id}"
