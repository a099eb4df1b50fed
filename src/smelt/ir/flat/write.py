"""Writing a flat program: steps one after the other, then the table as bytes and the objects it refers to.

    writer = FlatWriter("forward0", constants=(), dtype_code=dtype_code, device_code=device_code)
    writer.value(FlatValue("x", torch.float32, cpu, (4, 8), (8, 1)))
    writer.add_step(LaunchStep("k0_relu", launcher, (0,)))
    table, objects = writer.finish(inputs=1, …, outputs=(Ref(0),))

What occurs several times (texts, layouts, the code of calls, objects) is written once. Programs of dynamic shapes are
written for each combination of sizes, so that this is to be quick: hence rows of words as plain tuples.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any

from smelt.ir.flat.steps import (
    AllocateStep,
    CallStep,
    DropStep,
    FlatProgram,
    FlatStep,
    FlatValue,
    LaunchStep,
    NativeCall,
    Ref,
    moved_texts,
)
from smelt.ir.table.layout import (
    CallRecord,
    DeviceRecord,
    DtypeRecord,
    Item,
    KernelRecord,
    LaunchRecord,
    NativeRecord,
    ProgramRecord,
    StepKind,
)
from smelt.ir.table.write import TableWriter
from smelt.symbolic.shapes import Shape, Size

# What PyTorch's C interface has for a dtype, -1: nothing; and for a device: the numbers of its kind and its own.
DtypeCode = Callable[[Any], int]
DeviceCode = Callable[[Any], tuple[int, int] | None]
_WIDTH = 4  # of an item
# As plain integers, which are quicker than members of an enum.
_OBJECT, _VALUE, _TUPLE, _LIST, _NONE, _BOOL, _INTEGER, _DOUBLE = map(int, Item)
_ALLOCATE, _LAUNCH, _COPY, _CALL, _DROP = map(int, StepKind)


def double_bits(number: float) -> int:
    """The bits of a double, as a signed integer."""
    bits: int = struct.unpack("<q", struct.pack("<d", number))[0]
    return bits


_ONE = double_bits(1.0)


class FlatWriter(TableWriter):
    """The sections of one program as they grow, each a list of words."""

    def __init__(self, name: str, constants: Sequence[Any], dtype_code: DtypeCode, device_code: DeviceCode) -> None:
        super().__init__(name)
        self.dtype_code, self.device_code = dtype_code, device_code
        self.objects = list(constants)
        self.constants = len(self.objects)
        # The sections that grow most.
        self.numbers, self.tensors = self.words["numbers"], self.words["tensors"]
        self.items, self.steps = self.words["items"], self.words["steps"]
        # What is there already, and its number.
        self._numbers: dict[Any, int] = {}  # layouts, codes: where they begin
        self._objects: dict[int, int] = {}  # by identity
        self._names: dict[tuple[str, ...], int] = {}
        self._dtypes: dict[Any, int] = {}
        self._devices: dict[Any, int] = {}
        self._kernels: dict[tuple[str, int, int], int] = {}

    # --- what records refer to ------------------------------------------------------------------

    def object(self, referenced: Any) -> int:
        number = self._objects.get(id(referenced))
        if number is None:
            number = self._objects[id(referenced)] = len(self.objects)
            self.objects.append(referenced)
        return number

    def layout(self, shape: Shape, stride: Shape, offset: Size = 0) -> int:
        """Where sizes, strides and the offset are."""
        key = (shape, stride, offset)
        place = self._numbers.get(key)
        if place is None:
            if len(shape) != len(stride):
                raise ValueError(f"sizes {shape} and strides {stride} are not of one length")
            place = self._numbers[key] = len(self.numbers)
            self.numbers += (*shape, *stride, offset)
        return place

    def _code(self, numbers: tuple[int, ...]) -> int:
        place = self._numbers.get(numbers)
        if place is None:
            place = self._numbers[numbers] = len(self.numbers)
            self.numbers += numbers
        return place

    def _dtype(self, dtype: Any) -> int:
        number = self._dtypes.get(dtype)
        if number is None:
            number = self._dtypes[dtype] = len(self._dtypes)
            name = self.string(str(dtype).removeprefix("torch."))
            self.words["dtypes"] += DtypeRecord(name, code=self.dtype_code(dtype), object=self.object(dtype))
        return number

    def _device(self, device: Any) -> int:
        place = self._devices.get(device)
        if place is None:
            place = self._devices[device] = len(self._devices)
            kind, number = self.device_code(device) or (-1, -1)
            record = DeviceRecord(self.string(str(device)), kind, number, object=self.object(device))
            self.words["devices"] += record
        return place

    def _kernel(self, name: str, function: Any, buffers: int, target: str) -> int:
        key = (name, id(function), buffers)
        number = self._kernels.get(key)
        if number is None:
            number = self._kernels[key] = len(self._kernels)
            named = self.string(name), self.string(target), self.object(function)
            self.words["kernels"] += KernelRecord(*named, buffers, sizes=0, grids=0, grid_count=0)
        return number

    # --- items ------------------------------------------------------------------------------------

    def _items(self, values: Sequence[Any]) -> int:
        """A row of items: the number of the first. What is inside of them comes later in the table."""
        items = self.items
        first = len(items)
        inside: list[tuple[int, Any]] = []
        for value in values:
            if type(value) is Ref:
                number, shape, stride, offset = value
                if shape is None:
                    items += (_VALUE, number, 0, -1)
                else:
                    items += (_VALUE, number, len(shape), self.layout(shape, stride or (), offset))
            elif type(value) in (tuple, list) and _has_refs(value):
                inside.append((len(items), value))
                items += (_TUPLE if type(value) is tuple else _LIST, 0, len(value), -1)
            else:
                items += self._plain(value)
        for place, value in inside:
            items[place + 1] = self._items(value)
        return first // _WIDTH

    def _plain(self, value: Any) -> tuple[int, int, int, int]:
        """An item without tensors."""
        kind = type(value)
        if value is None:
            return _NONE, 0, 0, -1
        if kind is bool:
            return _BOOL, int(value), 0, -1
        if kind is int and -(1 << 63) <= value < 1 << 63:
            return _INTEGER, value, 0, -1
        if kind is float:
            return _DOUBLE, double_bits(value), 0, -1
        return _OBJECT, self.object(value), 0, -1

    # --- values and steps ----------------------------------------------------------------------------

    def value(self, value: FlatValue) -> None:
        """The next value."""
        name, dtype, device, shape, stride, offset, arena_offset = value
        numbers = self.layout(shape, stride, offset)
        self.tensors += (
            self._strings.setdefault(name, len(self._strings)),
            self._dtype(dtype),
            self._device(device),
            numbers,
            len(shape),
            arena_offset,
        )

    def add_step(self, step: FlatStep) -> None:
        """The next step."""
        _ADD[type(step)](self, *step)

    @property
    def step_count(self) -> int:
        return len(self.steps) // 2

    def allocate(self, value: int) -> None:
        self.steps += (_ALLOCATE, value)

    def launch(self, kernel: str, function: Any, values: Sequence[int], target: str = "") -> None:
        number = self._kernel(kernel, function, len(values), target)
        record = LaunchRecord(number, *self.references(values), fixed=-1, per_thread=-1)
        self.steps += (_LAUNCH, self.add("launches", *record))

    def drop(self, values: Sequence[int]) -> None:
        self.steps += (_DROP, self.add("drops", *self.references(values)))

    def call(
        self,
        name: str,
        function: Any,
        arguments: Sequence[Any] = (),
        names: tuple[str, ...] = (),
        results: Sequence[int | None] = (),
        is_one: bool = False,
        native: NativeCall | None = None,
        unless: int | None = None,
    ) -> None:
        """See `CallStep`."""
        named = self._names.get(names)
        if named is None:
            named = self._names[names] = self.object(names)
        first, count = self.references([-1 if value is None else value for value in results])
        record = CallRecord(
            name=self.string(name),
            function=self.object(function),
            arguments=self._items(arguments),
            argument_count=len(arguments),
            names=named,
            results=first,
            result_count=count,
            is_one=int(is_one),
            native=-1 if native is None else self._native(native),
            unless=-1 if unless is None else unless,
        )
        self.steps += (_CALL, self.add("calls", *record))

    def _native(self, call: NativeCall) -> int:
        code = call.code
        if call.texts:
            code = moved_texts(code, [self.string(text) for text in call.texts])
        beta, alpha = map(double_bits, call.factors) if call.factors else (_ONE, _ONE)
        record = NativeRecord(
            name=self.string(call.name),
            overload=-1 if call.overload is None else self.string(call.overload),
            tensors=self._items(call.tensors),
            tensor_count=len(call.tensors),
            code=self._code(code),
            code_count=len(code),
            returns=call.returns,
            product=self._code(call.product),
            product_count=len(call.product),
            beta=beta,
            alpha=alpha,
        )
        return self.add("natives", *record)

    # --- the whole --------------------------------------------------------------------------------------

    def finish(
        self,
        *,
        inputs: int,
        arena: int,
        arena_bytes: int,
        outputs: tuple[Any, ...],
        consuming: bool,
        writes_from: int | None = None,
    ) -> tuple[bytes, tuple[Any, ...]]:
        """The table, and the objects it refers to."""
        root = len(self.items) // _WIDTH
        self.items += (_TUPLE, 0, len(outputs), -1)  # a tuple even if no tensor is in it
        self.items[_WIDTH * root + 1] = self._items(outputs)
        record = ProgramRecord(
            inputs=inputs,
            constants=self.constants,
            arena=arena,
            arena_bytes=arena_bytes,
            consuming=int(consuming),
            output=root,
            writes_from=-1 if writes_from is None else writes_from,
        )
        self.words["programs"] += record
        return self.pack(), tuple(self.objects)


_ADD: dict[type, Callable[..., None]] = {
    AllocateStep: FlatWriter.allocate,
    LaunchStep: FlatWriter.launch,
    CallStep: FlatWriter.call,
    DropStep: FlatWriter.drop,
}


def _has_refs(value: Sequence[Any]) -> bool:
    return any(type(each) is Ref or (isinstance(each, tuple | list) and _has_refs(each)) for each in value)


def write(program: FlatProgram, dtype_code: DtypeCode, device_code: DeviceCode) -> tuple[bytes, tuple[Any, ...]]:
    """A program that is known as a whole."""
    writer = FlatWriter(program.name, program.constants, dtype_code, device_code)
    for value in program.values:
        writer.value(value)
    for step in program.steps:
        writer.add_step(step)
    return writer.finish(
        inputs=program.inputs,
        arena=program.arena,
        arena_bytes=program.arena_bytes,
        outputs=program.outputs,
        consuming=program.consuming,
        writes_from=program.writes_from,
    )
