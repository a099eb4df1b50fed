"""Graphs as Python text that calls the very functions the graph holds, whatever the program calls by their names since.

`torch.fx` writes a function of PyTorch's as its name, `torch.nn.functional.relu(x)`, and looks it up at each call. The
text stays that; what it finds under `torch` is what the graph was made with:

    relu = torch.nn.functional.relu(x)        torch → a namespace whose nn.functional.relu is the node's target

Methods of tensors that the program has replaced, and a second function of the same name, are written as globals.
"""

import types
from typing import Any

import torch
from torch import fx
from torch.fx.graph import _is_from_torch
from torch.fx.node import _get_qualified_name

from smelt.base.torch_originals import METHODS_OF_C, held_by, is_own, method

_BY_NAME = (types.FunctionType, types.BuiltinFunctionType)


class _Names:
    """A module as a graph's text sees it: what was put here, and all else as the module has it."""

    def __init__(self, module: Any) -> None:
        self.__dict__["_module"] = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class _Global:
    """What is written in place of a target, so that it becomes a global: not of PyTorch, by its looks."""

    def __init__(self, target: Any) -> None:
        self.target = target
        self.__name__ = self.__qualname__ = target.__name__
        self.__module__ = "captured"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.target(*args, **kwargs)


class BoundCode(fx.graph.CodeGen):
    """Code of a graph, by the objects of its nodes."""

    def _gen_python_code(self, nodes: Any, *args: Any, **kwargs: Any) -> Any:
        named: dict[str, Any] = {}
        changed: list[tuple[fx.Node, str, Any]] = []
        names: dict[int, _Global] = {}
        nodes = list(nodes)
        try:
            for node in nodes:
                target = _written_as_global(node, named)
                if target is not None:
                    changed.append((node, node.op, node.target))
                    object.__setattr__(node, "op", "call_function")
                    object.__setattr__(node, "target", names.setdefault(id(target), _Global(target)))
            code = super()._gen_python_code(nodes, *args, **kwargs)
        finally:
            for node, opcode, target in changed:
                object.__setattr__(node, "op", opcode)
                object.__setattr__(node, "target", target)
        for name, held in code.globals.items():
            if type(held) is _Global:
                code.globals[name] = held.target
        if named:
            code.globals["torch"] = _namespace(named)
        return code


def _written_as_global(node: fx.Node, named: dict[str, Any]) -> Any:
    """What is called by a node that no name leads to; None where there is one, which is noted."""
    if node.op == "call_method":
        return _replaced_method(node)
    target: Any = node.target
    if node.op != "call_function":
        return None
    if type(target) in METHODS_OF_C or type(target) is torch._ops.OpOverloadPacket:
        return target
    if type(target) is not torch._ops.OpOverload and (type(target) not in _BY_NAME or not _is_from_torch(target)):
        return None
    name = _get_qualified_name(target)
    if name.startswith("torch.Tensor."):
        return target
    return None if named.setdefault(name, target) is target else target


def _replaced_method(node: fx.Node) -> Any:
    name = str(node.target)
    return None if is_own(held_by(torch.Tensor, name)) else method(name)


def _namespace(named: dict[str, Any]) -> _Names:
    root = _Names(torch)
    for name, target in named.items():
        *path, last = name.split(".")[1:]
        place = root
        for part in path:
            if part not in place.__dict__:
                place.__dict__[part] = _Names(getattr(place._module, part, None))
            place = place.__dict__[part]
        place.__dict__[last] = target
    return root


def bind_code(graph: fx.Graph) -> None:
    """Let the text of a graph call what the graph holds."""
    if type(graph._codegen) is fx.graph.CodeGen:
        graph.set_codegen(BoundCode())
