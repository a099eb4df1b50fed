"""The rules of an artifact's records: whoever writes a file and whoever reads one holds them against these.

    check_artifact(artifact)   →  None, or `ArtifactError` (SM050) that says which record is wrong, and what about it

csrc/deploy has the same rules for files; what depends on sizes (whether a value lies inside its register, whether a sum
fits 64 bits) is checked there when it runs.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from smelt.base.errors import SmeltError
from smelt.base.fast_dataclass import dataclass
from smelt.ir.artifact_file import records as r
from smelt.ir.artifact_file.layout import (
    ALIGN,
    DTYPES,
    FEATURES,
    LARGEST,
    MOST_BLOCKS,
    MOST_BUFFERS,
    MOST_BYTES,
    MOST_CAPABILITY,
    MOST_CODE,
    MOST_GRID_THREADS,
    MOST_SHARED,
    Bind,
    Machine,
    RegisterKind,
)
from smelt.symbolic.postfix import ARITY, DEPTH, Op

MOST_RANK = 64
_NUMBERS = ("bool", "int64", "float64")  # what symbols are read of


class ArtifactError(SmeltError):
    """A file, or what is to become one, breaks a rule."""

    def __init__(self, message: str) -> None:
        super().__init__("SM050", message)


def require(holds: object, where: str, what: str) -> None:
    """An error unless a rule holds."""
    if not holds:
        raise ArtifactError(f"{where}: {what}")


def check_artifact(artifact: r.ArtifactFile) -> None:
    """All rules."""
    require(artifact.targets, "the artifact", "has no target")
    states = None
    for number, part in enumerate(artifact.targets):
        where = f"target {number}"
        require(part.machine in FEATURES, where, f"has no machine: {part.machine!r}")
        is_grid = part.machine == Machine.CUDA
        known = MOST_CAPABILITY if is_grid else (1 << len(FEATURES[Machine(part.machine)])) - 1
        fits = 0 < part.features <= known if is_grid else part.features & ~known == 0
        require(fits, where, "needs features that have no name")
        check_table(part.table)
        check_code(part.code, len(part.table.kernels))
        require(not is_grid or part.code.image.endswith(b"\0"), where, "has text that does not end")
        for register in part.table.registers:
            _check_data(register, artifact.weights)
        described = of_kind(part.table, RegisterKind.STATE)
        require(states in (None, described), where, "has other STATE registers than target 0")
        states = described
    data_places(artifact)


def check_table(table: r.Table) -> None:
    """The rules of one state machine."""
    for number, register in enumerate(table.registers):
        _check_register(f"register {number} ({register.name})", register)
    for kind in (RegisterKind.INPUT, RegisterKind.STATE):
        names = [register.name for register in of_kind(table, kind)]
        require(len(set(names)) == len(names), "the table", f"has two {kind.name} registers of one name")
    for number, output in enumerate(table.outputs):
        where = f"output {number} ({output.name})"
        require(output.dtype is None or output.dtype in DTYPES, where, f"has no dtype: {output.dtype!r}")
        require(output.dtype is not None or not output.dims, where, "has dims without a dtype")
        _check_dims(where, output.dims)
    for number, kernel in enumerate(table.kernels):
        require(0 <= kernel.buffers <= MOST_BUFFERS, f"kernel {number}", f"takes {kernel.buffers} buffers")
        require(0 <= kernel.sizes <= MOST_BUFFERS, f"kernel {number}", f"takes {kernel.sizes} sizes")
        require(not kernel.sizes or kernel.buffers, f"kernel {number}", "takes sizes, and no buffer")
        for grid in kernel.grids:
            _check_grid(f"grid {grid.name} of kernel {number}", grid, kernel)
    require(table.states, "the table", "has no state")
    for number, state in enumerate(table.states):
        require(state.variants, f"state {number}", "has no variant")
        for place, variant in enumerate(state.variants):
            _VariantCheck(table, variant, f"state {number}, variant {place}").all()
    _check_that_it_ends(table)


def _check_grid(where: str, grid: r.Grid, kernel: r.Kernel) -> None:
    require(0 <= grid.blocks <= MOST_BLOCKS, where, f"has {grid.blocks} blocks")
    require(-1 <= grid.slot < kernel.sizes, where, f"there is no size {grid.slot}")
    require(0 < grid.threads <= MOST_GRID_THREADS, where, f"has {grid.threads} threads")
    require(0 <= grid.shared_bytes <= MOST_SHARED, where, f"has {grid.shared_bytes} bytes of shared memory")


def of_kind(table: r.Table, kind: RegisterKind) -> list[r.Register]:
    """The registers of a kind, in order."""
    return [register for register in table.registers if register.kind == kind]


def check_code(code: r.Code, kernels: int) -> None:
    """The rules of an image."""
    size = len(code.image)
    require(len(code.entries) == kernels, "the code", f"has {len(code.entries)} entries for {kernels} kernels")
    require(all(0 <= entry < size for entry in code.entries), "the code", "has an entry outside its image")
    for number, slot in enumerate(code.slots):
        require(0 <= slot.offset <= size - 8, f"slot {number} of the code", "is outside the image")
        inside = slot.name or 0 <= slot.addend <= size
        require(inside, f"slot {number} of the code", "is the address of something outside the image")


def _check_register(where: str, register: r.Register) -> None:
    require(register.dtype in DTYPES, where, f"has no dtype: {register.dtype!r}")
    _check_dims(where, register.dims)
    is_input = register.kind == RegisterKind.INPUT
    stored = register.kind in (RegisterKind.CONSTANT, RegisterKind.STATE)
    require((register.data is not None) == stored, where, "has data, or has none, against its kind")
    require(not stored or all(dim.low == dim.high for dim in register.dims), where, "has data of no fixed size")
    if register.strides is not None:
        require(stored and len(register.strides) == len(register.dims), where, "has strides that do not fit")
        require(all(0 <= stride <= MOST_BYTES for stride in register.strides), where, "has strides that do not fit")
    require(register.offset % DTYPES[register.dtype] == 0 <= register.offset, where, "is not aligned")
    require(is_input or not (register.optional or register.written), where, "is optional or written, and no INPUT")
    if register.choices:
        require(is_input and register.dtype == "int64" and not register.dims, where, "has choices, and is no number")
    if stored:
        require(data_bytes(register) <= MOST_BYTES, where, "is too large")


def _check_dims(where: str, dims: Sequence[r.Dim]) -> None:
    require(len(dims) <= MOST_RANK, where, f"has {len(dims)} dimensions")
    require(all(0 <= dim.low <= dim.high <= LARGEST for dim in dims), where, "has a dimension without sizes")


def _check_data(register: r.Register, weights: Mapping[str, Any]) -> None:
    if register.data is None:
        return
    require(register.data in weights, f"register {register.name}", f"has no data: {register.data!r}")
    size, end = memoryview(weights[register.data]).nbytes, register.offset + data_bytes(register)
    require(end <= size, f"register {register.name}", f"has {size} bytes of data, and needs {end}")


def data_bytes(register: r.Register) -> int:
    """From the first element of what has data to the last, both counted."""
    sizes = [dim.low for dim in register.dims]
    if register.strides is None:
        return math.prod(sizes) * DTYPES[register.dtype]
    span = 1 + sum((size - 1) * stride for size, stride in zip(sizes, register.strides, strict=True))
    return span * DTYPES[register.dtype] if all(sizes) else 0


@dataclass(frozen=True, slots=True)
class _VariantCheck:
    """The rules of one variant."""

    table: r.Table
    variant: r.Variant
    where: str

    def all(self) -> None:
        for number, symbol in enumerate(self.variant.symbols):
            self.symbol(f"{self.where}, symbol {number}", symbol)
        for number, check in enumerate(self.variant.checks):
            self.expressions(f"{self.where}, check {number}", check.expression)
        self.produced()
        for number, value in enumerate(self.variant.values):
            self.value(f"{self.where}, value {number}", value)
        self.expressions(self.where, self.variant.arena_bytes)
        for number, step in enumerate(self.variant.steps):
            self.step(f"{self.where}, step {number}", step)
        self.next(f"{self.where}, next", self.variant.next)

    def register(self, where: str, number: int) -> r.Register:
        require(0 <= number < len(self.table.registers), where, f"there is no register {number}")
        return self.table.registers[number]

    def expressions(self, where: str, *expressions: r.Expression) -> None:
        for code in expressions:
            check_expression(where, code, len(self.variant.symbols))

    def symbol(self, where: str, symbol: r.Symbol) -> None:
        register = self.register(where, symbol.register)
        require(-LARGEST - 1 <= symbol.low <= symbol.high <= LARGEST, where, "has no bounds")
        if symbol.bind == Bind.SIZE:
            require(0 <= symbol.dimension < len(register.dims), where, f"there is no dimension {symbol.dimension}")
        elif symbol.bind == Bind.VALUE:
            require(not register.dims and register.dtype in _NUMBERS, where, "is read of what is no number")
        else:
            require(symbol.bind == Bind.GIVEN, where, f"is read of nothing: {symbol.bind!r}")
            require(register.kind == RegisterKind.INPUT, where, "asks whether another than an INPUT was given")

    def produced(self) -> None:
        registers = [each.register for each in self.variant.produced]
        require(len(set(registers)) == len(registers), self.where, "produces a register twice")
        for each in self.variant.produced:
            register = self.register(self.where, each.register)
            require(register.kind == RegisterKind.LOCAL, self.where, f"produces {register.name}, which is not LOCAL")
            require(len(each.dims) == len(register.dims), self.where, f"produces {register.name} of another rank")
            self.expressions(self.where, *each.dims)

    def value(self, where: str, value: r.Value) -> None:
        if isinstance(value, r.SizesValue):
            require(len(value.numbers) <= MOST_BUFFERS, where, "has too many numbers")
            self.expressions(where, *value.numbers)
            return
        self.expressions(where, value.offset, value.bytes)
        if isinstance(value, r.RegisterValue):
            register = self.register(where, value.register)
            may = register.kind in (RegisterKind.STATE, RegisterKind.LOCAL) or register.written
            require(may or not value.writes, where, f"writes {register.name}, which must not be")
        elif isinstance(value, r.ProducedValue):
            require(0 <= value.place < len(self.variant.produced), where, "is not produced")

    def step(self, where: str, step: r.Step) -> None:
        count = len(self.variant.values)
        if isinstance(step, r.Launch):
            require(0 <= step.kernel < len(self.table.kernels), where, f"there is no kernel {step.kernel}")
            kernel = self.table.kernels[step.kernel]
            require(len(step.values) == kernel.buffers, where, f"gives {kernel.name} {len(step.values)} buffers")
            require(all(0 <= each < count for each in step.values), where, "there is no such value")
            self.numbers(where, step, kernel)
            self.expressions(where, step.fixed, step.per_thread)
            return
        require(0 <= step.to < count and 0 <= step.source < count, where, "there is no such value")
        to = self.variant.values[step.to]
        require(not isinstance(to, r.SizesValue) and to.writes, where, "copies to what is not written")
        self.expressions(where, step.bytes)

    def numbers(self, where: str, step: r.Launch, kernel: r.Kernel) -> None:
        """What a GPU's kernel is given by value is there."""
        values = [self.variant.values[each] for each in step.values]
        if kernel.sizes:
            last = values.pop()
            fits = isinstance(last, r.SizesValue) and len(last.numbers) == kernel.sizes
            require(fits, where, f"gives {kernel.name} other sizes than it takes")
        if kernel.grids:
            arrays = [each for each in values if isinstance(each, r.SizesValue)]
            require(all(each.numbers for each in arrays), where, f"gives {kernel.name} a number that is none")

    def next(self, where: str, following: r.Next) -> None:
        if isinstance(following, r.Return):
            self.outputs(where, following)
            return
        if isinstance(following, r.Branch):
            register = self.register(where, following.register)
            require(register.dtype == "bool" and not register.dims, where, "branches on what is not one bool")
        for state in successors(following):
            require(0 <= state < len(self.table.states), where, f"there is no state {state}")

    def outputs(self, where: str, following: r.Return) -> None:
        require(len(following.outputs) == len(self.table.outputs), where, "returns another number of outputs")
        for each, output in zip(following.outputs, self.table.outputs, strict=True):
            if each is None:
                continue
            register = self.register(where, each.register if isinstance(each, r.RegisterView) else each)
            rank = len(each.dims) if isinstance(each, r.RegisterView) else len(register.dims)
            if isinstance(each, r.RegisterView):
                require(len(each.strides) == rank <= MOST_RANK, where, "returns a view with other strides than sizes")
                self.expressions(where, *each.dims, *each.strides, each.offset)
            same = (register.dtype, rank) == (output.dtype, len(output.dims))
            require(output.dtype is None or same, where, f"returns {register.name} as {output.name}, which is another")


