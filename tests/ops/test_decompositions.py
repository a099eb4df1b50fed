"""Every decomposition against the operator it takes apart, on real tensors.

The same spec; error against float64 at most twice the operator's own, plus a few ulp; NaN and infinities where it has
them. What it is made of is rounded once each, as if computed exactly: PyTorch's `tanh` is no part of mish's formula.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import smelt
from smelt.ops.decompose import images, norms, table
from smelt.ops.decompositions import DECOMPOSITIONS
from tests.fuse.running import traced
from tests.ops_db.accuracy import Change, Mode, eager_errors
from tests.ops_db.comparing import changed, difference
from tests.targets import seeded

aten = torch.ops.aten
Tensor = torch.Tensor
DTYPES = (torch.float32, torch.float64, torch.bfloat16)


class _RoundedOnce(TorchDispatchMode):
    """Operators on float32 compute in float64 and round their results."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = func(*args, **(kwargs or {}))
        if not isinstance(plain, Tensor) or plain.dtype is not torch.float32 or func._schema.name in _MOVES:
            return plain
        args, kwargs = changed((args, kwargs or {}), lambda tensor: tensor, torch.float64)
        return torch.empty_like(plain).copy_(func(*args, **kwargs))


_MOVES = frozenset(f"aten::{name}" for name in ("view", "_to_copy", "detach", "alias", "lift_fresh"))


def _extremes(dtype: torch.dtype) -> Tensor:
    values = [0.0, -0.0, 1e-30, -1e-8, 0.3, -0.49, 0.5, 1.0, -1.0, 2.99, 3.0, -3.0, 3.01, 6.0, 19.9, 20.1, -20.0, 88.0]
    values += [-88.0, 100.0, -100.0, 1e4, -1e4, float("inf"), float("-inf"), float("nan")]
    return torch.tensor(values, dtype=dtype)


