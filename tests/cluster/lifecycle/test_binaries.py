"""The cache of built programs: built once, checked, rebuilt when stale, one builder at a time."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cluster.stand.layout import CHECKOUT
from tests.support.binaries import cache, catalogue
from tests.support.binaries.catalogue import Binary, BinaryError

MAIN = 'package main\n\nfunc main() { print("hello") }\n'


@pytest.fixture
def hello(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Binary:
    """A tiny program of a module of its own, with a cache of its own (but Go's cache of the machine)."""
    go_cache = subprocess.run(["go", "env", "GOCACHE"], capture_output=True, text=True, check=True).stdout.strip()
    monkeypatch.setenv("GOCACHE", go_cache)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(catalogue, "MODULES", tmp_path)
    binary = Binary("hello", "hello", "example.com/hello")
    monkeypatch.setitem(catalogue.BINARIES, "hello", binary)
    (tmp_path / "hello").mkdir()
    (tmp_path / "hello" / "go.mod").write_text("module example.com/hello\n\ngo 1.24\n")
    (tmp_path / "hello" / "go.sum").touch()
    (tmp_path / "hello" / "main.go").write_text(MAIN)
    return binary


def inode(file: Path) -> int:
    return file.stat().st_ino


def test_program_is_built_once_and_then_comes_from_the_cache(hello: Binary) -> None:
    first = cache.path("hello")
    before = inode(first)

    assert inode(cache.path("hello")) == before
    assert subprocess.run([first], capture_output=True, check=True).stderr == b"hello"
    assert first.parent.name == f"hello-{hello.key()}"


@pytest.mark.parametrize("harm", ["truncate", "flip", "remove digest"])
def test_stale_entry_is_built_again(hello: Binary, harm: str) -> None:
    file = cache.path("hello")
    content = file.read_bytes()
    match harm:
        case "truncate":
            file.write_bytes(content[: len(content) // 2])
        case "flip":
            file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        case _:
            file.with_name("hello.sha256").unlink()
            cache._checked.clear()

    assert cache.path("hello").read_bytes() == content


def test_two_builders_at_once_build_once(hello: Binary) -> None:
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(cache.path, ["hello", "hello"]))

    assert found[0] == found[1]
    assert cache.intact(found[0])


def test_key_changes_with_versions_and_flags(hello: Binary) -> None:
    before = hello.key()
    (hello.folder / "go.sum").write_text("example.com/other v1.0.0 h1:x=\n")

    assert hello.key() != before
    assert Binary("hello", "hello", hello.package, tags="other").key() != hello.key()


def test_failed_build_names_the_program_and_shows_the_compilers_words(hello: Binary) -> None:
    (hello.folder / "main.go").write_text("package main\n\nfunc main() { undefined() }\n")

    with pytest.raises(BinaryError, match=r"(?s)binary hello: go build failed with 1:.*undefined: undefined"):
        cache.path("hello")
    assert not cache.entry(hello).exists()


def test_unknown_program_is_refused_with_the_names_there_are() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.binaries", "nonesuch"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "binary 'nonesuch': want one of " in done.stderr


@pytest.mark.parametrize("binary", catalogue.BINARIES.values(), ids=lambda binary: binary.name)
def test_every_program_is_pinned(binary: Binary) -> None:
    assert f"{binary.package}\n" in (binary.folder / "go.mod").read_text()
    assert (binary.folder / "go.sum").stat().st_size > 0