def successors(following: r.Next) -> tuple[int, ...]:
    """The states that may come next."""
    if isinstance(following, r.Branch):
        return following.if_true, following.if_false
    return (following.state,) if isinstance(following, r.Jump) else ()


def check_expression(where: str, code: r.Expression, symbols: int) -> None:
    """That it leaves one number, on a stack that is deep enough, of symbols that are there."""
    require(len(code) <= MOST_CODE, where, "an expression is too long")
    depth = 0
    for op, operand in code:
        require(op in ARITY, where, f"there is no instruction {op}")
        require(depth >= ARITY[op], where, "an expression takes what is not there")
        require(op != Op.SYMBOL or 0 <= operand < symbols, where, f"there is no symbol {operand}")
        require(-LARGEST - 1 <= operand <= LARGEST, where, f"{operand} does not fit 64 bits")
        depth += 1 - ARITY[op]
        require(depth <= DEPTH, where, "an expression is too deep")
    require(depth == 1, where, "an expression leaves other than one number")


def _check_that_it_ends(table: r.Table) -> None:
    """From each state some way must lead to an end: nobody could leave the others."""
    before: dict[int, list[int]] = {}
    ending = []
    for number, state in enumerate(table.states):
        for variant in state.variants:
            if isinstance(variant.next, r.Return | r.Raise):
                ending.append(number)
            for following in successors(variant.next):
                before.setdefault(following, []).append(number)
    seen = set(ending)
    while ending:
        for number in before.get(ending.pop(), ()):
            if number not in seen:
                seen.add(number)
                ending.append(number)
    stuck = [number for number in range(len(table.states)) if number not in seen]
    require(not stuck, "the table", f"no way leads from state {stuck[:1]} to an end")


