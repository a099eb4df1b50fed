"""`torch.nn.functional.interpolate` of images whose sizes differ from call to call.

    interpolate(x, size=y.shape[2:], mode="bilinear")   →   aten.upsample_bilinear2d(x, [s0, s1], False, None, None)

The operators that PyTorch's function leads to make constants of the sizes, or refuse them; those beneath do not.
"""

from typing import Any

import torch
import torch.nn.functional as F

from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.model.values import Constant, Number, Sequence, Tensor, Value, of_number
from smelt.symbolic.symnode import is_symbolic

aten = torch.ops.aten

_ALIGNING: dict[tuple[str, int], Any] = {
    ("linear", 1): aten.upsample_linear1d.default,
    ("bilinear", 2): aten.upsample_bilinear2d.default,
    ("bicubic", 2): aten.upsample_bicubic2d.default,
    ("trilinear", 3): aten.upsample_trilinear3d.default,
}
_PICKING: dict[tuple[str, int], Any] = {
    ("nearest", 1): aten.upsample_nearest1d.default,
    ("nearest", 2): aten.upsample_nearest2d.default,
    ("nearest", 3): aten.upsample_nearest3d.default,
    ("nearest-exact", 1): aten._upsample_nearest_exact1d.default,
    ("nearest-exact", 2): aten._upsample_nearest_exact2d.default,
    ("nearest-exact", 3): aten._upsample_nearest_exact3d.default,
}
_NAMES = ("input", "size", "scale_factor", "mode", "align_corners", "recompute_scale_factor", "antialias")


def resized(interp: Interpreter, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """What `interpolate` yields; None where nothing varies, or for what is rare or wrong."""
    if function is not F.interpolate or len(args) > len(_NAMES):
        return None
    options = dict(zip(_NAMES, args, strict=False)) | kwargs
    image, mode = options.pop("input", None), _plain(options.pop("mode", Constant("nearest")))
    size, scale = options.pop("size", Constant(None)), options.pop("scale_factor", Constant(None))
    aligned = _plain(options.pop("align_corners", Constant(None)))
    if not isinstance(image, Tensor) or any(_plain(value) not in (None, False) for value in options.values()):
        return None
    dims = image.fake.dim() - 2
    key, aligns = (mode, dims), (mode, dims) in _ALIGNING
    if aligned is ... or (not aligns and (key not in _PICKING or aligned is not None)):
        return None
    sizes = _each(interp, size, dims)
    scales = [_plain(each) for each in _each(interp, scale, dims) or ()]
    if (sizes is None) == (not scales) or not _varies(image, sizes):
        return None
    if sizes is None:
        if any(type(each) not in (int, float) or not float(each).is_integer() for each in scales):
            return None
        sizes = [of_number(extent * int(by)) for extent, by in zip(image.fake.shape[2:], scales, strict=True)]
    alignment = [Constant(bool(aligned))] if aligns else []
    by = [Constant(float(each)) for each in scales] or [Constant(None)] * dims
    target = _ALIGNING[key] if aligns else _PICKING[key]
    return interp.tensor_call("call_function", target, [image, Sequence(list, sizes), *alignment, *by])


def _plain(value: Value) -> Any:
    """A value that does not vary; `...` for others."""
    varies = isinstance(value, Number) and value.symbolic is not None
    return value.value if isinstance(value, Constant) and not varies else ...


def _each(interp: Interpreter, value: Value, dims: int) -> list[Value] | None:
    """A number for each dimension, of one for all or of a sequence; None if there is none, or they do not fit."""
    if isinstance(value, Sequence):
        return [interp.externals.force(item) for item in value.items] if len(value.items) == dims else None
    if not isinstance(value, Constant) or (not isinstance(value, Number) and value.value is None):
        return None
    return [value] * dims


def _varies(image: Tensor, sizes: list[Value] | None) -> bool:
    varying = any(map(is_symbolic, image.fake.shape))
    return varying or any(isinstance(each, Number) and each.symbolic is not None for each in sizes or ())
