"""Writes the certificates of a cluster.

A certificate authority (CA) signs two certificates: one for the scheduler and the workers, and one
for commands. The private key of the CA is never written, so nobody can add a third certificate.
Host names are not checked, so that tunnels and changed addresses work.
"""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from tilewright.core.lazy_module import lazy_module
from tilewright.targets.cluster import ClusterError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
else:
    x509 = lazy_module("cryptography.x509")
    hashes = lazy_module("cryptography.hazmat.primitives.hashes")
    serialization = lazy_module("cryptography.hazmat.primitives.serialization")
    ec = lazy_module("cryptography.hazmat.primitives.asymmetric.ec")

Certified: TypeAlias = "tuple[x509.Certificate, ec.EllipticCurvePrivateKey]"
"""A certificate and its private key."""
AUTHORITY, NODE, CLIENT = "ca.pem", "node.pem", "client.pem"
VALID_DAYS = 3650
_PREFIX = "export DASK_DISTRIBUTED__COMM__"


def make_keys(folder: Path) -> None:
    """Create the certificates of a new cluster, in a new folder that only its owner can read.

    The folder gets three files:

    - `ca.pem`: certificate of the authority.
    - `node.pem`: key and certificate for the scheduler and the workers, which accept and open
      connections.
    - `client.pem`: key and certificate for commands, which only open connections. The holder of
      this file cannot act as a scheduler or a worker.

    Args:
        folder: the folder, which must not exist, or be empty.

    Raises:
        FileExistsError: the folder contains files.
        OSError: the folder cannot be written.
        ClusterError: the package `cryptography` is not installed.
    """
    try:
        server, client = (
            x509.oid.ExtendedKeyUsageOID.SERVER_AUTH,
            x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH,
        )
    except ImportError as error:
        raise ClusterError(
            f"keys cannot be created here ({error}); pip install 'tilewright[cluster]', or "
            "create them on another machine with 'tilewright cluster keys DIR' and copy the "
            "folder"
        ) from None
    authority = _certificate("authority")
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=".keys-", dir=folder.parent))  # mode 0700
    try:
        _write(fresh / AUTHORITY, authority[0])
        _write(fresh / NODE, *_certificate("node", (server, client), authority))
        _write(fresh / CLIENT, *_certificate("client", (client,), authority))
        try:
            os.rename(fresh, folder)  # atomic; fails if the folder contains files
        except OSError:
            raise FileExistsError(f"{folder} exists already and is not empty") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def dask_settings(folder: Path) -> str:
    """Return the Dask settings for the keys in a folder, as lines of a POSIX shell script.

    Args:
        folder: a folder that `make_keys` has written.

    Returns:
        `export` lines in three sections: for every machine, for the scheduler and the workers, and
        for commands.
    """
    where = {name: shlex.quote(str(folder.absolute() / name)) for name in (AUTHORITY, NODE, CLIENT)}
    lines = [
        f"# every machine: {AUTHORITY}",
        f"{_PREFIX}REQUIRE_ENCRYPTION=true",
        f"{_PREFIX}TLS__MIN_VERSION=1.3",
        f"{_PREFIX}TLS__CA_FILE={where[AUTHORITY]}",
        f"# the scheduler and the workers: {NODE}",
        *_role("SCHEDULER", where[NODE]),
        *_role("WORKER", where[NODE]),
        f"# commands: {CLIENT}",
        *_role("CLIENT", where[CLIENT]),
    ]
    return "\n".join(lines)


def _role(role: str, path: str) -> list[str]:
    return [f"{_PREFIX}TLS__{role}__CERT={path}", f"{_PREFIX}TLS__{role}__KEY={path}"]


def _certificate(
    name: str,
    usages: tuple[x509.ObjectIdentifier, ...] = (),
    signed_by: Certified | None = None,
) -> Certified:
    """Create a key and a certificate for it.

    Args:
        name: name of the holder.
        usages: permitted usages, such as client authentication.
        signed_by: certificate and key of the signing authority; None creates a self-signed
            authority.

    Returns:
        The certificate and its key.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"tilewright {name}")])
    issuer, signer = (subject, key) if signed_by is None else (signed_by[0].subject, signed_by[1])
    signs, now = signed_by is None, datetime.now(UTC)
    public, other = key.public_key(), signer.public_key()
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (x509.BasicConstraints(ca=signs, path_length=0 if signs else None), True),
        (_key_usage(signs), True),
        (x509.SubjectKeyIdentifier.from_public_key(public), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(other), False),
    ]
    if usages:
        extensions.append((x509.ExtendedKeyUsage(usages), True))
    made = x509.CertificateBuilder(
        issuer, subject, public, x509.random_serial_number(),
        now - timedelta(days=1),  # the clocks of machines differ
        now + timedelta(days=VALID_DAYS),
    )  # fmt: skip
    for extension, critical in extensions:
        made = made.add_extension(extension, critical)
    return made.sign(signer, hashes.SHA256()), key


def _key_usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs, key_cert_sign=signs, crl_sign=False, key_encipherment=False,
        content_commitment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _write(
    path: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey | None = None
) -> None:
    text = certificate.public_bytes(serialization.Encoding.PEM)
    if key is not None:
        text += key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )  # fmt: skip
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(handle)
