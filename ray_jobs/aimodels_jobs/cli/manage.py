"""The commands that need no movers: ls, pull, verify, rm, gc, doctor."""

import contextlib
import dataclasses
import importlib.metadata
import json
import platform
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from aimodels_core import folders, modelpack, names, oci, proxies
from aimodels_core import pull as pulling
from aimodels_core.digest import Digest
from aimodels_core.errors import AiModelsError, NotPublished, UsageError
from aimodels_core.oci import Manifest
from aimodels_core.units import human_bytes
from aimodels_jobs import midstate
from aimodels_jobs.cli import assembly, display
from aimodels_jobs.cli import pulling as pulling_command
from aimodels_jobs.cli.arguments import Command
from aimodels_jobs.collection import Collector
from aimodels_jobs.layout import Store
from aimodels_jobs.objects import Objects
from aimodels_jobs.storeblobs import StoreBlobs, manifest_of, sizes, verify_blobs
from aimodels_jobs.writer import writer_of

EXIT_DIFFERENT = 3
_WRITER_WAIT_SECONDS = 30.0
_PACKAGES = ("ai-models", "ray", "botocore", "huggingface_hub", "pyarrow")

Env = Mapping[str, str]


def _store(command: Command, env: Env) -> Store:
    return Store(assembly.open_objects(command.store, env, create=False))


@contextlib.contextmanager
def _writing(objects: Objects) -> Iterator[None]:
    """Hold the right to write meanwhile."""
    writer = writer_of(objects)
    writer.acquire(_WRITER_WAIT_SECONDS)
    try:
        yield
    finally:
        writer.release()


def _find(store: Store, name: str) -> tuple[Digest, Manifest]:
    """Find a model by the name that a person gave it.

    Raises:
        NotPublished: no model of that name.
    """
    tag = names.model_tag(name)
    try:
        store.resolve_tag(names.LOCAL, tag)
    except NotPublished as error:
        where = store.objects.description
        raise NotPublished(f"{name}: want a model of this store, got none of that name ({where})") from error
    return manifest_of(store, names.LOCAL, tag)


def _name(store: Store, tag: str) -> str:
    """Find the name that a person gave to a tag."""
    if not names.is_mapped(tag):
        return tag
    data = store.objects.get(names.name_record(tag), max_bytes=4 * names.MAX_NAME_CHARS)
    return data.decode("utf-8", "replace") if data else tag


def ls(command: Command, env: Env) -> int:
    """List the models of the store."""
    found = []
    with contextlib.suppress(NotPublished):
        store = _store(command, env)
        for tag in store.tagged(names.LOCAL):
            digest, manifest = manifest_of(store, names.LOCAL, tag)
            config = json.loads(store.read_blob(manifest.config.digest, max_bytes=modelpack.MAX_CONFIG_BYTES))
            found.append((_name(store, tag), digest, manifest, config.get("config", {})))
    if command.json:
        models = [
            {"name": name, "digest": str(digest), "sizeBytes": manifest.size_bytes, "files": len(manifest.layers)}
            | config
            for name, digest, manifest, config in found
        ]
        display.out_json({"models": models, "sizeBytes": sizes(manifest for _, _, manifest, _ in found)})
        return 0
    rows = [
        (name, human_bytes(manifest.size_bytes), config.get("format", ""), config.get("paramSize", ""), str(digest))
        for name, digest, manifest, config in found
    ]
    if rows:
        display.table(("NAME", "SIZE", "FORMAT", "PARAMETERS", "DIGEST"), rows)
    else:
        display.say(f"no models in {command.store.store}; publish one with: ai-models publish SOURCE --name NAME")
    return 0


def pull(command: Command, env: Env) -> int:
    """Write a model into a folder."""
    if not command.model:
        raise UsageError("pull: want NAME or --from ADDRESS")
    store = _store(command, env)
    digest, manifest = _find(store, command.model)
    return pulling_command.run(command, StoreBlobs(store, names.LOCAL), digest, manifest)


def verify(command: Command, env: Env) -> int:
    """Compare a model in the store, or a folder, with its digests."""
    if bool(command.model) == bool(command.directory):
        raise UsageError("verify: want either NAME or --dir DIR")
    subject = command.model or str(command.directory)
    faults = _folder_faults(command.directory) if command.directory else _store_faults(command, env)
    if command.json:
        display.out_json({"subject": subject, "same": not faults, "differences": faults})
    elif faults:
        display.table(("FILE", "WANT", "GOT"), [(f["path"], f["want"], f["got"]) for f in faults])
    else:
        display.out(f"{subject}: every byte is as published")
    return EXIT_DIFFERENT if faults else 0


