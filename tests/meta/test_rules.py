"""Every spec rule against real CPU execution: shape, strides, offset, dtype, over layouts, dtypes and broadcasting."""

import contextlib
import inspect
import itertools
import math
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.ir.tensorspec import TensorSpec, UnplacedSpec
from smelt.meta.facts import all_facts
from smelt.meta.fake_tensor import FakeMode, FakeTensor
from smelt.meta.rules import creation, describe, fourier, indexing, linalg_nn, pointwise, reduction, views
from smelt.meta.rules.lookup import EVERYWHERE, ON_CPU, _functional_of, rules_of
from smelt.meta.rules.promotion import result_dtype
from smelt.meta.rules.strides import like_stride
from tests.processes import PLAIN, run

aten = torch.ops.aten
CPU = torch.device("cpu")
RECORDED = {name: facts.shape for name, facts in all_facts().items() if facts.shape is not None}
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
SHAPES = ((), (3,), (2, 3), (4, 1), (1, 4), (2, 3, 4), (2, 3, 4, 5), (2, 3, 1, 1), (1, 3, 4, 4), (0, 3), (3, 0, 2))


def _filled(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Values between 0.1 and 0.9; integers of at least one, so that nothing is divided by zero."""
    values = torch.rand(shape) * 0.8 + 0.1
    if dtype is torch.bool:
        return torch.ones(shape, dtype=torch.bool)
    return values.to(dtype) if dtype.is_floating_point else (values * 3 + 1).to(dtype)


def _layouts(shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    """The same shape in memory in as many ways as matter."""
    plain = _filled(shape, dtype)
    found = [plain]
    if len(shape) >= 2:
        order = tuple(reversed(range(len(shape))))
        found.append(plain.permute(order).contiguous().permute(order))
        found.append(torch.cat([plain, plain], -1)[..., : shape[-1]])
        found.append(plain[:1].expand(shape))
    if len(shape) == 3:
        found.append(plain.permute(0, 2, 1).contiguous().permute(0, 2, 1))
    if len(shape) == 4:
        found.append(plain.contiguous(memory_format=torch.channels_last))
    if shape == (1, 4):
        found.append(plain.as_strided(shape, (1, 1)))
    return found


TENSORS = {(shape, dtype): _layouts(shape, dtype) for shape in SHAPES for dtype in DTYPES}


def _spec(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.stride(), value.storage_offset(), value.dtype)
    if isinstance(value, UnplacedSpec):
        return (value.shape, value.stride, value.offset, value.dtype)
    if isinstance(value, tuple | list):
        return [_spec(item) for item in value]
    return value


def _agrees(op: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether the rule answered, and then rightly."""
    try:
        said = describe(op, args, kwargs, CPU)
    except (RuntimeError, IndexError):
        with pytest.raises((RuntimeError, IndexError)):
            op(*args, **kwargs)
        return False
    if said is NotImplemented:
        return False
    real = op(*args, **kwargs)
    assert _spec(said) == _spec(real), f"{op}{_spec(args)} {kwargs}: rule {_spec(said)}, real {_spec(real)}"
    return True


# Element-wise operators: arguments drawn at random, by the types in the schema.

_OPTIONS: dict[str, tuple[Any, ...]] = {
    "threshold": (0.1, 0.0),
    "hardtanh": (-1.0, 1.0),
    "leaky_relu": (0.1,),
    "threshold_backward": (0.1,),
    "hardtanh_backward": (-1.0, 1.0),
    "leaky_relu_backward": (0.1, False),
    "softplus_backward": (1.0, 20.0),
    "softshrink_backward": (0.5,),
    "hardshrink_backward": (0.5,),
}


def _drawn(op: Any, chance: random.Random) -> tuple[tuple[Any, ...], dict[str, Any]]:
    name = op.overloadpacket.__name__
    shape, dtype = chance.choice(SHAPES), chance.choice(DTYPES)
    same_dtype = chance.random() < 0.6 or name.endswith("_backward")
    smaller = [
        s
        for s in SHAPES
        if len(s) <= len(shape) and all(a in (1, b) for a, b in zip(s[::-1], shape[::-1], strict=False))
    ]

    def tensor(first: bool) -> torch.Tensor:
        own = dtype if first or same_dtype else chance.choice(DTYPES)
        extent = shape if first or chance.random() < 0.5 else chance.choice(smaller)
        return chance.choice(TENSORS[(extent, own)])

    args: list[Any] = []
    for argument in op._schema.arguments:
        kind = str(argument.type)
        if argument.kwarg_only or (kind not in ("Tensor", "Optional[Tensor]") and name in _OPTIONS):
            break
        if kind in ("Tensor", "Optional[Tensor]"):
            args.append(tensor(first=not args))
        elif kind in ("number", "Optional[number]", "Scalar", "Optional[Scalar]"):
            args.append(chance.choice([2, 2.0, 1, True, 0.5, 3]))
        elif kind == "bool":
            args.append(False)
        elif kind == "int" and not args:
            args.append(chance.choice([0, 1, 2]))
        else:
            break
    if name == "where" or name == "masked_fill":
        position = 0 if name == "where" else 1
        args[position] = args[position] > 0.5
    args += _OPTIONS.get(name, ())
    rounding = {"rounding_mode": chance.choice(["floor", "trunc", None])} if "mode" in op._overloadname else {}
    return tuple(args), rounding


def _operators(rules: Iterable[str]) -> list[Any]:
    """The operators of these names: every name is one's."""
    return [getattr(getattr(aten, name.partition(".")[0]), name.partition(".")[2]) for name in rules]


@pytest.mark.parametrize("op", _operators(pointwise.RULES), ids=str)
def test_elementwise(op: Any) -> None:
    chance = random.Random(str(op))
    answered = 0
    for _ in range(150):
        args, kwargs = _drawn(op, chance)
        answered += _agrees(op, *args, **kwargs)
    assert answered, "the rule never answered"


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_layout_of_any_two_inputs(data: Any) -> None:
    """Permuted, strided, expanded inputs of any broadcastable shapes."""

    def drawn(shape: list[int]) -> torch.Tensor:
        order = data.draw(st.permutations(range(len(shape))))
        stored = [shape[dim] for dim in order]
        gap = data.draw(st.sampled_from([1, 1, 2]))
        memory = torch.zeros(
            [*stored[:-1], stored[-1] * gap] if stored else [], dtype=data.draw(st.sampled_from(DTYPES[:4]))
        )
        if stored and gap == 2:
            memory = memory[..., ::2]
        inverse = [order.index(dim) for dim in range(len(shape))]
        return memory.permute(inverse)

    shape = data.draw(st.lists(st.integers(0, 4), max_size=4))
    keep = data.draw(st.integers(0, len(shape)))
    other = [size if data.draw(st.booleans()) else 1 for size in shape[keep:]]
    first, second = drawn(shape), drawn(other)
    if data.draw(st.booleans()) and shape:
        first = first[:1].expand(first.shape) if first.shape[0] else first
    assert _agrees(aten.add.Tensor, first, second)
    assert _agrees(aten.mul.Tensor, second, first)
    assert _agrees(aten.exp.default, first)
    assert _agrees(aten.clone.default, first)
    assert like_stride(tuple(first.shape), first.stride()) == torch.empty_like(first).stride()


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(DTYPES), st.booleans()), min_size=1, max_size=2), st.sampled_from([2, 2.5, True])
)
def test_promotion(kinds: list[tuple[torch.dtype, bool]], number: Any) -> None:
    tensors = [torch.ones(2 if dims else (), dtype=dtype) for dtype, dims in kinds]
    assert result_dtype((tensors[0], number)) is torch.result_type(tensors[0], number)
    if len(tensors) == 2:
        assert result_dtype(tensors) is torch.result_type(*tensors)


