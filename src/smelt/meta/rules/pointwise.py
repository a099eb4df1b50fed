"""Specs of element-wise operators: broadcast the shapes, promote the dtypes, lay the result out after the inputs.

    aten.add.Tensor(f32[4, 8], f32[8])          → f32[4, 8]
    aten.gt.Scalar(f32[4, 8]:(1, 4), 0)         → bool[4, 8]:(1, 4)
    aten.gelu_backward(f32[4, 8], f32[4, 8])    → f32[4, 8]

The tables say which operators share a rule; a rule says `NotImplemented` for whatever it is not sure of, and PyTorch's
meta kernel answers (or raises) instead.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.ir.tensorspec import UnplacedSpec
from smelt.meta.rules.promotion import FLOATS, KNOWN, float_result, result_dtype
from smelt.meta.rules.specs import Rule, laid_out_like, row_major
from smelt.meta.rules.strides import Layout, broadcast, iterator_stride, like_stride, same_shape
from smelt.symbolic.shapes import Shape


def elementwise(operands: Sequence[Any], common: torch.dtype, out: torch.dtype) -> Any:
    """The result of computing in `common` and returning `out`. Tensors of other dtypes are converted first."""
    tensors = [value for value in operands if isinstance(value, torch.Tensor)]
    if not tensors:
        return NotImplemented
    numbers = len(tensors) < len(operands)
    shapes: list[Shape] = [tensor.shape for tensor in tensors]
    if (
        not numbers
        and all(same_shape(shape, shapes[0]) for shape in shapes)
        and all(tensor.is_contiguous() for tensor in tensors)
    ):
        shape = tuple(shapes[0])
        return row_major(shape, out)  # by far the commonest case
    layouts: list[Layout] = []
    for tensor, shape in zip(tensors, shapes, strict=True):
        stride = tensor.stride()
        if tensor.dtype is not common and not tensor.is_contiguous():
            stride = like_stride(shape, stride)  # the converted copy is dense
        layouts.append((shape, stride))
    common_shape = broadcast(shapes)
    if common_shape is None:
        return NotImplemented
    return UnplacedSpec(common_shape, iterator_stride(common_shape, layouts, scalars=numbers), out)


def _unary(kinds: frozenset[torch.dtype], result: Callable[[torch.dtype], torch.dtype]) -> Rule:
    def rule(value: Any, *rest: Any, **options: Any) -> Any:
        dtype = value.dtype
        if dtype not in kinds:
            return NotImplemented
        out = result(dtype)
        common = out if out is not torch.bool else dtype
        return elementwise((value,), common, out)

    return rule


def _same(dtype: torch.dtype) -> torch.dtype:
    return dtype


def _bool(dtype: torch.dtype) -> torch.dtype:
    return torch.bool


def _binary(kinds: frozenset[torch.dtype], result: Callable[[torch.dtype], torch.dtype]) -> Rule:
    """Two operands, promoted. `kinds` are the promoted dtypes it is defined on."""

    def rule(a: Any, b: Any, *rest: Any, **options: Any) -> Any:
        common = result_dtype((a, b))
        if common is None or common not in kinds:
            return NotImplemented
        if rest or options:
            alpha = options.get("alpha", rest[0] if rest else 1)
            if type(alpha) is not int and not (type(alpha) is float and common in FLOATS):
                return NotImplemented
        out = result(common)
        return elementwise((a, b), common if out is torch.bool else out, out)

    return rule


def _is_bool(value: Any) -> bool:
    return value is True or value is False or getattr(value, "dtype", None) is torch.bool


def _rounded(value: Any) -> Any:
    if _is_bool(value):
        raise NotImplementedError("rounding is not implemented for bool tensors")
    return _same_unary(value)


_same_unary = _unary(KNOWN - {torch.bool}, _same)
_add_like = _binary(KNOWN - {torch.bool}, _same)


def _subtract(a: Any, b: Any, *rest: Any, **options: Any) -> Any:
    if _is_bool(a) or _is_bool(b):
        raise RuntimeError("Subtraction, the `-` operator, with a bool tensor is not supported.")
    return _add_like(a, b, *rest, **options)


def _subtract_reversed(a: Any, b: Any, *rest: Any, **options: Any) -> Any:
    """`b - a`: the second argument is the first input."""
    return _subtract(b, a, *rest, **options)


def _like(value: Any, *rest: Any, **options: Any) -> Any:
    """Operators that write into an `empty_like` of their argument."""
    return laid_out_like(value) if value.dtype in FLOATS else NotImplemented


_binary_of_floats = _binary(FLOATS, _same)
_binary_of_integers = _binary(KNOWN - FLOATS, _same)


def _bits(a: Any, b: Any) -> Any:
    if result_dtype((a, b)) in FLOATS:
        raise RuntimeError("bitwise operators are not implemented for floating point tensors")
    return _binary_of_integers(a, b)


def _matched(count: int, kinds: frozenset[torch.dtype] = FLOATS) -> Rule:
    """`count` tensors that must agree in dtype, then options: activations' backwards, losses without reduction."""

    def rule(*args: Any, **options: Any) -> Any:
        tensors = args[:count]
        if len(tensors) != count:
            return NotImplemented
        dtype = tensors[0].dtype
        if dtype not in kinds or any(tensor.dtype is not dtype for tensor in tensors):
            return NotImplemented
        return elementwise(tensors, dtype, dtype)

    return rule


