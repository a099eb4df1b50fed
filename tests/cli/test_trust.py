"""`smelt keygen`, `sign` and `verify-file`: what they print and exit with."""

from pathlib import Path

import pytest
import torch

import smelt
from smelt.cli import main


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trust")
    assert main(["keygen", str(folder / "release")]) == main(["keygen", str(folder / "other")]) == 0
    return Path(smelt.export(torch.relu, (torch.ones(3),)).save(folder / "m.smelt"))


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    capsys.readouterr()
    code = main(list(map(str, arguments)))
    return code, "".join(capsys.readouterr())


def test_files_are_signed_and_verified(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys, signed = path.parent, tmp_path / "signed.smelt"
    assert said(capsys, "verify-file", path)[0] == 0
    code, text = said(capsys, "verify-file", path, "--key", keys / "release.pub")
    assert code == 1 and "refused: SM053: this file is not signed" in text
    code, text = said(capsys, "sign", path, "--key", keys / "release.key", "-o", signed)
    assert code == 0 and "signed by " in text
    code, text = said(capsys, "verify-file", signed, "--key", keys / "other.pub", "--key", keys / "release.pub")
    assert code == 0 and text.endswith("  trusted\n")
    code, text = said(capsys, "verify-file", signed, "--key", keys / "other.pub")
    assert code == 1 and "a key that is not trusted" in text
    code, text = said(capsys, "verify-file", signed, "--allow", "0" * 64)
    assert code == 1 and "not in the list of allowed files" in text
    code, text = said(capsys, "verify-file", signed)
    assert code == 0 and "whether its signer is trusted was not asked" in text


def test_a_signature_that_does_not_hold_is_found_without_keys(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signed = tmp_path / "signed.smelt"
    said(capsys, "sign", path, "--key", path.parent / "release.key", "-o", signed)
    data = bytearray(signed.read_bytes())
    data[-1] ^= 1
    signed.write_bytes(data)
    code, text = said(capsys, "verify-file", signed)
    assert code == 1 and "it was changed" in text


def test_mistakes_are_explained(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = path.parent
    assert "is not replaced" in said(capsys, "keygen", keys / "release")[1]
    assert "is no PEM file of a secret key" in said(capsys, "sign", path, "--key", keys / "release.pub")[1]
    assert "cannot be read" in said(capsys, "verify-file", keys / "missing.smelt")[1]
