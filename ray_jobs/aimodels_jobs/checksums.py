"""Checksums of parts while they pass: what the store and the checkpoint name a part's bytes by."""

import base64
from typing import Protocol

import xxhash
from awscrt import checksums as crt

from aimodels_jobs.orders import ChecksumKind


class Checksum(Protocol):
    """A checksum on its way."""

    def update(self, buffer: memoryview, /) -> object:
        """Take in more bytes."""
        ...

    def hexdigest(self) -> str:
        """Return 16 lower-case hex digits."""
        ...


class _Crc64Nvme:
    __slots__ = ("_value",)

    def __init__(self) -> None:
        self._value = 0

    def update(self, buffer: memoryview, /) -> None:
        self._value = crt.crc64nvme(buffer, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:016x}"


def new(kind: ChecksumKind) -> Checksum:
    """Begin a checksum.

    >>> crc = new(ChecksumKind.CRC64NVME)
    >>> crc.update(memoryview(b"123456789")); crc.hexdigest()
    'ae8b14860a799888'
    """
    match kind:
        case ChecksumKind.CRC64NVME:
            return _Crc64Nvme()
        case ChecksumKind.XXH3:
            found: Checksum = xxhash.xxh3_64()
            return found


def header_value(hexdigest: str) -> str:
    """Render a checksum as S3 headers carry it: base64 of its big-endian bytes.

    >>> header_value("ae8b14860a799888")
    'rosUhgp5mIg='
    """
    return base64.b64encode(bytes.fromhex(hexdigest)).decode("ascii")
