"""The interface of a target's code generator: schedule, emit, load. `build` uses it and depends on no target.

    schedule(kernel, target, rewrite budget)   →  how its loops run, whatever form the target has for that
    emit("k0", schedule, target)     →  `EntryCode`: the functions of one kernel, in the loop form
    load([module, …], target)        →  `Built`: machine code in memory, or on the device

A module with these functions is a generator, such as `codegen/cpu/cpu_generator.py`. A class inherits the defaults:
names by position, and no shared bodies.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from smelt.base.fast_dataclass import dataclass
from smelt.base.rewrite_budget import RewriteBudget
from smelt.base.row import Row
from smelt.codegen.llvm.compile import Built
from smelt.codegen.loops.runtime_sizes import RuntimeParam
from smelt.device import Target
from smelt.ir.kernel import AnyKernel, Kernel
from smelt.ir.kernel_code import GridPhase
from smelt.ir.loops import Function, Module
from smelt.symbolic.expressions import SizeGuard
from smelt.symbolic.shapes import Size


@dataclass(frozen=True, slots=True)
class EntryCode:
    """One kernel in the loop form: its functions, and the helpers they need once per module."""

    functions: tuple[Function, ...]
    helpers: tuple[Function, ...]
    per_thread_workspace: Size
    sizes: tuple[RuntimeParam, ...] = ()  # what the code is given at each launch
    facts: tuple[SizeGuard, ...] = ()  # what it relies on of them
    phases: tuple[GridPhase, ...] = ()  # of a kernel for a GPU
    workspace: Size = 0  # bytes that its phases leave things for each other in

    @classmethod
    def joined(cls, codes: "Sequence[EntryCode]", workspace: Size) -> "EntryCode":
        """Grids of several as those of one."""
        helpers = {each.name: each for code in codes for each in code.helpers}
        functions = tuple(each for code in codes for each in code.functions)
        phases = tuple(each for code in codes for each in code.phases)
        return cls(functions, tuple(helpers.values()), 0, phases=phases, workspace=workspace)


@dataclass(frozen=True, slots=True)
class Family:
    """Kernels of one body, by their places in a list, each with its length. In the body the length is `more` than its
    symbol, which is at least `SMALLEST`."""

    body: Kernel
    more: int
    lengths: dict[int, int]


@dataclass(frozen=True, slots=True)
class SharedBody:
    """A body that is written once, and the entries of the kernels that have it by their places in a list."""

    body: EntryCode
    entries: dict[int, EntryCode]


class Generator(Protocol):
    """How kernels become code for a target."""

    def tables(self) -> Mapping[str, Sequence[Row]]:
        """Its steps, for the map of the compiler: title → rows."""

    def symbols(self, kernels: Sequence[AnyKernel]) -> Sequence[str]:
        """Unique names, or name prefixes, for the functions of kernels in their module."""
        return numbered(kernels)

    def share(self, kernels: Sequence[Kernel], budget: RewriteBudget, of: str) -> Sequence[Family]:
        """Kernels that are to have one body. `of`: what `bisect` calls their program."""
        return ()

    def member(self, symbol: str, body: str, code: EntryCode, value: int, buffers: int) -> EntryCode | None:
        """The entry of a kernel whose code is that of `body`; None if that does not serve."""
        return None

    def share_functions(
        self,
        kernels: Sequence[AnyKernel],
        codes: Mapping[int, EntryCode],
        symbols: Sequence[str],
        budget: RewriteBudget,
        of: str,
    ) -> Sequence[SharedBody]:
        """Those of `codes`, by the places of their kernels, that are to have one body."""
        return ()

    def schedule(self, kernel: Kernel, target: Target, budget: RewriteBudget, *, check: bool, of: str) -> Any:
        """How a kernel's loops run."""

    def emit(self, symbol: str, plan: Any, target: Target, *, aligned: bool = True) -> EntryCode:
        """The functions of a scheduled kernel under the name `symbol`. They may take buffers to be `aligned` as the
        target's launcher sees to."""

    def emit_group(self, symbol: str, kernels: Sequence[Kernel], target: Target, *, aligned: bool = True) -> EntryCode:
        """The functions of kernels that are launched as one, whose buffers come one kernel's after the other's. Asked
        of targets whose limits allow groups."""

    def load(self, modules: Sequence[Module], target: Target, threads: int = 1) -> list[Built]:
        """Machine code for each module, ready to be launched. Several threads may be at work, if there are that
        many."""

    def assemble(self, module: Module, target: Target) -> str:
        """The target's assembly for a module, for people to read."""


def numbered(kernels: Sequence[AnyKernel]) -> list[str]:
    """Names by position, so that equal kernels have equal text whatever their names are."""
    return [f"k{place}" for place in range(len(kernels))]


def named(kernels: Sequence[AnyKernel]) -> list[str]:
    """The kernels' own names, for people who see functions run: in a profiler, or in a debugger."""
    names = [re.sub(r"\W", "_", kernel.name) for kernel in kernels]
    return [name if names.count(name) == 1 else f"{name}_k{place}" for place, name in enumerate(names)]
