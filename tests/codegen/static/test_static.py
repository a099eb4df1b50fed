"""Objects without a loader: a state machine in C, in WebAssembly, and on processors that this machine is not."""

import json
import shutil
import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from smelt._native import plan_table
from smelt.codegen.ahead_of_time import find_target
from smelt.codegen.static.build import StaticModel, static_model
from smelt.codegen.static.header import header_text
from smelt.ir.table import records as r
from smelt.ir.table.write import table_bytes
from smelt.symbolic.postfix import Op
from tests.codegen.foreign import run_static, runner
from tests.codegen.static.models import expected, growing

PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include "growing.h"

int main(int argc, char **argv)
{
    static _Alignas(64) char state[GROWING_STATE_BYTES], memory[1 << 16];
    growing_session session;
    growing_init(&session, state, memory, argc > 2 ? atoi(argv[2]) : (int)sizeof memory);
    int rows = atoi(argv[1]);
    float x[64], column[64];
    int64_t keep = 1;
    for (int i = 0; i < 64; i++)
        x[i] = 1.0f + 0.125f * i;
    for (int call = 0; call < 3; call++) {
        growing_tensor inputs[GROWING_INPUTS] = {{.data = x, .shape = {rows, 4}}, {.data = call == 2 ? &keep : NULL}};
        growing_tensor outputs[GROWING_OUTPUTS] = {{0}, {.data = column, .bytes = sizeof column}, {0}};
        int code = growing_run(&session, inputs, outputs);
        printf("%d", code);
        if (code == GROWING_WRONG_SIZE)
            printf(" input %d dimension %d", session.input, session.dimension);
        if (code == GROWING_NO_MEMORY)
            printf(" needed %d", (int)session.needed);
        if (code == GROWING_OK) {
            printf(" %d [%d %d]", (int)*(int64_t *)outputs[2].data, (int)outputs[0].shape[0], (int)outputs[0].shape[1]);
            for (int i = 0; i < 4 * rows; i++)
                printf(" %g", ((float *)outputs[0].data)[i]);
            for (int i = 0; i < rows && outputs[1].data; i++)
                printf(" %g", column[i]);
        }
        printf("\n");
    }
    return 0;
}
"""
SCRIPT = """
import {{ load }} from "./growing.mjs";
const session = await load(undefined, 64);
const x = Float32Array.from({{ length: 4 * {rows} }}, (_, i) => 1 + 0.125 * i);
const found = [];
for (let call = 0; call < 3; call++) {{
  const given = {{ x: {{ data: x, shape: [{rows}, 4] }} }};
  if (call === 2) given.keep = {{ data: BigInt64Array.of(1n) }};
  const {{ y, first, count }} = session.run(given);
  found.push([Number(count.data[0]), y.shape, Array.from(y.data), first && Array.from(first.data)]);
}}
console.log(JSON.stringify(found));
"""


def built(name: str) -> StaticModel:
    target = find_target(name)
    return static_model("growing", *growing(target), target)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("static")
    made = built("host")
    (folder / "growing.o").write_bytes(made.object)
    (folder / "growing.h").write_text(made.header)
    (folder / "main.c").write_text(PROGRAM)
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *flags, "main.c", "growing.o", "-o", "main"], cwd=folder, check=True)
    return folder / "main"


def run(program: Path, *args: object) -> list[list[str]]:
    done = subprocess.run([program, *map(str, args)], capture_output=True, text=True, check=True, timeout=60)
    return [line.split() for line in done.stdout.splitlines()]


def numbers(rows: int) -> torch.Tensor:
    return (1 + 0.125 * torch.arange(4.0 * rows)).reshape(rows, 4)


@pytest.mark.parametrize("rows", [2, 3, 6])
def test_a_loop_in_c(program: Path, rows: int) -> None:
    count = 10
    for call, line in enumerate(run(program, rows)):
        y, first, count = expected(numbers(rows), count)
        assert line[:4] == ["0", str(count), f"[{rows}", "4]"]
        want = [*y.flatten().tolist(), *(first.tolist() if call < 2 else [])]
        assert [float(each) for each in line[4:]] == pytest.approx(want, rel=1e-5)


def test_errors_in_c(program: Path) -> None:
    assert run(program, 1)[0] == ["1", "input", "0", "dimension", "0"]
    assert run(program, 7)[0] == ["16"]
    too_little = run(program, 3, 100)[0]
    assert too_little[:2] == ["3", "needed"] and int(too_little[2]) > 100


def test_memory_that_is_said_to_be_needed_is_enough(program: Path) -> None:
    """Asked for again and again, as what is allocated first is what is missed first."""
    memory = 64
    for _ in range(50):
        line = run(program, 3, memory)[0]
        if line[0] == "0":
            break
        assert int(line[2]) > memory
        memory = int(line[2])
    assert line[0] == "0"


def test_memory_that_the_header_names_is_enough(program: Path) -> None:
    named = int(built("host").header.partition("_MEMORY_BYTES ")[2].split()[0])
    assert [line[0] for line in run(program, 6, named)] == ["0", "0", "0"]


def plans_of(*variants: r.Variant) -> tuple[tuple[int, ...] | None, ...]:
    """The plans that an object file would have, as words."""
    x = r.Register("x", r.RegisterKind.INPUT, "float32", (r.Dim(0, 64),))
    y = r.Register("y", r.RegisterKind.LOCAL, "float32", (r.Dim(0),))
    states = (r.State("entry", variants),)
    table = r.Table("doubled", (x, y), (r.Output("y", "float32", (r.Dim(0),)),), (r.Kernel("k", 2),), states)
    _, plans = plan_table(table_bytes(table), 0, 0, 1)
    return tuple(None if plan is None else struct.unpack(f"{len(plan) // 8}q", plan) for plan in plans)


def doubled(size: r.Expression, arena: int, symbols: tuple[r.Symbol, ...] = ()) -> r.Variant:
    size_bytes = r.apply(Op.MUL, size, r.number(4))
    return r.Variant(
        "doubled", r.Return((r.Returned(1),)), symbols, (), (r.Produced(1, (size,)),),
        (r.RegisterValue(0, size_bytes), r.ProducedValue(0, size_bytes)),
        (r.Launch(0, (0, 1), r.number(32), r.number(8)),), r.number(arena),
    )  # fmt: skip


def test_plans_are_written_for_variants_whose_sizes_are_fixed() -> None:
    size = r.Symbol("n", r.Bind.SIZE, 0, 0)
    arena, workspace, values = 64, 32 + 8, (0, 16, 0, 0, 16, 0)
    fixed, dynamic = plans_of(doubled(r.number(4), 64), doubled(r.symbol(0), 64, (size,)))
    assert fixed == (arena, workspace, 16, 4, workspace, *values)
    assert dynamic is None


def test_sizes_that_do_not_fit_memory_are_left_to_the_run() -> None:
    too_large = doubled(r.number(4), -1), doubled(r.number(1 << 50), 0), doubled(r.number(4), 1 << 50)
    assert plans_of(*too_large) == (None, None, None)


def test_names_that_c_cannot_tell_apart() -> None:
    table, *_ = growing(find_target("host"))
    registers = (replace(table.registers[0], name="a[0]"), replace(table.registers[1], name="a.0 "))
    text = header_text("twins", replace(table, registers=registers + table.registers[2:]), 0, 64)
    assert "TWINS_INPUT_A_0__0 = 0" in text and "TWINS_INPUT_A_0__1 = 1" in text


def test_in_javascript(tmp_path: Path) -> None:
    command = runner("wasm32")
    made = built("wasm32")
    assert made.module is not None and made.javascript is not None
    (tmp_path / "growing.wasm").write_bytes(made.module)
    (tmp_path / "growing.mjs").write_text(made.javascript)
    (tmp_path / "main.mjs").write_text(SCRIPT.format(rows=3))
    done = subprocess.run([*command, tmp_path / "main.mjs"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    count = 10
    for call, (found_count, shape, data, column) in enumerate(json.loads(done.stdout)):
        y, first, count = expected(numbers(3), count)
        assert found_count == count and shape == [3, 4]
        assert data == pytest.approx(y.flatten().tolist())
        assert column == (first.tolist() if call < 2 else None)


def symbols_of_elf(data: bytes) -> dict[str, int]:
    """Global symbols by name, each with its section; 0: it is not defined."""
    start, size, count = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HH", data, 58)
    rows = [struct.unpack_from("<IIQQQQIIQQ", data, start + size * number) for number in range(count)]
    (table,) = [row for row in rows if row[1] == 2]
    strings = rows[table[6]][4]
    found = {}
    for name, info, _, section, _, _ in struct.iter_unpack("<IBBHQQ", data[table[4] : table[4] + table[5]]):
        if info >> 4:
            found[data[strings + name : data.index(b"\0", strings + name)].decode()] = section
    return found


@pytest.mark.parametrize(
    ("name", "machine"), [("x86-64-v3", 62), ("aarch64", 183), ("aarch64-android", 183), ("riscv64-v", 243)]
)
def test_objects_need_nothing(name: str, machine: int) -> None:
    made = built(name).object
    assert made[:6] == b"\x7fELF\x02\x01" and struct.unpack_from("<HH", made, 16) == (1, machine)
    symbols = symbols_of_elf(made)
    assert {each for each, section in symbols.items() if section} == {"growing_init", "growing_run"}
    assert not [each for each, section in symbols.items() if not section]


def test_mach_o_and_coff() -> None:
    mach = built("aarch64-macos").object
    assert struct.unpack_from("<IIII", mach) == (0xFEEDFACF, 0x0100000C, 0, 1)  # an object for arm64
    assert b"_growing_run\0" in mach
    coff = built("x86-64-v3-windows").object
    assert struct.unpack_from("<H", coff)[0] == 0x8664
    assert b"growing_run\0" in coff or b"growing_run" in coff


@pytest.mark.parametrize("name", ["x86-64-v2", "x86-64-v3", "aarch64", "riscv64", "riscv64-v"])
def test_on_other_processors(name: str, tmp_path: Path) -> None:
    y, first, count = torch.zeros(3, 4), torch.zeros(3), torch.zeros((), dtype=torch.int64)
    keep = torch.ones((), dtype=torch.int64)
    made = built(name)
    # The second input, which may be left out, is given: the second output has no data then.
    assert run_static(made, name, [numbers(3), keep], [y, first, count], tmp_path) == 0
    want, _, counted = expected(numbers(3), 10)
    torch.testing.assert_close(y, want)
    assert count.item() == counted
    assert run_static(made, name, [numbers(7), keep], [y, first, count], tmp_path) == 16
