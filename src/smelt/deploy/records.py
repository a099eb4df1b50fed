"""A machine and its code as the records of a file, for one target.

    Machine, TargetCode   →   TargetPart: registers, states and steps by number, and the image

What the file has no record for is written with what it has: numbers are arrays of one computed at entry, a requirement
is a branch to a state that fails, and a result that goes to state is copied there.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.ahead_of_time import KernelEntry, TargetCode
from smelt.deploy.arena import planned
from smelt.deploy.postfix import Postfix
from smelt.ir.artifact.machine import (
    Argument,
    Branch,
    Jump,
    Literal,
    Machine,
    NumberCheck,
    NumberOf,
    Raise,
    RegisterKind,
    RegisterView,
    Return,
    Scalar,
    SizeCheck,
    ValueCheck,
    Variant,
)
from smelt.ir.artifact.text import format_value
from smelt.ir.artifact_file import layout as f
from smelt.ir.artifact_file.artifact import TargetPart
from smelt.ir.artifact_file.code import Code
from smelt.ir.kernel import Kernel
from smelt.ir.program import Launch, Operand, Program, reads, writes
from smelt.ir.table import records as r
from smelt.symbolic.postfix import Op
from smelt.symbolic.shapes import contiguous_stride, span
from smelt.symbolic.symsize import is_symsize, known_equal

_NUMBER_DTYPES = {bool: "bool", int: "int64", float: "float64", str: "int64"}
_MACHINES = {
    "x86_64": f.Machine.X86_64, "aarch64": f.Machine.AARCH64, "riscv64": f.Machine.RISCV64, "nvptx64": f.Machine.CUDA,
}  # fmt: skip
_GRID_ALIGNMENT = 16  # of every buffer, in bytes, that a GPU's code takes for granted

Entries = Mapping[tuple[int, int, str], KernelEntry]
"""The code of kernels, by state, variant and name."""


def dtype_name(dtype: torch.dtype) -> str:
    """`torch.float32` → `float32`, as files have it."""
    return str(dtype).removeprefix("torch.")


def kernel_places(machine: Machine) -> dict[tuple[int, int, str], Kernel]:
    """Every kernel that is launched, by state, variant and name."""
    kernels: dict[tuple[int, int, str], Kernel] = {}
    for number, state in enumerate(machine.states):
        for place, variant in enumerate(state.variants):
            for step in variant.program.steps if variant.program is not None else ():
                for kernel, _ in step.parts if isinstance(step, Launch) else ():
                    kernels.setdefault((number, place, kernel.name), kernel)
    return kernels


def unaligned_kernels(machine: Machine) -> frozenset[int]:
    """Which of `kernel_places`, by number, are given memory that may begin anywhere: parts of registers do."""
    unaligned = set()
    for number, (state, place, name) in enumerate(kernel_places(machine)):
        variant = machine.states[state].variants[place]
        assert variant.program is not None
        view_of_input = dict(zip(variant.program.inputs, variant.inputs, strict=True))
        for step in variant.program.steps:
            for kernel, args in step.parts if isinstance(step, Launch) else ():
                views = [view_of_input[arg] for arg in args if arg in view_of_input]
                if kernel.name == name and not all(_is_aligned(machine, view) for view in views):
                    unaligned.add(number)
    return frozenset(unaligned)


def _is_aligned(machine: Machine, view: RegisterView | NumberOf) -> bool:
    if isinstance(view, NumberOf):
        return True
    register = machine.registers[view.register]
    if is_symsize(view.offset):
        return False
    return (register.offset + int(view.offset) * register.dtype.itemsize) % _GRID_ALIGNMENT == 0


def target_table(machine: Machine, entries: Entries, places: Mapping[int, int]) -> tuple[r.Table, list[str]]:
    """The state machine with these kernels, and their functions in the order of the table. `places`: where in the
    file's data storages begin, by number."""
    symbols = list(dict.fromkeys(entry.symbol for entry in entries.values()))
    return _Table(machine, entries, symbols, places).table(), symbols


