"""Outputs of a compiled graph: its results, its inputs, and views of both.

    FromResult(0), FromInput(1, (view,), alias=True)   →   (values[0], inputs[1].view(…))

PyTorch keeps a creation meta on each view and forbids in-place writes to some: outputs of `unbind`, or views made under
`no_grad`. Outputs are views, with that creation meta, where eager's are.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from smelt import _native
from smelt.base.torch_originals import BASE
from smelt.ir.call_contract import FromInput, FromResult, JointPlan, Output, Plain, SameAsOutput

_NOTHING: Mapping[int, Any] = {}


def detach_views(values: Sequence[Any]) -> list[Any]:
    """Results that are no views: compiled graphs run under `no_grad`, and autograd forbids in-place writes to views
    made there."""
    return [BASE.detach(value) if value._is_view() else value for value in values]


def finisher(plan: JointPlan) -> Callable[..., tuple[Any, ...]] | None:
    """A function from inputs and results to outputs, except those that are made already; None if the results are the
    outputs."""
    if plan.outputs == tuple(FromResult(index) for index in range(plan.results)) and not plan.mutated_inputs:
        return None
    outputs = plan.outputs

    def finish(inputs: Sequence[Any], values: Sequence[Any], there: Mapping[int, Any] = _NOTHING) -> tuple[Any, ...]:
        results = dict(there)
        return tuple([make_output(place, outputs, inputs, values, results) for place in range(len(outputs))])

    return finish


def make_output(
    place: int, outputs: Sequence[Output], inputs: Sequence[Any], values: Sequence[Any], results: dict[int, Any]
) -> Any:
    """The output at a position, with the outputs that it is a view of; all go into `made`."""
    if place not in results:
        output = outputs[place]
        if isinstance(output, Plain):
            results[place] = output.value
        elif isinstance(output, SameAsOutput):
            results[place] = make_output(output.index, outputs, inputs, values, results)
        elif output.through is not None:
            results[place] = _view_of(output, make_output(output.through, outputs, inputs, values, results))
        else:
            tensor = values[output.index] if isinstance(output, FromResult) else inputs[output.index]
            results[place] = _view_of(output, tensor) if output.alias else tensor
    return results[place]


def _view_of(output: FromResult | FromInput, tensor: torch.Tensor) -> torch.Tensor:
    return _alias(output, tensor) if output.creation_meta == "DEFAULT" else _alias_with_creation_meta(output, tensor)


def _alias(output: FromResult | FromInput, tensor: torch.Tensor) -> torch.Tensor:
    if output.detached or not output.steps:
        tensor = BASE.detach(tensor) if output.detached else BASE.view_as(tensor, tensor)
    for step in output.steps:
        tensor = step.apply(tensor)
    return tensor


def _alias_with_creation_meta(output: FromResult | FromInput, tensor: torch.Tensor) -> torch.Tensor:
    """A view with a creation meta: made under `no_grad`, or one of several outputs."""
    marks = torch._C._autograd.CreationMeta
    without_grad = output.creation_meta == "NO_GRAD_MODE"
    tensor = _native.unrecorded(_alias, output, tensor) if without_grad else _alias(output, tensor)
    if tensor._is_view():
        torch._C._autograd._set_creation_meta(tensor, getattr(marks, output.creation_meta))
    return tensor
