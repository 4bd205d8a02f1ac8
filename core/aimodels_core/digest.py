"""Digests: parse, render, compare. Hashing in parts lives in `aimodels_jobs.midstate`."""

import dataclasses
import hashlib
import re
from typing import Self

_HEX64 = re.compile(r"[0-9a-f]{64}")
_HEX40 = re.compile(r"[0-9a-f]{40}")


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Digest:
    """A sha256 digest: the name of a blob (OCI image-spec, descriptor.md, "Digests").

    >>> d = Digest.of(b"")
    >>> Digest.parse(str(d)) == d
    True
    """

    hex: str

    def __post_init__(self) -> None:
        if not _HEX64.fullmatch(self.hex):
            raise ValueError(f"digest: want 64 lower-case hex digits, got {self.hex[:80]!r}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `sha256:<hex>`.

        Raises:
            ValueError: another algorithm, alphabet or length.
        """
        algorithm, _, value = text.partition(":")
        if algorithm != "sha256":
            raise ValueError(f"digest: want sha256:<hex>, got {text[:80]!r}")
        return cls(value)

    @classmethod
    def of(cls, data: bytes) -> Self:
        """Hash `data`, all of it in memory."""
        return cls(hashlib.sha256(data).hexdigest())

    def __str__(self) -> str:
        return f"sha256:{self.hex}"


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class GitDigest:
    r"""The git object id of a file: sha1 of `blob <size>\0` and the bytes. What hubs publish for files outside LFS.

    >>> str(GitDigest.of(b"{}\n"))
    'git-sha1:0967ef424bce6791893e9a57bb952f80fd536e93'
    """

    hex: str

    def __post_init__(self) -> None:
        if not _HEX40.fullmatch(self.hex):
            raise ValueError(f"git digest: want 40 lower-case hex digits, got {self.hex[:80]!r}")

    @classmethod
    def of(cls, data: bytes) -> Self:
        """Hash `data` as git does."""
        return cls(hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest())

    def __str__(self) -> str:
        return f"git-sha1:{self.hex}"
