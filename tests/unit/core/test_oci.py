"""Artifacts: deterministic, valid, and read with suspicion."""

import json
from typing import Any

import pytest

from aimodels_core import modelpack, oci, paths
from aimodels_core.digest import Digest
from aimodels_core.errors import ArtifactInvalid, PlanRefused, UnsafeContent
from aimodels_core.modelpack import ConfigFacts

FACTS = ConfigFacts("safetensors", "qwen2", "Qwen2ForCausalLM", 6_738_415_616, "bf16", "gptq-4bit")


def file(path: str, data: bytes = b"x") -> oci.ArtifactFile:
    return oci.ArtifactFile(path, len(data), Digest.of(data))


FILES = [file("config.json", b"{}"), file("model.safetensors", b"w" * 9), file("README.md", b"#"), file("m/x.py")]


def document(**changes: Any) -> bytes:
    found = json.loads(oci.build(1, FILES, FACTS).manifest)
    return json.dumps(found | changes).encode()


def titled(*titles: str) -> oci.Manifest:
    """A manifest of another tool whose layers carry these paths."""
    built = json.loads(oci.build(1, [file(f"f{i}", bytes([i])) for i in range(len(titles))], FACTS).manifest)
    for layer, title in zip(built["layers"], titles, strict=True):
        layer["annotations"][oci.ANNOTATION_FILEPATH] = title
    return oci.parse_manifest(json.dumps(built).encode())


def test_what_we_build_is_valid_and_complete() -> None:
    built = oci.build(1, FILES, FACTS)
    manifest = oci.parse_manifest(built.manifest)

    assert oci.validate(manifest, built.config) == ()
    assert [layer.path for layer in manifest.layers] == ["README.md", "config.json", "m/x.py", "model.safetensors"]
    assert manifest.artifact_type == "application/vnd.cncf.model.manifest.v1+json"
    assert manifest.config.media_type == "application/vnd.cncf.model.config.v1+json"
    assert manifest.annotations == {"ai.deckhouse.io/recipe": "1"}
    assert built.size_bytes == manifest.size_bytes == sum(f.size_bytes for f in FILES) + len(built.config)


def test_order_of_files_does_not_change_the_bytes() -> None:
    assert oci.build(1, FILES, FACTS) == oci.build(1, FILES[::-1], FACTS)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("model-00001-of-00002.safetensors", "weight"),
        ("pytorch_model.bin", "weight"),
        ("Q4/m.GGUF", "weight"),
        ("tokenizer.model", "weight.config"),
        ("model.safetensors.index.json", "weight.config"),
        ("vocab.txt", "weight.config"),
        ("chat_template.jinja", "weight.config"),
        ("LICENSE", "doc"),
        ("README.md", "doc"),
        ("modeling_x.py", "code"),
    ],
)
def test_media_type_follows_the_path_alone(path: str, kind: str) -> None:
    assert file(path).layer.media_type == f"application/vnd.cncf.model.{kind}.v1.raw"


def test_file_metadata_depends_on_the_file_only() -> None:
    layer = next(x for x in oci.parse_manifest(oci.build(1, FILES, FACTS).manifest).layers if x.path == "m/x.py")

    assert json.loads(layer.annotations[oci.ANNOTATION_FILE_METADATA]) == {
        "name": "x.py",
        "mode": 0o644,
        "uid": 0,
        "gid": 0,
        "size": 1,
        "mtime": "1970-01-01T00:00:00Z",
        "typeflag": 0,
    }


def test_o58_same_bytes_under_two_paths_are_one_blob() -> None:
    built = oci.build(1, [file("a/config.json", b"{}"), file("b/config.json", b"{}")], FACTS)
    manifest = oci.parse_manifest(built.manifest)

    assert [layer.path for layer in manifest.layers] == ["a/config.json", "b/config.json"]
    assert manifest.blobs == {Digest.of(b"{}"): 2, built.config_digest: len(built.config)}
    assert oci.validate(manifest, built.config) == ()


def test_o53_too_many_files_are_refused_before_anything_moves() -> None:
    with pytest.raises(PlanRefused, match=r"3\.5 MiB.*20000 files"):
        oci.check_plan((f"data/file-{i:05}.txt", 10) for i in range(20_000))


def test_the_estimate_of_the_manifest_holds() -> None:
    listed = [(f"data/файл {i}.txt", i) for i in range(500)]
    built = oci.build(1, [oci.ArtifactFile(p, s, Digest.of(p.encode())) for p, s in listed], FACTS)

    assert abs(oci.manifest_size(listed) - len(built.manifest)) < 8
    oci.check_plan(listed)


