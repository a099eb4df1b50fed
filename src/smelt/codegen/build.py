"""Kernels → compiled kernels: one LLVM module for all that are new, equal ones built once in a process.

    compile_kernels([gelu_1, gelu_2], options)     two names, one text → one piece of machine code
"""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from smelt.base import events
from smelt.base.errors import SmeltError
from smelt.base.options import Options
from smelt.codegen import engine
from smelt.codegen.parallel import Code, write
from smelt.codegen.schedule import plan
from smelt.device import Target, find
from smelt.ir.check import check_kernel
from smelt.ir.kernel import Kernel
from smelt.ir.text import format_kernel


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """Machine code of one kernel. A call's workspace has `fixed_workspace + per_thread_workspace * threads` bytes."""

    address: int
    buffers: int
    fixed_workspace: int
    per_thread_workspace: int
    kernel: Kernel
    symbol: str
    built: engine.Built

    @property
    def llvm(self) -> str:
        """The LLVM IR this was built from, as a module of its own."""
        return module_text([self.kernel], find("cpu"))


_built: dict[str, CompiledKernel] = {}
_lock = threading.Lock()


def compile_kernels(kernels: Sequence[Kernel], options: Options) -> dict[str, CompiledKernel]:
    """Machine code for each of `kernels`, by name."""
    if options.check_specs:
        for kernel in kernels:
            check_kernel(kernel, after="fuse")
    keys = {kernel.name: _key(kernel) for kernel in kernels}
    for kernel in kernels:
        if keys[kernel.name] != _key(kernel):
            raise SmeltError("SM030", f"two different kernels are named {kernel.name}")
    with _lock:
        new = {keys[kernel.name]: kernel for kernel in kernels if keys[kernel.name] not in _built}
        if new:
            _build(new)
        return {name: _built[key] for name, key in keys.items()}


def _key(kernel: Kernel) -> str:
    """A kernel's text without its name."""
    return format_kernel(replace(kernel, name="kernel"))


def _build(new: dict[str, Kernel]) -> None:
    target = find("cpu")
    codes = _codes(new.values(), target)
    text = _join(codes)
    if events.wanted("llvm"):
        events.emit("llvm", text, list(new.values()))
    built = engine.load(text, target)
    if events.wanted("asm"):
        events.emit("asm", engine.assemble(text, target), list(new.values()))
    for number, ((key, kernel), code) in enumerate(zip(new.items(), codes, strict=True)):
        symbol, buffers = f"k{number}", len(kernel.parameters)
        address = built.address(symbol)
        _built[key] = CompiledKernel(address, buffers, 0, code.per_thread_workspace, kernel, symbol, built)


def _codes(kernels: Iterable[Kernel], target: Target) -> list[Code]:
    return [write(f"k{number}", plan(kernel, target), target) for number, kernel in enumerate(kernels)]


def _join(codes: Sequence[Code]) -> str:
    """One module: what is declared or defined for several kernels appears once."""
    declarations = sorted(frozenset().union(*(code.declarations for code in codes)))
    helpers = {name: text for code in codes for name, text in code.helpers}
    return "\n".join([*declarations, *helpers.values(), *(code.functions for code in codes)])


def module_text(kernels: Sequence[Kernel], target: Target) -> str:
    """The LLVM IR of `kernels`, named k0, k1, … in order."""
    return _join(_codes(kernels, target))


def assembly(kernels: Sequence[Kernel]) -> str:
    """The host's assembly for `kernels`, for people to read."""
    target = find("cpu")
    return engine.assemble(module_text(kernels, target), target)


def forget() -> None:
    """Drop every kernel built so far; machine code goes once nobody holds it."""
    with _lock:
        _built.clear()
