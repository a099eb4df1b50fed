"""One call of an operator, eagerly and compiled: values, gradients, layouts, and what else a caller could notice.

    compare(torch.add, (x, y), {"alpha": 2})  → [] or ["output 0: strides (1, 3), eager has (3, 1)", ...]

Numbers are held to the design's rule: against the same call in float64, at most twice eager's error and a few ulp.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch

import smelt

ULPS = 4


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested tuples, lists and dicts, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def rebuilt(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """The same nesting with every tensor changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list):
        return [rebuilt(item, change) for item in value]
    if isinstance(value, tuple):
        items = [rebuilt(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, dict):
        return {key: rebuilt(item, change) for key, item in value.items()}
    return value


def fresh(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the layout and `requires_grad` of a sample's tensor."""
    if tensor.layout is not torch.strided or not tensor.numel() or 0 in tensor.stride():
        made = tensor.detach().clone()
    else:
        room = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        made = torch.zeros(max(room, 0), dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride())
        made.copy_(tensor.detach())
    return made.requires_grad_(tensor.requires_grad)


def in_float64(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype.is_floating_point:
        return tensor.detach().to(torch.float64).requires_grad_(tensor.requires_grad)
    if tensor.dtype.is_complex:
        return tensor.detach().to(torch.complex128).requires_grad_(tensor.requires_grad)
    return tensor.detach().clone()


class Outcome:
    """What one call gave: outputs, the inputs after it, gradients; or what it raised."""

    def __init__(self, call: Callable[..., Any], given: tuple[Any, ...], seed: int = 0) -> None:
        self.error: BaseException | None = None
        self.outputs: list[torch.Tensor] = []
        self.gradients: list[torch.Tensor | None] = []
        self.returned: Any = None
        torch.manual_seed(seed)
        try:
            self.returned = call(*given)
        except Exception as error:
            self.error = error
            return
        self.outputs = list(tensors_in(self.returned))
        self.inputs = list(tensors_in(given))
        chosen = [out for out in self.outputs if out.requires_grad and out.layout is torch.strided]
        wanted = [tensor for tensor in self.inputs if tensor.requires_grad and tensor.is_leaf]
        if not chosen or not wanted:
            return
        generator = torch.Generator().manual_seed(7)
        tangents = [_tangent(out, generator) for out in chosen]
        try:
            self.gradients = list(torch.autograd.grad(chosen, wanted, tangents, allow_unused=True))
        except Exception as error:
            self.error = error


def _tangent(out: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    dtype = torch.complex128 if out.dtype.is_complex else torch.float64
    # Rounded to bfloat16, so that every dtype is given the same numbers.
    made = torch.randn(out.shape, generator=generator, dtype=torch.complex64 if out.dtype.is_complex else torch.float32)
    if not out.dtype.is_complex:
        made = made.to(torch.bfloat16)
    return made.to(dtype).to(out.dtype)


def compare(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    backend: str = "llvm",
    values: bool = True,
    exact_reference: bool = True,
) -> list[str]:
    """What differs between eager and compiled; nothing, one hopes. Without `values` only metadata is looked at."""

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return function(*args, **kwargs)

    def given() -> tuple[Any, ...]:
        made: tuple[Any, ...] = rebuilt((args, copy.copy(kwargs)), fresh)
        return made

    eager = Outcome(call, given())
    mine = Outcome(smelt.compile(call, backend=backend), given())
    if eager.error is not None or mine.error is not None:
        if type(eager.error) is type(mine.error):
            return []
        return [f"raises {mine.error!r}, eager {eager.error!r}"]
    found: list[str] = []
    if type(eager.returned) is not type(mine.returned):
        found.append(f"returns {type(mine.returned)}, eager {type(eager.returned)}")
    if len(eager.outputs) != len(mine.outputs) or len(eager.gradients) != len(mine.gradients):
        return [*found, "another number of outputs or gradients"]
    reference = None
    if values and exact_reference:
        reference = Outcome(call, rebuilt((args, copy.copy(kwargs)), in_float64))
        if reference.error is not None or len(reference.outputs) != len(eager.outputs):
            reference = None
    for what in ("outputs", "inputs", "gradients"):
        expected, got = getattr(eager, what), getattr(mine, what)
        exact = getattr(reference, what) if reference is not None else [None] * len(expected)
        if len(exact) != len(expected):
            exact = [None] * len(expected)
        for number, (one, other, precise) in enumerate(zip(got, expected, exact, strict=True)):
            wrong = difference(one, other, precise, values=values, strides=what != "gradients")
            found += [f"{what[:-1]} {number}: {text}" for text in wrong]
    return found


def difference(
    mine: torch.Tensor | None,
    eager: torch.Tensor | None,
    exact: torch.Tensor | None,
    *,
    values: bool = True,
    strides: bool = True,
) -> list[str]:
    """How a tensor differs from eager's, in metadata or by more than the rule allows.

    Strides of gradients are nobody's business: what accumulates them gives them the layout of their parameter.
    """
    if mine is None or eager is None:
        return [] if mine is eager else [f"is {mine}, eager {eager}"]
    if mine.layout is not torch.strided or eager.layout is not torch.strided:
        if mine.layout is not eager.layout:
            return [f"layout {mine.layout}, eager {eager.layout}"]
        return difference(mine.to_dense(), eager.to_dense(), None, values=values)
    found = [
        f"{name} {one}, eager has {other}"
        for name, one, other in (
            ("shape", tuple(mine.shape), tuple(eager.shape)),
            ("dtype", mine.dtype, eager.dtype),
            ("requires_grad", mine.requires_grad, eager.requires_grad),
            ("conj", mine.is_conj(), eager.is_conj()),
            ("neg", mine.is_neg(), eager.is_neg()),
        )
        if one != other
    ]
    if strides and mine.stride() != eager.stride() and eager.numel():
        found.append(f"strides {mine.stride()}, eager has {eager.stride()} (shape {tuple(eager.shape)})")
    if found or not values:
        return found
    mine, eager = mine.detach().resolve_conj().resolve_neg(), eager.detach().resolve_conj().resolve_neg()
    if not (eager.dtype.is_floating_point or eager.dtype.is_complex):
        return [] if torch.equal(mine, eager) else [f"is {mine.flatten()[:8]}, eager {eager.flatten()[:8]}"]
    return _numbers(mine, eager, exact.detach() if exact is not None else None, cancelling=not strides)


def _numbers(mine: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor | None, *, cancelling: bool) -> list[str]:
    """Without an exact reference both are taken to be a little off. Gradients are differences (`cancelling`): theirs
    are ulps of the tensor's largest number, not of each."""
    if eager.dtype.is_complex:
        mine, eager = torch.view_as_real(mine), torch.view_as_real(eager)
        exact = torch.view_as_real(exact.resolve_conj()) if exact is not None and exact.dtype.is_complex else None
    epsilon = torch.finfo(eager.dtype).eps
    tiny = torch.finfo(eager.dtype).tiny
    mine, eager = mine.to(torch.float64), eager.to(torch.float64)
    usual = torch.isfinite(eager)
    odd = (mine != eager) & ~(torch.isnan(mine) & torch.isnan(eager)) & ~usual
    if odd.any():
        return [f"is {mine[odd][:4].tolist()} where eager is {eager[odd][:4].tolist()}"]
    if not usual.any():
        return []
    if exact is None or exact.shape != eager.shape or epsilon < 1e-12:
        scale = eager[usual].abs().max()
        allowed = (2**16 if epsilon < 1e-12 else 64) * epsilon * scale + ULPS * epsilon * eager.abs() + tiny
        reference = eager
    else:
        reference = torch.where(torch.isfinite(exact.to(torch.float64)) & usual, exact.to(torch.float64), eager)
        worst = (eager - reference).abs()[usual].max()
        size = reference.abs()
        allowed = 2 * worst + ULPS * epsilon * (size[usual].max() if cancelling else size) + tiny
    wrong = ((mine - reference).abs() > allowed) & usual
    wrong |= ~torch.isfinite(mine) & usual
    if not wrong.any():
        return []
    where = (mine - reference).abs().nan_to_num(torch.inf).masked_fill(~wrong, -1).argmax()
    pick = [values.flatten()[where].item() for values in (mine, eager, reference)]
    return [f"{int(wrong.sum())} of {wrong.numel()} wrong, worst: {pick[0]!r}, eager {pick[1]!r}, float64 {pick[2]!r}"]
