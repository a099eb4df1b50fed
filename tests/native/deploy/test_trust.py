"""Whose files are opened: signatures, hashes, the environment. And that no memory is writable and executable."""

import hashlib
import os
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from smelt import _native
from smelt.base.errors import SmeltError
from smelt.deploy.runtime import Model, Session
from smelt.ir.artifact_file.container import unpack
from smelt.ir.artifact_file.keys import public_key, secret_key
from smelt.ir.artifact_file.signature import RECORD_BYTES, public_key_of, sign, signer, write_keys
from tests.native.deploy.building import HERE, compiled
from tests.processes import run_new

CHANGES = 100_000
ORDER = 2**252 + 27742317777372353535851937790883648493  # of the curve's group

# RFC 8032, 7.1: secret and public keys.
VECTORS = {
    "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60":
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
    "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb":
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
    "f5e5767cf153319517630f226876b86c8160cc583bc013744c6bf255f5cc0ee5":
        "278117fc144c72340f67d0f2316e8386ceffbf2b2428c9c51fef7c597f1d426e",
}  # fmt: skip


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_keys(tmp_path_factory.mktemp("keys") / "release")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_keys(tmp_path_factory.mktemp("keys") / "other")


@pytest.fixture(scope="module")
def smallest(models: dict[str, Path]) -> Path:
    return min(models.values(), key=lambda path: path.stat().st_size)


