"""The arguments of an explored function: tensors and numbers are inputs, other Python values are among a few.

    f(x, use_relu=True)   →   x: a tensor in a register     use_relu: a value, True or False, a variant for each

What values there are say the caller (`choices`), the annotation (`Literal["a", "b"]`, an `Enum`, `bool`), or else the
example alone.
"""

import dataclasses
import enum
import inspect
import itertools
import math
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from smelt.base.errors import SmeltError
from smelt.base.fast_dataclass import dataclass
from smelt.capture.explore.abstraction import Path, Policy, Site, standing_in
from smelt.capture.model.marks import DYNAMIC
from smelt.capture.model.open_numbers import DTYPES, OpenNumber
from smelt.device.host_library import HOST
from smelt.ir.artifact.machine import Dimension, ValueCheck
from smelt.ir.artifact.tree import Tree, tree_of
from smelt.symbolic.expressions import SMALLEST

_SITE: Site = ("arguments",)
_PLAIN = (bool, int, float, str, type(None))
_MOST_COMBINATIONS = 16


@dataclass(frozen=True, slots=True)
class ArgumentLeaf:
    """One leaf. `choices`: what values it may have; None for a tensor, or a number of any value. `dynamic`: dimensions
    of a tensor whose sizes differ from call to call."""

    number: int
    name: str
    value: Any
    choices: tuple[Any, ...] | None
    dynamic: frozenset[int] = frozenset()
    dimensions: Mapping[int, Dimension] = dataclasses.field(default_factory=dict)  # those with a name and bounds

    @property
    def place(self) -> tuple[Site, Path]:
        """Where a policy says whether its number stays open."""
        return _SITE, (self.name,)

    def is_open(self, policy: Policy) -> bool:
        """Whether it is in a register."""
        return isinstance(self.value, torch.Tensor) or (self.choices is None and self.place not in policy.closed)

    def values(self, policy: Policy) -> tuple[Any, ...]:
        """What is explored: each of its values, or what stands for any."""
        if self.is_open(policy):
            return (self.value,)
        return (self.value,) if self.choices is None else self.choices

    @property
    def dtype(self) -> torch.dtype:
        return self.value.dtype if isinstance(self.value, torch.Tensor) else DTYPES[type(self.value)]

    @property
    def sizes(self) -> tuple[int | None, ...]:
        """Of a tensor; None where they differ from call to call."""
        return tuple(None if dim in self.dynamic else int(size) for dim, size in enumerate(self.value.shape))

    @property
    def device(self) -> torch.device:
        return self.value.device if isinstance(self.value, torch.Tensor) else HOST

    def stand_in(self, policy: Policy, value: Any) -> Any:
        """What the explored function is given."""
        if isinstance(value, torch.Tensor):
            shape = tuple(value.shape)
            return standing_in(shape, value.dtype, value.device, self.dynamic, requires_grad=value.requires_grad)
        return OpenNumber(type(value), standing_in((), self.dtype, HOST)) if self.is_open(policy) else value


