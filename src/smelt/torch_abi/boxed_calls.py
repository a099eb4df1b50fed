"""Operators called without Python: through PyTorch's dispatcher, boxed, or by a C function that libtorch exports.

    boxed_call(aten.select_copy.int, (x, 1, 2), {}, Operand)
        →   Native("aten::select_copy", "int", (x,), (TENSOR, 0, WORD, 1, WORD, 2), (), 1)

`torch_call_dispatcher` takes any operator by name, with its arguments on a stack of 64-bit words. How a word stands for
an argument depends on its type in the operator's schema; `csrc/runner/native_call.h` has the codes that say so. Each
kind of argument and of result is tried once, on a small call whose result Python knows too, before a program is written
that has it. In the disk cache, programs are found by the very PyTorch that they were tried with.

It has no word for a number that is an integer or a float as it comes (`Scalar`). Products of matrices have such
numbers, and are called by functions of their own, which also take less time: no dispatch, no stack.
"""

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from smelt import _native
from smelt.ir.table.layout import double_bits
from smelt.ir.table.records import (
    DOUBLE,
    LIST,
    NONE,
    SOME,
    STRING,
    TENSOR,
    WORD,
    Call,
    Layout,
    Native,
    Program,
    ProgramTable,
    Ref,
    Tensor,
)
from smelt.ir.table.write import write_program
from smelt.symbolic.symsize import is_symsize
from smelt.torch_abi.aoti_shims import connect, device_code, dtype_code
from smelt.torch_abi.symbols import find_symbol

aten = torch.ops.aten


class _Wrong(Exception):
    """A call that was to be made natively came to Python."""


# --- functions of one operator each ---------------------------------------------------------------

# Operators with a function that writes into `out`, and the factors each takes.
FUNCTIONS: dict[torch._ops.OpOverload, tuple[str, ...]] = {
    aten.mm.out: (),
    aten.bmm.out: (),
    aten.addmm.out: ("beta", "alpha"),
    aten.baddbmm.out: ("beta", "alpha"),
}
_NAMES = {(op, device): f"{op} on {device}" for op in FUNCTIONS for device in ("cpu", "cuda")}
_OPERATORS = {name: which for which, name in _NAMES.items()}


def function_call(
    op: torch._ops.OpOverload,
    tensors: tuple[Any, ...],
    factors: tuple[float, ...],
    product: tuple[Any, ...],
    device: str,
) -> Native | None:
    """A product by its own function for such a device; the result is the first of `tensors`. None where there is none.
    `product`: how to make it without a call, see `Native`."""
    if not connect() or not _holds(_NAMES[op, device]):
        return None
    return _function_call(op, tensors, factors, device, product)


def _function_call(
    op: torch._ops.OpOverload,
    tensors: tuple[Any, ...],
    factors: tuple[float, ...],
    device: str,
    product: tuple[Any, ...] = (),
) -> Native:
    name, code = _function_code(op, len(tensors), tuple(map(double_bits, factors)), device)
    return Native(name, None, tensors, code, (), 0, product, *factors)


@functools.lru_cache(maxsize=256)
def _function_code(
    op: torch._ops.OpOverload, tensors: int, factors: tuple[int, ...], device: str
) -> tuple[str, tuple[int, ...]]:
    code = [each for place in range(tensors) for each in (TENSOR, place)]
    code += [each for factor in factors for each in (DOUBLE, factor)]
    return f"aoti_torch_{device}_{op._schema.name.removeprefix('aten::')}_out", tuple(code)


# --- any operator -----------------------------------------------------------------------------------


def boxed_call(
    op: torch._ops.OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensor: type,
    ref: Callable[[Any], Any] = lambda each: each,
) -> Native | None:
    """A call through the dispatcher, of arguments in which objects of the class `tensor` stand for tensors; what `ref`
    returns for each is in their place in the call. None where Python has to make it.

    Operators that are not PyTorch's own are left to Python: if one raises, it would run a second time to say so.
    """
    if op.namespace != "aten" or not connect():
        return None
    encoded = _encoded(op, args, kwargs, tensor, ref)
    return encoded[0] if encoded is not None and all(map(_holds, encoded[1])) else None


class _Unboxable(Exception):
    """An argument that no word stands for."""


def _encoded(
    op: torch._ops.OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensor: type,
    ref: Callable[[Any], Any] = lambda each: each,
) -> tuple[Native, set[str]] | None:
    """The call, and which kinds of arguments and results it has."""
    parameters, returns = _signature(op)
    if returns is None:
        return None
    writer = _Writer(tensor)
    try:
        for place, (name, kind, default) in enumerate(parameters):
            writer.write(args[place] if place < len(args) else kwargs.get(name, default), kind)
    except _Unboxable:
        return None
    writer.kinds.add("returns a list" if returns < 0 else "returns several" if returns > 1 else "returns one")
    schema = op._schema
    tensors, code, texts = tuple(map(ref, writer.tensors)), tuple(writer.code), tuple(writer.texts)
    return Native(schema.name, schema.overload_name, tensors, code, texts, returns), writer.kinds


