"""The driver of an artifact as LLVM text: the state machine of a `Table`, with its checks, memory and launches.

    int NAME_run(NAME_session *session, const NAME_tensor *inputs, NAME_tensor *outputs)
      entry        registers of inputs, their sizes against their bounds
      s0.v0        symbols and checks of the first variant of state 0; where one does not hold: s0.v1, …
                   memory for what it produces, its arena and its workspace; kernels in order; the next state

The caller owns the memory. From its start on, each variant takes what it produces, and its arena until it ends. Where
states form a loop there are two halves: on a back edge, values that are read later move to the start of the other half.

A run that fails leaves state unchanged. A variant that returns has all of its memory before its first kernel. State
that kernels write is copied first (`saved_ranges`), to the start of the memory; a run that fails later restores it.
"""

import math
from collections.abc import Sequence

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.static.expressions import symbols_of
from smelt.ir.artifact_file.layout import ALIGN
from smelt.ir.table import records as r
from smelt.ir.table.records import DTYPE_NAMES, DTYPES, Bind, RegisterKind
from smelt.symbolic.postfix import Op

OK, WRONG_SIZE, NO_VARIANT, NO_MEMORY, SMALL_OUTPUT, MISSING_INPUT, RAISED = 0, 1, 2, 3, 4, 5, 16
_MOST = 1 << 47  # bytes of anything

# Fields of the session, and of a tensor, which has its sizes behind them; `header` declares the same in C.
_SESSION = "{ ptr, ptr, i64, i64, i32, i32 }"
_STATE, _MEMORY, _BYTES, _NEEDED, _INPUT, _DIMENSION = range(6)
_DATA, _ROOM, _RANK, _DTYPE, _SHAPE = range(5)

_HELPERS = """
define internal void @smelt.copy(ptr %to, ptr %from, i64 %bytes) noinline {
entry:
  %words = lshr i64 %bytes, 3
  %whole = shl i64 %words, 3
  %any = icmp ne i64 %words, 0
  br i1 %any, label %wide, label %between
wide:
  %i = phi i64 [ 0, %entry ], [ %i.next, %wide ]
  %from.i = getelementptr i64, ptr %from, i64 %i
  %to.i = getelementptr i64, ptr %to, i64 %i
  %word = load i64, ptr %from.i, align 1
  store i64 %word, ptr %to.i, align 1
  %i.next = add i64 %i, 1
  %i.more = icmp ult i64 %i.next, %words
  br i1 %i.more, label %wide, label %between
between:
  %rest = icmp ult i64 %whole, %bytes
  br i1 %rest, label %narrow, label %exit
narrow:
  %j = phi i64 [ %whole, %between ], [ %j.next, %narrow ]
  %from.j = getelementptr i8, ptr %from, i64 %j
  %to.j = getelementptr i8, ptr %to, i64 %j
  %byte = load i8, ptr %from.j
  store i8 %byte, ptr %to.j
  %j.next = add i64 %j, 1
  %j.more = icmp ult i64 %j.next, %bytes
  br i1 %j.more, label %narrow, label %exit
exit:
  ret void
}
define internal ptr @smelt.copy_view(ptr %to, ptr %from, i64 %item, i64 %rank, ptr %dims, ptr %strides) noinline {
entry:
  %is.element = icmp eq i64 %rank, 0
  br i1 %is.element, label %element, label %axis
element:
  call void @smelt.copy(ptr %to, ptr %from, i64 %item)
  %behind = getelementptr i8, ptr %to, i64 %item
  ret ptr %behind
axis:
  %size = load i64, ptr %dims, align 8
  %stride = load i64, ptr %strides, align 8
  %step = mul i64 %stride, %item
  %inner.rank = sub i64 %rank, 1
  %inner.dims = getelementptr i64, ptr %dims, i64 1
  %inner.strides = getelementptr i64, ptr %strides, i64 1
  %any = icmp sgt i64 %size, 0
  br i1 %any, label %body, label %exit
body:
  %i = phi i64 [ 0, %axis ], [ %i.next, %body ]
  %at = phi ptr [ %to, %axis ], [ %at.next, %body ]
  %offset = mul i64 %i, %step
  %source = getelementptr i8, ptr %from, i64 %offset
  %at.next = call ptr @smelt.copy_view(ptr %at, ptr %source, i64 %item, i64 %inner.rank, ptr %inner.dims, ptr %inner.strides)
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, %size
  br i1 %more, label %body, label %exit
exit:
  %end = phi ptr [ %to, %axis ], [ %at.next, %body ]
  ret ptr %end
}
"""  # noqa: E501


