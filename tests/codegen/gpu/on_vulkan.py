"""Kernels by GPU schedules as SPIR-V, run by Vulkan (Mesa's lavapipe where there is no GPU), beside the interpreter.

    same_on_vulkan(kernel)        skips, with the reason, where there is no Vulkan
    validated(kernel)             every module of it passes spirv-val
"""

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from smelt.base.fuel import Fuel
from smelt.codegen.generator import EntryCode
from smelt.codegen.gpu.spirv.spirv_generator import SpirvGenerator, spirv_module
from smelt.codegen.llvm.runtime_sizes import as_integer
from smelt.device import Grid, KernelModule, Launch, Target
from smelt.ir.check_kernel import check_kernel
from smelt.ir.kernel import Kernel
from smelt.ir.substitute_sizes import resized, shape_env_of
from smelt.symbolic.expressions import ShapeEnv
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import expression_of, is_symsize
from tests.codegen.cpu.test_kernels import filled
from tests.codegen.gpu.running import module_text
from tests.kernel_reference import run_kernel

PLUGIN = Path(__file__).parents[3] / "plugins" / "vulkan"
sys.path.insert(0, str(PLUGIN))

VALIDATOR = shutil.which("spirv-val")
_SHIFT = 1  # elements that a buffer begins after where it would be aligned, where it is not to be


@cache
def chip() -> Any:
    """One for all tests of a process."""
    from smelt_vulkan import VulkanChip

    return VulkanChip()


@cache
def _why_not_vulkan() -> str | None:
    from smelt_vulkan import why_not

    return why_not()


def needs_vulkan() -> None:
    reason = _why_not_vulkan()
    if reason is not None:
        pytest.skip(reason)


@cache
def target() -> Target:
    described: Target = chip().describe()
    return described


def validate(module: KernelModule) -> None:
    """Every binary passes spirv-val, if that is installed."""
    if VALIDATOR is None:
        return
    for binary in module.code:
        command = [VALIDATOR, "--target-env", "vulkan1.2", "-"]
        found = subprocess.run(command, input=binary, capture_output=True, check=False)
        assert found.returncode == 0, found.stderr.decode()


class OnVulkan:
    """A kernel, compiled."""

    def __init__(self, kernel: Kernel, *, aligned: bool = True) -> None:
        self.kernel = kernel
        own = ShapeEnv()
        for each in getattr(shape_env_of(kernel), "symbols", ()):
            own.symbol(each.text, each.example)
        generator = SpirvGenerator(chip().compile)
        moved = resized(kernel, lambda size: size.moved(own))
        assert isinstance(moved, Kernel)
        self.plan = generator.schedule(moved, target(), Fuel(), check=True, of="")
        self.code: EntryCode = generator.emit("k", self.plan, target(), aligned=aligned)
        self.handle: Any = None
        if self.plan.phases:
            module = spirv_module(module_text(self.code))
            validate(module)
            self.handle = chip().compile(module)

    def run(self, tensors: Sequence[Tensor], sizes: Mapping[str, int] | None = None, shift: int = 0) -> list[Tensor]:
        """On copies of the tensors in the device's memory: what is there then."""
        sizes = sizes or {}
        values = tuple(as_integer(size.evaluate(lambda symbol: sizes[symbol.text])) for size in self.code.sizes)

        def number(size: Size) -> int:
            return values[self.code.sizes.index(expression_of(size))] if is_symsize(size) else int(size)

        memory = [chip().allocate(max(1, each.nbytes) + shift * each.itemsize) for each in tensors]
        addresses = tuple(at + shift * each.itemsize for at, each in zip(memory, tensors, strict=True))
        room = number(self.code.workspace)
        workspace = chip().allocate(room) if room else 0
        for at, each in zip(addresses, tensors, strict=True):
            if each.nbytes:
                chip().copy_in(at, memoryview(each.contiguous().view(torch.uint8).numpy()))
        for phase in self.code.phases:
            grid = Grid(number(phase.blocks), phase.threads, phase.shared_bytes)
            if grid.blocks:
                chip().launch(self.handle, Launch(phase.symbol, addresses, values, workspace, grid))
        found = [torch.empty_like(each) for each in tensors]
        for at, each in zip(addresses, found, strict=True):
            if each.nbytes:
                chip().copy_out(at, memoryview(each.view(torch.uint8).numpy()))
        for at in (*memory, *([workspace] if room else [])):
            chip().free(at)
        return found


def same_on_vulkan(
    kernel: Kernel,
    sizes: Mapping[str, int] | None = None,
    *,
    given: Sequence[Tensor] = (),
    aligned: Sequence[bool] = (True,),
    rtol: float = 2e-6,
    atol: float | None = None,
) -> None:
    """The same memory as the interpreter leaves."""
    needs_vulkan()
    sizes = sizes or {}
    plain = resized(kernel, lambda size: size.expression.evaluate(lambda symbol: sizes[symbol.text]))
    assert isinstance(plain, Kernel)
    check_kernel(plain, after="the test")
    random = [filled(buffer, seed) for seed, buffer in enumerate(plain.parameters)]
    given = [*given, *random[len(given) :]]
    want = [tensor.clone() for tensor in given]
    run_kernel(plain, want)
    allowed = 5e-7 * max(4, plain.row_count * plain.col_count) ** 0.5 if atol is None else atol
    for each in aligned:
        got = OnVulkan(kernel, aligned=each).run(given, sizes, 0 if each else _SHIFT)
        for buffer, mine, reference in zip(plain.parameters, got, want, strict=True):
            torch.testing.assert_close(
                mine, reference, rtol=rtol, atol=allowed, equal_nan=True,
                msg=partial("{}: {}".format, f"{kernel.name}, buffer {buffer.name}, aligned {each}"),
            )  # fmt: skip