@functools.cache
def _signature(op: torch._ops.OpOverload) -> tuple[tuple[tuple[str, Any, Any], ...], int | None]:
    """Parameters as (name, type, default), and how many tensors are returned; None: what no native call may return."""
    schema = op._schema
    parameters = tuple((each.name, _kind(each.real_type), each.default_value) for each in schema.arguments)
    kinds = [_kind(each.real_type) for each in schema.returns]
    views = any(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns)
    if views:
        return parameters, None
    if kinds == [("list", "tensor")]:
        return parameters, -1
    return parameters, len(kinds) if all(kind == "tensor" for kind in kinds) else None


_KINDS = {
    "TensorType": "tensor",
    "IntType": "int",
    "SymIntType": "int",
    "FloatType": "float",
    "BoolType": "bool",
    "StringType": "string",
    "ScalarTypeType": "dtype",
    "LayoutType": "layout",
    "MemoryFormatType": "memory format",
    "DeviceObjType": "device",
}


def _kind(schema_type: Any) -> Any:
    name = schema_type.kind()
    if name == "OptionalType":
        return ("optional", _kind(schema_type.getElementType()))
    if name == "ListType":
        return ("list", _kind(schema_type.getElementType()))
    return _KINDS.get(name, name)


class _Writer:
    """Arguments as their code."""

    def __init__(self, tensor: type) -> None:
        self.tensor = tensor
        self.tensors: list[Any] = []
        self.texts: list[str] = []
        self.code: list[int] = []
        self.kinds: set[str] = set()

    def write(self, value: Any, kind: Any) -> None:
        if isinstance(kind, tuple):
            wrapper, inner = kind
            return self._optional(value, inner) if wrapper == "optional" else self._list(value, inner)
        self.kinds.add(kind)
        if kind == "tensor":
            return self._indexed(TENSOR, value, self.tensors, self.tensor)
        if kind == "string":
            return self._indexed(STRING, value, self.texts, str)
        word = _WORDS.get(kind, _no_word)(value)
        if word is None:
            raise _Unboxable
        self.code += (WORD, word)
        return None

    def _indexed(self, code: int, value: Any, table: list[Any], expected: type) -> None:
        if not isinstance(value, expected):
            raise _Unboxable
        self.code += (code, len(table))
        table.append(value)

    def _optional(self, value: Any, inner: Any) -> None:
        self.kinds.add("none" if value is None else "some")
        self.code.append(NONE if value is None else SOME)
        if value is not None:
            self.write(value, inner)

    def _list(self, value: Any, inner: Any) -> None:
        if not isinstance(value, list | tuple) or isinstance(value, self.tensor):
            raise _Unboxable
        self.kinds.add("list")
        self.code += (LIST, len(value))
        for item in value:
            self.write(item, inner)


def _no_word(value: Any) -> int | None:
    return None


def _int_word(value: Any) -> int | None:
    return value if is_symsize(value) or (type(value) is int and -(1 << 63) <= value < 1 << 63) else None


def _float_word(value: Any) -> int | None:
    return double_bits(float(value)) if type(value) in (int, float) else None


def _bool_word(value: Any) -> int | None:
    return int(value) if type(value) is bool else None


def _dtype_word(value: Any) -> int | None:
    """Of a dtype, or of its number, which is how a schema has it as a default."""
    code = dtype_code(value) if isinstance(value, torch.dtype) else value if type(value) is int else -1
    return code if code >= 0 else None


def _named_word(kind: type, prefix: str) -> Callable[[Any], int | None]:
    """What the function named after a layout or a memory format says."""

    def word(value: Any) -> int | None:
        return _number_of(prefix + str(value).removeprefix("torch.")) if isinstance(value, kind) else None

    return word


def _device_word(value: Any) -> int | None:
    kind = _number_of(f"aoti_torch_device_type_{value.type}") if isinstance(value, torch.device) else None
    return None if kind is None else kind << 32 | (0xFFFFFFFF if value.index is None else value.index)


@functools.cache
def _number_of(name: str) -> int | None:
    address = find_symbol(name)
    return None if address is None else int(ctypes.CFUNCTYPE(ctypes.c_int32)(address)())


_WORDS: dict[Any, Callable[[Any], int | None]] = {
    "int": _int_word,
    "float": _float_word,
    "bool": _bool_word,
    "dtype": _dtype_word,
    "layout": _named_word(torch.layout, "aoti_torch_layout_"),
    "memory format": _named_word(torch.memory_format, "aoti_torch_memory_format_"),
    "device": _device_word,
}


# --- trying it ----------------------------------------------------------------------------------------

_known: dict[str, bool] = {}


def _holds(what: str) -> bool:
    """Whether a kind of argument or result arrives, or an operator's own function does what the operator does."""
    holds = _known.get(what)
    if holds is None:
        if torch._C._len_torch_dispatch_stack() or (what.endswith(" on cuda") and not _may_try_cuda()):
            return False  # a mode would see the attempt, or a CUDA graph record it: next time
        holds = _known[what] = _native.preserving_state(lambda: _tried(what))
    return holds


