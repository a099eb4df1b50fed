"""The flat program: what is written is read back, in Python and in C, and what was cut or altered is refused."""

import contextlib
import os
import random
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smelt._native import Launcher, Runner
from smelt.ir.table.layout import double_bits
from smelt.ir.table.read import BadTable, TableReader, read_program
from smelt.ir.table.records import (
    DOUBLE,
    LIST,
    NONE,
    SOME,
    STRING,
    TENSOR,
    WORD,
    Allocate,
    Call,
    Drop,
    Item,
    ItemKind,
    Layout,
    Native,
    ProgramTable,
    Ref,
    TableHeader,
)
from smelt.ir.table.text import text_of
from smelt.ir.table.write import TableWriter, write_program
from tests.golden import golden
from tests.program_tables import Launched, program, tensor

FLIPS = 4000
KERNEL = Launcher(4096, 2, 64, 128)  # never run


def fill(*args: Any, **named: Any) -> None:
    """Stands for an operator."""


def sample() -> ProgramTable:
    """A program with something of everything."""
    values = (
        tensor("x", "float32", "cpu", (4, 8), (8, 1)),
        tensor("w", "float32", "cpu", (8, 8), (1, 8)),
        tensor("one", "int64", "cpu", (), ()),
        tensor("out", "float32", "cpu", (4, 8), (8, 1)),
        tensor("gelu", "float32", "cpu", (4, 8), (8, 1)),
        tensor("t", "bool", "cpu", (1,), (1,), 0, 64),
        tensor("t", "float32", "cpu", (4, 4), (8, 1), 4, 128),
    )
    product = Native(
        "aoti_torch_cpu_addmm_out",
        None,
        (Ref(3), Ref(2, Layout((4, 8), (0, 0), 0)), Ref(0), Ref(1)),
        (TENSOR, 0, TENSOR, 1, TENSOR, 2, TENSOR, 3, DOUBLE, double_bits(0.5), DOUBLE, double_bits(2.0)),
        (),
        0,
        (0, 4, 8, 8, 8, 1, 0, 0, 0, 0, 8, 1, 0, 1, 8, 0),
        0.5,
        2.0,
    )
    code = (TENSOR, 0, STRING, 0, SOME, LIST, 2, WORD, 7, NONE, STRING, 1)
    boxed = Native("aten::gelu", "", (Ref(6),), code, ("tanh", "größer"), 1)
    steps = (
        Allocate(3),
        Call("aten::addmm.out", fill, (Ref(2), Ref(0), Ref(1), 0.5, Ref(3)), ("beta", "out"), native=product),
        Launched("k0_relu", KERNEL, (3, 6), "host"),
        Call("aten::gelu", fill, (Ref(6, Layout((2,), (8,), 1)), "tanh"), (), (4,), True, boxed),
        Call("aten::split", fill, ([Ref(0), (Ref(1), None)], [1, 2], True, -3, 1 << 70), (), (None, 4)),
        Call("aten::_assert", fill, (Ref(5),), unless=5),
        Launched("k0_relu", fill, (0, 4)),
        Drop((0, 3)),
    )
    outputs = (Ref(4), None, Ref(4, Layout((32,), (1,), 0)), [Ref(2), 1.5], 3)
    return program(
        steps, outputs, values, inputs=2, constants=("a tensor",), arena=2, arena_bytes=4096, consuming=True,
        writes_from=2, name="forward0",
    )  # fmt: skip


def codes(name: Any) -> int:
    return {"float32": 6, "int64": 4}.get(name, -1)


def device_code(name: Any) -> tuple[int, int] | None:
    return (0, -1) if name == "cpu" else None


def written() -> tuple[bytes, tuple[Any, ...]]:
    return write_program(sample(), codes, device_code)


def runner(table: bytes, objects: tuple[Any, ...]) -> Runner:
    return Runner(
        table, objects, threads=fill, acquire=fill, release=fill, allocate=fill, view=fill, fit=fill, watchers=()
    )


def test_what_is_written_is_read() -> None:
    table, objects = written()
    assert read_program(table, objects) == sample()
    made = runner(table, objects)
    assert made.table is table and made.objects is objects
    assert write_program(read_program(table, objects), codes, device_code) == (table, objects)


def test_the_text_of_a_program() -> None:
    golden("ir/flat.txt", text_of(sample()))


def test_equal_parts_are_written_once() -> None:
    table, objects = written()
    reader = TableReader(table)
    assert len(set(reader.strings)) == len(reader.strings) and len(set(map(id, objects))) == len(objects)
    assert reader.length_of("dtypes") == 3 and reader.length_of("devices") == 1 and reader.length_of("kernels") == 2


def test_a_table_of_another_version_or_layout_says_so() -> None:
    table, objects = written()
    words = len(TableHeader._fields)
    for place, message in ((0, "begin like one"), (1, "version 99"), (2, "wrong length"), (words + 2, "wrong strings")):
        with pytest.raises(ValueError, match=message):
            runner(with_word(table, place, 99), objects)


def test_a_table_that_is_cut_is_refused_at_every_length() -> None:
    table, objects = written()
    for length in range(len(table)):
        cut = table[:length]
        honest = with_word(table, 2, length)[:length]  # says how long it is
        for made in (cut, honest):
            with pytest.raises(ValueError, match=r"this is no program|this program is damaged"):
                runner(made, objects)
        with pytest.raises(BadTable):
            read_program(cut, objects)
    with pytest.raises(ValueError, match="wrong length"):
        runner(table + b"\0", objects)


