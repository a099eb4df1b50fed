"""Sample calls for the records of operators: small tensors of a dtype, with the values that go wrong first.

    list(unary(torch.float32))  → calls with NaN, infinities, zeros of both signs, an expanded and a 0-dim tensor

`SAMPLES` has them by operator; an operator with a record that kernels follow has some (`test_records`).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from smelt.ir.nodes.philox_draws import DROPOUT_MASK
from smelt.ir.nodes.random_words import PHILOX_WORDS

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Sample:
    """One call to try: `op(*args, **kwargs)`."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)


# Sample calls with tensors of a dtype; dtypes the operator rejects yield nothing or calls that PyTorch refuses.
Samples = Callable[[torch.dtype], Iterator[Sample]]

_FLOATS = (0.0, -0.0, 0.5, -0.5, 1.0, -1.5, 2.5, 3.0, -7.25, 30.0, math.inf, -math.inf, math.nan, 1e-3, 0.1, -2.0)
_INTEGERS = (0, 1, 2, 3, 5, 7, 11, 100, 127, -1, -2, -3, -7, -100, 4, 6)


def tensor(dtype: torch.dtype, shape: tuple[int, ...] = (2, 8), turn: int = 0) -> torch.Tensor:
    """A tensor of `shape` filled with the telling values of its kind, starting at the `turn`-th."""
    count = math.prod(shape)
    if dtype is torch.bool:
        values: list[Any] = [(turn + i) % 3 == 0 for i in range(count)]
    elif dtype.is_floating_point:
        values = [_FLOATS[(turn + i) % len(_FLOATS)] for i in range(count)]
    else:
        found = [_INTEGERS[(turn + i) % len(_INTEGERS)] for i in range(count)]
        values = [abs(v) for v in found] if dtype is torch.uint8 else found
    return torch.tensor(values, dtype=dtype).reshape(shape)


def finite(dtype: torch.dtype, shape: tuple[int, ...] = (3, 4), turn: int = 0) -> torch.Tensor:
    """As `tensor`, without NaN and infinities."""
    made = tensor(dtype, shape, turn)
    return torch.where(torch.isfinite(made), made, torch.ones((), dtype=dtype)) if dtype.is_floating_point else made


