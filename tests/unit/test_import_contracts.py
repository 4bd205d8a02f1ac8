"""The import contracts hold, and each one breaks when somebody breaks it."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_SOURCE_ROOTS = ("core", "ray_jobs", "nodecache", "operator")
_CONFIG = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
_NAMES = {contract["id"]: contract["name"] for contract in _CONFIG["contracts"]}

# Contract, module that gets the import, what it imports.
_VIOLATIONS = [
    ("core-is-the-floor", "aimodels_core.units", "aimodels_jobs"),
    ("core-is-the-floor", "aimodels_core.errors", "kubernetes"),
    ("operator-uses-pure-jobs", "aimodels_operator.seeded", "aimodels_jobs.objects"),
    ("operator-uses-pure-jobs", "aimodels_operator.seeded", "aimodels_nodecache"),
    ("jobs-know-no-node", "aimodels_jobs.objects", "aimodels_nodecache"),
    ("jobs-know-no-node", "aimodels_jobs.orders", "aimodels_operator"),
    ("nodecache-knows-the-core", "aimodels_nodecache.seeded", "aimodels_jobs"),
    ("ray-in-the-fleet", "aimodels_jobs.objects", "ray"),
    ("ray-in-the-fleet", "aimodels_operator.seeded", "ray"),
    ("kopf-in-the-informer", "aimodels_operator.seeded", "kopf"),
    ("pure-modules", "aimodels_core.units", "time"),
    ("pure-modules", "aimodels_core.source", "os"),
    ("core-layers", "aimodels_core.errors", "aimodels_core.source"),
    ("core-layers", "aimodels_core.digest", "aimodels_core.source"),
    ("jobs-layers", "aimodels_jobs.plan", "aimodels_jobs.coordinator"),
    ("sources-know-no-store", "aimodels_jobs.sources.huggingface", "aimodels_jobs.objects"),
    ("mover-knows-tickets", "aimodels_jobs.mover", "aimodels_jobs.sources.huggingface"),
    ("mover-knows-tickets", "aimodels_jobs.wires", "boto3"),
]


def _lint(sources: Path) -> subprocess.CompletedProcess[str]:
    program = str(Path(sys.executable).with_name("lint-imports"))
    path = os.pathsep.join(str(sources / root) for root in _SOURCE_ROOTS)
    return subprocess.run(
        [program, "--no-cache", "--no-logo", str(_ROOT / "pyproject.toml")],
        cwd=sources,
        env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "PYTHONPATH": path, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _file(sources: Path, module: str) -> Path:
    root = next(root for root in _SOURCE_ROOTS if (sources / root / module.split(".")[0]).is_dir())
    return sources / root / Path(*module.split(".")).with_suffix(".py")


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the linter says of each broken contract, by its name, after all violations were seeded in a copy."""
    sources = tmp_path_factory.mktemp("seeded")
    for root in _SOURCE_ROOTS:
        shutil.copytree(_ROOT / root, sources / root, ignore=shutil.ignore_patterns("__pycache__"))
    for _, module, imported in _VIOLATIONS:
        with _file(sources, module).open("a", encoding="utf-8") as file:
            file.write(f"\nimport {imported}\n")

    done = _lint(sources)

    assert done.returncode == 1, done.stdout + done.stderr
    report = done.stdout.partition("Broken contracts\n")[2]
    pieces = re.split(r"^(.+)\n-{10,}\n", report, flags=re.MULTILINE)[1:]
    return dict(zip(pieces[::2], pieces[1::2], strict=True))


def test_contracts_hold() -> None:
    done = _lint(_ROOT)

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(_NAMES)} kept, 0 broken" in done.stdout


@pytest.mark.parametrize(("contract", "module", "imported"), _VIOLATIONS)
def test_contract_breaks_on_a_seeded_violation(
    contract: str, module: str, imported: str, broken: dict[str, str]
) -> None:
    assert f"{module} -> {imported} (l." in broken[_NAMES[contract]]


def test_every_contract_was_seen_to_break() -> None:
    assert {contract for contract, _, _ in _VIOLATIONS} == set(_NAMES)
