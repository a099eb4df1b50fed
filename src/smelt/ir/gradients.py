"""A backward inside a torch-level graph: `loss.backward()` and `torch.autograd.grad` as nodes of it.

    loss.backward()      backward = accumulable((loss,), (None,), (weight, bias), False)
                         weight.grad = backward[0]; bias.grad = backward[1]

Whoever runs the graph calls the node's target, and PyTorch's engine runs on whatever tensors there are: real ones, or
those of a recorder, which then has forward and backward in one graph.
"""

from collections.abc import Sequence

import torch

from smelt.base.sizes import is_dense

Tensors = Sequence[torch.Tensor]


def gradients(
    outputs: Tensors, tangents: Sequence[torch.Tensor | None], inputs: Tensors, retain: bool, create: bool
) -> tuple[torch.Tensor | None, ...]:
    """`torch.autograd.grad`; None where nothing arrives. Its own checks would import sympy, half a second and more."""
    given = tuple(
        torch.ones_like(output, memory_format=torch.preserve_format) if tangent is None else tangent
        for output, tangent in zip(outputs, tangents, strict=True)
    )
    found: tuple[torch.Tensor | None, ...] = torch.autograd.graph._engine_run_backward(
        tuple(outputs), given, retain, create, tuple(inputs), allow_unreachable=True, accumulate_grad=False
    )
    return found


def accumulable(
    outputs: Tensors, tangents: Sequence[torch.Tensor | None], inputs: Tensors, retain: bool
) -> tuple[torch.Tensor | None, ...]:
    """Gradients as they come to be in `.grad`: each a tensor of its own, in memory as its input is."""
    found = gradients(outputs, tangents, inputs, retain, False)
    with torch.no_grad():
        return tuple(
            None if gradient is None else _kept(gradient, leaf) for gradient, leaf in zip(found, inputs, strict=True)
        )


def _kept(gradient: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    """As the engine keeps a gradient: in the leaf's layout, or row-major where that has gaps or overlaps."""
    if not is_dense(leaf.shape, leaf.stride()):
        return gradient.clone(memory_format=torch.contiguous_format)
    if gradient.stride() == leaf.stride():
        return gradient.clone(memory_format=torch.preserve_format)
    made = torch.empty_strided(leaf.shape, leaf.stride(), dtype=gradient.dtype, device=gradient.device)
    return made.copy_(gradient)
