"""A derivative that the program wrote itself (`torch.autograd.Function`), as a node of a torch-level graph.

The forward's operators are nodes like any other, under no_grad; one more node ties their results to the inputs by a
backward that is a graph of its own:

    y = Square.apply(x)        _set_grad_enabled(False); mul = x * x; _set_grad_enabled(True)
                               square = Square((mul,), (), x)        backward(grad, x): return grad * 2 * x

Whoever runs or traces the graph calls the node's target, and PyTorch's engine calls the backward.
"""

from collections.abc import Sequence
from dataclasses import field
from enum import Enum
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from smelt.base.coexist import leave_alone
from smelt.base.fast_dataclass import dataclass
from smelt.ir.graph import Traced, outputs


class SavedForBackward(Enum):
    """Where a tensor that the backward reads comes from."""

    INPUT = "input"
    OUTPUT = "output"
    OTHER = "other"  # computed on the way, or not an argument of the function
    NUMBER = "number"  # no tensor: a size, or a float that changes; it comes with the others


@dataclass(eq=False)
class Derivative:
    """`derivative(outputs, others, *inputs)` returns the outputs, of which `backward` is the derivative.

    The backward takes a gradient per output that is a tensor, then what is `kept`, and returns a gradient or None per
    input.
    """

    name: str
    backward: Traced
    kept: tuple[tuple[SavedForBackward, int], ...]
    constant: tuple[int, ...] = ()  # outputs without a derivative
    once: bool = False  # the backward itself cannot be differentiated
    materializes: bool = True  # no gradient is zeros; else there is one output with a gradient, and without it none
    _run: Any = field(default=None, init=False)
    _kind: Any = field(default=None, init=False)

    @property
    def __name__(self) -> str:
        return self.name

    @property
    def inner_graphs(self) -> dict[str, Traced]:
        return {"backward": self.backward}

    def __call__(self, outputs: tuple[Any, ...], others: tuple[Any, ...], *inputs: torch.Tensor) -> tuple[Any, ...]:
        if self._kind is None:  # PyTorch's errors name it
            self._kind = type(self.name, (_TiedOnce if self.once else _Tied,), {})
        results: tuple[Any, ...] = self._kind.apply(self, outputs, others, *inputs)
        return results

    def keep(self, outputs: Sequence[Any], others: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """What the backward reads."""
        places = {
            SavedForBackward.INPUT: inputs,
            SavedForBackward.OUTPUT: outputs,
            SavedForBackward.OTHER: others,
            SavedForBackward.NUMBER: others,
        }
        return [places[place][number] for place, number in self.kept]

    def gradients(self, cotangents: Sequence[Any], tensors: Sequence[torch.Tensor], numbers: Sequence[Any]) -> Any:
        """Run the backward."""
        if not self.materializes and all(each is None for each in cotangents):
            return (None,) * len(outputs(self.backward.graph))
        left = {False: iter(tensors), True: iter(numbers)}
        kept = [next(left[place is SavedForBackward.NUMBER]) for place, _ in self.kept]
        if self._run is None:
            self._run = self.backward.to_module().forward
        return self._run(*(each for each in cotangents if each is not None), *kept)


@leave_alone
class _Tied(torch.autograd.Function):
    """Outputs come in a tuple, in which autograd does not see them: they are returned as if made here."""

    @staticmethod
    def forward(ctx: Any, derivative: Derivative, outputs: Any, others: Any, *inputs: Any) -> tuple[Any, ...]:
        ctx.derivative = derivative
        ctx.set_materialize_grads(derivative.materializes)
        kept = derivative.keep(outputs, others, inputs)
        ctx.save_for_backward(*(each for each in kept if isinstance(each, torch.Tensor)))
        ctx.numbers = [each for each in kept if not isinstance(each, torch.Tensor)]
        ctx.mark_non_differentiable(*(outputs[number] for number in derivative.constant))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        return (None, None, None, *ctx.derivative.gradients(cotangents, ctx.saved_tensors, ctx.numbers))


class _TiedOnce(_Tied):
    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        return (None, None, None, *ctx.derivative.gradients(cotangents, ctx.saved_tensors, ctx.numbers))