@pytest.fixture(scope="module")
def signed(smallest: Path, keys: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sign(smallest, keys[0], tmp_path_factory.mktemp("signed") / "signed.smelt")


def refused(path: Path, match: str, **options: Any) -> None:
    with pytest.raises(SmeltError, match=match) as caught:
        Model(path, **options)
    assert caught.value.code == "SM053"


def test_each_of_100_000_changes_is_refused_before_memory_is_executable(
    signed: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    wrapped = ["-Wl,--wrap=mmap", "-Wl,--wrap=mprotect"]
    program = compiled(HERE / "changes.c", tmp_path / "changes", *wrapped, static=True)
    command = [str(program), str(signed), public_key(keys[1]).hex(), str(CHANGES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{CHANGES} changes of {signed.stat().st_size} bytes refused\n"
    assert signed.stat().st_size < CHANGES  # so that each byte was changed


@pytest.mark.parametrize("secret", VECTORS)
def test_public_keys_are_those_of_the_standard(secret: str) -> None:
    assert public_key_of(bytes.fromhex(secret)).hex() == VECTORS[secret]


def message_of(data: bytes) -> tuple[bytes, bytes]:
    """What a file's signature is of, and the signature."""
    record = data[-RECORD_BYTES:]
    return record[:48] + hashlib.blake2b(data[:-RECORD_BYTES]).digest(), record[48:]


def test_openssl_verifies_and_makes_the_same_signature(signed: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl here")
    message, signature = message_of(signed.read_bytes())
    (tmp_path / "message").write_bytes(message)
    made = [openssl, "pkeyutl", "-sign", "-rawin", "-inkey", str(keys[0]), "-in", str(tmp_path / "message")]
    done = subprocess.run(made, capture_output=True, check=False)
    if b"-rawin" in done.stderr:
        pytest.skip("this openssl is old")
    assert done.stdout == signature


def test_keys_of_openssl_are_read(smallest: Path, tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl here")
    secret, public = tmp_path / "k.key", tmp_path / "k.pub"
    subprocess.run([openssl, "genpkey", "-algorithm", "ed25519", "-out", secret], check=True)
    subprocess.run([openssl, "pkey", "-in", secret, "-pubout", "-out", public], check=True)
    path = sign(smallest, secret, tmp_path / "signed.smelt")
    Model(path, keys=[public_key(public)])


def test_a_signature_is_not_malleable(signed: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    data = bytearray(signed.read_bytes())
    scalar = int.from_bytes(data[-32:], "little") + ORDER
    data[-32:] = scalar.to_bytes(32, "little")
    path = tmp_path / "other.smelt"
    path.write_bytes(data)
    refused(path, "it was changed", keys=[public_key(keys[1])])


PRIME = 2**255 - 19
CURVE = -121665 * pow(121666, -1, PRIME) % PRIME


def added(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    (x, y), (u, v) = one, other
    both = CURVE * x * u * y * v % PRIME
    return (
        (x * v + y * u) * pow(1 + both, -1, PRIME) % PRIME,
        (y * v + x * u) * pow(1 - both, -1, PRIME) % PRIME,
    )


def points_of_small_order() -> set[tuple[int, int]]:
    """Those that are left of points times the order of the group, until all eight were seen."""
    found: set[tuple[int, int]] = set()
    y = 1
    while len(found) < 8:
        y += 1
        square = (y * y - 1) * pow(CURVE * y * y + 1, -1, PRIME) % PRIME
        x = pow(square, (PRIME + 3) // 8, PRIME)
        x = x if x * x % PRIME == square else x * pow(2, (PRIME - 1) // 4, PRIME) % PRIME
        if x * x % PRIME == square:
            point, total = (x, y), (0, 1)
            for bit in f"{ORDER:b}":
                total = added(total, total)
                total = added(total, point) if bit == "1" else total
            found.add(total)
    return found


def test_keys_that_anybody_can_sign_for_are_refused(smallest: Path, tmp_path: Path) -> None:
    """With a key of small order, and a point of small order as the signature, the equation holds for many files."""
    values = {value for _, y in points_of_small_order() for value in (y, y + PRIME) if value < 2**255}
    encodings = {(value | sign << 255).to_bytes(32, "little") for value in values for sign in (0, 1)}
    assert len(encodings) == 14 and bytes(32) in encodings
    path = tmp_path / "forged.smelt"
    for key in encodings:
        for point in encodings:
            path.write_bytes(smallest.read_bytes() + b"smeltsig" + struct.pack("<q", 1) + key + point + bytes(32))
            refused(path, "it was changed", keys=[key])


def test_a_signature_of_weights_is_none_of_code(smallest: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    renamed = tmp_path / "tuned.safetensors"
    renamed.write_bytes(smallest.read_bytes())
    with pytest.raises(SmeltError, match="is no file of weights"):
        sign(renamed, keys[0])
    secret = secret_key(keys[0])
    path = tmp_path / "forged.smelt"
    path.write_bytes(smallest.read_bytes() + _native.sign(secret, smallest.read_bytes(), True))
    refused(path, "not signed", keys=[public_key(keys[1])])
    record = b"smeltsig" + path.read_bytes()[-RECORD_BYTES + 8 :]
    path.write_bytes(smallest.read_bytes() + record)
    refused(path, "it was changed", keys=[public_key(keys[1])])


def test_files_that_are_not_signed_are_refused_where_signatures_are_required(
    smallest: Path, signed: Path, keys: tuple[Path, Path], other: tuple[Path, Path]
) -> None:
    key, unknown = public_key(keys[1]), public_key(other[1])
    refused(smallest, "not signed, and a signature is required", keys=[key])
    refused(signed, "a key that is not trusted", keys=[unknown])
    refused(signed, "a key that is not trusted", keys=[])
    Model(signed, keys=[unknown, key])
    Model(signed)


def test_a_signature_by_a_key_that_claims_to_be_another_is_refused(
    smallest: Path, keys: tuple[Path, Path], other: tuple[Path, Path], tmp_path: Path
) -> None:
    data = bytearray(sign(smallest, other[0], tmp_path / "other.smelt").read_bytes())
    data[-96:-64] = public_key(keys[1])
    (tmp_path / "other.smelt").write_bytes(data)
    refused(tmp_path / "other.smelt", "it was changed", keys=[public_key(keys[1])])


def test_bytes_before_and_behind_a_signature_are_refused(signed: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    data, path = signed.read_bytes(), tmp_path / "m.smelt"
    content, record = data[:-RECORD_BYTES], data[-RECORD_BYTES:]
    for changed in (data + b"\0", data[:-1], data + record, content + b"\0" * 8 + record, b"\0" + data):
        path.write_bytes(changed)
        refused(path, "not signed|was changed", keys=[public_key(keys[1])])
        with pytest.raises(SmeltError):
            Model(path)


def test_only_files_of_the_list_are_opened(smallest: Path, signed: Path, keys: tuple[Path, Path]) -> None:
    digest = hashlib.sha256(smallest.read_bytes()).digest()
    Model(smallest, allowed=[bytes(32), digest])
    refused(signed, "not in the list of allowed files", allowed=[digest])
    refused(smallest, "not in the list of allowed files", allowed=[])
    refused(smallest, "a signature is required", allowed=[digest], keys=[public_key(keys[1])])


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("SMELT_TRUSTED_KEYS", "{key}", None),
        ("SMELT_TRUSTED_KEYS", " {other},{key}\n", None),
        ("SMELT_TRUSTED_KEYS", "{other}", "a key that is not trusted (SMELT_TRUSTED_KEYS)"),
        ("SMELT_TRUSTED_KEYS", "", "a key that is not trusted"),
        ("SMELT_TRUSTED_KEYS", "{key}0", "is no list"),
        ("SMELT_TRUSTED_KEYS", "release.pub", "is no list"),
        ("SMELT_TRUSTED_KEYS", "{key},x", "is no list"),
        ("SMELT_ALLOWED_FILES", "{hash}", None),
        ("SMELT_ALLOWED_FILES", "{key}", "not in the list of allowed files (SMELT_ALLOWED_FILES)"),
        ("SMELT_ALLOWED_FILES", "", "not in the list of allowed files"),
    ],
)
def test_the_environment_decides_for_a_process(
    variable: str, value: str, reason: str | None, signed: Path, keys: tuple[Path, Path], other: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    names = {"key": public_key(keys[1]).hex().upper(), "other": public_key(other[1]).hex()}
    value = value.format(**names, hash=hashlib.sha256(signed.read_bytes()).hexdigest())
    monkeypatch.setenv(variable, value)
    if reason is None:
        Model(signed)
        refused(signed, "not trusted|not in the list", keys=[bytes(32)], allowed=[bytes(32)])
    else:
        with pytest.raises(SmeltError) as caught:
            Model(signed)
        assert reason in str(caught.value)


def test_an_unsigned_file_is_refused_where_the_environment_requires_signatures(
    smallest: Path, keys: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_TRUSTED_KEYS", public_key(keys[1]).hex())
    refused(smallest, "not signed")


def test_a_file_that_changes_after_it_was_verified_changes_nothing(
    signed: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    path = Path(shutil.copy(signed, tmp_path / "m.smelt"))
    model = Model(path, keys=[public_key(keys[1])])
    before = model.manifest
    path.write_bytes(os.urandom(path.stat().st_size))
    assert model.manifest == before and Session(model)
    path.write_bytes(b"")  # a mapping of it would end the process
    assert model.manifest == before and Session(model)
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_checkpoints_need_no_signature(
    models: dict[str, Path], keys: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = next(path for path in models.values() if Model(path).state)
    signed = sign(path, keys[0], tmp_path / "signed.smelt")
    monkeypatch.setenv("SMELT_TRUSTED_KEYS", public_key(keys[1]).hex())
    session = Session(Model(signed))
    session.save(tmp_path / "checkpoint.smelt")
    assert signer((tmp_path / "checkpoint.smelt").read_bytes()) is None
    session.load(tmp_path / "checkpoint.smelt")
    refused(tmp_path / "checkpoint.smelt", "not signed")


def test_signing_again_replaces_a_signature(
    signed: Path, keys: tuple[Path, Path], other: tuple[Path, Path], tmp_path: Path
) -> None:
    path = sign(signed, other[0], tmp_path / "again.smelt")
    assert path.stat().st_size == signed.stat().st_size
    assert unpack(path.read_bytes(), is_artifact=True)
    Model(path, keys=[public_key(other[1])])
    refused(path, "not trusted", keys=[public_key(keys[1])])


def test_damaged_files_are_not_signed(signed: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    data = bytearray(signed.read_bytes())
    data[200] ^= 1
    (tmp_path / "m.smelt").write_bytes(data)
    with pytest.raises(SmeltError, match="damaged"):
        sign(tmp_path / "m.smelt", keys[0])


def test_keys_are_not_replaced_and_are_secret(tmp_path: Path) -> None:
    secret, public = write_keys(tmp_path / "k")
    assert secret.stat().st_mode & 0o777 == 0o600
    with pytest.raises(SmeltError, match="is not replaced"):
        write_keys(tmp_path / "k")
    with pytest.raises(SmeltError, match="no PEM file of a public key"):
        public_key(secret)
    assert struct.unpack("<32s", public_key(public))


def protections(lines: Sequence[str]) -> set[str]:
    return {line.split()[1][:3] for line in lines}


def test_no_memory_of_a_process_is_writable_and_executable(smallest: Path) -> None:
    script = f"""
from smelt.deploy.runtime import Model, Session
before = open("/proc/self/maps").read().splitlines()
session = Session(Model({str(smallest)!r}))
for line in open("/proc/self/maps"):
    print(line, end="")
"""
    maps = run_new(script).stdout.splitlines()
    found = protections(maps)
    assert "r-x" in found and not {each for each in found if "w" in each and "x" in each}
    anonymous = [line for line in maps if len(line.split()) == 5]
    assert "r-x" in protections(anonymous)  # the model's code
