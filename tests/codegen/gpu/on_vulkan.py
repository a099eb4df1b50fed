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

from smelt.base.rewrite_budget import RewriteBudget
from smelt.codegen.chip_generator import SpirvGenerator, spirv_module
from smelt.codegen.generator import EntryCode
from smelt.codegen.loops.runtime_sizes import as_integer
from smelt.codegen.write_module import join
from smelt.device import Grid, KernelModule, Launch, Target
from smelt.ir.check_kernel import check_kernel
from smelt.ir.kernel import Kernel
from smelt.ir.substitute_sizes import resized, shape_env_of
from smelt.symbolic.expressions import ShapeEnv
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import expression_of, is_symsize
from tests.codegen.cpu.test_kernels import filled
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
        self.plan = generator.schedule(moved, target(), RewriteBudget(), check=True, of="")
        self.code: EntryCode = generator.emit("k", self.plan, target(), aligned=aligned)
        self.facts = tuple(own.guards)  # what the code relies on
        self.handle: Any = None
        if self.plan.phases:
            module = spirv_module(join([self.code]))
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
        built = OnVulkan(kernel, aligned=each)
        assert all(fact.holds(lambda symbol: sizes[symbol.text]) for fact in built.facts), f"not code for {sizes}"
        got = built.run(given, sizes, 0 if each else _SHIFT)
        for buffer, mine, reference in zip(plain.parameters, got, want, strict=True):
            torch.testing.assert_close(
                mine, reference, rtol=rtol, atol=allowed, equal_nan=True,
                msg=partial("{}: {}".format, f"{kernel.name}, buffer {buffer.name}, aligned {each}"),
            )  # fmt: skip


def same_group_on_vulkan(kernels: Sequence[Kernel], *, aligned: bool = True) -> None:
    """One launch of all of them leaves the same memory as the interpreter does for each. Numbers of the host are passed
    along as such."""
    needs_vulkan()
    code = SpirvGenerator(chip().compile).emit_group("group", kernels, target(), aligned=aligned)
    (phase,) = code.phases
    module = spirv_module(join([code]))
    validate(module)
    handle = chip().compile(module)
    shift = 0 if aligned else _SHIFT
    parameters = [buffer for kernel in kernels for buffer in kernel.parameters]
    given = [filled(buffer, seed) for seed, buffer in enumerate(parameters)]
    want = [tensor.clone() for tensor in given]
    first = 0
    for kernel in kernels:
        end = first + len(kernel.parameters)
        run_kernel(kernel, want[first:end])
        first = end
    memory = [chip().allocate(each.nbytes + shift * each.itemsize) for each in given]
    addresses = [at + shift * each.itemsize for at, each in zip(memory, given, strict=True)]
    numbers: list[tuple[int, int]] = []
    for place, (buffer, each) in enumerate(zip(parameters, given, strict=True)):
        whole = each.contiguous().view(torch.uint8).numpy()
        chip().copy_in(addresses[place], memoryview(whole))
        if buffer.on_host:
            numbers.append((place, int.from_bytes(whole.tobytes(), "little")))
    buffers = tuple(0 if buffer.on_host else at for buffer, at in zip(parameters, addresses, strict=True))
    grid = Grid(int(phase.blocks), phase.threads, phase.shared_bytes)
    chip().launch(handle, Launch(phase.symbol, buffers, (), 0, grid, tuple(numbers)))
    for at, each, reference, buffer in zip(addresses, given, want, parameters, strict=True):
        found = torch.empty_like(each)
        chip().copy_out(at, memoryview(found.view(torch.uint8).numpy()))
        message = partial("{}: {}".format, f"buffer {buffer.name}, aligned {aligned}")
        torch.testing.assert_close(found, reference, rtol=2e-6, atol=2e-6, msg=message)
    for at in memory:
        chip().free(at)
