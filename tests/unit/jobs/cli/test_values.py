"""`ai-models values`: a ModuleConfig becomes values of the chart, or an error that names what is wrong with it."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from aimodels_core.errors import UsageError
from aimodels_jobs import moduleconfig
from aimodels_jobs.__main__ import main
from tests.support import definitions

FORMS = yaml.safe_load((definitions.ROOT / "charts/ai-models/files/forms.yaml").read_text())["forms"]
SCHEMA = json.loads((definitions.ROOT / "charts/ai-models/values.schema.json").read_text())


def config(settings: object = None, **spec: object) -> dict[str, Any]:
    whole = {"enabled": True, "version": 1, "settings": settings if settings is not None else {}, **spec}
    names = {"apiVersion": "deckhouse.io/v1alpha1", "kind": "ModuleConfig", "metadata": {"name": "ai-models"}}
    return {**names, "spec": whole}


def node_of(path: str) -> dict[str, Any]:
    """What the chart's schema says of a setting, references and all."""
    node = SCHEMA
    for name in path.split("."):
        parts = [node, *node.get("allOf", ())]
        node = next(part["properties"][name] for part in map(resolved, parts) if name in part.get("properties", {}))
        node = resolved(node)
    merged = [resolved(part) for part in node.get("allOf", ())]
    facts = {key: value for part in [node, *merged] for key, value in part.items()}
    for pattern in ({"pattern": form["pattern"]} for form in FORMS if path in form["settings"]):
        facts |= {"items": {**facts["items"], **pattern}} if "items" in facts else pattern
    return {key: value for key, value in facts.items() if key not in ("allOf", "description")}


def resolved(node: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in node:
        return node
    found: dict[str, Any] = SCHEMA["definitions"][node["$ref"].removeprefix("#/definitions/")]
    return found


@pytest.mark.parametrize("path", moduleconfig.SERVED)
def test_a_setting_is_what_the_chart_says_it_is(path: str) -> None:
    assert moduleconfig.SERVED[path].schema == node_of(path)


def test_what_is_not_served_is_no_setting_of_the_chart() -> None:
    assert {path.split(".")[0] for path in moduleconfig.UNSERVED} & SCHEMA["properties"].keys() == set()


def test_values_have_the_same_names_and_nothing_is_added() -> None:
    settings = {
        "artifacts": {"bucket": "models", "usePathStyle": False},
        "ray": {"workers": {"replicas": 3}},
        "delivery": {"enabled": False, "type": "NodeCache", "nodeCacheSize": 5},
    }
    found = moduleconfig.values(config(settings))

    assert found.values == settings
    assert found.left_out == ()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"logLevel": "Trace"}, "logLevel: want one of Debug, Info, Warn, Error, got 'Trace'"),
        ({"logLevel": None}, "logLevel: want one of Debug, Info, Warn, Error, got nothing"),
        ({"loglevel": "Info"}, "loglevel: unknown, want one of artifacts, delivery, distribution, embedded"),
        ({"artifacts": {"bukket": "b"}}, "artifacts.bukket: unknown, want one of bucket, caSecretName, capacityLimit"),
        ({"artifacts": "b"}, "artifacts: want a mapping, got 'b'"),
        ({"artifacts": {"usePathStyle": "yes"}}, "artifacts.usePathStyle: want true or false, got 'yes'"),
        ({"artifacts": {"endpoint": "s3.example.com"}}, "artifacts.endpoint: want https://<host>, without a path"),
        ({"artifacts": {"capacityLimit": "lots"}}, "artifacts.capacityLimit: want a number of bytes such as 500Gi"),
        ({"artifacts": {"capacityLimit": True}}, "artifacts.capacityLimit: want a number of bytes"),
        ({"artifacts": {"credentialsSecretName": "d8-system/x"}}, "want the name of a Secret in d8-system, got 'd8-s"),
        ({"artifacts": {"bucket": "b\n"}}, "artifacts.bucket: want the name of a bucket"),
        ({"embedded": {"size": ""}}, "embedded.size: want a number of bytes"),
        ({"sources": {"allowedPrivateCIDRs": ["10.0.0.0"]}}, "sources.allowedPrivateCIDRs: want a list of networks"),
        ({"sources": {"allowedPrivateCIDRs": ["::/0"] * 65}}, "sources.allowedPrivateCIDRs: want a list of networks"),
        ({"proxy": {"httpsProxy": "http://me:p/w@proxy:1"}}, "without credentials, got '…@proxy:1'"),
        ({"proxy": {"noProxy": ["a b"]}}, "proxy.noProxy: want a list of hosts, domains"),
        ({"sources": {"allowedPrivateCIDRs": [7]}}, "sources.allowedPrivateCIDRs: want a list of networks"),
        ({"ray": {"workers": {"replicas": 0}}}, "ray.workers.replicas: want a number from 1 to 1000, got 0"),
        ({"ray": {"head": {"nodeSelector": {"a": 1}}}}, "ray.head.nodeSelector: want labels of nodes, got a mapping"),
        ({"delivery": {"maxGateWait": "10"}}, "delivery.maxGateWait: want a duration such as 10m or 1h30m, got '10'"),
        ({"delivery": {"type": "HostPath"}}, "delivery.type: want one of NodeCache, SharedPVC, got 'HostPath'"),
        ([], "spec.settings: want a mapping, got a list"),
        ({"x" * 5000: 1}, "spec.settings.xxx"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_by_name(settings: object, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        moduleconfig.values(config(settings))

    assert words in refused.value.message
    assert len(refused.value.message) < 400


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (None, "document: want a mapping, got nothing"),
        ({}, "apiVersion: want deckhouse.io/v1alpha1, got nothing"),
        ({**config(), "kind": "Model"}, "kind: want ModuleConfig, got 'Model'"),
        ({**config(), "metadata": {"name": "other"}}, "metadata.name: want ai-models, got 'other'"),
        (config(version=2), "spec.version: want 1, got 2"),
        (config(version=True), "spec.version: want 1, got true"),
        (config(version=None), "spec.version: want 1, got nothing"),
        (config(enabled=False), "spec.enabled: want true, got false: a disabled module is uninstalled"),
        (config(setings={}), "spec.setings: unknown, want version, enabled and settings"),
    ],
)
def test_what_is_no_module_config_of_ours_is_refused(document: object, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        moduleconfig.values(document)

    assert words in refused.value.message


def test_the_command_prints_yaml_or_json_from_a_file_or_stdin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = yaml.safe_dump(config({"logLevel": "Warn"})).encode()
    (tmp_path / "config.yaml").write_bytes(text)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))

    assert main(["values", str(tmp_path / "config.yaml")]) == 0
    shown = capsys.readouterr().out
    assert main(["values", "-", "--json"]) == 0
    assert yaml.safe_load(shown) == json.loads(capsys.readouterr().out) == {"logLevel": "Warn"}