def target_part(
    machine: Machine, code: TargetCode, entries: Entries, places: Mapping[int, int]
) -> tuple[TargetPart, Mapping[Any, Any]]:
    """All that a file has for one target; and where its variants end, by state and number, if that is in a state that
    the machine has not."""
    kind = _MACHINES[code.target.triple.split("-")[0]]
    offsets = dict(code.image.symbols)
    symbols = list(dict.fromkeys(entry.symbol for entry in entries.values()))
    image = Code(code.image.code, tuple(offsets.get(symbol, 0) for symbol in symbols), code.image.slots)
    writer = _Table(machine, entries, symbols, places)
    table = writer.table()
    needs = f.feature_mask(kind, code.target.required_features)
    if kind is f.Machine.CUDA:
        needs = int(code.target.cpu.removeprefix("sm_").rstrip("a"))
    return TargetPart(kind, needs, table, image), writer.ends


@dataclass(frozen=True, slots=True)
class _Symbols:
    """The symbols of a variant as the file has them, and code over them."""

    records: tuple[r.Symbol, ...]
    code: Postfix


class _Table:
    """The state machine of one target, as it is written down."""

    def __init__(
        self, machine: Machine, entries: Entries, symbols: list[str], storages: Mapping[int, int]
    ) -> None:
        self._machine, self._entries, self._symbols, self._storages = machine, entries, symbols, storages
        self._registers: list[r.Register] = []
        self._numbers: dict[int, int] = {}  # by the machine's number → the file's
        self._values: dict[int, int] = {}  # arguments that are one of some values → register
        self._shapes = _local_shapes(machine)
        self._states: list[r.State] = []
        self._count = max((len(self._described(end)) for end in _returns(machine)), default=0)
        self.ends: dict[tuple[int, int], list[list[int]]] = {}

    def table(self) -> r.Table:
        machine = self._machine
        for number, argument in enumerate(machine.arguments):
            self._add_argument(number, argument)
        remaining = [number for number in range(len(machine.registers)) if number not in self._numbers]
        for number in sorted(remaining, key=self._place_of_state):
            self._add_register(number)
        self._states = [r.State(state.name, ()) for state in machine.states]
        for number, state in enumerate(machine.states):
            variants = [self._variant(number, place, each) for place, each in enumerate(state.variants)]
            self._states[number] = r.State(state.name, tuple(variants))
        buffers = _buffer_counts(machine, self._entries)
        names = {entry.symbol: name for (_, _, name), entry in reversed(list(self._entries.items()))}
        entry_of = {entry.symbol: entry for entry in self._entries.values()}
        kernels = [_kernel(names[each], buffers[each], entry_of[each]) for each in self._symbols]
        outputs = self._outputs()
        return r.Table(machine.name, tuple(self._registers), outputs, tuple(kernels), tuple(self._states))

    # Registers.

    def _add_argument(self, number: int, argument: Argument) -> None:
        if argument.register is not None:
            self._add_register(argument.register)
        elif argument.choices and argument.choices[0] is not None:
            kind = type(argument.choices[0])
            choices = tuple(str(each) for each in argument.choices) if kind is str else ()
            self._values[number] = len(self._registers)
            dtype = _NUMBER_DTYPES[kind]
            self._registers.append(r.Register(argument.name, RegisterKind.INPUT, dtype, choices=choices))

    def _place_of_state(self, number: int) -> tuple[int, int, str]:
        """State comes last, in one order for all entry points of a file."""
        register = self._machine.registers[number]
        if register.kind is not RegisterKind.STATE or register.storage is None:
            return -1, 0, ""
        return register.storage, register.offset, register.name

    def _add_register(self, number: int) -> None:
        register = self._machine.registers[number]
        limits = {each.name: (each.least, each.most) for each in self._machine.dimensions}
        shape = self._shapes.get(number, ()) if register.shape is None else register.shape
        dims = []
        for size in shape:
            if isinstance(size, str):
                dims.append(r.Dim(*limits[size], size))
            else:
                dims.append(r.Dim(0) if size is None else r.Dim(size, size))
        self._numbers[number] = len(self._registers)
        name, dtype, strides = register.name or f"r{number}", dtype_name(register.dtype), register.stride or ()
        data, size = -1, 0
        if register.storage is not None:
            data = self._storages[register.storage] + register.offset
            size = r.span_bytes(dtype, [dim.low for dim in dims], strides)
        self._registers.append(r.Register(name, register.kind, dtype, tuple(dims), data, size, strides=strides))

    def _outputs(self) -> tuple[r.Output, ...]:
        ends = [variant.next for state in self._machine.states for variant in state.variants]
        described = [self._described(end) for end in ends if isinstance(end, Return)]
        longest = max(described, key=len, default=[])
        outputs = []
        for place, (name, _, _) in enumerate(longest):
            there = [each[place] for each in described if place < len(each)]
            dtypes = {(dtype, len(sizes)) for _, dtype, sizes in there}
            dims = [sizes for _, _, sizes in there]
            if len(dtypes) > 1:
                outputs.append(r.Output(name, None))
                continue
            same = [sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*dims, strict=True)]
            bounds = tuple(r.Dim(0) if size is None else r.Dim(size, size) for size in same)
            outputs.append(r.Output(name, next(iter(dtypes))[0], bounds))
        return tuple(outputs)

    def _described(self, end: Return) -> list[tuple[str, str, tuple[int | None, ...]]]:
        names = list(end.tree.names("output" if end.tree.kind == "leaf" else ""))
        described = []
        for name, value in zip(names, end.values, strict=True):
            if isinstance(value, Literal):
                continue
            dtype = dtype_name(self._machine.registers[value.register].dtype)
            shape = value.shape if isinstance(value, RegisterView) else ()
            described.append((name, dtype, tuple(None if is_symsize(size) else int(size) for size in shape)))
        return described

    # Variants.

    def _bound(self, variant: Variant) -> _Symbols:
        records: list[r.Symbol] = []
        places: dict[str, tuple[int, bool]] = {}
        for binding in variant.symbols:
            register = self._machine.registers[binding.register]
            bind = r.Bind.VALUE if binding.dim is None else r.Bind.SIZE
            places[binding.symbol] = (len(records), register.dtype.is_floating_point)
            number = self._numbers[binding.register]
            records.append(r.Symbol(binding.symbol, bind, number, binding.dim or 0, binding.least, binding.most))
        for check in variant.checks:
            if isinstance(check, ValueCheck) and check.argument in self._values:
                name = self._machine.arguments[check.argument].name
                places[f"argument {name}"] = (len(records), type(check.value) is float)
                records.append(r.Symbol(name, r.Bind.VALUE, self._values[check.argument]))
        return _Symbols(tuple(records), Postfix(places))

    def _checks(self, variant: Variant, symbols: _Symbols) -> tuple[r.Check, ...]:
        checks = []
        for check in variant.checks:
            if isinstance(check, SizeCheck):
                checks.append(r.Check(symbols.code.guard(check.guard), str(check.guard)))
            elif isinstance(check, NumberCheck):
                checks.append(r.Check(symbols.code.comparison(check), _check_text(check)))
            elif check.argument in self._values:
                argument = self._machine.arguments[check.argument]
                place = next(number for number, each in enumerate(symbols.records) if each.name == argument.name)
                checks.append(r.Check(_equal(place, argument, check.value), f"{argument.name} is {check.value!r}"))
        return tuple(checks)

    def _variant(self, state: int, place: int, variant: Variant) -> r.Variant:
        symbols = self._bound(variant)
        entries = {name: entry for (at, of, name), entry in self._entries.items() if (at, of) == (state, place)}
        end = self._next(variant.next, symbols)
        first = _deciding(variant) if variant.required and self._writes(variant) else None
        if variant.required:  # the first state that is added is where it goes on
            self.ends[state, place] = [[len(self._states), 0]]
        if first is not None:  # what it requires is found out before anything is written
            rest = self._made_of(replace(variant, required=()), entries, symbols, end, f"variant {place}")
            self._states.append(r.State("go on", (rest,)))
            end, variant = r.Jump(len(self._states) - 1), first
        for register, failure in reversed(variant.required):
            end = self._required(register, failure, end, symbols)
        record = self._made_of(variant, entries, symbols, end, f"variant {place}")
        return replace(record, checks=self._checks(variant, symbols))

    def _made_of(
        self, variant: Variant, entries: Mapping[str, KernelEntry], symbols: _Symbols, end: r.Next, name: str
    ) -> r.Variant:
        """The steps of a variant, then an end."""
        steps = _Steps(self, variant, symbols)
        if variant.program is not None:
            steps.run(variant.program, entries, self._symbols)
            name = variant.program.name
        for register, number in variant.numbers:
            steps.number(register, number)
        body = tuple(steps.produced), tuple(steps.values), tuple(steps.steps), steps.arena
        return r.Variant(name, end, symbols.records, (), *body)

    def _writes(self, variant: Variant) -> bool:
        """Whether anything is written that is still there after a call that fails."""
        result_registers = [register for register in variant.results if register is not None]
        kept = [*result_registers, *variant.written, *(register for register, _ in variant.numbers)]
        return not all(map(self.is_local, kept))

    def _required(self, register: int, failure: Raise, end: r.Next, symbols: _Symbols) -> r.Next:
        """A branch to a state that goes on as was meant, or to one that fails."""
        following = len(self._states)
        if isinstance(end, r.Jump):
            following = end.state
        else:
            self._states.append(r.State("go on", (r.Variant("go on", end, symbols.records),)))
        self._states.append(r.State("fail", (r.Variant("fail", self._next(failure, symbols)),)))
        return r.Branch(self._numbers[register], following, len(self._states) - 1)

    def _next(self, end: Any, symbols: _Symbols) -> r.Next:
        if isinstance(end, Branch):
            return r.Branch(self._numbers[end.register], end.if_true, end.if_false)
        if isinstance(end, Jump | Raise):
            return end
        outputs: list[r.Returned] = []
        for value in end.values:
            if isinstance(value, Scalar):
                outputs.append(r.Returned(self._numbers[value.register]))
            elif isinstance(value, RegisterView):
                outputs.append(self._view(value, symbols.code))
        outputs += [r.Returned(None)] * (self._count - len(outputs))
        return r.Return(tuple(outputs))

    def _view(self, value: RegisterView, code: Postfix) -> r.Returned:
        number = self._numbers[value.register]
        register = self._machine.registers[value.register]
        shape = self._shapes.get(value.register) if register.shape is None else register.shape
        whole = shape is not None and len(shape) == len(value.shape) and register.stride is None
        plain = all(type(size) is int for size in (*value.shape, *value.stride))
        if whole and value.offset == 0 and plain and tuple(value.stride) == contiguous_stride(value.shape):
            return r.Returned(number)
        if whole and not plain and type(value.offset) is int and value.offset == 0:
            return r.Returned(number)  # programs make their results contiguous
        dims, strides = tuple(map(code.size, value.shape)), tuple(map(code.size, value.stride))
        return r.Returned(number, dims, strides, code.size(value.offset))

    def number_of(self, register: int) -> int:
        """The file's number of a register."""
        return self._numbers[register]

    def is_local(self, register: int) -> bool:
        """Whether a variant makes a register anew."""
        return self._machine.registers[register].kind is RegisterKind.LOCAL


