"""`SpirvGenerator`: GPU schedules as SPIR-V, for chips that take that form. The chip compiles each phase separately.

    load([Module((Function("k0_0", …, kind="grid"),))])  →  chip.compile(KernelModule("spirv", (b"…",), ("k0_0",)))

For people to read there is the loop form, which the words follow node by node.
"""

from collections.abc import Callable, Sequence
from typing import Any

from smelt.codegen.gpu.gpu_generator import GpuGenerator
from smelt.codegen.gpu.spirv.print_spirv import print_grids
from smelt.codegen.llvm.compile import Built
from smelt.device import KernelModule, Target
from smelt.ir.loops import Module


class CompiledByChip:
    """The part of a generator that has modules compiled by a chip: `form` is what the chip takes, `compile` is its."""

    form: Callable[[Module], KernelModule]

    def __init__(self, compile: Callable[[KernelModule], Any]) -> None:
        self._compile = compile

    def load(self, modules: Sequence[Module], target: Target, threads: int = 1) -> list[Built]:
        return [self.compile(self.form(module)) for module in modules]

    def compile(self, module: KernelModule) -> Built:
        """A module that was made here, now or by an earlier process, by the chip."""
        return Built(lambda symbol: 0, self._compile(module), module)


def spirv_module(module: Module) -> KernelModule:
    """What a chip compiles: a binary for each launched function."""
    binaries = print_grids(module)
    return KernelModule("spirv", tuple(binaries.values()), tuple(binaries))


class SpirvGenerator(CompiledByChip, GpuGenerator):
    """For Vulkan and other chips that take SPIR-V."""

    form = staticmethod(spirv_module)

    def assemble(self, module: Module, target: Target) -> str:
        from smelt.ir.loops.text import format_module

        return format_module(module)