def _normal(*shape: int, dtype: torch.dtype, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    return (torch.randn(shape) * scale + shift).to(dtype)


def _pointwise(
    *options: Any, **named: Any
) -> Callable[[torch.dtype], Iterator[tuple[tuple[Any, ...], dict[str, Any]]]]:
    def calls(dtype: torch.dtype) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
        # So many that they fill whole vectors: for nan, PyTorch's own scalar loops over the rest answer otherwise.
        yield (_extremes(dtype).repeat(64), *options), named
        yield (_normal(5, 7, dtype=dtype, scale=4.0), *options), named
        yield (_normal(7, 5, dtype=dtype, scale=4.0).t(), *options), named
        yield (_normal(5, 14, dtype=dtype)[:, ::2], *options), named
        yield (_normal(1, 7, dtype=dtype).expand(5, 7), *options), named
        yield (_normal(2, 3, 4, 5, dtype=dtype).contiguous(memory_format=torch.channels_last), *options), named
        yield (torch.tensor(0.7, dtype=dtype), *options), named

    return calls


def _with_gradient(
    *options: Any, **named: Any
) -> Callable[[torch.dtype], Iterator[tuple[tuple[Any, ...], dict[str, Any]]]]:
    def calls(dtype: torch.dtype) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
        for (x,), _ in _pointwise()(dtype):
            yield (_normal(*x.shape, dtype=dtype), x, *options), named
        column_major = _normal(7, 5, dtype=dtype).t()
        yield (column_major, _normal(7, 5, dtype=dtype).t(), *options), named
        yield (_normal(5, 7, dtype=dtype), column_major, *options), named

    return calls


def _chain(*parts: Callable[..., Any]) -> Callable[[torch.dtype], Iterator[Any]]:
    return lambda dtype: (call for part in parts for call in part(dtype))


def _softmax(backward: bool, log: bool) -> Callable[[torch.dtype], Iterator[Any]]:
    def calls(dtype: torch.dtype) -> Iterator[Any]:
        rows = [
            _normal(4, 9, dtype=dtype, scale=5.0),
            _normal(9, 4, dtype=dtype).t(),
            _normal(2, 3, 4, dtype=dtype, scale=300.0),
        ]
        masked = _normal(3, 5, dtype=dtype)
        masked[0] = float("-inf")
        masked[1, 2:] = float("-inf")
        masked[2, 1] = float("inf")
        for x in (*rows, masked, torch.tensor(2.0, dtype=dtype)):
            for dim in {-1, 0}:
                if not backward:
                    yield (x, dim, False), {}
                elif torch.isfinite(x).all():
                    out = torch.log_softmax(x, dim) if log else torch.softmax(x, dim)
                    yield (_normal(*x.shape, dtype=dtype), out, dim, dtype), {}

    return calls


def _layer_norm(backward: bool) -> Callable[[torch.dtype], Iterator[Any]]:
    def calls(dtype: torch.dtype) -> Iterator[Any]:
        for x, inner in (
            (_normal(6, 33, dtype=dtype, shift=3.0), [33]),
            (_normal(2, 3, 8, dtype=dtype, scale=20.0), [8]),
            (_normal(2, 3, 8, dtype=dtype), [3, 8]),
            (_normal(3, 2, 8, dtype=dtype).transpose(0, 1), [8]),
            (_normal(8, dtype=dtype), [8]),
            (torch.full((2, 8), 3.0, dtype=dtype), [8]),
        ):
            for parameters in (dtype, torch.float32, None):
                if parameters is torch.float32 and dtype is torch.float64:
                    continue
                weight = None if parameters is None else _normal(*inner, dtype=parameters, shift=1.0)
                bias = None if parameters is None else _normal(*inner, dtype=parameters)
                if not backward:
                    yield (x, inner, weight, bias, 1e-5), {}
                elif weight is not None:
                    _, mean, rstd = aten.native_layer_norm.default(x, inner, weight, bias, 1e-5)
                    yield (_normal(*x.shape, dtype=dtype), x, inner, mean, rstd, weight, bias, [True, True, True]), {}
                    yield (_normal(*x.shape, dtype=dtype), x, inner, mean, rstd, weight, bias, [True, False, False]), {}

    return calls


def _rms_norm(dtype: torch.dtype) -> Iterator[Any]:
    for (x, inner, weight, *_), _ in _layer_norm(backward=False)(dtype):
        if weight is None or weight.dtype is dtype:  # PyTorch takes what is mixed apart itself
            yield (x, inner, weight, 1e-5), {}
            yield (x, inner, weight, None), {}


def _group_norm(backward: bool) -> Callable[[torch.dtype], Iterator[Any]]:
    def calls(dtype: torch.dtype) -> Iterator[Any]:
        for shape, groups in (((2, 6, 5, 4), 3), ((3, 4, 7), 2), ((2, 4), 1)):
            x = _normal(*shape, dtype=dtype, shift=1.0)
            n, c, inner = shape[0], shape[1], x.numel() // (shape[0] * shape[1])
            for weight in (None, _normal(c, dtype=dtype)):
                bias = None if weight is None else _normal(c, dtype=dtype)
                if not backward:
                    yield (x, weight, bias, n, c, inner, groups, 1e-5), {}
                else:
                    _, mean, rstd = aten.native_group_norm.default(x, weight, bias, n, c, inner, groups, 1e-5)
                    mask = [True, weight is not None, weight is not None]
                    yield (_normal(*shape, dtype=dtype), x, mean, rstd, weight, n, c, inner, groups, mask), {}

    return calls


def _batch_norm(kind: str, legit: bool = False) -> Callable[[torch.dtype], Iterator[Any]]:
    def calls(dtype: torch.dtype) -> Iterator[Any]:
        for shape in ((4, 3, 5, 6), (8, 3), (4, 3, 7)):
            x = _normal(*shape, dtype=dtype, shift=2.0)
            weight, bias = _normal(3, dtype=dtype), _normal(3, dtype=dtype)
            mean, var = _normal(3, dtype=dtype), _normal(3, dtype=dtype).abs() + 0.5
            for scale, shift in ((weight, bias), (None, None)):
                if kind == "no_stats":
                    yield (x, scale, shift, True, 0.1, 1e-5), {}
                elif kind == "functional":
                    for training in (True, False):
                        yield (x, scale, shift, mean, var, training, 0.1, 1e-5), {}
                elif kind == "evaluation":
                    yield (x, scale, shift, mean, var, False, 0.1, 1e-5), {}
                    if not legit:
                        yield (x, scale, shift, None, None, True, 0.1, 1e-5), {}
                else:
                    for training in (True, False):
                        _, saved, inverse = aten._native_batch_norm_legit.no_stats(x, scale, shift, True, 0.1, 1e-5)
                        mask = [True, scale is not None, scale is not None]
                        grad = _normal(*shape, dtype=dtype)
                        yield (grad, x, scale, mean, var, saved, inverse, training, 1e-5, mask), {}

    return calls


def _reduction(*variants: dict[str, Any]) -> Callable[[torch.dtype], Iterator[Any]]:
    def calls(dtype: torch.dtype) -> Iterator[Any]:
        for x in (
            _normal(4, 9, dtype=dtype, shift=10.0),
            _normal(9, 4, dtype=dtype).t(),
            _normal(2, 3, 4, dtype=dtype),
        ):
            for dims in ([0], [-1], [0, 1], None):
                for variant in variants:
                    yield (x, dims), variant

    return calls


def _logsumexp(dtype: torch.dtype) -> Iterator[Any]:
    infinite = torch.tensor([[float("inf"), 1.0], [float("-inf"), float("-inf")], [float("nan"), 1.0]], dtype=dtype)
    for x in (_normal(4, 9, dtype=dtype, scale=200.0), _normal(9, 4, dtype=dtype).t(), infinite):
        for keepdim in (False, True):
            yield (x, [1], keepdim), {}
            yield (x, [0, 1], keepdim), {}


def _repeated(dtype: torch.dtype) -> Iterator[Any]:
    for times in ([2, 1], [1, 3], [2, 2, 3], [1, 1]):
        yield (_normal(3, 4, dtype=dtype), times), {}
        yield (_normal(4, 3, dtype=dtype).t(), times), {}
    yield (_normal(1, dtype=dtype)[0], [3]), {}


def _by_class(*, pixels: bool, backward: bool) -> Callable[[torch.dtype], Iterator[Any]]:
    def calls(dtype: torch.dtype) -> Iterator[Any]:
        forward = aten.nll_loss2d_forward.default if pixels else aten.nll_loss_forward.default
        x = _normal(3, 5, 2, 2, dtype=dtype) if pixels else _normal(7, 5, dtype=dtype)
        target = torch.randint(0, 5, (3, 2, 2) if pixels else (7,))
        target.view(-1)[2] = -1
        for reduction in (0, 1, 2):
            for weight in (None,) if pixels else (None, torch.rand(5).to(dtype)):
                loss, total = forward(x, target, weight, reduction, -1)
                if backward:
                    yield (_normal(*loss.shape, dtype=dtype), x, target, weight, reduction, -1, total), {}
                else:
                    yield (x, target, weight, reduction, -1), {}

    return calls


def _vector_norm(dtype: torch.dtype) -> Iterator[Any]:
    for order in (1, 2, float("inf"), float("-inf")):
        for dim in (None, [0], [-1]):
            yield (_normal(4, 9, dtype=dtype), order, dim, False), {}


def _loss(
    *options: Any, backward: bool = False, probabilities: bool = False, extra: int = 0
) -> Callable[..., Iterator[Any]]:
    def calls(dtype: torch.dtype) -> Iterator[Any]:
        for reduction in (0, 1, 2):
            x, target = _normal(4, 9, dtype=dtype), _normal(4, 9, dtype=dtype)
            if probabilities:
                x, target = torch.sigmoid(x), torch.sigmoid(target)
            between = [None] * extra
            if backward:
                grad = _normal(*(() if reduction else (4, 9)), dtype=dtype)
                yield (grad, x, target, *between, reduction, *options), {}
            else:
                yield (x, target, *between, reduction, *options), {}

    return calls


def _weighted_logits(dtype: torch.dtype) -> Iterator[Any]:
    x, target = _normal(4, 9, dtype=dtype, scale=30.0), torch.rand(4, 9).to(dtype)
    weight, positive = torch.rand(4, 9).to(dtype), torch.rand(4, 9).to(dtype) + 0.5
    for reduction in (0, 1, 2):
        yield (x, target, weight, positive, reduction), {}


def _lerp(tensor: bool) -> Callable[[torch.dtype], Iterator[Any]]:
    def calls(dtype: torch.dtype) -> Iterator[Any]:
        start, end = _normal(4, 9, dtype=dtype), _normal(4, 9, dtype=dtype)
        for weight in (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, -0.7):
            yield (start, end, torch.full((4, 9), weight, dtype=dtype) if tensor else weight), {}

    return calls


def _products(batched: bool) -> Callable[[torch.dtype], Iterator[Any]]:
    def calls(dtype: torch.dtype) -> Iterator[Any]:
        lead = (3,) if batched else ()
        a, b = _normal(*lead, 4, 6, dtype=dtype), _normal(*lead, 6, 5, dtype=dtype)
        for bias in (_normal(5, dtype=dtype), _normal(4, 5, dtype=dtype), _normal(4, 1, dtype=dtype)):
            if batched:
                bias = bias.expand(3, 4, 5)
            yield (bias, a, b), {}
        yield (_normal(5, dtype=dtype).expand(*lead, 4, 5), a, _normal(*lead, 5, 6, dtype=dtype).transpose(-1, -2)), {}

    return calls


def _log_sigmoid_backward(dtype: torch.dtype) -> Iterator[Any]:
    for x in (_extremes(dtype), _normal(5, 7, dtype=dtype, scale=4.0)):
        yield (_normal(*x.shape, dtype=dtype), x, aten.log_sigmoid_forward.default(x)[1]), {}


def _extremes_along(whole: bool) -> Callable[[torch.dtype], Iterator[Any]]:
    def calls(dtype: torch.dtype) -> Iterator[Any]:
        tied = torch.randint(0, 4, (5, 7)).to(dtype)
        for x in (tied, tied.t(), _extremes(dtype).reshape(2, 13), torch.full((3, 4), -torch.inf, dtype=dtype)):
            for dim in (0, 1, -1):
                yield (x, dim), {}
                yield (x, dim, True), {}
            if whole and x.is_contiguous():
                yield (x,), {}

    return calls


SAMPLES: dict[Any, Callable[[torch.dtype], Iterator[Any]]] = {
    aten.silu_backward.default: _with_gradient(),
    aten.hardsigmoid.default: _pointwise(),
    aten.hardsigmoid_backward.default: _with_gradient(),  # its 1/6 is a float32 in float64 as well
    aten.hardswish.default: _pointwise(),
    aten.hardswish_backward.default: _with_gradient(),
    aten.hardtanh.default: _chain(_pointwise(), _pointwise(-0.5, 2)),
    aten.elu.default: _chain(_pointwise(), _pointwise(1.67, 1.05, 1), _pointwise(0.5, 1, 2.0)),
    aten.elu_backward.default: lambda dtype: (
        ((grad, 1.5, 1.05, 2.0, is_result, x), {})
        for is_result in (False, True)
        for (grad, x), _ in _with_gradient()(dtype)
    ),
    aten.softplus.default: _chain(_pointwise(), _pointwise(2.0, 5.0)),
    aten.softplus_backward.default: _with_gradient(2.0, 5.0),
    aten.mish.default: _pointwise(),
    aten.mish_backward.default: _with_gradient(),
    aten.log_sigmoid_forward.default: _pointwise(),
    aten.log_sigmoid_backward.default: _log_sigmoid_backward,
    aten.softshrink.default: _pointwise(0.5),
    aten.lerp.Scalar: _lerp(tensor=False),
    aten.lerp.Tensor: _lerp(tensor=True),
    aten._softmax.default: _softmax(backward=False, log=False),
    aten._safe_softmax.default: lambda dtype: (
        ((x, dim), {}) for (x, dim, _), _ in _softmax(backward=False, log=False)(dtype)
    ),
    aten._log_softmax.default: _softmax(backward=False, log=True),
    aten._softmax_backward_data.default: _softmax(backward=True, log=False),
    aten._log_softmax_backward_data.default: _softmax(backward=True, log=True),
    aten.logsumexp.default: _logsumexp,
    aten.repeat.default: _repeated,
    aten.var.correction: _reduction({}, {"correction": 0, "keepdim": True}, {"correction": 0.5}),
    aten.std.correction: _reduction({}, {"correction": 0, "keepdim": True}),
    aten.var_mean.correction: _reduction({}, {"correction": 0, "keepdim": True}),
    aten.linalg_vector_norm.default: _vector_norm,
    aten.max.dim: _extremes_along(whole=False),
    aten.min.dim: _extremes_along(whole=False),
    aten.argmax.default: _extremes_along(whole=True),
    aten.argmin.default: _extremes_along(whole=True),
    aten.native_layer_norm.default: _layer_norm(backward=False),
    aten.native_layer_norm_backward.default: _layer_norm(backward=True),
    aten._fused_rms_norm.default: _rms_norm,
    aten.native_group_norm.default: _group_norm(backward=False),
    aten.native_group_norm_backward.default: _group_norm(backward=True),
    aten.native_batch_norm.default: _batch_norm("evaluation"),
    aten._native_batch_norm_legit.default: _batch_norm("evaluation", legit=True),
    aten._native_batch_norm_legit.no_stats: _batch_norm("no_stats"),
    aten._native_batch_norm_legit_functional.default: _batch_norm("functional"),
    aten.native_batch_norm_backward.default: _batch_norm("backward"),
    aten.mse_loss.default: _loss(),
    aten.mse_loss_backward.default: _loss(backward=True),
    aten.smooth_l1_loss.default: _chain(_loss(0.7), _loss(0.0)),
    aten.smooth_l1_loss_backward.default: _chain(_loss(0.7, backward=True), _loss(0.0, backward=True)),
    aten.huber_loss.default: _loss(0.7),
    aten.huber_loss_backward.default: _loss(0.7, backward=True),
    aten.binary_cross_entropy_with_logits.default: _chain(_loss(extra=2), _weighted_logits),
    aten.binary_cross_entropy_backward.default: _loss(backward=True, probabilities=True, extra=1),
    aten.nll_loss_forward.default: _by_class(pixels=False, backward=False),
    aten.nll_loss_backward.default: _by_class(pixels=False, backward=True),
    aten.nll_loss2d_forward.default: _by_class(pixels=True, backward=False),
    aten.nll_loss2d_backward.default: _by_class(pixels=True, backward=True),
    aten.addmm.default: _products(batched=False),
    aten.baddbmm.default: _products(batched=True),
}


# Calls that are left whole: products round once in 16 bits.
WHOLE = {(op, torch.bfloat16) for op in (aten.addmm.default, aten.baddbmm.default)}
WHOLE |= {(aten.hardsigmoid_backward.default, torch.float64)}

def _listed(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple | list) else [result]


def _spec(value: Any) -> Any:
    return None if value is None else (tuple(value.shape), value.stride(), value.dtype)


def _assert_close(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: list[Any], eager: list[Any]) -> None:
    """Every result within what `tests.ops_db.accuracy` allows."""

    def run(
        change: Change, dtype: torch.dtype | None, tangents: bool = False, mode: Mode | None = None
    ) -> list[Tensor | None]:
        other_args, other_kwargs = changed((args, kwargs), change, dtype)
        with mode or contextlib.nullcontext():
            return _listed(op(*other_args, **other_kwargs))

    double = any(isinstance(value, Tensor) and value.dtype is torch.float64 for value in args)
    true: list[Tensor | None] = [None] * len(eager) if double else run(lambda tensor: tensor, torch.float64)
    errors: list[Tensor | None] = [None] * len(eager)
    if any(_off(*each) for each in zip(made, eager, true, errors, strict=True)):
        errors = eager_errors(run, double=double)
    wrong = [_off(*each) for each in zip(made, eager, true, errors, strict=True)]
    assert not any(wrong), f"{op}: {wrong}"


def _off(made: Tensor | None, eager: Tensor | None, true: Tensor | None, error: Tensor | None) -> list[str]:
    return [] if made is None or eager is None or not eager.numel() else difference(made, eager, true, error)


def _samples(op: Any, dtype: torch.dtype) -> Iterator[Any]:
    """Those here, and those of the record."""
    yield from SAMPLES[op](dtype) if op in SAMPLES else ()
    for args in table.SAMPLES[op](dtype) if op in table.SAMPLES else ():
        yield args, {}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", dict.fromkeys([*SAMPLES, *table.SAMPLES]), ids=str)
def test_agrees_with_the_operator(op: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    taken_apart = 0
    for args, kwargs in _samples(op, dtype):
        with _RoundedOnce():
            made = DECOMPOSITIONS[op](*args, **kwargs)
        if made is NotImplemented:
            continue
        taken_apart += 1
        eager = _listed(op(*args, **kwargs))
        for ours, theirs in zip(_listed(made), eager, strict=True):
            assert _spec(ours) == _spec(theirs), f"{op} of {[_spec(a) for a in args if isinstance(a, Tensor)]}"
        _assert_close(op, args, kwargs, _listed(made), eager)
    assert taken_apart or (op, dtype) in WHOLE, "no sample was taken apart"


VIEWS: dict[Any, list[tuple[Any, ...]]] = {
    aten.t.default: [(torch.randn(3, 4),)],
    aten.transpose.int: [(torch.randn(2, 3, 4), -1, 0), (torch.randn(3, 4).t(), 0, 1)],
    aten._reshape_alias.default: [
        (torch.randn(3, 4), [2, 6], [6, 1]),
        (torch.randn(2, 3, 4).permute(2, 0, 1), [4, 6], [1, 4]),
    ],
    aten._unsafe_view.default: [(torch.randn(3, 4), [2, 6]), (torch.randn(3, 4), [-1])],
    aten.split.Tensor: [(torch.randn(7, 4), 3), (torch.randn(2, 6), 2, -1), (torch.randn(0, 3), 2)],
    aten.split_with_sizes.default: [(torch.randn(7, 4), [3, 0, 4]), (torch.randn(2, 6), [2, 4], -1)],
    aten.unsafe_split.Tensor: [(torch.randn(7, 4), 3), (torch.randn(2, 6), 2, -1)],
    aten.unsafe_split_with_sizes.default: [(torch.randn(7, 4), [3, 0, 4]), (torch.randn(2, 6), [2, 4], -1)],
    aten.unbind.int: [(torch.randn(3, 4),), (torch.randn(3, 4), -1)],
    aten.stack.default: [
        ([torch.randn(3, 4)] * 2,), ([torch.randn(3, 4)] * 3, -1), ([torch.tensor(1.0)] * 2, 0),
        ([torch.randn(4, 3).t()] * 2,), ([torch.randn(4, 3).t(), torch.randn(3, 4)], 1), ([torch.randn(4, 3).t()], 2),
        ([torch.randn(2, 5, 4, 3).permute(0, 3, 1, 2)] * 2, 1),
    ],
}


@pytest.mark.parametrize("op", VIEWS, ids=str)
def test_views_by_another_name(op: Any) -> None:
    for args in VIEWS[op]:
        made, eager = _listed(DECOMPOSITIONS[op](*args)), _listed(op(*args))
        for ours, theirs in zip(made, eager, strict=True):
            assert (_spec(ours), ours.storage_offset()) == (_spec(theirs), theirs.storage_offset())
            assert torch.equal(ours, theirs)


IMAGES = {name for name, value in vars(images).items() if getattr(value, "__module__", "") == images.__name__}
NAMED = [name for name in DECOMPOSITIONS if isinstance(name, str)]
PACKETS = [getattr(aten, name.removeprefix("aten::")) for name in NAMED if hasattr(aten, name.removeprefix("aten::"))]
LISTS = [getattr(packet, name) for packet in PACKETS for name in packet.overloads() if not name.endswith("out")]
_OF_LISTS: dict[str, Callable[[], Any]] = {
    "List[Tensor]": lambda: [torch.rand(3) + 0.1, torch.rand(2, 2) + 0.1],
    "List[number]": lambda: [0.5, 1.5],
    "Tensor": lambda: torch.tensor(0.5),
    "number": lambda: 0.5,
}


@pytest.mark.parametrize("op", LISTS, ids=str)
def test_lists_are_taken_apart(op: Any) -> None:
    needed = [argument for argument in op._schema.arguments if not argument.has_default_value()]
    args = [_OF_LISTS[str(argument.type)]() for argument in needed]
    made = DECOMPOSITIONS[op._schema.name](*args)
    if op in (aten._foreach_addcmul.Tensor, aten._foreach_addcdiv.Tensor):  # one tensor holds the numbers for all
        assert made is NotImplemented
        return
    for ours, theirs in zip(made, op(*args), strict=True):
        assert _spec(ours) == _spec(theirs)
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)


_HIDDEN: dict[int | None, Tensor | None] = {  # by what the mask is of: pairs, keys of each sample, all scores
    None: None,
    0: torch.ones(7, 7, dtype=torch.bool).triu(1),
    1: torch.arange(7) >= torch.tensor([[7], [4]]),
    2: torch.ones(7, 7, dtype=torch.bool).triu(1).expand(2, 4, 7, 7),
}


def _layer_weights(*shapes: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    """Weights and biases in turn."""
    return [_normal(*size, dtype=dtype, scale=0.25) for shape in shapes for size in (shape, shape[:1])]


def _heads(dtype: torch.dtype) -> Iterator[Any]:
    x, weights = _normal(2, 7, 16, dtype=dtype), _layer_weights((48, 16), (16, 16), dtype=dtype)
    yield (x, x, x, 16, 4, *weights), {}  # with its weights: left whole
    for kind, mask in _HIDDEN.items():
        yield (x, x, x, 16, 4, *weights, mask, False, True, kind), {}


def _encoder_layers(dtype: torch.dtype) -> Iterator[Any]:
    x, attention = _normal(2, 7, 16, dtype=dtype), _layer_weights((48, 16), (16, 16), dtype=dtype)
    norms, inner = _layer_weights((16,), (16,), dtype=dtype), _layer_weights((24, 16), (16, 24), dtype=dtype)
    for use_gelu, norm_first in ((False, False), (True, True)):
        for kind, mask in _HIDDEN.items():
            yield (x, 16, 4, *attention, use_gelu, norm_first, 1e-5, *norms, *inner, mask, kind), {}


LAYERS = {
    aten._native_multi_head_attention.default: _heads,
    aten._transformer_encoder_layer_fwd.default: _encoder_layers,
}


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16], ids=str)
@pytest.mark.parametrize("op", LAYERS, ids=str)
def test_whole_layers(op: Any, dtype: torch.dtype) -> None:
    """They round so often in 16 bits that only errors of whole results can be compared."""
    torch.manual_seed(0)
    taken_apart = 0
    for args, kwargs in LAYERS[op](dtype):
        made = DECOMPOSITIONS[op](*args, **kwargs)
        if made is NotImplemented:
            continue
        taken_apart += 1
        exact_args, exact_kwargs = changed((args, kwargs), lambda tensor: tensor, torch.float64)
        results = [_listed(each) for each in (made, op(*args, **kwargs), op(*exact_args, **exact_kwargs))]
        assert [_spec(each) for each in results[0]] == [_spec(each) for each in results[1]]
        (ours, eager, exact), *others = zip(*results, strict=True)
        assert all(each == (None, None, None) for each in others)
        if dtype.itemsize > 2:
            torch.testing.assert_close(ours, eager)
        else:
            error, eager_error = ((each.double() - exact).abs().max() for each in (ours, eager))
            assert error <= 2 * eager_error + torch.finfo(dtype).eps * exact.abs().max()
    assert taken_apart >= 4