# Reductions.


def _reductions() -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    for (shape, dtype), tensors in TENSORS.items():
        if 0 in shape and not dtype.is_floating_point:
            continue
        for x in tensors[:3]:
            dims = [0, -1] if shape else [0]
            for op in (aten.sum, aten.mean):
                yield op.default, (x,), {}
                for chosen in ([dims[0]], [dims[-1]], list(range(len(shape))), None):
                    for keepdim in (False, True):
                        yield (op.dim_IntList if op is aten.sum else op.dim), (x, chosen, keepdim), {}
            for op in (aten.amax, aten.amin):
                yield op.default, (x, [dims[-1]], True), {}
                yield op.default, (x,), {}
            for op in (aten.any, aten.all):
                yield from (
                    (op.default, (x,), {}),
                    (op.dim, (x, dims[0], True), {}),
                    (op.dims, (x, [dims[0]], False), {}),
                )
            for op in (aten.var, aten.std, aten.var_mean, aten.std_mean):
                yield op.correction, (x, [dims[0]]), {"correction": 1, "keepdim": True}
                yield op.correction, (x,), {}
            for op in (aten.max, aten.min):
                yield from ((op.default, (x,), {}), (op.dim, (x, dims[0], True), {}), (op.dim, (x, dims[-1]), {}))
            for middle in (aten.median.dim, aten.nanmedian.dim) if dtype is not torch.bool else ():
                yield middle, (x, dims[0], True), {}
            yield aten.mode.default, (x, dims[-1]), {}
            for op in (aten.argmax, aten.argmin):
                yield from (
                    (op.default, (x,), {}),
                    (op.default, (x, dims[0], True), {}),
                    (op.default, (x, None, True), {}),
                )
            for op in (aten.cumsum, aten.cumprod):
                yield op.default, (x, dims[-1]), {}
                yield op.default, (x, dims[0]), {"dtype": torch.float64}
            for op in (aten.cummax, aten.cummin, aten.logcumsumexp):
                yield op.default, (x, dims[-1]), {}
            yield aten.prod.default, (x,), {}
            yield aten.count_nonzero.default, (x,), {}
            yield aten.prod.dim_int, (x, dims[0], True), {}
            yield aten.logsumexp.default, (x, [dims[0]], True), {}
            yield aten.linalg_vector_norm.default, (x, 2, [dims[0]], True), {}
            yield aten.norm.ScalarOpt_dim, (x, None, [dims[0]]), {}
            yield aten.norm.ScalarOpt_dim, (x, math.inf, [dims[0]], True), {}
            for op in (aten._softmax, aten._log_softmax):
                yield op.default, (x, dims[-1], False), {}
            yield aten._safe_softmax.default, (x, dims[0]), {}
            for op in (aten._softmax_backward_data, aten._log_softmax_backward_data):
                yield op.default, (x, x, dims[-1], x.dtype), {}


