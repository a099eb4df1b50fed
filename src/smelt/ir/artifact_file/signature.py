"""Signs files: a record behind the last byte of a file, with the signer's public key and an Ed25519 signature.

    write_keys("release")                       →   release.key, which stays secret, and release.pub
    sign("model.smelt", "release.key")          →   the file, signed; it replaces the file that was there
    signer(data)                                →   the public key that the file names, None of an unsigned file

The record (112 bytes): "smeltsig", of a file of weights "smeltwts", the version 1 in 8 bytes, the public key, the
signature. Signed are the first 48 bytes of the record and the BLAKE2b-512 of the file without the record.
`csrc/executor/format/signature.c` verifies.
"""

import json
import os
from pathlib import Path

from smelt import _native
from smelt.base.errors import SmeltError
from smelt.ir.artifact_file.container import read_sections, replace_file
from smelt.ir.artifact_file.keys import KEY_BYTES, PUBLIC, SECRET, pem, secret_key

_MAGIC = b"smeltsig" + (1).to_bytes(8, "little")
_KEY = slice(len(_MAGIC), len(_MAGIC) + KEY_BYTES)
RECORD_BYTES = 112


def write_keys(name: str | os.PathLike[str]) -> tuple[Path, Path]:
    """A new pair, in files NAME.key, which only its owner can read, and NAME.pub."""
    secret = os.urandom(KEY_BYTES)
    paths = Path(f"{os.fspath(name)}.key"), Path(f"{os.fspath(name)}.pub")
    public = public_key_of(secret)
    for path, text, mode in zip(paths, (pem(SECRET, secret), pem(PUBLIC, public)), (0o600, 0o644), strict=True):
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        except FileExistsError:
            raise SmeltError("SM053", f"{path} exists, and is not replaced") from None
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
    return paths


def public_key_of(secret: bytes) -> bytes:
    """The public key of a secret one."""
    return _native.sign(secret, b"")[_KEY]


def signer(data: bytes) -> bytes | None:
    """The public key that a file names. Whether its signature holds is another question."""
    record = data[-RECORD_BYTES:]
    return record[_KEY] if len(record) == RECORD_BYTES and record.startswith(_MAGIC) else None


def unsigned(data: bytes) -> bytes:
    """A file without its signature."""
    return data if signer(data) is None else data[:-RECORD_BYTES]


def sign(
    path: str | os.PathLike[str], key: str | os.PathLike[str], output: str | os.PathLike[str] | None = None
) -> Path:
    """Sign an exported file with the secret key in the PEM file `key`. The signed file replaces `path`, or is written
    to `output`. A signature that the file has is replaced.

    `smelt.load(path, keys="release.pub")` refuses the file if it is not signed, was signed with another key, or was
    changed. The signature of a file of weights (`.safetensors`) is written to a file beside it, with `.sig` behind its
    name.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise SmeltError("SM050", f"{path} cannot be read: {error.strerror}") from None
    if Path(path).suffix == ".safetensors":
        target = Path(f"{os.fspath(path)}.sig" if output is None else output)
        _check_weights(path, data)
        replace_file(target, [_native.sign(secret_key(key), data, True)])
        return target
    data = unsigned(data)
    read_sections(memoryview(data), is_artifact=True)  # what is damaged is not signed
    target = Path(path if output is None else output)
    replace_file(target, [data, _native.sign(secret_key(key), data)])
    return target


def _check_weights(path: str | os.PathLike[str], data: bytes) -> None:
    """Whoever signs a file by its name is told if it is something else."""
    size = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + size]) if 0 < size <= len(data) - 8 else None
    except ValueError:
        header = None
    if not isinstance(header, dict):
        raise SmeltError("SM050", f"{path} is no file of weights")
