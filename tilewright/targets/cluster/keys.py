"""Makes and reads the keys of a cluster: who holds one gets in, nobody else, on loopback neither.

An authority of the cluster's own signs a certificate for its workers and one for its commands, and
its own key is thrown away. Each is good for its side alone (extended key usage): what lies beside a
board opens no other worker. Names of hosts do not count, so a tunnel or a new address changes
nothing.
"""

from __future__ import annotations

import os
import shutil
import ssl
import stat
import tempfile
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
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
"""A certificate with its key."""
VARIABLE = "TILEWRIGHT_CLUSTER_KEYS"
"""Names the folder of the keys, for workers and commands."""
AUTHORITY, WORKER, COMMAND = "authority.pem", "worker.pem", "command.pem"
VALID_DAYS = 3650
_OTHERS = 0o077
_MAKE = "'tilewright cluster keys DIR' makes them"


def keys_folder() -> Path:
    """The one that `TILEWRIGHT_CLUSTER_KEYS` names, else that of this user on this machine."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    given = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    config = given if given.is_absolute() else Path.home() / ".config"
    return config / "tilewright" / "cluster"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches who listens there."""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def worker_keys(host: str) -> Path:
    """The folder of the keys of a worker that listens on `host`; on loopback they are made if there
    are none. Raises `ClusterError` beyond it, unless the user names keys that others have, too."""
    folder = keys_folder()
    if not is_loopback(host) and not os.environ.get(VARIABLE):
        raise ClusterError(
            f"--host {host} lets other machines in, by keys that they have, too: {_MAKE}; name the "
            f"folder in {VARIABLE}, here and there"
        )
    if not folder.exists() and not os.environ.get(VARIABLE):
        with suppress(FileExistsError):  # another worker was faster
            make_keys(folder)
    return folder


def make_keys(folder: Path) -> None:
    """Three files of a new cluster in a folder that is made, for its user alone. Raises
    `FileExistsError` if files are there, `OSError`, and `ClusterError` without the package
    `cryptography`."""
    try:
        usages = {
            WORKER: x509.oid.ExtendedKeyUsageOID.SERVER_AUTH,
            COMMAND: x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH,
        }
    except ImportError as error:
        raise ClusterError(
            f"keys cannot be made here ({error}); pip install cryptography, or make them elsewhere "
            "with 'tilewright cluster keys DIR' and copy the folder"
        ) from None
    authority, signer = _certificate("authority")
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=".keys-", dir=folder.parent))  # for this user alone
    try:
        _write(fresh / AUTHORITY, authority)
        for name, usage in usages.items():
            _write(fresh / name, *_certificate(name, usage, (authority, signer)))
        try:
            os.rename(fresh, folder)  # whole or not at all, and over no file
        except OSError:
            raise FileExistsError(f"{folder} is there already, with files in it") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def worker_context(folder: Path) -> ssl.SSLContext:
    """TLS as a worker speaks it, with holders of a command's key of this folder's authority.
    Raises `ClusterError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0
    return _with_keys(context, folder, WORKER)


def command_context(folder: Path) -> ssl.SSLContext:
    """TLS as a command speaks it, with workers of this folder's authority. Raises
    `ClusterError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    return _with_keys(context, folder, COMMAND)


def _with_keys(context: ssl.SSLContext, folder: Path, own: str) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(folder / AUTHORITY)
        context.load_cert_chain(_private(folder / own))
    except FileNotFoundError:
        raise ClusterError(
            f"there are no keys in {folder} ({AUTHORITY}, {own}): {_MAKE}, and a worker on "
            f"loopback makes its own when it starts; {VARIABLE} names another folder"
        ) from None
    except OSError as error:
        raise ClusterError(f"{folder} holds no keys of a cluster ({error}): {_MAKE}") from None
    return context


def _private(path: Path) -> Path:
    """Raises `ClusterError` for a key that somebody else may know, and `OSError`."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
        raise ClusterError(
            f"{path} is not fit for a key: it is to be a plain file of yours that nobody else may "
            f"read or write (chmod 600); if others may have read it, make new keys: {_MAKE}"
        )
    return path


def _certificate(
    name: str, usage: x509.ObjectIdentifier | None = None, signed_by: Certified | None = None
) -> Certified:
    """One that is good for `usage` alone; signed by itself, it is an authority's."""
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
    if usage is not None:
        extensions.append((x509.ExtendedKeyUsage([usage]), True))
    made = x509.CertificateBuilder(
        issuer, subject, public, x509.random_serial_number(),
        now - timedelta(days=1),  # clocks differ
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
