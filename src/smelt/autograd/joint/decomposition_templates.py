"""What the decomposition of an operator records, kept to be written again: layers of a model repeat each other.

    native_layer_norm(x, [64], w, b, 1e-05)      runs on fake tensors; mean, sub, mul, … are recorded, and kept by
                                                 (native_layer_norm, layouts of x, w, b, [64], 1e-05)
    native_layer_norm(y, [64], v, c, 1e-05)      the same nodes of y, v and c, without fake tensors between them

Decompositions of our own table do what follows from layouts (`is_by_layout`); one that makes tensors in another way
than by calling operators, or is given real ones or symbolic sizes, runs each time.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from smelt.base.fast_dataclass import dataclass
from smelt.ir.tensorspec import NodeSpec, TensorSpec, spec_of_value
from smelt.meta.fake_tensor import FakeTensor
from smelt.ops.decompose.table import is_by_layout
from smelt.symbolic.symnode import is_symbolic

Write = Callable[[Any, tuple[Any, ...], dict[str, Any], NodeSpec], tuple[fx.Node | None, ...]]


class _NoTemplate(Exception):
    """Something that a template does not hold."""


def call_of(
    func: Any, decomposition: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, list[FakeTensor]] | None:
    """All that a decomposition can tell from its arguments, and the tensors among them; None if it has to be run."""
    if not is_by_layout(decomposition):
        return None
    fakes: dict[int, FakeTensor] = {}
    try:
        key = (func, torch.is_grad_enabled(), _frozen(args, fakes), _frozen(tuple(kwargs.items()), fakes))
        hash(key)
    except (_NoTemplate, TypeError):
        return None
    return key, list(fakes.values())


def _frozen(value: Any, fakes: dict[int, FakeTensor]) -> Any:
    if isinstance(value, FakeTensor):
        if value._has_symbolic_sizes_strides:
            raise _NoTemplate
        fakes.setdefault(id(value), value)
        place = list(fakes).index(id(value))  # one tensor given twice is not two of a layout
        layout = (value.shape, value.stride(), value.storage_offset(), value.dtype, value.device, value.requires_grad)
        return (FakeTensor, place, layout)
    if isinstance(value, tuple | list):
        return (type(value), tuple([_frozen(item, fakes) for item in value]))
    if isinstance(value, torch.Tensor) or is_symbolic(value):
        raise _NoTemplate
    return (type(value), repr(value) if type(value) is float else value)  # -0.0 is not 0.0, and nan is itself


@dataclass(frozen=True, slots=True)
class _Place:
    """A tensor of a template: a result of one of its calls, or one that it is given (call 0)."""

    call: int
    part: int


@dataclass(frozen=True, slots=True)
class _TemplateCall:
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    spec: NodeSpec


@dataclass(frozen=True, slots=True)
class DecompositionTemplate:
    """Calls in order, with places for tensors, and what is returned."""

    calls: tuple[_TemplateCall, ...]
    result: Any
    specs: dict[_Place, TensorSpec]  # of the results that are returned

    def written(self, operand_nodes: Sequence[fx.Node], fakes: Sequence[FakeTensor], write: Write) -> Any:
        """Write the calls for other tensors, given as nodes and fake tensors; what the decomposition would return."""
        nodes: list[Sequence[fx.Node | None]] = [operand_nodes]
        for call in self.calls:
            kwargs = {name: _filled(value, nodes) for name, value in call.kwargs.items()}
            nodes.append(write(call.func, _filled(call.args, nodes), kwargs, call.spec))
        new_fakes: dict[_Place, FakeTensor] = {}

        def returned(value: Any) -> Any:
            if not isinstance(value, _Place):
                return type(value)(map(returned, value)) if isinstance(value, tuple | list) else value
            if value.call == 0:
                return fakes[value.part]
            if value not in new_fakes:
                new_fakes[value] = FakeTensor(self.specs[value], nodes[value.call][value.part])
            return new_fakes[value]

        return returned(self.result)


def _filled(value: Any, nodes: Sequence[Sequence[fx.Node | None]]) -> Any:
    kind = type(value)
    if kind is _Place:
        return nodes[value.call][value.part]
    if kind is tuple or kind is list:
        return kind([_filled(item, nodes) for item in value])
    return value


class TemplateLog:
    """What a decomposition does to the tensors it is given, on the thread that runs it."""

    def __init__(self, operands: Sequence[FakeTensor]) -> None:
        self._thread = threading.get_ident()
        self._given = operands
        self._calls: list[_TemplateCall] = []
        self._places = {id(fake): _Place(0, part) for part, fake in enumerate(operands)}
        self._specs: dict[_Place, TensorSpec] = {}
        self._is_whole = True

    def note(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """A call was recorded. Its tensors live as long as the recorder, so that no other has their ids."""
        if not self._is_whole or threading.get_ident() != self._thread:
            return
        try:
            named = {name: self._placed(value) for name, value in kwargs.items()}
            spec = spec_of_value(result) if func._schema.returns else ()
            self._calls.append(_TemplateCall(func, self._placed(args), named, spec))
        except _NoTemplate:
            self._is_whole = False
            return
        for part, item in enumerate(result if isinstance(result, tuple | list) else (result,)):
            if isinstance(item, FakeTensor):
                place = self._places[id(item)] = _Place(len(self._calls), part)
                self._specs[place] = TensorSpec.of(item)

    def _placed(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            place = self._places.get(id(value))
            if place is None:
                raise _NoTemplate
            return place
        if isinstance(value, tuple | list):
            kind = list if isinstance(value, list) else tuple
            return kind([self._placed(item) for item in value])
        if is_symbolic(value):
            raise _NoTemplate
        return value

    def template(self, result: Any) -> DecompositionTemplate | None:
        """What was done, if it all was done by calls; None if it was not, or the operator was left whole."""
        if not self._is_whole or result is NotImplemented:
            return None
        try:
            return DecompositionTemplate(tuple(self._calls), self._placed(result), self._specs)
        except _NoTemplate:
            return None
