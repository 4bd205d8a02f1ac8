"""`ai-models values`: a ModuleConfig read, values of the chart written. Neither store nor Ray."""

import sys
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from aimodels_core.errors import UsageError
from aimodels_jobs import moduleconfig
from aimodels_jobs.cli import display
from aimodels_jobs.cli.arguments import Command

MAX_BYTES = 1 << 20
"""Of a file: the largest object that etcd takes is not larger."""


def run(command: Command, _env: Mapping[str, str]) -> int:
    """Print the values that a ModuleConfig stands for; returns the exit code.

    Raises:
        UsageError: the file cannot be read, is no ModuleConfig of ours, or has a setting that is wrong or not served.
    """
    found = moduleconfig.values(_parsed(_read(command.config)))
    if found.left_out and not command.leave_out:
        raise UsageError("; ".join(found.left_out) + ". Take it out, or say --leave-out")
    for sentence in found.left_out:
        display.say(f"ai-models: {sentence}: left out")
    if command.json:
        display.out_json(dict(found.values))
    else:
        for line in yaml.safe_dump(dict(found.values), sort_keys=False).splitlines():
            display.out(line)
    return 0


def _read(path: Path) -> str:
    """The text of a file, or of stdin for `-`."""
    name = "stdin" if str(path) == "-" else str(path)
    try:
        if name == "stdin":
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        text = data.decode()
    except OSError as error:
        raise UsageError(f"{name}: want a file with a ModuleConfig, got {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: want UTF-8, got other bytes at {error.start}") from error
    if len(data) > MAX_BYTES:
        raise UsageError(f"{name}: want a ModuleConfig of at most 1 MiB, got more")
    return text


_NOT_JSON = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("timestamp", "binary", "set", "omap", "pairs"))


class _Loader(yaml.SafeLoader):
    """Reads what JSON can say, a date as text; refuses a key that is there twice, and aliases."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - theirs is no ClassVar either
        first: [(tag, pattern) for tag, pattern in found if tag not in _NOT_JSON]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    yaml_constructors = {  # noqa: RUF012 - the same
        tag: made for tag, made in yaml.SafeLoader.yaml_constructors.items() if tag not in _NOT_JSON
    }

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """A node; an alias may make a small document a huge one."""
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "an alias", self.get_mark())
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002 - theirs
        """A mapping, each of whose keys is there once."""
        keys = [key.value for key, _ in node.value]
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            raise yaml.constructor.ConstructorError(None, None, f"{str(twice)[:80]!r} twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _parsed(text: str) -> object:
    """The one document of a text."""
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        got = getattr(error, "problem", None) or "something else"
        raise UsageError(f"{where}want one YAML document without aliases, each key once, got {got}") from error
    except RecursionError as error:
        raise UsageError("want a ModuleConfig, got YAML that is nested too deeply") from error
    finally:
        loader.dispose()
