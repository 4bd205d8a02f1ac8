"""A private certificate authority and certificates for 127.0.0.1 and localhost."""

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files in PEM, and a context for servers in this process."""

    ca: Path
    ca_key: Path
    cert: Path
    key: Path

    @property
    def pair(self) -> tuple[Path, Path]:
        """Certificate and key, as servers take them."""
        return self.cert, self.key

    def server_context(self) -> ssl.SSLContext:
        """A context for a server."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        return context


def certificates(folder: Path, *names: str) -> Certificates:
    """Make an authority and one certificate in `folder`, for `names` or 127.0.0.1 and localhost."""
    authority = trustme.CA()
    issued = authority.issue_cert(*(names or ("127.0.0.1", "localhost")))
    made = Certificates(folder / "ca.crt", folder / "ca.key", folder / "tls.crt", folder / "tls.key")
    authority.cert_pem.write_to_path(str(made.ca))
    authority.private_key_pem.write_to_path(str(made.ca_key))
    made.cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(str(made.key))
    return made
