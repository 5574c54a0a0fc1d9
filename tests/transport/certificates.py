"""Create certificates for tests: an authority, and certificates signed by it."""

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

DAY = datetime.timedelta(days=1)
SIGNS = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


class Authority:
    """Create a certificate authority; its own certificate is at ``path``."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        built = _build(self._name, self._name, self._key, [], -DAY, DAY, signer=self._key)
        made = built.add_extension(SIGNS, critical=True).sign(self._key, hashes.SHA256())
        self.path = str(folder / f"{name}.pem")
        Path(self.path).write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def issue(
        self, *hosts: str, expired: bool = False, itself: bool = False, password: str = ""
    ) -> tuple[str, str]:
        """Sign a certificate for these hosts; return the paths of the certificate and the key."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(hosts[0])
        ends = -DAY if expired else DAY
        issuer = name if itself else self._name
        signer = key if itself else self._key
        built = _build(name, issuer, key, list(hosts), -2 * DAY, ends, signer=signer)
        made = built.sign(signer, hashes.SHA256())
        files = [
            self._folder / f"{len(list(self._folder.iterdir()))}.{kind}" for kind in ("crt", "key")
        ]
        files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
        hidden = (
            serialization.BestAvailableEncryption(password.encode())
            if password
            else serialization.NoEncryption()
        )
        pem = serialization.Encoding.PEM
        plain = serialization.PrivateFormat.PKCS8
        files[1].write_bytes(key.private_bytes(pem, plain, hidden))
        return str(files[0]), str(files[1])

    def revoke(self, *certificates: str) -> str:
        """Return a file with the authority's certificate and a revocation list of the given
        certificates.
        """
        now = datetime.datetime.now(datetime.UTC)
        listed = x509.CertificateRevocationListBuilder(self._name, now - DAY, now + DAY)
        for path in certificates:
            serial = x509.load_pem_x509_certificate(Path(path).read_bytes()).serial_number
            entry = (
                x509.RevokedCertificateBuilder()
                .serial_number(serial)
                .revocation_date(now - DAY)
                .build()
            )
            listed = listed.add_revoked_certificate(entry)
        signed = listed.sign(self._key, hashes.SHA256())
        file = self._folder / f"{len(list(self._folder.iterdir()))}.crl.pem"
        file.write_bytes(
            Path(self.path).read_bytes() + signed.public_bytes(serialization.Encoding.PEM)
        )
        return str(file)


def server_context(files: tuple[str, str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    return context


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _build(
    name: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    hosts: list[str],
    begins: datetime.timedelta,
    ends: datetime.timedelta,
    *,
    signer: ec.EllipticCurvePrivateKey,
) -> x509.CertificateBuilder:
    """Return a certificate with the extensions that Python 3.13 requires (VERIFY_X509_STRICT)."""
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
        .add_extension(x509.BasicConstraints(ca=not hosts, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    if hosts:
        built = built.add_extension(
            x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False
        )
    return built


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
