"""What people see: nothing steers their terminal, nothing is said twice, rates and totals are true."""

import io
import json
import logging
import sys

import pytest

from aimodels_core.errors import NotPublished, PermanentError, UsageError
from aimodels_core.messages import PublicationState, Stage, Trouble
from aimodels_jobs.cli import display

MIB = 1024 * 1024


def _state(stage: Stage, **fields: object) -> PublicationState:
    return PublicationState("u", 1, "h", stage=stage, **fields)  # type: ignore[arg-type]  # fields of the test's choice


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_would_steer_a_terminal_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    display.out("a\x1b[31mb\r\x9b\x07\nc\td")

    assert capsys.readouterr().out == "a\\x1b[31mb\\x0d\\x9b\\x07\\x0ac\\x09d\n"


def test_a_stream_that_cannot_write_a_letter_gets_it_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))

    display.out("ü \udcff")

    assert raw.getvalue() == b"\\xfc \\udcff\n"


def test_json_is_one_line_of_ascii_that_means_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"name": "Ünï\x1b\x9b\n", "bad": "\udcff"}

    display.out_json(value)

    line = capsys.readouterr().out
    assert (line.isascii(), line.count("\n")) == (True, 1)
    assert json.loads(line) == value


def test_an_error_shows_its_code_only_when_that_says_more(capsys: pytest.CaptureFixture[str]) -> None:
    for error in (UsageError("a"), NotPublished("b"), PermanentError("c", code="NoBucket"), UsageError("d", code="d")):
        display.complain(error)

    assert capsys.readouterr().err.splitlines() == [
        "ai-models: a",
        "ai-models: b",
        "ai-models: c (NoBucket)",
        "ai-models: d",
    ]


def test_plain_progress_says_each_stage_once_and_the_end_not_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    clock = _Clock()
    progress = display.Progress("m", clock=clock)
    trouble = Trouble("PublicationFailed", "NoWeights", "no weights", retryable=False)

    for stage in (Stage.QUEUED, Stage.RESOLVING, Stage.RESOLVING, Stage.PLANNING):
        progress.show(_state(stage))
    progress.show(_state(Stage.FAILED, trouble=trouble))
    progress.show(_state(Stage.READY))
    progress.close()

    assert capsys.readouterr().err.splitlines() == ["m: resolving", "m: planning"]


def test_plain_progress_of_a_long_move_is_a_line_every_few_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    clock = _Clock()
    progress = display.Progress("m", clock=clock)

    for second in range(12):
        clock.now = float(second)
        done = second * MIB
        progress.show(
            _state(
                Stage.MOVING,
                bytes_total=100 * MIB,
                bytes_done=done,
                bytes_transferred=done,
                bytes_per_second=float(MIB),
            )
        )

    assert capsys.readouterr().err.splitlines() == [
        "m: moving 0 B of 100.0 MiB (0%)",
        "m: moving 5.0 MiB of 100.0 MiB (5%), 1.0 MiB/s",
        "m: moving 10.0 MiB of 100.0 MiB (10%), 1.0 MiB/s",
    ]


def test_reused_bytes_have_no_rate_and_do_not_move() -> None:
    whole = _state(Stage.MOVING, bytes_total=MIB, bytes_done=MIB, bytes_reused=MIB, bytes_per_second=1e9)
    half = _state(Stage.MOVING, bytes_total=2 * MIB, bytes_done=MIB, bytes_reused=MIB, bytes_per_second=1e9)

    assert display.describe(whole) == "nothing to move: the store has all 1.0 MiB"
    assert display.describe(half) == "moving 1.0 MiB of 2.0 MiB (50%)"


def test_a_wait_says_which_attempt_failed_and_why() -> None:
    trouble = Trouble("PublicationFailed", "DnsFailed", "hub: name not resolved", retryable=True)

    shown = display.describe(_state(Stage.WAITING, trouble=trouble, attempt=2))

    assert shown == "attempt 2 failed, trying again: hub: name not resolved"


def test_a_log_line_has_time_message_and_variables_and_no_more() -> None:
    record = logging.makeLogRecord(
        {"levelname": "WARNING", "msg": "run failed", "created": 1.5, "path": "a\nb", "attempt": 2, "name": "x.y"}
    )
    record.__dict__["_of_a_library"] = 1

    assert display.LogLines().format(record) == "1970-01-01T00:00:01.500Z WARNING run failed path=a\\x0ab attempt=2"


def test_columns_are_aligned_and_the_last_one_is_not_padded(capsys: pytest.CaptureFixture[str]) -> None:
    display.table(("NAME", "SIZE"), [("a", "1 B"), ("longer", "10.0 MiB")])

    assert capsys.readouterr().out.splitlines() == ["NAME    SIZE", "a       1 B", "longer  10.0 MiB"]


def test_a_counter_says_nothing_of_what_is_quick_and_a_line_every_few_seconds_of_what_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = _Clock()
    with display.Counter("m", "pulling", 100 * MIB, clock=clock) as counter:
        for second in range(12):
            clock.now = float(second)
            counter.add(MIB)

    assert capsys.readouterr().err.splitlines() == [
        "m: pulling 6.0 MiB of 100.0 MiB, 1.2 MiB/s",
        "m: pulling 11.0 MiB of 100.0 MiB, 1.1 MiB/s",
    ]