def test_a_date_is_text_as_it_is_to_kubernetes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    text = yaml.safe_dump(config({"ray": {"head": {"nodeSelector": {"since": "DATE"}}}}))
    path.write_text(text.replace("DATE", "2026-12-01"))

    assert main(["values", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ray"]["head"]["nodeSelector"] == {"since": "2026-12-01"}


def test_what_is_not_served_is_refused_or_left_out_aloud(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config({"publicHost": "h", "distribution": {"mode": "PublicCatalog"}})))

    assert main(["values", str(path)]) == 2
    refused = capsys.readouterr()
    assert main(["values", str(path), "--leave-out"]) == 0
    printed = capsys.readouterr()

    assert refused.out == ""
    for said in (refused.err, printed.err):
        assert "spec.settings.publicHost: not served by this version: no Ingress is made" in said
        assert "spec.settings.distribution.mode: not served by this version: no catalog is published" in said
    assert yaml.safe_load(printed.out) == {}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "document: want a mapping, got nothing"),
        (b"a: [", "line 1: want one YAML document"),
        (b"a: 1\n---\nb: 1\n", "line 2: want one YAML document"),
        (b"a: 1\nb: {c: 1, c: 2}\n", "line 2: want one YAML document without aliases, each key once, got 'c' twice"),
        (b"a: &x [1]\nb: *x\n", "line 2: want one YAML document without aliases, each key once, got an alias"),
        (b"a: !!binary aGk=\n", "line 1: want one YAML document"),
        (b"a: !!set {b}\n", "line 1: want one YAML document"),
        (b"a: !!python/object:os.system {}\n", "line 1: want one YAML document"),
        (b"[" * 60000, "nested too deeply"),
        (b"a: \xff", "want UTF-8, got other bytes at 3"),
        (b"#" * (1024 * 1024 + 1), "want a ModuleConfig of at most 1 MiB, got more"),
    ],
)
def test_a_file_that_is_none_is_refused(
    content: bytes, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(content)

    assert main(["values", str(path)]) == 2
    assert words in capsys.readouterr().err
    assert main(["values", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml: want a file with a ModuleConfig, got No such file" in capsys.readouterr().err