class Arguments:
    """The arguments of one function, flattened."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        choices: Mapping[str, Sequence[Any]],
        sizes: Mapping[str, Mapping[int, Dimension]],
    ) -> None:
        self._given = (args, kwargs)
        self.tree, leaves = tree_of(self._given)
        positional, annotations = _signature(function, len(args))
        prefixes = [*positional, *kwargs]
        trees: list[Tree] = [*self.tree.items[0].items, *self.tree.items[1].items]
        named = [(name, prefix) for tree, prefix in zip(trees, prefixes, strict=True) for name in tree.names(prefix)]
        unknown = {*choices, *sizes} - {name for name, _ in named}
        if unknown:
            known = ", ".join(name for name, _ in named)
            raise SmeltError("SM003", f"no argument {', '.join(sorted(unknown))}; there are {known}")
        self.leaves = [
            ArgumentLeaf(
                number,
                name,
                value,
                _choices(value, choices.get(name), annotations.get(prefix)),
                _dynamic(value, sizes.get(name, ())),
                sizes.get(name, {}),
            )
            for number, ((name, prefix), value) in enumerate(zip(named, leaves, strict=True))
        ]
        self.leaves = _few_enough(self.leaves, choices)
        for leaf in self.leaves:
            if not isinstance(leaf.value, torch.Tensor | enum.Enum) and type(leaf.value) not in _PLAIN:
                raise SmeltError(
                    "SM060",
                    f"argument {leaf.name} is a {type(leaf.value).__qualname__}, which cannot be exported",
                    hint="pass tensors, numbers, strings and None, in tuples, lists and dicts",
                )
        self._names = _names_of_tensors(function)

    def variants(self, policy: Policy) -> Iterator[tuple[tuple[ValueCheck, ...], list[Any]]]:
        """Every combination of values, with the checks that tell it from others."""
        for values in itertools.product(*[leaf.values(policy) for leaf in self.leaves]):
            checks = tuple(
                ValueCheck(leaf.number, value.value if isinstance(value, enum.Enum) else value)
                for leaf, value in zip(self.leaves, values, strict=True)
                if not leaf.is_open(policy)
            )
            yield checks, list(values)

    def open_numbers(self, policy: Policy) -> set[tuple[Site, Path]]:
        """Where there are numbers of any value."""
        return {leaf.place for leaf in self.leaves if leaf.is_open(policy) and not isinstance(leaf.value, torch.Tensor)}

    @property
    def has_small_sizes(self) -> bool:
        """Whether a dynamic size may be 0 or 1."""
        return any(each.least < SMALLEST for leaf in self.leaves for each in leaf.dimensions.values())

    def fixed(self, policy: Policy) -> tuple[str, ...]:
        """Of numbers that are those of the example, because the program has to know them, a sentence each."""
        closed = [leaf for leaf in self.leaves if leaf.choices is None and leaf.place in policy.closed]
        return tuple(f"{leaf.name} is fixed at {leaf.value!r}: {policy.why[leaf.place]}" for leaf in closed)

    def with_leaves(self, leaves: Sequence[Any]) -> Any:
        """The arguments with others in the place of their leaves."""
        return _replaced(self._given, iter(leaves))

    def name_of(self, tensor: torch.Tensor) -> str:
        """What a tensor of the program is called."""
        return self._names.get(id(tensor), "constant")


def _signature(function: Callable[..., Any], count: int) -> tuple[list[str], dict[str, Any]]:
    """Names for the positional arguments, and what annotations say of parameters."""
    target = function.forward if isinstance(function, torch.nn.Module) else function
    names = [f"args[{number}]" for number in range(count)]
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        return names, {}
    for number, parameter in enumerate(parameters[:count]):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD):
            break
        names[number] = parameter.name
    return names, {each.name: each.annotation for each in parameters if each.annotation is not each.empty}


def _choices(value: Any, choices: Sequence[Any] | None, annotation: Any) -> tuple[Any, ...] | None:
    if choices is not None:
        return tuple(choices)
    if isinstance(value, torch.Tensor):
        return None
    if typing.get_origin(annotation) is typing.Literal:
        return typing.get_args(annotation)
    if isinstance(value, enum.Enum):
        return tuple(type(value))
    if type(value) is bool:
        return (True, False)
    return None if type(value) in (int, float) else (value,)


def _few_enough(leaves: list[ArgumentLeaf], asked: Mapping[str, Any]) -> list[ArgumentLeaf]:
    """The leaves, with values as in the example where all combinations would be many and nobody asked for them."""
    combinations = math.prod(len(leaf.choices) for leaf in leaves if leaf.choices)
    if combinations <= _MOST_COMBINATIONS:
        return leaves
    return [
        leaf if leaf.choices is None or leaf.name in asked else dataclasses.replace(leaf, choices=(leaf.value,))
        for leaf in leaves
    ]


def _dynamic(value: Any, dimensions: Collection[int]) -> frozenset[int]:
    """Dimensions that differ from call to call: 0 and 1 are sizes like no others, and stay as they are."""
    if not isinstance(value, torch.Tensor):
        return frozenset()
    marked = frozenset(dimensions) | value.__dict__.get(DYNAMIC, frozenset())
    return frozenset(dim for dim in marked if value.shape[dim] >= SMALLEST)


def _replaced(value: Any, leaves: Iterator[Any]) -> Any:
    """A copy of containers, as `tree_of` walks them, with these leaves."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[_replaced(item, leaves) for item in value])
    if type(value) in (tuple, list):
        return type(value)(_replaced(item, leaves) for item in value)
    if type(value) is dict and all(isinstance(key, str | int) for key in value):
        return {key: _replaced(item, leaves) for key, item in value.items()}
    if isinstance(value, dict) and all(isinstance(key, str | int) for key in value):
        raise SmeltError("SM060", f"an argument is a {type(value).__qualname__}, which cannot be exported")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        copied = object.__new__(type(value))
        for each in dataclasses.fields(value):
            object.__setattr__(copied, each.name, _replaced(getattr(value, each.name), leaves))
        return copied
    return next(leaves)


def _names_of_tensors(function: Callable[..., Any]) -> dict[int, str]:
    owner = function if isinstance(function, torch.nn.Module) else getattr(function, "__self__", None)
    if not isinstance(owner, torch.nn.Module):
        return {}
    named = [*owner.named_parameters(remove_duplicate=False), *owner.named_buffers(remove_duplicate=False)]
    return {id(tensor): name for name, tensor in named}