def test_a_table_without_all_of_its_objects_is_refused() -> None:
    table, objects = written()
    for count in range(len(objects)):
        with pytest.raises(ValueError, match="damaged"):
            runner(table, objects[:count])


def test_a_step_of_an_unknown_kind_is_refused() -> None:
    table, objects = written()
    first_kind, *_ = TableReader(table)._place("steps")
    altered = with_word(table, first_kind, 77)
    with pytest.raises(ValueError, match="wrong kind"):
        runner(altered, objects)
    with pytest.raises(BadTable):
        read_program(altered, objects)


def with_word(table: bytes, place: int, word: int) -> bytes:
    return table[: 8 * place] + struct.pack("q", word) + table[8 * place + 8 :]


def flipped(table: bytes, count: int, seed: int) -> Iterator[bytes]:
    """The table with one to three words altered: to any number, by one bit, or to one that nearly fits."""
    chance = random.Random(seed)
    size = len(table) // 8
    for _ in range(count):
        made = table
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            place = chance.randrange(size)
            (old,) = struct.unpack_from("q", made, 8 * place)
            near = [old + 1, old - 1, -1, 0, chance.randrange(1000), -(1 << 63), (1 << 63) - 1, (1 << 61) + 3]
            word = chance.choice([*near, old ^ 1 << chance.randrange(63), chance.getrandbits(64) - (1 << 63)])
            made = with_word(made, place, max(-(1 << 63), min(word, (1 << 63) - 1)))
        yield made


def try_altered(table: bytes, objects: tuple[Any, ...], count: int, seed: int) -> tuple[int, int]:
    """How many altered tables were refused, and how many were taken, each for a program of as many steps."""
    steps, refused, taken = TableReader(table).length_of("steps"), 0, 0
    for made in flipped(table, count, seed):
        try:
            found = runner(made, objects)
        except ValueError:
            refused += 1
            continue
        found.time(True)
        assert len(found.times[1]) == steps
        taken += 1
        with contextlib.suppress(BadTable):  # for text that is no UTF-8, an object in the place of another
            assert len(read_program(made, objects).steps) == steps
    return refused, taken


def test_an_altered_table_is_refused_or_of_as_many_steps() -> None:
    script = f"""
import tests.native.conftest
from tests.native.test_flat_table import try_altered, written
refused, taken = try_altered(*written(), {FLIPS}, seed=1)
assert refused > taken > 0, (refused, taken)
print(refused + taken)
"""
    assert run_apart(script).split() == [str(FLIPS)]


def run_apart(script: str) -> str:
    """What a process of its own prints, which may crash."""
    root = Path(__file__).parents[2]
    paths = os.pathsep.join(map(str, (root / "src", root)))
    found = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=root,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_a_function_of_the_c_interface_returns_nothing() -> None:
    """It writes into a tensor that it is given: there would be nothing to keep as a result."""
    script = """
import torch, smelt
smelt.compile(lambda x: x + 1)(torch.ones(4))  # so that PyTorch's C interface is known
from smelt.ir.table.records import TENSOR, Call, Native, Ref
from smelt.ir.table.write import write_program
from tests.program_tables import program, tensor
from tests.native.test_flat_table import fill, runner
values = tuple(tensor(name, torch.float32, torch.device("cpu"), (4, 4), (4, 1)) for name in ("x", "y"))
code = (TENSOR, 0, TENSOR, 0, TENSOR, 0)
native = Native("aoti_torch_cpu_mm_out", None, (Ref(0),), code, (), 0)
step = Call("aten::mm.out", fill, (Ref(0),), (), (1,), True, native)
table = program((step,), (Ref(1),), values, inputs=1)
try:
    runner(*write_program(table, lambda dtype: 6, lambda device: (0, -1)))
except ValueError as error:
    print(error)
"""
    assert "not how aoti_torch_cpu_mm_out is called" in run_apart(script)


def test_results_that_are_nested_too_deeply_raise() -> None:
    script = """
from smelt.ir.table.records import Item, ItemKind
from smelt.ir.table.write import TableWriter
from tests.native.test_flat_table import fill, runner
writer = TableWriter("deep")
for number in range(100_000):
    writer.add("items", Item(ItemKind.TUPLE, number + 1, 1, -1))
writer.add("items", Item(ItemKind.NONE, 0, 0, -1))
writer.words["programs"] += (0, 0, 0, 0, 0, 0, -1)
try:
    runner(writer.pack(), ())()
except RecursionError:
    print("refused")
"""
    assert run_apart(script).split() == ["refused"]


def test_items_that_stand_for_too_many_are_refused() -> None:
    """Each list holds the two items behind it: forty stand for hundreds of millions."""
    writer = TableWriter("wide")
    for number in range(40):
        writer.add("items", Item(ItemKind.TUPLE, number + 1, 2, -1))
    for _ in range(2):
        writer.add("items", Item(ItemKind.NONE, 0, 0, -1))
    writer.words["programs"] += (0, 0, 0, 0, 0, 0, -1)
    with pytest.raises(ValueError, match="items 1 has a wrong kind"):
        runner(writer.pack(), ())
    with pytest.raises(BadTable, match="items 1: is out of order"):
        read_program(writer.pack(), ())
