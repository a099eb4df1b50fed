"""The executor as LLVM bitcode, which every static model has in it: it is that of the C sources, and fit for all targets."""

import re
import shutil
from pathlib import Path

import pytest
import torch

from smelt.codegen.ahead_of_time import find_target
from smelt.codegen.llvm.compile import llvm, make_all_targets_ready
from smelt.codegen.processors import TARGETS
from smelt.codegen.static import build
from tests.codegen.foreign import run_static, runner
from tests.codegen.static.test_static import built, expected, numbers
from tools import static_core


def test_bitcode_is_that_of_the_sources() -> None:
    assert (static_core.CORE / "sources.sha256").read_text().strip() == static_core.checksum(), (
        "run tools/static_core.py, which needs clang"
    )


def text_of(path: Path) -> str:
    make_all_targets_ready()
    module = llvm().parse_bitcode(path.read_bytes())
    module.verify()
    return str(module)


@pytest.mark.parametrize("bits", [32, 64])
def test_bitcode_names_no_processor_and_needs_no_library(bits: int) -> None:
    text = text_of(static_core.CORE / f"core{bits}.bc")
    assert "target-cpu" not in text and "target-features" not in text
    declared = re.findall(r"^declare .*@([\w.]+)\(", text, re.M)
    assert {name for name in declared if not name.startswith("llvm.")} == {"smelt_launch", "smelt_math"}
    assert set(re.findall(r"^define (?!internal).*@([\w.]+)\(", text, re.M)) == set(static_core.ENTRIES)
    assert not re.findall(r"^@\S+ = .*\bglobal\b", text, re.M)  # nothing that threads could share


@pytest.mark.parametrize("name", [name for name in TARGETS if name != "wasm32"])
def test_objects_of_every_target_have_weights_and_both_functions(name: str) -> None:
    made = built(name).object
    assert b"growing_run" in made and b"growing_init" in made
    assert not [each for each in build._missing(made, find_target(name)) if each.startswith("mem")]


@pytest.mark.parametrize("name", ["aarch64", "x86-64-v2", "riscv64"])
def test_bitcode_compiled_here_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As what is committed does, whichever version of clang made it."""
    if shutil.which("clang") is None:
        pytest.skip("there is no clang")

    runner(name)
    for bits in static_core.TRIPLES:
        (tmp_path / f"core{bits}.bc").write_bytes(static_core.bitcode(bits))
    monkeypatch.setattr(build, "_CORE", tmp_path)
    y, first, count = torch.zeros(3, 4), torch.zeros(3), torch.zeros((), dtype=torch.int64)
    keep = torch.ones((), dtype=torch.int64)
    assert run_static(built(name), name, [numbers(3), keep], [y, first, count], tmp_path) == 0
    want, _, counted = expected(numbers(3), 10)
    torch.testing.assert_close(y, want)
    assert count.item() == counted
