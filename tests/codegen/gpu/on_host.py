"""Kernels by GPU schedules on the host, a warp as a vector, against the reference interpreter; and as PTX."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

import torch

from smelt import _native
from smelt.base.rewrite_budget import RewriteBudget
from smelt.codegen.gpu.cuda_target import describe_cuda
from smelt.codegen.gpu.gpu_generator import CudaGenerator
from smelt.codegen.gpu.grids import KernelGrids
from smelt.codegen.loops.runtime_sizes import as_integer
from smelt.codegen.write_module import join
from smelt.ir.kernel import Buffer, Kernel
from smelt.ir.substitute_sizes import resized
from smelt.symbolic.symsize import expression_of, is_symsize
from tests.codegen.gpu.running import copied
from tests.kernel_reference import run_kernel
from tests.simt_host.warps import HostGenerator, describe_host_warps

WARP = 8
Order = Literal["forward", "reverse", "shuffled"]
ORDERS: tuple[Order, ...] = ("forward", "reverse", "shuffled")


def filled(buffer: Buffer, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if buffer.dtype.is_floating_point:
        return torch.randn(buffer.size, generator=generator).to(buffer.dtype)
    high = 2 if buffer.dtype is torch.bool else 50
    return torch.randint(0, high, (buffer.size,), generator=generator).to(buffer.dtype)


class OnHost:
    """A kernel, compiled: for all sizes that its symbols stand for."""

    def __init__(self, kernel: Kernel, *, aligned: bool = True, warp: int = WARP, cluster: int = 1) -> None:
        target, generator = describe_host_warps("test", warp, cluster), HostGenerator()
        self.kernel = kernel
        self.warp = warp
        self.plan: KernelGrids = generator.schedule(kernel, target, RewriteBudget(), check=False, of="")
        self.code = generator.emit("k", self.plan, target, aligned=aligned)
        self.built = generator.load([join([self.code])], target)[0] if self.plan.phases else None

    def _size(self, size: int) -> int | tuple[int]:
        return (self.code.sizes.index(expression_of(size)),) if is_symsize(size) else size

    def run(self, tensors: list[torch.Tensor], sizes: Mapping[str, int]) -> None:
        if self.built is None:
            return
        address, size = self.built.address, self._size
        phases = tuple(
            (address(each.symbol), size(each.blocks), each.threads, each.shared_bytes, each.has_barrier)
            for each in self.code.phases
        )
        values = [as_integer(size.evaluate(lambda symbol: sizes[symbol.text])) for size in self.code.sizes]
        told = [torch.tensor(values)] if values else []
        buffers = len(tensors) + len(told)
        launch = _native.GridLauncher(phases, buffers, size(self.code.workspace), sizes=len(values), warp=self.warp)
        launch(1, *tensors, *told)

    def check(
        self,
        sizes: Mapping[str, int] | None = None,
        *,
        rtol: float = 1e-5,
        atol: float | None = None,
        given: Sequence[torch.Tensor] = (),
    ) -> None:
        """The same as the reference interpreter leaves, in whichever order warps take turns. `given`: the first of
        what it is run on."""
        sizes = sizes or {}
        plain = resized(self.kernel, lambda size: size.expression.evaluate(lambda symbol: sizes[symbol.text]))
        assert isinstance(plain, Kernel)
        random = [filled(buffer, seed) for seed, buffer in enumerate(plain.parameters)]
        given = [*given, *random[len(given) :]]
        want = [tensor.clone() for tensor in given]
        run_kernel(plain, want)
        allowed = 2e-6 * max(4, plain.row_count * plain.col_count) ** 0.5 if atol is None else atol
        for order in ORDERS:
            _native.set_simt_order(order, 3)
            got = [copied(tensor, True) for tensor in given]
            try:
                self.run(got, sizes)
            finally:
                _native.set_simt_order("forward")
            for buffer, mine, theirs in zip(plain.parameters, got, want, strict=True):
                torch.testing.assert_close(
                    mine, theirs, rtol=rtol, atol=allowed, equal_nan=True, msg=partial("{}: {}".format, buffer.name)
                )


def ptx(kernel: Kernel, architecture: str = "sm_90") -> str:
    """What an NVIDIA GPU would be given."""
    target, generator = describe_cuda(architecture), CudaGenerator()
    plan = generator.schedule(kernel, target, RewriteBudget(), check=False, of="")
    return generator.assemble(join([generator.emit("k", plan, target)]), target)
