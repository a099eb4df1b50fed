"""Reading an artifact's file: bytes → records, or an error (SM050) that says what is wrong with them.

    read(Path("model.smelt").read_bytes())   →   ArtifactFile, whose weights are its two sections, "WEIGHTS" and "STATE"
    read_manifest(…)                         →   its manifest alone, the rest only held against its checksums

Every offset, count and size is held against what it refers to before it is used. Weights are views of the given buffer:
nothing is copied, so a file may be mapped.
"""

from collections.abc import Mapping
from typing import Any

from smelt.ir.artifact_file import records as r
from smelt.ir.artifact_file.check import check_artifact, check_table
from smelt.ir.artifact_file.code import read_code
from smelt.ir.artifact_file.container import ArtifactError, manifest_in, unpack
from smelt.ir.artifact_file.layout import Kind, Machine
from smelt.ir.table.layout import DTYPE_NAMES, Bind, NextKind, RegisterFlag, RegisterKind, StepKind, ValueKind
from smelt.ir.table.read import BadTable, TableReader
from smelt.symbolic.postfix import Op


def read(data: Any) -> r.ArtifactFile:
    """All of a file, every rule checked."""
    sections = unpack(data, is_artifact=True)
    weights: dict[str, memoryview] = {}
    parts = []
    contents = {Kind.WEIGHTS: sections[-2].data, Kind.STATE: sections[-1].data}
    for table, code in zip(sections[1:-2:2], sections[2:-2:2], strict=True):
        image = read_code(code.data)
        check_table(table.data, len(contents[Kind.WEIGHTS]), len(contents[Kind.STATE]), len(image.entries))
        state_machine = _read_table(table.data, contents, weights)
        parts.append(r.TargetPart(Machine(table.machine), table.features, state_machine, image))
    artifact = r.ArtifactFile(manifest_in(sections), tuple(parts), weights)
    check_artifact(artifact)
    return artifact


def read_manifest(data: Any) -> Mapping[str, Any]:
    """What a file says of itself."""
    return manifest_in(unpack(data, is_artifact=True))


# --- TABLE --------------------------------------------------------------------------------------------------


def _read_table(view: memoryview, contents: Mapping[Kind, memoryview], weights: dict[str, memoryview]) -> r.Table:
    try:
        return _TableReader(view, contents, weights).state_machine()
    except BadTable as error:  # C does not look into the text of strings
        raise ArtifactError(str(error)) from error


