"""The models that tests and the demo use: valid for the libraries that read them, and named as on the hub."""

import json
from pathlib import Path

import gguf
import pytest
from safetensors import safe_open

from tests.support import models, weights
from tests.support.hub.bodies import Body, FileBody, pieces, sha256_hex
from tests.support.hub.repository import Access, File


def write(body: Body, path: Path) -> Path:
    path.write_bytes(b"".join(pieces(body)))
    return path


def test_real_safetensors_is_the_file_that_the_hub_names() -> None:
    file = models.minilm().head.files["model.safetensors"]

    assert sha256_hex(file.body) == file.sha256_hex
    with safe_open(models.minilm_folder() / "model.safetensors", framework="np") as opened:
        assert "embeddings.word_embeddings.weight" in opened.keys()  # noqa: SIM118  (not a mapping)


def test_real_gguf_is_assembled_once_and_checked(tmp_path: Path) -> None:
    path = models.gemma_gguf_path(tmp_path)
    with path.open("r+b") as file:
        file.write(b"x")
    repaired = models.gemma_gguf(tmp_path).head.files[models.GEMMA_GGUF_FILE]

    assert repaired.size_bytes == 253_113_024
    assert sha256_hex(FileBody(path)) == repaired.sha256_hex
    assert [each.name for each in tmp_path.iterdir()] == [models.GEMMA_GGUF_FILE]


def test_sharded_stand_in_has_thirty_valid_shards_and_their_index(tmp_path: Path) -> None:
    files = models.llama_70b().head.files
    index = json.loads(b"".join(pieces(files["model.safetensors.index.json"].body)))
    shards = sorted(name for name in files if name.startswith("model-"))
    found: dict[str, str] = {}
    for name in shards:
        with safe_open(write(files[name].body, tmp_path / name), framework="np") as opened:
            found.update(dict.fromkeys(opened.keys(), name))

    assert len(shards) == 30
    assert found == index["weight_map"]


def test_stand_ins_have_the_true_names() -> None:
    gated = models.gemma_3_4b(granted=["hf_x"])

    assert set(models.bge_m3().head.files) == set(models.true_sizes("bge-m3"))
    assert set(gated.head.files) == set(models.true_sizes("gemma-3-4b-it"))
    assert gated.access is Access.GATED


def test_declared_sizes_and_tensors_are_true() -> None:
    files = models.llama_70b_declared().head.files
    shard = files["model-00001-of-00030.safetensors"]
    length = int.from_bytes(bytes(shard.body.read(0, 8)), "little")
    header = json.loads(bytes(shard.body.read(8, 8 + length)))
    index = json.loads(b"".join(pieces(files["model.safetensors.index.json"].body)))

    assert {path: files[path].size_bytes for path in models.llama_70b_sizes()} == models.llama_70b_sizes()
    assert 141 * 10**9 < sum(file.size_bytes for path, file in files.items() if path.startswith("model-")) < 142 * 10**9
    assert max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__") + 8 + length == (
        shard.size_bytes
    )
    assert index["metadata"]["total_size"] == sum(tensor.size_bytes for tensor in models.llama_70b_tensors())
    assert files["config.json"].size_bytes < 1024


def test_declared_gemma_has_the_size_that_is_published() -> None:
    files = models.gemma_3_4b_declared().head.files
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")

    assert abs(sum(files[name].size_bytes - models.true_sizes("gemma-3-4b-it")[name] for name in names)) < 1024


@pytest.mark.parametrize("make", [weights.tiny_safetensors, weights.tiny_sharded, weights.tiny_diffusers])
def test_tiny_safetensors_open(tmp_path: Path, make: object) -> None:
    assert callable(make)
    found = {path: body for path, body in make().items() if path.endswith(".safetensors")}
    for number, body in enumerate(found.values()):
        with safe_open(write(body, tmp_path / str(number)), framework="np") as opened:
            assert opened.keys()

    assert found


@pytest.mark.parametrize("size", [200, 4096, 1_000_003])
def test_safetensors_of_an_exact_size_open(tmp_path: Path, size: int) -> None:
    path = write(weights.safetensors_of_size(size), tmp_path / "exact.safetensors")

    assert path.stat().st_size == size
    with safe_open(path, framework="np") as opened:
        assert list(opened.keys()) == ["weight"]


def test_tiny_gguf_opens(tmp_path: Path) -> None:
    for name, body in {**weights.tiny_gguf(), **weights.gguf_shards("sharded")}.items():
        reader = gguf.GGUFReader(write(body, tmp_path / name))

        assert reader.fields["general.architecture"].contents() == "llama"
        assert len(reader.tensors) >= 1
        del reader


def test_equal_calls_give_equal_files() -> None:
    first, second = weights.tiny_pytorch(), weights.tiny_pytorch()

    assert first["pytorch_model.bin"] == second["pytorch_model.bin"]
    assert isinstance(models.bge_m3().head.files["pytorch_model.bin"], File)