@dataclass(frozen=True, slots=True)
class Places:
    """Where the data of registers is: byte offsets by key, of constants in the weights, of state in a session's."""

    constant_bytes: int
    state_bytes: int


def driver_text(
    name: str, table: r.Table, symbols: Sequence[str], constant_bytes: int, state_bytes: int
) -> tuple[str, dict[r.Expression, str]]:
    """LLVM text of `NAME_run` and `NAME_init`, and the names of the size functions that it calls (`size_module`).
    `symbols`: the functions of the table's kernels. `@NAME.weights` is to be defined beside it, constants first, then
    what state begins with."""
    driver = _Driver(name, table, tuple(symbols), Places(constant_bytes, state_bytes))
    return driver.text(), driver.t.sizes


def rank_of(table: r.Table) -> int:
    """How many sizes the interface has room for in each tensor."""
    ranks = [len(register.dims) for register in table.registers] + [len(output.dims) for output in table.outputs]
    ranks += [
        len(each.dims)
        for state in table.states
        for variant in state.variants
        if isinstance(variant.next, r.Return)
        for each in variant.next.outputs
        if each.offset is not None
    ]
    return max(1, *ranks) if ranks else 1


def has_loop(table: r.Table) -> bool:
    """Whether a state may come again."""
    edges = (
        (number, after)
        for number, state in enumerate(table.states)
        for variant in state.variants
        for after in r.successors(variant.next)
    )
    return any(after <= number for number, after in edges)


def raised(table: r.Table) -> list[r.Raise]:
    """The errors that a run may end with; the first is code `RAISED`."""
    ends = (variant.next for state in table.states for variant in state.variants)
    return list(dict.fromkeys(end for end in ends if isinstance(end, r.Raise)))


def saved_ranges(table: r.Table) -> list[tuple[int, int]]:
    """First byte and end of state that a run may have to put back: what variants write that do not return.
    Registers that share memory are in one range."""
    written = {
        number
        for state in table.states
        for variant in state.variants
        if not isinstance(variant.next, r.Return)
        for number in _written_state(table, variant)
    }
    ranges: list[tuple[int, int]] = []
    for first, end in sorted(_bytes_of(table.registers[number]) for number in written):
        if ranges and first < ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(end, ranges[-1][1]))
        elif first < end:
            ranges.append((first, end))
    return ranges


