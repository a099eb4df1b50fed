"""Outputs of a compiled graph, made of what it computed and of its inputs.

    FromResult(0), FromInput(1, (view,), alias=True)   →   (values[0], inputs[1].view(…))

PyTorch remembers of a view how it was made, and lets nobody write some: one of several, or one made without gradients.
Outputs are views, and such views, where eager's are.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from smelt import _native
from smelt.base.torch_originals import BASE
from smelt.ir.call_contract import FromInput, FromResult, JointPlan, Output, Plain, SameAsOutput

_NOTHING: Mapping[int, Any] = {}


def own_tensors(values: Sequence[Any]) -> list[Any]:
    """Results as tensors of their own: compiled graphs run without gradients, and views made there may not be written
    with gradients."""
    return [BASE.detach(value) if value._is_view() else value for value in values]


def finisher(plan: JointPlan) -> Callable[..., tuple[Any, ...]] | None:
    """What makes outputs of inputs and results, but for those that are there already; None if the results are the
    outputs."""
    if plan.outputs == tuple(FromResult(index) for index in range(plan.results)) and not plan.mutated_inputs:
        return None
    outputs = plan.outputs

    def finish(inputs: Sequence[Any], values: Sequence[Any], there: Mapping[int, Any] = _NOTHING) -> tuple[Any, ...]:
        made = dict(there)
        return tuple([make_output(place, outputs, inputs, values, made) for place in range(len(outputs))])

    return finish


def make_output(
    place: int, outputs: Sequence[Output], inputs: Sequence[Any], values: Sequence[Any], made: dict[int, Any]
) -> Any:
    """The output at a place, with those that it is made of; they go into `made`."""
    if place not in made:
        output = outputs[place]
        if isinstance(output, Plain):
            made[place] = output.value
        elif isinstance(output, SameAsOutput):
            made[place] = make_output(output.index, outputs, inputs, values, made)
        elif output.through is not None:
            made[place] = _seen(output, make_output(output.through, outputs, inputs, values, made))
        else:
            tensor = values[output.index] if isinstance(output, FromResult) else inputs[output.index]
            made[place] = _seen(output, tensor) if output.alias else tensor
    return made[place]


def _seen(output: FromResult | FromInput, tensor: torch.Tensor) -> torch.Tensor:
    return _alias(output, tensor) if output.creation_meta == "DEFAULT" else _marked_alias(output, tensor)


def _alias(output: FromResult | FromInput, tensor: torch.Tensor) -> torch.Tensor:
    if output.detached or not output.steps:
        tensor = BASE.detach(tensor) if output.detached else BASE.view_as(tensor, tensor)
    for step in output.steps:
        tensor = step.apply(tensor)
    return tensor


def _marked_alias(output: FromResult | FromInput, tensor: torch.Tensor) -> torch.Tensor:
    """A view that PyTorch is told how it was made: without gradients, or as one of several."""
    marks = torch._C._autograd.CreationMeta
    without_grad = output.creation_meta == "NO_GRAD_MODE"
    tensor = _native.unrecorded(_alias, output, tensor) if without_grad else _alias(output, tensor)
    if tensor._is_view():
        torch._C._autograd._set_creation_meta(tensor, getattr(marks, output.creation_meta))
    return tensor
