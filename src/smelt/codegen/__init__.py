"""Turns kernels into machine code. LLVM is the only code generator; `compile_kernels` is the only way in.

    compiled = compile_kernels([softmax], options)["softmax"]
    compiled.address(compiled.symbol)       void (*)(void **buffers, int64_t threads, void *workspace)

`build` asks a kernel's target for schedule, emit and load (`generator.py`). `cpu/` implements them for the host, `gpu/`
for GPUs; `llvm/` is shared by all targets. `targets.py` registers them.
"""

from typing import TYPE_CHECKING, Any

from smelt.codegen import targets as _targets  # noqa: F401  offers what comes with the package

if TYPE_CHECKING:
    from smelt.codegen.build import CompiledKernel, assembly, built_code, compile_kernels, forget, loops_of, source

__all__ = ["CompiledKernel", "assembly", "built_code", "compile_kernels", "forget", "loops_of", "source"]


def __getattr__(name: str) -> Any:
    """Import lazily: a program from the disk cache needs none of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from smelt.codegen import build

    return getattr(build, name)
