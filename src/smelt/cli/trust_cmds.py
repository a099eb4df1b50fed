"""Commands about who wrote a file: `smelt keygen`, `sign`, `verify-file`."""

import argparse
import hashlib
import os
from pathlib import Path

from smelt.base.errors import SmeltError
from smelt.deploy.runtime import WITHOUT_CODE, Model
from smelt.ir.artifact_file.keys import file_hash, public_key
from smelt.ir.artifact_file.signature import sign, signer, write_keys

_REQUIRED = ("SMELT_TRUSTED_KEYS", "SMELT_ALLOWED_FILES")


def add_keygen(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="the files are NAME.key, which must stay secret, and NAME.pub")


def do_keygen(args: argparse.Namespace) -> int:
    secret, public = write_keys(args.name)
    print(f"{secret}: the secret key; whoever has it signs in your name\n{public}: the public key")
    print(public_key(public).hex())
    return 0


def add_sign(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="model.smelt")
    parser.add_argument("--key", required=True, help="the secret key, a PEM file")
    parser.add_argument("-o", "--output", help="the file to write (default: the same)")


def do_sign(args: argparse.Namespace) -> int:
    path = sign(args.file, args.key, args.output)
    print(f"{path}: signed by {_signer(path.read_bytes())}")
    return 0


def add_verify_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="model.smelt")
    parser.add_argument("--key", action="append", help="a public key, a PEM file or 64 digits; may be repeated")
    parser.add_argument("--allow", action="append", help="the SHA-256 of a file; may be repeated")


def do_verify_file(args: argparse.Namespace) -> int:
    try:
        data = Path(args.file).read_bytes()
    except OSError as error:
        raise SmeltError("SM050", f"{args.file} cannot be read: {error.strerror}") from None
    by = _signer(data)
    keys = None if args.key is None else list(map(public_key, args.key))
    allowed = None if args.allow is None else list(map(file_hash, args.allow))
    is_restricted = keys is not None or allowed is not None or any(each in os.environ for each in _REQUIRED)
    own = [bytes.fromhex(by)] if by and not is_restricted else keys
    try:
        Model(args.file, WITHOUT_CODE, own, allowed)
    except SmeltError as error:
        print(f"{args.file}: refused: {error}")
        return 1
    print(f"{args.file}: sha256 {hashlib.sha256(data).hexdigest()}")
    print(f"  signed by {by}" if by else "  not signed")
    if is_restricted:
        print("  trusted")
    else:
        print("  not damaged; whether its signer is trusted was not asked: --key, --allow")
    return 0


def _signer(data: bytes) -> str | None:
    key = signer(data)
    return None if key is None else key.hex()
