"""Guard of the dependency bounds: what the resolver may pick, and what it did pick.

Each bound stands for something that went wrong without it: a resolver falls back to an ancient release without a word.
"""

import functools
import importlib.metadata
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

_ROOT = Path(__file__).parents[2]

_BOUNDS = [
    pytest.param("boto3", ">=1.44", id="boto3-else-the-resolver-picks-0.0.3"),
    pytest.param("botocore", ">=1.44", id="botocore-signs-full-object-checksums"),
    pytest.param("cryptography", ">=44", id="cryptography-signs-tokens-and-certificates"),
    pytest.param("gguf", ">=0.19", id="gguf"),
    pytest.param("huggingface-hub", ">=2.4", id="huggingface-hub"),
    pytest.param("kopf", ">=1.45", id="kopf"),
    pytest.param("kubernetes", ">=37,!=37.0.2", id="kubernetes-37.0.2-cannot-sit-beside-botocore"),
    pytest.param("moto", ">=5.1", id="moto"),
    pytest.param("pytest", ">=9", id="pytest"),
    pytest.param("ray", "==2.60.*", id="ray-head-and-workers-speak-one-version"),
]


@functools.cache
def _toml(name: str) -> dict[str, Any]:
    return tomllib.loads((_ROOT / name).read_text(encoding="utf-8"))


@functools.cache
def _declared() -> dict[str, list[Requirement]]:
    """All requirements of the project by canonical name: base, extras and groups."""
    project = _toml("pyproject.toml")
    lists = [project["project"]["dependencies"]]
    lists += project["project"]["optional-dependencies"].values()
    lists += project["dependency-groups"].values()
    found: dict[str, list[Requirement]] = {}
    for requirement in (Requirement(text) for texts in lists for text in texts):
        found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


@functools.cache
def _locked() -> dict[str, list[Version]]:
    """Versions in the lock file by name; one name may have several, for different Pythons."""
    found: dict[str, list[Version]] = {}
    for package in _toml("uv.lock")["package"]:
        found.setdefault(package["name"], []).append(Version(package["version"]))
    return found


@pytest.mark.parametrize(("name", "bound"), _BOUNDS)
def test_locked_version_is_within_its_bound(name: str, bound: str) -> None:
    versions = _locked()[name]

    outside = [str(version) for version in versions if version not in SpecifierSet(bound)]

    assert versions
    assert outside == []


@pytest.mark.parametrize(("name", "bound"), _BOUNDS)
def test_project_declares_the_bound_itself(name: str, bound: str) -> None:
    requirements = _declared()[name]

    assert [r.specifier for r in requirements] == [SpecifierSet(bound)] * len(requirements)


@pytest.mark.parametrize(("name", "bound"), _BOUNDS)
def test_installed_version_is_the_locked_one(name: str, bound: str) -> None:
    installed = Version(importlib.metadata.version(name))

    assert installed in _locked()[name]
    assert installed in SpecifierSet(bound)


def test_python_floor_is_3_11_in_project_and_lock() -> None:
    assert _toml("pyproject.toml")["project"]["requires-python"] == ">=3.11"
    assert _toml("uv.lock")["requires-python"] == ">=3.11"


def test_extras_are_one_per_component() -> None:
    assert set(_toml("pyproject.toml")["project"]["optional-dependencies"]) == {"jobs", "nodecache", "operator"}


@pytest.mark.parametrize("name", ["ray", "kopf", "kubernetes", "pyarrow", "grpcio", "aiohttp"])
def test_commands_without_ray_need_only_the_base(name: str) -> None:
    base = {canonicalize_name(Requirement(text).name) for text in _toml("pyproject.toml")["project"]["dependencies"]}

    assert name not in base


@pytest.mark.parametrize("extra", ["jobs", "nodecache"])
def test_every_raylet_gets_the_same_ray(extra: str) -> None:
    requirements = [Requirement(text) for text in _toml("pyproject.toml")["project"]["optional-dependencies"][extra]]

    assert [str(r.specifier) for r in requirements if r.name == "ray"] == ["==2.60.*"]


def test_model_packages_bring_no_training_framework() -> None:
    heavy = {"torch", "sentence-transformers", "transformers", "tensorflow", "triton"}

    assert {name for name in _locked() if name in heavy or name.startswith("nvidia-")} == set()
