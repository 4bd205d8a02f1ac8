"""Guard of the layout: source roots, what may be imported where, sizes, and text that must not be in the repository."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_PACKAGES = {
    "core": "aimodels_core",
    "ray_jobs": "aimodels_jobs",
    "nodecache": "aimodels_nodecache",
    "operator": "aimodels_operator",
}
_TESTS = ("tests", "perf")
_FILE_LINES = 400
_TEST_FILE_LINES = 600
_FUNCTION_LINES = 60

# Joined here, so that this file does not contain what it looks for.
_REGISTRY_HOSTS = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("files", "pythonhosted", "org"),
        ("proxy", "golang", "org"),
        ("sum", "golang", "org"),
        ("registry", "npmjs", "org"),
        ("static", "crates", "io"),
        ("deb", "debian", "org"),
        ("repo1", "maven", "org"),
    )
]
_LOCAL_PATH = re.compile(r"(?<![\w./$}-])/(?:" + "|".join(("work", "root", "Users")) + r")/")
# Paths inside images and sandboxes of the cluster stand, and lists that tools write.
_TEXT_EXEMPT = ("uv.lock",)


def _modules(package: str) -> list[Path]:
    return sorted((_ROOT / package).rglob("*.py"))


def _names(root: str) -> list[str]:
    """Dotted names of all modules under a source root."""
    paths = [path.relative_to(_ROOT / root).with_suffix("") for path in _modules(root)]
    return [".".join(path.parts).removesuffix(".__init__") for path in paths]


def _repository_files() -> list[Path]:
    """Tracked files and new ones that git does not ignore; all files where there is no git."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if not (_ROOT / ".git").exists():
        return [path for path in _ROOT.rglob("*") if path.is_file() and ".venv" not in path.parts]
    listed = subprocess.run(command, cwd=_ROOT, check=True, capture_output=True, text=True, timeout=30).stdout
    return [path for name in listed.split("\0") if name and (path := _ROOT / name).is_file()]


def _lines_without_docstring(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def _functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command from the root of the checkout, with nothing in its environment but PATH and the given variables."""
    environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **variables}
    return subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("root", _PACKAGES)
def test_source_root_holds_its_import_package_and_no_module(root: str) -> None:
    python = [path.name for path in (_ROOT / root).iterdir() if path.suffix in {".py", ".pyi"}]
    packages = {path.parent.name for path in (_ROOT / root).glob("*/__init__.py")}

    assert python == []
    assert packages == {_PACKAGES[root]}


@pytest.mark.parametrize("flags", [pytest.param(["-S"], id="without-site"), pytest.param([], id="plain")])
def test_operator_is_the_standard_library_from_the_root(flags: list[str]) -> None:
    done = _run(sys.executable, *flags, "-c", "import operator, collections; print(operator.__file__)")

    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).parent == Path(os.__file__).parent


@pytest.mark.parametrize("root", _PACKAGES)
def test_package_is_imported_from_its_source_root(root: str) -> None:
    name = _PACKAGES[root]
    done = _run(sys.executable, "-c", f"import {name}; print({name}.__file__)", PYTHONSAFEPATH="1")

    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == _ROOT / root / name / "__init__.py"


@pytest.mark.parametrize("root", _PACKAGES)
def test_ray_is_loaded_by_the_fleet_alone(root: str) -> None:
    names = [name for name in _names(root) if not name.startswith("aimodels_jobs.fleet")]
    code = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
    code += "print(sorted({'ray', 'kopf'} & set(sys.modules)))"

    done = _run(sys.executable, "-c", code, *names)

    assert done.returncode == 0, done.stderr
    allowed = {"['kopf']", "[]"} if root == "operator" else {"[]"}
    assert done.stdout.strip() in allowed


def test_command_line_starts_without_ray_and_without_cloud_libraries() -> None:
    code = "import sys, aimodels_jobs.__main__\n"
    code += "print(sorted({'ray', 'boto3', 'pyarrow', 'kubernetes'} & set(sys.modules)))"

    done = _run(sys.executable, "-c", code)

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_folders_of_tests_are_no_packages() -> None:
    folders = {path.parent for path in (_ROOT / "tests").rglob("test_*.py")} | {_ROOT / "tests"}

    assert [folder for folder in folders if (folder / "__init__.py").exists()] == []


def test_files_stay_short_enough_to_read() -> None:
    limits = dict.fromkeys(_PACKAGES, _FILE_LINES) | dict.fromkeys(_TESTS, _TEST_FILE_LINES)
    lengths = {
        path.relative_to(_ROOT).as_posix(): (len(path.read_text(encoding="utf-8").splitlines()), limit)
        for root, limit in limits.items()
        for path in _modules(root)
    }

    assert {name: lines for name, (lines, limit) in lengths.items() if lines > limit} == {}


def test_functions_stay_short_enough_to_read() -> None:
    long = {
        f"{path.relative_to(_ROOT)}:{function.name}": lines
        for root in (*_PACKAGES, *_TESTS)
        for path in _modules(root)
        for function in _functions(path)
        if (lines := _lines_without_docstring(function)) > _FUNCTION_LINES
    }

    assert long == {}


def test_packages_have_docstrings_and_no_code_of_their_own() -> None:
    wrong = []
    for root in _PACKAGES:
        for path in (_ROOT / root).rglob("__init__.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            code = [node for node in tree.body[1:] if not isinstance(node, ast.Import | ast.ImportFrom | ast.ClassDef)]
            if ast.get_docstring(tree) is None or code:
                wrong.append(path.relative_to(_ROOT).as_posix())

    assert wrong == []


def test_no_file_names_a_package_registry_or_a_path_of_one_machine() -> None:
    found = []
    for path in _repository_files():
        name = path.relative_to(_ROOT).as_posix()
        if name in _TEXT_EXEMPT:
            continue
        text = path.read_bytes().decode("utf-8", errors="replace")
        found += [f"{name}: {host}" for host in _REGISTRY_HOSTS if host in text]
        found += [f"{name}: {match.group()}" for match in _LOCAL_PATH.finditer(text)]

    assert found == []
