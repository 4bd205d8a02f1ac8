"""The command line is parsed once, at once, and wrong words are refused before anything happens."""

import re
from pathlib import Path

import pytest

from aimodels_jobs.cli import arguments

COMMANDS = ("plan", "publish", "ls", "pull", "verify", "rm", "gc", "doctor", "values")


def _refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        arguments.parse(words)
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_defaults_are_a_folder_here_and_ten_minutes_of_retries() -> None:
    command = arguments.parse(("publish", "org/repo", "--name", "m"))

    assert (command.store.store, command.move.workers, command.move.retry_seconds) == ("./dmcr", 0, 600.0)


def test_every_option_arrives() -> None:
    words = (
        "publish org/repo --name m --workers 3 --connections 40 --retry-seconds 1.5 --revision v1 --endpoint http://h"
    )
    more = "--allow-host a --allow-host b --refuse-pickle --store s3://b/p --s3-endpoint http://s --ca-file f --json -v"
    command = arguments.parse((*words.split(), *more.split()))

    assert (command.name, command.model, command.json, command.verbose) == ("publish", "m", True, True)
    assert command.store == arguments.StoreOptions("s3://b/p", "http://s", "f")
    assert command.source == arguments.SourceOptions("org/repo", "v1", "http://h", ("a", "b"), refuse_pickle=True)
    assert command.move == arguments.MoveOptions(3, 40, 1.5)


def test_verify_takes_a_folder_instead_of_a_name() -> None:
    command = arguments.parse(("verify", "--dir", "some/folder"))

    assert (command.model, command.directory) == ("", Path("some/folder"))


@pytest.mark.parametrize("text", ["", "0", "-1", "1025", "abc", "1.5", "²", "0000000001", "9" * 5000])
def test_a_count_that_is_none_is_refused_with_what_was_wanted(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = _refused(capsys, "publish", "org/repo", "--name", "m", f"--workers={text}")

    assert "want a number from 1 to 1024" in shown
    assert len(shown) < 2000


@pytest.mark.parametrize("text", ["", "-1", "nan", "inf", "abc", "604801"])
def test_seconds_that_are_none_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "want seconds from 0 to 604800" in _refused(
        capsys, "publish", "org/repo", "--name", "m", f"--retry-seconds={text}"
    )


@pytest.mark.parametrize("name", ["", "a\nb", "\x1b[31m", "x" * 513, "\udcff"])
@pytest.mark.parametrize("command", [("pull", "--to", "d"), ("verify",), ("rm",), ("publish", "org/repo")])
def test_a_name_that_cannot_be_one_is_refused(
    name: str, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*command, f"--name={name}") if command[0] == "publish" else (*command, name)

    assert "\x1b" not in _refused(capsys, *words)


@pytest.mark.parametrize("name", ["Ünï cödé/ x", "[red]", "..", "a b", "MODEL"])
def test_an_odd_name_is_a_name(name: str) -> None:
    assert arguments.parse(("rm", name)).model == name


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_says_what_each_option_means(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit) as ended:
        arguments.parse((command, "--help"))

    shown = capsys.readouterr().out
    options = [line for line in shown.splitlines() if re.match(r"  \S", line)]
    assert ended.value.code == 0
    assert [line for line in options if len(re.split(r"\s{2,}", line.strip())) < 2] == []


def test_help_lists_the_commands_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments.parse(("--help",))

    shown = capsys.readouterr().out
    assert [command for command in COMMANDS if f"\n    {command} " not in shown] == []
    assert [code for code in ("0 done", "75 ", "130, 143") if code not in shown] == []
