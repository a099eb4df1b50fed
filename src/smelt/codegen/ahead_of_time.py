"""Turns kernels into machine code for a processor that this process may not run on. Loads and runs nothing.

    code = build_for(kernels, find_target("riscv64-v"))
    code.image                    position-independent bytes; `code.outside` is what they call by name
    code.entries[0].symbol        void k0(void **buffers, int64_t threads, void *workspace), for kernels[0]

Kernels have the CPU's form, whatever target they name, so the same program serves every processor. The facts about
dynamic shapes that the code relies on (`KernelEntry.facts`) may differ between targets; the kernel's `ShapeEnv` guards
them.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch

from smelt.base.errors import SmeltError
from smelt.base.fast_dataclass import dataclass
from smelt.base.rewrite_budget import RewriteBudget
from smelt.codegen.generator import EntryCode
from smelt.codegen.gpu.gpu_generator import ptx
from smelt.codegen.gpu.grid_plan import plan
from smelt.codegen.llvm.compile import make_all_targets_ready, object_codes
from smelt.codegen.llvm.link import link_all, undefined
from smelt.codegen.llvm.print_module import print_module
from smelt.codegen.llvm.support import SUPPORT, support_text
from smelt.codegen.loops.runtime_sizes import RuntimeParam
from smelt.codegen.processors import HOST as HOST_NAME
from smelt.codegen.processors import PROCESSORS, described
from smelt.codegen.write_module import How, divided, join, module_of, units
from smelt.device import Target, find, generator_of
from smelt.ir.kernel import HOST, Kernel
from smelt.ir.kernel_code import GridPhase
from smelt.ir.loops import Module
from smelt.ir.products.library_product import LibraryCall
from smelt.ir.substitute_sizes import over_own_symbols, resized, shape_env_of
from smelt.ir.table.records import Grid, Operand, Product
from smelt.ir.text import format_kernel
from smelt.runtime.program.code_image import Image
from smelt.symbolic.expressions import ZERO, Expression, ShapeEnv, SizeGuard
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import expression_of, is_symsize, moving


@dataclass(frozen=True, slots=True)
class KernelEntry:
    """The code of one kernel: `void symbol(void **buffers, int64_t threads, void *workspace)`.

    All sizes are over the symbols of the kernel's own `ShapeEnv`.
    """

    symbol: str
    workspace: Size  # bytes for each thread
    params: tuple[RuntimeParam, ...]  # an int64 array behind the buffers has them, where there are any
    facts: tuple[SizeGuard, ...]  # what the code relies on
    grids: tuple[Grid, ...] = ()  # of a GPU's
    is_grids: bool = False  # whether it is a GPU's; its workspace is then for all grids together


@dataclass(frozen=True, slots=True)
class TargetCode:
    """Code for one target, and the entry of each kernel in the order they were given."""

    target: Target
    image: Image
    entries: tuple[KernelEntry, ...]

    @property
    def outside(self) -> tuple[str, ...]:
        """External symbols that the code calls: the loader must provide them."""
        return tuple(dict.fromkeys(slot.name for slot in self.image.slots if slot.name))


@dataclass(frozen=True, slots=True)
class WrittenKernels:
    """Code of some kernels, in modules that may be compiled side by side, and their entries."""

    modules: tuple[Module, ...]
    entries: tuple[KernelEntry, ...]


def find_target(name: str) -> Target:
    """A processor by name (`codegen.processors`), "host", or a kind of GPU ("sm_90")."""
    return find(name) if name.startswith("sm_") else described(name)


def build_for(kernels: Sequence[Kernel], target: Target, unaligned: Collection[int] = ()) -> TargetCode:
    """Code of kernels, of one program or of several, as an image; equal ones have one entry. `unaligned`: those that
    are given buffers at any address, by their places, which matters to a GPU's. Its image is PTX, ended by a zero."""
    if target.warp_size > 1:
        written = write_grids(kernels, target, unaligned)
        text = ptx(written.modules[0], target).encode() + b"\0"
        return TargetCode(target, Image(text, (), ()), written.entries)
    if (target.name != HOST_NAME and target.name not in PROCESSORS) or target.pointer_bytes != 8:
        raise SmeltError(
            "SM030",
            f"there are no files to be loaded for the target {target.name!r}",
            hint=f"artifact.save_static(path, {target.name!r}) makes an object that is linked",
        )
    make_all_targets_ready()
    written = write_for(kernels, target, parts=torch.get_num_threads())
    objects = object_codes(list(map(print_module, written.modules)), target)
    missing = sorted({name for each in objects for name in undefined(each)} & SUPPORT.keys())
    if missing:
        objects += object_codes([support_text(missing, target)], target)
    return TargetCode(target, link_all(objects), written.entries)


