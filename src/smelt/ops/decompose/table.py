"""The table of decompositions and how an entry gets into it.

A decomposition is a function of an operator's own arguments that does the same with simpler operators. `decomposes`
adds one together with a check: what comes out must have the shape, strides and dtype the operator itself would give, or
the call is left whole.

    @decomposes(aten.mse_loss.default, shape=_loss_shape, samples=_pairs)
    def mse_loss(x, target, reduction=1): ...

All else that is to be said of the operator is said there, too: the specs of its results, if PyTorch's meta kernel is
slow or wrong (`shape`), whether it raises for some values (`raises`), and calls to test it with (`samples`).
"""

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

from smelt.device.host_library import on_host
from smelt.ir.tensorspec import UnplacedSpec
from smelt.meta import facts
from smelt.meta.devices import result_device
from smelt.meta.fake_tensor import described
from smelt.meta.rules import describe
from smelt.meta.rules.lookup import has_rule
from smelt.meta.rules.strides import channels_last_stride
from smelt.symbolic.shapes import Shape, contiguous_stride

Table = dict[Any, Callable[..., Any]]
DECOMPOSITIONS: Table = {}
Samples = Callable[[torch.dtype], Iterable[tuple[Any, ...]]]  # arguments of calls with tensors of a dtype
SAMPLES: dict[Any, Samples] = {}

Function = TypeVar("Function", bound=Callable[..., Any])
_NARROW = frozenset({torch.bfloat16, torch.float16})


def decomposes(
    *ops: Any,
    table: Table = DECOMPOSITIONS,
    shape: Callable[..., Any] | None = None,
    raises: bool = False,
    samples: Samples | None = None,
) -> Callable[[Function], Function]:
    """Use the function for `ops`, wherever the result can be given the operator's own layout."""

    def enter(function: Function) -> Function:
        for op in ops:
            table[op] = checked(op, function)
        describes(*ops, shape=shape, raises=raises)
        if samples is not None:
            SAMPLES.update(dict.fromkeys(ops, samples))
        return function

    return enter


def describes(*ops: Any, shape: Callable[..., Any] | None = None, raises: bool = False) -> None:
    """Say what there is to say of operators that are not decomposed."""
    for op in ops:
        facts.add(op, shape, raises)


def rewrites(*ops: Any) -> Callable[[Function], Function]:
    """Use the function for `ops` as it is: views that are another view by a second name. A name is of all overloads."""

    def enter(function: Function) -> Function:
        for op in ops:
            DECOMPOSITIONS[op] = function
        return _by_layout(function)

    return enter


def _by_layout(function: Function) -> Function:
    """Mark a function that does the same for all tensors of the same layouts, and sees nothing else of them."""
    function.is_by_layout = True  # type: ignore[attr-defined]
    return function


def is_by_layout(function: Callable[..., Any]) -> bool:
    """Whether what a decomposition does follows from the layouts of its tensors and from its other arguments. It does
    not while `left_whole` calls an operator."""
    return getattr(function, "is_by_layout", False) and _whole.get() is None


def derives(*functions: Any) -> Callable[[Function], Function]:
    """Use the function for functions of `torch`, before autograd: it derives what this one does instead."""
    return rewrites(*functions)


