"""The records by operator, and the one question asked of them: can this call be lowered, and if not, why not?

    record_of(aten.add.Tensor)  → its OpRecord          why_not_lower(node) → None, or "computes on complex64"
"""

import contextlib
import importlib
from collections.abc import Iterator
from contextvars import ContextVar
from operator import getitem
from typing import Any

import torch
from torch import fx

from smelt.device.host_library import on_host
from smelt.ir.tensorspec import TensorSpec, short_name, spec_of
from smelt.ops.promote import KERNEL_DTYPES
from smelt.ops.record import LIBRARY_COST, LibraryCall, Lookup, OpRecord, Pieces, Pointwise, Scan, Scatter, View
from smelt.symbolic.shapes import is_dense

_records: dict[torch._ops.OpOverload, OpRecord] = {}
_FAMILIES = (
    "pointwise", "compare_select", "activations", "creation", "reductions", "scans", "concat", "gathers", "shift_pad",
    "scatters", "views", "math_functions", "library", "dropout", "pool_gradients",
)  # fmt: skip
_loaded = False
_HAS_LIBRARY: ContextVar[bool] = ContextVar("has_library", default=True)


def has_library() -> bool:
    """Whether a call that the library does faster may be left to it."""
    return _HAS_LIBRARY.get()


@contextlib.contextmanager
def kernels_alone() -> Iterator[None]:
    """Within, there is no library: what a kernel can compute is lowered, however fast the library would be."""
    token = _HAS_LIBRARY.set(False)
    try:
        yield
    finally:
        _HAS_LIBRARY.reset(token)


def register(record: OpRecord) -> None:
    """Add a record; an operator has one."""
    if record.op in _records:
        raise ValueError(f"{record.op} has a record already")
    _records[record.op] = record


def _load(wanted: object = None) -> None:
    """Load one family of records after the other, until the one that is wanted is there."""
    global _loaded
    if _loaded:
        return
    for family in _FAMILIES:
        importlib.import_module(f"smelt.ops.{family}")
        if wanted in _records:
            return
    _loaded = True


def record_of(op: object) -> OpRecord:
    """The record of an operator; one that nobody wrote down is a plain library call."""
    record = _records.get(op)  # type: ignore[call-overload]
    if record is None:
        _load(op)
        record = _records.get(op)  # type: ignore[call-overload]
    if record is None:
        if not isinstance(op, torch._ops.OpOverload):
            raise TypeError(f"{op} is not an ATen operator")
        record = _records[op] = OpRecord(op, LibraryCall(), LIBRARY_COST)
    return record  # type: ignore[no-any-return]


def all_records() -> list[OpRecord]:
    """Every record that is written down, by name."""
    _load()
    written = [r for r in _records.values() if r.lowering != LibraryCall()]
    return sorted(written, key=lambda record: str(record.op))


def argument(node: fx.Node, position: int, name: str, default: Any = None) -> Any:
    """An argument of a call, given by position or by name."""
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def source_of(node: fx.Node) -> fx.Node:
    """The tensor that is a call's first argument."""
    source = node.args[0]
    assert isinstance(source, fx.Node)
    return source


def tensor_arguments(node: fx.Node) -> Iterator[TensorSpec]:
    """The specs of the tensors a call takes."""
    for argument in node.all_input_nodes:
        spec = spec_of(argument)
        if isinstance(spec, TensorSpec):
            yield spec


def only_result(node: fx.Node) -> TensorSpec | None:
    """The tensor that a call returns; of several the first, where nobody asks for another."""
    spec = spec_of(node)
    if isinstance(spec, tuple):
        asked = (user for user in node.users if user.target is not getitem or user.users)
        spec = spec[0] if all(user.target is getitem and user.args[1] == 0 for user in asked) else None
    return spec if isinstance(spec, TensorSpec) else None


def _is_host_number(spec: TensorSpec, record: OpRecord) -> bool:
    """Whether whoever launches the operator reads a number on the host and passes it along, as PyTorch does."""
    return not spec.shape and on_host(spec.device) and isinstance(record.lowering, Pointwise)


def why_not_lower(node: fx.Node) -> str | None:
    """Why a call stays a library call, in words, or None when kernels can compute it exactly as PyTorch does."""
    record = record_of(node.target)
    if isinstance(record.lowering, LibraryCall):
        return record.lowering.why
    if isinstance(record.lowering, View):
        return record.why_not(node) if record.why_not else None
    result = only_result(node)
    if result is None:
        return "does not return one tensor"
    for spec in (*tensor_arguments(node), result):
        if spec.dtype not in KERNEL_DTYPES:
            return f"computes on {short_name(spec.dtype)}"
        if spec.numel == 0 and (has_library() or node.target is not torch.ops.aten.full.default):
            return "has no elements"
        if spec.device != result.device and not _is_host_number(spec, record):
            return f"moves between {spec.device} and {result.device}"
    if node.kwargs.get("pin_memory"):
        return "is in page-locked memory, which PyTorch has"
    if result.numel != 0 and not is_dense(result.shape, result.stride):
        return "returns a tensor with gaps"
    if isinstance(record.lowering, Pieces | Lookup | Scan | Scatter):
        call = record.lowering.read(node)
        return call if isinstance(call, str) else None
    return record.why_not(node) if record.why_not else None
