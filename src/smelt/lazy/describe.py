"""What a new call returns: layouts of its results by fake tensors, and what they share memory with.

    add(f32[3], f32[3])  →  one Fresh result          t(f32[2, 3])  →  a View of argument 0          add_(…)  →  Same

`Undescribed` is raised for what depends on data, and for any error: the operator itself then runs on the real device,
and gives the result, or raises in PyTorch's words."""

from collections.abc import Mapping
from typing import Any

import torch

from smelt.dispatch import fused_optimizers
from smelt.dispatch.signatures import Signature
from smelt.dispatch.tensors import Layout, bytes_of, layout_of, memory_of
from smelt.ir.tensorspec import TensorSpec, UnplacedSpec
from smelt.lazy.steps import Fresh, Result, Same, View
from smelt.meta.fake_tensor import FakeTensor, described


class Undescribed(Exception):
    """Nothing is known of the results but by running the operator."""


def describe_call(
    known: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any], device: torch.device
) -> tuple[tuple[Result, ...], type | None]:
    """The results, and the form they come in: None for one tensor, else tuple or list."""
    if known.written and _overlaps(known, args, kwargs):
        raise Undescribed(f"{known.operator} writes memory that is an element twice, or another operand's")
    if known.operator in fused_optimizers.IN_PLACE:  # PyTorch itself describes one of them
        return (), None
    fakes = tuple(_as_fake(value, device) for value in args)
    named = {name: _as_fake(value, device) for name, value in kwargs.items() if name != "device"}
    if known.takes_device:
        named["device"] = device
    if any(value in _QUANTIZED for value in (*args, *kwargs.values()) if isinstance(value, torch.dtype)):
        raise Undescribed(f"{known.operator} makes quantized tensors")
    try:
        template = described(known.operator, fakes, named, device)
    except Exception as error:
        raise Undescribed(str(error)) from error
    if template is NotImplemented:
        raise Undescribed(f"nothing describes {known.operator}")
    if not known.results:
        return (), None
    results = _results(known, template, args, kwargs)
    form = None if isinstance(template, _SPECS) else type(template)
    return results, tuple if form is not list and form is not None else form


def _overlaps(known: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether most operators would refuse a call: it writes a tensor with one place for several elements, as expanded
    ones have, or with places of another operand. They say so before anything is written."""
    named = (*zip(known.names, args, strict=False), *kwargs.items())
    device_type = torch._C._get_privateuse1_backend_name()
    layouts: dict[int, list[tuple[bool, Layout]]] = {}
    for name, value in named:
        for tensor in value if isinstance(value, tuple | list) else (value,):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == device_type:
                entry = name in known.written, layout_of(tensor)
                layouts.setdefault(id(memory_of(tensor)), []).append(entry)
    for sharing in layouts.values():
        for is_written, layout in sharing:
            if is_written and (_is_expanded(layout) or any(_cross(layout, other) for _, other in sharing)):
                return True
    return False


def _is_expanded(layout: Layout) -> bool:
    shape, stride, _, _ = layout
    return 0 not in shape and any(size > 1 and not step for size, step in zip(shape, stride, strict=True))


def _cross(one: Layout, other: Layout) -> bool:
    """Whether two dense tensors of one memory have places in common and are not the same elements in the same order."""
    spans = []
    for shape, stride, offset, dtype in (one, other):
        count = shape.numel()
        if not count or bytes_of(shape, stride, 0, dtype) != count * dtype.itemsize:
            return False
        spans.append((offset * dtype.itemsize, (offset + count) * dtype.itemsize))
    (begin, end), (other_begin, other_end) = spans
    if (begin, end) == (other_begin, other_end):
        return one[1] != other[1]
    return begin < other_end and other_begin < end


_QUANTIZED = (torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4)

_SPECS = (UnplacedSpec, TensorSpec)


def _results(known: Signature, template: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Result, ...]:
    if template is None or (isinstance(template, tuple | list) and not template):
        return ()
    one = isinstance(template, _SPECS)
    if not one and not isinstance(template, tuple | list):
        raise Undescribed(f"{known.operator} returns {type(template).__name__}")
    if one or (len(known.results) == len(template) and not _is_list(known)):
        specs = (template,) if one else tuple(template)
        kinds = known.results
        if len(kinds) != len(specs):
            raise Undescribed(f"{known.operator} returns another number of tensors than its schema says")
        return tuple(_result(known, spec, kind, args, kwargs) for spec, kind in zip(specs, kinds, strict=True))
    kind = known.results[0] if known.results else None
    if kind is not None and kind[0] == "same":
        raise Undescribed(f"{known.operator} returns a list of what it has written")
    return tuple(_result(known, spec, kind, args, kwargs) for spec in template)


def _is_list(known: Signature) -> bool:
    return str(known.operator._schema.returns[0].type) == "List[Tensor]"


def _result(
    known: Signature, spec: Any, kind: tuple[str, str] | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Result:
    if spec is None or type(spec) is int:  # no tensor, or a size, which whoever records this knows
        return None
    if not isinstance(spec, _SPECS):
        raise Undescribed(f"{known.operator} returns {type(spec).__name__}")
    layout = _layout(spec)
    if kind is None:
        shape, stride, _, dtype = layout
        return Fresh((shape, stride, 0, dtype), bytes_of(shape, stride, 0, dtype))
    position = known.names.index(kind[1])
    path = (position,) if position < len(args) else (kind[1],)
    if kind[0] == "view":
        return View(layout, path)
    argument: Any = args[position] if position < len(args) else kwargs[kind[1]]
    if layout_of(argument)[0] != layout[0]:
        raise Undescribed(f"{known.operator} changes the shape of what it writes")
    return Same(path)


def _layout(spec: UnplacedSpec | TensorSpec) -> Layout:
    shape: Any = spec.shape
    stride: Any = spec.stride
    offset: Any = spec.offset
    if not all(type(size) is int for size in (*shape, *stride, offset)):
        raise Undescribed("a size is not known")
    return torch.Size(shape), tuple(stride), offset, spec.dtype


def _as_fake(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        shape, stride, offset, dtype = layout_of(value)
        return FakeTensor(TensorSpec(tuple(shape), stride, dtype, device, offset))
    if isinstance(value, tuple | list):
        return type(value)([_as_fake(item, device) for item in value])
    return value
