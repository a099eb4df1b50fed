"""The Rust crate, a skeleton: a package that depends on it runs the model of its page."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from tests.packaging.pages import PACKAGES, block

pytestmark = pytest.mark.slow  # cargo builds the crate and libsmelt

PACKAGE = """
[package]
name = "infer"
version = "0.1.0"
edition = "2021"

[dependencies]
smelt-runtime = {{ path = "{}" }}
"""


def test_a_program_runs_the_model_of_the_page(tmp_path: Path) -> None:
    if shutil.which("cargo") is None or shutil.which("cc") is None:
        pytest.skip("there is no cargo, or no C compiler here")
    (tmp_path / "src").mkdir()
    (tmp_path / "Cargo.toml").write_text(PACKAGE.format(PACKAGES / "rust"))
    (tmp_path / "src" / "main.rs").write_text(block("rust", "rust", "fn main"))
    names: dict[str, object] = {}
    exec(block("rust", "python", "smelt.export").replace('"model.smelt"', f'"{tmp_path}/model.smelt"'), names)
    settings = os.environ | {"RUSTFLAGS": "-D warnings"}
    argv = ["cargo", "run", "--offline", "--quiet"]
    done = subprocess.run(argv, cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    sizes, values = re.findall(r"\[([^\]]*)\]", done.stdout)
    model = names["model"]
    assert isinstance(model, torch.nn.Module) and sizes == "2, 2"
    with torch.no_grad():
        expected = model(torch.arange(1.0, 9.0).reshape(2, 4)).flatten().tolist()
    assert [float(word) for word in values.split(",")] == pytest.approx(expected, rel=1e-5)