def test_every_entry_is_tested() -> None:
    identities = {aten.detach.default, aten.alias.default, aten.lift_fresh.default}  # below
    elsewhere: set[Any] = {aten.mm.default, aten.bmm.default, aten.convolution.default}
    elsewhere.add(aten.convolution_backward.default)
    elsewhere.add(aten._scaled_dot_product_flash_attention_for_cpu.default)  # test_products.py
    elsewhere.add(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
    elsewhere.update(op for op, rule in DECOMPOSITIONS.items() if rule.__name__ in IMAGES)  # test_images.py
    elsewhere |= {aten.scatter.src, aten.scatter.value, aten.scatter_add.default}  # test_gathers.py
    elsewhere |= {aten.scatter_reduce.two, aten.index_put.default, aten._index_put_impl.default}  # test_scatters.py
    elsewhere |= {aten.cummax.default, aten.cummin.default}  # test_scans.py
    elsewhere |= {torch.logcumsumexp, torch.Tensor.logcumsumexp}
    elsewhere.update(op for op in DECOMPOSITIONS if "upsample" in str(op) and "linear" in str(op))  # test_resampling.py
    elsewhere |= {aten.upsample_bicubic2d.default, aten.upsample_bicubic2d_backward.default}
    elsewhere.add(aten.native_dropout_backward.default)  # tests/pipeline/test_ahead.py: of GPUs only
    elsewhere.add(aten._fused_rms_norm_backward.default)  # below
    elsewhere.add(aten._efficientzerotensor.default)  # tests/capture/calls/test_transforms.py: of tangents
    elsewhere.update(NAMED)
    elsewhere.update(LAYERS)
    assert set(DECOMPOSITIONS) == set(SAMPLES) | set(VIEWS) | identities | {aten.native_dropout.default} | elsewhere


@pytest.mark.parametrize("mask", [(True, True), (True, False), (False, True)], ids=str)
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16], ids=str)
def test_gradients_of_rms_norm(dtype: torch.dtype, mask: tuple[bool, bool]) -> None:
    """The operator is CUDA's alone; what it computes is what autograd makes of PyTorch's formula."""
    for (x, inner, weight, eps), _ in _rms_norm(dtype):
        grad = _normal(*x.shape, dtype=dtype)
        _, rstd = aten._fused_rms_norm.default(x, inner, weight, eps)
        if mask[1] and weight is None:
            continue
        made = DECOMPOSITIONS[aten._fused_rms_norm_backward.default](grad, x, inner, rstd, weight, list(mask))
        asked = [each.double().requires_grad_() for each in (x, *([weight] if weight is not None else []))]
        result = F.rms_norm(asked[0], inner, *asked[1:], eps=torch.finfo(rstd.dtype).eps if eps is None else eps)
        true = torch.autograd.grad(result, asked, grad.double())
        for value, exact, given, is_asked in zip(made, true, (x, weight), mask, strict=False):
            assert (value is not None) == is_asked
            if value is None:
                continue
            assert _spec(value) == (given.shape, given.contiguous().stride(), dtype)
            size = (exact.abs() + grad.double().abs().max() * rstd.abs().max() * (rstd.dtype is not dtype)).max()
            assert (value - exact).abs().max() <= 8 * torch.finfo(dtype).eps * size


