"""Git LFS pointers: the small text that stands in a git tree for a large file. Pure.

Source: git-lfs, docs/spec.md, "The Pointer".
"""

import dataclasses
import re

MAX_BYTES = 1024

_POINTER = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\n(?:ext-[^\n]*\n)*"
    rb"oid sha256:(?P<oid>[0-9a-f]{64})\nsize (?P<size>[0-9]{1,19})\n?"
)


@dataclasses.dataclass(frozen=True, slots=True)
class LfsPointer:
    """What a pointer says of the file that it stands for.

    Args:
        oid: sha256 of the file, 64 hex digits.
        size_bytes: size of the file.
    """

    oid: str
    size_bytes: int


def find(content: bytes) -> LfsPointer | None:
    r"""Read a pointer, or return None if `content` is none. Complete content is needed, not its beginning.

    >>> find(b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 12\n").size_bytes
    12
    >>> find(b"{}") is None
    True
    """
    found = _POINTER.fullmatch(content) if len(content) <= MAX_BYTES else None
    return None if found is None else LfsPointer(found["oid"].decode(), int(found["size"]))
