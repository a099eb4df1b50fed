"""Numbers that the host has are parameters of a grid: nothing is copied for them, and no thread loads them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from smelt.base.options import Options
from smelt.codegen import build
from smelt.ir.check_kernel import check_kernel
from smelt.ir.kernel import Axis, Buffer, Compute, Index, Kernel, Load, Role, Stage, Store
from smelt.ir.program import Launch, Library
from smelt.ir.tensorspec import TensorSpec
from smelt.ir.text import format_kernel
from smelt.pipeline.parts import launcher_for
from tests.absent_device.ahead import Ahead, compile_ahead, spec_like
from tests.codegen.gpu.test_ptx import assembled, assembled_here

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
DTYPES = (*FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool)
HOST = torch.device("cpu")


def number(dtype: torch.dtype = torch.float32) -> TensorSpec:
    return TensorSpec((), (), dtype, HOST)


def found(function: Any, *given: Any) -> Ahead:
    return compile_ahead(function, given, Options(target="sm_90"))


def steps(made: Ahead) -> list[str]:
    return [
        f"{len(step.kernel.parameters)} on {step.kernel.target}" if isinstance(step, Launch) else str(step.op)
        for step in made.forward.steps
        if isinstance(step, Launch | Library)
    ]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@assembled_here
def test_they_are_parameters(dtype: torch.dtype, tmp_path: Path) -> None:
    made = found(lambda x, a: x * a, spec_like((64, 100)), number(dtype))
    assert steps(made) == ["3 on sm_90"]
    (kernel,) = made.forward.kernels
    assert [each.on_host for each in kernel.parameters].count(True) == 1
    (code,) = made.generate().values()
    assert sorted(code.numbers) == [0, 0, dtype.itemsize]
    text = build.assembly([kernel])
    assert text.count("ld.global") <= 1  # x, in one loop
    assembled(text, "sm_90", tmp_path)


@assembled_here
def test_rows_and_their_phases(tmp_path: Path) -> None:
    made = found(lambda x, a: torch.softmax(x * a, 1) / a, spec_like((64, 40_000)), number())
    assert steps(made) == ["3 on sm_90"]
    (kernel,) = made.forward.kernels
    assembled(build.assembly([kernel]), "sm_90", tmp_path)


@assembled_here
def test_updates_of_many_parameters_are_one_grid(tmp_path: Path) -> None:
    def update(params: Any, counts: Any) -> Any:
        return [param / (1 - 0.9 ** (count + 1)) for param, count in zip(params, counts, strict=True)]

    made = found(update, [spec_like((100 + 8 * n,)) for n in range(5)], [number() for _ in range(5)])
    assert [each for each in steps(made) if "sm_90" in each] == ["15 on sm_90"]
    assert not any("aten" in each for each in steps(made))
    launched = [step.kernel for step in made.forward.steps if isinstance(step, Launch)]
    group = next(kernel for kernel in launched if kernel.target == "sm_90")
    assembled(build.assembly([group]), "sm_90", tmp_path)


def test_what_the_host_computes_stays_there() -> None:
    """And no kernel of the host takes what a GPU computes with it."""
    made = found(lambda x, a: torch.softmax(x * (a * 2 + 1), -1) / a, spec_like((33, 65)), number())
    assert steps(made)[0] == "2 on cpu" and {each.split()[-1] for each in steps(made)[1:]} == {"sm_90"}
    for kernel in made.forward.kernels:
        assert all(each.size == 1 for each in kernel.parameters if each.on_host)


def test_one_element_on_the_device_and_one_on_the_host() -> None:
    def function(x: Any, a: Any) -> Any:
        scale = a.exp()
        return (x.sum() + scale).sin(), scale * 2, x * scale

    made = found(function, spec_like((33, 65)), number())
    hosts = [kernel for kernel in made.forward.kernels if kernel.target == "cpu"]
    assert hosts and all(not each.on_host for kernel in hosts for each in kernel.parameters)


def _scaled(target: str, *, on_host: bool = True, size: int = 1, role: Role = Role.INPUT) -> Kernel:
    buffers = (
        Buffer("a", torch.float32, size, role, on_host=on_host),
        Buffer("x", torch.float32, 100, Role.INPUT),
        Buffer("y", torch.float32, 100, Role.OUTPUT),
    )
    at = Index((("j", 1),), 0)
    body = (
        Load("v0", "a", Index((), 0)),
        Load("v1", "x", at),
        Compute("v2", "mul", ("v0", "v1"), torch.float32),
        Store("y", at, "v2"),
    )
    return Kernel("scaled", (), (Axis("j", 100),), buffers, (Stage(True, body),), target)


def test_text_tells_them() -> None:
    assert "in a: f32[1] of the host" in format_kernel(_scaled("sm_90"))
    assert "of the host" not in format_kernel(_scaled("sm_90", on_host=False))


def test_a_number_is_one_element_that_is_read() -> None:
    check_kernel(_scaled("sm_90"), after="fuse")
    with pytest.raises(Exception, match="more than a number"):
        check_kernel(_scaled("sm_90", size=2), after="fuse")


def test_on_the_host_they_are_where_they_are() -> None:
    """At any address: what is read as a number need not be aligned."""
    kernel = _scaled("simt-host")
    code = build.compile_kernels([kernel], Options())["scaled"]
    memory = torch.arange(4.0)
    x, y = torch.randn(100), torch.empty(100)
    launch = launcher_for("simt-host", code, lambda: kernel)
    launch(1, memory[3], x, y)
    assert torch.equal(y, x * 3)
