"""Other sizes in the place of those a value of the compiler has: in specs, kernels, programs, plans and graphs.

    resized(Operand("x", (s0, 3), (3, 1)), {s0: 7}…)   →   Operand("x", (7, 3), (3, 1))

A record that holds no size that varies stays the object it is.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import fx

from smelt.ir.graph import Traced, copied_graph
from smelt.ir.kernel import (
    Accumulate,
    Axis,
    Const,
    Contract,
    Gather,
    Kernel,
    Load,
    Scatter,
    Store,
    WeightedSum,
    indices_of,
)
from smelt.ir.tensorspec import TensorSpec, set_spec, spec_of
from smelt.symbolic.expressions import ShapeEnv
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import moving, varies

Change = Callable[[Any], Any]

_PLAIN = (str, int, float, bool, type(None), torch.dtype, torch.device, torch.Tensor, torch._ops.OpOverload)


Fill = Callable[[Change], Any]


def resized(value: Any, change: Change, is_size: Callable[[Any], bool] = varies) -> Any:
    """`value` with `change` applied to each size in it that `is_size`."""
    fill = filling(value, is_size)
    return value if fill is None else fill(change)


def filling(value: Any, is_size: Callable[[Any], bool] = varies) -> Fill | None:
    """What makes `value` anew with other sizes, time and again; None if there are none in it that `is_size`."""
    if is_size(value):
        return lambda change: change(value)
    if isinstance(value, _PLAIN):
        return None
    if isinstance(value, tuple | list):
        items = [(item, filling(item, is_size)) for item in value]
        if all(fill is None for _, fill in items):
            return None
        kind = list if isinstance(value, list) else tuple
        return lambda change: kind([item if fill is None else fill(change) for item, fill in items])
    if isinstance(value, dict):
        fills = {name: fill for name, item in value.items() if (fill := filling(item, is_size)) is not None}
        return (lambda change: value | {name: fill(change) for name, fill in fills.items()}) if fills else None
    if is_dataclass(value) and not isinstance(value, type):
        held = ((each.name, filling(getattr(value, each.name), is_size)) for each in fields(value))
        parts = {name: fill for name, fill in held if fill is not None}
        return (lambda change: replace(value, **{n: fill(change) for n, fill in parts.items()})) if parts else None
    return None


def shape_env_of(kernel: Kernel) -> ShapeEnv | None:
    """The shape_env of the sizes in a kernel; None if they are plain numbers."""
    return next((size.shape_env for size in _sizes_in(kernel) if varies(size)), None)


def over_own_symbols(kernel: Kernel) -> tuple[Kernel, ShapeEnv]:
    """A kernel over symbols of a new `ShapeEnv`, which keeps what is relied on from now on, whatever was before. One of
    plain sizes stays as it is."""
    shape_env, own = shape_env_of(kernel), ShapeEnv()
    if shape_env is None:
        return kernel, own
    for each in shape_env.symbols:
        own.symbol(each.text, each.example)
    moved: Kernel = resized(kernel, moving(own))
    return moved, own


def _sizes_in(kernel: Kernel) -> Iterator[Any]:
    for axis in kernel.rows + kernel.cols:
        yield axis.size
    for stage in kernel.stages:
        if stage.steps is not None:
            yield stage.steps.size
    for buffer in kernel.buffers:
        yield buffer.size
    for instruction in kernel.instructions():
        if isinstance(instruction, Const):
            yield instruction.value
        for index in indices_of(instruction):
            yield index.offset
            yield from (stride for _, stride in index.terms)
        for _, stride, extent in instruction.by if isinstance(instruction, Gather | Scatter) else ():
            yield from (stride, extent)
        if isinstance(instruction, Contract | WeightedSum):
            yield from (axis.size for axis in instruction.axes)
            yield from (extent for factor in instruction.factors for _, extent in factor.bounds)


def resize_in_place(graph: fx.Graph, change: Change, is_size: Callable[[Any], bool] = varies) -> None:
    """Change the sizes in a graph's specs and arguments. A backward may vary though nothing that comes in does: the
    gradient of one element is spread over as many as there are, or put at the place that a number says."""
    if not any(_varies(spec_of(node)) or _holds(node.args, is_size) for node in graph.nodes):
        return
    for node in graph.nodes:
        spec = spec_of(node)
        if isinstance(spec, TensorSpec | tuple):
            set_spec(node, resized(spec, change, is_size))
        node.args = resized(node.args, change, is_size)
        node.kwargs = resized(node.kwargs, change, is_size)


_NO_SIZES = frozenset({int, float, bool, str, type(None), fx.Node, torch.dtype, torch.device})


def _holds(value: Any, is_size: Callable[[Any], bool]) -> bool:
    """Whether there is a size in an argument that `is_size`."""
    if type(value) in _NO_SIZES:
        return False
    if isinstance(value, tuple | list):
        return not _NO_SIZES.issuperset(map(type, value)) and any(_holds(item, is_size) for item in value)
    return filling(value, is_size) is not None


def _varies(spec: Any) -> bool:
    if isinstance(spec, tuple | list):
        return any(map(_varies, spec))
    return isinstance(spec, TensorSpec) and spec.varies


def resized_graph(traced: Traced, change: Change) -> Traced:
    """A copy of a graph with other sizes."""
    graph = copied_graph(traced.graph)
    resize_in_place(graph, change)
    return replace(traced, graph=graph)


# The length of a kernel: how many rows it has, or how many cols where it has no rows.


def length_axis(kernel: Kernel) -> Axis | None:
    """The axis whose size is the kernel's length: every buffer is that much longer for each step along it, or as long
    whatever the length. None if there is none, or sizes vary already."""
    if len(kernel.rows) > 1 or len(kernel.cols) > 1 or shape_env_of(kernel) is not None:
        return None
    axis = next(iter(kernel.rows + kernel.cols), None)
    fixed = (Gather, Scatter, Contract, WeightedSum)
    if axis is None or any(isinstance(each, fixed) for each in kernel.instructions()):
        return None
    steps = _steps(kernel, axis)
    for buffer in kernel.buffers:
        taken = steps.get(buffer.name, set()) - {0}
        if taken and (len(taken) > 1 or buffer.size != axis.size * max(taken)):
            return None
    return axis


def lengthened(kernel: Kernel, axis: Axis, length: Size) -> Kernel:
    """The kernel with another length."""
    steps = {name: max(taken) for name, taken in _steps(kernel, axis).items()}
    buffers = tuple(
        replace(each, size=length * steps[each.name]) if steps.get(each.name) else each for each in kernel.buffers
    )

    def changed(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(Axis(each.name, length) if each is axis else each for each in axes)

    return replace(kernel, rows=changed(kernel.rows), cols=changed(kernel.cols), buffers=buffers)


def _steps(kernel: Kernel, axis: Axis) -> dict[str, set[Size]]:
    """How far a step along the axis moves in each buffer."""
    steps: dict[str, set[Size]] = {}
    for instruction in kernel.instructions():
        if isinstance(instruction, Load | Store | Accumulate):
            steps.setdefault(instruction.buffer, set()).add(instruction.index.stride(axis.name))
    return steps
