"""Kernels → compiled kernels: what is new in one LLVM module for each thread, equal ones built once in a process.

    compile_kernels([gelu_1, gelu_2], options)     two names, one text → one piece of machine code

Code for sizes that vary relies on facts of its own: it is used again where they hold, and the kernel's `ShapeEnv`
relies on them from then on.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import torch

from smelt import _native
from smelt.base import events, locks
from smelt.base.errors import SmeltError
from smelt.base.fast_dataclass import dataclass
from smelt.base.fuel import Fuel
from smelt.base.options import Options, config
from smelt.codegen.generator import EntryCode, Generator
from smelt.codegen.llvm.compile import Built
from smelt.codegen.llvm.runtime_sizes import RuntimeParam
from smelt.device import Target, find, generator_of
from smelt.ir.check_kernel import check_kernel
from smelt.ir.kernel import Kernel
from smelt.ir.kernel_code import GridPhase
from smelt.ir.substitute_sizes import resized, shape_env_of
from smelt.ir.text import format_kernel
from smelt.symbolic.expressions import ZERO, ShapeEnv, SizeGuard
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import moving


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """Machine code of one kernel, as `ir.kernel_code.KernelCode` says."""

    kernel: Kernel
    symbol: str
    built: Built
    buffers: int
    per_thread_workspace: Size = 0
    sizes: tuple[RuntimeParam, ...] = ()  # what it is given at each launch, in an array behind its buffers
    facts: tuple[SizeGuard, ...] = ()  # what it relies on
    phases: tuple[GridPhase, ...] = ()
    workspace: Size = 0

    @classmethod
    def of(cls, kernel: Kernel, symbol: str, built: Built, code: EntryCode) -> "CompiledKernel":
        needs = (code.per_thread_workspace, code.sizes, code.facts, code.phases, code.workspace)
        return cls(kernel, symbol, built, len(kernel.parameters) + bool(code.sizes), *needs)

    @property
    def size_count(self) -> int:
        return len(self.sizes)

    @property
    def loaded(self) -> object:
        return self.built.loaded

    def address(self, symbol: str, /) -> int:
        return self.built.address(symbol)

    @property
    def llvm(self) -> str:
        """The LLVM IR this was built from, as a module of its own."""
        return source(self.kernel)


_WORTH_A_THREAD = 30_000  # characters of LLVM text, which take a tenth of a second
_MOST = 2048  # kernels, some 20 kB each; a program keeps its own, so nothing but time is lost
_MOST_OF_ONE = 16  # versions of one text, each for sizes of which other facts hold
_Store = dict[str, list[CompiledKernel]]  # by text, what was asked for last at the end, and so the versions of each
_built: _Store = {}
_lock = locks.lock()


def compile_kernels(
    kernels: Sequence[Kernel], options: Options, fuel: Fuel | None = None, program: str = ""
) -> dict[str, CompiledKernel]:
    """Machine code for each of `kernels`, by name. `fuel` is shared with earlier passes; `program`: whose kernels."""
    fuel = Fuel(options.fuel) if fuel is None else fuel
    how = _How(fuel, options.check_specs or config.check_specs, f"{program}: " if program else "")
    if how.check:
        for kernel in kernels:
            if shape_env_of(kernel) is None:
                check_kernel(kernel, after="fuse")
    keys = {kernel.name: _key(kernel) for kernel in kernels}
    for kernel in kernels:
        if keys[kernel.name] != _key(kernel):
            raise SmeltError("SM030", f"two different kernels are named {kernel.name}")
    with _native.Held(_lock):
        # With little fuel left, what a kernel becomes depends on how much that is: nobody else gets that code.
        store = _built if fuel.left < 0 else {}
        new = {keys[kernel.name]: kernel for kernel in kernels if _known(store, keys[kernel.name], kernel) is None}
        for name in dict.fromkeys(kernel.target for kernel in new.values()):
            _build(store, {key: kernel for key, kernel in new.items() if kernel.target == name}, how)
        found = {kernel.name: _relied_on(store, keys[kernel.name], kernel) for kernel in kernels}
        store.update({key: store.pop(key) for key in dict.fromkeys(keys.values())})
        for key in list(itertools.islice(store, max(len(store) - _MOST, 0))):
            del store[key]
        return found


def compile_unaligned(kernel: Kernel, options: Options) -> CompiledKernel:
    """Code of one kernel that takes buffers at any address, where that of `compile_kernels` does not."""
    key = f"{_key(kernel)}\nunaligned"
    target, generator = _asked(kernel)
    with _native.Held(_lock):
        if key not in _built:
            plan = generator.schedule(kernel, target, Fuel(), check=False, of="")
            (symbol,) = generator.symbols([kernel])
            code = generator.emit(symbol, plan, target, aligned=False)
            (built,) = generator.load([_join([code])], target)
            _built[key] = [CompiledKernel.of(kernel, symbol, built, code)]
            events.count("kernels_built")
        return _built[key][-1]


@dataclass(frozen=True, slots=True)
class _How:
    """What kernels are built with: how many optional rewrites may still be made, whether forms are checked between
    them, and what `bisect` calls the program."""

    fuel: Fuel
    check: bool = False
    of: str = ""


def _known(store: _Store, key: str, kernel: Kernel) -> CompiledKernel | None:
    """The code of a kernel, if there is some whose facts hold for it."""
    known = store.get(key, ())
    if not known or not (known[0].sizes or known[0].facts):
        return known[0] if known else None
    shape_env = shape_env_of(kernel)
    assert shape_env is not None  # it has the same text
    examples = {symbol: symbol.example for symbol in shape_env.symbols}
    return next((each for each in known if all(fact.holds(examples.__getitem__) for fact in each.facts)), None)


def _relied_on(store: _Store, key: str, kernel: Kernel) -> CompiledKernel:
    found = _known(store, key, kernel)
    assert found is not None
    versions = store[key]
    if versions[-1] is not found:
        versions.remove(found)
        versions.append(found)
    shape_env = shape_env_of(kernel) if found.facts else None
    for fact in found.facts:
        assert shape_env is not None
        shape_env.guard(fact.relation, shape_env.own(fact.expression), ZERO)
    return found


def _key(kernel: Kernel) -> str:
    """A kernel's text without its name; its target is part of it."""
    return format_kernel(replace(kernel, name="kernel"))


