"""Calls functions of the C library, once per lane: f64 functions on processors without fma."""

from collections.abc import Callable

from smelt.codegen.llvm.builder import LLVM_TYPES, Builder, LlvmValue

# Our name → C's, for double; float has an "f" appended. `external_symbols` must know each of them.
LIBRARY: dict[str, str] = {
    "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log", "log2": "log2", "log1p": "log1p",
    "sin": "sin", "cos": "cos", "tanh": "tanh", "erf": "erf", "pow": "pow", "fmod": "fmod",
}  # fmt: skip


def library(name: str) -> Callable[..., LlvmValue]:
    """Code that calls the C function of our `name` on every lane."""

    def call(b: Builder, *args: LlvmValue) -> LlvmValue:
        kind = args[0].kind
        symbol = LIBRARY[name] + ("f" if kind == "f32" else "")
        element = LLVM_TYPES[kind]
        b.declare(symbol, element, [element] * len(args))
        results: list[LlvmValue] = []
        for lane in range(args[0].lanes):
            scalars = ", ".join(str(b.extract(arg, lane)) for arg in args)
            results.append(b.op(f"call {element} @{symbol}({scalars})", kind, 1))
        return b.gathered(results)

    return call
