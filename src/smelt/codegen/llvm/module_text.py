"""The text of a module in parts: each kernel's own text, and functions shared with other modules.

    ModuleText(declarations, helpers={"product.tile…": "define internal …"}, functions)
      str(module)                all of it, as one module
      apart(module)              the kernels with those functions declared, and the functions that can be elsewhere

A function that is alone in its text, and refers only to declarations and other such functions, can go into an object
file of its own (`shared_objects`).
"""

import re
from collections.abc import Iterable, Mapping

from smelt.base.fast_dataclass import dataclass

_NAME = re.compile(r"@([\w.$-]+)")
_INTERNAL = "define internal "


@dataclass(frozen=True, slots=True)
class ModuleText:
    """LLVM text. A helper is a function, with its dependencies, that is defined once for all kernels of a module."""

    declarations: tuple[str, ...]
    helpers: tuple[tuple[str, str], ...]
    functions: str

    def __str__(self) -> str:
        return "\n".join((*self.declarations, *(text for _, text in self.helpers), self.functions))


@dataclass(frozen=True, slots=True)
class SharedFunction:
    """A function that can be in another object than those who call it."""

    name: str
    text: str
    calls: frozenset[str]  # other such functions
    declarations: tuple[str, ...]

    @property
    def declaration(self) -> str:
        """For modules that it is not in. Hidden, as it will be in the same image: no table has its address."""
        head = self.text[len(_INTERNAL) : self.text.index("\n")]
        return f"declare hidden {head[: head.rindex(')') + 1]}"

    @property
    def definition(self) -> str:
        """In a section of its own, so that it can be taken out of the object by itself."""
        head, body = self.text.split("\n", 1)
        return f'define hidden {head[len(_INTERNAL) :].removesuffix("{")}section ".text.{self.name}" {{\n{body}'


def apart(module: ModuleText) -> tuple[str, dict[str, SharedFunction]]:
    """The module without the functions that can be elsewhere, which it declares; and those, by name."""
    shareable = _shareable(module)
    kept = [text for _, text in module.helpers if _defined(text) not in shareable]
    declared = (*module.declarations, *(each.declaration for each in shareable.values()))
    return "\n".join((*declared, *kept, module.functions)), shareable


def bundle(functions: Iterable[SharedFunction], known: Mapping[str, SharedFunction]) -> str:
    """One module of several functions. Those of `known` that they call beside each other are declared."""
    inside = {each.name: each for each in functions}
    declared = sorted({line for each in inside.values() for line in each.declarations})
    outside = sorted({name for each in inside.values() for name in each.calls} - set(inside))
    texts = [*declared, *(known[name].declaration for name in outside), *(each.definition for each in inside.values())]
    return "\n".join(texts)


def _defined(text: str) -> str:
    """The function that a text defines, if it defines that one alone; else nothing."""
    if not text.startswith(_INTERNAL) or text.count("\ndefine ") or "\n@" in text:
        return ""
    match = _NAME.search(text)
    return match.group(1) if match else ""


def _shareable(module: ModuleText) -> dict[str, SharedFunction]:
    declared = {match.group(1): line for line in module.declarations if (match := _NAME.search(line))}
    texts = {name: text for _, text in module.helpers if (name := _defined(text))}
    mentioned = {name: frozenset(_NAME.findall(text)) - {name} for name, text in texts.items()}
    left = set(texts)
    while alone := {name for name in left if not mentioned[name] <= left | declared.keys()}:
        left -= alone
    return {
        name: SharedFunction(
            name, texts[name], mentioned[name] & left, tuple(declared[each] for each in sorted(mentioned[name] - left))
        )
        for name in texts if name in left
    }  # fmt: skip