_two_matched = _matched(2)


def _gelu_backward(grad: Any, value: Any, **options: Any) -> Any:
    """Some builds hand this one to a library that refuses to broadcast."""
    return _two_matched(grad, value) if grad.shape == value.shape else NotImplemented


def _matched_reversed(grad: Any, value: Any, *rest: Any) -> Any:
    """Backwards that list their own input before the gradient, which decides the layout."""
    return _two_matched(value, grad)


def _elu_backward(grad: Any, *rest: Any) -> Any:
    return _two_matched(grad, rest[-1]) if len(rest) == 5 else NotImplemented


def _clamp(value: Any, *bounds: Any, **named: Any) -> Any:
    """By tensors, or by numbers, which have no say in the layout."""
    limits = [bound for bound in (*bounds, *named.values()) if bound is not None]
    common = result_dtype((value, *limits))
    if common is None or common is torch.bool or not limits:
        return NotImplemented
    return elementwise([each for each in (value, *limits) if isinstance(each, torch.Tensor)], common, common)


def _pow_number(base: Any, exponent: Any) -> Any:
    common = result_dtype((base, exponent))
    if common is None or common is torch.bool:
        return NotImplemented
    if not common.is_floating_point and exponent < 0:
        raise RuntimeError("Integers to negative integer powers are not allowed.")
    return elementwise((base,), common, common)


def _pow_of_number(base: Any, exponent: Any) -> Any:
    common = result_dtype((base, exponent))
    if common is None or common is torch.bool:
        return NotImplemented
    return row_major(tuple(exponent.shape), common)


