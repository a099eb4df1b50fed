"""Registers the targets of this package with `device.registry`. Loads neither LLVM nor the code generators."""

import functools
import importlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from smelt import _native
from smelt.base.errors import warn
from smelt.device import choose_for, find, register
from smelt.device.fusion_limits import Limits
from smelt.ir.kernel import Kernel
from smelt.ir.kernel_code import KernelCode
from smelt.ir.substitute_sizes import over_own_symbols


def _when_asked(module: str, name: str, *args: Any) -> Callable[[], Any]:
    """What calls a function or class of this package with these arguments, and loads its module only then."""
    return lambda: getattr(importlib.import_module(f"smelt.codegen.{module}"), name)(*args)


def _cpu_generator() -> Any:
    from smelt.codegen.cpu import cpu_generator

    return cpu_generator


Unaligned = Callable[[], KernelCode]  # makes the code of the same kernel for buffers at any address
_ALIGNMENT = 16  # of every buffer, in bytes: what one access of a GPU's thread moves


def _cpu_launcher(code: KernelCode, unaligned: Unaligned) -> _native.Launcher:
    return _native.Launcher(code.address(code.symbol), code.buffers, 0, code.per_thread_workspace)


def contraction_cycles_of(kernel: Kernel, name: str = "cpu") -> float | str:
    from smelt.codegen.cpu.problem_kinds import KINDS

    target = find(name)
    kernel, _ = over_own_symbols(kernel)  # for a choice of speed: nothing is relied on
    for kind in KINDS:
        if kind.takes(kernel):
            return kind.why_not(kernel, target) or kind.plan(kernel, target).cycles(target)
    return "it has no contraction"


register(
    "cpu",
    _when_asked("cpu.target", "describe_host"),
    generator=_cpu_generator,
    launcher=_cpu_launcher,
    devices=("cpu",),
    contraction_cycles=contraction_cycles_of,
)


# Processors that code is made for ahead of time (`codegen/ahead_of_time.py`): nothing launches it here.

PROCESSORS = ("x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64", "riscv64", "riscv64-v", "wasm32")


for _processor in PROCESSORS:
    register(
        _processor,
        _when_asked("processors", "described", _processor),
        generator=_cpu_generator,
        devices=("cpu",),
        contraction_cycles=functools.partial(contraction_cycles_of, name=_processor),
        on_request=True,
    )


GROUP_BUFFERS = 500  # pointers of eight bytes, of 4096 bytes that parameters of a grid may have on all chips


def grid_launcher(
    make: Callable[..., _native.GridLauncher], code: KernelCode, unaligned: Unaligned | None, **options: Any
) -> _native.GridLauncher:
    """The grids of a kernel, all of whose sizes are numbers by now. `make`: what makes a launcher of other code."""
    address = (lambda symbol: 0) if "support" in options else code.address
    return _native.GridLauncher(
        tuple((address(p.symbol), p.blocks, p.threads, p.shared_bytes, p.has_barrier, p.overlaps) for p in code.phases),
        code.buffers,
        code.workspace,
        sizes=code.size_count,
        numbers=code.numbers,
        alignment=_ALIGNMENT if unaligned else 1,
        unaligned=(lambda: make(unaligned(), None)) if unaligned else None,
        **options,
    )


def grid_contraction_cycles(kernel: Kernel, name: str) -> float | str:
    """Whether there is code. Times that are not measured are infinite: such code is used only on request."""
    from smelt.codegen.axes import without_unit_axes
    from smelt.codegen.gpu.attention.few_queries import few_queries
    from smelt.codegen.gpu.attention.score_tiles import row_products_apart, score_tiles
    from smelt.codegen.gpu.products.product_tiles import why_no_tile
    from smelt.ir.check_kernel import is_attention

    if kernel.stepped is not None:
        return "rows of a grid do not run step by step"
    if not is_attention(kernel):
        return why_no_tile(kernel) or math.inf
    whole, target = without_unit_axes(kernel), find(name)
    grids = few_queries(whole, target)
    if isinstance(grids, str):
        grids = score_tiles(row_products_apart(whole)[1], target)
    return grids if isinstance(grids, str) else math.inf


def cuda_contraction_cycles(kernel: Kernel, name: str) -> float | str:
    """The same; of few rows, about how many cycles of the GPU."""
    from smelt.codegen.axes import without_unit_axes
    from smelt.codegen.gpu.products.few_rows import few_rows
    from smelt.ir.check_kernel import contraction_of, is_attention

    whole = without_unit_axes(kernel)
    contract = contraction_of(whole)
    is_product = contract is not None and not is_attention(kernel) and kernel.stepped is None
    if contract is not None and is_product and contract.dtype.is_floating_point:
        grid = few_rows(whole, contract, find(name))
        if not isinstance(grid, str):
            return grid.cycles
    return grid_contraction_cycles(kernel, name)


# NVIDIA's GPUs, by what their architecture is called; none need be there to make code for it.

CUDA_LIMITS = Limits(recomputes=True, host_reads_flags=False, library_products=True, group_buffers=GROUP_BUFFERS)
OVERLAPS_SINCE = 90
ARCHITECTURES = tuple(f"sm_{number}" for number in (75, 80, 86, 87, 89, 90, 100, 103, 120, 121))


def _cuda_launcher(code: KernelCode, unaligned: Unaligned | None) -> _native.GridLauncher:
    from smelt.runtime.cuda.launcher import LaunchSupport

    return grid_launcher(_cuda_launcher, code, unaligned, support=LaunchSupport(code.loaded, code.phases))


def _architecture_number(name: str) -> int:
    return int(name.removeprefix("sm_"))


for _architecture in ARCHITECTURES:
    register(
        _architecture,
        _when_asked("gpu.cuda_target", "describe_cuda", _architecture),
        generator=_when_asked("gpu.gpu_generator", "CudaGenerator"),
        launcher=_cuda_launcher,
        limits=replace(CUDA_LIMITS, overlaps_launches=_architecture_number(_architecture) >= OVERLAPS_SINCE),
        devices=("cuda",),
        contraction_cycles=functools.partial(cuda_contraction_cycles, name=_architecture),
        on_request=True,
    )


def _target_of_gpus() -> str | None:
    """That of the oldest GPU that is here: newer ones run its code, too. Asked once there are tensors on one."""
    from smelt.runtime.cuda.driver import devices, why_not_cuda, why_not_device

    reason = why_not_cuda()
    if reason is not None:
        warn(f"SM030: no kernels are made for tensors on GPUs: {reason}. PyTorch runs what is on them.")
        return None
    oldest = min(device.capability for device in devices() if why_not_device(device) is None)
    return max((name for name in ARCHITECTURES if _capability(name) <= oldest), key=_capability)


def _capability(architecture: str) -> tuple[int, int]:
    number = _architecture_number(architecture)
    return number // 10, number % 10


choose_for("cuda", _target_of_gpus)