@dataclass(frozen=True, slots=True)
class DataPlaces:
    """Where the data of registers goes: offsets by key in their section, and the keys of each section in order."""

    offsets: dict[str, int]
    constants: tuple[str, ...]
    states: tuple[str, ...]
    constant_bytes: int
    state_bytes: int


def data_places(artifact: r.ArtifactFile) -> DataPlaces:
    """One after the other, each aligned."""
    used: dict[RegisterKind, set[str]] = {RegisterKind.CONSTANT: set(), RegisterKind.STATE: set()}
    for part in artifact.targets:
        for kind, keys in used.items():
            keys.update(register.data for register in of_kind(part.table, kind) if register.data is not None)
    both = used[RegisterKind.CONSTANT] & used[RegisterKind.STATE]
    require(not both, "the artifact", f"{sorted(both)} is both CONSTANT and STATE")
    unused = artifact.weights.keys() - used[RegisterKind.CONSTANT] - used[RegisterKind.STATE]
    require(not unused, "the artifact", f"no register holds {sorted(unused)}")
    offsets: dict[str, int] = {}
    constants, constant_bytes = _in_order(artifact, used[RegisterKind.CONSTANT], offsets)
    states, state_bytes = _in_order(artifact, used[RegisterKind.STATE], offsets)
    return DataPlaces(offsets, constants, states, constant_bytes, state_bytes)


def _in_order(artifact: r.ArtifactFile, keys: set[str], offsets: dict[str, int]) -> tuple[tuple[str, ...], int]:
    end = 0
    ordered = tuple(key for key in artifact.weights if key in keys)
    for key in ordered:
        offsets[key] = -(-end // ALIGN) * ALIGN
        end = offsets[key] + memoryview(artifact.weights[key]).nbytes
    return ordered, end
