"""The import contracts hold, and each one breaks when somebody breaks it."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_SOURCE_ROOTS = ("core", "ray_jobs", "nodecache", "operator")
_CONFIG = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]

# contract, module that gets the forbidden line, line
_VIOLATIONS = [
    ("core-is-the-floor", "core/aimodels_core/units.py", "import aimodels_jobs"),
    ("core-is-the-floor", "core/aimodels_core/errors.py", "import kubernetes"),
    ("operator-uses-pure-jobs", "operator/aimodels_operator/seeded.py", "from aimodels_jobs import objects"),
    ("operator-uses-pure-jobs", "operator/aimodels_operator/seeded.py", "import aimodels_nodecache"),
    ("jobs-know-no-node", "ray_jobs/aimodels_jobs/objects.py", "import aimodels_nodecache"),
    ("jobs-know-no-node", "ray_jobs/aimodels_jobs/orders.py", "import aimodels_operator"),
    ("nodecache-knows-the-core", "nodecache/aimodels_nodecache/seeded.py", "import aimodels_jobs"),
    ("ray-in-the-fleet", "ray_jobs/aimodels_jobs/objects.py", "import ray"),
    ("ray-in-the-fleet", "operator/aimodels_operator/seeded.py", "from ray import job_submission"),
    ("kopf-in-the-informer", "operator/aimodels_operator/seeded.py", "import kopf"),
    ("pure-modules", "core/aimodels_core/units.py", "import time"),
    ("pure-modules", "core/aimodels_core/source.py", "from os import path"),
    ("core-layers", "core/aimodels_core/errors.py", "import aimodels_core.source"),
    ("core-layers", "core/aimodels_core/digest.py", "from aimodels_core import source"),
    ("jobs-layers", "ray_jobs/aimodels_jobs/plan.py", "from aimodels_jobs import coordinator"),
    ("sources-know-no-store", "ray_jobs/aimodels_jobs/sources/huggingface.py", "from aimodels_jobs import objects"),
    ("mover-knows-tickets", "ray_jobs/aimodels_jobs/mover.py", "import aimodels_jobs.sources.huggingface"),
    ("mover-knows-tickets", "ray_jobs/aimodels_jobs/wires.py", "import boto3"),
]


def _lint(sources: Path, contract: str) -> subprocess.CompletedProcess[str]:
    program = str(Path(sys.executable).with_name("lint-imports"))
    command = [program, "--no-cache", "--no-logo", "--contract", contract, str(_ROOT / "pyproject.toml")]
    path = os.pathsep.join(str(sources / root) for root in _SOURCE_ROOTS)
    environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "PYTHONPATH": path, "COLUMNS": "200"}
    return subprocess.run(
        command,
        cwd=sources,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("contract", [contract["id"] for contract in _CONFIG["contracts"]])
def test_contract_holds(contract: str) -> None:
    done = _lint(_ROOT, contract)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("contract", "module", "line"), _VIOLATIONS)
def test_contract_breaks_on_a_seeded_violation(contract: str, module: str, line: str, tmp_path: Path) -> None:
    for root in _SOURCE_ROOTS:
        shutil.copytree(_ROOT / root, tmp_path / root, ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / module).open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")

    done = _lint(tmp_path, contract)

    assert done.returncode == 1, done.stdout + done.stderr
    assert "0 kept, 1 broken" in done.stdout


def test_every_contract_was_seen_to_break() -> None:
    assert {contract for contract, _, _ in _VIOLATIONS} == {contract["id"] for contract in _CONFIG["contracts"]}