def _divide_rounded(a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    common = result_dtype((a, b))
    if common is None or common is torch.bool or rounding_mode not in (None, "floor", "trunc"):
        return NotImplemented
    out = float_result(common) if rounding_mode is None else common
    return elementwise((a, b), out, out)


def _where(condition: Any, a: Any, b: Any) -> Any:
    common = result_dtype((a, b))
    if common is None or condition.dtype is not torch.bool:
        return NotImplemented
    operands = [value for value in (a, b) if isinstance(value, torch.Tensor)]
    if len(operands) != 2:
        return NotImplemented
    shape = broadcast((condition.shape, a.shape, b.shape))
    if shape is None:
        return NotImplemented
    layouts: list[Layout] = [(condition.shape, condition.stride())]
    for value in operands:
        stride = value.stride() if value.dtype is common else like_stride(value.shape, value.stride())
        layouts.append((value.shape, stride))
    return UnplacedSpec(shape, iterator_stride(shape, layouts), common)


def _scaled_update(kinds: frozenset[torch.dtype]) -> Rule:
    """`addcmul`, `addcdiv`: three promoted tensors; the factor is an option and has no say in the dtype."""

    def rule(base: Any, a: Any, b: Any, **options: Any) -> Any:
        common = result_dtype((base, a, b))
        if common is None or common not in kinds:
            return NotImplemented
        if type(options.get("value", 1)) is float and common not in FLOATS:
            return NotImplemented
        return elementwise((base, a, b), common, common)

    return rule


_addcmul_of_floats = _scaled_update(FLOATS)


def _addcdiv(base: Any, a: Any, b: Any, **options: Any) -> Any:
    if a.dtype not in FLOATS and b.dtype not in FLOATS:
        return NotImplemented
    return _addcmul_of_floats(base, a, b, **options)


def _lerp_number(start: Any, end: Any, weight: Any) -> Any:
    return _two_matched(start, end)


def _holds(dtype: torch.dtype, number: Any) -> bool:
    """Whether an integer or a bool surely fits into a dtype: PyTorch refuses some others."""
    if dtype is torch.bool:
        return type(number) is bool
    exact = dtype in KNOWN and not dtype.is_floating_point and type(number) in (int, bool)
    return exact and torch.iinfo(dtype).min <= number <= torch.iinfo(dtype).max


def _masked_fill(value: Any, mask: Any, fill: Any) -> Any:
    """A contiguous copy of the broadcast shape and `value`'s dtype, whatever the fill is."""
    if mask.dtype is not torch.bool or not (value.dtype in FLOATS or _holds(value.dtype, fill)):
        return NotImplemented
    shape = broadcast((value.shape, mask.shape))
    if shape is None or (isinstance(fill, torch.Tensor) and fill.dim()):
        return NotImplemented
    return row_major(shape, value.dtype)


_NUMBERS = KNOWN - {torch.bool}
_INTEGERS = KNOWN - FLOATS

_FLOAT_UNARY = [
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "digamma", "erf", "erfc", "erfinv", "exp",
    "exp2", "expm1", "lgamma", "log", "log10", "log1p", "log2", "reciprocal", "rsqrt", "sigmoid", "sin", "sinc",
    "sinh", "sqrt", "tan", "tanh", "i0", "special_entr", "special_i0e", "special_i1", "special_i1e",
]  # fmt: skip
_WIDE_UNARY = [
    "special_airy_ai", "special_bessel_j0", "special_bessel_j1", "special_bessel_y0", "special_bessel_y1",
    "special_erfcx", "special_log_ndtr", "special_modified_bessel_i0", "special_modified_bessel_i1",
    "special_modified_bessel_k0", "special_modified_bessel_k1", "special_ndtri",
    "special_scaled_modified_bessel_k0", "special_scaled_modified_bessel_k1", "special_spherical_bessel_j0",
]  # fmt: skip
"""Which PyTorch has not for floats of 16 bits."""
_SAME_UNARY = ["abs", "neg", "sign", "sgn", "relu"]
_FLOATS_UNARY = [
    "gelu", "silu", "mish", "hardswish", "hardsigmoid", "elu", "leaky_relu", "softplus", "softshrink", "hardshrink",
    "frac", "threshold", "celu", "logit",
]  # fmt: skip
_BOOL_UNARY = ["logical_not", "signbit", "isnan", "isposinf", "isneginf"]
_COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]
_BITS = ["bitwise_and", "bitwise_or", "bitwise_xor"]
_BACKWARDS = [
    "silu_backward", "tanh_backward", "sigmoid_backward", "hardtanh_backward", "hardswish_backward",
    "hardsigmoid_backward", "softplus_backward", "mish_backward", "hardshrink_backward", "softshrink_backward",
    "logit_backward",
]  # fmt: skip


