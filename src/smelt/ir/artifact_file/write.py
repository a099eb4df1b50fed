"""Writing an artifact's file: records → bytes.

    write(artifact)             →  the bytes
    save(artifact, "m.smelt")   →  the file, weights written one after the other, nothing of them copied

What occurs several times in a table (strings, expressions, lists) is written once.
"""

import os
import struct
from collections.abc import Sequence

from smelt.ir.artifact_file import records as r
from smelt.ir.artifact_file.check import check_artifact, check_table, data_bytes, data_places
from smelt.ir.artifact_file.code import code_bytes
from smelt.ir.artifact_file.container import ArtifactError, Section, manifest_section, pack, require
from smelt.ir.artifact_file.container import save as save_sections
from smelt.ir.artifact_file.layout import Kind
from smelt.ir.table.layout import DTYPE_NAMES, KernelRecord, NextKind, RegisterFlag, StepKind, ValueKind
from smelt.ir.table.write import TableWriter


def write(artifact: r.ArtifactFile) -> bytes:
    """The file's bytes; an error SM050 says what is wrong with the records."""
    return pack(_sections(artifact))


def save(artifact: r.ArtifactFile, path: str | os.PathLike[str]) -> None:
    """The file itself."""
    save_sections(_sections(artifact), path)


def _sections(artifact: r.ArtifactFile) -> list[Section]:
    """In the order of the file."""
    check_artifact(artifact)
    places = data_places(artifact)
    sections = [manifest_section(artifact.manifest)]
    for number, part in enumerate(artifact.targets):
        table = table_bytes(part.table, places.offsets)
        check_table(table, places.constant_bytes, places.state_bytes, len(part.code.entries))
        for kind, data in ((Kind.TABLE, table), (Kind.CODE, code_bytes(part.code))):
            sections.append(Section.of(kind, data, number, part.machine, part.features))
    for kind, keys in ((Kind.WEIGHTS, places.constants), (Kind.STATE, places.states)):
        parts = [(places.offsets[key], memoryview(artifact.weights[key]).cast("B")) for key in keys]
        sections.append(Section(kind, tuple(parts)))
    return sections


# --- TABLE --------------------------------------------------------------------------------------------------


def table_bytes(table: r.Table, offsets: dict[str, int]) -> bytes:
    """A TABLE section; `offsets`: where the data of registers is."""
    writer = _TableWriter(table.name)
    try:
        writer.table(table, offsets)
        return writer.pack()
    except (struct.error, UnicodeEncodeError) as error:
        raise ArtifactError(f"the table cannot be written: {error}") from error


