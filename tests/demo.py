"""The main job with nothing of the user's: two real models from a simulated hub through Ray into ./dmcr.

Run by `make demo`. The hub is a child process and speaks HTTP; everything else is the product as users run it.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aimodels_core.messages import PublicationState
from aimodels_core.units import human_bytes
from aimodels_jobs.cli import arguments, assembly
from tests.support import models
from tests.support.hub.limits import Limits
from tests.support.hub.server import Hub

STORE = Path("dmcr")
PULLED = Path("build/demo")
WORKERS = 2
MODELS = {"minilm": models.MINILM, "gemma": models.GEMMA_GGUF}


def main() -> int:
    """Run the demo; returns 0 when every step did what it should."""
    started = time.monotonic()
    for folder in (STORE, PULLED):
        shutil.rmtree(folder, ignore_errors=True)
    say("1. A simulated hub serves two real models: all-MiniLM-L6-v2 (safetensors) and Gemma 3 270M (GGUF).")
    with Hub(limits=Limits.unlimited()) as hub:
        hub.add(models.minilm())
        hub.add(models.gemma_gguf())
        first = asyncio.run(publish_all(hub.url))
        say("\n3. Again: the store has every byte, so nothing moves and no Ray starts.")
        again = {name: run("publish", repo, "--name", name, "--endpoint", hub.url) for name, repo in MODELS.items()}
    say("\n4. Out of the store into folders, with the hub gone; every byte is compared with its digest, twice.")
    rows = []
    for name in MODELS:
        run("pull", name, "--to", str(PULLED / name))
        run("verify", name)
        run("verify", "--dir", str(PULLED / name))
        rows.append(row(name, first[name], again[name], load(PULLED / name)))
    say("")
    print_table(("MODEL", "PUBLISHED, FROM NOTHING", "PUBLISHED AGAIN", "PULLED, VERIFIED, LOADED"), rows)
    say(f"\nDone in {time.monotonic() - started:.0f} s. The store is in {STORE}/, the pulled folders are in {PULLED}/.")
    say("Look at it with: .venv/bin/ai-models ls")
    return 0 if all(result["bytesTransferred"] == 0 and result["engine"] == "none" for result in again.values()) else 1


async def publish_all(endpoint: str) -> dict[str, tuple[PublicationState, float]]:
    """Publish both models at once through one Ray: in one process, as a notebook would."""
    say(f"\n2. Publish both at once through {WORKERS} Ray workers; starting Ray takes most of the time.")
    began = time.monotonic()
    line = ("publish", "-", "--name", "demo", "--endpoint", endpoint, "--workers", str(WORKERS))
    coordinator, _ = assembly.open_coordinator(arguments.parse(line), os.environ)
    await coordinator.start()
    try:
        await coordinator.own(budget_seconds=10)

        async def publish(name: str, repo: str) -> tuple[PublicationState, float]:
            command = arguments.parse(("publish", repo, "--name", name, "--endpoint", endpoint))
            want = assembly.want_of(command)
            await coordinator.put(want)
            state = await coordinator.ended(want.uid)
            if state.published is None:
                raise SystemExit(f"{name}: {state.trouble}")
            seconds = time.monotonic() - began
            say(f"   {name}: {human_bytes(state.bytes_transferred)} moved and verified, {seconds:.1f} s")
            return state, seconds

        results = await asyncio.gather(*(publish(name, repo) for name, repo in MODELS.items()))
    finally:
        await coordinator.close()
    return dict(zip(MODELS, results, strict=True))


def run(*words: str) -> Any:
    """Run the command line as a user would; returns its JSON object. Its progress is shown when it failed."""
    say(f"   $ ai-models {' '.join(words)}")
    command = [str(Path(sys.executable).with_name("ai-models")), *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise SystemExit(f"{done.stderr}exit code {done.returncode}: {' '.join(command)}")
    return json.loads(done.stdout)


def load(folder: Path) -> str:
    """Load the weights with the libraries that everybody uses."""
    weights = sorted(folder.rglob("*.safetensors"))
    if weights:
        from safetensors import safe_open

        with safe_open(weights[0], framework="np") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - not a dictionary
        return f"{len(tensors)} tensors, {sum(t.size for t in tensors.values()):,} parameters (safetensors)"
    from gguf import GGUFReader

    reader = GGUFReader(next(folder.rglob("*.gguf")))
    architecture = reader.fields["general.architecture"].contents()
    return f"{len(reader.tensors)} tensors, architecture {architecture} (gguf)"


def row(name: str, first: tuple[PublicationState, float], again: Any, loaded: str) -> tuple[str, ...]:
    """Make a line of the table at the end."""
    state, seconds = first
    return (
        name,
        f"{human_bytes(state.bytes_transferred)} moved, {seconds:.1f} s",
        f"{again['bytesTransferred']} bytes moved, {again['seconds']:.1f} s",
        loaded,
    )


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under a header, columns aligned."""
    widths = [max(len(line[i]) for line in (header, *rows)) for i in range(len(header))]
    for line in (header, *rows):
        say("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def say(line: str) -> None:
    """Print at once."""
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
