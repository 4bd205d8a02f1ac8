"""Laws of the paths of one model: none escapes, no two meet. Pure."""

import unicodedata
from collections.abc import Iterable, Iterator

from aimodels_core.errors import UnsafeContent
from aimodels_core.source import check_path


def check_all(listed: Iterable[str]) -> None:
    """Refuse paths that escape the model or meet in one place on some file system.

    Raises:
        UnsafeContent: codes UnsafePath, PathCollision.
    """
    seen: dict[str, str] = {}
    for path in listed:
        check_path(path)
        key = fold(path)
        if key in seen:
            raise UnsafeContent(path, code="PathCollision", detail=f"want one file per path, also got {seen[key]!r}")
        seen[key] = path
    for key, path in seen.items():
        for parent in parents(key):
            if parent in seen:
                detail = f"want a folder or a file, got both: {seen[parent]!r} is a file"
                raise UnsafeContent(path, code="PathCollision", detail=detail)


def fold(path: str) -> str:
    """Make paths equal that some file system cannot tell apart: letter case and unicode composition."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def parents(path: str) -> Iterator[str]:
    """Yield the folders above a path.

    >>> list(parents("a/b/c"))
    ['a', 'a/b']
    """
    for index, char in enumerate(path):
        if char == "/":
            yield path[:index]
