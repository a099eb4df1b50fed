"""The executor as LLVM bitcode, which every static model contains, and its memory."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from smelt.codegen.ahead_of_time import find_target
from smelt.codegen.llvm.compile import llvm, make_all_targets_ready
from smelt.codegen.processors import TARGETS
from smelt.codegen.static import build
from tests.codegen.foreign import run_static, runner
from tests.codegen.static.models import expected, growing
from tests.codegen.static.test_static import built, numbers
from tests.native.deploy.building import compiler
from tools import static_core

HERE = Path(__file__).parent


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


def test_pieces_of_memory_do_not_overlap_and_are_used_again(tmp_path: Path) -> None:
    """The C code by itself, under the address sanitizer: memory is all one piece again in the end."""
    sources = [str(static_core.CSRC / name) for name in static_core.SOURCES if not name.startswith("static/")]
    others = [str(static_core.CSRC / name) for name in ("executor/error.c", "executor/run/math.c")]
    folders = [f"-I{static_core.CSRC}", f"-I{static_core.INCLUDE}"]
    program, warnings = tmp_path / "region", ["-Wall", "-Wextra", "-Werror", "-Wno-unused-function"]
    checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    command = [compiler(), "-std=c11", "-g", "-O1", *warnings, *checks, *folders, str(HERE / "region.c")]
    done = subprocess.run([*command, *sources, *others, "-o", str(program), "-lm"], capture_output=True, text=True)
    if done.returncode and "libasan" in done.stderr:
        pytest.skip("gcc has no sanitizers here")
    assert done.returncode == 0, done.stderr
    found = subprocess.run([program], capture_output=True, text=True, timeout=120)
    assert (found.returncode, found.stdout, found.stderr) == (0, "1 1\n", "")


TWO = r"""
#include <stdio.h>
#include "growing.h"
#include "second.h"

int main(void)
{
    static _Alignas(64) char states[2][64], memory[2][1 << 16];
    growing_session one;
    second_session other;
    float x[12] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    growing_init(&one, states[0], memory[0], sizeof memory[0]);
    second_init(&other, states[1], memory[1], sizeof memory[1]);
    for (int call = 0; call < 2; call++) {
        growing_tensor inputs[GROWING_INPUTS] = {{.data = x, .shape = {3, 4}}}, outputs[GROWING_OUTPUTS] = {{0}};
        second_tensor given[SECOND_INPUTS] = {{.data = x, .shape = {2, 4}}}, got[SECOND_OUTPUTS] = {{0}};
        if (growing_run(&one, inputs, outputs) || second_run(&other, given, got))
            return 1;
        printf("%d %d ", (int)outputs[0].shape[0], (int)got[0].shape[0]);
    }
    printf("%d %d\n", (int)*(int64_t *)states[0], (int)*(int64_t *)states[1]);
    return 0;
}
"""


def test_a_model_may_have_any_name() -> None:
    target = find_target("host")
    for name in ("smelt", "smelt_static", "run_model"):
        assert f"{name}_run".encode() in build.static_model(name, *growing(target), target).object


def test_two_models_are_linked_into_one_program(tmp_path: Path) -> None:
    target = find_target("host")
    for name in ("growing", "second"):
        made = build.static_model(name, *growing(target), target)
        (tmp_path / f"{name}.o").write_bytes(made.object)
        (tmp_path / f"{name}.h").write_text(made.header)
    (tmp_path / "main.c").write_text(TWO)
    command = [compiler(), "-std=c11", "main.c", "growing.o", "second.o", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    found = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout == "3 2 3 2 18 18\n"
