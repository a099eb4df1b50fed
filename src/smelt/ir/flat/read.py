"""Reading a flat program back: sections as rows, and the whole as the records it was written of.

    read(table, objects).steps   →   (AllocateStep(value=2), CallStep("aten::mm.out", torch.mm, …), …)

For people and tools; what runs a program reads the same bytes in C (`csrc/executor/table.c`). Without its objects a
table still shows its kernels, operators, dtypes and layouts, by name.
"""

import struct
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from smelt.ir.flat.steps import (
    STRING,
    AllocateStep,
    CallStep,
    DropStep,
    FlatProgram,
    FlatStep,
    FlatValue,
    LaunchStep,
    NativeCall,
    Ref,
    codes_of,
    moved_texts,
)
from smelt.ir.table.layout import Item, NativeRecord, ProgramRecord, StepKind, TensorRecord
from smelt.ir.table.read import BadTable, TableReader, require
from smelt.symbolic.shapes import Shape


class FlatReader(TableReader):
    """A table that holds a flat program."""

    def __init__(self, table: bytes, objects: Sequence[Any] = ()) -> None:
        super().__init__(table, objects)
        require(self.length_of("programs") == 1, "the table", "has no flat program")
        self.program: ProgramRecord = self.rows("programs")[0]

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        return self.words("numbers")

    def layout(self, numbers: int, rank: int) -> tuple[Shape, Shape, int]:
        """Sizes, strides and offset."""
        row = self.numbers[numbers : numbers + 2 * rank + 1]
        return row[:rank], row[rank:-1], row[-1]

    def value(self, value: TensorRecord) -> FlatValue:
        """A tensor of the program."""
        dtype, device = self.rows("dtypes")[value.dtype], self.rows("devices")[value.device]
        named = self.strings[value.name], self.objects[dtype.object], self.objects[device.object]
        return FlatValue(*named, *self.layout(value.numbers, value.rank), value.arena_offset)

    def arena_values(self) -> list[FlatValue]:
        """What the arena lends."""
        return [self.value(each) for each in self._arena_rows()]

    def arena_devices(self) -> set[Any]:
        """The devices that it lends memory of."""
        devices = [self.objects[device.object] for device in self.rows("devices")]
        if len(devices) <= 1:
            return set(devices) if self.program.arena else set()
        return {devices[value.device] for value in self._arena_rows()}

    def _arena_rows(self) -> list[Any]:
        return self.rows("tensors")[self.length_of("tensors") - self.program.arena :]


def read(table: bytes, objects: Sequence[Any]) -> FlatProgram:
    """The program that a table holds; `BadTable` if it is none."""
    try:
        return _Program(table, objects).read()
    except (IndexError, ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, BadTable):
            raise
        raise BadTable(f"it refers to what is not there: {error}") from error


class _Program(FlatReader):
    def read(self) -> FlatProgram:
        program = self.program
        return FlatProgram(
            name=self.name,
            values=tuple(map(self.value, self.rows("tensors"))),
            inputs=program.inputs,
            constants=tuple(self.objects[: program.constants]),
            arena=program.arena,
            arena_bytes=program.arena_bytes,
            steps=tuple(self._step(step.kind, step.place) for step in self.rows("steps")),
            outputs=self._item(self.rows("items")[program.output]),
            consuming=bool(program.consuming),
            writes_from=_optional(program.writes_from),
        )

    def _item(self, item: Any) -> Any:
        if item.kind == Item.OBJECT:
            return self.objects[item.what]
        if item.kind == Item.VALUE:
            return Ref(item.what, *(self.layout(item.numbers, item.length) if item.numbers >= 0 else ()))
        if item.kind in (Item.TUPLE, Item.LIST):
            items = [self._item(each) for each in self.rows("items")[item.what : item.what + item.length]]
            return items if item.kind == Item.LIST else tuple(items)
        if item.kind == Item.BOOL:
            return bool(item.what)
        if item.kind == Item.DOUBLE:
            return struct.unpack("<d", struct.pack("<q", item.what))[0]
        return item.what if item.kind == Item.INTEGER else None

    def _items(self, first: int, count: int) -> tuple[Any, ...]:
        return tuple(self._item(each) for each in self.rows("items")[first : first + count])

    def _step(self, kind: int, place: int) -> FlatStep:
        if kind == StepKind.ALLOCATE:
            return AllocateStep(place)
        if kind == StepKind.LAUNCH:
            launch = self.rows("launches")[place]
            kernel = self.rows("kernels")[launch.kernel]
            values = self.references(launch.values, launch.value_count)
            target = self.strings[kernel.target]
            return LaunchStep(self.strings[kernel.name], self.objects[kernel.object], values, target)
        if kind == StepKind.DROP:
            drop = self.rows("drops")[place]
            return DropStep(self.references(drop.values, drop.value_count))
        require(kind == StepKind.CALL, "steps", f"has a step of kind {kind}")
        return self._call(self.rows("calls")[place])

    def _call(self, call: Any) -> CallStep:
        return CallStep(
            name=self.strings[call.name],
            function=self.objects[call.function],
            arguments=self._items(call.arguments, call.argument_count),
            names=self.objects[call.names],
            results=tuple(map(_optional, self.references(call.results, call.result_count))),
            is_one=bool(call.is_one),
            native=None if call.native < 0 else self._native(self.rows("natives")[call.native]),
            unless=_optional(call.unless),
        )

    def _native(self, native: NativeRecord) -> NativeCall:
        code = self.numbers[native.code : native.code + native.code_count]
        texts = [code[at + 1] for at in codes_of(code) if code[at] == STRING]
        factors = struct.unpack("<2d", struct.pack("<2q", native.beta, native.alpha))
        return NativeCall(
            name=self.strings[native.name],
            overload=None if native.overload < 0 else self.strings[native.overload],
            tensors=self._items(native.tensors, native.tensor_count),
            code=moved_texts(code, list(range(len(texts)))),
            texts=tuple(self.strings[text] for text in texts),
            returns=native.returns,
            product=self.numbers[native.product : native.product + native.product_count],
            factors=factors if native.overload < 0 and native.tensor_count == 4 else (),  # beta * given + alpha * …
        )


def _optional(number: int) -> int | None:
    return None if number < 0 else number