def _may_try_cuda() -> bool:
    initialized: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return initialized and not torch.cuda.is_current_stream_capturing()


def _tried(what: str) -> bool:
    with torch._C.DisableTorchFunction(), torch._C._InferenceMode(False), torch.no_grad():
        if what in _OPERATORS:
            return _function_works(*_OPERATORS[what])
        sample = _SAMPLES.get(what)
        return sample is not None and _sample_works(*sample())


def _numbers(*shape: int) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return (torch.arange(count, dtype=torch.float32, device="cpu") * 7 % 11 - 5).reshape(shape)


_Sample = tuple[torch._ops.OpOverload, tuple[Any, ...], dict[str, Any]]

# For each kind of argument or result, a call that comes out otherwise if that does not arrive as it was meant.
_SAMPLES: dict[str, Callable[[], _Sample]] = {
    "tensor": lambda: (aten.mm.default, (_numbers(2, 3), _numbers(3, 4)), {}),
    "returns one": lambda: (aten.mm.default, (_numbers(2, 3), _numbers(3, 4)), {}),
    "int": lambda: (aten.select_copy.int, (_numbers(3, 4), -1, 2), {}),
    "float": lambda: (aten.native_layer_norm.default, (_numbers(3, 4), [4], None, None, 0.75), {}),
    "bool": lambda: (aten.sort.default, (_numbers(3, 4), 0, True), {}),
    "returns several": lambda: (aten.sort.default, (_numbers(3, 4), 0, True), {}),
    "none": lambda: (aten.sum.default, (_numbers(3, 4),), {"dtype": None}),
    "some": lambda: (aten.sum.default, (_numbers(3, 4),), {"dtype": torch.float64}),
    "dtype": lambda: (aten.sum.default, (_numbers(3, 4),), {"dtype": torch.int16}),
    "device": lambda: (aten.eye.m, (2, 3), {"device": torch.device("cpu")}),
    "layout": lambda: (aten.eye.m, (2, 3), {"layout": torch.strided, "device": torch.device("cpu")}),
    "memory format": lambda: (aten.clone.default, (_numbers(1, 2, 2, 3),), {"memory_format": torch.channels_last}),
    "string": lambda: (aten.gelu.default, (_numbers(3, 4),), {"approximate": "tanh"}),
    "list": lambda: (aten.index.Tensor, (_numbers(3, 4), [None, torch.tensor([2, 0], device="cpu")]), {}),
    "returns a list": lambda: (aten.unbind_copy.int, (_numbers(3, 4), 1), {}),
}


def _sample_works(op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    encoded = _encoded(op, args, kwargs, torch.Tensor)
    if encoded is None:
        return False
    wanted = op(*args, **kwargs)
    several = [wanted] if isinstance(wanted, torch.Tensor) else list(wanted)
    results = _made_natively(encoded[0], several)
    return results is not None and all(map(_is_same, results, several))


def _function_works(op: torch._ops.OpOverload, device: str) -> bool:
    factors = (0.5, 3.0) if FUNCTIONS[op] else ()
    batch = (2,) if op in (aten.bmm.out, aten.baddbmm.out) else ()
    left, right, addend = (_numbers(*batch, *shape).to(device) for shape in ((2, 3), (3, 4), (2, 4)))
    tensors = [addend, left, right] if factors else [left, right]
    out = torch.empty_like(addend)
    wanted = op(*tensors, **dict(zip(FUNCTIONS[op], factors, strict=True)), out=torch.empty_like(addend))
    results = _made_natively(_function_call(op, (out, *tensors), factors, device), [])
    return results is not None and _is_same(out, wanted)


def _is_same(actual: torch.Tensor, wanted: torch.Tensor) -> bool:
    layout = [(each.dtype, each.shape, each.stride(), each.device) for each in (actual, wanted)]
    return layout[0] == layout[1] and torch.equal(actual, wanted)


def _made_natively(call: Native, like: Sequence[torch.Tensor]) -> Sequence[torch.Tensor] | None:
    """What a program of this one call returns; None if the call did not get through."""

    def refused(*_: Any, **__: Any) -> Any:
        raise _Wrong

    tensors, input_count = call.tensors, len(call.tensors)
    call = call._replace(tensors=tuple(Ref(value) for value in range(input_count)))
    every: tuple[Any, ...] = (*tensors, *like)
    described = tuple(Tensor("", t.dtype, t.device, Layout(tuple(t.shape), t.stride())) for t in every)
    results = tuple(range(input_count, len(every)))
    step = Call(call.name, refused, results=results, is_one=call.returns == 1, native=call)
    whole = Program(input_count, 0, 0, 0, False, tuple(map(Ref, results)))
    table, objects = write_program(ProgramTable("", described, (), (step,), whole), dtype_code, device_code)
    run = _native.Runner(
        table, objects, threads=refused, acquire=refused, release=refused, allocate=refused, view=refused, fit=refused,
        watchers=(),
    )  # fmt: skip
    try:
        return run(*tensors)
    except _Wrong:
        return None
