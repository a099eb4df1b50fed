"""A `torch.Generator` that belongs to a graph: it has a name, by which the graph's code as text finds it.

    repr(make_own("cpu"))    →    "own_generator(0)", which `torch.fx` writes into the modules it makes
"""

import itertools
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import fx
from torch.fx.graph import _register_custom_builtin

_numbers = itertools.count()
_made: "WeakValueDictionary[int, Own]" = WeakValueDictionary()


class Own(torch.Generator):
    """What a graph draws from in the place of a generator of the program."""

    number: int

    def __repr__(self) -> str:
        return f"own_generator({self.number})"


def own_generator(number: int) -> Own:
    """The one of that number."""
    return _made[number]


def name_generators(graph: fx.Graph) -> None:
    """Put those with names back where PyTorch's dispatcher has made other objects of them."""
    known = {_place(each): each for each in _made.values()}
    if not known:
        return
    for node in graph.nodes:
        operands = (*node.args, *node.kwargs.values())
        if any(type(each) is torch.Generator for each in operands):
            node.args = tuple(_named(each, known) for each in node.args)
            node.kwargs = {name: _named(each, known) for name, each in node.kwargs.items()}


def _place(generator: torch.Generator) -> int:
    place: int = generator._cdata  # type: ignore[attr-defined]
    return place


def _named(value: Any, known: dict[int, Own]) -> Any:
    return known.get(_place(value), value) if type(value) is torch.Generator else value


def make_own(device: torch.device) -> Own:
    """A new one; it lives as long as some graph has it."""
    generator = Own(device)
    generator.number = next(_numbers)
    _made[generator.number] = generator
    return generator


_register_custom_builtin("own_generator", "from smelt.ir.generators import own_generator", own_generator)
