"""Code generators for chips: kernels become modules in a form that the chip compiles itself.

    Target.form "llvm", warp_size 1     LLVM text, a function a kernel, as a processor's: `ProcessorChipGenerator`
    Target.form "spirv"                 SPIR-V, a binary a grid: `SpirvGenerator`

A module is self-contained: it includes the function by which kernels share points between threads, for one thread.
"""

from collections.abc import Callable, Sequence
from typing import Any

from smelt.base.errors import SmeltError
from smelt.codegen.cpu import cpu_generator
from smelt.codegen.generator import EntryCode, Generator
from smelt.codegen.gpu.gpu_generator import GpuGenerator
from smelt.codegen.gpu.spirv.print_spirv import print_grids
from smelt.codegen.llvm.compile import Built
from smelt.codegen.llvm.print_module import print_module
from smelt.codegen.loops.builder import BUFFERS, THREADS, TRUE, WORKSPACE, param
from smelt.device import KernelModule, Target
from smelt.ir.kernel import Kernel
from smelt.ir.loops import Call, Function, Module, Node, Return, Value, called
from smelt.ir.loops.text import format_module
from smelt.torch_abi.symbols import PARALLEL_FOR

Compile = Callable[[KernelModule], Any]


def module_for_one_thread(module: Module) -> Module:
    """A module with a `smelt_parallel_for` that runs all points on the calling thread."""
    if all(PARALLEL_FOR not in called(each) for each in module.functions):
        return module
    part, most, extent, size = param("part", "ptr"), param("most"), param("extent"), param("bytes")
    zero, one = Value("", "i64", number=0), Value("", "i64", number=1)
    body: list[Node] = [Call(None, part, (BUFFERS, WORKSPACE, zero, extent, TRUE)), Return(one)]
    params = (part, BUFFERS, WORKSPACE, THREADS, most, extent, size)
    launcher = Function(PARALLEL_FOR, params, body, result="i64")
    return Module(module.functions, (launcher, *module.helpers))


def _llvm_module(module: Module) -> KernelModule:
    return KernelModule("llvm", print_module(module_for_one_thread(module)), module.entries)


def spirv_module(module: Module) -> KernelModule:
    """What a chip compiles: a binary for each launched function."""
    binaries = print_grids(module)
    return KernelModule("spirv", tuple(binaries.values()), tuple(binaries))


class _CompiledByChip:
    """The part of a generator that has modules compiled by a chip: `form` is what the chip takes, `compile` is its."""

    form: Callable[[Module], KernelModule]

    def __init__(self, compile: Compile) -> None:
        self._compile = compile

    def load(self, modules: Sequence[Module], target: Target, threads: int = 1) -> list[Built]:
        return [self.compile(self.form(module)) for module in modules]

    def compile(self, module: KernelModule) -> Built:
        """A module that was made here, now or by an earlier process, by the chip."""
        return Built(lambda symbol: 0, self._compile(module), module)


class ProcessorChipGenerator(_CompiledByChip, Generator):
    """For chips whose kernels are one function each, in LLVM's text."""

    tables = staticmethod(cpu_generator.tables)
    form = staticmethod(_llvm_module)
    share = staticmethod(cpu_generator.share)
    member = staticmethod(cpu_generator.member)
    schedule = staticmethod(cpu_generator.schedule)
    emit = staticmethod(cpu_generator.emit)
    assemble = staticmethod(cpu_generator.assemble)

    def emit_group(self, symbol: str, kernels: Sequence[Kernel], target: Target, *, aligned: bool = True) -> EntryCode:
        raise AssertionError("a chip without grids launches its kernels one by one")


class SpirvGenerator(_CompiledByChip, GpuGenerator):
    """For Vulkan and other chips that take SPIR-V. For people to read there is the loop form, which the words follow
    node by node."""

    form = staticmethod(spirv_module)

    def assemble(self, module: Module, target: Target) -> str:
        return format_module(module)


def generator_for(target: Target, compile: Compile) -> Any:
    """What makes code for a chip that describes itself so."""
    if target.form == "llvm" and target.warp_size == 1:
        return ProcessorChipGenerator(compile)
    if target.form == "spirv" and target.warp_size > 1:
        return SpirvGenerator(compile)
    raise SmeltError("SM030", f"no kernels are made in the form {target.form!r} for warps of {target.warp_size}")
