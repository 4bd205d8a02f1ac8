"""Authorities and certificates: what is made is accepted by OpenSSL; what is no good is told why."""

import datetime
import ssl
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from hypothesis import given
from hypothesis import strategies as st

from aimodels_operator import certificates
from aimodels_operator.certificates import LEAF_LIFE, Pair

NOW = datetime.datetime(2026, 12, 1, 3, 0, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)
HOSTS = ("ai-models-dmcr", "ai-models-dmcr.d8-ai-models.svc")
ROOT = certificates.make_authority("ai-models serving root", NOW)
OTHER = certificates.make_authority("ai-models serving root", NOW)
LEAF = certificates.make_leaf(ROOT, HOSTS[0], HOSTS, NOW)
SIGNER = certificates.make_leaf(ROOT, "ai-models token signer", (), NOW)


def administrators(key_type: trustme.KeyType) -> Pair:
    made = trustme.CA(key_type=key_type)
    return Pair(made.cert_pem.bytes().decode(), made.private_key_pem.bytes().decode())


def handshake(folder: Path, authority: str, pair: Pair, host: str) -> None:
    """Shake hands in memory, as a client that trusts one authority and a server with one certificate."""
    (folder / "tls.crt").write_text(pair.certificate)
    (folder / "tls.key").write_text(pair.key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    client = ssl.create_default_context(cadata=authority)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert ends[0].version() == "TLSv1.3"


@pytest.mark.parametrize("host", HOSTS)
def test_a_server_is_trusted_under_each_of_its_names(host: str, tmp_path: Path) -> None:
    now = datetime.datetime.now(datetime.UTC)
    root = certificates.make_authority("root", now)

    handshake(tmp_path, root.certificate, certificates.make_leaf(root, HOSTS[0], HOSTS, now), host)


@pytest.mark.parametrize("key_type", trustme.KeyType)
def test_a_server_is_trusted_that_an_administrators_authority_vouches_for(
    key_type: trustme.KeyType, tmp_path: Path
) -> None:
    now = datetime.datetime.now(datetime.UTC)
    root = administrators(key_type)
    assert certificates.authority_fault(root, now) == ""
    leaf = certificates.make_leaf(root, HOSTS[0], HOSTS, now)

    assert certificates.leaf_fault(leaf, root.certificate, HOSTS, now) == ""
    handshake(tmp_path, root.certificate, leaf, HOSTS[0])


def test_a_server_is_not_trusted_under_another_name_nor_by_another_authority(tmp_path: Path) -> None:
    now = datetime.datetime.now(datetime.UTC)
    root = certificates.make_authority("root", now)
    leaf = certificates.make_leaf(root, HOSTS[0], HOSTS, now)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(tmp_path, root.certificate, leaf, "ai-models-webhook")
    with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
        handshake(tmp_path, certificates.make_authority("root", now).certificate, leaf, HOSTS[0])


def test_what_is_made_is_usable_until_it_ends() -> None:
    assert certificates.authority_fault(ROOT, NOW) == ""
    assert certificates.leaf_fault(LEAF, ROOT.certificate, HOSTS, NOW) == ""
    assert certificates.leaf_fault(SIGNER, ROOT.certificate, (), NOW) == ""
    assert certificates.leaf_fault(LEAF, ROOT.certificate, HOSTS, NOW + 89 * DAY) == ""
    assert "ended" in certificates.leaf_fault(LEAF, ROOT.certificate, HOSTS, NOW + 90 * DAY)
    assert "begins" in certificates.leaf_fault(LEAF, ROOT.certificate, HOSTS, NOW - DAY)
    assert "ended" in certificates.authority_fault(ROOT, NOW + 3650 * DAY)


def test_a_leaf_is_due_when_a_third_of_its_life_is_left() -> None:
    assert not certificates.is_ending(LEAF.certificate, NOW + 59 * DAY)
    assert certificates.is_ending(LEAF.certificate, NOW + 61 * DAY)
    assert not certificates.is_ending(ROOT.certificate, NOW + 3559 * DAY, LEAF_LIFE)
    assert certificates.is_ending(ROOT.certificate, NOW + 3561 * DAY, LEAF_LIFE)


def test_a_leaf_never_outlives_its_authority() -> None:
    late = certificates.make_leaf(ROOT, "x", ("x",), NOW + 3600 * DAY)
    ends = [x509.load_pem_x509_certificate(pair.certificate.encode()).not_valid_after_utc for pair in (late, ROOT)]

    assert ends[0] == ends[1]


def test_keys_are_on_p256_and_shown_nowhere() -> None:
    for pair in (ROOT, LEAF, SIGNER):
        key = serialization.load_pem_private_key(pair.key.encode(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        assert isinstance(key.curve, ec.SECP256R1)
        assert "PRIVATE" not in repr(pair)


def intermediate() -> Pair:
    made = trustme.CA().create_child_ca()
    return Pair(made.cert_pem.bytes().decode(), made.private_key_pem.bytes().decode())


def encrypted() -> Pair:
    key = serialization.load_pem_private_key(ROOT.key.encode(), None)
    locked = serialization.BestAvailableEncryption(b"x")
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
    return Pair(ROOT.certificate, pem.decode())


def edwards() -> str:
    made = ed25519.Ed25519PrivateKey.generate()
    plain = serialization.NoEncryption()
    return made.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain).decode()


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        pytest.param(Pair(ROOT.certificate, OTHER.key), "do not belong together", id="other-key"),
        pytest.param(Pair(LEAF.certificate, LEAF.key), "not that of an authority", id="leaf"),
        pytest.param(Pair(ROOT.certificate[:200], ROOT.key), "no usable authority", id="cut"),
        pytest.param(Pair(ROOT.certificate, "x"), "no usable authority", id="no-key"),
        pytest.param(Pair(ROOT.certificate, edwards()), "no usable authority", id="edwards"),
        pytest.param(encrypted(), "no usable authority", id="encrypted"),
        pytest.param(intermediate(), "no usable authority", id="intermediate"),
    ],
)
def test_authorities_that_are_no_good(pair: Pair, words: str) -> None:
    assert words in certificates.authority_fault(pair, NOW)


