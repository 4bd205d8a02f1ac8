"""Documents say what is: commands exist, links lead somewhere, decisions are complete."""

import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_DOCUMENTS = sorted([*_ROOT.glob("*.md"), *_ROOT.glob("docs/**/*.md"), *_ROOT.glob("perf/*.md")])
_DECISIONS = sorted(_ROOT.glob("docs/adr/[0-9]*.md"))


def _id(path: Path) -> str:
    return path.relative_to(_ROOT).as_posix()


def _targets() -> set[str]:
    makefiles = [_ROOT / "Makefile", *_ROOT.glob("tests/**/*.mk")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in makefiles)
    return set(re.findall(r"^([a-z-]+):(?!=)", text, re.M))


def _make_commands(text: str) -> set[str]:
    """Targets of `make` in code: at the start of a line of a block, or right after a backtick."""
    blocks = "\n".join(re.findall(r"^```[a-z]*\n(.*?)^```", text, re.M | re.S))
    return set(re.findall(r"^(?:\$ )?make ([a-z-]+)", blocks, re.M)) | set(re.findall(r"`make ([a-z-]+)", text))


@pytest.mark.parametrize("document", _DOCUMENTS, ids=_id)
def test_commands_in_documents_are_make_targets(document: Path) -> None:
    unknown = _make_commands(document.read_text(encoding="utf-8")) - _targets()

    assert unknown == set()


@pytest.mark.parametrize("document", _DOCUMENTS, ids=_id)
def test_links_to_files_lead_to_files(document: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
    local = [link for link in links if not re.match(r"[a-z]+:", link)]

    assert [link for link in local if not (document.parent / link).exists()] == []


def test_continuous_integration_runs_the_test_command() -> None:
    script = _ROOT / ".ci/run"
    lines = script.read_text(encoding="utf-8").splitlines()

    assert script.stat().st_mode & 0o111
    assert [line for line in lines if "make" in line] == ["exec make test"]


def test_decisions_are_numbered_without_gaps() -> None:
    assert [int(path.name[:4]) for path in _DECISIONS] == list(range(1, len(_DECISIONS) + 1))


@pytest.mark.parametrize("decision", _DECISIONS, ids=_id)
def test_decision_says_why_and_what_follows(decision: Path) -> None:
    text = decision.read_text(encoding="utf-8")
    headings = re.findall(r"^## (.+)$", text, re.M)

    assert text.startswith(f"# {decision.name[:4]} ")
    assert re.search(r"^Status: (proposed|accepted|superseded by \d{4})$", text, re.M)
    assert {"Context", "Decision", "Consequences"} <= set(headings)


def test_every_module_has_its_place_in_the_architecture() -> None:
    rooms = (_ROOT / "docs/architecture.md").read_text(encoding="utf-8").partition("\n## Rooms\n")[2]
    listed = set(re.findall(r"`([a-z_0-9]+)`", rooms))
    roots = ("core", "ray_jobs", "nodecache", "operator")
    modules = {path.stem for root in roots for path in (_ROOT / root).rglob("*.py")} - {"__init__"}

    assert sorted(modules - listed) == []


def test_the_architecture_lists_no_module_that_is_gone() -> None:
    rooms = (_ROOT / "docs/architecture.md").read_text(encoding="utf-8").partition("\n### ")[2]
    rows = re.findall(r"^\| ((?:[^|]*`[a-z_0-9]+`)+) \|", rooms, re.M)
    listed = set(re.findall(r"`([a-z_0-9]+)`", "\n".join(rows))) - {"cli", "sources"}
    modules = {path.stem for path in _ROOT.glob("*/aimodels_*/**/*.py")}

    assert sorted(listed - modules) == []


def test_help_names_every_command_of_the_readme() -> None:
    readme = (_ROOT / "README.md").read_text(encoding="utf-8")
    documented = [*re.findall(r"^\| `([a-z]+)[ `]", readme, re.M), "gc"]
    shown = re.findall(r'add\("([a-z]+)"', (_ROOT / "ray_jobs/aimodels_jobs/cli/arguments.py").read_text("utf-8"))

    assert sorted(documented) == sorted(shown)
