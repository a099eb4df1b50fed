"""A graph inside the graph: for code that runs later, such as a backward, or a second time.

Tensors of the outer graph that it uses become its inputs, in the order in which it meets them:

    backward(ctx, grad): return grad * ctx.x      graph(grad, x): mul = grad * x; return (mul,)      lifted: x
"""

from dataclasses import replace
from typing import Any

import torch
from torch import fx

from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.source import Source
from smelt.capture.model.values import Number, Tensor
from smelt.capture.tape.tape import Tape
from smelt.ir.nodes.ambient import Ambient
from smelt.ir.tensorspec import NumberSpec, TensorSpec, set_spec, tensor_spec
from smelt.meta.devices import current_index
from smelt.meta.fake_tensor import FakeTensor
from smelt.meta.nonleaf import computed
from smelt.symbolic.symnode import meaning


class Subtape(Tape):
    """A tape for code that is handed all it works on.

    `lifted` are the outer graph's tensors that it uses, by id, and its numbers that change, by what they mean.
    """

    def __init__(self, ambient: Ambient) -> None:
        super().__init__(ambient)
        self._inner: dict[Any, fx.Node] = {}

    def argument(self, name: str, spec: TensorSpec, requires_grad: bool = False) -> Tensor:
        """An input that is handed in when the graph runs."""
        node = self._placeholder(name)
        spec = replace(spec, requires_grad=requires_grad)
        set_spec(node, spec)
        value = Tensor(node, _computed_fake(spec) if requires_grad else FakeTensor(spec))
        self._by_fake[id(value.fake)] = value
        return value

    def input(self, tensor: torch.Tensor, source: Source, shape: tuple[Any, ...], stride: tuple[Any, ...]) -> Tensor:
        raise Unsupported("B017", f"{source.text}, a tensor that only it uses")

    def _fake(self, value: Tensor | Number) -> Any:
        if isinstance(value, Tensor) and self.node_of(value).graph is not self.graph:
            self._lift(value)
        return super()._fake(value)

    def _node(self, value: Tensor | Number) -> fx.Node:
        if isinstance(value, Tensor) and self.node_of(value).graph is self.graph:
            return value.node
        return self._lift(value)

    def _lift(self, value: Tensor | Number) -> fx.Node:
        key: Any = id(value) if isinstance(value, Tensor) else meaning(value.symbolic)
        if key not in self.lifted:
            self.lifted[key] = value
            self._inner[key] = node = self._placeholder(value.node.name if isinstance(value, Tensor) else "number")
            set_spec(node, tensor_spec(value.node) if isinstance(value, Tensor) else NumberSpec(key))
        return self._inner[key]

    def inner(self, value: Tensor) -> fx.Node:
        """The node that yields a tensor of either graph in this one."""
        return self._node(value)

    def written_outside(self) -> list[Tensor]:
        """Tensors of the outer graph that were written; they are as they were before this is asked."""
        written = [(value, before) for value, before in self._rewritten if id(value) in self.lifted]
        for value, before in reversed(written):
            value.node = before
        return [value for value, _ in written]


def _computed_fake(spec: TensorSpec) -> Any:
    """One that is no leaf."""
    with torch.enable_grad():
        fake: Any = computed(FakeTensor(spec), lambda: FakeTensor(replace(spec, requires_grad=False)))
    return fake


class LaterTape(Subtape):
    """For code that runs when the engine calls it: in which grad mode, and on which thread, is not known."""

    def set_ambient(self, ambient: Ambient) -> None:
        if ambient.grad != self.ambient.grad:
            raise Unsupported("B013", "a grad mode")
        super().set_ambient(ambient)

    def rely_on_grad_mode(self) -> None:
        raise Unsupported("B013", "a grad mode")

    def current_device(self, kind: str) -> int:
        if current_index(kind) is not None:
            raise Unsupported("B013", f"the current {kind} device, which is another on each thread of the engine")
        return super().current_device(kind)


class RegionTape(Subtape):
    """For code that runs where it stands, and perhaps once more."""

    def __init__(self, outer: Tape) -> None:
        super().__init__(outer.ambient)
        self._outer = outer
        self.regions = outer.regions
        self.inferred = outer.inferred
        self.methods = outer.methods
        self.current_devices = outer.current_devices

    def enter(self, ambient: Ambient) -> None:
        """Who runs the code does so in this state of the process."""
        self._entry = self._synced_ambient = ambient
        self._before = (ambient, ambient, self.effects.collectives)
        self.set_ambient(ambient)

    def input(self, tensor: torch.Tensor, source: Source, shape: tuple[Any, ...], stride: tuple[Any, ...]) -> Tensor:
        return self._outer.input(tensor, source, shape, stride)