@pytest.mark.parametrize(
    "title",
    ["../../x", "/etc/cron.d/x", "a/../../b", "", "a\\b", "C:/x", "a//b", "./a", "a\x00b"],
)
def test_o57_titles_that_escape_are_violations(title: str) -> None:
    manifest = titled("ok.txt", title)

    assert len([v for v in oci.validate(manifest, b"") if "filepath" in v]) == 1


@pytest.mark.parametrize(
    "titles",
    [
        pytest.param(("a", "a"), id="same"),
        pytest.param(("Config.json", "config.JSON"), id="case"),
        pytest.param(("é", "e\u0301"), id="composition"),
        pytest.param(("a", "a/b"), id="file and folder"),
    ],
)
def test_o57_titles_that_meet_are_violations(titles: tuple[str, ...]) -> None:
    assert [v for v in oci.validate(titled(*titles), b"") if "want one layer per path" in v or "folder" in v]
    with pytest.raises(UnsafeContent, match="PathCollision"):
        paths.check_all(titles)


def test_building_refuses_unsafe_paths_empty_models_and_other_recipes() -> None:
    with pytest.raises(UnsafeContent):
        oci.build(1, [file("../x")], FACTS)
    with pytest.raises(ArtifactInvalid):
        oci.build(1, [], FACTS)
    with pytest.raises(ArtifactInvalid):
        oci.build(2, FILES, FACTS)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"{", id="not json"),
        pytest.param(b"[]", id="not an object"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(document(schemaVersion=1), id="schema version"),
        pytest.param(document(layers={}), id="layers"),
        pytest.param(document(layers=[1]), id="layer"),
        pytest.param(document(layers=[{"mediaType": "a", "size": 1, "digest": "md5:0"}]), id="digest"),
        pytest.param(document(layers=[{"mediaType": "a", "size": -1, "digest": str(Digest.of(b""))}]), id="negative"),
        pytest.param(document(layers=[{"mediaType": "a", "size": True, "digest": str(Digest.of(b""))}]), id="bool"),
        pytest.param(document(annotations={"a": 1}), id="annotation"),
        pytest.param(document(annotations=[1]), id="annotations"),
        pytest.param(document(config=None), id="config"),
        pytest.param(json.dumps({"schemaVersion": 2}).encode(), id="nothing else"),
    ],
)
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(ArtifactInvalid):
        oci.parse_manifest(data)


def test_a_manifest_is_never_longer_than_its_limit() -> None:
    with pytest.raises(ArtifactInvalid, match="at most 100 bytes"):
        oci.parse_manifest(document(), 100)


def test_validation_lists_everything_at_once() -> None:
    built = oci.build(1, FILES, FACTS)
    manifest = oci.parse_manifest(document(mediaType="x", artifactType="y"))
    config = json.loads(built.config)
    config["modelfs"]["type"] = "rootfs"
    del config["descriptor"]

    found = oci.validate(manifest, json.dumps(config).encode())

    assert [line.split(":")[0] for line in found] == [
        "manifest.mediaType",
        "manifest.artifactType",
        "config",
        "config.descriptor",
        "config.modelfs.type",
    ]


def test_diff_ids_are_the_digests_of_raw_layers() -> None:
    built = oci.build(1, FILES, FACTS)
    config = json.loads(built.config)
    config["modelfs"]["diffIds"].reverse()

    found = oci.validate(oci.parse_manifest(built.manifest), json.dumps(config).encode())

    assert any("diffIds[0]" in line for line in found)


@pytest.mark.parametrize(
    ("config", "where"),
    [
        ({"paramSize": "7 billion"}, "config.config.paramSize"),
        ({"capabilities": {"inputTypes": ["smell"]}}, "config.config.capabilities.inputTypes[0]"),
        ({"capabilities": {"toolUsage": "yes"}}, "config.config.capabilities.toolUsage"),
        ({"format": 1}, "config.config.format"),
    ],
)
def test_the_config_schema_names_the_place(config: dict[str, Any], where: str) -> None:
    whole = {"descriptor": {}, "config": config, "modelfs": {"type": "layers", "diffIds": ["sha256:" + "0" * 64]}}

    assert [line.split(":")[0] for line in modelpack.config_violations(whole)] == [where]


def test_a_config_of_another_tool_with_all_fields_is_valid() -> None:
    whole = {
        "descriptor": {"createdAt": "2025-01-01T00:00:00Z", "authors": ["a"], "name": "m", "licenses": ["MIT"]},
        "config": {
            "paramSize": "8b",
            "capabilities": {"inputTypes": ["text"], "languages": ["en"], "reasoning": True},
        },
        "modelfs": {"type": "layers", "diffIds": ["sha256:" + "0" * 64]},
        "extension": {},
    }

    assert modelpack.config_violations(whole) == ()