def test_reductions() -> None:
    answered = {op for op, args, kwargs in _reductions() if _agrees(op, *args, **kwargs)}
    assert answered == set(_operators(reduction.RULES))


# Everything else: calls written out.


def _creations() -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    for op in (aten.zeros.default, aten.ones.default, aten.empty.memory_format, aten.rand.default, aten.randn.default):
        yield op, ([2, 0, 3],), {}
        yield op, ([2, 3],), {"dtype": torch.float64, "pin_memory": False}
    for fill in (1, 2.5, True):
        yield aten.full.default, ([2, 3], fill), {}
        yield aten.full.default, ([], fill), {"dtype": torch.int32}
        yield aten.scalar_tensor.default, (fill,), {}
    yield aten.empty_strided.default, ([2, 3], [1, 2]), {}
    for end in (0, 5, 7.5):
        yield aten.arange.default, (end,), {}
        yield aten.arange.start, (-3, end), {"dtype": torch.float32}
    for start, end, step in ((0, 10, 3), (10, 0, -3), (0.0, 1.0, 0.1), (1, 2, 0.3), (5, 5, 1), (2**60, 2**60 + 7, 2)):
        yield aten.arange.start_step, (start, end, step), {}
    for (shape, dtype), tensors in TENSORS.items():
        for x in tensors:
            for op in (aten.empty_like, aten.zeros_like, aten.ones_like, aten.rand_like, aten.randn_like, aten.clone):
                yield op.default, (x,), {}
            yield aten.full_like.default, (x, 2), {"dtype": torch.float64}
            yield aten._to_copy.default, (x,), {"dtype": torch.float16}
            yield aten._to_copy.default, (x,), {"dtype": torch.float16, "memory_format": torch.contiguous_format}
            yield aten.clone.default, (x,), {"memory_format": torch.contiguous_format}
            if len(shape) == 4:
                yield aten.clone.default, (x,), {"memory_format": torch.channels_last}
            for op in (aten.new_empty, aten.new_zeros, aten.new_ones):
                yield op.default, (x, [3, 2]), {}
            yield aten.new_full.default, (x, [3, 2], 1), {}
            yield aten.new_empty_strided.default, (x, [3, 2], [1, 3]), {}
            yield aten.copy.default, (x, _filled(shape, torch.float32)), {}
            yield aten.bernoulli.default, (x,), {}
            yield aten.bernoulli.p, (x, 0.5), {}
            yield aten.tril.default, (x,), {}
            yield aten.triu.default, (x, 1), {}
            yield aten.cat.default, ([x, x], -1), {}
            yield aten.cat.default, ([x, _filled(shape, dtype)],), {}
            yield aten.cat.default, ([x, _filled(shape, torch.float32)],), {}
            yield aten.stack.default, ([x, x, x], -1), {}
            yield aten.stack.default, ([x, _filled(shape, torch.float32)], 1), {}


def _view_calls() -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    for (shape, dtype), tensors in TENSORS.items():
        if dtype is not torch.float32:
            continue
        for x in (*tensors, *(t[1:] for t in tensors if shape and shape[0] > 1)):
            rank = x.dim()
            yield from ((op.default, (x,), {}) for op in (aten.detach, aten.alias, aten.lift_fresh))
            yield aten.permute.default, (x, list(range(rank - 1, -1, -1))), {}
            yield aten.view.default, (x, [-1]) if x.is_contiguous() and x.numel() else (x, list(x.shape)), {}
            yield aten.view.default, (x, [*x.shape, 1]), {}
            yield aten._unsafe_view.default, (x, [1, *x.shape]), {}
            yield aten.expand.default, (x, [3, 1, *x.shape]), {}
            yield aten.expand.default, (x, [1, *([-1] * rank)]), {}
            yield aten.expand.default, (x, [5 if size == 1 else size for size in x.shape]), {}
            for dim in range(-rank - 1, rank + 1):
                yield aten.unsqueeze.default, (x, dim), {}
            for dim in range(-rank, rank):
                yield aten.transpose.int, (x, dim, 0), {}
                yield aten.squeeze.dim, (x, dim), {}
                yield aten.slice.Tensor, (x, dim, 1, 100), {}
                yield aten.slice.Tensor, (x, dim, -2, None, 2), {}
                yield aten.slice.Tensor, (x, dim, 3, 1), {}
                yield aten.slice.Tensor, (x, dim, 0, sys.maxsize), {}
                yield aten._reshape_alias.default, (x, x.shape, x.stride()), {}
                yield aten.split.Tensor, (x, 2, dim), {}
                yield aten.split.Tensor, (x, 100, dim), {}
                yield aten.split_with_sizes.default, (x, [1, x.shape[dim] - 1], dim), {}
                if x.shape[dim]:
                    yield aten.select.int, (x, dim, -1), {}
                    yield aten.select_scatter.default, (x, x.select(dim, -1), dim, -1), {}
                    yield aten.slice_scatter.default, (x, x.narrow(dim, 0, 1), dim, 0, 1), {}
            if rank == 2:
                yield aten.t.default, (x,), {}


