"""The call that is exported: its arguments as leaves with names, and which of their sizes differ from call to call.

    CallForm.of(model, (x,), {"mask": m}, {"x": {0: Dimension("batch", 1, 64)}})
      leaves  x, m         sizes  {("x", 0): batch}
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from smelt.base.fast_dataclass import dataclass
from smelt.capture.driver.whole_call import ARGS, KWARGS
from smelt.capture.model.marks import BOUNDS, DYNAMIC
from smelt.capture.model.source import Source
from smelt.deploy.errors import ExportError
from smelt.device.host_library import on_host
from smelt.ir.artifact.machine import Dimension
from smelt.ir.artifact.tree import Tree, tree_of
from smelt.symbolic.expressions import SMALLEST

Path = tuple[Any, ...]

PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf of the arguments: its name, the way to it (slot of the call's frame, then keys), and the example."""

    name: str
    path: Path
    example: Any
    sizes: tuple[tuple[int, Dimension], ...] = ()  # dimensions that differ from call to call
    is_open: bool = False  # a number of any value
    choices: tuple[Any, ...] = ()  # values of which it is one, where they were given


@dataclass(frozen=True, slots=True)
class CallForm:
    """A function and an example of its arguments."""

    target: Callable[..., Any]
    tree: Tree
    leaves: tuple[Leaf, ...]

    @classmethod
    def of(
        cls, target: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], dynamic: Mapping[str, Any]
    ) -> "CallForm":
        """`dynamic`: by names of arguments, dimensions, or True for a number."""
        tree, examples = tree_of((tuple(args), dict(kwargs)))
        names = list(_names(tree, _parameters(target)))
        unknown = [name for name in dynamic if name not in names]
        if unknown:
            raise ExportError(
                f"dynamic names {unknown[0]!r}, which is no argument", hint=f"choose from {', '.join(names) or 'none'}"
            )
        leaves = []
        for name, path, example in zip(names, _paths(tree), examples, strict=True):
            leaves.append(_leaf(name, path, example, dynamic.get(name)))
        return cls(target, tree, tuple(leaves))

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """Each once; those of one name have the same bounds."""
        by_name: dict[str, Dimension] = {}
        for leaf in self.leaves:
            for _, dimension in leaf.sizes:
                known = by_name.setdefault(dimension.name, dimension)
                if known != dimension:
                    raise ExportError(f"dimension {dimension.name} has two sets of bounds")
        return tuple(by_name.values())

    @property
    def example_sizes(self) -> dict[str, int]:
        """The sizes that the example has; of dimensions of one name the same."""
        sizes: dict[str, int] = {}
        for leaf in self.leaves:
            for dim, dimension in leaf.sizes:
                size = leaf.example.shape[dim]
                if sizes.setdefault(dimension.name, size) != size:
                    other = sizes[dimension.name]
                    raise ExportError(f"{leaf.name} has {size} for {dimension.name}, another argument {other}")
        return sizes

    def arguments(self, sizes: Mapping[str, int]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments for these sizes: where the example has others, tensors of zeros."""
        args, kwargs = self.tree.build(iter([_at(leaf, sizes) for leaf in self.leaves]))
        return args, kwargs

    def elements(self, sizes: Mapping[str, int]) -> int:
        """How many elements the largest tensor has for these sizes."""
        tensors = [leaf for leaf in self.leaves if isinstance(leaf.example, torch.Tensor)]
        return max((math.prod(_shape_at(leaf, sizes)) for leaf in tensors), default=0)

    def open_places(self, sizes: Mapping[str, int]) -> Iterator[tuple[str, int]]:
        """What a capture for these sizes takes as symbols: where it is, by the guards' names, and which dimension."""
        for leaf in self.leaves:
            source = _source(leaf.path)
            if leaf.is_open:
                yield source.place, 0
            for dim, dimension in leaf.sizes:
                if sizes[dimension.name] >= SMALLEST:
                    yield source.place, dim


def _leaf(name: str, path: Path, example: Any, dynamic: Any) -> Leaf:
    if isinstance(example, torch.Tensor):
        _check_tensor(name, example)
        marked = dict.fromkeys(example.__dict__.get(DYNAMIC, ()), True) | example.__dict__.get(BOUNDS, {})
        by_dimension = _by_dimension(name, example, marked if dynamic is None else dynamic)
        sizes = tuple((dim, _bounded(name, dim, what)) for dim, what in by_dimension)
        return Leaf(name, path, example if example.is_contiguous() else example.contiguous(), sizes)
    if not isinstance(example, PLAIN):
        kind = type(example).__qualname__
        hint = "arguments are tensors, Python's numbers, strings, None, and containers of them"
        raise ExportError(f"argument {name} is a {kind}", hint=hint)
    if isinstance(dynamic, list | tuple | set | frozenset):
        if not dynamic or not all(isinstance(each, PLAIN) for each in dynamic):
            raise ExportError(f"dynamic gives {name} values that are not Python's numbers, strings or None")
        return Leaf(name, path, example, choices=tuple(dict.fromkeys((example, *dynamic))))
    if dynamic and type(example) not in (int, float):
        raise ExportError(f"dynamic names {name}, which is neither a tensor nor a number")
    return Leaf(name, path, example, (), bool(dynamic))


def _check_tensor(name: str, example: torch.Tensor) -> None:
    if type(example) not in (torch.Tensor, torch.nn.Parameter) or example.layout is not torch.strided:
        raise ExportError(f"argument {name} is a {type(example).__qualname__} of layout {example.layout}")


def _by_dimension(name: str, example: torch.Tensor, dynamic: Any) -> list[tuple[int, Any]]:
    if dynamic is None:
        return []
    if isinstance(dynamic, int) and not isinstance(dynamic, bool):
        dynamic = {dynamic: True}
    elif not isinstance(dynamic, Mapping):
        dynamic = dict.fromkeys(range(example.dim()) if dynamic is True else dynamic, True)
    pairs = []
    for dim, what in dynamic.items():
        if not -example.dim() <= dim < example.dim():
            raise ExportError(f"{name} has {example.dim()} dimensions, none numbered {dim}")
        pairs.append((dim % example.dim(), what))
    return sorted(pairs, key=lambda each: each[0])


def _bounded(name: str, dim: int, what: Any) -> Dimension:
    bounds = _dimension(f"{name}.shape[{dim}]", what)
    if not 0 <= bounds.least <= bounds.most:
        raise ExportError(f"dimension {bounds.name} of {name} is from {bounds.least} to {bounds.most}: nothing is")
    return bounds


def _dimension(usual: str, what: Any) -> Dimension:
    if isinstance(what, Dimension):
        return what
    if isinstance(what, str):
        return Dimension(what, 1)
    if isinstance(what, tuple) and len(what) == 3:
        return Dimension(*what)
    if isinstance(what, tuple) and len(what) == 2:
        return Dimension(usual, *what)
    return Dimension(usual, 1)


def _at(leaf: Leaf, sizes: Mapping[str, int]) -> Any:
    if not leaf.sizes or (shape := _shape_at(leaf, sizes)) == list(leaf.example.shape):
        return leaf.example
    if not on_host(leaf.example.device) or 0 in shape:
        return leaf.example.new_zeros(shape)
    data = np.zeros(math.prod(shape) * leaf.example.itemsize, np.uint8)  # no page of it is touched, however large it is
    return torch.from_numpy(data).view(leaf.example.dtype).view(shape)


def _shape_at(leaf: Leaf, sizes: Mapping[str, int]) -> list[int]:
    wanted = {dim: sizes[dimension.name] for dim, dimension in leaf.sizes}
    return [wanted.get(dim, size) for dim, size in enumerate(leaf.example.shape)]


def _parameters(target: Callable[..., Any]) -> list[str]:
    """The names of positional parameters, as far as there are any."""
    function = target.forward if isinstance(target, torch.nn.Module) else target
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]