def test_identity_leaves_real_tensors_alone() -> None:
    assert DECOMPOSITIONS[aten.detach.default](torch.ones(2)) is NotImplemented


def test_dropout_keeps_what_its_mask_says() -> None:
    x = torch.randn(1000)
    scaled, kept = DECOMPOSITIONS[aten.native_dropout.default](x, 0.25, True)
    assert _spec(kept) == ((1000,), (1,), torch.bool) and 650 < kept.sum() < 850
    torch.testing.assert_close(scaled, torch.where(kept, x / 0.75, torch.zeros(())))


def test_running_statistics_are_not_lost() -> None:
    """In training `native_batch_norm` writes its running statistics although its schema does not say so."""
    x, stats = torch.randn(4, 3), torch.zeros(3)
    assert (
        DECOMPOSITIONS[aten.native_batch_norm.default](x, None, None, stats, stats, True, 0.1, 1e-5) is NotImplemented
    )


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.silu_backward.default, (torch.ones(3), torch.ones(4))),
        (aten.mse_loss.default, (torch.ones(3), torch.ones(4))),
        (aten._softmax.default, (torch.ones(3), 2, False)),
        (aten.native_layer_norm.default, (torch.ones(3, 4), [5], None, None, 1e-5)),
        (aten.addmm.default, (torch.ones(3), torch.ones(2, 4), torch.ones(4, 5))),
        (aten.mish.default, (torch.ones(3, dtype=torch.int64),)),
    ],
    ids=lambda value: str(value) if not isinstance(value, tuple) else "",
)
def test_wrong_arguments_are_left_to_the_operator(op: Any, args: tuple[Any, ...]) -> None:
    with contextlib.suppress(IndexError):
        assert DECOMPOSITIONS[op](*args) is NotImplemented
    with pytest.raises((RuntimeError, IndexError)):
        op(*args)


