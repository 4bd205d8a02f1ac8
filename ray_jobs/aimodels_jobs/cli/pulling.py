"""Pulls into folders, from a store or from a registry, and the end of such folders. Imports neither stores nor Ray."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from aimodels_core import dmcr, pull
from aimodels_core.blobs import Blobs
from aimodels_core.digest import Digest
from aimodels_core.dmcr import Place
from aimodels_core.errors import Cancelled, UsageError
from aimodels_core.oci import Manifest
from aimodels_core.registry import Registry
from aimodels_core.transport import Transport
from aimodels_core.units import human_bytes
from aimodels_jobs.cli import display, stopping
from aimodels_jobs.cli.arguments import Command


def run(command: Command, blobs: Blobs, digest: Digest, manifest: Manifest) -> int:
    """Write an artifact into a folder, with progress; returns the exit code."""
    if command.directory is None:
        raise UsageError("pull: want --to DIR")
    name = command.model or str(digest)
    total = sum({layer.digest: layer.size_bytes for layer in manifest.layers}.values())
    with stopping.on_signals() as stop, display.Counter(name, "pulling", total) as counter:
        hooks = pull.Hooks(progress=counter.add, cancelled=stop.asked)
        try:
            done = pull.pull(blobs, digest, command.directory, hooks=hooks)
        except Cancelled:
            display.say("stopped; run the same command again to go on from here")
            return stop.exit_code
    if command.json:
        display.out_json({"name": name, **display.camel(dataclasses.asdict(done)), "digest": str(digest)})
        return 0
    size, read = human_bytes(done.bytes_total), human_bytes(done.bytes_transferred)
    where = "registry" if command.registry.address else "store"
    display.out(
        f"{command.directory}: {done.files} files, {size} in {done.seconds:.1f} s: {read} read from the {where}"
    )
    return 0


def from_registry(command: Command, _env: Mapping[str, str]) -> int:
    """Write an artifact of a registry into a folder; returns the exit code.

    Raises:
        UsageError: the address, or a file that is named.
        AiModelsError: of any other kind: the registry, the artifact, the disk.
    """
    options = command.registry
    if command.model:
        raise UsageError("pull: want either NAME or --from ADDRESS")
    try:
        url, repository, digest = dmcr.parse_address(options.address)
    except UsageError as error:
        raise UsageError(f"--from: {error.message}") from error
    place = Place(url, options.token_file, options.redirect_url)
    transport = Transport(dmcr.rules_of(place), ca_file=command.store.ca_file)
    credential = place.credential if options.token_file else lambda: ""
    try:
        registry = Registry(url, repository, transport=transport, credential=credential)
        return run(command, registry, digest, pull.checked(registry.manifest(digest), digest))
    finally:
        transport.close()


def remove(command: Command, folder: Path) -> int:
    """Remove a folder made by pull; returns the exit code."""
    there = pull.drop(folder)
    if command.json:
        display.out_json({"directory": str(folder), "removed": there})
    else:
        display.out(f"{folder}: " + ("removed" if there else "was not there"))
    return 0
