"""Files that may be replaced while a process runs: tokens, keys, certificates. The last good ones stay in force.

Files of a mounted Secret change by a renamed link, so what is compared is what the path leads to.
"""

import logging
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from aimodels_core.errors import UsageError

log = logging.getLogger(__name__)

_MAX_BYTES = 64 * 1024

T = TypeVar("T")
Signature = tuple[int, int, int]


def read_bytes(path: Path) -> bytes:
    """Read a small file.

    Raises:
        UsageError: it cannot be read, or is longer than 64 KiB.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}", code="SecretFile") from error
    if len(data) > _MAX_BYTES:
        raise UsageError(f"{path}: want at most {_MAX_BYTES} bytes", code="SecretFile")
    return data


def read_secret(path: Path) -> str:
    """Read a one-line secret, without the white space around it.

    Raises:
        UsageError: the file cannot be read, or is empty, too long, or has characters that no header carries.
    """
    text = read_bytes(path).decode("utf-8", "replace").strip()
    if not text or not all(0x21 <= ord(c) <= 0x7E for c in text):
        raise UsageError(f"{path}: want one line of visible ASCII characters", code="SecretFile")
    return text


def _signature(path: Path) -> Signature:
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_ino, found.st_mtime_ns, found.st_size)


class Followed(Generic[T]):
    """A value made of files, made again when they change.

    Args:
        paths: of the files.
        load: makes the value from them; raises UsageError when they are no good, or do not fit together yet.

    Raises:
        UsageError: they are no good to begin with.
    """

    def __init__(self, paths: Sequence[Path], load: Callable[[], T]) -> None:
        self._paths, self._load = tuple(paths), load
        self._taken = self._seen = self._signatures()
        self._value = load()

    def __call__(self) -> T:
        """Return the value that is in force."""
        return self._value

    def refresh(self) -> bool:
        """Look at the files again; returns whether a new value was taken over."""
        signatures = self._signatures()
        if signatures == self._taken:
            return False
        try:
            self._value = self._load()
        except UsageError as error:
            if signatures != self._seen:
                log.warning("changed files were not taken over", extra={"error": error.message})
            self._seen = signatures
            return False
        self._taken = self._seen = signatures
        log.info("changed files were taken over", extra={"path": str(self._paths[0])})
        return True

    def _signatures(self) -> tuple[Signature, ...]:
        return tuple(_signature(path) for path in self._paths)


class Secret(Followed[str]):
    """A one-line secret that follows its file.

    Args:
        path: of the file.

    Raises:
        UsageError: there is no good one to begin with.
    """

    def __init__(self, path: Path) -> None:
        super().__init__((path,), lambda: read_secret(path))


class Certificate(Followed[ssl.SSLContext]):
    """A server's TLS context that follows its two files; the context stays the same object.

    Args:
        cert: PEM file of the certificate chain.
        key: PEM file of its key.

    Raises:
        UsageError: there is no good pair to begin with.
    """

    def __init__(self, cert: Path, key: Path) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context = context

        def load() -> ssl.SSLContext:
            # First into another context: a pair that does not match would spoil the live one.
            for one in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):
                _load_pair(one, cert, key)
            return context

        super().__init__((cert, key), load)


def _load_pair(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    try:
        context.load_cert_chain(cert, key)
    except (ssl.SSLError, OSError) as error:
        raise UsageError(f"{cert}: want a certificate and its key, got {type(error).__name__}", code="Tls") from error
