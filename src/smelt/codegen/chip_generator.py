"""Code generators for chips: kernels become modules in a form that the chip compiles itself.

    Target.form "llvm", warp_size 1     LLVM text, a function a kernel, as a processor's: `ProcessorChipGenerator`
    Target.form "spirv"                 SPIR-V, a binary a grid: `gpu.spirv.spirv_generator.SpirvGenerator`

A module is self-contained: it includes the function by which kernels share points between threads, for one thread.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from smelt.base.errors import SmeltError
from smelt.base.rewrite_budget import RewriteBudget
from smelt.base.row import Row
from smelt.codegen.cpu import cpu_generator
from smelt.codegen.generator import EntryCode, SharedText, numbered
from smelt.codegen.gpu.spirv.spirv_generator import SpirvGenerator
from smelt.codegen.llvm import compile as llvm_compile
from smelt.codegen.llvm.compile import Built
from smelt.codegen.llvm.module_text import ModuleText
from smelt.device import KernelModule, Target
from smelt.ir.kernel import AnyKernel, Kernel
from smelt.torch_abi.symbols import PARALLEL_FOR

Compile = Callable[[KernelModule], Any]

_ALL_AT_ONCE = f"""define internal i64 @{PARALLEL_FOR}(ptr %part, ptr %buffers, ptr %workspace, i64 %threads, i64 %most, i64 %extent, i64 %bytes) {{
  call void %part(ptr %buffers, ptr %workspace, i64 0, i64 %extent, i1 true)
  ret i64 1
}}
"""  # noqa: E501
_DECLARED = re.compile(rf"^declare i64 @{PARALLEL_FOR}\(.*\)\n", re.MULTILINE)
_ENTRY = re.compile(r"^define void @(k\d+)\(", re.MULTILINE)


def module_for_one_thread(text: str) -> str:
    """LLVM text with a `smelt_parallel_for` that runs all points on the calling thread."""
    if f"@{PARALLEL_FOR}" not in text:
        return text
    return _ALL_AT_ONCE + _DECLARED.sub("", text)


class ProcessorChipGenerator:
    """For chips whose kernels are one function each, in LLVM's text."""

    TABLES: Mapping[str, Sequence[Row]] = cpu_generator.TABLES

    def __init__(self, compile: Compile) -> None:
        self._compile = compile

    def symbols(self, kernels: Sequence[AnyKernel]) -> Sequence[str]:
        return numbered(kernels)

    share = staticmethod(cpu_generator.share)
    member = staticmethod(cpu_generator.member)
    schedule = staticmethod(cpu_generator.schedule)
    emit = staticmethod(cpu_generator.emit)

    def share_texts(
        self,
        kernels: Sequence[AnyKernel],
        codes: Mapping[int, EntryCode],
        symbols: Sequence[str],
        budget: RewriteBudget,
        of: str,
    ) -> Sequence[SharedText]:
        return ()

    def emit_group(self, symbol: str, kernels: Sequence[Kernel], target: Target, *, aligned: bool = True) -> EntryCode:
        raise AssertionError("a chip without grids launches its kernels one by one")

    def load(self, texts: Sequence[str | ModuleText], target: Target, threads: int = 1) -> list[Built]:
        return [self.compile(_module(str(text))) for text in texts]

    def compile(self, module: KernelModule) -> Built:
        """A module that was made here, now or by an earlier process, by the chip."""
        return Built(lambda symbol: 0, self._compile(module), module)

    def assemble(self, text: str, target: Target) -> str:
        return llvm_compile.assemble(text, target)


def _module(text: str) -> KernelModule:
    return KernelModule("llvm", module_for_one_thread(text), tuple(_ENTRY.findall(text)))


def generator_for(target: Target, compile: Compile) -> Any:
    """What makes code for a chip that describes itself so."""
    if target.form == "llvm" and target.warp_size == 1:
        return ProcessorChipGenerator(compile)
    if target.form == "spirv" and target.warp_size > 1:
        return SpirvGenerator(compile)
    raise SmeltError("SM030", f"no kernels are made in the form {target.form!r} for warps of {target.warp_size}")
