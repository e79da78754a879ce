"""Key files: what one is, told without a passphrase, and signing with one that needs none.

An encrypted key is still of use: its public half names the key that the agent may hold.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

CERTIFICATE = "-cert-v01@openssh.com"
RSA_HASHES = {"rsa-sha2-256": hashes.SHA256, "rsa-sha2-512": hashes.SHA512}
"""RFC 8332."""
KINDS = (ed25519.Ed25519PrivateKey, rsa.RSAPrivateKey, ec.EllipticCurvePrivateKey)
TYPES = ("ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp")
"""Of keys that are signed with here."""
_PEM = re.compile(rb"-----BEGIN ([A-Z ]*)PRIVATE KEY-----(.*?)-----END", re.DOTALL)
_MAGIC = b"openssh-key-v1\0"

Sign = Callable[[bytes, str], bytes]
"""Of data and the name of an algorithm, the signature as SSH sends it."""


class PublicKey(NamedTuple):
    """A public key or certificate: its type and its blob."""

    type: str
    blob: bytes


class KeyFile(NamedTuple):
    """What a file holds that was named as a key."""

    path: Path
    private: bool
    encrypted: bool
    public: PublicKey | None
    sign: Sign | None
    """None where the private half is not there, has a passphrase, or is only for an agent."""


def read_key(path: Path) -> KeyFile:
    """Return what a file is; one that is no private key may still be a public one.

    Raises:
        OSError: it cannot be read.
        ValueError: it says that it is a private key, but cannot be decoded.
    """
    text = path.read_bytes()
    match = _PEM.search(text)
    if match is None:
        return KeyFile(path, False, False, public_key(text), None)
    label, body = match.groups()
    public: PublicKey | None
    if label == b"OPENSSH ":
        encrypted, public = _openssh(base64.b64decode(body))
    else:
        encrypted = b"ENCRYPTED" in label + body
        public = read_public(path.with_name(f"{path.name}.pub"))
    if encrypted:
        return KeyFile(path, True, True, public, None)
    if public and not public.type.startswith(TYPES):  # a token's, or one too old
        return KeyFile(path, True, False, public, None)
    try:
        return _signer(path, text, label)
    except (TypeError, NotImplementedError, UnsupportedAlgorithm) as error:
        raise ValueError(str(error)) from error


def read_public(path: Path) -> PublicKey | None:
    """Return the public key or certificate in a file, None where there is none."""
    try:
        return public_key(path.read_bytes())
    except OSError:
        return None


def public_key(line: bytes) -> PublicKey | None:
    """Return the key of a line such as `ssh-ed25519 AAAA... comment`."""
    fields = line.split(None, 2)
    with suppress(ValueError, IndexError):
        blob = base64.b64decode(fields[1], validate=True)
        if _field(blob)[0] == fields[0]:
            return PublicKey(fields[0].decode("ascii"), blob)
    return None


def certified_key(certificate: PublicKey) -> bytes | None:
    """Return the blob of the public key that a certificate is for, None if it is of no known kind.

    Layout: OpenSSH's PROTOCOL.certkeys: type, nonce, the fields of the key, and more.
    """
    plain = certificate.type.removesuffix(CERTIFICATE)
    fields = {"ssh-ed25519": 1, "ssh-rsa": 2}.get(plain, 2 if plain.startswith("ecdsa") else 0)
    if not fields or plain == certificate.type:
        return None
    with suppress(ValueError):
        _, rest = _field(certificate.blob)
        _, rest = _field(rest)
        key = _string(plain.encode())
        for _ in range(fields):
            value, rest = _field(rest)
            key += _string(value)
        return key
    return None


def _signer(path: Path, text: bytes, label: bytes) -> KeyFile:
    if label == b"OPENSSH ":
        key = serialization.load_ssh_private_key(text, None)
    else:
        key = serialization.load_pem_private_key(text, None)  # type: ignore[assignment]
    if not isinstance(key, KINDS):
        raise ValueError(f"a key of kind {type(key).__name__}")
    line = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )

    def sign(data: bytes, algorithm: str) -> bytes:
        name = algorithm.removesuffix(CERTIFICATE)
        if isinstance(key, ed25519.Ed25519PrivateKey):
            signature = key.sign(data)
        elif isinstance(key, rsa.RSAPrivateKey):
            signature = key.sign(data, padding.PKCS1v15(), RSA_HASHES[name]())
        else:
            signature = _ecdsa(key, data)
        return _string(name.encode()) + _string(signature)

    return KeyFile(path, True, False, public_key(line), sign)


def _ecdsa(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    # RFC 5656, section 6.2.1: the hash follows the size of the curve
    size = key.curve.key_size
    digest = hashes.SHA256() if size <= 256 else hashes.SHA384() if size <= 384 else hashes.SHA512()
    numbers = decode_dss_signature(key.sign(data, ec.ECDSA(digest)))
    return b"".join(_string(n.to_bytes(n.bit_length() // 8 + 1, "big")) for n in numbers)


def _openssh(data: bytes) -> tuple[bool, PublicKey]:
    """Return whether it is encrypted, and the public half (OpenSSH's PROTOCOL.key)."""
    if not data.startswith(_MAGIC):
        raise ValueError("not an OpenSSH key")
    cipher, rest = _field(data[len(_MAGIC) :])
    _, rest = _field(rest)  # name of the key derivation
    _, rest = _field(rest)  # its options
    blob, _ = _field(rest[4:])  # after the number of keys
    return cipher != b"none", PublicKey(_field(blob)[0].decode("ascii"), blob)


def _field(data: bytes) -> tuple[bytes, bytes]:
    size = int.from_bytes(data[:4], "big")
    if len(data) < 4 + size:
        raise ValueError("cut short")
    return data[4 : 4 + size], data[4 + size :]


def _string(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value
