"""Files that an administrator may replace while a server runs: a token, a certificate. The last good one stays.

Files of a mounted Secret change by a renamed link, so what is compared is what the path leads to.
"""

import logging
import ssl
from pathlib import Path

from aimodels_core.errors import UsageError

log = logging.getLogger(__name__)

_MAX_BYTES = 64 * 1024

Signature = tuple[int, int, int]


def read_secret(path: Path) -> str:
    """Read a one-line secret, without the white space around it.

    Raises:
        UsageError: the file cannot be read, or is empty, too long, or has characters that no header carries.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}", code="SecretFile") from error
    text = data.decode("utf-8", "replace").strip()
    if not text or len(data) > _MAX_BYTES or not all(0x21 <= ord(c) <= 0x7E for c in text):
        raise UsageError(f"{path}: want one line of visible ASCII characters", code="SecretFile")
    return text


def _signature(path: Path) -> Signature:
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_ino, found.st_mtime_ns, found.st_size)


class Secret:
    """A secret that follows its file.

    Args:
        path: of the file.

    Raises:
        UsageError: there is no good one to begin with.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._signature = _signature(path)
        self._text = read_secret(path)

    def __call__(self) -> str:
        """Return the secret that is in force."""
        return self._text

    def refresh(self) -> None:
        """Look at the file again."""
        signature = _signature(self._path)
        if signature == self._signature:
            return
        self._signature = signature
        try:
            self._text = read_secret(self._path)
        except UsageError as error:
            log.warning("secret file was not taken over", extra={"error": error.message})


class Certificate:
    """A server's TLS context that follows its two files.

    Args:
        cert: PEM file of the certificate chain.
        key: PEM file of its key.

    Raises:
        UsageError: there is no good pair to begin with.
    """

    def __init__(self, cert: Path, key: Path) -> None:
        self._cert, self._key = cert, key
        self._signatures = (_signature(cert), _signature(key))
        self.context = _loaded(cert, key)

    def refresh(self) -> None:
        """Look at the files again; new connections get the new certificate."""
        signatures = (_signature(self._cert), _signature(self._key))
        if signatures == self._signatures:
            return
        try:
            _loaded(self._cert, self._key)  # a pair that does not match would spoil the live context
            self.context.load_cert_chain(self._cert, self._key)
        except (UsageError, ssl.SSLError, OSError) as error:
            log.warning("certificate was not taken over", extra={"error": type(error).__name__})
            return
        self._signatures = signatures
        log.info("certificate was renewed", extra={"path": str(self._cert)})


def _loaded(cert: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key)
    except (ssl.SSLError, OSError) as error:
        raise UsageError(f"{cert}: want a certificate and its key, got {type(error).__name__}", code="Tls") from error
    return context