def write_grids(kernels: Sequence[Kernel], target: Target, unaligned: Collection[int] = ()) -> WrittenKernels:
    """The same of a GPU's kernels, in one part."""
    generator = generator_of(target.name)
    entries: dict[tuple[str, ShapeEnv | None, bool], tuple[EntryCode, KernelEntry]] = {}
    keys = []
    for place, kernel in enumerate(kernels):
        kernel = replace(kernel, target=target.name)
        aligned = place not in unaligned
        keys.append((format_kernel(replace(kernel, name="kernel")), shape_env_of(kernel), aligned))
        if keys[-1] in entries:
            continue
        own, shape_env = over_own_symbols(kernel)
        symbol = f"k{len(entries)}"
        code = generator.emit(symbol, plan(own, target, library=True), target, aligned=aligned)
        code = replace(code, facts=tuple(shape_env.guards), per_thread_workspace=code.workspace)
        grids = tuple(_grid(phase, code.sizes) for phase in code.phases)
        entries[keys[-1]] = code, replace(_entry(symbol, code, keys[-1][1]), grids=grids, is_grids=True)
    module = join([code for code, _ in entries.values()])
    return WrittenKernels((module,), tuple(entries[key][1] for key in keys))


def _grid(phase: GridPhase, sizes: Sequence[RuntimeParam]) -> Grid:
    slot_of = list(sizes).index
    varies = is_symsize(phase.blocks)
    slot = slot_of(expression_of(phase.blocks)) if varies else -1
    product = None
    if phase.product is not None:
        numbers = [~slot_of(expression_of(each)) if is_symsize(each) else int(each) for each in phase.product.numbers]
        product = _product(phase.product, numbers)
    return Grid(phase.symbol, 0 if varies else int(phase.blocks), slot, phase.threads, phase.shared_bytes, product)


def _product(call: LibraryCall, numbers: Sequence[int]) -> Product:
    """`numbers`: as the call has them, those that vary by their slots."""
    (rows, cols, terms, batch, outer), strides = numbers[:5], numbers[5:]
    operands = [
        Operand(place, str(each.dtype).removeprefix("torch."), *strides[5 * number : 5 * number + 5])
        for number, (each, (place, _)) in enumerate(zip(call.product.operands, call.places, strict=True))
    ]
    return Product(rows, cols, terms, batch, outer, call.grids, tuple(operands))


def write_for(kernels: Sequence[Kernel], target: Target, *, prefix: str = "k", parts: int = 1) -> WrittenKernels:
    """Code of kernels, in at most so many parts."""
    if target.warp_size > 1:
        return write_grids(kernels, target)
    distinct: dict[tuple[str, ShapeEnv | None], Kernel] = {}
    keys = []
    for kernel in kernels:
        kernel = replace(kernel, target=HOST)
        keys.append((format_kernel(replace(kernel, name="kernel")), shape_env_of(kernel)))
        distinct.setdefault(keys[-1], kernel)
    if not distinct:
        return WrittenKernels((Module(()),), ())
    symbols = [f"{prefix}{place}" for place in range(len(distinct))]
    module_units = units(list(distinct.values()), symbols, target, How(RewriteBudget()))
    codes = {place: code for unit in module_units for place, code in unit.entries.items()}
    entries = {key: _entry(symbols[place], codes[place], key[1]) for place, key in enumerate(distinct)}
    modules = tuple(module_of(part) for part in divided(module_units, parts))
    return WrittenKernels(modules, tuple(entries[key] for key in keys))


def _entry(symbol: str, code: EntryCode, shape_env: ShapeEnv | None) -> KernelEntry:
    """Over the symbols of the kernel's own sizes."""
    if shape_env is None:
        return KernelEntry(symbol, code.per_thread_workspace, code.sizes, code.facts)
    facts = tuple(SizeGuard(fact.relation, shape_env.own(fact.expression)) for fact in code.facts)
    if not shape_env.closed:
        for fact in facts:
            shape_env.guard(fact.relation, fact.expression, ZERO)
    move = moving(shape_env)
    params = tuple(shape_env.own(each) if isinstance(each, Expression) else move(each) for each in code.sizes)
    return KernelEntry(symbol, resized(code.per_thread_workspace, move), params, facts)
