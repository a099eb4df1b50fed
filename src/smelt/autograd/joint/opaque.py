"""Derivatives of the program's own operators that look at data: one call in the backward, as in the forward.

    torch.library.register_autograd(                         backward:  grad_input, grad_weight =
        "mine::by_group", backward, setup_context=…)             smelt_derivatives.by_group(grad, input, weight, ends)
    def backward(ctx, grad):
        for end in ctx.ends.tolist(): …

A derivative runs on ghosts like everything else, and its operators fuse with those round it. One that cannot, because a
number is asked for, is noted down, and the graph is traced again with that derivative left whole: what `ctx` holds are
the operands of an operator that is defined for the purpose, whose code calls the derivative with a `ctx` of the same
contents.
"""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from torch._library.custom_ops import CustomOpDef

from smelt.autograd.joint.without_data import WithoutData
from smelt.base.errors import UnexpectedResult
from smelt.base.fast_dataclass import dataclass
from smelt.meta.ghost import GhostError

if TYPE_CHECKING:
    import torch
else:
    from smelt.base.torch_originals import pristine as torch

_library = torch.library.Library("smelt_derivatives", "FRAGMENT")  # type: ignore[no-untyped-call]
_known: dict[tuple[Any, ...], Callable[..., Any]] = {}  # operators by what they compute
_opaque: "WeakSet[type]" = WeakSet()  # `autograd.Function`s whose backward was found to need data
_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


class NeedsData(Exception):
    """A derivative has been noted down as opaque: trace the graph again."""


def watch(target: object, made: Any) -> None:
    """Watch over the derivative that a call of one of the program's operators has just written into autograd's graph.

    PyTorch gives such an operator a `torch.autograd.Function`, whose `ctx` is the node of the graph.
    """
    if not isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket | CustomOpDef):
        return
    for part in made if isinstance(made, tuple | list) else (made,):
        node = part.grad_fn if isinstance(part, torch.Tensor) else None
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            node._forward_cls = _Watched(node._forward_cls)


class _Watched:
    """In the place of an `autograd.Function` whose backward the engine is to call."""

    def __init__(self, kind: Any) -> None:
        self.kind: Any = kind.kind if isinstance(kind, _Watched) else kind
        self.vjp = torch.autograd.Function.vjp  # the engine looks which of the two the program wrote

    def backward(self, ctx: Any, *given: Any) -> Any:
        if self.kind in _opaque:
            return _call(self.kind, ctx, given)
        try:
            with WithoutData():
                return self.kind.backward(ctx, *given)
        except Exception as error:
            _contents(ctx)  # refused here, where leaving it whole would not do either
            _opaque.add(self.kind)
            raise NeedsData from error


@dataclass(frozen=True, slots=True)
class _Operand:
    """The place of a tensor among the operands, in what `ctx` holds."""

    place: int


def _contents(ctx: Any) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """The tensors that `ctx` holds, and its attributes with places in their stead."""
    tensors: list[torch.Tensor] = []

    def held(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return _Operand(len(tensors) - 1)
        if type(value) in (tuple, list, torch.Size):
            return (list if type(value) is list else tuple)(map(held, value))
        if type(value) is dict:
            return {key: held(each) for key, each in value.items()}
        if type(value) not in _PLAIN:  # a size that varies among them
            raise GhostError(f"the derivative of an operator needs data, and keeps a {type(value).__name__}")
        return value

    own = {name: value for name, value in vars(ctx).items() if name != "_forward_cls"}
    return tensors, held({**own, "saved_tensors": ctx.saved_tensors, "needs_input_grad": ctx.needs_input_grad})


def _call(kind: Any, ctx: Any, given: Sequence[Any]) -> tuple[Any, ...]:
    """The gradients, by an operator of its own. The engine passes each on to where that argument came from."""
    tensors, attributes = _contents(ctx)
    behind = [node._input_metadata[place] for node, place in ctx.next_functions if node is not None]
    needed = [place for place, needs in enumerate(ctx.needs_input_grad) if needs]
    if len(behind) != len(needed):
        raise GhostError("the derivative of an operator needs data, and arguments are lists")
    arrived = [each is not None for each in given]
    operands = [*(each for each in given if each is not None), *tensors]
    dtypes = [each.dtype for each in behind]
    call = _defined(_Derivative(kind, attributes, arrived, needed, dtypes), len(operands))
    made = call(*operands, *(tuple(each.shape) for each in behind))
    found = dict(zip(needed, made if isinstance(made, tuple) else (made,), strict=True))
    return tuple(found.get(place) for place in range(len(ctx.needs_input_grad)))


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
        left = iter(tensors)
        given = [next(left) if there else None for there in self.arrived]
        rest = list(left)

        def real(value: Any) -> Any:
            if isinstance(value, _Operand):
                return rest[value.place]
            if isinstance(value, tuple | list):
                return type(value)(map(real, value))
            return {key: real(each) for key, each in value.items()} if isinstance(value, dict) else value

        ctx = SimpleNamespace(**real(self.attributes))
        made = self.kind.backward(ctx, *given)
        made = made if isinstance(made, tuple) else (made,)
        found = [self._settled(made[place], size, dtype)
                 for place, size, dtype in zip(self.needed, sizes, self.dtypes, strict=True)]  # fmt: skip
        return tuple(found) if len(found) > 1 else found[0]

    def _settled(self, gradient: Any, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """As the engine makes a gradient fit its tensor, lying row by row and in memory of its own."""
        if not isinstance(gradient, torch.Tensor):
            raise UnexpectedResult(
                "SM023",
                f"{self.kind.__name__} yields no gradient for an argument that needs one",
                hint="let the operator's derivative yield zeros there, or take no gradient of that argument",
            )
        return torch.empty(size, dtype=dtype, device=gradient.device).copy_(gradient.sum_to_size(*size))

    def sizes(self, *operands: Any) -> Any:
        """The results on the meta device."""
        count = len(self.needed)
        made = [torch.empty(size, dtype=dtype, device="meta")
                for size, dtype in zip(operands[-count:], self.dtypes, strict=True)]  # fmt: skip
        return tuple(made) if count > 1 else made[0]


def _defined(derivative: _Derivative, operands: int) -> Callable[..., Any]:
    """An operator of PyTorch's dispatcher, so that every stage treats it like those of the program."""
    rest = derivative.attributes, derivative.arrived, derivative.needed, derivative.dtypes
    key = derivative.kind, repr(rest), operands
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