def _table() -> dict[str, Rule]:
    rules: dict[str, Rule] = {}

    def enter(names: Sequence[str], overloads: Sequence[str], rule: Rule) -> None:
        rules.update((f"{name}.{overload}", rule) for name in names for overload in overloads)

    enter(_FLOAT_UNARY, ("default",), _unary(KNOWN, float_result))
    enter(_WIDE_UNARY, ("default",), _unary(KNOWN - {torch.float16, torch.bfloat16}, float_result))
    enter(_SAME_UNARY, ("default",), _same_unary)
    enter(("ceil", "floor", "trunc", "round"), ("default",), _rounded)
    enter(_FLOATS_UNARY, ("default",), _unary(FLOATS, _same))
    enter(_BOOL_UNARY, ("default",), _unary(KNOWN, _bool))
    enter(("bitwise_not",), ("default",), _unary(_INTEGERS, _same))
    enter(("isinf",), ("default",), _unary(FLOATS, _bool))
    enter(("hardtanh", "nan_to_num"), ("default",), _like)
    enter(("remainder", "fmod"), ("Tensor", "Scalar"), _binary(_NUMBERS, _same))
    enter(("floor_divide",), ("default", "Scalar"), _binary(_NUMBERS, _same))
    enter(("add", "mul"), ("Tensor", "Scalar"), _binary(KNOWN, _same))
    enter(("sub",), ("Tensor", "Scalar"), _subtract)
    enter(("rsub",), ("Tensor", "Scalar"), _subtract_reversed)
    enter(("maximum", "minimum", "fmax", "fmin"), ("default",), _binary(KNOWN, _same))
    enter(("div", "copysign"), ("Tensor", "Scalar"), _binary(KNOWN, float_result))
    enter(("atan2",), ("default",), _binary(KNOWN, float_result))
    enter(("xlogy",), ("Tensor",), _binary(KNOWN, float_result))
    enter(("special_xlog1py",), ("default",), _binary(KNOWN, float_result))
    enter(("logaddexp", "logaddexp2", "hypot", "nextafter", "igamma", "igammac"), ("default",), _binary_of_floats)
    enter(("heaviside",), ("default",), _matched(2, KNOWN))
    enter(_COMPARISONS, ("Tensor", "Scalar"), _binary(KNOWN, _bool))
    enter(("logical_and", "logical_or", "logical_xor"), ("default",), _binary(KNOWN, _bool))
    enter(_BITS, ("Tensor", "Scalar"), _bits)
    enter(("pow",), ("Tensor_Tensor",), _binary(_NUMBERS, _same))
    enter(("pow",), ("Scalar",), _pow_of_number)
    enter(("pow",), ("Tensor_Scalar",), _pow_number)
    enter(("div",), ("Tensor_mode", "Scalar_mode"), _divide_rounded)
    enter(("polygamma",), ("default",), lambda _, x: _unary(KNOWN, float_result)(x))
    enter(("clamp", "clamp_min", "clamp_max"), ("default", "Tensor"), _clamp)
    enter(("where",), ("self",), _where)
    enter(("addcmul",), ("default",), _scaled_update(_NUMBERS))
    enter(("addcdiv",), ("default",), _addcdiv)
    enter(("lerp",), ("Scalar",), _lerp_number)
    enter(("lerp",), ("Tensor",), _matched(3))
    enter(_BACKWARDS, ("default",), _matched(2))
    enter(("gelu_backward",), ("default",), _gelu_backward)
    enter(("threshold_backward", "leaky_relu_backward"), ("default",), _matched_reversed)
    enter(("elu_backward",), ("default",), _elu_backward)
    enter(("masked_fill",), ("Scalar", "Tensor"), _masked_fill)
    return rules


RULES: dict[str, Rule] = _table()