class _Steps:
    """The values and steps of one variant."""

    def __init__(self, table: _Table, variant: Variant, symbols: _Symbols) -> None:
        self._table, self._variant, self._code = table, variant, symbols.code
        self.produced: list[r.Produced] = []
        self.values: list[r.Value] = []
        self.steps: list[r.Step] = []
        self.arena = r.ZERO
        self._places: dict[str, int] = {}  # by the names of buffers

    def run(self, program: Program, entries: Mapping[str, KernelEntry], kernels: list[str]) -> None:
        """A program's buffers as values, its launches as steps, and where its results go."""
        variant = self._variant
        written = {name for step in program.steps for name in writes(step)}
        for name, view in zip(program.inputs, variant.inputs, strict=True):
            self._places[name] = self._value(self._input(program, name, view, name in written))
        produced_buffers = self._made(program)
        arena = planned(program, produced_buffers, self._code)
        self.arena = arena.bytes
        for buffer in program.buffers:
            if buffer.name not in self._places and buffer.name in arena.offsets:
                size = self._bytes(buffer.spec.shape, buffer.spec.stride, buffer.spec.dtype)
                self._places[buffer.name] = self._value(r.ArenaValue(arena.offsets[buffer.name], size))
        for step in program.steps:
            assert isinstance(step, Launch)
            for kernel, args in step.parts:
                self._launch(entries[kernel.name], kernels, args)
        self._copy_results(program, produced_buffers)

    def _value(self, value: r.Value) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def _bytes(self, shape: Any, stride: Any, dtype: torch.dtype) -> r.Expression:
        return self._code.size(span(shape, stride) * dtype.itemsize)

    def _input(self, program: Program, name: str, view: RegisterView | NumberOf, written: bool) -> r.Value:
        if isinstance(view, NumberOf):
            return r.SizesValue((self._code.operand(view.what),))
        spec = program.buffer(name).spec
        size = self._bytes(spec.shape, spec.stride, spec.dtype)
        offset = self._code.size(view.offset * spec.dtype.itemsize)
        return r.RegisterValue(self._table.number_of(view.register), size, offset, written)

    def _made(self, program: Program) -> dict[str, int]:
        """Buffers that are registers the variant makes anew, each for the first result that it is."""
        produced_places: dict[str, int] = {}
        inputs = set(program.inputs)
        for output, register in zip(program.outputs, self._variant.results, strict=True):
            if not isinstance(output, Operand) or register is None or not self._table.is_local(register):
                continue
            dims = tuple(map(self._code.size, output.shape))
            self.produced.append(r.Produced(self._table.number_of(register), dims))
            spec = program.buffer(output.buffer).spec
            whole = known_equal(span(spec.shape, spec.stride), span(output.shape, output.stride))
            if output.buffer not in produced_places and output.buffer not in inputs and whole:
                produced_places[output.buffer] = len(self.produced) - 1
                size = self._bytes(spec.shape, spec.stride, spec.dtype)
                self._places[output.buffer] = self._value(r.ProducedValue(produced_places[output.buffer], size))
        return produced_places

    def _launch(self, entry: KernelEntry, kernels: list[str], args: tuple[str, ...]) -> None:
        values = [self._places[name] for name in args]
        if entry.params:
            values.append(self._value(r.SizesValue(tuple(map(self._code.operand, entry.params)))))
        workspace = self._code.size(entry.workspace)
        fixed, each = (workspace, r.ZERO) if entry.is_grids else (r.ZERO, workspace)
        self.steps.append(r.Launch(kernels.index(entry.symbol), tuple(values), fixed, each))

    def _copy_results(self, program: Program, produced_buffers: dict[str, int]) -> None:
        """Results that are not where they go yet."""
        count = -1
        for output, register in zip(program.outputs, self._variant.results, strict=True):
            if not isinstance(output, Operand) or register is None:
                continue
            dtype = program.buffer(output.buffer).spec.dtype
            size = self._bytes(output.shape, output.stride, dtype)
            if self._table.is_local(register):
                count += 1
                if produced_buffers.get(output.buffer) == count:
                    continue
                to: r.Value = r.ProducedValue(count, size)
            else:
                to = r.RegisterValue(self._table.number_of(register), size, writes=True)
            self.steps.append(r.Copy(self._value(to), self._places[output.buffer], size))

    def number(self, register: int, number: NumberOf) -> None:
        """A register gets a number."""
        source = self._value(r.SizesValue((self._code.operand(number.what),)))
        size = r.number(8)
        if self._table.is_local(register):
            self.produced.append(r.Produced(self._table.number_of(register)))
            to: r.Value = r.ProducedValue(len(self.produced) - 1, size)
        else:
            to = r.RegisterValue(self._table.number_of(register), size, writes=True)
        self.steps.append(r.Copy(self._value(to), source, size))


