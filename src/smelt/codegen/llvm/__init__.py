"""LLVM for every target: IR text, scalars, math, reductions, compilation and linking."""
