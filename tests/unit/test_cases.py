"""The table of cases says the truth: every test file it names has a test of that case."""

import re
from pathlib import Path

import pytest

_TESTS = Path(__file__).parents[1]
_DOCUMENT = _TESTS.parent / "docs/cases.md"
_ROWS = re.findall(r"^\| O-(\d\d) .*\| ([^|]+) \|$", _DOCUMENT.read_text(encoding="utf-8"), re.M)
_UNTESTED = {"56"}
"""A limit that is documented, not a behaviour."""


@pytest.mark.parametrize(("case", "files"), [row for row in _ROWS if row[0] not in _UNTESTED])
def test_every_file_that_the_table_names_tests_the_case(case: str, files: str) -> None:
    found = {name: (_TESTS / name).read_text(encoding="utf-8") for name in files.split(", ")}

    assert [name for name, text in found.items() if not re.search(rf"(def test_\w*|id=\")o{case}[-_]", text)] == []


def test_no_case_is_listed_twice() -> None:
    cases = [case for case, _ in _ROWS]

    assert sorted(set(cases)) == sorted(cases)
    assert len(cases) > 50
