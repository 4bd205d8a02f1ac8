"""Where a pull reads from: one protocol, implemented by the registry reader and by stores."""

from typing import Protocol

from aimodels_core.digest import Digest


class Blobs(Protocol):
    """Content named by digest. Calls block, have deadlines and are safe from several threads."""

    def manifest(self, digest: Digest) -> bytes:
        """Return the bytes of a manifest.

        Raises:
            NotPublished: there is none of that digest.
            DigestMismatch, ArtifactInvalid, and errors of the place.
        """
        ...

    def read(self, digest: Digest, size_bytes: int, start: int, into: memoryview) -> None:
        """Fill `into` with the bytes of a blob of `size_bytes` from `start` on; the caller hashes them.

        Raises:
            NotPublished: there is no such blob, and errors of the place.
        """
        ...
