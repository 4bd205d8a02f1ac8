"""What earlier publications learnt: the sha256 of files for which a source publishes another name only.

A cache: without it, or when it is damaged, those files are read again. It opens nothing by itself: a digest found here
is used only where the repository has a link to that blob (design 4.1).
"""

import json
import logging
from collections.abc import Iterable, Mapping

from aimodels_core import names
from aimodels_core.digest import Digest, GitDigest
from aimodels_core.errors import AiModelsError
from aimodels_core.source import ResolvedSource, SourceFile
from aimodels_jobs.objects import Objects

log = logging.getLogger(__name__)

MAX_BYTES = 16 * 1024 * 1024

Known = Mapping[tuple[str, int], Digest]
"""(git object id, size in bytes) to sha256."""


def _key(resolved: ResolvedSource) -> str:
    return names.known_files(json.dumps([resolved.kind, resolved.canonical, resolved.revision]))


def render(files: Iterable[tuple[GitDigest, int, Digest]]) -> bytes:
    """Render as JSON: `[[git id, size, sha256], …]`, sorted.

    >>> parse(render([(GitDigest("0" * 40), 3, Digest("1" * 64))])) == {("0" * 40, 3): Digest("1" * 64)}
    True
    """
    return json.dumps(sorted([git.hex, size, digest.hex] for git, size, digest in files)).encode()


def parse(data: bytes) -> dict[tuple[str, int], Digest]:
    """Parse what `render` made.

    Raises:
        ValueError: not of that shape.
    """
    return {(str(git), int(size)): Digest(str(digest)) for git, size, digest in json.loads(data)}


def load(objects: Objects, resolved: ResolvedSource) -> Known:
    """Read what is known of a revision's files; empty when nothing is."""
    try:
        data = objects.get(_key(resolved), max_bytes=MAX_BYTES)
        return parse(data) if data else {}
    except (AiModelsError, ValueError, TypeError) as error:
        log.info("known files not readable", extra={"error": type(error).__name__})
        return {}


def save(objects: Objects, resolved: ResolvedSource, files: Mapping[SourceFile, Digest]) -> None:
    """Write what was learnt of a revision's files.

    Raises:
        StoreFull, StoreUnavailable.
    """
    rows = [(file.git_digest, file.size_bytes, digest) for file, digest in files.items() if file.git_digest]
    if rows:
        objects.put(_key(resolved), render(rows))
