"""What a file contains: bytes in memory, a file on disk, or content computed from the offset.

A body is read by range and never has to fit into memory. No HTTP here.
"""

import functools
import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

PIECE_BYTES = 1024 * 1024
"""Largest piece that a caller may ask a body for in one read."""

_PERIOD_BYTES = 1_048_573
"""Period of generated content: a prime, so that equal-sized parts of one file all differ."""

HASHABLE_BYTES = 8 * 1024**3
"""A generated body above this must come with its digest: hashing it would take too long."""


class Body(Protocol):
    """Content of a known size, read by range."""

    @property
    def size_bytes(self) -> int:
        """Number of bytes."""
        ...

    def read(self, start: int, stop: int) -> bytes | memoryview:
        """Bytes of [start, stop), at most PIECE_BYTES long."""
        ...

    def on_disk(self) -> Path | None:
        """The file that holds exactly these bytes, if there is one (for sendfile)."""
        ...


@dataclass(frozen=True, slots=True)
class BytesBody:
    """Content in memory."""

    content: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.content)

    def read(self, start: int, stop: int) -> memoryview:
        return memoryview(self.content)[start:stop]

    def on_disk(self) -> Path | None:
        return None


@dataclass(frozen=True, slots=True)
class FileBody:
    """Content of a file on disk, which must not change while it is served."""

    path: Path

    @property
    def size_bytes(self) -> int:
        return self.path.stat().st_size

    def read(self, start: int, stop: int) -> bytes:
        with self.path.open("rb", buffering=0) as file:
            file.seek(start)
            return file.read(stop - start)

    def on_disk(self) -> Path | None:
        return self.path


@functools.lru_cache(maxsize=16)
def _pattern(seed: int | None) -> memoryview:
    block = bytes(_PERIOD_BYTES) if seed is None else random.Random(seed).randbytes(_PERIOD_BYTES)
    return memoryview(block * 2 + block[: PIECE_BYTES - _PERIOD_BYTES])  # a piece is longer than the period


@dataclass(frozen=True, slots=True)
class GeneratedBody:
    """Content computed from the offset: pseudo-random with a seed, zeros without. Any size, no memory.

    >>> body = GeneratedBody(10**12, seed=1)
    >>> bytes(body.read(5 * 10**11, 5 * 10**11 + 4)) == bytes(body.read(5 * 10**11, 5 * 10**11 + 9))[:4]
    True
    """

    size_bytes: int
    seed: int | None = 0

    def read(self, start: int, stop: int) -> memoryview:
        at = start % _PERIOD_BYTES
        return _pattern(self.seed)[at : at + stop - start]

    def on_disk(self) -> Path | None:
        return None


@dataclass(frozen=True, slots=True)
class RepeatedBody:
    """One byte, over and over."""

    size_bytes: int
    byte: bytes

    def read(self, start: int, stop: int) -> bytes:
        return self.byte * (stop - start)

    def on_disk(self) -> Path | None:
        return None


@dataclass(frozen=True, slots=True)
class JoinedBody:
    """Bodies one after another, for example a real header before generated tensors."""

    bodies: Sequence[Body]

    @property
    def size_bytes(self) -> int:
        return sum(body.size_bytes for body in self.bodies)

    def read(self, start: int, stop: int) -> bytes | memoryview:
        found: list[bytes | memoryview] = []
        at = 0
        for body in self.bodies:
            low, high = max(start, at), min(stop, at + body.size_bytes)
            if low < high:
                found.append(body.read(low - at, high - at))
            at += body.size_bytes
        return found[0] if len(found) == 1 else b"".join(found)

    def on_disk(self) -> Path | None:
        return None


@dataclass(frozen=True, slots=True)
class FlippedBody:
    """Another body with the lowest bit of the byte at `offset` inverted."""

    body: Body
    offset: int

    @property
    def size_bytes(self) -> int:
        return self.body.size_bytes

    def read(self, start: int, stop: int) -> bytes | memoryview:
        piece = self.body.read(start, stop)
        if not start <= self.offset < stop:
            return piece
        changed = bytearray(piece)
        changed[self.offset - start] ^= 1
        return bytes(changed)

    def on_disk(self) -> Path | None:
        return None


@dataclass(frozen=True, slots=True)
class OtherBody:
    """A body of the same size of which every byte differs."""

    body: Body

    @property
    def size_bytes(self) -> int:
        return self.body.size_bytes

    def read(self, start: int, stop: int) -> bytes:
        return bytes(self.body.read(start, stop)).translate(_INVERTED)

    def on_disk(self) -> Path | None:
        return None


_INVERTED = bytes(255 - value for value in range(256))


def pieces(body: Body, start: int = 0, stop: int | None = None) -> Iterator[bytes | memoryview]:
    """Read [start, stop) in pieces of at most PIECE_BYTES."""
    end = body.size_bytes if stop is None else stop
    for at in range(start, end, PIECE_BYTES):
        yield body.read(at, min(end, at + PIECE_BYTES))


def sha256_hex(body: Body) -> str:
    """Hash a whole body.

    Raises:
        ValueError: the body is too large to be hashed for a test; give its digest instead.
    """
    if body.size_bytes > HASHABLE_BYTES:
        raise ValueError(f"body: want a given sha256 above {HASHABLE_BYTES} bytes, got {body.size_bytes} bytes")
    hashing = hashlib.sha256()
    for piece in pieces(body):
        hashing.update(piece)
    return hashing.hexdigest()


def git_blob_hex(body: Body) -> str:
    """Name of a body as a git blob: sha1 of its header and its content."""
    hashing = hashlib.sha1(f"blob {body.size_bytes}\0".encode(), usedforsecurity=False)
    for piece in pieces(body):
        hashing.update(piece)
    return hashing.hexdigest()