def checked(op: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as an entry of the table: its results have the operator's own layout, or the call is left whole."""

    def decomposition(*args: Any, **kwargs: Any) -> Any:
        if _whole.get() is op:
            return NotImplemented
        expected = expected_of(op, args, kwargs)
        if expected is NotImplemented:
            return NotImplemented
        alone = isinstance(expected, UnplacedSpec)
        specs: tuple[UnplacedSpec | None, ...] = (expected,) if alone else tuple(expected)
        first_tensor = next((value for value in args if isinstance(value, torch.Tensor)), None)
        if any(each is not None and 0 in each.shape for each in (specs if first_tensor is None else (first_tensor,))):
            return NotImplemented
        result = function(*args, **kwargs)
        if result is NotImplemented:
            return NotImplemented
        if alone:
            return _conformed(result, expected)
        results = tuple(_conformed(value, spec) for value, spec in zip(result, specs, strict=True))
        return NotImplemented if any(value is NotImplemented for value in results) else results

    decomposition.__name__ = getattr(function, "__name__", str(op))
    return _by_layout(decomposition)


def expected_of(op: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    """What the operator itself returns, or `NotImplemented`. Rules of libraries are those of the CPU; PyTorch's meta
    kernels are asked about other devices, for which they are written, and about operators without a rule."""
    device = result_device(op, args, kwargs)
    specs = describe(op, args, kwargs, device)
    if specs is not NotImplemented or (on_host(device) and has_rule(op)):
        return specs
    with _disable_current_modes():  # the graph that is recorded is none of its business
        return described(op, args, kwargs, device)


def _conformed(value: Any, spec: UnplacedSpec | None) -> Any:
    """The value laid out as `spec` says, or `NotImplemented` where it cannot be. One that is wider is rounded: to which
    dtype moments are, differs by device."""
    if value is None:  # a gradient that nobody asked for, whatever a meta kernel says of it
        return None
    if spec is None:
        return NotImplemented
    if tuple(value.shape) != spec.shape:
        return NotImplemented
    if value.dtype is not spec.dtype:
        if not (value.dtype.is_floating_point and spec.dtype in _NARROW and value.dtype.itemsize > 2):
            return NotImplemented
        value = value.to(spec.dtype)
    if value.stride() == spec.stride:
        return value
    if spec.stride == contiguous_stride(spec.shape):
        return torch.ops.aten.clone.default(value, memory_format=torch.contiguous_format)
    if len(spec.shape) == 4 and spec.stride == channels_last_stride(spec.shape):
        return torch.ops.aten.clone.default(value, memory_format=torch.channels_last)
    return _laid_out(value, spec.stride)


def _laid_out(value: torch.Tensor, stride: Shape) -> Any:
    """The value in dense memory with the dims in any order, or `NotImplemented` where there would be gaps."""
    aten, shape = torch.ops.aten, tuple(value.shape)
    order = sorted(range(len(shape)), key=lambda dim: (-stride[dim], -shape[dim], dim))
    across = aten.permute.default(value, order)
    if contiguous_stride(tuple(across.shape)) != tuple(stride[dim] for dim in order):
        return NotImplemented
    back = [order.index(dim) for dim in range(len(order))]
    return aten.permute.default(aten.clone.default(across, memory_format=torch.contiguous_format), back)


def left_whole(op: Any, *args: Any) -> Any:
    """Call an operator inside its own decomposition: for what it raises, whatever is made of its results."""
    token = _whole.set(op)
    try:
        return op(*args)
    finally:
        _whole.reset(token)


_whole: ContextVar[Any] = ContextVar("_whole", default=None)  # the operator that `left_whole` is calling


def widen(value: torch.Tensor) -> torch.Tensor:
    """16-bit floats as float32: the operators compute so inside, and round once at the end."""
    return value.to(torch.float32) if value.dtype in _NARROW else value


def constant(value: float, like: torch.Tensor) -> torch.Tensor:
    """A number as a tensor without dimensions, for operators that take no numbers."""
    number: torch.Tensor = torch.ops.aten.full.default([], value, dtype=like.dtype, device=like.device)
    return number


def choose(condition: torch.Tensor, yes: torch.Tensor | float, no: torch.Tensor | float) -> torch.Tensor:
    """`where` with numbers on one side."""
    like = yes if isinstance(yes, torch.Tensor) else no
    assert isinstance(like, torch.Tensor)
    first = yes if isinstance(yes, torch.Tensor) else constant(yes, like)
    second = no if isinstance(no, torch.Tensor) else constant(no, like)
    chosen: torch.Tensor = torch.ops.aten.where.self(condition, first, second)
    return chosen