def _loss_calls() -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    for dtype in DTYPES[:3]:
        x, y = _filled((4, 6), dtype), _filled((4, 6), dtype)
        for reduced in (0, 1, 2):
            grad = _filled((4, 6) if reduced == 0 else (), dtype)
            for name in ("mse_loss", "smooth_l1_loss", "huber_loss"):
                options = () if name == "mse_loss" else (1.0,)
                yield getattr(aten, name).default, (x, y, reduced, *options), {}
                yield getattr(aten, name + "_backward").default, (grad, x, y, reduced, *options), {}
            yield aten.binary_cross_entropy.default, (x, y, None, reduced), {}
            yield aten.binary_cross_entropy_backward.default, (grad, x, y, y, reduced), {}
            yield aten.binary_cross_entropy_with_logits.default, (x, y, None, x, reduced), {}
        for value, other in itertools.product(_layouts((4, 6), dtype), repeat=2):
            yield from _row_by_row_calls(value, other)
            yield aten.log_sigmoid_backward.default, (other, value, aten.log_sigmoid_forward.default(value)[1]), {}
        x, rows = _filled((4, 8), dtype), torch.tensor([1, 2, 3, 0])
        for reduced in (0, 1, 2):
            loss, total = aten.nll_loss_forward.default(x, rows, None, reduced, -100)
            yield aten.nll_loss_forward.default, (x, rows, _filled((8,), dtype), reduced, -100), {}
            yield aten.nll_loss_backward.default, (loss, x, rows, None, reduced, -100, total), {}
            image, target = _filled((4, 3, 2, 5), dtype), torch.zeros(4, 2, 5, dtype=torch.int64)
            yield aten.nll_loss2d_forward.default, (image, target, None, reduced, -100), {}
            loss, total = aten.nll_loss2d_forward.default(image, target, None, reduced, -100)
            yield aten.nll_loss2d_backward.default, (loss, image, target, None, reduced, -100, total), {}


def _row_by_row_calls(x: torch.Tensor, y: torch.Tensor) -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """What PyTorch's meta kernels say keeps the order of dimensions."""
    yield aten.log_sigmoid_forward.default, (x,), {}
    for grad, reduced in ((y, 0), (_filled((), x.dtype), 1)):
        yield aten.mse_loss_backward.default, (grad, x, y, reduced), {}
        yield aten.smooth_l1_loss_backward.default, (grad, x, y, reduced, 1.0), {}
        yield aten.huber_loss_backward.default, (grad, x, y, reduced, 1.0), {}


def _product_calls(dtype: torch.dtype) -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    a, b = _filled((4, 6), dtype), _filled((5, 6), dtype).t()
    for bias in (_filled((5,), dtype), _filled((4, 5), dtype), _filled((4, 1), dtype), _filled((), dtype)):
        yield aten.addmm.default, (bias, a, b), {"alpha": 2}
    yield aten.mm.default, (a, b), {}
    p, q = _filled((3, 4, 6), dtype), _filled((3, 5, 6), dtype).transpose(1, 2)
    yield aten.bmm.default, (p, q), {}
    yield aten.baddbmm.default, (_filled((3, 4, 5), dtype), p, q), {}


def _norm_calls(dtype: torch.dtype) -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    for parameters in (dtype, torch.float32):
        x = _filled((3, 2, 8), dtype).transpose(0, 1)
        w = _filled((8,), parameters)
        if dtype is torch.float64 and parameters is torch.float32:
            continue
        yield aten.native_layer_norm.default, (x, [8], w, w, 1e-5), {}
        _, mean, rstd = aten.native_layer_norm.default(x, [8], w, w, 1e-5)
        yield aten.native_layer_norm_backward.default, (x, x, [8], mean, rstd, w, w, [True, True, False]), {}
    for x in (_filled((2, 3, 8), dtype), _filled((2, 0, 8), dtype), _filled((2, 3, 0), dtype)):
        yield aten.native_layer_norm.default, (x, list(x.shape[1:]), None, None, 1e-5), {}
    for x in (_filled((3, 2, 8), dtype).transpose(0, 1), *_laid_out((2, 4, 5, 8), dtype), *_laid_out((6, 8), dtype)):
        yield aten._fused_rms_norm.default, (x, [8], _filled((8,), dtype), None), {}
        yield aten._fused_rms_norm.default, (x, list(x.shape[-2:]), None, 1e-5), {}
    for x in (*_laid_out((2, 4, 5, 5), dtype), *_laid_out((6, 4), dtype), *_laid_out((2, 4, 1, 1), dtype)):
        yield from _channel_norm_calls(x, _filled((4,), dtype))
    for x in (_filled((2, 0, 5), dtype), _filled((0, 4, 5), dtype), _filled((2, 4, 0), dtype)):
        yield from _group_norm_calls(x, _filled((x.shape[1],), dtype))