@pytest.mark.parametrize(
    ("pair", "authority", "hosts", "words"),
    [
        pytest.param(Pair(LEAF.certificate, SIGNER.key), ROOT, HOSTS, "do not belong together", id="other-key"),
        pytest.param(LEAF, OTHER, HOSTS, "not issued by the present authority", id="other-root-of-the-same-name"),
        pytest.param(LEAF, administrators(trustme.KeyType.ECDSA), HOSTS, "of the present authority", id="other-root"),
        pytest.param(LEAF, ROOT, (*HOSTS, "z", "y"), "it lacks names: y, z", id="names"),
        pytest.param(SIGNER, ROOT, HOSTS, "has no names", id="signer-for-a-server"),
        pytest.param(Pair("x", "y"), ROOT, HOSTS, "no usable certificate", id="text"),
    ],
)
def test_leaves_that_are_no_good(pair: Pair, authority: Pair, hosts: tuple[str, ...], words: str) -> None:
    assert words in certificates.leaf_fault(pair, authority.certificate, hosts, NOW)


def test_a_signer_needs_p256() -> None:
    authority = trustme.CA(key_type=trustme.KeyType.RSA)
    issued = authority.issue_cert("signer", key_type=trustme.KeyType.RSA)
    pair = Pair(issued.cert_chain_pems[0].bytes().decode(), issued.private_key_pem.bytes().decode())
    root = authority.cert_pem.bytes().decode()

    assert "not EC P-256" in certificates.leaf_fault(pair, root, (), NOW)
    assert certificates.leaf_fault(pair, root, ("signer",), NOW) == ""


@given(st.text(), st.text())
def test_any_text_is_judged_and_breaks_nothing(certificate: str, key: str) -> None:
    assert certificates.authority_fault(Pair(certificate, key), NOW)
    assert certificates.leaf_fault(Pair(certificate, key), ROOT.certificate, HOSTS, NOW)
    assert certificates.leaf_fault(LEAF, certificate, HOSTS, NOW)
    assert certificates.bundle_fault(certificate)


def test_bundles_are_lists_of_certificates() -> None:
    assert certificates.bundle_fault(ROOT.certificate) == ""
    assert certificates.bundle_fault("# ours\n" + ROOT.certificate + OTHER.certificate) == ""
    assert certificates.bundle_fault(ROOT.certificate + OTHER.certificate[:300])
    assert certificates.bundle_fault(ROOT.key)
