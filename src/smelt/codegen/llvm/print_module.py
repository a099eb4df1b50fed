"""Prints modules of the loop form as LLVM text: whole, or with the helpers apart that many modules share.

    print_module(module)       all of it
    apart(module)              the kernels with those helpers declared that can be elsewhere, and these helpers

A helper that calls only intrinsics, external functions and other such helpers can go into an object file of its own
(`shared_objects`), with its tables.
"""

from collections.abc import Iterable, Mapping, Sequence

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.llvm.print_llvm import declaration, declarations, print_function, print_in_section
from smelt.ir.loops import Function, Module
from smelt.ir.loops.rewrite import mentioned


@dataclass(frozen=True, slots=True)
class SharedFunction:
    """A function that can be in another object than those who call it."""

    function: Function
    calls: frozenset[str]  # other such functions

    @property
    def text(self) -> str:
        return print_function(self.function)


def print_module(module: Module) -> str:
    return _without((*module.helpers, *module.functions), ())


def apart(module: Module) -> tuple[str, dict[str, SharedFunction]]:
    """The module without the functions that can be elsewhere, which it declares; and those, by name."""
    shareable = _shareable(module)
    own = [each for each in (*module.helpers, *module.functions) if each.name not in shareable]
    return _without(own, [each.function for each in shareable.values()]), shareable


def bundle(functions: Iterable[SharedFunction], known: Mapping[str, SharedFunction]) -> str:
    """One module of several functions. Those of `known` that they call beside each other are declared."""
    inside = {each.function.name: each.function for each in functions}
    outside = sorted({name for name in inside for name in known[name].calls} - set(inside))
    texts = [print_in_section(each) for each in inside.values()]
    elsewhere = [known[name].function for name in outside]
    own = [line for line in declarations(inside.values()) if _declared(line) not in outside]
    return "\n".join((*own, *map(declaration, elsewhere), *texts))


def _without(own: Sequence[Function], elsewhere: Sequence[Function]) -> str:
    names = {each.name for each in elsewhere}
    lines = [line for line in declarations(own) if _declared(line) not in names]
    return "\n".join((*lines, *map(declaration, elsewhere), *map(print_function, own)))


def _declared(line: str) -> str:
    """The function that a declaration names."""
    return line[line.index("@") + 1 : line.index("(")]


def _shareable(module: Module) -> dict[str, SharedFunction]:
    helpers = {each.name: each for each in module.helpers}
    defined = {each.name for each in (*module.helpers, *module.functions)}
    calls = {name: mentioned(each) & defined for name, each in helpers.items()}
    left = set(helpers)
    while alone := {name for name in left if not calls[name] <= left}:
        left -= alone
    return {name: SharedFunction(each, frozenset(calls[name])) for name, each in helpers.items() if name in left}
