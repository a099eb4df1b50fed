"""Run GPU schedules where there is no GPU: a warp as a vector, blocks and warps in several orders.

    built = build(kernel, warp=8)
    built.run(tensors, order="reverse")
    same_as_reference(kernel)             both orders, aligned and not, against the interpreter
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Literal

import pytest
import torch
from torch import Tensor

from smelt import _native
from smelt.base.fast_dataclass import dataclass
from smelt.base.rewrite_budget import RewriteBudget
from smelt.codegen.generator import EntryCode
from smelt.codegen.gpu import grid_plan
from smelt.codegen.gpu.grids import KernelGrids
from smelt.codegen.llvm.print_module import print_module
from smelt.codegen.write_module import join
from smelt.device import Target
from smelt.ir.check_kernel import check_kernel
from smelt.ir.kernel import Kernel
from smelt.ir.substitute_sizes import resized, shape_env_of
from smelt.symbolic.expressions import ShapeEnv
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import expression_of, is_symsize
from tests.codegen.cpu.test_kernels import filled
from tests.kernel_reference import run_kernel
from tests.simt_host.warps import HostGenerator, describe_host_warps

Order = Literal["forward", "reverse", "shuffled"]
ORDERS: tuple[Order, ...] = ("forward", "reverse")
PADDING = 16  # bytes that a tensor must begin at a multiple of
MARGIN = 4096  # elements behind a tensor, which a schedule that is broken on purpose may write


@cache
def target(warp: int) -> Target:
    """This processor, as a GPU whose warps have so many threads."""
    return describe_host_warps("test", warp)


def split_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have many blocks share even short rows."""
    monkeypatch.setattr(grid_plan, "_LEAST_WORK", 8)
    monkeypatch.setattr(grid_plan, "_WORTH_SPLITTING", 16)
    monkeypatch.setattr(grid_plan, "_ENOUGH_BLOCKS", 24)


def module_text(code: EntryCode) -> str:
    return print_module(join([code]))


@dataclass(frozen=True, slots=True)
class BuiltKernel:
    """A kernel's phases as machine code, to run on tensors."""

    kernel: Kernel
    plan: KernelGrids
    code: EntryCode
    launcher: _native.GridLauncher
    keep_alive: object

    def run(self, tensors: Sequence[Tensor], order: Order = "forward", seed: int = 0) -> None:
        _native.set_simt_order(order, seed)
        try:
            self.launcher(1, *tensors)
        finally:
            _native.set_simt_order("forward")


def build(kernel: Kernel, warp: int = 8, *, aligned: bool = True) -> BuiltKernel:
    generator, chip = HostGenerator(), target(warp)
    own = ShapeEnv()
    for each in getattr(shape_env_of(kernel), "symbols", ()):
        own.symbol(each.text, each.example)
    plan = generator.schedule(resized(kernel, lambda size: size.moved(own)), chip, RewriteBudget(), check=True, of="")
    code = replace(generator.emit("k", plan, chip, aligned=aligned), facts=tuple(own.guards))
    made = generator.load([join([code])], chip)[0]

    def size(of: Size) -> int | tuple[int]:
        return (code.sizes.index(expression_of(of)),) if is_symsize(of) else int(of)

    phases = tuple(
        (made.address(each.symbol), size(each.blocks), each.threads, each.shared_bytes, each.has_barrier)
        for each in code.phases
    )
    count = len(kernel.parameters) + bool(code.sizes)
    launcher = _native.GridLauncher(phases, count, size(code.workspace), sizes=len(code.sizes), warp=warp)
    return BuiltKernel(kernel, plan, code, launcher, made)


def copied(tensor: Tensor, aligned: bool) -> Tensor:
    """A copy that begins where it is aligned, or one element later."""
    room = torch.empty(tensor.numel() + PADDING + MARGIN, dtype=tensor.dtype)
    first = (-room.data_ptr() % PADDING) // tensor.itemsize + (0 if aligned else 1)
    return room[first : first + tensor.numel()].copy_(tensor.reshape(-1))


def same_as_reference(
    kernel: Kernel,
    warps: Sequence[int] = (4, 8),
    *,
    given: Sequence[Tensor] | None = None,
    orders: Sequence[Order] = ORDERS,
    rtol: float = 2e-6,
) -> None:
    """Run on random memory, and compare every element of every buffer with what the interpreter leaves.

    Values are about one in size, so a sum of n of them is off by a few roundings of numbers about √n in size.
    """
    check_kernel(kernel, after="the test")
    given = [filled(buffer, seed) for seed, buffer in enumerate(kernel.parameters)] if given is None else given
    want = [tensor.clone() for tensor in given]
    run_kernel(kernel, want)
    allowed = 5e-7 * max(4, kernel.row_count * kernel.col_count) ** 0.5
    for number, warp in enumerate(warps):
        aligned = number % 2 == 0
        built = build(kernel, warp, aligned=aligned)
        for order in orders:
            got = [copied(tensor, aligned) for tensor in given]
            built.run(got, order)
            _compare(kernel, got, want, f"warps of {warp}, {order}", rtol, allowed)


def _compare(
    kernel: Kernel, got: Sequence[Tensor], want: Sequence[Tensor], how: str, rtol: float, allowed: float
) -> None:
    for buffer, mine, reference in zip(kernel.parameters, got, want, strict=True):
        torch.testing.assert_close(
            mine, reference, rtol=rtol, atol=allowed, equal_nan=True,
            msg=partial("{}: {}".format, f"{kernel.name}, buffer {buffer.name}, {how}"),
        )  # fmt: skip


def at(value: object, sizes: Mapping[str, int]) -> object:
    """With numbers for the sizes that vary."""
    return resized(value, lambda size: size.expression.evaluate(lambda symbol: sizes[symbol.text]))


def same_at(built: BuiltKernel, sizes: Mapping[str, int], orders: Sequence[Order] = ORDERS) -> None:
    """As `same_as_reference`, of a kernel whose sizes vary, at some of them."""
    plain = at(built.kernel, sizes)
    assert all(fact.holds(lambda symbol: sizes[symbol.text]) for fact in built.code.facts), sizes
    assert isinstance(plain, Kernel)
    check_kernel(plain, after="the test")
    given = [filled(buffer, seed) for seed, buffer in enumerate(plain.parameters)]
    want = [tensor.clone() for tensor in given]
    run_kernel(plain, want)
    told = torch.tensor([size.evaluate(lambda symbol: sizes[symbol.text]) for size in built.code.sizes])
    allowed = 5e-7 * max(4, plain.row_count * plain.col_count) ** 0.5
    for order in orders:
        got = [tensor.clone() for tensor in given]
        built.run([*got, told] if len(told) else got, order)
        _compare(plain, got, want, f"{dict(sizes)}, {order}", 2e-6, allowed)
