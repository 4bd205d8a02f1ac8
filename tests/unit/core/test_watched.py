"""Files that are replaced while somebody runs, and the log lines of servers."""

import json
import logging
import os
from pathlib import Path

import pytest

from aimodels_core.errors import UsageError
from aimodels_core.serving import JsonLines
from aimodels_core.watched import Followed, Secret, read_bytes


def replace(path: Path, text: str) -> None:
    """As a mounted Secret changes: the name leads to another file."""
    made = path.with_name(f"{path.name}.{len(text)}.{os.urandom(4).hex()}")
    made.write_text(text)
    made.replace(path)


def test_a_secret_follows_its_file_and_the_last_good_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first\n")
    secret = Secret(path)
    seen = [secret()]
    for text in ("second", "", "a b", "third"):
        replace(path, text)
        seen.append(f"{secret.refresh()} {secret()}")

    assert seen == ["first", "True second", "False second", "False second", "True third"]
    assert not secret.refresh()


def test_files_that_do_not_fit_yet_are_looked_at_again_though_they_did_not_change(tmp_path: Path) -> None:
    fits, path = [True], tmp_path / "a"
    path.write_text("one")

    def load() -> bytes:
        if not fits[0]:
            raise UsageError("a: does not fit")
        return read_bytes(path)

    followed = Followed((path,), load)
    fits[0] = False
    replace(path, "two!")
    assert not followed.refresh()
    fits[0] = True
    assert followed.refresh()

    assert followed() == b"two!"


def test_a_refusal_is_logged_once_for_one_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "token"
    path.write_text("first")
    secret = Secret(path)
    replace(path, "not one line")
    for _ in range(3):
        secret.refresh()

    assert [record.message for record in caplog.records] == ["changed files were not taken over"]
    assert "not one line" not in repr(vars(caplog.records[0]))


def test_large_and_missing_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("x" * 70_000)

    for one in (path, tmp_path / "nowhere", tmp_path):
        with pytest.raises(UsageError, match=str(one)):
            Secret(one)


def test_a_log_line_is_json_with_its_fields() -> None:
    fields = {"name": "a.b", "levelno": logging.WARNING, "levelname": "WARNING", "msg": "it %s", "args": ("went",)}
    record = logging.makeLogRecord({**fields, "created": 0.5, "path": Path("/x"), "count": 3, "_mark": 1})
    line = json.loads(JsonLines().format(record))

    assert line == {
        "at": "1970-01-01T00:00:00.500+00:00",
        "level": "warning",
        "logger": "a.b",
        "message": "it went",
        "path": "/x",
        "count": 3,
    }
