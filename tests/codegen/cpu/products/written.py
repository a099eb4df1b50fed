"""Products as kernels, compiled by a schedule of one's choice, and held against the reference interpreter."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from smelt.codegen.build import CompiledKernel
from smelt.codegen.cpu.products.plan import PRODUCTS
from smelt.codegen.llvm.compile import load
from smelt.codegen.write_module import join
from smelt.device import Target, find
from smelt.ir.kernel import (
    Axis,
    Buffer,
    Cast,
    Compute,
    Contract,
    Factor,
    Index,
    Instruction,
    Kernel,
    Load,
    Role,
    Stage,
    Store,
)
from tests.codegen.running import call
from tests.kernel_reference import run_kernel

F32, F64, BF16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16


def index(offset: int = 0, **strides: int) -> Index:
    return Index(tuple((name, stride) for name, stride in strides.items() if stride), offset)


def product(
    m: int, n: int, k: int, *, batch: int = 1, left: str = "bik", right: str = "bkj", dtype: torch.dtype = F32,
    epilogue: bool = False, in_place: bool = False,
) -> Kernel:
    """y[b, i, j] = Σ x · w; `left` and `right` name the axes of each factor, outermost first. As an epilogue a bias and
    a function; `in_place`: onto what is in y."""  # fmt: skip
    sizes = {"b": batch, "i": m, "j": n, "k": k}

    def strided(order: str) -> dict[str, int]:
        step, found = 1, {}
        for axis in reversed(order):
            found[axis] = step
            step *= sizes[axis]
        return {axis: found[axis] for axis in "bijk" if axis in found}

    total = F64 if dtype is F64 else F32
    x, w = (Factor(name, index(**strided(order))) for name, order in (("x", left), ("w", right)))
    body: list[Instruction] = [Contract("p", (Axis("k", k),), x, w, total)]
    value, place = "p", index(**strided("bij"))
    if epilogue:
        body += [
            Load("c", "bias", index(j=1)), Compute("v", "add", (value, "c"), total),
            Compute("e", "tanh", ("v",), total), Compute("u", "mul", ("v", "e"), total),
        ]  # fmt: skip
        value = "u"
    if in_place:
        body.append(Load("o", "y", place))
        body += [Cast("q", "o", total)] if dtype is not total else []
        body += [Compute("s", "add", (value, "o" if dtype is total else "q"), total)]
        value = "s"
    if dtype is not total:
        body.append(Cast("narrow", value, dtype))
        value = "narrow"
    body.append(Store("y", place, value))
    spans = {"x": left, "w": right}
    buffers = [Buffer(name, dtype, _count(sizes, order), Role.INPUT) for name, order in spans.items()]
    if epilogue:
        buffers.append(Buffer("bias", total, n, Role.INPUT))
    buffers.append(Buffer("y", dtype, _count(sizes, "bij"), Role.INOUT if in_place else Role.OUTPUT))
    rows = (Axis("b", batch), Axis("i", m))
    return Kernel(f"product_{m}_{n}_{k}", rows, (Axis("j", n),), tuple(buffers), (Stage(True, tuple(body)),))


def _count(sizes: dict[str, int], order: str) -> int:
    found = 1
    for axis in order:
        found *= sizes[axis]
    return found


def compiled_by(
    kernels: Sequence[Kernel], schedule: str | Sequence[str] | None = None, target: Target | None = None
) -> list[CompiledKernel]:
    """All in one module, by the schedule of that name, or each by its own."""
    target = target or find("cpu")
    names = [schedule] * len(kernels) if schedule is None or isinstance(schedule, str) else schedule
    codes = []
    for number, (kernel, name) in enumerate(zip(kernels, names, strict=True)):
        plan = PRODUCTS.plan(kernel, target, name)
        codes.append(plan.emit(f"k{number}", target))
    (built,) = load([join(codes)], target)
    return [
        CompiledKernel.of(kernel, f"k{number}", built, code)
        for number, (kernel, code) in enumerate(zip(kernels, codes, strict=True))
    ]


def filled(buffer: Buffer, seed: int) -> Tensor:
    return torch.randn(int(buffer.size), generator=torch.Generator().manual_seed(seed)).to(buffer.dtype)


def same_as_reference(
    kernels: Sequence[Kernel], schedule: str | None = None, threads: Sequence[int] = (1, 2, 3)
) -> None:
    """Every element of every buffer; the same on any number of threads, bit for bit.

    Sums of n numbers about one in size are about √n, and √n of their n roundings add up.
    """
    for kernel, compiled in zip(kernels, compiled_by(kernels, schedule), strict=True):
        given = [filled(buffer, seed) for seed, buffer in enumerate(kernel.parameters)]
        want = [tensor.clone() for tensor in given]
        run_kernel(kernel, want)
        runs = []
        for count in threads:
            got = [tensor.clone() for tensor in given]
            call(compiled, got, count)
            runs.append(got)
        contract = next(i for i in kernel.instructions() if isinstance(i, Contract))
        depth = max(4, int(torch.tensor([int(axis.size) for axis in contract.axes]).prod()))
        for place, buffer in enumerate(kernel.parameters):
            rounding = torch.finfo(buffer.dtype).eps
            summed = torch.finfo(contract.dtype).eps
            near = {"rtol": 2 * rounding + summed * depth**0.5, "atol": 2 * rounding + summed * depth}
            where = f"{kernel.name}, buffer {buffer.name}"
            message = partial("{}: {}".format, where)
            torch.testing.assert_close(runs[0][place], want[place], **near, msg=message)
            for other in runs[1:]:
                assert torch.equal(other[place], runs[0][place]), f"{where} differs by threads"