def _deciding(variant: Variant) -> Variant | None:
    """A variant of those steps alone that decide whether what is required holds; None if one of them writes what the
    program is given."""
    program = variant.program
    assert program is not None
    required = {register for register, _ in variant.required}
    pairs = zip(program.outputs, variant.results, strict=True)
    decided = [(output, register) for output, register in pairs if register in required]
    wanted = {output.buffer for output, _ in decided if isinstance(output, Operand)}
    steps = []
    for step in reversed(program.steps):
        if wanted.isdisjoint(writes(step)):
            continue
        if not set(program.inputs).isdisjoint(writes(step)):
            return None
        steps.append(step)
        wanted |= {*reads(step), *writes(step)}
    wanted_inputs = [pair for pair in zip(program.inputs, variant.inputs, strict=True) if pair[0] in wanted]
    deciding_program = replace(
        program,
        name=f"{program.name}, what it requires",
        buffers=tuple(buffer for buffer in program.buffers if buffer.name in wanted),
        inputs=tuple(name for name, _ in wanted_inputs),
        outputs=tuple(output for output, _ in decided),
        steps=tuple(reversed(steps)),
    )
    return replace(
        variant, program=deciding_program, inputs=tuple(view for _, view in wanted_inputs),
        results=tuple(register for _, register in decided), written=(), numbers=(),
    )  # fmt: skip


