"""Compiles kernels: new ones go into one LLVM module per thread, and equal ones are built once per process.

    compile_kernels([gelu_1, gelu_2], options)     two names, one text → one piece of machine code

Code for dynamic shapes relies on facts about them. It is reused where those facts hold, and the kernel's `ShapeEnv`
guards them from then on.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import torch

from smelt import _native
from smelt.base import events, locks
from smelt.base.errors import SmeltError
from smelt.base.fast_dataclass import dataclass
from smelt.base.options import Options, config
from smelt.base.rewrite_budget import RewriteBudget
from smelt.codegen.generator import EntryCode
from smelt.codegen.llvm.compile import Built
from smelt.codegen.loops.runtime_sizes import RuntimeParam
from smelt.codegen.write_module import (
    How,
    asked,
    divided,
    join,
    module_of,
    module_text,
    source_text,
    units,
    written_module,
)
from smelt.device import find
from smelt.ir.check_kernel import check_kernel
from smelt.ir.kernel import AnyKernel, Kernel, KernelGroup, members
from smelt.ir.kernel_code import GridPhase
from smelt.ir.loops.text import format_module
from smelt.ir.substitute_sizes import shape_env_of
from smelt.ir.text import format_kernel
from smelt.symbolic.expressions import ZERO, SizeGuard
from smelt.symbolic.shapes import Size


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """Machine code of one kernel, as `ir.kernel_code.KernelCode` says."""

    kernel: AnyKernel
    symbol: str
    built: Built
    buffers: int
    per_thread_workspace: Size = 0
    sizes: tuple[RuntimeParam, ...] = ()  # what it is given at each launch, in an array behind its buffers
    facts: tuple[SizeGuard, ...] = ()  # what it relies on
    phases: tuple[GridPhase, ...] = ()
    workspace: Size = 0

    @classmethod
    def of(cls, kernel: AnyKernel, symbol: str, built: Built, code: EntryCode) -> "CompiledKernel":
        needs = (code.per_thread_workspace, code.sizes, code.facts, code.phases, code.workspace)
        return cls(kernel, symbol, built, len(kernel.parameters) + bool(code.sizes), *needs)

    @property
    def size_count(self) -> int:
        return len(self.sizes)

    @property
    def numbers(self) -> bytes:
        sizes = bytes(each.dtype.itemsize if each.on_host else 0 for each in self.kernel.parameters)
        return sizes if any(sizes) else b""

    @property
    def loaded(self) -> object:
        return self.built.loaded

    def address(self, symbol: str, /) -> int:
        return self.built.address(symbol)

    @property
    def llvm(self) -> str:
        """The LLVM IR this was built from, as a module of its own."""
        return source(self.kernel)


_MOST = 2048  # kernels, some 20 kB each; a program keeps its own, so nothing but time is lost
_MOST_OF_ONE = 16  # versions of one text, each for sizes of which other facts hold
_Store = dict[str, list[CompiledKernel]]  # by text, what was asked for last at the end, and so the versions of each
_built: _Store = {}
_lock = locks.lock()


def compile_kernels(
    kernels: Sequence[AnyKernel], options: Options, budget: RewriteBudget | None = None, program: str = ""
) -> dict[str, CompiledKernel]:
    """Machine code for each of `kernels`, by name. `budget` is shared with earlier passes; `program`: whose kernels."""
    budget = RewriteBudget(options.max_rewrites) if budget is None else budget
    how = How(budget, options.check_specs or config.check_specs, f"{program}: " if program else "", in_process=True)
    if how.check:
        for each in (each for launched in kernels for each in members(launched)):
            if shape_env_of(each) is None:
                check_kernel(each, after="fuse")
    kernels = list({id(kernel): kernel for kernel in kernels}.values())  # most are launched by many steps
    keys: dict[str, str] = {}
    for kernel in kernels:
        if keys.setdefault(kernel.name, key := _key(kernel)) != key:
            raise SmeltError("SM030", f"two different kernels are named {kernel.name}")
    with _native.Held(_lock):
        # With little of the budget left, a kernel's code depends on how much that is: nobody else gets that code.
        store = _built if budget.left < 0 else {}
        new = {keys[kernel.name]: kernel for kernel in kernels if _known(store, keys[kernel.name], kernel) is None}
        for name in dict.fromkeys(kernel.target for kernel in new.values()):
            _build(store, {key: kernel for key, kernel in new.items() if kernel.target == name}, how)
        compiled = {kernel.name: _relied_on(store, keys[kernel.name], kernel) for kernel in kernels}
        store.update({key: store.pop(key) for key in dict.fromkeys(keys.values())})
        for key in list(itertools.islice(store, max(len(store) - _MOST, 0))):
            del store[key]
        return compiled


def compile_unaligned(kernel: AnyKernel) -> CompiledKernel:
    """Code of one kernel that takes buffers at any address, where that of `compile_kernels` does not."""
    key = f"{_key(kernel)}\nunaligned"
    target, generator = asked(kernel)
    with _native.Held(_lock):
        if key not in _built:
            (symbol,) = generator.symbols([kernel])
            if isinstance(kernel, KernelGroup):
                code = generator.emit_group(symbol, kernel.kernels, target, aligned=False)
            else:
                plan = generator.schedule(kernel, target, RewriteBudget(), check=False, of="")
                code = generator.emit(symbol, plan, target, aligned=False)
            (built,) = generator.load([join([code])], target)
            _built[key] = [CompiledKernel.of(kernel, symbol, built, code)]
            events.count("kernels_built")
        return _built[key][-1]


def _known(store: _Store, key: str, kernel: AnyKernel) -> CompiledKernel | None:
    """The code of a kernel, if there is some whose facts hold for it."""
    known = store.get(key, ())
    if not known or not (known[0].sizes or known[0].facts):
        return known[0] if known else None
    shape_env = None if isinstance(kernel, KernelGroup) else shape_env_of(kernel)
    assert shape_env is not None  # it has the same text; sizes of groups are plain numbers
    examples = {symbol: symbol.example for symbol in shape_env.symbols}
    return next((each for each in known if all(fact.holds(examples.__getitem__) for fact in each.facts)), None)


def _relied_on(store: _Store, key: str, kernel: AnyKernel) -> CompiledKernel:
    compiled = _known(store, key, kernel)
    assert compiled is not None
    versions = store[key]
    if versions[-1] is not compiled:
        versions.remove(compiled)
        versions.append(compiled)
    shape_env = shape_env_of(kernel) if compiled.facts and isinstance(kernel, Kernel) else None
    for fact in compiled.facts:
        assert shape_env is not None
        shape_env.guard(fact.relation, shape_env.own(fact.expression), ZERO)
    return compiled


def _key(kernel: AnyKernel) -> str:
    """A kernel's text without its name; its target is part of it."""
    if isinstance(kernel, KernelGroup):
        kernel = replace(kernel, kernels=tuple(replace(each, name="kernel") for each in kernel.kernels))
    return format_kernel(replace(kernel, name="kernel"))