def _build(store: _Store, new: dict[str, Kernel], how: _How) -> None:
    """Of kernels for one target."""
    keys, kernels = list(new), list(new.values())
    target, generator = _asked(kernels[0])
    symbols = generator.symbols(kernels)
    units = _units(kernels, symbols, target, how)
    events.count("kernels_built", len(units))
    if events.wanted("llvm"):
        events.emit("llvm", _text(units), kernels)
    parts = _divided(units, torch.get_num_threads())
    for part, built in zip(parts, generator.load([_text(part) for part in parts], target), strict=True):
        for place, code in (entry for unit in part for entry in unit.entries.items()):
            made = CompiledKernel.of(kernels[place], symbols[place], built, code)
            versions = store.setdefault(keys[place], [])
            versions.append(made)
            del versions[:-_MOST_OF_ONE]
    if events.wanted("asm"):
        events.emit("asm", lambda: generator.assemble(_text(units), target), kernels)


def _asked(kernel: Kernel) -> tuple[Target, Generator]:
    """The target of a kernel, and what makes code for it."""
    return find(kernel.target), generator_of(kernel.target)


@dataclass(frozen=True, slots=True)
class _Unit:
    """What has to be in one module: the code of a kernel, or of several by their places and the body they share."""

    entries: dict[int, EntryCode]
    body: tuple[EntryCode, ...] = ()

    @property
    def length(self) -> int:
        return sum(len(code.functions) for code in (*self.body, *self.entries.values()))


def _units(kernels: Sequence[Kernel], symbols: Sequence[str], target: Target, how: _How) -> list[_Unit]:
    units: list[_Unit] = []
    generator = _asked(kernels[0])[1]
    for number, family in enumerate(generator.share(kernels, how.fuel, how.of)):
        body = _code(f"f{number}", family.body, target, how)
        members = {}
        for place, length in family.lengths.items():
            buffers = len(kernels[place].parameters)
            members[place] = generator.member(symbols[place], f"f{number}", body, length - family.more, buffers)
        units.append(_Unit({place: code for place, code in members.items() if code is not None}, (body,)))
    done = {place for unit in units for place in unit.entries}
    alone = (place for place in range(len(kernels)) if place not in done)
    return units + [_Unit({place: _code(symbols[place], kernels[place], target, how)}) for place in alone]


def _divided(units: Sequence[_Unit], most: int) -> list[list[_Unit]]:
    """Into parts about as long as each other, `most` at most: one is long enough to be worth a thread of its own."""
    total = sum(unit.length for unit in units)
    parts: list[list[_Unit]] = [[] for _ in range(max(1, min(most, total // _WORTH_A_THREAD)))]
    lengths = [0] * len(parts)
    for unit in sorted(units, key=lambda unit: -unit.length):
        shortest = lengths.index(min(lengths))
        parts[shortest].append(unit)
        lengths[shortest] += unit.length
    return parts


def _text(units: Sequence[_Unit]) -> str:
    return _join([code for unit in units for code in (*unit.body, *unit.entries.values())])


def _code(symbol: str, kernel: Kernel, target: Target, how: _How) -> EntryCode:
    """Written with a `ShapeEnv` of its own, so that all it relies on is seen, whoever else relied on it before."""
    shape_env, generator = shape_env_of(kernel), _asked(kernel)[1]
    if shape_env is None:
        plan = generator.schedule(kernel, target, how.fuel, check=how.check, of=how.of)
        return generator.emit(symbol, plan, target)
    own = ShapeEnv()
    for each in shape_env.symbols:
        own.symbol(each.text, each.example)
    kernel = resized(kernel, moving(own))
    plan = generator.schedule(kernel, target, how.fuel, check=how.check, of=how.of)
    code = generator.emit(symbol, plan, target)
    return replace(code, facts=tuple(own.guards))


def _join(codes: Sequence[EntryCode]) -> str:
    """One module: what is declared or defined for several kernels appears once."""
    declarations = sorted(frozenset().union(*(code.declarations for code in codes)))
    helpers = {name: text for code in codes for name, text in code.helpers}
    return "\n".join([*declarations, *helpers.values(), *(code.functions for code in codes)])


def module_text(kernels: Sequence[Kernel], target: Target) -> str:
    """The LLVM IR of `kernels`, named k0, k1, … in order."""
    how = _How(Fuel())
    return _join([_code(f"k{number}", kernel, target, how) for number, kernel in enumerate(kernels)])


def source(kernel: Kernel) -> str:
    """The LLVM IR of one kernel, for people to read."""
    return module_text([kernel], find(kernel.target))


def assembly(kernels: Sequence[Kernel]) -> str:
    """The assembly for `kernels`, which are for one target, for people to read."""
    target, generator = _asked(kernels[0])
    return generator.assemble(module_text(kernels, target), target)


def built_code(kernel: Kernel) -> CompiledKernel | None:
    """What an equal kernel was built to last in this process; None if none was. Nothing is relied on."""
    with _native.Held(_lock):
        versions = _built.get(_key(kernel))
        return versions[-1] if versions else None


def forget() -> None:
    """Drop every kernel built so far; machine code goes once nobody holds it."""
    with _native.Held(_lock):
        _built.clear()