class _TableReader(TableReader):
    """What the records of a TABLE mean that has been checked."""

    def __init__(
        self, view: memoryview, contents: Mapping[Kind, memoryview], weights: dict[str, memoryview]
    ) -> None:
        super().__init__(view)
        self.contents, self.weights = contents, weights
        self.expressions = [self._expression(*row) for row in self.rows("expressions")]

    def _expression(self, first: int, count: int) -> r.Expression:
        rows = self.rows("instructions")[first : first + count]
        return tuple(r.Instruction(Op(op), operand) for op, operand in rows)

    def _expressions(self, first: int, count: int) -> tuple[r.Expression, ...]:
        return tuple(self.expressions[each] for each in self.references(first, count))

    def _dims(self, first: int, count: int) -> tuple[r.Dim, ...]:
        rows = self.rows("dims")[first : first + count]
        return tuple(r.Dim(row.low, row.high, "" if row.name < 0 else self.strings[row.name]) for row in rows)

    # --- what the records mean ---

    def state_machine(self) -> r.Table:
        return r.Table(
            self.name,
            tuple(map(self._register, self.rows("registers"))),
            tuple(map(self._output, self.rows("outputs"))),
            tuple(map(self._kernel, self.rows("kernels"))),
            tuple(self._state(row) for row in self.rows("states")),
        )

    def _kernel(self, row: Any) -> r.Kernel:
        rows = self.rows("grids")[row.grids : row.grids + row.grid_count]
        grids = [r.Grid(self.strings[grid.name], *grid[1:]) for grid in rows]
        return r.Kernel(self.strings[row.name], row.buffers, row.sizes, tuple(grids))

    def _register(self, row: Any) -> r.Register:
        name = self.strings[row.name]
        kind = RegisterKind(row.kind)
        choices = [self.strings[each] for each in self.references(row.choices, row.choice_count)]
        dims = self._dims(row.dims, row.rank)
        strides = self.references(row.strides, row.stride_count) or None
        key, offset = self._data(kind, row)
        return r.Register(
            name,
            kind,
            DTYPE_NAMES[row.dtype],
            dims,
            key,
            bool(row.flags & RegisterFlag.OPTIONAL),
            bool(row.flags & RegisterFlag.WRITTEN),
            tuple(choices),
            offset,
            strides,
        )

    def _data(self, kind: RegisterKind, row: Any) -> tuple[str | None, int]:
        """Which part of which data a register has. All of a section is one: what shares bytes is not told apart."""
        if kind not in (RegisterKind.CONSTANT, RegisterKind.STATE):
            return None, 0
        section = Kind.WEIGHTS if kind == RegisterKind.CONSTANT else Kind.STATE
        self.weights.setdefault(section.name, self.contents[section])
        return section.name, row.data

    def _output(self, row: Any) -> r.Output:
        dtype = None if row.dtype < 0 else DTYPE_NAMES[row.dtype]
        return r.Output(self.strings[row.name], dtype, self._dims(row.dims, row.rank))

    def _state(self, row: Any) -> r.State:
        rows = self.rows("variants")[row.variants : row.variants + row.variant_count]
        return r.State(self.strings[row.name], tuple(map(self._variant, rows)))

    def _variant(self, row: Any) -> r.Variant:
        def span(name: str, first: int, count: int) -> list[Any]:
            return self.rows(name)[first : first + count]

        symbols = [
            r.Symbol(
                self.strings[each.name],
                Bind(each.bind),
                each.register,
                each.dimension,
                each.low,
                each.high,
            )
            for each in span("symbols", row.symbols, row.symbol_count)
        ]
        checks = [
            r.Check(self.expressions[each.expression], self.strings[each.text])
            for each in span("checks", row.checks, row.check_count)
        ]
        produced = [
            r.Produced(each.register, self._expressions(each.dims, each.rank))
            for each in span("produced", row.produced, row.produced_count)
        ]
        return r.Variant(
            self.strings[row.name],
            self._next(row),
            tuple(symbols),
            tuple(checks),
            tuple(produced),
            tuple(map(self._value, span("values", row.values, row.value_count))),
            tuple(map(self._step, span("steps", row.steps, row.step_count))),
            self.expressions[row.arena_bytes],
        )

    def _value(self, row: Any) -> r.Value:
        if row.kind == ValueKind.SIZES:
            return r.SizesValue(self._expressions(row.place, row.number_count))
        offset, size, writes = self.expressions[row.offset], self.expressions[row.bytes], bool(row.writes)
        if row.kind == ValueKind.REGISTER:
            return r.RegisterValue(row.place, size, offset, writes)
        if row.kind == ValueKind.PRODUCED:
            return r.ProducedValue(row.place, size, offset, writes)
        return r.ArenaValue(offset, size, writes)

    def _step(self, row: Any) -> r.Step:
        if row.kind == StepKind.LAUNCH:
            launch = self.rows("launches")[row.place]
            values = self.references(launch.values, launch.value_count)
            workspace = self.expressions[launch.fixed], self.expressions[launch.per_thread]
            return r.Launch(launch.kernel, values, *workspace)
        copy = self.rows("copies")[row.place]
        return r.Copy(copy.to, copy.source, self.expressions[copy.bytes])

    def _next(self, row: Any) -> r.Next:
        if row.next == NextKind.RETURN:
            rows = self.rows("returned")[row.outputs : row.outputs + row.output_count]
            return r.Return(tuple(map(self._returned, rows)))
        if row.next == NextKind.BRANCH:
            return r.Branch(row.register, row.if_true, row.if_false)
        if row.next == NextKind.JUMP:
            return r.Jump(row.if_true)
        return r.Raise(self.strings[row.error], self.strings[row.message])

    def _returned(self, row: Any) -> int | r.RegisterView | None:
        if row.offset < 0:
            return None if row.register < 0 else int(row.register)
        dims, strides = self._expressions(row.dims, row.rank), self._expressions(row.strides, row.stride_count)
        return r.RegisterView(row.register, dims, strides, self.expressions[row.offset])