def _names(tree: Tree, parameters: list[str]) -> Iterator[str]:
    args, kwargs = tree.items
    for place, item in enumerate(args.items):
        yield from item.names(parameters[place] if place < len(parameters) else f"args[{place}]")
    for key, item in zip(kwargs.keys, kwargs.items, strict=True):
        yield from item.names(str(key))


def _paths(tree: Tree) -> Iterator[Path]:
    for slot, item in zip((ARGS, KWARGS), tree.items, strict=True):
        yield from _below(item, (slot,))


def _below(tree: Tree, path: Path) -> Iterator[Path]:
    if tree.kind == "leaf":
        yield path
        return
    keyed = tree.kind in ("dict", "record")
    for key, item in zip(tree.keys if keyed else range(len(tree.items)), tree.items, strict=True):
        yield from _below(item, (*path, key))


def _source(path: Path) -> Source:
    """The source of an argument, for its name."""
    slot, *keys = path
    source = Source(None, ("slot", slot), "args" if slot == ARGS else "kwargs")
    for place, key in enumerate(keys):
        source = source.item(key) if isinstance(key, int) and not (slot == KWARGS and place == 0) else source.key(key)
    return source


def with_examples(form: CallForm, values: Mapping[str, Any]) -> CallForm:
    """The form with other values for some arguments."""
    leaves = [replace(leaf, example=values.get(leaf.name, leaf.example)) for leaf in form.leaves]
    return replace(form, leaves=tuple(leaves))
