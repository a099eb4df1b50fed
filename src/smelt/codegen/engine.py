"""LLVM text → machine code in this process, by llvmlite, which is imported when the first kernel is built."""

import functools
import threading
from dataclasses import dataclass
from typing import Any

from smelt.base.errors import SmeltError
from smelt.codegen import cpu
from smelt.codegen.parallel import LAUNCH, launcher_text
from smelt.device import Target

_lock = threading.Lock()


@functools.cache
def llvm() -> Any:
    """`llvmlite.binding`, with the host's target made ready."""
    import llvmlite.binding  # type: ignore[import-untyped]

    llvmlite.binding.initialize_native_target()
    llvmlite.binding.initialize_native_asmprinter()
    return llvmlite.binding


@dataclass(frozen=True, slots=True)
class Loaded:
    """Machine code in memory; it stays there as long as this object does."""

    engine: Any
    module: Any

    def address(self, symbol: str) -> int:
        return int(self.engine.get_function_address(symbol))


def machine(target: Target, level: int = 2) -> Any:
    """A code generator for `target`."""
    found = llvm().Target.from_triple(target.triple)
    return found.create_target_machine(cpu=target.cpu, features=target.features, opt=level, jit=True)


def _parsed(text: str, target: Target) -> Any:
    try:
        module = llvm().parse_assembly(text)
    except RuntimeError as error:
        raise SmeltError("SM030", f"LLVM rejects the generated code: {error}") from error
    module.triple = target.triple
    return module


def _optimized(module: Any, generator: Any) -> None:
    """The text is in SSA form with explicit vectors: what is left to do is to clean up after its pieces met."""
    passes = llvm().create_new_function_pass_manager()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    builder = llvm().create_pass_builder(generator, llvm().create_pipeline_tuning_options(speed_level=1))
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)


_launchers: dict[Target, Loaded] = {}


def load(text: str, target: Target) -> Loaded:
    """Build `text` for the host and keep the result ready to call."""
    with _lock:
        if target not in _launchers:
            for name, address in cpu.external_symbols().items():
                llvm().add_symbol(name, address)
            _launchers[target] = _load(launcher_text(parallel=cpu.has_openmp()), target)
            llvm().add_symbol(LAUNCH, _launchers[target].address(LAUNCH))
        return _load(text, target)


def _load(text: str, target: Target) -> Loaded:
    generator = machine(target)
    module = _parsed(text, target)
    _optimized(module, generator)
    engine = llvm().create_mcjit_compiler(module, generator)
    engine.finalize_object()
    return Loaded(engine, module)


def assemble(text: str, target: Target) -> str:
    """The assembly `text` becomes, for people to read."""
    with _lock:
        generator = machine(target)
        module = _parsed(text, target)
        _optimized(module, generator)
        return str(generator.emit_assembly(module))
