"""The product as users run it: the command line in a process of its own."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perf.support.report import ROOT
from perf.support.source import ORG, Source
from perf.support.spent import Spent, run

_KEPT = ("PATH", "TMPDIR", "LANG", "XDG_CACHE_HOME")
PROGRAM = str(Path(sys.executable).with_name("ai-models"))


def environment(home: Path, more: Mapping[str, str] = {}) -> dict[str, str]:
    """An environment without proxies, tokens and certificates of this machine."""
    home.mkdir(parents=True, exist_ok=True)
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    off = {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "RAY_USAGE_STATS_ENABLED": "0", "NO_COLOR": "1"}
    return {"LANG": "C.UTF-8", **kept, **off, "HOME": str(home), "HF_HOME": str(home / "hf"), **more}


def command(
    source: Source, name: str, store: str, *, s3_endpoint: str = "", workers: int = 0, connections: int = 0
) -> list[str]:
    """The command line that publishes `bench/<name>` as `name`."""
    words = [PROGRAM, "publish", f"https://huggingface.co/{ORG}/{name}", "--name", name, "--endpoint", source.endpoint]
    words += ["--store", store, "--json", "--retry-seconds", "30"]
    for option, value in (
        ("--s3-endpoint", s3_endpoint),
        ("--ca-file", source.ca_file),
        ("--workers", str(workers or "")),
        ("--connections", str(connections or "")),
    ):
        words += [option, value] if value else []
    return words


def published(words: Sequence[str], env: Mapping[str, str], *, deep: bool = False) -> tuple[Spent, Any]:
    """Run a `publish` command; gives what it spent (`deep`: with Ray's processes) and its JSON object."""
    spent = run(words, env=env, cwd=ROOT, deep=deep)
    return spent, json.loads(spent.out)
