"""Strides of results of operators without a rule, where inputs are not contiguous: the operator is run once.

    tried(aten.replication_pad3d.default, (f32[2, 3, 4, 4, 4]:(192, 1, 48, 12, 3), [1, 1, 1, 1, 1, 1]), {}, said)
        → `said`, the answer of PyTorch's meta kernel, with the strides that come out

Meta kernels know shapes and dtypes; of transposed, channels-last or expanded inputs many say other strides than the
CPU's code returns, which differ by processor and library too. A run on any numbers tells, at the price of one eager
call for each operator and layout. What cannot be tried keeps its description: what draws from PyTorch's own generator,
what raises for such numbers, what takes more than `LARGEST` bytes, what takes places that LAPACK counts from one: it
writes where they say.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.utils._mode_utils import no_dispatch

from smelt.device.host_library import HOST
from smelt.ir.tensorspec import UnplacedSpec
from smelt.meta.devices import tensors_in
from smelt.meta.effects import is_random, is_view
from smelt.meta.rules.strides import channels_last_stride
from smelt.symbolic.expressions import Expression
from smelt.symbolic.shapes import contiguous_stride, span
from smelt.symbolic.symnode import Formula, meaning, surely_equal

if TYPE_CHECKING:
    import torch
else:
    from smelt.base.torch_originals import pristine as torch

LARGEST = 1 << 28

_FAILURES = (RuntimeError, IndexError, ValueError, TypeError, ArithmeticError)


def tried(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], said: Any) -> Any:
    """`said`, a spec or a tuple or list of them, laid out as a run returns it; `NotImplemented` where that holds for
    the sizes of the example alone."""
    tensors = tensors_in((*args, *kwargs.values()))
    if all(_is_row_by_row(tensor) for tensor in tensors) or not _may_try(func, args, kwargs):
        return said
    specs = list(said) if isinstance(said, tuple | list) else [said]
    sizes = [_layout(each) for each in (*tensors, *specs) if isinstance(each, torch.Tensor | UnplacedSpec)]
    total = sum(span(shape, stride) * dtype.itemsize for shape, stride, dtype in sizes)
    if _indexes_nothing(tensors) or total > LARGEST:
        return said
    real = _run(func, args, kwargs)
    if real is None or len(real) != len(specs):
        return said
    laid_out = [_laid_out(spec, tensor) for spec, tensor in zip(specs, real, strict=True)]
    if any(each is NotImplemented for each in laid_out):
        return NotImplemented
    return type(said)(laid_out) if isinstance(said, tuple | list) else laid_out[0]


def _may_try(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a run leaves no trace. What libraries pack for themselves cannot be made up either."""
    schema = func._schema
    if func.namespace != "aten" or schema.is_mutable or is_view(func) or "mkldnn" in schema.name:
        return False
    if any("pivots" in name for name in _names(func)):
        return False
    return not is_random(func) or "generator" in _names(func)


def _names(func: Any) -> list[str]:
    return [argument.name for argument in func._schema.arguments]


def _is_row_by_row(tensor: torch.Tensor) -> bool:
    """Strides and all: with any strides of single elements, libraries may take it for channels-last."""
    shape = tensor.shape
    return tensor.dim() < 2 or all(map(surely_equal, tensor.stride(), contiguous_stride(shape)))


def _indexes_nothing(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether integers may be looked up in something empty: not every operator looks whether they can be."""
    empty = any(_example(size) == 0 for tensor in tensors for size in tensor.shape)
    return empty and any(not tensor.dtype.is_floating_point and 0 not in tensor.shape for tensor in tensors)


def _example(number: Any) -> Any:
    """The number that a symbolic one is in the example, which is not relied on."""
    what = meaning(number)
    if isinstance(what, Expression):
        return what.evaluate(lambda symbol: symbol.example)
    return what.example if isinstance(what, Formula) else what


def _layout(value: torch.Tensor | UnplacedSpec) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    stride = value.stride if isinstance(value, UnplacedSpec) else value.stride()
    return tuple(map(_example, value.shape)), tuple(map(_example, stride)), value.dtype


def _run(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any] | None:
    """What comes of integers that are 0, which index anything, or else of 1, which divides anything."""
    names = _names(func)
    for number in (0, 1):
        try:
            with no_dispatch(), torch._C._DisableAutocast():
                arguments = _made(dict(zip(names, args, strict=False)) | dict(kwargs), number)
                if is_random(func):
                    arguments["generator"] = torch.Generator()
                if arguments.get("output_mask"):  # without the first, PyTorch's channels-last group norm crashes
                    arguments["output_mask"] = [True, *arguments["output_mask"][1:]]
                result = func(**arguments)
        except _FAILURES:
            continue
        return list(result) if isinstance(result, tuple | list) else [result]
    return None


def _made(value: Any, number: int) -> Any:
    if isinstance(value, torch.Tensor):
        shape, stride, dtype = _layout(value)
        fill = 0.5 if dtype.is_floating_point or dtype.is_complex else number
        room = span(shape, stride)
        return torch.full((room,), fill, dtype=dtype, device=HOST).as_strided(shape, stride)
    if isinstance(value, tuple | list):
        return type(value)(_made(item, number) for item in value)
    if isinstance(value, dict):
        return {name: _made(item, number) for name, item in value.items()}
    return _example(value)


def _laid_out(spec: Any, real: Any) -> Any:
    """What was said of a result, with the strides it has."""
    if not isinstance(spec, UnplacedSpec) or not isinstance(real, torch.Tensor):
        return spec
    shape, stride, dtype = _layout(spec)
    if shape != tuple(real.shape) or dtype is not real.dtype or stride == real.stride():
        return spec
    for layout in (contiguous_stride, channels_last_stride):
        if len(shape) >= 1 and layout(shape) == real.stride():
            return replace(spec, stride=layout(spec.shape))
    return NotImplemented if spec.varies else replace(spec, stride=real.stride())
