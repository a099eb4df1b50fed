"""Collectives of `torch.distributed` that write their arguments: functional operators, and copies of their results.

    dist.all_reduce(x)      →      x.copy_(wait_tensor(_c10d_functional.all_reduce(x, "sum", "0")))

`async_op=True` is the same, with a `Work` that is done: nobody may look at the tensors before it has waited, and the
graph waits where the result is read. What eager would refuse, or autograd would record, is left to Python.
"""

import importlib
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from smelt.capture.calls.process_groups import answers_as, known_group
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.policy import known_name
from smelt.capture.model.values import Constant, Distributed, Object, Sequence, Tensor, Value
from smelt.capture.polyfills.library import CompletedWork

_MODULE = "torch.distributed.distributed_c10d"
_REDUCTIONS = {"SUM": "sum", "PRODUCT": "product", "MIN": "min", "MAX": "max"}  # of every backend
_OPERATORS = torch.ops._c10d_functional


class _Call:
    """A call of a collective: its arguments by name, and its group."""

    def __init__(self, interp: Interpreter, function: Object, args: list[Value], kwargs: dict[str, Value]) -> None:
        real = interp.externals.guard_identity(function)
        self.interp, self.name = interp, real.__qualname__
        try:
            bound = inspect.signature(real).bind(*args, **kwargs)
        except TypeError as error:
            raise Unsupported("B019", f"TypeError: {error}") from None
        self.arguments = bound.arguments
        self.is_async = bool(self.plain("async_op", False))
        group = known_group(interp, self.arguments.get("group", Constant(None)))
        root = self.plain("src", None), self.plain("group_src", None)

        def described() -> Any:
            return _describe(group, root)

        try:
            description = described()
        except (AttributeError, KeyError, RuntimeError, ValueError) as error:
            raise Unsupported("B019", f"{type(error).__name__}: {error}") from error
        if description is None or function.source is None:
            raise Unsupported("B002", f"{self.name}, of a group that this process is not in,")
        function.source.check(("predicate", answers_as(described, description)))
        interp.tree.why_not_persist = "process groups"
        self.group, self.size, self.root = description

    def plain(self, name: str, default: Any) -> Any:
        return self.interp.plain(self.arguments[name]) if name in self.arguments else default

    def tensors(self, *names: str) -> list[Tensor]:
        """Arguments that are tensors of one kind, contiguous, and of no interest to autograd."""
        tensors: list[Any] = []
        for name in names:
            value = self.arguments.get(name)
            is_list = name == "tensor_list" and isinstance(value, Sequence)
            tensors += self.interp.externals.items(value) if is_list else [value]  # type: ignore[arg-type]
        if not all(isinstance(each, Tensor) and not isinstance(each, Distributed) for each in tensors):
            raise Unsupported("B002", f"{self.name}, of something else than tensors,")
        first = tensors[0].fake
        for each in tensors:
            fake = each.fake
            plain = fake.is_contiguous() and not (fake.dtype.is_complex or fake.dtype is torch.bool)
            if not plain or (fake.dtype, fake.device) != (first.dtype, first.device):
                raise Unsupported("B002", f"{self.name}, of tensors that are not contiguous or not of one kind,")
            if fake.requires_grad and torch.is_grad_enabled():
                raise Unsupported("B002", f"{self.name}, of a tensor that requires a gradient,")
        return tensors

    def reduction(self) -> Constant:
        """How the tensors are reduced, as the operators are told."""
        value = self.arguments.get("op", Constant("SUM"))
        real = self.interp.externals.guard_identity(value) if isinstance(value, Object) else self.interp.plain(value)
        name = str(real).rpartition(".")[2]
        if name not in _REDUCTIONS:
            raise Unsupported("B002", f"{self.name}, with another reduction than {', '.join(_REDUCTIONS)},")
        return Constant(_REDUCTIONS[name])

    def splits(self, name: str, rows: Any) -> Sequence:
        """How many rows go to or come from each process: as many for all if the program does not say."""
        self.refuse_unless(isinstance(rows, int))
        sizes = self.plain(name, None) or [rows // self.size] * self.size
        self.refuse_unless(len(sizes) == self.size and sum(sizes) == rows)
        return Sequence(list, [Constant(int(size)) for size in sizes])

    def run(self, operator: Any, tensor: Tensor, *options: Value) -> Tensor:
        operands: list[Value] = [tensor, *options, Constant(self.group)]
        started = self.interp.tensor_call("call_function", operator, operands)
        result = self.interp.tensor_call("call_function", _OPERATORS.wait_tensor.default, [started])
        assert isinstance(result, Tensor)
        return result

    def write(self, tensor: Tensor, result: Value) -> None:
        self.interp.tensor_call("call_method", "copy_", [tensor, result])

    def refuse_unless(self, holds: bool) -> None:
        if not holds:
            raise Unsupported("B002", f"{self.name}, of tensors whose sizes do not fit,")


def _describe(group: Any, root: tuple[Any, Any]) -> Any:
    """The name of a group, its size, and the rank in it of the process that sends; None for one that is not in it."""
    module = sys.modules[_MODULE]
    if module._rank_not_in_group(group):
        return None
    own = group if group is not None else module._get_default_group()
    sender = None if root == (None, None) else module._canonicalize_group_rank(own, *root, return_global=False)
    return own.group_name, own.size(), sender


def _all_reduce(call: _Call) -> None:
    (tensor,) = call.tensors("tensor")
    call.write(tensor, call.run(_OPERATORS.all_reduce.default, tensor, call.reduction()))


def _broadcast(call: _Call) -> None:
    (tensor,) = call.tensors("tensor")
    call.refuse_unless(call.root is not None)
    call.write(tensor, call.run(_OPERATORS.broadcast.default, tensor, Constant(call.root)))


def _all_gather_into(call: _Call) -> None:
    output, source = call.tensors("output_tensor", "input_tensor")
    shape, own = tuple(output.fake.shape), tuple(source.fake.shape)
    call.refuse_unless(bool(own) and shape == (own[0] * call.size, *own[1:]))
    gathered = call.run(_OPERATORS.all_gather_into_tensor.default, source, Constant(call.size))
    call.write(output, gathered)


def _all_gather(call: _Call) -> None:
    *outputs, source = call.tensors("tensor_list", "tensor")
    own = tuple(source.fake.shape)
    call.refuse_unless(len(outputs) == call.size and all(tuple(each.fake.shape) == own for each in outputs))
    gathered = call.run(_OPERATORS.all_gather_into_tensor.default, source, Constant(call.size))
    sizes: list[Value] = [Constant(size) for size in (call.size, *own)]
    parts = call.interp.tensor_call("call_method", "view", [gathered, *sizes])
    for place, output in enumerate(outputs):
        call.write(output, call.interp.tensor_call("call_method", "select", [parts, Constant(0), Constant(place)]))


def _reduce_scatter(call: _Call) -> None:
    output, source = call.tensors("output", "input")
    shape, own = tuple(output.fake.shape), tuple(source.fake.shape)
    call.refuse_unless(bool(shape) and own == (shape[0] * call.size, *shape[1:]))
    call.write(
        output, call.run(_OPERATORS.reduce_scatter_tensor.default, source, call.reduction(), Constant(call.size))
    )


def _all_to_all(call: _Call) -> None:
    output, source = call.tensors("output", "input")
    shape, own = tuple(output.fake.shape), tuple(source.fake.shape)
    call.refuse_unless(bool(shape) and bool(own) and shape[1:] == own[1:])
    received, sent = call.splits("output_split_sizes", shape[0]), call.splits("input_split_sizes", own[0])
    call.write(output, call.run(_OPERATORS.all_to_all_single.default, source, received, sent))


_IN_PLACE: dict[str, Callable[[_Call], None]] = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_gather_into_tensor": _all_gather_into,
    "all_gather_single": _all_gather_into,
    "all_to_all_single": _all_to_all,
    "reduce_scatter_tensor": _reduce_scatter,
    "reduce_scatter_single": _reduce_scatter,
}
_NAMES = frozenset(f"{_MODULE}.{name}" for name in _IN_PLACE)
_DECORATORS = ("c10d_logger.py", "typing_extensions.py", "warnings.py")  # which log what is raised, or that it is old


def is_collective(function: types.FunctionType) -> bool:
    """Whether a function is a collective of PyTorch's own that writes its arguments."""
    while function.__code__.co_name == "wrapper" and function.__code__.co_filename.endswith(_DECORATORS):
        inner = function.__dict__.get("__wrapped__")
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        if type(inner) is not types.FunctionType or not any(inner is held for held in cells):
            return False
        function = inner
    return known_name(function) in _NAMES


def collect(interp: Interpreter, function: Object, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A collective that writes its arguments."""
    importlib.import_module("torch.distributed._functional_collectives")  # which says what the operators return
    call = _Call(interp, function, args, kwargs)
    _IN_PLACE[call.name](call)
    if not call.is_async:
        return Constant(None)
    return interp.call(interp.externals.fixed(CompletedWork), [])
