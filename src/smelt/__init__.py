"""smelt compiles PyTorch programs, training included: `model = smelt.compile(model)`.

Importing this package loads what captures programs and runs compiled ones. What compiles them is loaded by the first
graph that no earlier process has left in the disk cache. Where PyTorch is not installed, `smelt.load` works: exported
functions run without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from smelt import _native
from smelt.base.errors import GraphBreakError, SmeltError, SmeltWarning, warn
from smelt.base.version import VERSION, why_not_tested

try:
    import torch
except ImportError as error:
    _no_torch: ImportError | None = error
else:
    _no_torch = None
    _not_tested = why_not_tested(torch.__version__)
    _no_compiler: Exception | None = None
    with _native.PausedGC():
        from smelt.base.events import counters
        from smelt.base.options import Options, config, when_set
        from smelt.base.torch_internals import MISSING, require_all

        try:
            if _not_tested is not None:
                require_all()
            import smelt.explain  # (loaded later, the package would take the place of the function)
            import smelt.ops  # noqa: F401  (names the families of operators)
            from smelt.api import compile, disable, explain, record, reset, verify
            from smelt.capture import graph_break, is_compiling, mark_dynamic
            from smelt.pipeline.backends import list_backends, register_backend
        except Exception as error:
            if _not_tested is None:
                raise
            _no_compiler = error
            from smelt.eager_api import (  # type: ignore[no-redef]
                compile,
                disable,
                graph_break,
                is_compiling,
                mark_dynamic,
                reset,
                unavailable,
            )

            explain, record, verify = map(unavailable, ("explain", "record", "verify"))
            list_backends, register_backend = map(unavailable, ("list_backends", "register_backend"))
    if _no_compiler is not None:
        warn(
            f"SM080: {_not_tested}. Nothing is compiled, everything runs in eager: the compiler cannot be imported "
            f"({type(_no_compiler).__name__}: {_no_compiler})."
        )
    elif _not_tested is not None or MISSING:
        lacks = f" It lacks {', '.join(MISSING)}: calls of these break graphs." if MISSING else ""
        warn(f"SM080: {_not_tested or f'PyTorch {torch.__version__} is not as smelt expects it'}.{lacks}")

if TYPE_CHECKING:
    from smelt import compiled_autograd
    from smelt.autograd.aot import aot_function, aot_module, aot_module_simplified
    from smelt.autograd.partition import partition
    from smelt.chips.registration import register_chip
    from smelt.deploy.artifact import Artifact, Entry, export, export_entries
    from smelt.deploy.generation.export import export_generation
    from smelt.deploy.loaded import load
    from smelt.generation.loop import generate
    from smelt.ir.artifact.machine import Dimension
    from smelt.ir.artifact_file.signature import sign
    from smelt.lazy import LazyFunctions
    from smelt.quantization.convert import quantize

    lazy: LazyFunctions  # a module that can be called

__version__ = VERSION

__all__ = [
    "Artifact",
    "Dimension",
    "Entry",
    "GraphBreakError",
    "Options",
    "SmeltError",
    "SmeltWarning",
    "aot_function",
    "aot_module",
    "aot_module_simplified",
    "compile",
    "compiled_autograd",
    "config",
    "counters",
    "disable",
    "explain",
    "export",
    "export_entries",
    "export_generation",
    "generate",
    "graph_break",
    "is_compiling",
    "list_backends",
    "load",
    "mark_dynamic",
    "partition",
    "quantize",
    "record",
    "register_backend",
    "register_chip",
    "reset",
    "sign",
    "verify",
]

_LATER = {
    "Artifact": "smelt.deploy.artifact",
    "Dimension": "smelt.ir.artifact.machine",
    "Entry": "smelt.deploy.artifact",
    "aot_function": "smelt.autograd.aot",
    "aot_module": "smelt.autograd.aot",
    "aot_module_simplified": "smelt.autograd.aot",
    "compiled_autograd": "smelt.compiled_autograd",
    "export": "smelt.deploy.artifact",
    "export_entries": "smelt.deploy.artifact",
    "export_generation": "smelt.deploy.generation.export",
    "generate": "smelt.generation.loop",
    "load": "smelt.deploy.loaded",
    "partition": "smelt.autograd.partition.partition",
    "quantize": "smelt.quantization.convert",
    "register_chip": "smelt.chips.registration",
    "sign": "smelt.ir.artifact_file.signature",
}
_WITHOUT_TORCH = ("load", "sign")


def __getattr__(name: str) -> Any:
    """What not every program uses is loaded when it is asked for."""
    if _no_torch is not None and name not in _WITHOUT_TORCH and name in __all__:
        raise ImportError(f"smelt.{name} needs PyTorch, which cannot be imported ({_no_torch}); smelt.load does not")
    if name in _LATER and name not in _WITHOUT_TORCH and _no_torch is None and _no_compiler is not None:
        raise SmeltError("SM080", f"smelt.{name} does not work with this PyTorch ({_no_compiler})")
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _native.PausedGC():
        module = import_module(_LATER[name])
    value = globals()[name] = module if module.__name__.endswith(f".{name}") else getattr(module, name)
    return value


if _no_torch is None and _no_compiler is None:
    when_set("compiled_autograd", lambda before, now: __getattr__("compiled_autograd").switch(before, now))
