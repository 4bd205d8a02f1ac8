"""Helm works on the stand: install, upgrade, rollback, uninstall of a trivial chart."""

import json
from pathlib import Path

import pytest

from tests.cluster.stand.kubectl import Kubectl
from tests.cluster.stand.waiting import command

TEMPLATE = """
apiVersion: v1
kind: ConfigMap
metadata: {name: greeting}
data: {words: {{ .Values.words | quote }}}
"""


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: trivial\nversion: 0.1.0\n")
    (tmp_path / "values.yaml").write_text("words: first\n")
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "greeting.yaml").write_text(TEMPLATE)
    return tmp_path


def test_helm_installs_upgrades_rolls_back_and_uninstalls(space: Kubectl, chart: Path) -> None:
    def helm(*arguments: str) -> str:
        return command("helm", f"--namespace={space.namespace}", *arguments)

    def words() -> str:
        return str(space.get("configmap", "greeting")["data"]["words"])

    helm("install", "trivial", str(chart), "--wait")
    seen = [words()]
    helm("upgrade", "trivial", str(chart), "--set=words=second", "--wait")
    seen += [words()]
    helm("rollback", "trivial", "1", "--wait")
    seen += [words()]
    revisions = [entry["revision"] for entry in json.loads(helm("history", "trivial", "--output=json"))]
    helm("uninstall", "trivial", "--wait")

    assert seen == ["first", "second", "first"]
    assert revisions == [1, 2, 3]
    assert [entry["metadata"]["name"] for entry in space.items("configmaps")] == ["kube-root-ca.crt"]
