"""smelt compiles PyTorch programs, training included: `model = smelt.compile(model)`.

Importing this package loads no code generator; that happens at the first compilation.
"""

from smelt.base.collector import paused

with paused():
    from smelt import compiled_autograd
    from smelt.api import compile, disable, explain, is_compiling, record, reset, verify
    from smelt.autograd import partition
    from smelt.autograd.aot import aot_function, aot_module, aot_module_simplified
    from smelt.base.errors import GraphBreakError, SmeltError, SmeltWarning
    from smelt.base.events import counters
    from smelt.base.options import Options, config
    from smelt.capture import graph_break, mark_dynamic
    from smelt.pipeline.backends import list_backends, register_backend

__version__ = "0.1.0"

__all__ = [
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
    "graph_break",
    "is_compiling",
    "list_backends",
    "mark_dynamic",
    "partition",
    "record",
    "register_backend",
    "reset",
    "verify",
]