def saved_bytes(ranges: Sequence[tuple[int, int]]) -> int:
    """Room for copies of ranges."""
    return sum(-(-(end - first) // ALIGN) * ALIGN for first, end in ranges)


def _written_state(table: r.Table, variant: r.Variant) -> set[int]:
    values = (value for value in variant.values if isinstance(value, r.RegisterValue) and value.writes)
    return {value.register for value in values if table.registers[value.register].kind == RegisterKind.STATE}


def _bytes_of(register: r.Register) -> tuple[int, int]:
    first = register.data
    sizes = [dim.low for dim in register.dims]
    elements = math.prod(sizes)
    if register.strides and elements:
        elements = 1 + sum((size - 1) * stride for size, stride in zip(sizes, register.strides, strict=True))
    return first, first + elements * DTYPES[register.dtype]


class _Text:
    """A function in the making, line by line."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.sizes: dict[r.Expression, str] = {}
        self._count = 0

    def fresh(self, stem: str = "v") -> str:
        self._count += 1
        return f"%{stem}{self._count}"

    def op(self, text: str) -> str:
        """The name of an instruction's result."""
        name = self.fresh()
        self.lines.append(f"  {name} = {text}")
        return name

    def do(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

    def block(self) -> str:
        """A new label; `label` begins it."""
        return self.fresh("b")[1:]

    def require(self, condition: str, fallback: str) -> None:
        """Go on where a condition holds, else at a label."""
        following = self.block()
        self.do(f"br i1 {condition}, label %{following}, label %{fallback}")
        self.label(following)

    def size(self, code: r.Expression, symbols: Sequence[str]) -> str:
        """An i64, as text: a constant or the name of a value."""
        if len(code) == 1:
            return symbols[code[0].operand] if code[0].op == Op.SYMBOL else str(code[0].operand)
        name = self.sizes.setdefault(code, f"smelt.size{len(self.sizes)}")
        return self.op(f"call i64 @{name}({', '.join(f'i64 {symbols[place]}' for place in symbols_of(code))})")


class _Driver:
    def __init__(self, name: str, table: r.Table, kernels: tuple[str, ...], places: Places) -> None:
        self.name, self.table, self.kernels, self.places = name, table, kernels, places
        self.t = _Text()
        self.tensor = f"{{ ptr, i64, i32, i32, [{rank_of(table)} x i64] }}"
        self.inputs = [n for n, each in enumerate(table.registers) if each.kind == RegisterKind.INPUT]
        self.loops = has_loop(table)
        self.live = _live_locals(table)
        self.errors = raised(table)
        self.ranges = saved_ranges(table)
        self.saved_bytes = saved_bytes(self.ranges)

    def text(self) -> str:
        t = self.t
        t.label("entry")
        self._declare_variables()
        self._read_inputs()
        t.do("br label %s0.v0")
        for number, state in enumerate(self.table.states):
            for place, variant in enumerate(state.variants):
                after = f"s{number}.v{place + 1}" if place + 1 < len(state.variants) else "no.variant"
                t.label(f"s{number}.v{place}")
                _VariantText(self, number, variant, after).write()
        for label, code in (("no.variant", NO_VARIANT), ("no.memory", NO_MEMORY), ("small.output", SMALL_OUTPUT)):
            t.label(label)
            self.fail(code)
        self._put_back()
        body = "\n".join(t.lines)
        head = f"define i32 @{self.name}_run(ptr %session, ptr %inputs, ptr %outputs)"
        return f"{_HELPERS}\n{head} {{\n{body}\n}}\n{self._init_text()}"

    def _init_text(self) -> str:
        """State as it was when the model was exported."""
        return f"""
define void @{self.name}_init(ptr %session, ptr %state, ptr %memory, i64 %bytes) {{
  %state.at = getelementptr {_SESSION}, ptr %session, i32 0, i32 {_STATE}
  store ptr %state, ptr %state.at
  %memory.at = getelementptr {_SESSION}, ptr %session, i32 0, i32 {_MEMORY}
  store ptr %memory, ptr %memory.at
  %bytes.at = getelementptr {_SESSION}, ptr %session, i32 0, i32 {_BYTES}
  store i64 %bytes, ptr %bytes.at
  %from = getelementptr i8, ptr @{self.name}.weights, i64 {-(-self.places.constant_bytes // ALIGN) * ALIGN}
  call void @smelt.copy(ptr %state, ptr %from, i64 {self.places.state_bytes})
  ret void
}}
"""

    # Variables: the address of each register, its sizes, and of a local one its bytes.

    def _declare_variables(self) -> None:
        t = self.t
        for number, register in enumerate(self.table.registers):
            t.do(f"%r{number} = alloca ptr")
            t.do(f"store ptr null, ptr %r{number}")
            if register.kind in (RegisterKind.INPUT, RegisterKind.LOCAL):
                for dim in range(len(register.dims)):
                    t.do(f"%r{number}.d{dim} = alloca i64")
                    t.do(f"store i64 0, ptr %r{number}.d{dim}")
            if register.kind == RegisterKind.LOCAL:
                t.do(f"%r{number}.bytes = alloca i64")
                t.do(f"store i64 0, ptr %r{number}.bytes")
        steps = [step for state in self.table.states for variant in state.variants for step in variant.steps]
        most = max([1, *(len(step.values) for step in steps if isinstance(step, r.Launch))])
        t.do(f"%buffers = alloca [{most} x ptr]")
        rank = rank_of(self.table)
        t.do(f"%view.dims = alloca [{rank} x i64]")
        t.do(f"%view.strides = alloca [{rank} x i64]")
        for variable in ("%top", "%half"):
            t.do(f"{variable} = alloca i64")
            t.do(f"store i64 0, ptr {variable}")
        t.do(f"%state = load ptr, ptr {self.session(_STATE)}")
        t.do(f"%saved = load ptr, ptr {self.session(_MEMORY)}")
        t.do(f"%memory = getelementptr i8, ptr %saved, i64 {self.saved_bytes}")
        t.do(f"%bytes.all = load i64, ptr {self.session(_BYTES)}")
        t.do(f"%bytes = sub i64 %bytes.all, {self.saved_bytes}")
        t.do("%code = alloca i32")
        for place in range(len(self.ranges)):
            t.do(f"%is.saved{place} = alloca i1")
            t.do(f"store i1 false, ptr %is.saved{place}")
        t.do("%part.unaligned = lshr i64 %bytes, 1")
        t.do(f"%part = and i64 %part.unaligned, -{ALIGN}")

    def session(self, field: int) -> str:
        return self.t.op(f"getelementptr {_SESSION}, ptr %session, i32 0, i32 {field}")

    def _field(self, array: str, place: int, field: int, dim: int | None = None) -> str:
        inside = "" if dim is None else f", i64 {dim}"
        return self.t.op(f"getelementptr {self.tensor}, ptr {array}, i64 {place}, i32 {field}{inside}")

    def _read_inputs(self) -> None:
        t = self.t
        for number, register in enumerate(self.table.registers):
            if register.data >= 0:
                offset = register.data
                base = f"@{self.name}.weights" if register.kind == RegisterKind.CONSTANT else "%state"
                t.do(f"store ptr {t.op(f'getelementptr i8, ptr {base}, i64 {offset}')}, ptr %r{number}")
        named: dict[str, str] = {}
        for place, number in enumerate(self.inputs):
            self._read_input(place, number, named)

    def _read_input(self, place: int, number: int, named: dict[str, str]) -> None:
        t, register = self.t, self.table.registers[number]
        data = t.op(f"load ptr, ptr {self._field('%inputs', place, _DATA)}")
        t.do(f"store ptr {data}, ptr %r{number}")
        self._note(place, -1)
        present, after = t.block(), t.block()
        missing = f"missing{place}"
        absent = after if register.optional else missing
        t.do(f"br i1 {t.op(f'icmp ne ptr {data}, null')}, label %{present}, label %{absent}")
        if not register.optional:
            t.label(missing)
            t.do(f"ret i32 {MISSING_INPUT}")
        t.label(present)
        elements = f"{float(DTYPES[register.dtype])!r}"
        for dim, bounds in enumerate(register.dims):
            self._note(None, dim)
            size = t.op(f"load i64, ptr {self._field('%inputs', place, _SHAPE, dim)}, align 8")
            t.do(f"store i64 {size}, ptr %r{number}.d{dim}")
            low, high = t.op(f"icmp sge i64 {size}, {bounds.low}"), t.op(f"icmp sle i64 {size}, {bounds.high}")
            t.require(t.op(f"and i1 {low}, {high}"), f"wrong{place}")
            elements = t.op(f"fmul double {elements}, {t.op(f'sitofp i64 {size} to double')}")
            if bounds.name and not register.optional:
                t.require(t.op(f"icmp eq i64 {size}, {named.setdefault(bounds.name, size)}"), f"wrong{place}")
        t.require(t.op(f"fcmp ole double {elements}, {float(_MOST)!r}"), f"wrong{place}")
        t.do(f"br label %{after}")
        t.label(f"wrong{place}")
        t.do(f"ret i32 {WRONG_SIZE}")
        t.label(after)

    def _note(self, place: int | None, dim: int) -> None:
        """For messages: which input, which of its dimensions is looked at."""
        if place is not None:
            self.t.do(f"store i32 {place}, ptr {self.session(_INPUT)}")
        self.t.do(f"store i32 {dim}, ptr {self.session(_DIMENSION)}")

    # Memory.

    def allocate(self, count: str) -> str:
        """Bytes at the top of the used memory; ends the run if there are too few."""
        t = self.t
        top = t.op("load i64, ptr %top")
        start = t.op(f"and i64 {t.op(f'add i64 {top}, {ALIGN - 1}')}, -{ALIGN}")
        end = t.op(f"add i64 {start}, {count}")
        limit = "%bytes"
        if self.loops:
            first = t.op(f"mul i64 {t.op('load i64, ptr %half')}, %part")
            limit = t.op(f"add i64 {first}, %part")
            used = t.op(f"add i64 {t.op(f'sub i64 {end}, {first}')}, {ALIGN}")
            needed = t.op(f"mul i64 {used}, 2")
        else:
            needed = end
        if self.saved_bytes:
            needed = t.op(f"add i64 {needed}, {self.saved_bytes}")
        t.do(f"store i64 {needed}, ptr {self.session(_NEEDED)}")
        fine = t.op(f"and i1 {t.op(f'icmp sge i64 {count}, 0')}, {t.op(f'icmp sle i64 {end}, {limit}')}")
        t.require(fine, "no.memory")
        t.do(f"store i64 {end}, ptr %top")
        return t.op(f"getelementptr i8, ptr %memory, i64 {start}")

    def go_to(self, number: int, state: int) -> None:
        """On a back edge, live values move to the other half."""
        if state <= number and self.loops:
            t = self.t
            other = t.op(f"xor i64 {t.op('load i64, ptr %half')}, 1")
            t.do(f"store i64 {other}, ptr %half")
            t.do(f"store i64 {t.op(f'mul i64 {other}, %part')}, ptr %top")
            for register in sorted(self.live[state]):
                count = t.op(f"load i64, ptr %r{register}.bytes")
                moved = self.allocate(count)
                t.do(f"call void @smelt.copy(ptr {moved}, ptr {t.op(f'load ptr, ptr %r{register}')}, i64 {count})")
                t.do(f"store ptr {moved}, ptr %r{register}")
        self.t.do(f"br label %s{state}.v0")

    # A run that fails.

    def fail(self, code: int) -> None:
        """End the run with a code, and state as it was before it."""
        self.t.do(f"store i32 {code}, ptr %code")
        self.t.do("br label %fail")

    def save(self, variant: r.Variant) -> None:
        """Copy the state that a variant writes, unless an earlier one has."""
        t = self.t
        registers = self.table.registers
        written = [_bytes_of(registers[number]) for number in _written_state(self.table, variant)]
        for place, (first, end) in enumerate(self.ranges):
            if any(one < end and first < other for one, other in written):
                saves, done = t.block(), t.block()
                t.do(f"br i1 {t.op(f'load i1, ptr %is.saved{place}')}, label %{done}, label %{saves}")
                t.label(saves)
                self._copy_range(place, "%state", is_saving=True)
                t.do(f"store i1 true, ptr %is.saved{place}")
                t.do(f"br label %{done}")
                t.label(done)

    def _put_back(self) -> None:
        t = self.t
        t.label("fail")
        for place in range(len(self.ranges)):
            restores, done = t.block(), t.block()
            t.do(f"br i1 {t.op(f'load i1, ptr %is.saved{place}')}, label %{restores}, label %{done}")
            t.label(restores)
            self._copy_range(place, "%state", is_saving=False)
            t.do(f"br label %{done}")
            t.label(done)
        t.do(f"ret i32 {t.op('load i32, ptr %code')}")

    def _copy_range(self, place: int, state: str, *, is_saving: bool) -> None:
        t, (first, end) = self.t, self.ranges[place]
        own = t.op(f"getelementptr i8, ptr {state}, i64 {first}")
        copy = t.op(f"getelementptr i8, ptr %saved, i64 {saved_bytes(self.ranges[:place])}")
        to, source = (copy, own) if is_saving else (own, copy)
        t.do(f"call void @smelt.copy(ptr {to}, ptr {source}, i64 {end - first})")

    # Outputs.

    def reserve(self, place: int, number: int, view: tuple[list[str], list[str], str] | None) -> "_Returned":
        """Where an output is; a place for its copy where it is not contiguous or the caller wants it elsewhere."""
        t, register = self.t, self.table.registers[number]
        item = DTYPES[register.dtype]
        dims = self.dims_of(number) if view is None else view[0]
        strides = list(map(str, register.strides)) if register.strides else None
        source = t.op(f"load ptr, ptr %r{number}")
        if view is not None:
            strides = view[1]
            source = t.op(f"getelementptr i8, ptr {source}, i64 {t.op(f'mul i64 {view[2]}, {item}')}")
        count = str(item)
        for dim in dims:
            count = t.op(f"mul i64 {count}, {dim}")
        data_at, bytes_at = self._field("%outputs", place, _DATA), self._field("%outputs", place, _ROOM)
        wanted = t.op(f"load ptr, ptr {data_at}")
        checks, looks, makes, done = t.block(), t.block(), t.block(), t.block()
        t.do(f"br i1 {t.op(f'icmp ne ptr {wanted}, null')}, label %{checks}, label %{looks}")
        t.label(checks)
        room = t.op(f"load i64, ptr {bytes_at}, align 8")
        t.require(t.op(f"icmp sge i64 {room}, {count}"), "small.output")
        checked = t.block()
        t.do(f"br label %{checked}")
        t.label(checked)
        t.do(f"br label %{done}")
        t.label(looks)
        t.do(f"br i1 {self._is_contiguous(dims, strides)}, label %{done}, label %{makes}")
        t.label(makes)
        copy = self.allocate(count)
        copied = t.block()
        t.do(f"br label %{copied}")
        t.label(copied)
        t.do(f"br label %{done}")
        t.label(done)
        to = t.op(f"phi ptr [ {wanted}, %{checked} ], [ null, %{looks} ], [ {copy}, %{copied} ]")
        return _Returned(place, register.dtype, source, to, count, dims, strides)

    def give(self, output: "_Returned") -> None:
        """An output, copied to where `reserve` has a place for it."""
        t, place = self.t, output.place
        data_at, bytes_at = self._field("%outputs", place, _DATA), self._field("%outputs", place, _ROOM)
        copies, done = t.block(), t.block()
        is_copied = t.op(f"icmp ne ptr {output.to}, null")
        t.do(f"br i1 {is_copied}, label %{copies}, label %{done}")
        t.label(copies)
        self._copy_view(output.to, output.source, DTYPES[output.dtype], output.dims, output.strides)
        t.do(f"br label %{done}")
        t.label(done)
        t.do(f"store ptr {t.op(f'select i1 {is_copied}, ptr {output.to}, ptr {output.source}')}, ptr {data_at}")
        t.do(f"store i64 {output.count}, ptr {bytes_at}, align 8")
        self.describe(place, len(output.dims), DTYPE_NAMES.index(output.dtype))
        for axis, size in enumerate(output.dims):
            t.do(f"store i64 {size}, ptr {self._field('%outputs', place, _SHAPE, axis)}, align 8")

    def describe(self, place: int, rank: int, dtype: int) -> None:
        """Rank and dtype of an output, which may differ from run to run."""
        self.t.do(f"store i32 {rank}, ptr {self._field('%outputs', place, _RANK)}")
        self.t.do(f"store i32 {dtype}, ptr {self._field('%outputs', place, _DTYPE)}")

    def dims_of(self, number: int) -> list[str]:
        register = self.table.registers[number]
        if register.kind in (RegisterKind.INPUT, RegisterKind.LOCAL):
            return [self.t.op(f"load i64, ptr %r{number}.d{dim}") for dim in range(len(register.dims))]
        return [str(dim.low) for dim in register.dims]

    def _is_contiguous(self, dims: list[str], strides: list[str] | None) -> str:
        if strides is None:
            return "true"
        t, step, contiguous = self.t, "1", "true"
        for size, stride in zip(reversed(dims), reversed(strides), strict=True):
            same, single = t.op(f"icmp eq i64 {stride}, {step}"), t.op(f"icmp eq i64 {size}, 1")
            contiguous = t.op(f"and i1 {contiguous}, {t.op(f'or i1 {same}, {single}')}")
            step = t.op(f"mul i64 {step}, {size}")
        return contiguous

    def _copy_view(self, to: str, source: str, item: int, dims: list[str], strides: list[str] | None) -> None:
        t = self.t
        if strides is None:
            count = str(item)
            for dim in dims:
                count = t.op(f"mul i64 {count}, {dim}")
            t.do(f"call void @smelt.copy(ptr {to}, ptr {source}, i64 {count})")
            return
        for place, (size, stride) in enumerate(zip(dims, strides, strict=True)):
            t.do(f"store i64 {size}, ptr {t.op(f'getelementptr i64, ptr %view.dims, i64 {place}')}, align 8")
            t.do(f"store i64 {stride}, ptr {t.op(f'getelementptr i64, ptr %view.strides, i64 {place}')}, align 8")
        arrays = "ptr %view.dims, ptr %view.strides"
        t.op(f"call ptr @smelt.copy_view(ptr {to}, ptr {source}, i64 {item}, i64 {len(dims)}, {arrays})")


@dataclass(frozen=True, slots=True)
class _Returned:
    """An output: where its elements are (`source`), and where they are copied to, or null; names of LLVM values."""

    place: int
    dtype: str
    source: str
    to: str
    count: str
    dims: list[str]
    strides: list[str] | None


@dataclass(slots=True)
class _VariantText:
    """One variant: its checks, its memory, its steps, its successor."""

    driver: _Driver
    number: int
    variant: r.Variant
    otherwise: str
    symbols: tuple[str, ...] = ()

    def write(self) -> None:
        d, t, variant = self.driver, self.driver.t, self.variant
        symbols: list[str] = []
        for symbol in variant.symbols:
            symbols.append(self._symbol(symbol))
        self.symbols = tuple(symbols)
        for check in variant.checks:
            t.require(t.op(f"icmp ne i64 {self.size(check.expression)}, 0"), self.otherwise)
        before = [t.op(f"load ptr, ptr %r{number}") for number in range(len(d.table.registers))]
        produced = [self._produce(each) for each in variant.produced]
        for each, pointer in zip(variant.produced, produced, strict=True):
            t.do(f"store ptr {pointer}, ptr %r{each.register}")
        outputs = variant.next.outputs if isinstance(variant.next, r.Return) else ()
        reserved = [self._reserve(place, each) for place, each in enumerate(outputs)]
        kept = t.op("load i64, ptr %top")
        arena = d.allocate(self.size(variant.arena_bytes))
        values = [self._value(value, before, produced, arena) for value in variant.values]
        workspace = self._workspace()
        if not isinstance(variant.next, r.Return):
            d.save(variant)
        for step in variant.steps:
            self._step(step, values, workspace)
        t.do(f"store i64 {kept}, ptr %top")
        self._next(reserved)

    def size(self, code: r.Expression) -> str:
        return self.driver.t.size(code, self.symbols)

    def _symbol(self, symbol: r.Symbol) -> str:
        d, t = self.driver, self.driver.t
        register = d.table.registers[symbol.register]
        data = t.op(f"load ptr, ptr %r{symbol.register}")
        if symbol.bind == Bind.GIVEN:
            value = t.op(f"zext i1 {t.op(f'icmp ne ptr {data}, null')} to i64")
        elif symbol.bind == Bind.SIZE:
            value = d.dims_of(symbol.register)[symbol.dimension]
        else:
            t.require(t.op(f"icmp ne ptr {data}, null"), self.otherwise)
            kind = "i8" if register.dtype == "bool" else "i64"
            value = t.op(f"load volatile {kind}, ptr {data}, align 1")
            value = t.op(f"zext i8 {value} to i64") if kind == "i8" else value
        low, high = t.op(f"icmp sge i64 {value}, {symbol.low}"), t.op(f"icmp sle i64 {value}, {symbol.high}")
        t.require(t.op(f"and i1 {low}, {high}"), self.otherwise)
        return value

    def _produce(self, each: r.Produced) -> str:
        """Memory for a register. Its sizes are stored immediately: everything read from the previous variant is bound
        already."""
        d, t = self.driver, self.driver.t
        dims = [self.size(dim) for dim in each.dims]
        item = DTYPES[d.table.registers[each.register].dtype]
        count, wide = str(item), f"{float(item)!r}"
        for dim in dims:
            count = t.op(f"mul i64 {count}, {dim}")
            wide = t.op(f"fmul double {wide}, {t.op(f'sitofp i64 {dim} to double')}")
        t.require(t.op(f"fcmp ole double {wide}, {float(_MOST)!r}"), "no.memory")
        pointer = d.allocate(count)
        for place, size in enumerate(dims):
            t.do(f"store i64 {size}, ptr %r{each.register}.d{place}")
        t.do(f"store i64 {count}, ptr %r{each.register}.bytes")
        return pointer

    def _value(self, value: r.Value, before: list[str], produced: list[str], arena: str) -> str:
        d, t = self.driver, self.driver.t
        if isinstance(value, r.SizesValue):
            array = d.allocate(str(8 * len(value.numbers)))
            for place, number in enumerate(value.numbers):
                at = t.op(f"getelementptr i64, ptr {array}, i64 {place}")
                t.do(f"store i64 {self.size(number)}, ptr {at}, align 8")
            return array
        base = arena
        if isinstance(value, r.RegisterValue):
            base = before[value.register]
        elif isinstance(value, r.ProducedValue):
            base = produced[value.place]
        return t.op(f"getelementptr i8, ptr {base}, i64 {self.size(value.offset)}")

    def _workspace(self) -> str:
        """The largest that one of its kernels needs."""
        t, most = self.driver.t, "0"
        for step in self.variant.steps:
            if isinstance(step, r.Launch):
                count = t.op(f"add i64 {self.size(step.fixed)}, {self.size(step.per_thread)}")
                most = t.op(f"select i1 {t.op(f'icmp sgt i64 {count}, {most}')}, i64 {count}, i64 {most}")
        return self.driver.allocate(most)

    def _step(self, step: r.Step, values: list[str], workspace: str) -> None:
        d, t = self.driver, self.driver.t
        if isinstance(step, r.Copy):
            to, source = values[step.to], values[step.source]
            t.do(f"call void @smelt.copy(ptr {to}, ptr {source}, i64 {self.size(step.bytes)})")
            return
        assert isinstance(step, r.Launch)
        for place, value in enumerate(step.values):
            t.do(f"store ptr {values[value]}, ptr {t.op(f'getelementptr ptr, ptr %buffers, i64 {place}')}")
        t.do(f"call void @{d.kernels[step.kernel]}(ptr %buffers, i64 1, ptr {workspace})")

    def _next(self, reserved: "list[_Returned | None]") -> None:
        d, t, end = self.driver, self.driver.t, self.variant.next
        if isinstance(end, r.Raise):
            d.fail(RAISED + d.errors.index(end))
        elif isinstance(end, r.Jump):
            d.go_to(self.number, end.state)
        elif isinstance(end, r.Branch):
            truth = t.op(f"load volatile i8, ptr {t.op(f'load ptr, ptr %r{end.register}')}")
            yes, no = t.block(), t.block()
            t.do(f"br i1 {t.op(f'icmp ne i8 {truth}, 0')}, label %{yes}, label %{no}")
            t.label(yes)
            d.go_to(self.number, end.if_true)
            t.label(no)
            d.go_to(self.number, end.if_false)
        else:
            for place, output in enumerate(reserved):
                if output is not None:
                    d.give(output)
                    continue
                t.do(f"store ptr null, ptr {d._field('%outputs', place, _DATA)}")
                t.do(f"store i64 0, ptr {d._field('%outputs', place, _ROOM)}, align 8")
                d.describe(place, 0, -1)
            t.do("ret i32 0")

    def _reserve(self, place: int, each: r.Returned) -> "_Returned | None":
        if each.register is None or each.offset is None:
            return None if each.register is None else self.driver.reserve(place, each.register, None)
        dims, strides = ([self.size(code) for code in codes] for codes in (each.dims, each.strides))
        return self.driver.reserve(place, each.register, (dims, strides, self.size(each.offset)))


def _live_locals(table: r.Table) -> list[set[int]]:
    """The local registers that each state, or a later one, reads before writing them."""
    live: list[set[int]] = [set() for _ in table.states]
    changed = True
    while changed:
        changed = False
        for number, state in enumerate(table.states):
            read = set()
            for variant in state.variants:
                written = {each.register for each in variant.produced}
                after = set().union(*(live[each] for each in r.successors(variant.next)), _read_at_end(variant.next))
                read |= _read(variant) | (after - written)
            read = {each for each in read if table.registers[each].kind == RegisterKind.LOCAL}
            changed = changed or read != live[number]
            live[number] = read
    return live


def _read(variant: r.Variant) -> set[int]:
    registers = {symbol.register for symbol in variant.symbols}
    return registers | {value.register for value in variant.values if isinstance(value, r.RegisterValue)}


def _read_at_end(end: r.Next) -> set[int]:
    if isinstance(end, r.Branch):
        return {end.register}
    if isinstance(end, r.Return):
        return {each.register for each in end.outputs if each.register is not None}
    return set()
