"""Code generators for GPUs: one way to write a kernel's grids, and what becomes of their modules.

    CudaGenerator    PTX, for NVIDIA's GPUs

`codegen.chip_generator` has one for chips that take SPIR-V, and the tests one for this processor (`tests/simt_host`).
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

from smelt.base.errors import SmeltError
from smelt.base.rewrite_budget import RewriteBudget
from smelt.base.row import Row
from smelt.codegen.generator import EntryCode, Generator, named
from smelt.codegen.gpu.grid_plan import SCHEDULES, plan, uses_wide_positions
from smelt.codegen.gpu.grids import Grid, KernelGrids
from smelt.codegen.gpu.launches.launch_groups import emit_group
from smelt.codegen.gpu.launches.side_by_side import emit_side_by_side
from smelt.codegen.gpu.simt import Simt
from smelt.codegen.llvm import compile as llvm_compile
from smelt.codegen.llvm.compile import Built
from smelt.codegen.llvm.print_llvm import print_function
from smelt.codegen.llvm.print_module import print_module
from smelt.codegen.loops.runtime_sizes import Sizes
from smelt.device import Target
from smelt.ir.kernel import Kernel
from smelt.ir.kernel_code import GridPhase
from smelt.ir.loops import Function, Module, called
from smelt.ir.products.library_product import LibraryCall
from smelt.runtime.cuda.driver import devices, why_not_device
from smelt.runtime.cuda.image import CudaCode
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import is_symsize

_LONG = 40_000  # letters of a function


class GpuGenerator(Generator):
    """From kernels to grids in the loop form, for all GPUs."""

    simt: type[Simt] = Simt

    def tables(self) -> Mapping[str, Sequence[Row]]:
        return {"each kernel, by the first that takes it": SCHEDULES}

    def schedule(self, kernel: Kernel, target: Target, budget: RewriteBudget, *, check: bool, of: str) -> KernelGrids:
        return plan(kernel, target)

    def emit(self, symbol: str, plan: KernelGrids, target: Target, *, aligned: bool = True) -> EntryCode:
        """The functions of a kernel's phases. `aligned`: its buffers begin at multiples of sixteen bytes."""
        return self._emit(symbol, plan, target, aligned, 0, len(plan.kernel.parameters))

    def emit_group(self, symbol: str, kernels: Sequence[Kernel], target: Target, *, aligned: bool = True) -> EntryCode:
        """One grid for all of them; where there is no code for that, a grid for each, one after the other."""
        grouped = emit_group(self.simt, symbol, kernels, target, aligned=aligned)
        grouped = grouped or emit_side_by_side(self.simt, f"{symbol}_0", kernels, target, aligned=aligned)
        if grouped is not None:
            return grouped
        total, first = sum(len(kernel.parameters) for kernel in kernels), 0
        codes = []
        for number, kernel in enumerate(kernels):
            plan = self.schedule(kernel, target, RewriteBudget(), check=False, of="")
            codes.append(self._emit(f"{symbol}_k{number}", plan, target, aligned, first, total))
            first += len(kernel.parameters)
        return EntryCode.joined(codes, max(int(code.workspace) for code in codes))

    def _emit(
        self, symbol: str, plan: KernelGrids, target: Target, aligned: bool, first: int, buffers: int
    ) -> EntryCode:
        """The kernel's buffers begin at `first` among the launch's `buffers`."""
        sizes = Sizes(buffers)
        kind = "i64" if uses_wide_positions(plan) else "i32"
        names = [*[""] * first, *(buffer.name for buffer in plan.kernel.parameters)]
        builders: list[Simt] = []
        phases: list[GridPhase] = []
        for number, phase in enumerate(plan.phases):
            name = f"{symbol}.{number}".replace(".", "_")
            b = phase.builder(
                self.simt, plan.kernel, target, name, sizes, kind, buffers=buffers, parameters=names,
                places=dict(plan.places), aligned=aligned, early=phase.kernel.early,
            )  # fmt: skip
            phase.write(b)
            builders.append(b)
            call = None if phase.product is None else _library_call(phase, names, dict(plan.places), buffers)
            phases.append(GridPhase(b.symbol, *b.launched(phase.blocks), b.has_barrier, call, b.overlaps))
        called = [number for grid in phases if grid.product is not None for number in grid.product.numbers]
        for size in (plan.workspace, *(grid.blocks for grid in phases), *called):
            if is_symsize(size):
                sizes.slot(size)  # the launcher must know it
        functions = tuple(b.lowered(b.grid_function()) for b in builders)
        helpers = {name: helper for b in builders for name, helper in b.helpers.items()}
        taken = tuple(sizes.params)
        return EntryCode(functions, tuple(helpers.values()), 0, taken, phases=tuple(phases), workspace=plan.workspace)


def _library_call(phase: Grid, names: Sequence[str], places: Mapping[str, Size], buffers: int) -> LibraryCall:
    assert phase.product is not None
    at = []
    for each in phase.product.operands:
        first = each.offset * each.dtype.itemsize
        at.append((names.index(each.buffer), first) if each.buffer in names else (buffers, places[each.buffer] + first))
    return LibraryCall(phase.product, phase.instead_of, tuple(at))


class CudaGenerator(GpuGenerator):
    """For NVIDIA's GPUs. Profilers show functions by the names of kernels."""

    symbols = staticmethod(named)

    def load(self, modules: Sequence[Module], target: Target, threads: int = 1) -> list[Built]:
        return llvm_compile.side_by_side(functools.partial(_load_cuda, target=target), modules)

    def assemble(self, module: Module, target: Target) -> str:
        return ptx(module, target)


def _load_cuda(module: Module, target: Target) -> Built:
    """Assemble for the GPUs of this machine, in parallel with other modules; without a GPU keep the PTX."""
    code = CudaCode(ptx(module, target, llvm_compile.assembled))
    for device in {device.capability: device for device in devices() if why_not_device(device) is None}.values():
        code.image(device)
    return Built(lambda symbol: 0, code, code)


def why_not_ptx(functions: Iterable[Function]) -> str | None:
    """Why LLVM must not compile functions for NVIDIA's GPUs: any function that is neither defined nor one of these
    chips' own would end the process or the assembler."""
    functions = list(functions)
    defined = {each.name for each in functions}
    names = sorted(name for each in functions for name in called(each) - defined if not name.startswith("llvm.nvvm."))
    return f"no GPU has the function {names[0]}" if names else None


Assemble = Callable[[str, Target, int], str]


def ptx(module: Module, target: Target, assemble: Assemble = llvm_compile.assemble) -> str:
    """What LLVM makes of a module for an NVIDIA GPU. The assembler optimizes again: of long straight code, which takes
    LLVM up to forty times as long at its second level as at none, it makes the same either way."""
    functions = (*module.helpers, *module.functions)
    reason = why_not_ptx(functions)
    if reason is not None:
        raise SmeltError("SM030", reason)
    llvm_compile.make_all_targets_ready()
    longest = max((len(print_function(each)) for each in functions), default=0)
    return assemble(print_module(module), target, 0 if longest > _LONG else 2)