def _local_shapes(machine: Machine) -> dict[int, tuple[int | None, ...]]:
    """The sizes of local registers; None where they differ."""
    shapes: dict[int, tuple[int | None, ...]] = {}
    for state in machine.states:
        for variant in state.variants:
            outputs = variant.program.outputs if variant.program is not None else ()
            for output, register in zip(outputs, variant.results, strict=True):
                if register is None or not isinstance(output, Operand):
                    continue
                shape = tuple(None if is_symsize(size) else int(size) for size in output.shape)
                known = shapes.setdefault(register, shape)
                if len(known) == len(shape):
                    pairs = zip(known, shape, strict=True)
                    shapes[register] = tuple(one if one == other else None for one, other in pairs)
    return shapes


def _buffer_counts(machine: Machine, entries: Entries) -> dict[str, int]:
    """How many buffers kernels are given, by their symbols."""
    counts = {}
    for (state, place, name), entry in entries.items():
        program = machine.states[state].variants[place].program
        steps = program.steps if program is not None else ()
        parts = [part for step in steps if isinstance(step, Launch) for part in step.parts]
        args = next(args for kernel, args in parts if kernel.name == name)
        counts[entry.symbol] = len(args) + bool(entry.params)
    return counts


def _kernel(name: str, buffers: int, entry: KernelEntry) -> r.Kernel:
    return r.Kernel(name, buffers, len(entry.params), entry.grids) if entry.is_grids else r.Kernel(name, buffers)


def _returns(machine: Machine) -> list[Return]:
    ends = [variant.next for state in machine.states for variant in state.variants]
    return [end for end in ends if isinstance(end, Return)]


def _check_text(check: NumberCheck) -> str:
    text = f"{format_value(check.left)} {check.relation} {format_value(check.right)}"
    return text if check.holds else f"not {text}"


def _equal(place: int, argument: Argument, value: Any) -> r.Expression:
    if type(value) is float:
        return r.apply(Op.FEQ, r.symbol(place), r.floating(value))
    wanted = argument.choices.index(value) if isinstance(value, str) else int(value)
    return r.apply(Op.EQ, r.symbol(place), r.number(wanted))
