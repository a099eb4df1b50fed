"""Writes kernels in the loop form: functions that must be in one module form a unit, and threads compile units in
parallel.

    units([gelu_1, gelu_2, softmax], ["k0", "k1", "k2"], target, how)     k0 and k1 with the body they share; k2

Works for the kernels' own target, or another target of the same family for ahead-of-time code.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from smelt.base.fast_dataclass import dataclass
from smelt.base.rewrite_budget import RewriteBudget
from smelt.codegen.generator import EntryCode, Family, Generator
from smelt.codegen.llvm.print_module import print_module
from smelt.codegen.llvm.shared_objects import balanced
from smelt.device import Target, find, generator_of
from smelt.ir.kernel import AnyKernel, Kernel, KernelGroup
from smelt.ir.loops import Module, walk
from smelt.ir.loops.text import format_module
from smelt.ir.substitute_sizes import over_own_symbols

_WORTH_A_THREAD = 600  # nodes of the loop form, which take LLVM a tenth of a second


@dataclass(frozen=True, slots=True)
class How:
    """What kernels are built with: how many optional rewrites may still be made, whether forms are checked between
    them, what `bisect` calls the program, and whether they are for this process alone."""

    budget: RewriteBudget
    check: bool = False
    of: str = ""
    in_process: bool = False


def asked(kernel: AnyKernel) -> tuple[Target, Generator]:
    """The target of a kernel, and what makes code for it."""
    return find(kernel.target), generator_of(kernel.target)


@dataclass(frozen=True, slots=True)
class Unit:
    """Code that must be in one module: that of a kernel, or of several by their places and the body they share."""

    entries: dict[int, EntryCode]
    body: tuple[EntryCode, ...] = ()

    @property
    def length(self) -> int:
        codes = (*self.body, *self.entries.values())
        return sum(1 for code in codes for function in code.functions for _ in walk(function.body))


def units(kernels: Sequence[AnyKernel], symbols: Sequence[str], target: Target, how: How) -> list[Unit]:
    result: list[Unit] = []
    generator = asked(kernels[0])[1]
    for number, (family, places) in enumerate(_shared(generator, kernels, how)):
        body = written(f"f{number}", family.body, target, how)
        members = {}
        for place, length in zip(places, family.lengths.values(), strict=True):
            buffers = len(kernels[place].parameters)
            members[place] = generator.member(symbols[place], f"f{number}", body, length - family.more, buffers)
        result.append(Unit({place: code for place, code in members.items() if code is not None}, (body,)))
    done = {place for unit in result for place in unit.entries}
    codes = {
        place: written(symbols[place], kernels[place], target, how)
        for place in range(len(kernels)) if place not in done
    }  # fmt: skip
    if how.in_process:
        for shared in generator.share_functions(kernels, codes, symbols, how.budget, how.of):
            result.append(Unit(shared.entries, (shared.body,)))
            codes = {place: code for place, code in codes.items() if place not in shared.entries}
    return result + [Unit({place: code}) for place, code in codes.items()]


def _shared(generator: Generator, kernels: Sequence[AnyKernel], how: How) -> Iterator[tuple[Family, list[int]]]:
    """Kernels that share a body, with their places. Grouped launches have one body already."""
    single = {place: kernel for place, kernel in enumerate(kernels) if isinstance(kernel, Kernel)}
    places = list(single)
    for family in generator.share(list(single.values()), how.budget, how.of):
        yield family, [places[each] for each in family.lengths]


def divided(units: Sequence[Unit], most: int) -> list[list[Unit]]:
    """Into parts, `most` at most: one is long enough to be worth a thread of its own."""
    lengths = {id(unit): unit.length for unit in units}
    count = max(1, min(most, len(units), sum(lengths.values()) // _WORTH_A_THREAD))
    return balanced(units, count, lambda unit: lengths[id(unit)])


def module_of(units: Sequence[Unit]) -> Module:
    return join([code for unit in units for code in (*unit.body, *unit.entries.values())])


def written(symbol: str, kernel: AnyKernel, target: Target, how: How) -> EntryCode:
    """Written with its own `ShapeEnv`, so that all facts it relies on are recorded, even those that others relied on
    before."""
    generator = asked(kernel)[1]
    if isinstance(kernel, KernelGroup):
        return generator.emit_group(symbol, kernel.kernels, target)
    kernel, shape_env = over_own_symbols(kernel)
    plan = generator.schedule(kernel, target, how.budget, check=how.check, of=how.of)
    code = generator.emit(symbol, plan, target)
    return replace(code, facts=tuple(shape_env.guards)) if shape_env.symbols else code


def join(codes: Sequence[EntryCode]) -> Module:
    """One module: shared declarations and definitions appear once."""
    shared = {each.name: each for code in codes for each in code.helpers}
    return Module(tuple(each for code in codes for each in code.functions), tuple(shared.values()))


def module_text(kernels: Sequence[AnyKernel], target: Target) -> str:
    """The LLVM IR of `kernels`, named k0, k1, … in order."""
    return source_text(written_module(kernels, target), target)


def source_text(module: Module, target: Target) -> str:
    """The LLVM IR of a module; the loops themselves, where the target's printer is another."""
    return format_module(module) if target.form == "spirv" else print_module(module)


def written_module(kernels: Sequence[AnyKernel], target: Target) -> Module:
    how = How(RewriteBudget())
    return join([written(f"k{number}", kernel, target, how) for number, kernel in enumerate(kernels)])