class _TableWriter(TableWriter):
    """The table of an artifact."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._expressions: dict[r.Expression, int] = {}
        self._dims: dict[tuple[r.Dim, ...], int] = {}

    def expression(self, code: r.Expression) -> int:
        number = self._expressions.get(code)
        if number is None:
            number = self._expressions[code] = self.add("expressions", self.length_of("instructions"), len(code))
            for each in code:
                self.add("instructions", each.op, each.operand)
        return number

    def expressions(self, codes: Sequence[r.Expression]) -> tuple[int, int]:
        """Where a list of expressions begins, and its length."""
        return self.references([self.expression(each) for each in codes])

    def dims(self, dims: tuple[r.Dim, ...]) -> tuple[int, int]:
        if dims not in self._dims:
            self._dims[dims] = self.length_of("dims")
            for each in dims:
                self.add("dims", self.string(each.name) if each.name else -1, each.low, each.high)
        return self._dims[dims], len(dims)

    def table(self, table: r.Table, offsets: dict[str, int]) -> None:
        for register in table.registers:
            self.register(register, offsets)
        for output in table.outputs:
            dtype = -1 if output.dtype is None else DTYPE_NAMES.index(output.dtype)
            self.add("outputs", self.string(output.name), dtype, *self.dims(output.dims))
        for kernel in table.kernels:
            first = self.length_of("grids")
            for each in kernel.grids:
                self.add("grids", self.string(each.name), each.blocks, each.slot, each.threads, each.shared_bytes)
            grids = first, len(kernel.grids)
            self.add("kernels", *KernelRecord(self.string(kernel.name), -1, -1, kernel.buffers, kernel.sizes, *grids))
        for state in table.states:
            first = self.length_of("variants")
            for variant in state.variants:
                self.variant(variant)
            self.add("states", self.string(state.name), first, len(state.variants))

    def register(self, register: r.Register, offsets: dict[str, int]) -> None:
        flags = RegisterFlag.OPTIONAL * register.optional | RegisterFlag.WRITTEN * register.written
        self.add(
            "registers",
            self.string(register.name),
            register.kind,
            DTYPE_NAMES.index(register.dtype),
            *self.dims(register.dims),
            flags,
            *self.references([self.string(choice) for choice in register.choices]),
            *self.references(register.strides or ()),
            -1 if register.data is None else offsets[register.data] + register.offset,
            0 if register.data is None else data_bytes(register),
        )

    def variant(self, variant: r.Variant) -> None:
        first = {name: self.length_of(name) for name in ("symbols", "checks", "produced", "values", "steps")}
        for each in variant.symbols:
            self.add(
                "symbols", self.string(each.name), each.bind, each.register, each.dimension, each.low, each.high
            )
        for check in variant.checks:
            self.add("checks", self.expression(check.expression), self.string(check.text))
        for produced in variant.produced:
            self.add("produced", produced.register, *self.expressions(produced.dims))
        for value in variant.values:
            self.value(value)
        for step in variant.steps:
            if isinstance(step, r.Launch):
                workspace = self.expression(step.fixed), self.expression(step.per_thread)
                place = self.add("launches", step.kernel, *self.references(step.values), *workspace)
                self.add("steps", StepKind.LAUNCH, place)
            else:
                place = self.add("copies", step.to, step.source, self.expression(step.bytes))
                self.add("steps", StepKind.COPY, place)
        spans = [number for name in first for number in (first[name], self.length_of(name) - first[name])]
        self.add("variants", self.string(variant.name), *spans, self.expression(variant.arena_bytes),
                 *self.next(variant.next))  # fmt: skip

    def value(self, value: r.Value) -> None:
        if isinstance(value, r.SizesValue):
            place, count = self.expressions(value.numbers)
            self.add("values", ValueKind.SIZES, place, count, -1, -1, 0)
            return
        where = self.expression(value.offset), self.expression(value.bytes), value.writes
        if isinstance(value, r.RegisterValue):
            self.add("values", ValueKind.REGISTER, value.register, 0, *where)
        elif isinstance(value, r.ProducedValue):
            self.add("values", ValueKind.PRODUCED, value.place, 0, *where)
        else:
            self.add("values", ValueKind.ARENA, 0, 0, *where)

    def next(self, following: r.Next) -> tuple[int, ...]:
        """The fields from `next` on."""
        if isinstance(following, r.Return):
            first = self.length_of("returned")
            for each in following.outputs:
                self.returned(each)
            return NextKind.RETURN, -1, -1, -1, -1, -1, first, len(following.outputs)
        if isinstance(following, r.Branch):
            return NextKind.BRANCH, following.register, following.if_true, following.if_false, -1, -1, 0, 0
        if isinstance(following, r.Jump):
            return NextKind.JUMP, -1, following.state, -1, -1, -1, 0, 0
        return NextKind.RAISE, -1, -1, -1, self.string(following.error), self.string(following.message), 0, 0

    def returned(self, output: int | r.RegisterView | None) -> None:
        if not isinstance(output, r.RegisterView):
            require(output is None or output >= 0, "the table", f"there is no register {output}")
            self.add("returned", -1 if output is None else output, 0, 0, 0, 0, -1)
            return
        dims = self.expressions(output.dims)
        strides = self.expressions(output.strides)
        self.add("returned", output.register, *dims, *strides, self.expression(output.offset))
