"""Ed25519 keys and SHA-256 hashes as people write them: hexadecimal digits, or PEM files as OpenSSL writes them.

public_key("release.pub")           →   32 bytes; also of 64 hexadecimal digits, or of the bytes themselves
secret_key("release.key")           →   32 bytes
pem(PUBLIC, key)                    →   "-----BEGIN PUBLIC KEY-----…"
"""

import base64
import binascii
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from smelt.base.errors import SmeltError

KEY_BYTES = 32

Key = str | bytes | os.PathLike[str]
"""Digits, the name of a PEM file, or bytes."""


class _Form(NamedTuple):
    """`prefix`: what the encoding has before the key itself (RFC 8410)."""

    label: str
    prefix: bytes


PUBLIC = _Form("PUBLIC KEY", bytes.fromhex("302a300506032b6570032100"))
SECRET = _Form("PRIVATE KEY", bytes.fromhex("302e020100300506032b657004220420"))


def pem(form: _Form, key: bytes) -> str:
    """The text of a key's file."""
    text = base64.b64encode(form.prefix + key).decode()
    return f"-----BEGIN {form.label}-----\n{text}\n-----END {form.label}-----\n"


def public_key(key: Key) -> bytes:
    """The bytes of a public key."""
    return _named(key, "a public key") or _read(PUBLIC, key, "a public key")


def secret_key(path: str | os.PathLike[str]) -> bytes:
    """The bytes of the secret key in a PEM file."""
    return _read(SECRET, path, "a secret key")


def file_hash(digits: Key) -> bytes:
    """The bytes of a SHA-256."""
    name = _named(digits, "a SHA-256")
    if name is None:
        raise SmeltError("SM053", f"{digits!r} is no SHA-256: 64 hexadecimal digits")
    return name


def several(names: Key | Sequence[Key]) -> Sequence[Key]:
    """One as a sequence of one."""
    return [names] if isinstance(names, str | bytes | os.PathLike) else list(names)


def _named(name: Key, what: str) -> bytes | None:
    if isinstance(name, bytes):
        if len(name) != KEY_BYTES:
            raise SmeltError("SM053", f"{what} has {KEY_BYTES} bytes, not {len(name)}")
        return name
    text = os.fspath(name)
    return bytes.fromhex(text) if re.fullmatch(r"[0-9a-fA-F]{64}", text) else None


def _read(form: _Form, path: Key, what: str) -> bytes:
    try:
        text = Path(os.fsdecode(path)).read_text()
    except (OSError, ValueError) as error:
        raise SmeltError("SM053", f"{what} cannot be read from {path!r}: {error}") from None
    match = re.search(rf"-----BEGIN {form.label}-----(.*?)-----END {form.label}-----", text, re.DOTALL)
    try:
        data = base64.b64decode("".join(match[1].split()), validate=True) if match else b""
    except binascii.Error:
        data = b""
    if not data.startswith(form.prefix) or len(data) != len(form.prefix) + KEY_BYTES:
        hint = "make a pair with `smelt keygen NAME`, or with `openssl genpkey -algorithm ed25519`"
        raise SmeltError("SM053", f"{os.fspath(path)!r} is no PEM file of {what} of Ed25519", hint=hint)
    return data[len(form.prefix) :]
