"""Kernels → machine code. LLVM is the one code generator; `compile_kernels` is the one way in.

    compiled = compile_kernels([softmax], options)["softmax"]
    compiled.address       void (*)(void **buffers, int64_t threads, void *workspace)

schedule (how loops run) → body (LLVM text, with scalars, folds and math) → parallel (threads) → engine (machine code)
"""

from smelt.codegen import cpu as _cpu  # noqa: F401  offers the target "cpu"
from smelt.codegen.build import CompiledKernel, assembly, compile_kernels

__all__ = ["CompiledKernel", "assembly", "compile_kernels"]