def indices(*numbers: Any, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(numbers, dtype=dtype)


# Kinds of calls.


def unary(dtype: torch.dtype) -> Iterator[Sample]:
    """One tensor, contiguous, 0-dim, transposed, expanded."""
    yield Sample((tensor(dtype),))
    yield Sample((tensor(dtype, (), 2),))
    yield Sample((tensor(dtype, (3, 4)).t(),))
    yield Sample((tensor(dtype, (1, 4)).expand(3, 4),))


def binary(dtype: torch.dtype) -> Iterator[Sample]:
    """Two tensors: of one dtype, broadcast, 0-dim on either side, of other dtypes."""
    left = tensor(dtype)
    yield Sample((left, tensor(dtype, turn=5)))
    yield Sample((left, tensor(dtype, (8,), 3)))
    yield Sample((left, tensor(dtype, (2, 1), 1)))
    for other in (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool):
        yield Sample((left, tensor(other, (), 4)))
        yield Sample((tensor(other, (), 3), left))
        yield Sample((left, tensor(other, turn=3)))


def with_numbers(*numbers: Any) -> Samples:
    """A tensor and a Python number."""

    def generate(dtype: torch.dtype) -> Iterator[Sample]:
        for number in numbers:
            yield Sample((tensor(dtype), number))
            yield Sample((tensor(dtype, (), 3), number))

    return generate


def call(*extra: Any, tensors: int = 1, shape: tuple[int, ...] = (2, 8), **kwargs: Any) -> Samples:
    """`tensors` tensors of one dtype, then fixed arguments."""

    def generate(dtype: torch.dtype) -> Iterator[Sample]:
        given = tuple(tensor(dtype, shape, turn=3 * i) for i in range(tensors))
        yield Sample((*given, *extra), kwargs)

    return generate


def chain(*several: Samples) -> Samples:
    """The samples of each in turn."""

    def generate(dtype: torch.dtype) -> Iterator[Sample]:
        for samples in several:
            yield from samples(dtype)

    return generate


def fixed(*calls: tuple[Any, ...]) -> Samples:
    """Calls that take no tensor, with `dtype=` set."""

    def generate(dtype: torch.dtype) -> Iterator[Sample]:
        for args in calls:
            yield Sample(args, {"dtype": dtype})

    return generate


def _like(*extra: Any) -> Samples:
    def generate(dtype: torch.dtype) -> Iterator[Sample]:
        yield Sample((tensor(dtype, (3, 4)), *extra))
        yield Sample((tensor(dtype, (3, 4)).t(), *extra), {"dtype": torch.float32})

    return generate


def _on(shape: tuple[int, ...], *calls: tuple[Any, ...]) -> Samples:
    """Calls on a tensor of `shape` without NaN and infinities."""

    def generate(dtype: torch.dtype) -> Iterator[Sample]:
        for args in calls:
            yield Sample((finite(dtype, shape), *args))

    return generate


def _both_ways(*calls: Callable[..., tuple[Any, ...]], wants_dtype: bool = False) -> Samples:
    """Calls on a tensor of 5 × 6 and one that lies the other way round."""

    def generate(dtype: torch.dtype) -> Iterator[Sample]:
        for given in (tensor(dtype, (5, 6)), tensor(dtype, (6, 5)).t()):
            for call in calls:
                yield Sample(call(given, dtype) if wants_dtype else call(given))

    return generate


def _put(*calls: Callable[[torch.Tensor, torch.dtype], tuple[Any, ...]]) -> Samples:
    return _both_ways(*calls, wants_dtype=True)


# By operator.


def _where(dtype: torch.dtype) -> Iterator[Sample]:
    mask = tensor(torch.bool)
    yield Sample((mask, tensor(dtype), tensor(dtype, turn=4)))
    yield Sample((mask[:1], tensor(dtype, (2, 1)), tensor(torch.float32, (), 2)))
    yield Sample((mask, tensor(torch.uint8), tensor(dtype, (8,))))


def _masked(dtype: torch.dtype) -> Iterator[Sample]:
    yield Sample((tensor(dtype), tensor(torch.bool), 3))
    yield Sample((tensor(dtype), tensor(torch.bool, (8,)), True))


def _masked_by_tensor(dtype: torch.dtype) -> Iterator[Sample]:
    yield Sample((tensor(dtype), tensor(torch.bool), tensor(dtype, (), 3)))


def _convert(dtype: torch.dtype) -> Iterator[Sample]:
    for target in (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.bool):
        yield Sample((finite(dtype),), {"dtype": target})
    yield Sample((finite(dtype),))


def _copy(dtype: torch.dtype) -> Iterator[Sample]:
    yield Sample((finite(dtype), finite(torch.float32, (4,))))
    yield from (Sample((finite(dtype), number)) for number in (3, 1.5, True))


def _powers_of_numbers(dtype: torch.dtype) -> Iterator[Sample]:
    yield from (Sample((base, tensor(dtype))) for base in (2, 0.5))


def _by_fractions(dtype: torch.dtype) -> Iterator[Sample]:
    if dtype.is_floating_point:
        yield Sample((0.0, 1.0, 0.1), {"dtype": dtype})


def _triangle(dtype: torch.dtype) -> Iterator[Sample]:
    for diagonal in (0, 1, -1):
        yield Sample((tensor(dtype, (2, 3, 4)), diagonal))


def _over_dims(dtype: torch.dtype) -> Iterator[Sample]:
    for dims in ([0], [1], [-1], [0, 2], [1, 2], [0, 1, 2]):
        yield Sample((finite(dtype, (3, 2, 4)), dims))
        yield Sample((finite(dtype, (3, 2, 4)), dims, True))
    yield Sample((tensor(dtype, (3, 16)), [1]))
    yield Sample((finite(dtype, (3, 4)).t(), [1]))
    yield Sample((finite(dtype, (3, 1)), [1]))


def _over_dim(dtype: torch.dtype) -> Iterator[Sample]:
    for sample in _over_dims(dtype):
        source, dims, *rest = sample.args
        if len(dims) == 1:
            yield Sample((source, dims[0], *rest))


def _over_all(dtype: torch.dtype) -> Iterator[Sample]:
    yield Sample((finite(dtype, (3, 4)),))
    yield Sample((finite(dtype, (), 3),))
    yield Sample((finite(dtype, (3, 4)).t(),))


def _along(dtype: torch.dtype) -> Iterator[Sample]:
    for dim in (0, 1, -1):
        yield Sample((finite(dtype, (3, 2, 20)), dim))
    yield Sample((tensor(dtype, (3, 16)), 1))
    yield Sample((finite(dtype, (3, 4)).t(), 0))
    yield Sample((finite(dtype, (1, 6)).expand(5, 6), 0))
    yield Sample((finite(dtype, (3, 1)), 1))


def _along_converted(dtype: torch.dtype) -> Iterator[Sample]:
    yield from _along(dtype)
    yield Sample((finite(dtype, (3, 5)), 1), {"dtype": torch.float64})


def _joins(dtype: torch.dtype) -> Iterator[Sample]:
    a, b = tensor(dtype, (2, 8)), tensor(dtype, (2, 8), 5)
    for dim in (0, 1, -1):
        yield Sample(([a, b], dim))
    yield Sample(([a, b, a.mul(1)], 1))
    yield Sample(([tensor(dtype, (3, 4)).t(), tensor(dtype, (3, 4), 7).t()], 0))
    yield Sample(([a, tensor(torch.float32, (2, 8), 3)], 0))


def _spread(*calls: tuple[tuple[int, ...], tuple[Any, ...]]) -> Samples:
    def generate(dtype: torch.dtype) -> Iterator[Sample]:
        for shape, rest in calls:
            yield Sample((tensor(dtype, shape), *rest))

    return generate


def _written(*calls: tuple[tuple[int, ...], tuple[Any, ...]]) -> Samples:
    def generate(dtype: torch.dtype) -> Iterator[Sample]:
        for shape, rest in calls:
            for base in (tensor(dtype, (4, 6), 3), tensor(dtype, (6, 4), 3).t()):
                yield Sample((base, tensor(dtype, shape), *rest))

    return generate


def _moved(*calls: tuple[Any, ...], shape: tuple[int, ...] = (5, 40)) -> Samples:
    """Calls on a tensor, and on one that lies the other way round."""

    def generate(dtype: torch.dtype) -> Iterator[Sample]:
        turned = tensor(dtype, (*shape[:-2], shape[-1], shape[-2])).transpose(-1, -2)
        for given in (tensor(dtype, shape), turned):
            for rest in calls:
                yield Sample((given, *rest))

    return generate


def _padding_backward(shape: tuple[int, ...], pads: Sequence[int]) -> Samples:
    """Gradients of padding: of what has come out, for what went in. Small numbers, whose sums are exact."""

    def small(dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
        return tensor(torch.int32, tuple(shape)).remainder(4).to(dtype)

    def generate(dtype: torch.dtype) -> Iterator[Sample]:
        padded = torch.nn.functional.pad(torch.empty(shape), list(pads)).shape
        turned = (*padded[:-2], padded[-1], padded[-2])
        for gradient in (small(dtype, padded), small(dtype, turned).transpose(-1, -2)):
            yield Sample((gradient, tensor(dtype, shape), list(pads)))

    return generate


def _paddings() -> dict[Any, Samples]:
    found: dict[Any, Samples] = {}
    for kind, shape, pad in (
        ("1d", (2, 3, 40), [3, 5]),
        ("2d", (2, 3, 5, 20), [3, 5, 2, 4]),
        ("3d", (2, 2, 3, 6, 20), [3, 5, 2, 4, 1, 0]),
    ):
        calls = _moved((pad,), ([0] * len(pad),), (pad[:1] + [0] * (len(pad) - 1),), shape=shape)
        found[getattr(aten, f"reflection_pad{kind}").default] = calls
        found[getattr(aten, f"replication_pad{kind}").default] = calls
        found[getattr(aten, f"reflection_pad{kind}_backward").default] = _padding_backward(shape, pad)
    return found


_UNARY = (
    "neg abs sign sgn floor ceil round trunc sqrt rsqrt reciprocal exp exp2 expm1 log log2 log10 log1p sin cos tanh "
    "sigmoid erf acos acosh asin asinh atan atanh cosh sinh tan isnan isinf signbit bitwise_not logical_not clone "
    "relu silu"
)
_BINARY = (
    "rsub.Tensor mul.Tensor div.Tensor floor_divide remainder.Tensor fmod.Tensor maximum minimum fmax fmin atan2 "
    "eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor bitwise_and.Tensor bitwise_or.Tensor "
    "bitwise_xor.Tensor bitwise_left_shift.Tensor bitwise_right_shift.Tensor "
    "logical_and logical_or logical_xor pow.Tensor_Tensor"
)
_WITH_NUMBERS: dict[str, tuple[Any, ...]] = {
    "add.Scalar mul.Scalar": (2, 0.1, True),
    "sub.Scalar rsub.Scalar div.Scalar": (2, 0.1),
    "remainder.Scalar fmod.Scalar": (3, -2, 0.7),
    "eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar": (0, 2, 0.1, True),
    "bitwise_and.Scalar bitwise_or.Scalar bitwise_xor.Scalar": (3, True),
    "bitwise_left_shift.Tensor_Scalar bitwise_right_shift.Tensor_Scalar": (3, 0, 9),
    "clamp_min clamp_max": (1, -0.5),
    "leaky_relu": (0.1, 2),
    "pow.Tensor_Scalar": (2, 3, 0.5, -0.5, -1, -2, 0, 1, 5, 2.5, -3),
}
_VIEW = _on((2, 3, 4), ([6, 4],), ([2, -1],), ([3, 2, 2, 2],), ([2, 1, 12],), ([24],))
_ROWS, _COLS = indices(4, 0, 4, 1), indices(5, 1, 1, dtype=torch.int32)
_ONE_BY_ONE = indices([4, 0, 4], [1, 0, 4])
_SCATTERED = _put(
    lambda x, d: (x, 0, _ONE_BY_ONE, tensor(d, (3, 4))),
    lambda x, d: (x, 1, indices([4, 0, 4, 5, 5, 5], [1, 0, 4, 2, 1, 1]), tensor(d, (2, 6))),
)
_INDEX_PUT = _put(
    lambda x, d: (x, [indices(4, -1, 0, 4)], tensor(d, (4, 6)), True),
    lambda x, d: (x, [None, indices([5, -5], [0, 2])], tensor(d, (5, 2, 2))),
    lambda x, d: (x, [indices([4], [0]), indices(1, -2, 3)], tensor(d, (3,)), True),
    lambda x, d: (x, [indices(1, -1, 2), indices(0, 4, 5)], tensor(d, ()), True),
)


def _operators(names: str) -> Iterator[Any]:
    for name in names.split():
        base, _, overload = name.partition(".")
        yield getattr(getattr(aten, base), overload or "default")


def _each(names: str, samples: Samples) -> dict[Any, Samples]:
    return dict.fromkeys(_operators(names), samples)


def _masks(dtype: torch.dtype) -> Iterator[Sample]:
    """Dropout's masks: elements that threads take one, four or eight at once."""
    if dtype is torch.int64:
        state = torch.tensor(-0x123456789ABCDEF), torch.tensor(4 * 0x40000003)
        for count, threads, at_once in ((7, 256, 1), (1000, 256, 1), (2048, 256, 4), (1028, 256, 4), (4104, 256, 8)):
            yield Sample((*state, count, threads, at_once, 1 << 31, 8), {"device": torch.device("cpu")})


def _shifts(dtype: torch.dtype) -> Iterator[Sample]:
    """Of integers: PyTorch has no shapes for those of bool."""
    if not dtype.is_floating_point and dtype is not torch.bool:
        yield Sample((tensor(dtype), tensor(dtype, turn=5)))
        yield Sample((tensor(dtype), tensor(dtype, (8,), 3)))


def _shifts_by_numbers(dtype: torch.dtype) -> Iterator[Sample]:
    if not dtype.is_floating_point and dtype is not torch.bool:
        yield from (Sample((tensor(dtype), count)) for count in (3, 0, 9))


def _random_words(dtype: torch.dtype) -> Iterator[Sample]:
    """Words of a generator's state, of which four are of one sequence."""
    if dtype is torch.int64:
        for count, after in ((1, 0), (7, 3), (1001, 0)):
            yield Sample((torch.tensor(0x123456789ABCDEF), torch.tensor(0x40000003), count, after))


def _pooling_gradients(dtype: torch.dtype) -> Iterator[Sample]:
    for ceil in (False, True):
        x, how = tensor(dtype, (2, 3, 7, 6)), ([3, 3], [2, 2], [1, 1], [1, 1], ceil)
        if not dtype.is_floating_point:
            return
        y, places = aten.max_pool2d_with_indices.default(x, *how)
        yield Sample((finite(dtype, tuple(y.shape)), x, *how, places))


SAMPLES: dict[Any, Samples] = {
    PHILOX_WORDS: _random_words,
    DROPOUT_MASK: _masks,
    **_each(_UNARY, unary),
    **_each(_BINARY, binary),
    **{op: with_numbers(*given) for names, given in _WITH_NUMBERS.items() for op in _operators(names)},
    **_each("__lshift__.Tensor __rshift__.Tensor", _shifts),
    **_each("__lshift__.Scalar __rshift__.Scalar", _shifts_by_numbers),
    **_each("add.Tensor sub.Tensor", chain(binary, call(tensors=2, alpha=3))),
    **_each("div.Tensor_mode", chain(*(call(tensors=2, rounding_mode=how) for how in ("floor", "trunc", None)))),
    **_each("div.Scalar_mode", chain(call(3, rounding_mode="floor"), call(-2, rounding_mode="trunc"))),
    **_each("addcmul addcdiv", call(tensors=3, value=2)),
    **_each("pow.Scalar", _powers_of_numbers),
    **_each("where.self", _where),
    **_each("masked_fill.Scalar", _masked),
    **_each("masked_fill.Tensor", _masked_by_tensor),
    **_each("clamp", chain(call(1, 3), call(None, 2), call(-0.5, 0.75), call(max=0))),
    **_each("clamp.Tensor", chain(call(tensors=3), call(tensors=2))),
    **_each("_to_copy", _convert),
    **_each("copy", _copy),
    # Activations and their gradients.
    **_each("leaky_relu_backward", call(0.1, False, tensors=2)),
    **_each("threshold", chain(call(0.1, 20), call(-1, 0.3))),
    **_each("threshold_backward", chain(call(0, tensors=2), call(0.1, tensors=2))),
    # As many as fill vectors of any machine: of NaN eager's scalar code, for what is left over, says otherwise.
    **_each(
        "hardtanh_backward",
        chain(call(-1.0, 1.0, tensors=2, shape=(8, 16)), call(-0.1, 0.3, tensors=2, shape=(8, 16))),
    ),
    **_each("sigmoid_backward tanh_backward", call(tensors=2)),
    **_each("gelu", chain(unary, call(approximate="tanh"))),
    **_each("gelu_backward", chain(call(tensors=2), call(tensors=2, approximate="tanh"))),
    # Made from numbers and positions.
    **_each("full", fixed(([2, 3], 2), ([], True))),
    **_each("zeros ones", fixed(([2, 3],))),
    **_each("scalar_tensor", fixed((1,), (True,))),
    **_each("full_like", _like(1)),
    **_each("new_full", _like([2, 2], 1)),
    **_each("fill.Scalar", call(1)),
    **_each("fill.Tensor", call(torch.tensor(1))),
    **_each("zero", call()),
    **_each("zeros_like ones_like", _like()),
    **_each("new_zeros new_ones", _like([2, 2])),
    **_each("arange", fixed((5,), (4.5,))),
    **_each("arange.start", fixed((2, 7), (0.5, 4.0))),
    **_each("arange.start_step", chain(fixed((2, 9, 3), (9, 2, -2)), _by_fractions)),
    **_each("triu tril", _triangle),
    **_each("eye", fixed((5,), (1,))),
    **_each("eye.m", fixed((5, 7), (40, 3), (1, 4))),
    # Folds and scans.
    **_each("sum mean prod max min any all", _over_all),
    **_each("sum.dim_IntList mean.dim amax amin any.dims all.dims", _over_dims),
    **_each("prod.dim_int any.dim all.dim", _over_dim),
    **_each("cumsum cumprod", _along_converted),
    **_each("logcumsumexp cummax cummin", _along),
    # Views.
    **_each("view _unsafe_view", _VIEW),
    **_each("permute", _on((2, 3, 4), ([2, 0, 1],), ([0, -1, 1],))),
    **_each("t", _on((2, 3), ())),
    **_each("transpose.int", _on((2, 3, 4), (0, 1), (-1, 1))),
    **_each("expand", _on((3, 1), ([3, 4],), ([2, -1, 4],), ([2, 3, 1],))),
    **_each("unsqueeze", _on((2, 3), (0,), (1,), (-1,))),
    **_each("squeeze", _on((1, 3, 1), ())),
    **_each("squeeze.dim", _on((1, 3, 1), (0,), (1,), (-1,))),
    **_each("squeeze.dims", _on((1, 3, 1), ([0, 2],), ([1],))),
    **_each("select.int", _on((2, 3), (0, 1), (1, -1))),
    **_each("slice.Tensor", _on((6, 3), (0, 1, 5), (0, 0, 9223372036854775807, 2), (1, -2))),
    **_each("diagonal", _on((3, 4), (), (1,), (-1, 1, 0))),
    **_each("unfold", _on((3, 8), (1, 3, 1), (-1, 2, 3), (0, 3, 1), (1, 8, 2))),
    **_each("as_strided", _on((3, 4), ([2, 2], [1, 3]), ([5], [2], 1))),
    **_each("alias detach", _on((2, 3), ())),
    # Tensors side by side.
    **_each("cat", _joins),
    **_each(
        "slice_backward",
        _spread(
            ((2, 4), ([2, 8], 1, 4, 9223372036854775807, 1)),
            ((2, 4), ([2, 8], -1, 0, 4, 1)),
            ((1, 4), ([3, 4], 0, 1, 2, 1)),
        ),
    ),
    **_each("select_backward", _spread(((4,), ([3, 4], 0, 1)), ((3,), ([3, 4], 1, -1)), ((), ([5], 0, 2)))),
    **_each("slice_scatter", _written(((2, 6), (0, 2, 4)), ((4, 3), (1, 3)), ((4, 3), (-1, None, 3)), ((4, 6), (0,)))),
    **_each("select_scatter", _written(((6,), (0, 2)), ((4,), (1, -1)))),
    # Elements moved along dimensions.
    **_each("flip", _moved(([1],), ([0, -1],), ([],))),
    **_each("constant_pad_nd", _moved(([2, 1], 1), ([0, 3],), ([-1, 2, 3, 0], 1), ([-2, -3],), ([1, 1, 1, 1], 0))),
    **_each("roll", _moved(([2], [1]), ([-1, 3], [0, 1]), ([41], [-1]), ([1, 1], [1, 1]), ([0], [0]))),
    **_paddings(),
    # Elements looked up.
    **_each(
        "embedding",
        _both_ways(
            lambda x: (x, indices(4, 0, 0, 3)),
            lambda x: (x, indices([1, 2, 3], [4, 4, 0], dtype=torch.int32)),
            lambda x: (x, torch.tensor(2)),
            lambda x: (x, indices(3, 1).expand(7, 2)),
        ),
    ),
    **_each(
        "gather",
        _both_ways(
            lambda x: (x, 0, indices([4, 0, 2], [1, 1, 3])),
            lambda x: (x, 1, indices([5, 0, 5, 2], [1, 1, 3, 0])),
            lambda x: (x, -1, indices([5], [1], [0], [2], [3])),
        ),
    ),
    **_each(
        "index_select",
        _both_ways(
            lambda x: (x, 0, indices(4, 0, 0)), lambda x: (x, -1, indices(5, 1, 1, 0, 2, 2, 3, dtype=torch.int32))
        ),
    ),
    **_each(
        "index.Tensor",
        _both_ways(
            lambda x: (x, [indices(4, -1, 0)]),
            lambda x: (x, [None, indices([5, -6], [0, 1])]),
            lambda x: (x, [indices([4], [0]), indices(1, -2, 3)]),
            lambda x: (x[:, None, :], [indices(1, -1, 2), None, indices(0, 5, 5)]),
        ),
    ),
    **_each(
        "_unsafe_index.Tensor",
        _both_ways(lambda x: (x, [indices(4, 1, 0)]), lambda x: (x, [indices([4], [0]), indices(1, 2, 3)])),
    ),
    # Elements put at places.
    **_each(
        "index_add",
        _put(lambda x, d: (x, 0, _ROWS, tensor(d, (4, 6))), lambda x, d: (x, -1, _COLS, tensor(d, (5, 3)))),
    ),
    **_each(
        "index_copy",
        _put(
            lambda x, d: (x, 0, indices(4, 0, 1), tensor(d, (3, 6))),
            lambda x, d: (x, 1, indices(5, 1), tensor(d, (5, 2))),
        ),
    ),
    **_each(
        "index_fill.int_Scalar",
        _put(lambda x, d: (x, 0, indices(4, -5, 4), 1), lambda x, d: (x, 1, indices(5, -1), 0)),
    ),
    **_each("scatter.src scatter_add", _SCATTERED),
    **_each("scatter.value", _put(lambda x, d: (x, 0, _ONE_BY_ONE, 1), lambda x, d: (x, 1, _ONE_BY_ONE, 0))),
    **_each(
        "scatter_reduce.two",
        _put(
            *(
                lambda x, d, how=how: (x, 0, _ONE_BY_ONE, tensor(d, (2, 3)), how)  # type: ignore[misc]
                for how in ("sum", "prod", "amax", "amin")
            )
        ),
    ),
    **_each("index_put _index_put_impl _unsafe_index_put", _INDEX_PUT),
    **_each(
        "embedding_dense_backward",
        _put(
            lambda x, d: (x, indices(4, 0, 0, 3, 2), 7, -1, False),
            lambda x, d: (tensor(d, (2, 3, 8)), indices([1, 2, 3], [4, 4, 0], dtype=torch.int32), 5, 4, False),
        ),
    ),
    **_each("max_pool2d_with_indices_backward", _pooling_gradients),
}