def _laid_out(shape: tuple[int, ...], dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Its dims in every order in memory, with and without gaps."""
    for order in itertools.permutations(range(len(shape))):
        back = [order.index(dim) for dim in range(len(shape))]
        yield _filled(tuple(shape[dim] for dim in order), dtype).permute(back)
        yield _filled(tuple(2 * shape[dim] for dim in order), dtype).permute(back)[tuple(slice(n) for n in shape)]


def _channel_norm_calls(x: torch.Tensor, c: torch.Tensor) -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    for training in (True, False):
        args = (x, c, c, c.clone(), c.clone(), training, 0.1, 1e-5)
        _, saved, inverse = aten.native_batch_norm.default(*args)
        yield aten.native_batch_norm.default, args, {}
        yield aten._native_batch_norm_legit.default, args, {}
        yield aten._native_batch_norm_legit_functional.default, args, {}
        for gradient in (x, x.contiguous()):
            rest = (c, c, c, saved, inverse, training, 1e-5, [True, True, True])
            yield aten.native_batch_norm_backward.default, (gradient, x, *rest), {}
    if x.dtype.itemsize == 2:
        wide = [c.float() for _ in range(4)]
        yield aten.native_batch_norm.default, (x, *wide, False, 0.1, 1e-5), {}
        yield aten.native_batch_norm.default, (x, None, None, *wide[2:], False, 0.1, 1e-5), {}
    yield aten._native_batch_norm_legit.no_stats, (x, c, c, True, 0.1, 1e-5), {}
    yield from _group_norm_calls(x.contiguous(), c)


def _group_norm_calls(x: torch.Tensor, c: torch.Tensor) -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    sizes = (*x.shape[:2], math.prod(x.shape[2:]), 2)
    yield aten.native_group_norm.default, (x, c, c, *sizes, 1e-5), {}
    _, mean, rstd = aten.native_group_norm.default(x, c, c, *sizes, 1e-5)
    yield aten.native_group_norm_backward.default, (x, x, mean, rstd, c, *sizes, [True, True, True]), {}


def _channels_last(image: torch.Tensor) -> torch.Tensor:
    return image.contiguous(memory_format=torch.channels_last)


def _image_calls(dtype: torch.dtype) -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    x, w = _filled((2, 4, 9, 8), dtype), _filled((6, 2, 3, 3), dtype)
    for stride, padding, dilation in (([1, 1], [1, 1], [1, 1]), ([2], [0], [2]), ([2, 1], [1, 2], [1, 2])):
        args = (stride, padding, dilation, False, [0, 0], 2)
        out = aten.convolution.default(x, w, None, *args)
        yield aten.convolution.default, (x, w, _filled((6,), dtype), *args), {}
        yield aten.convolution_backward.default, (out, x, w, [6], *args, [True, True, True]), {}
    for image, kernel in itertools.product((x, _channels_last(x)), (w, _channels_last(w))):
        args = ([1, 1], [1, 1], [1, 1], False, [0, 0], 2)
        out = aten.convolution.default(image, kernel, None, *args)
        yield aten.convolution.default, (image, kernel, None, *args), {}
        for grad in (out, out.contiguous(), _channels_last(out), out[:, :, :, :1].expand(out.shape)):
            yield aten.convolution_backward.default, (grad, image, kernel, [6], *args, [True, True, True]), {}
    one = _channels_last(_filled((6, 2, 1, 1), dtype))
    yield aten.convolution.default, (_channels_last(x), one, None, [1], [0], [1], False, [0], 2), {}
    pixel = (_filled((2, 1, 4, 4), dtype), _filled((3, 1, 1, 1), dtype))
    for image, kernel in ((x, _filled((6, 4, 1, 1), dtype)), pixel, (x, _filled((1, 4, 9, 8), dtype))):
        args = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        out = aten.convolution.default(image, kernel, None, *args)
        yield aten.convolution.default, (image, kernel, None, *args), {}
        yield aten.convolution_backward.default, (out, image, kernel, None, *args, [True, True, False]), {}
    places = torch.arange(16).reshape(1, 1, 4, 4).expand(2, 3, 4, 4)
    for unpooled in (_filled((2, 3, 4, 4), dtype), _filled((2, 4, 4, 3), dtype).permute(0, 3, 1, 2)):
        yield aten.max_unpool2d.default, (unpooled, places, [6, 7]), {}
        yield aten.roll.default, (unpooled, [1], [2]), {}
        yield aten.roll.default, (unpooled, [1, 2], [0, 3]), {}
        yield aten.roll.default, (unpooled[:, :1], [0], [3]), {}
        yield aten.roll.default, (unpooled[:, :, :1], [1], [1]), {}
        yield aten.roll.default, (unpooled, [4], [2]), {}
    for options in (([2, 2],), ([3, 3], [2, 2], [1, 1]), ([2, 3], [1, 2], [0, 1], [1, 2])):
        yield aten.max_pool2d_with_indices.default, (x, *options), {}
        out, places = aten.max_pool2d_with_indices.default(x, *options)
        rest = [[], [0, 0], [1, 1]]
        padded = [*options[1:], *rest[len(options) - 1 :]]
        yield aten.max_pool2d_with_indices_backward.default, (out, x, options[0], *padded, False, places), {}


def _attention_calls(dtype: torch.dtype) -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    plain = _filled((2, 3, 8, 4), dtype)
    tokens_first = _filled((2, 8, 3, 4), dtype).transpose(1, 2)
    packed = [part.view(2, 8, 3, 4).transpose(1, 2) for part in _filled((2, 8, 36), dtype).split(12, -1)]
    shorter = _filled((2, 3, 5, 4), dtype)
    mask = torch.zeros(8, 8, dtype=dtype)
    forward, backward = (
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
    )
    for q, k, v in ([plain] * 3, [tokens_first] * 3, packed, [plain, shorter, shorter]):
        yield forward, (q, k, v, 0.0, k.shape == q.shape), {}
        out, sums = forward(q, k, v)
        yield backward, (torch.ones_like(out), q, k, v, out, sums, 0.0, False), {}
    yield forward, (plain, plain, plain), {"attn_mask": mask}


def _lookup_calls(dtype: torch.dtype) -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    x, rows = _filled((4, 8), dtype), torch.tensor([1, 2, 3, 0])
    yield aten.embedding.default, (x.t().contiguous().t(), rows[:, None]), {}
    yield aten.embedding_dense_backward.default, (x, rows, 10, -1, False), {}
    yield aten.mv.default, (x, _filled((8,), dtype)), {}
    yield aten.dot.default, (_filled((8,), dtype), _filled((8,), dtype)), {}
    yield aten.native_dropout.default, (x, 0.5, True), {}
    yield aten.native_dropout_backward.default, (x, x > 0, 2.0), {}
    yield aten.gather.default, (x.t(), 1, rows[None, :]), {}
    yield aten.index_select.default, (x.t(), 1, rows), {}
    yield aten.slice_backward.default, (x, [8, 8], 0, 0, 4, 1), {}
    yield aten.select_backward.default, (x, [2, 4, 8], 0, 0), {}


def _fourier_calls() -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    for dtype in (torch.float32, torch.float64):
        x = _filled((5, 6, 8), dtype)
        for real in (x, x.permute(2, 0, 1)):
            complex_ = torch.complex(real, real)
            for dims in ([1], [0, 2], [2, 0]):
                yield aten._fft_c2c.default, (complex_, dims, 0, True), {}
                yield aten._fft_r2c.default, (real, dims, 0, True), {}
                yield aten._fft_r2c.default, (real, dims, 0, False), {}
                yield aten._fft_c2r.default, (complex_, dims, 0, 2 * complex_.shape[dims[-1]] - 2), {}


def _library_calls() -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    for dtype in DTYPES[:3]:
        yield from _product_calls(dtype)
        yield from _norm_calls(dtype)
        yield from _image_calls(dtype)
        yield from _attention_calls(dtype)
        yield from _lookup_calls(dtype)


def _index_calls() -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    picks: list[Any] = [None, torch.tensor([1, 0]), torch.tensor([[1], [0], [1]]), torch.tensor([[0, 1]]).expand(3, 2)]
    picks += [torch.zeros(1, 1, dtype=torch.int64), torch.tensor(1), torch.zeros(2, 0, dtype=torch.int64)]
    picks += [torch.zeros(3, 2, dtype=torch.int32).t()[:, None]]
    for shape in ((3, 2), (2, 3, 4), (2, 3, 4, 5), (2, 1, 3), (1, 1, 2)):
        for x in _layouts(shape, torch.float32):
            for mask in (x > 0, x[..., :1] > 0, x[None] > 0):
                yield aten.masked_scatter.default, (x, mask, torch.randn(2 * x.numel())), {}
            for _ in range(12):
                indices = random.choices(picks, k=random.randint(1, len(shape)))
                with contextlib.suppress(RuntimeError, IndexError):
                    x[tuple(slice(None) if index is None else index for index in indices)]
                    yield aten.index.Tensor, (x, indices), {}
                    yield aten._unsafe_index.Tensor, (x, indices), {}


@pytest.mark.parametrize(
    ("calls", "rules"),
    [
        (_index_calls, indexing.RULES),
        (_creations, creation.RULES),
        (_view_calls, views.RULES),
        (_loss_calls, RECORDED),
        (_library_calls, linalg_nn.RULES),
        (_fourier_calls, fourier.RULES),
    ],
    ids=["indexing", "creation", "views", "losses", "library", "fourier"],
)
def test_written_out(calls: Callable[[], Iterator[Any]], rules: dict[str, Any]) -> None:
    answered = {op for op, args, kwargs in calls() if _agrees(op, *args, **kwargs)}
    ruled = set(_operators(rules))
    assert answered == ruled, f"never answered: {ruled - answered}"


def test_where_meta_kernels_are_wrong_a_rule_answers() -> None:
    for x, y in itertools.product(_layouts((4, 3, 5), torch.float32), repeat=2):
        for op, args, kwargs in _row_by_row_calls(x, y):
            assert _agrees(op, *args, **kwargs)


# What is not a tensor's business to know goes to PyTorch.


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.add.Tensor, (torch.ones(3), torch.ones(4))),
        (aten.where.self, (torch.ones(3) > 0, torch.ones(4), torch.ones(4))),
        (aten.mm.default, (torch.ones(3, 4), torch.ones(3, 4))),
        (aten.addmm.default, (torch.ones(7), torch.ones(3, 4), torch.ones(4, 5))),
        (aten.sum.dim_IntList, (torch.ones(3, 4), [2])),
        (aten.sum.dim_IntList, (torch.ones(3, 4), [0, 0])),
        (aten.view.default, (torch.ones(3, 4), [5])),
        (aten.expand.default, (torch.ones(3), [4])),
        (aten.permute.default, (torch.ones(3, 4), [0, 0])),
        (aten.select.int, (torch.ones(3), 0, 3)),
        (aten.cat.default, ([torch.ones(3, 4), torch.ones(3, 5)], 0)),
        (aten.bitwise_and.Tensor, (torch.ones(3), torch.ones(3))),
        (aten.sub.Tensor, (torch.ones(3) > 0, torch.ones(3))),
        (aten.mean.default, (torch.ones(3, dtype=torch.int64),)),
        (aten.amax.default, (torch.ones(0, 3), [0])),
        (aten.max.default, (torch.ones(0, 3),)),
        (aten.min.default, (torch.ones(0, 3),)),
        (aten.max.dim, (torch.ones(0, 3), 0)),
        (aten.min.dim, (torch.ones(3, 0), -1)),
        (aten.median.dim, (torch.ones(0, 3), 0)),
        (aten.nanmedian.dim, (torch.ones(0, 3), 0)),
        (aten.mode.default, (torch.ones(3, 0),)),
        (aten.pow.Tensor_Scalar, (torch.ones(3, dtype=torch.int64), -1)),
        (aten.add_.Tensor, (torch.ones(3), torch.ones(2, 3))),
        (aten.add_.Tensor, (torch.ones(3, dtype=torch.int64), 1.5)),
        (aten.mul_.Tensor, (torch.ones(3, dtype=torch.int64), torch.ones(3))),
        (aten.floor.default, (torch.ones(3) > 0,)),
        (aten.round.default, (torch.ones(3) > 0,)),
        (aten.add_.Tensor, (torch.ones(3, dtype=torch.int64), 1.5)),
        (aten._softmax.default, (torch.ones(3), 1, False)),
        (
            aten.convolution.default,
            (torch.ones(1, 3, 4, 4), torch.ones(2, 4, 3, 3), None, [1], [0], [1], False, [0], 1),
        ),
        (aten.arange.start_step, (0, 5, 0)),
        (aten.gather.default, (torch.ones(3, 4), 0, torch.zeros(3, 5, dtype=torch.int64))),
        (aten.select_scatter.default, (torch.ones(3, 4), torch.ones(4), 0, 3)),
        (aten.select_scatter.default, (torch.ones(3, 4), torch.ones(1), 0, 0)),
        (aten.slice_scatter.default, (torch.ones(3, 4), torch.ones(1, 4), 0, 0, 2)),
        (aten.diagonal_scatter.default, (torch.ones(3, 4), torch.ones(1))),
    ],
    ids=lambda value: str(value) if not isinstance(value, tuple) else "",
)
def test_wrong_calls_raise_as_eager_does(op: Any, args: tuple[Any, ...]) -> None:
    with contextlib.suppress(RuntimeError, IndexError):
        assert describe(op, args, {}, CPU) is NotImplemented
    with pytest.raises((RuntimeError, IndexError)):
        op(*args)
    with FakeMode(), pytest.raises((RuntimeError, IndexError, ValueError)):
        op(*[_fake(value) for value in args])


def test_a_copy_to_write_to_shows_each_element_once() -> None:
    """Whatever it is a copy of, and whatever PyTorch's own description says."""
    plain, beside = torch.ones(()), torch.ones(6)[2:3]
    for x in (plain.expand(4, 4), beside.expand(4, 4), torch.ones(4).expand(3, 4), torch.ones(4, 1).expand(4, 3)):
        assert _agrees(aten.select_scatter.default, x, x.select(-1, 0), -1, 2)
        assert _agrees(aten.slice_scatter.default, x, x[1:2], 0, 1, 2)
        assert _agrees(aten.diagonal_scatter.default, x, x.diagonal())
    turned = torch.ones(2, 1, 5).transpose(0, 2).expand(5, 3, 2)
    assert _agrees(aten.select_scatter.default, turned, turned.select(1, 0), 1, 2)
    assert _agrees(aten.slice_scatter.default, plain.expand(4), plain.expand(1), 0, 1, 2)


def _fake(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return FakeTensor(TensorSpec.of(value))
    return [_fake(item) for item in value] if isinstance(value, list) else value


def test_complex_numbers_go_to_pytorch() -> None:
    x = torch.ones(3, dtype=torch.complex64)
    assert describe(aten.add.Tensor, (x, x), {}, CPU) is NotImplemented
    assert describe(aten.abs.default, (x,), {}, CPU) is NotImplemented
    assert describe(aten.mul.Tensor, (torch.ones(3), 1j), {}, CPU) is NotImplemented


def test_in_place_yields_its_argument() -> None:
    assert _agrees(aten.add_.Tensor, torch.ones(2, 3).t(), 1.5)
    assert _agrees(aten.bernoulli_.float, torch.ones(2, 3), 0.5)
    assert _agrees(aten.relu_.default, torch.ones(2, 6)[:, ::2])


def test_an_operator_has_one_rule() -> None:
    """Families are looked through in turn, so a rule in a later one would go unasked."""
    rules = _operators([*(name for family in (*EVERYWHERE, *ON_CPU) for name in rules_of(family)), *RECORDED])
    assert len(rules) == len(set(rules)) > 300
    assert not [op for op in rules if _functional_of(op) is not None]


def test_rules_take_the_arguments_of_their_schema() -> None:
    """Options that the dispatcher passes by name must be names the rule knows, or lets pass."""
    rules = {name: rule for family in (*EVERYWHERE, *ON_CPU) for name, rule in rules_of(family).items()} | RECORDED
    for op, rule in zip(_operators(rules), rules.values(), strict=True):
        parameters = inspect.signature(rule).parameters.values()
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            continue
        known = {parameter.name for parameter in parameters}
        named = {argument.name for argument in op._schema.arguments if argument.kwarg_only}
        assert named <= known, f"{op}: {named - known}"


_TRACED = """
import sys, torch, torch.nn.functional as F
from smelt.meta.fake_tensor import FakeMode, FakeTensor
from smelt.ir.tensorspec import TensorSpec
def R(*shape): return FakeTensor(TensorSpec.of(torch.zeros(*shape, requires_grad=True)))
def I(*shape): return FakeTensor(TensorSpec.of(torch.zeros(*shape, dtype=torch.int64)))
def backward(loss, *leaves):
    one = torch.ones_like(loss)
    torch.autograd.graph._engine_run_backward((loss,), (one,), False, False, leaves, True, accumulate_grad=False)
with FakeMode():
    x, w1, b1, w2, b2 = R(16, 32), R(64, 32), R(64), R(10, 64), R(10)
    backward(F.mse_loss(F.linear(F.relu(F.linear(x, w1, b1)), w2, b2), torch.zeros(16, 10)), w1, b1, w2, b2)
    x, w, b = R(32, 64), R(64), R(64)
    h = F.gelu(x); h = F.layer_norm(torch.sin(h) * torch.cos(h), (64,), w, b)
    backward((F.softmax(h, -1) * torch.tanh(h)).sum(), x, w, b)
    wte, w, b, wq, bq = R(50, 16), R(16), R(16), R(48, 16), R(48)
    h = F.layer_norm(F.embedding(I(2, 8), wte), (16,), w, b)
    q, k, v = (t.view(2, 8, 4, 4).transpose(1, 2) for t in F.linear(h, wq, bq).split(16, -1))
    a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 8, 16)
    a = F.gelu(a + h, approximate="tanh")
    backward(F.cross_entropy(F.linear(a, wte).view(-1, 50), I(16)), wte, w, b, wq, bq)
    x, w, b, g, s = R(2, 3, 8, 8), R(4, 3, 3, 3), R(4), R(4), R(4)
    h = F.batch_norm(F.conv2d(x, w, b, padding=1), None, None, g, s, True)
    backward(F.adaptive_avg_pool2d(F.max_pool2d(F.relu(h), 2), 1).sum(), x, w, b, g, s)
    x, v, w = R(2, 3, 8, 8), R(8), R(8)
    backward((x.abs().roll((1, 2), (2, 3)) * F.celu(x) * torch.logit(x, 1e-3)).norm(2, 1).sum(), x)
    backward(torch.dot(v, torch.logaddexp2(v, w)) + torch.heaviside(v.detach(), w.detach()).sum(), v, w)
bad = [name for name in ("sympy", "torch._dynamo", "torch._inductor") if name in sys.modules]
assert not bad, bad
"""


def test_tracing_models_imports_no_sympy_and_no_compiler() -> None:
    done = run(_TRACED, begin=PLAIN)
    assert done.returncode == 0, done.stderr


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_views_of_whatever_lies_in_memory(data: Any) -> None:
    """The strides of a view are PyTorch's, and no view is offered where PyTorch has none."""
    sizes = data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4))
    whole = torch.zeros([2 * size for size in sizes]).permute(data.draw(st.permutations(range(len(sizes)))))
    x = whole[tuple(slice(None, None, data.draw(st.sampled_from([1, 1, 2]))) for _ in sizes)]
    if data.draw(st.booleans()):
        x = x[..., :1].expand(x.shape)
    factors = [2, 3, 2, 2, 3, 2, 2][: data.draw(st.integers(0, 5))]
    shape = [*data.draw(st.permutations(factors)), -1][: data.draw(st.integers(1, 6))]
    try:
        real = x.view(shape)
    except RuntimeError:
        assert describe(aten.view.default, (x, shape), {}, CPU) is NotImplemented
        return
    assert _spec(describe(aten.view.default, (x, shape), {}, CPU)) == _spec(real)