def _store_faults(command: Command, env: Env) -> list[dict[str, str]]:
    store = _store(command, env)
    _, manifest = _find(store, command.model)
    total = sum({item.digest: item.size_bytes for item in (manifest.config, *manifest.layers)}.values())
    with display.Counter(command.model, "verifying", total) as counter:
        return [dataclasses.asdict(fault) for fault in verify_blobs(store, names.LOCAL, manifest, done=counter.add)]


def _folder_faults(folder: Path) -> list[dict[str, str]]:
    """Compare a pulled folder with the manifest that lies in it."""
    try:
        with (folder / folders.MARKER).open("rb") as file:
            data = file.read(oci.MAX_MANIFEST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{folder}: want a folder made by pull, got none ({error.strerror})") from error
    differences = pulling.verify_folder(oci.parse_manifest(data), folder)
    return [
        {"path": item.path, "want": _said(item.kind, item.want), "got": _said(item.kind, item.got)}
        for item in differences
    ]


def _said(kind: folders.DifferenceKind, value: str) -> str:
    return f"{value} bytes" if kind is folders.DifferenceKind.SIZE else value or "nothing"


def remove(command: Command, env: Env) -> int:
    """Remove a model, whose blobs go with the next gc, or a folder."""
    if bool(command.model) == bool(command.directory):
        raise UsageError("rm: want either NAME or --dir DIR")
    if command.directory:
        return pulling_command.remove(command, command.directory)
    store = _store(command, env)
    _find(store, command.model)
    tag = names.model_tag(command.model)
    with _writing(store.objects):
        store.remove(names.LOCAL, tag)
        if names.is_mapped(tag):
            store.objects.delete(names.name_record(tag))
    if command.json:
        display.out_json({"name": command.model, "removed": True})
    else:
        display.out(f"{command.model}: removed; its space is freed by: ai-models gc")
    return 0


def gc(command: Command, env: Env) -> int:
    """Delete blobs that no model uses."""
    store = _store(command, env)
    with _writing(store.objects):
        freed = Collector(store).collect(frozenset(), now=True)
    if command.json:
        display.out_json(display.camel(dataclasses.asdict(freed)))
    else:
        display.out(f"{freed.blobs} blobs deleted, {human_bytes(freed.size_bytes)} freed")
    return 0


def doctor(command: Command, env: Env) -> int:
    """Examine the store and this installation."""
    backend = midstate.backend()
    rows = [("python", "ok", f"{platform.python_version()} on {platform.platform()}")]
    rows += [(name, *_version(name)) for name in _PACKAGES]
    rows.append(("hash backend", "ok", f"{backend}" + ("" if backend == "libcrypto" else ": one mover per file")))
    rows += _proxies(env)
    fatal = any(result == "FAILED" for _, result, _ in rows)
    try:
        objects = assembly.open_objects(command.store, env, create=False)
        rows.append(("store", "ok", objects.description))
        holder = writer_of(objects).holder
        rows.append(("writer", "ok", holder or "nobody writes"))
        for finding in objects.probe(anew=True):
            fatal = fatal or (finding.fatal and not finding.passed)
            rows.append(
                (finding.name, "ok" if finding.passed else "FAILED" if finding.fatal else "warning", finding.detail)
            )
    except NotPublished:
        rows.append(("store", "ok", f"none yet at {command.store.store}; the first publication makes it"))
    except AiModelsError as error:
        fatal = True
        rows.append(("store", "FAILED", error.message))
    if command.json:
        display.out_json(
            {"healthy": not fatal, "checks": [dict(zip(("name", "result", "detail"), r, strict=True)) for r in rows]}
        )
    else:
        display.table(("CHECK", "RESULT", "DETAIL"), rows)
    return 1 if fatal else 0


def _proxies(env: Env) -> list[tuple[str, str, str]]:
    """Say which proxies requests to the hub go through, or what is wrong with them."""
    try:
        found = proxies.from_env(env)
    except UsageError as error:
        return [("proxy", "FAILED", error.message)]
    named = (("proxy for https", found.https), ("proxy for http", found.http))
    return [(name, "ok", str(proxy)) for name, proxy in named if proxy is not None]


def _version(package: str) -> tuple[str, str]:
    try:
        return "ok", importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent", "not installed; install the extra `jobs` for it"


COMMANDS: Mapping[str, Callable[[Command, Any], int]] = {
    "ls": ls,
    "pull": pull,
    "verify": verify,
    "rm": remove,
    "gc": gc,
    "doctor": doctor,
}
