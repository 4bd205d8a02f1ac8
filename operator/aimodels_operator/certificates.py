"""Authorities and the certificates that they issue: made, and judged. EC P-256, PEM.

Time comes from the caller; what is made is new at every call, because keys are chance.
"""

import dataclasses
import datetime
from collections.abc import Sequence

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes, PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LIFE = datetime.timedelta(days=3650)
LEAF_LIFE = datetime.timedelta(days=90)
_BACKDATED = datetime.timedelta(hours=1)
"""Clocks of readers may be behind."""

_UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm, x509.ExtensionNotFound, x509.UnsupportedGeneralNameType)
_SigningKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key.

    Args:
        certificate: PEM.
        key: PEM, not encrypted; never shown.
    """

    certificate: str
    key: str = dataclasses.field(repr=False)


def make_authority(common_name: str, now: datetime.datetime) -> Pair:
    """Make a self-signed authority that may issue leaves alone."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(common_name)
    made = (
        _builder(name, name, key.public_key(), now, now + AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(issues=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Pair(_pem(made), _key_pem(key))


def make_leaf(authority: Pair, common_name: str, hosts: Sequence[str], now: datetime.datetime) -> Pair:
    """Issue a certificate of a server for `hosts`, or one that signs documents when there are none.

    It never outlives its authority.

    Raises:
        ValueError, TypeError: the authority is not usable.
    """
    issuer = x509.load_pem_x509_certificate(authority.certificate.encode())
    signer = _signing_key(authority.key)
    key = ec.generate_private_key(ec.SECP256R1())
    until = min(now + LEAF_LIFE, issuer.not_valid_after_utc)
    built = (
        _builder(_name(common_name), issuer.subject, key.public_key(), now, until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(issues=False), critical=True)
        .add_extension(_key_identifier_of(issuer, signer), critical=False)
    )
    if hosts:
        names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
        built = built.add_extension(names, critical=False)
        built = built.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return Pair(_pem(built.sign(signer, hashes.SHA256())), _key_pem(key))


def authority_fault(pair: Pair, now: datetime.datetime) -> str:
    """Say why an authority is not usable; empty when it is."""
    try:
        found = x509.load_pem_x509_certificate(pair.certificate.encode())
        if found.public_key() != _signing_key(pair.key).public_key():
            return "certificate and key do not belong together"
        if not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            return "its certificate is not that of an authority"
        found.verify_directly_issued_by(found)
    except InvalidSignature:
        return "its certificate is not self-signed"
    except _UNREADABLE as error:
        return f"no usable authority in PEM ({type(error).__name__})"
    return _time_fault(found, now)


def leaf_fault(pair: Pair, authority: str, hosts: Sequence[str], now: datetime.datetime) -> str:
    """Say why a certificate is not usable for `hosts`, or to sign when there are none; empty when it is.

    Args:
        pair: to be judged.
        authority: PEM of the certificate that must have issued it.
        hosts: names that it must have.
        now: aware.
    """
    try:
        found = x509.load_pem_x509_certificate(pair.certificate.encode())
        key = _private_key(pair.key)
        if found.public_key() != key.public_key():
            return "certificate and key do not belong together"
        found.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.encode()))
        fault = _purpose_fault(found, key, hosts)
    except InvalidSignature:
        return "it was not issued by the present authority"
    except _UNREADABLE as error:
        return f"no usable certificate of the present authority in PEM ({type(error).__name__})"
    return fault or _time_fault(found, now)


def is_ending(certificate: str, now: datetime.datetime, left: datetime.timedelta | None = None) -> bool:
    """Whether a certificate should be made anew: less than `left` remains, a third of its life if not given.

    Raises:
        ValueError: not a certificate in PEM.
    """
    found = x509.load_pem_x509_certificate(certificate.encode())
    least = (found.not_valid_after_utc - found.not_valid_before_utc) / 3 if left is None else left
    return found.not_valid_after_utc - now < least


def bundle_fault(text: str) -> str:
    """Say why a text is no list of certificates in PEM; empty when it is."""
    try:
        found = x509.load_pem_x509_certificates(text.encode())
    except _UNREADABLE:
        found = []
    whole = 0 < len(found) == text.count("-----BEGIN CERTIFICATE-----")
    return "" if whole else "want certificates in PEM"


def _purpose_fault(found: x509.Certificate, key: PrivateKeyTypes, hosts: Sequence[str]) -> str:
    if not hosts:
        p256 = isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1)
        return "" if p256 else "its key is not EC P-256"
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return "it has no names"
    missing = sorted(set(hosts) - set(names.get_values_for_type(x509.DNSName)))
    if missing:
        return f"it lacks names: {', '.join(missing)}"
    try:
        uses = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return ""
    wanted = {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE}
    return "" if wanted & set(uses) else "it is not for servers"


def _time_fault(found: x509.Certificate, now: datetime.datetime) -> str:
    if now >= found.not_valid_after_utc:
        return f"it ended at {found.not_valid_after_utc.isoformat()}"
    if now < found.not_valid_before_utc:
        return f"it begins at {found.not_valid_before_utc.isoformat()}"
    return ""


def _private_key(pem: str) -> PrivateKeyTypes:
    return serialization.load_pem_private_key(pem.encode(), password=None)


def _signing_key(pem: str) -> _SigningKey:
    key = _private_key(pem)
    if not isinstance(key, _SigningKey):
        raise TypeError("want a key of EC or RSA")
    return key


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: CertificatePublicKeyTypes,
    now: datetime.datetime,
    until: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, issues: bool) -> x509.KeyUsage:
    """An authority issues and revokes; a leaf signs."""
    return x509.KeyUsage(
        digital_signature=not issues,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=issues,
        crl_sign=issues,
        encipher_only=False,
        decipher_only=False,
    )


def _key_identifier_of(issuer: x509.Certificate, signer: _SigningKey) -> x509.AuthorityKeyIdentifier:
    try:
        own = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain).decode("ascii")
