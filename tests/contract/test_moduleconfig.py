"""Every ModuleConfig that users were shown becomes values that the chart takes, and installs what it says."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from aimodels_jobs.__main__ import main
from aimodels_operator import settings
from tests.contract.test_chart import IMAGES, environment, helm, template
from tests.support import definitions

EXAMPLES = sorted((definitions.ROOT / "examples").glob("moduleconfig-*.yaml"))
CHART = definitions.ROOT / "charts" / "ai-models"
UNSERVED = "moduleconfig-publiccatalog.yaml"


def values(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["values", str(path), *options]) == 0
    return capsys.readouterr().out


def rendered(text: str, folder: Path) -> list[dict[str, Any]]:
    file = folder / "values.yaml"
    file.write_text(text)
    images = [f"--set={name}={value}" for name, value in IMAGES.items()]
    words = ("--namespace=d8-ai-models", "--kube-version=1.36.3", f"--values={file}")
    done = helm("template", "ai-models", str(CHART), *words, *images)
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_module_config_is_rendered(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = yaml.safe_load(path.read_text())["spec"]["settings"]
    text = values(path, capsys, *(["--leave-out"] if path.name == UNSERVED else []))
    objects = rendered(text, tmp_path)
    told = settings.from_env(environment(objects, "ai-models-operator"))
    command = " ".join(told.coordinator_command)

    assert told.s3_secret == wanted["artifacts"]["credentialsSecretName"]
    assert told.delivery_type == wanted.get("delivery", {}).get("type", "SharedPVC")
    assert told.shared_pvc_class == wanted.get("delivery", {}).get("sharedPVCStorageClassName", "")
    assert told.capacity_limit == (1 << 40 if "capacityLimit" in wanted["artifacts"] else 0)
    assert told.node_cache_size == 200 << 30
    assert f"--store s3://{wanted['artifacts']['bucket']} --s3-region us-east-1" in command
    assert f"--s3-endpoint {wanted['artifacts']['endpoint']}" in command


def test_a_module_config_that_is_not_served_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = (path for path in EXAMPLES if path.name == UNSERVED)

    assert main(["values", str(path)]) == 2
    assert "spec.settings.distribution.mode: not served by this version" in capsys.readouterr().err


def test_json_is_taken_by_helm_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = values(EXAMPLES[0], capsys, "--json")

    assert json.loads(text)["artifacts"]["bucket"] == "ai-models"
    assert rendered(text, tmp_path)


def test_what_is_not_served_is_unknown_to_the_chart() -> None:
    assert "additional properties 'publicHost' not allowed" in template({**IMAGES, "publicHost": "h"}).stderr
