"""Derivatives of custom operators that depend on data: one opaque call in the backward, as in the forward.

    torch.library.register_autograd(                         backward:  grad_input, grad_weight =
        "mine::by_group", backward, setup_context=…)             smelt_derivatives.by_group(grad, input, weight, ends)
    def backward(ctx, grad):
        for end in ctx.ends.tolist(): …

A derivative runs on fake tensors like everything else, and its operators fuse with those around it. One that asks for
data is noted, and the graph is traced once more with that derivative opaque: an operator is defined for it whose
operands are the tensors in `ctx`, and whose code calls the derivative with a `ctx` of the same contents.
"""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from torch._library.custom_ops import CustomOpDef

from smelt.autograd.joint.without_data import WithoutData
from smelt.base.errors import UnexpectedResult
from smelt.base.fast_dataclass import dataclass
from smelt.meta.fake_tensor import FakeTensorError

if TYPE_CHECKING:
    import torch
else:
    from smelt.base.torch_originals import pristine as torch

_library = torch.library.Library("smelt_derivatives", "FRAGMENT")  # type: ignore[no-untyped-call]
_known: dict[tuple[Any, ...], Callable[..., Any]] = {}  # operators by what they compute
_opaque: "WeakSet[type]" = WeakSet()  # `autograd.Function`s whose backward was found to need data
_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


class NeedsData(Exception):
    """A derivative was marked as opaque: retrace the graph."""


def watch(target: object, result: Any) -> None:
    """Wrap the derivative that a call of a custom operator has just put into autograd's graph.

    PyTorch gives such an operator a `torch.autograd.Function`, whose `ctx` is the node of the graph.
    """
    if not isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket | CustomOpDef):
        return
    for part in result if isinstance(result, tuple | list) else (result,):
        node = part.grad_fn if isinstance(part, torch.Tensor) else None
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            node._forward_cls = _Watched(node._forward_cls)


class _Watched:
    """Wraps an `autograd.Function` whose backward the engine will call."""

    def __init__(self, kind: Any) -> None:
        self.kind: Any = kind.kind if isinstance(kind, _Watched) else kind
        self.vjp = torch.autograd.Function.vjp  # the engine checks which of the two was overridden

    def backward(self, ctx: Any, *tangents: Any) -> Any:
        if self.kind in _opaque:
            return _call(self.kind, ctx, tangents)
        try:
            with WithoutData():
                return self.kind.backward(ctx, *tangents)
        except Exception as error:
            _contents(ctx)  # raises if it cannot be opaque either
            _opaque.add(self.kind)
            raise NeedsData from error


@dataclass(frozen=True, slots=True)
class _Operand:
    """The position of a tensor among the operands, in place of the tensor in `ctx`."""

    place: int


def _contents(ctx: Any) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """The tensors in `ctx`, and its attributes with `_Operand` in place of each tensor."""
    tensors: list[torch.Tensor] = []

    def held(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return _Operand(len(tensors) - 1)
        if type(value) in (tuple, list, torch.Size):
            return (list if type(value) is list else tuple)(map(held, value))
        if type(value) is dict:
            return {key: held(each) for key, each in value.items()}
        if type(value) not in _PLAIN:  # a dynamic size, for one
            kind = type(value).__name__
            raise FakeTensorError(f"the derivative of an operator depends on data, and its ctx holds a {kind}")
        return value

    attributes = {name: value for name, value in vars(ctx).items() if name != "_forward_cls"}
    return tensors, held({**attributes, "saved_tensors": ctx.saved_tensors, "needs_input_grad": ctx.needs_input_grad})


def _call(kind: Any, ctx: Any, tangents: Sequence[Any]) -> tuple[Any, ...]:
    """The gradients, computed by one opaque operator."""
    tensors, attributes = _contents(ctx)
    behind = [node._input_metadata[place] for node, place in ctx.next_functions if node is not None]
    needed = [place for place, needs in enumerate(ctx.needs_input_grad) if needs]
    if len(behind) != len(needed):
        raise FakeTensorError("the derivative of an operator depends on data, and some arguments are lists")
    arrived = [each is not None for each in tangents]
    operands = [*(each for each in tangents if each is not None), *tensors]
    dtypes = [each.dtype for each in behind]
    call = _defined(_Derivative(kind, attributes, arrived, needed, dtypes), len(operands))
    results = call(*operands, *(tuple(each.shape) for each in behind))
    by_place = dict(zip(needed, results if isinstance(results, tuple) else (results,), strict=True))
    return tuple(by_place.get(place) for place in range(len(ctx.needs_input_grad)))


@dataclass(frozen=True, slots=True)
class _Derivative:
    """A derivative as a function of tensors, then of the sizes its gradients have."""

    kind: Any
    attributes: dict[str, Any]
    arrived: list[bool]
    needed: list[int]
    dtypes: list[torch.dtype]

    def __call__(self, *operands: Any) -> Any:
        tensors, sizes = operands[: -len(self.needed)], operands[-len(self.needed) :]
        remaining = iter(tensors)
        tangents = [next(remaining) if there else None for there in self.arrived]
        saved = list(remaining)

        def real(value: Any) -> Any:
            if isinstance(value, _Operand):
                return saved[value.place]
            if isinstance(value, tuple | list):
                return type(value)(map(real, value))
            return {key: real(each) for key, each in value.items()} if isinstance(value, dict) else value

        ctx = SimpleNamespace(**real(self.attributes))
        returned = self.kind.backward(ctx, *tangents)
        returned = returned if isinstance(returned, tuple) else (returned,)
        gradients = [self._fitted(returned[place], size, dtype)
                 for place, size, dtype in zip(self.needed, sizes, self.dtypes, strict=True)]  # fmt: skip
        return tuple(gradients) if len(gradients) > 1 else gradients[0]

    def _fitted(self, gradient: Any, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A gradient summed and cast to fit its tensor, as the engine does; contiguous, in its own memory."""
        if not isinstance(gradient, torch.Tensor):
            raise UnexpectedResult(
                "SM023",
                f"{self.kind.__name__} returns no gradient for an argument that requires grad",
                hint="return zeros there from the operator's derivative, or detach that argument",
            )
        return torch.empty(size, dtype=dtype, device=gradient.device).copy_(gradient.sum_to_size(*size))

    def sizes(self, *operands: Any) -> Any:
        """The results on the meta device."""
        count = len(self.needed)
        results = [torch.empty(size, dtype=dtype, device="meta")
                for size, dtype in zip(operands[-count:], self.dtypes, strict=True)]  # fmt: skip
        return tuple(results) if count > 1 else results[0]


def _defined(derivative: _Derivative, operands: int) -> Callable[..., Any]:
    """Define an operator with PyTorch's dispatcher, so that every stage treats it like other custom operators."""
    saved = derivative.attributes, derivative.arrived, derivative.needed, derivative.dtypes
    key = derivative.kind, repr(saved), operands
    if key not in _known:
        name = f"{derivative.kind.__name__.removeprefix('GeneratedBackwardFor_')}_{len(_known)}"
        results = len(derivative.needed)
        takes = [f"Tensor t{number}" for number in range(operands)]
        takes += [f"SymInt[] s{number}" for number in range(results)]
        yields = ", ".join(["Tensor"] * results)
        _library.define(f"{name}({', '.join(takes)}) -> {f'({yields})' if results > 1 else yields}")  # type: ignore[no-untyped-call]
        _library.impl(name, derivative, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
        _library.impl(name, derivative.sizes, "Meta")  # type: ignore[no-untyped-call]
        _known[key] = getattr(torch.ops.smelt_derivatives, name).default
    return _known[key]
