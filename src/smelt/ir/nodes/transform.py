"""A function transform of `torch.func` inside a torch-level graph: `grad`, `vmap`, `jvp` and their kin over a body.

    vmap(f, in_dims=(0, None))(x, w)        vmap = Transform("vmap", body, …)(x, w); y = vmap[0]
                                            body(t, w): mul = t * w; …; return (mul,)

Whoever runs the graph calls the node's target, and PyTorch transforms the body: by its batching rules, its derivatives
and its dual numbers, on whatever tensors there are. A recorder sees the operators that come of it, and nothing else.
"""

from dataclasses import field
from typing import Any

import torch

from smelt import _native
from smelt.base.fast_dataclass import dataclass
from smelt.ir.graph import Traced


@dataclass(eq=False)
class Transform:
    """`transform(*given)` returns tensors in a tuple. The first of `given` are those that the transformed function
    takes, in the order of the body's inputs; `options` are said at each kind."""

    kind: str
    body: Traced
    options: dict[str, Any]
    _run: Any = field(default=None, init=False)

    @property
    def __name__(self) -> str:
        return self.kind

    @property
    def inner_graphs(self) -> dict[str, Traced]:
        return {"body": self.body}

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        if self._run is None:
            self._run = self.body.to_module().forward
        # PyTorch's own Python is none of the program's: it is not looked at.
        results: tuple[Any, ...] = _native.suspended(_KINDS[self.kind], self._run, args, **self.options)
        return results


def _vmap(run: Any, args: tuple[Any, ...], in_dims: Any, out_dims: Any, randomness: str, chunk_size: Any) -> Any:
    """`in_dims` of the arguments, and `out_dims` of the results, one for each tensor."""
    dims = (*in_dims, *[None] * (len(args) - len(in_dims)))
    return torch.func.vmap(run, dims, out_dims, randomness, chunk_size=chunk_size)(*args)


def _grad(run: Any, operands: tuple[Any, ...], places: tuple[int, ...]) -> tuple[Any, ...]:
    """Gradients by the arguments at `places`, then the value, then what the body returns beside it."""

    def value(*args: Any) -> Any:
        first, *others = run(*args)
        return first, tuple(others)

    derivative: Any = torch.func.grad_and_value(value, places, has_aux=True)
    gradients, (first, others) = derivative(*operands)
    return (*gradients, first, *others)


def _vjp(run: Any, operands: tuple[Any, ...], places: tuple[int, ...], cotangents: int, differentiated: int) -> Any:
    """Cotangents of the arguments at `places`, from those of the first results, which are the last of what is given."""
    args, arriving = list(operands[: len(operands) - cotangents]), operands[len(operands) - cotangents :]

    def function(*primals: Any) -> Any:
        for place, primal in zip(places, primals, strict=True):
            args[place] = primal
        return tuple(run(*args))[:differentiated]

    pulling: Any = torch.func.vjp(function, *[args[place] for place in places])
    return pulling[1](tuple(arriving))


def _jvp(run: Any, operands: tuple[Any, ...], places: tuple[int, ...], differentiated: int) -> Any:
    """Results, then their tangents, then what the body returns beside them; the tangents of the arguments at `places`
    are the last of what is given."""
    args, arriving = list(operands[: len(operands) - len(places)]), operands[len(operands) - len(places) :]

    def function(*primals: Any) -> Any:
        for place, primal in zip(places, primals, strict=True):
            args[place] = primal
        results = tuple(run(*args))
        return results[:differentiated], results[differentiated:]

    primals = tuple(args[place] for place in places)
    pushed: Any = torch.func.jvp(function, primals, tuple(arriving), has_aux=True)
    outputs, tangents, others = pushed
    return (*outputs, *tangents, *others)


def _jacobian(
    run: Any, operands: tuple[Any, ...], transforms: tuple[str, ...], places: tuple[int, ...], differentiated: int
) -> tuple[Any, ...]:
    """Of each result, its derivatives by the arguments at `places`, by the `transforms`, of which the last is applied
    first; then what the body returns beside them."""

    def function(*args: Any) -> Any:
        results = tuple(run(*args))
        return results[:differentiated], results[differentiated:]

    transformed: Any = function
    for name in reversed(transforms):
        transformed = getattr(torch.func, name)(transformed, places, has_aux=True)
    derivatives, others = transformed(*operands)
    return (*_flat(derivatives), *others)


def _flat(value: Any) -> list[Any]:
    return [each for item in value for each in _flat(item)] if isinstance(value, tuple) else [value]


_KINDS: dict[str, Any] = {"vmap": _vmap, "grad": _grad, "vjp": _vjp, "jvp": _jvp, "jacobian": _jacobian}