def _build(store: _Store, new: dict[str, AnyKernel], how: How) -> None:
    """Of kernels for one target."""
    keys, kernels = list(new), list(new.values())
    target, generator = asked(kernels[0])
    symbols = generator.symbols(kernels)
    module_units = units(kernels, symbols, target, how)
    events.count("kernels_built", len(module_units))
    if how.check:
        from smelt.ir.loops.check import check_module

        check_module(module_of(module_units))
    if events.wanted("loops"):
        events.emit("loops", format_module(module_of(module_units)), kernels)
    if events.wanted("llvm"):
        events.emit("llvm", source_text(module_of(module_units), target), kernels)
    threads = torch.get_num_threads()
    parts = divided(module_units, threads)
    loaded = generator.load([module_of(part) for part in parts], target, threads)
    for part, built in zip(parts, loaded, strict=True):
        for place, code in (entry for unit in part for entry in unit.entries.items()):
            compiled = CompiledKernel.of(kernels[place], symbols[place], built, code)
            versions = store.setdefault(keys[place], [])
            versions.append(compiled)
            del versions[:-_MOST_OF_ONE]
    if events.wanted("asm"):
        events.emit("asm", lambda: generator.assemble(module_of(module_units), target), kernels)


def source(kernel: AnyKernel) -> str:
    """The LLVM IR of one kernel, for people to read."""
    return module_text([kernel], find(kernel.target))


def loops_of(kernel: AnyKernel) -> str:
    """The scheduled loops of one kernel, for people to read."""
    return format_module(written_module([kernel], find(kernel.target)))


def assembly(kernels: Sequence[AnyKernel]) -> str:
    """The assembly for `kernels`, which are for one target, for people to read."""
    target, generator = asked(kernels[0])
    return generator.assemble(written_module(kernels, target), target)


def built_code(kernel: AnyKernel) -> CompiledKernel | None:
    """What an equal kernel was built to last in this process; None if none was. Nothing is relied on."""
    with _native.Held(_lock):
        versions = _built.get(_key(kernel))
        return versions[-1] if versions else None


def forget() -> None:
    """Drop every kernel built so far; machine code goes once nobody holds it."""
    with _native.Held(_lock):
        _built.clear()