def test_batch_norm_is_trained_in_kernels_in_16_bits_too() -> None:
    """What it saves, and the running statistics, are rounded to them; what comes out is computed of what was not."""
    x, stats = torch.randn(4, 3, 5, 6).bfloat16() + 2, torch.rand(3).bfloat16()
    args = x, torch.randn(3).bfloat16(), torch.randn(3).bfloat16(), stats, stats + 0.5

    def norm(*given: Tensor) -> Any:
        return aten._native_batch_norm_legit_functional.default(*given, True, 0.1, 1e-5)

    found = traced(norm, *args, decompositions=DECOMPOSITIONS)
    assert aten._native_batch_norm_legit_functional.default not in {node.target for node in found.graph.nodes}
    true = norm(*(each.double() for each in args))
    for mine, eager, exact in zip(found.to_module()(*args), norm(*args), true, strict=True):
        assert mine.dtype is eager.dtype is torch.bfloat16
        allowed = 2 * (eager.double() - exact).abs().max() + 4 * torch.finfo(torch.bfloat16).eps * exact.abs().max()
        assert (mine.double() - exact).abs().max() <= allowed


@pytest.mark.parametrize("number", range(4))
def test_what_is_normalized_alone_has_no_gradient(number: int) -> None:
    """Its mean is itself. A product less itself, rounded once, was not nothing."""
    generator = seeded(number)
    x, weight, tangent = (torch.randn(shape, generator=generator) for shape in ((3, 1), (1,), (3, 1)))
    norm = smelt.compile(lambda x, weight: torch.nn.functional.layer_norm(x, (1,), weight))
    given = x.requires_grad_()
    assert torch.autograd.grad(norm(given, weight), given, tangent)[0].eq(0).all()


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
@pytest.mark.parametrize(("shape", "dim"), [((4, 5), 1), ((4, 5), 0), ((3, 4, 5), (0, 2)), ((6, 1), 1)])
@pytest.mark.parametrize("infinities", [1, 2])
def test_the_mean_beside_a_variance_is_nan_where_there_is_an_infinity(
    shape: tuple[int, ...], dim: Any, infinities: int, backend: str
) -> None:
    """Of one element it is that."""
    x = torch.randn(shape)
    x.view(-1)[:infinities] = math.inf

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.var_mean(x, dim, correction=0)

    for found, expected in zip(smelt.compile(both, backend=backend)(x), both(x), strict=True):
        torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("size", [7, 64, 100, 1000, 3000])
