"""Calls functions of the C library, once per lane: f64 functions on processors without fma."""

from collections.abc import Callable

from smelt.codegen.loops.builder import Builder
from smelt.ir.loops import Value

# Our name → C's, for double; float has an "f" appended. `external_symbols` must know each of them.
LIBRARY: dict[str, str] = {
    "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log", "log2": "log2", "log1p": "log1p",
    "sin": "sin", "cos": "cos", "tanh": "tanh", "erf": "erf", "pow": "pow", "fmod": "fmod",
}  # fmt: skip


def library(name: str) -> Callable[..., Value]:
    """Code that calls the C function of our `name` on every lane."""

    def call(b: Builder, *args: Value) -> Value:
        kind = args[0].kind
        symbol = LIBRARY[name] + ("f" if kind == "f32" else "")
        lanes = ([b.extract(arg, lane) for arg in args] for lane in range(args[0].lanes))
        return b.gathered([b.call(symbol, *scalars, result=kind) for scalars in lanes])

    return call
