"""Programs on tensors of a GPU need no Python between their steps: fresh tensors, library calls and launches."""

import ctypes
from typing import Any

import pytest
import torch

from smelt import _native
from smelt.ir.program import Library, Operand, Place, Program, ProgramBuffer
from smelt.ir.table.read import TableReader, read_program
from smelt.ir.table.records import Allocate, Call, Ref
from smelt.ir.table.write import write_program
from smelt.ir.tensorspec import TensorSpec
from smelt.runtime.program.launch import Executable
from smelt.torch_abi.aoti_shims import connect, device_code, dtype_code
from smelt.torch_abi.boxed_calls import boxed_call
from smelt.torch_abi.symbols import find_symbol
from tests.layout import needs_layout
from tests.program_tables import program as program_table
from tests.program_tables import tensor

aten = torch.ops.aten
GPU = torch.device("cuda", 1)
pytestmark = needs_layout


def number_of(kind: str) -> int:
    address = find_symbol(f"aoti_torch_device_type_{kind}")
    assert address is not None
    return int(ctypes.CFUNCTYPE(ctypes.c_int32)(address)())


def product_on_a_gpu() -> Program:
    spec = TensorSpec((4, 4), (4, 1), torch.float32, GPU)
    buffers = (
        ProgramBuffer("x", spec, Place.INPUT),
        ProgramBuffer("product", spec, Place.ARENA),
        ProgramBuffer("filled", spec, Place.LIBRARY),
        ProgramBuffer("out", spec, Place.FRESH),
    )
    whole = {name: Operand(name, (4, 4), (4, 1)) for name in ("x", "product", "filled", "out")}
    steps = (
        Library(aten.mm.out, (whole["x"], whole["x"]), (), outs=("product",), into=("out",)),
        Library(aten.eye.m, (4, 4), (("device", GPU),), outs=("filled",)),
        Library(aten.mm.out, (whole["product"], whole["filled"]), (), outs=("out",), into=("out",)),
    )
    return Program("p", buffers, ("x",), (), steps, (whole["out"],), arena_bytes=64)


def test_no_step_is_pythons() -> None:
    run = Executable(product_on_a_gpu(), {}).run
    assert run.python_steps == 0
    table, found = TableReader(run.table), read_program(run.table, run.objects)
    (allocation,) = [step for step in found.steps if isinstance(step, Allocate)]
    assert found.tensors[allocation.value].device == GPU
    assert [(each.kind, each.number) for each in table.rows("devices")] == [(number_of("cuda"), 1)]
    assert [each.code for each in table.rows("dtypes")] == [dtype_code(torch.float32)]
    natives = [step.native for step in found.steps if isinstance(step, Call)]
    # Those with a function of their own have it for the CPU alone; here all go through the dispatcher.
    assert [(each.name, each.overload) for each in natives if each is not None] == [
        ("aten::mm", "out"),
        ("aten::eye", "m"),
        ("aten::mm", "out"),
    ]


def test_devices_by_number() -> None:
    cuda = number_of("cuda")
    assert device_code(torch.device("cpu")) == (0, -1)
    assert device_code(GPU) == (cuda, 1) and device_code(torch.device("cuda")) == (cuda, -1)
    assert device_code(torch.device("meta")) is None
    call = boxed_call(aten.eye.m, (2, 3), {"device": GPU}, Operand)
    assert call is not None and cuda << 32 | 1 in call.code


@pytest.mark.parametrize("number", [-1, 0])
def test_tensors_are_made_on_the_device_that_is_asked_for(number: int) -> None:
    """Of the devices that every PyTorch has, `meta` is the one other than the CPU."""
    connect()

    def refused(*_: Any) -> Any:
        raise AssertionError

    value = tensor("a", torch.float64, torch.device("meta"), (3, 5), (5, 1))
    table = program_table((Allocate(0),), (Ref(0),), (value,))
    run = _native.Runner(
        *write_program(table, dtype_code, lambda device: (number_of("meta"), number)), threads=refused, acquire=refused,
        release=refused, allocate=refused, view=refused, fit=refused, watchers=(),
    )  # fmt: skip
    (made,) = run()
    assert made.device.type == "meta" and made.shape == (3, 5) and made.dtype is torch.float64


def test_an_allocation_that_fails_is_tried_by_python() -> None:
    """Which raises PyTorch's own error, or finds memory after all."""
    connect()
    asked: list[Any] = []

    def allocate(*how: Any) -> torch.Tensor:
        asked.append(how)
        raise torch.OutOfMemoryError("CUDA out of memory.")

    value = tensor("a", torch.float64, torch.device("cpu"), (1 << 60,), (1,))
    table = program_table((Allocate(0),), (), (value,))
    run = _native.Runner(
        *write_program(table, dtype_code, device_code), threads=allocate, acquire=allocate, release=allocate,
        allocate=allocate, view=allocate, fit=allocate, watchers=(),
    )  # fmt: skip
    with pytest.raises(torch.OutOfMemoryError):
        run()
    assert asked == [((1 << 60,), (1,), torch.float64, torch.device("cpu"))]