@pytest.mark.parametrize("value", [0.1, 3.3, -7.7, 1e4])
def test_norms_of_equal_numbers_are_nothing(size: int, value: float) -> None:
    """A mean that is off by its last place, times 1/√eps, was up to 1.5e-3 where eager has 0."""
    x = torch.full((4, size), value)
    assert not smelt.compile(lambda x: F.layer_norm(x, (size,)))(x).any()
    assert not smelt.compile(lambda x: F.group_norm(x, 2))(x.view(2, 2, size)).any()


def test_norms_of_small_deviations_are_no_further_off_than_eagers() -> None:
    x = torch.randn(64, 1000, generator=seeded(0)) * 1e-2 + 100
    true = F.layer_norm(x.double(), (1000,))
    mine = smelt.compile(lambda x: F.layer_norm(x, (1000,)))(x)
    assert (mine - true).abs().max() <= (F.layer_norm(x, (1000,)) - true).abs().max()


@pytest.mark.parametrize("op", [aten.native_layer_norm.default, aten.native_group_norm.default], ids=str)
def test_means_of_float32_are_rounded_once_where_eager_moves_one_mean_along(
    op: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On GPUs; on the host eager adds up as we do. Of equal numbers it is that number."""
    monkeypatch.setattr("smelt.ops.decompose.norms.on_host", lambda device: False)
    x = torch.randn(40, 8, 96, generator=seeded(1)) + torch.randn(40, 1, 1, generator=seeded(2)) * 0.1
    x[0], x[1] = 0.1, 1e-3
    shape = ([8, 96], None, None) if op is aten.native_layer_norm.default else (None, None, 40, 8, 96, 1)
    with smelt_kernels_sum():
        result, mean, _ = DECOMPOSITIONS[op](x, *shape, 1e-5)
    assert torch.equal(mean.flatten(), x.double().mean([1, 2]).float())
    assert not result[:2].any()


def test_a_sixth_of_float32_in_float64_is_left_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """On GPUs that of hardswish and hardsigmoid, whose kernels say 1.0f / 6.0f; of the gradient everywhere."""
    x = torch.randn(5, generator=seeded(1))
    slope = DECOMPOSITIONS[aten.hardsigmoid_backward.default]
    functions = [DECOMPOSITIONS[op] for op in (aten.hardswish.default, aten.hardsigmoid.default)]
    assert all(function(x.double()) is not NotImplemented for function in functions)
    assert slope(x.double(), x.double()) is NotImplemented
    monkeypatch.setattr("smelt.ops.decompose.activations.on_host", lambda device: False)
    for function in functions:
        assert function(x.double()) is NotImplemented and function(x) is not NotImplemented


@contextlib.contextmanager
def smelt_kernels_sum() -> Iterator[None]:
    """Sums of float32 as generated code has them, a vector of them and then its halves: PyTorch's own are in parts."""

    class Summed(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is not aten.mean.dim or args[0].dtype is not torch.float32:
                return func(*args, **(kwargs or {}))
            rows = args[0].flatten(1).view(len(args[0]), -1, 32)
            total = torch.zeros_like(rows[:, 0])
            for part in rows.unbind(1):
                total = total + part
            while total.shape[1] > 1:
                total = total[:, : total.shape[1] // 2] + total[:, total.shape[1] // 2 :]
            return (total / (rows.shape[1] * 32)).view(func(*args, **(kwargs or {})).shape)

    with Summed():
        yield


@pytest.mark.parametrize(
    "length, dtype, spreads",
    [
        *((8, torch.float32, False), (7, torch.float32, True), (8, torch.float64, True)),
        *((12, torch.bfloat16, False), (6, torch.bfloat16, True)),
    ],
)
def test_rms_norm_of_an_infinity_as_kernels_of_a_gpu_compute_it(
    length: int, dtype: torch.dtype, spreads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tests/gpu/test_precision.py` has eager's own. Where it takes the mean and the variance, all of a row is NaN."""
    asked = norms._takes_moments
    on_gpu = SimpleNamespace(device=torch.device("cuda", 0), dtype=dtype)
    x = torch.ones(3, length, dtype=dtype)
    x[1, 2], x[2, 0] = float("inf"), torch.finfo(dtype).max
    assert not asked(x, [length]) and asked(on_gpu, [length]) is spreads  # type: ignore[arg-type]
    monkeypatch.setattr(norms, "_takes_moments", lambda x, normalized: asked(on_gpu, normalized))  # type: ignore[arg-type]
    found, _ = norms.rms_norm(x, [length], None, 1e-5)
    assert found.isnan().sum(-1).tolist() == [0, length if spreads else 1, 0]
