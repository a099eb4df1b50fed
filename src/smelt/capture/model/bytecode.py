"""Code objects as capture reads them: one instruction vocabulary for every supported Python.

A code object → `CodeInfo`: instructions with their prefixes folded in (EXTENDED_ARG, KW_NAMES, PRECALL), absolute jump
targets, the exception table, and which locals are live before each instruction. What differs between Python versions
is decided here, in `_RENAMED` and `_reader`, so that the rest of capture knows one form. tests/versions lists
the remaining differences, and instructions that capture supports in no version.

    3.11  KW_NAMES 3 / PRECALL 2 / CALL 2           →  CALL  arg=2  keywords=("dim",)   offset of KW_NAMES
    3.13  LOAD_CONST ("dim",) / CALL_KW 2           →  CALL_KW arg=2
"""

import dis
import sys
from collections.abc import Callable
from itertools import islice
from types import CodeType
from typing import Any, NamedTuple

from smelt.base.fast_dataclass import dataclass

VERSION = sys.version_info[:2]
CALLABLE_FIRST = VERSION >= (3, 13)
"""Where CALL finds its callable: `[callable, self or NULL, …]` from 3.13, `[NULL, callable, …]` before."""
BINARY_METHODS = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow", "@": "matmul",
    "&": "and", "|": "or", "^": "xor", "<<": "lshift", ">>": "rshift",
}  # fmt: skip
"""Operators of BINARY_OP, and what their special methods are called between `__` (or `__r`, `__i`) and `__`."""


class Instruction(NamedTuple):
    """One step. `offset` is where CPython would have to start to execute it, prefixes included."""

    name: str
    arg: int
    value: Any
    target: int
    offset: int
    next: int
    line: int
    keywords: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Handler:
    """One row of the exception table: instructions in [start, end) that raise go on at `target`."""

    start: int
    end: int
    target: int
    depth: int
    push_offset: bool


@dataclass(slots=True, eq=False)
class CodeInfo:
    """A decoded code object.

    `live[i]` is a bit mask of the localsplus slots that instruction `i` or later may read, or the handler of
    instruction `i - 1` while that still runs; it is worked out when somebody asks, which is of frames where capture
    begins or breaks, not of all that are followed.
    """

    code: CodeType
    instructions: tuple[Instruction, ...]
    index_at: dict[int, int]
    handlers: tuple[Handler, ...]
    slot_names: tuple[str, ...]
    shims: dict[int, CodeType]
    live: tuple[int, ...] | None = None

    @property
    def slot_count(self) -> int:
        return len(self.slot_names)

    def handler_at(self, offset: int) -> Handler | None:
        """Where an exception raised by the instruction at `offset` goes within this frame."""
        for handler in self.handlers:
            if handler.start <= offset < handler.end:
                return handler
        return None

    def handler_of(self, instruction: Instruction) -> Handler | None:
        """Where an exception raised by `instruction` goes within this frame."""
        return self.handler_at(instruction.next - 2)  # its last code unit, prefixes and caches being others

    def is_live(self, index: int, slot: int) -> bool:
        if self.live is None:
            self.live = _liveness(self)
        return bool(self.live[index] >> slot & 1)


_RENAMED: dict[str, str] = {
    "RESUME": "NOP",
    "CACHE": "NOP",
    "PRECALL": "NOP",
    "JUMP_FORWARD": "JUMP",
    "JUMP_BACKWARD": "JUMP",
    "JUMP_BACKWARD_NO_INTERRUPT": "JUMP",
    "LOAD_CLOSURE": "LOAD_FAST",
    "LOAD_FAST_CHECK": "LOAD_FAST",
    **{
        f"POP_JUMP_{way}_IF_{what}": f"POP_JUMP_IF_{what}"
        for way in ("FORWARD", "BACKWARD")
        for what in ("TRUE", "FALSE", "NONE", "NOT_NONE")
    },
}

# 3.12: instructions of their own before, or not needed
_INTRINSICS = {3: "STOPITERATION_ERROR", 5: "UNARY_POSITIVE", 6: "LIST_TO_TUPLE"}
_SLOT_READS = frozenset(
    {"LOAD_FAST", "DELETE_FAST", "LOAD_DEREF", "STORE_DEREF", "DELETE_DEREF", "LOAD_CLASSDEREF", "MAKE_CELL"}
    | {"LOAD_FROM_DICT_OR_DEREF"}
)
_TWO_SLOTS = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}
_ENDS = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})
_SEES_LOCALS = frozenset({"locals", "eval", "exec", "vars", "dir", "_getframe", "currentframe", "stack"})

_MAX_DECODED = 8192
_decoded: dict[int, CodeInfo] = {}  # by identity: equal code objects may come from different files


def decode(code: CodeType) -> CodeInfo:
    """The decoded form of `code`, kept per code object."""
    info = _decoded.get(id(code))
    if info is None:
        while len(_decoded) >= _MAX_DECODED:  # a program may make new code all the time
            del _decoded[next(iter(_decoded))]
        info = _decoded[id(code)] = _decode(code)  # which keeps the code, and so its id, alive
    return info


def forget() -> None:
    """Drop all decoded code objects (for `smelt.reset`)."""
    _decoded.clear()


def _decode(code: CodeType) -> CodeInfo:
    instructions = tuple(_instructions(code))
    index_at = {instruction.offset: index for index, instruction in enumerate(instructions)}
    handlers = tuple(
        Handler(entry.start, entry.end, entry.target, entry.depth, entry.lasti)
        for entry in dis._parse_exception_table(code)  # type: ignore[attr-defined]
    )
    return CodeInfo(code, instructions, index_at, handlers, _slot_names(code), {})


def columns_of(code: CodeType, instruction: Instruction) -> tuple[int, int] | None:
    """Where the expression that an instruction computes stands in its line; None if it is unknown or longer."""
    first, last, start, end = next(islice(code.co_positions(), instruction.offset >> 1, None), (None,) * 4)
    if first != last or start is None or end is None or first != instruction.line:
        return None
    return start, end


def _slot_names(code: CodeType) -> tuple[str, ...]:
    cells = [name for name in code.co_cellvars if name not in code.co_varnames]
    return (*code.co_varnames, *cells, *code.co_freevars)


def _instructions(code: CodeType) -> list[Instruction]:
    """What `dis.get_instructions` tells, at a tenth of its cost: a large model is thousands of instructions."""
    units, lines, slots = code.co_code, _lines(code), _slot_names(code)
    instructions: list[Instruction] = []
    start: int | None = None
    keywords: tuple[str, ...] = ()
    line, extended = code.co_firstlineno, 0
    end = len(units)
    offset = 0
    while offset < end:
        opcode, arg = units[offset], units[offset + 1] | extended
        following = offset + 2
        while following < end and units[following] == _CACHE:
            following += 2
        line = lines[offset >> 1] or line
        start = offset if start is None else start
        extended = 0
        name, read = _READERS[opcode]
        if read is None:
            if name == "EXTENDED_ARG":
                extended = arg << 8
            elif name == "KW_NAMES":
                keywords = code.co_consts[arg]
        else:
            target = -1
            value = read(code, slots, arg)
            if opcode in _JUMPS:
                value = target = following + 2 * value  # counted from behind the caches
                if name == "FOR_ITER":
                    target += _LOOP_END
            elif opcode in _CALLS_METHODS and arg & 1:
                name = "LOAD_METHOD"
            elif opcode == _INTRINSIC:
                name = _INTRINSICS.get(arg, name)
            elif opcode == _INTRINSIC_OF_TWO and arg == 1:
                name = "PREP_RERAISE_STAR"
            instructions.append(_new(Instruction, (name, arg, value, target, start, following, line, keywords)))
            start, keywords = None, ()
        offset = following
    return instructions


def _lines(code: CodeType) -> list[int | None]:
    """The source line of every code unit."""
    lines: list[int | None] = []
    for start, end, line in code.co_lines():
        lines += [line] * ((end - start) >> 1)
    return lines


Reader = Callable[[CodeType, tuple[str, ...], int], Any]
_new = tuple.__new__
_CACHE = dis.opmap["CACHE"]
_JUMPS = frozenset({*dis.hasjrel, *dis.hasjabs})
_COMPARISON_SHIFT = {(3, 11): 0, (3, 12): 4, (3, 13): 5}.get(VERSION, 5)
_NAME_SHIFT = {"LOAD_GLOBAL": 1, "LOAD_SUPER_ATTR": 2, **({"LOAD_ATTR": 1} if VERSION >= (3, 12) else {})}
_CALLS_METHODS = frozenset({dis.opmap["LOAD_ATTR"]} if VERSION >= (3, 12) else ())
_INTRINSIC = dis.opmap.get("CALL_INTRINSIC_1", -1)
_INTRINSIC_OF_TWO = dis.opmap.get("CALL_INTRINSIC_2", -1)
_LOOP_END = {(3, 11): 0, (3, 12): 2}.get(VERSION, 4)  # skips END_FOR (and POP_TOP): the iterator is popped here
_CONVERSIONS = (None, str, repr, ascii)


def _reader(opcode: int, raw: str) -> Reader | None:
    """How the argument of an instruction is read, of code, the names of its slots and the number; None for prefixes."""
    if raw in ("EXTENDED_ARG", "KW_NAMES", "PRECALL"):
        return None
    if opcode in dis.hasconst:
        return lambda code, slots, arg: code.co_consts[arg]
    if opcode in dis.hasname:
        shift = _NAME_SHIFT.get(raw, 0)
        return lambda code, slots, arg: code.co_names[arg >> shift]
    if raw in _TWO_SLOTS:
        return lambda code, slots, arg: (slots[arg >> 4], slots[arg & 15])
    if opcode in dis.haslocal or opcode in dis.hasfree:
        return lambda code, slots, arg: slots[arg]
    if opcode in _JUMPS:
        return (lambda code, slots, arg: -arg) if "BACKWARD" in raw else (lambda code, slots, arg: arg)
    if opcode in dis.hascompare:
        return lambda code, slots, arg: dis.cmp_op[arg >> _COMPARISON_SHIFT]
    if raw == "BINARY_OP":
        return lambda code, slots, arg: dis._nb_ops[arg][1]  # type: ignore[attr-defined]
    if raw == "FORMAT_VALUE":
        return lambda code, slots, arg: (_CONVERSIONS[arg & 3], bool(arg & 4))
    if raw == "CONVERT_VALUE":
        return lambda code, slots, arg: _CONVERSIONS[arg]
    has_argument = opcode in dis.hasarg if hasattr(dis, "hasarg") else opcode >= dis.HAVE_ARGUMENT
    return (lambda code, slots, arg: arg) if has_argument else (lambda code, slots, arg: None)


# By opcode: its name in every version, and how its argument is read.
_READERS = tuple((_RENAMED.get(raw, raw), _reader(opcode, raw)) for opcode, raw in enumerate(dis.opname))


def slots_of_pair(instruction: Instruction) -> tuple[tuple[str, int], ...]:
    """The two half instructions of a 3.13 pair such as LOAD_FAST_LOAD_FAST."""
    first, second = _TWO_SLOTS[instruction.name]
    return ((first, instruction.arg >> 4), (second, instruction.arg & 15))


def _effect(instruction: Instruction) -> tuple[int, int]:
    """(slots read, slots overwritten) as bit masks; a pair's read counts only if its own write does not come first."""
    name, slot = instruction.name, instruction.arg
    if name in _SLOT_READS:
        return 1 << slot, 0
    if name == "STORE_FAST":
        return 0, 1 << slot
    if name == "LOAD_FAST_AND_CLEAR":
        return 1 << slot, 1 << slot
    if name in _TWO_SLOTS:
        reads = writes = 0
        for half, slot in slots_of_pair(instruction):
            if half == "LOAD_FAST":
                reads |= (1 << slot) & ~writes
            else:
                writes |= 1 << slot
        return reads, writes
    return 0, 0


def _liveness(info: CodeInfo) -> tuple[int, ...]:
    code, instructions, index_at, slot_names = info.code, info.instructions, info.index_at, info.slot_names
    count = len(instructions)
    always = (1 << len(slot_names)) - 1 if _SEES_LOCALS & {*code.co_names} else 0
    if "__class__" in code.co_freevars:
        always |= 1 | 1 << slot_names.index("__class__")  # super() without arguments reads both
    elif "super" in code.co_names and code.co_argcount:
        always |= 1  # by which it says what is missing
    effects = [_effect(instruction) for instruction in instructions]
    caught = [_handler_index(instruction, info.handlers, index_at) for instruction in instructions]
    live = [always] * (count + 1)
    changed = True
    while changed:
        changed = False
        for index in range(count - 1, -1, -1):
            instruction = instructions[index]
            after = 0
            if instruction.name not in _ENDS and instruction.name != "JUMP":
                after |= live[index + 1]
            if instruction.target >= 0:
                after |= live[index_at[instruction.target]]
            reads, writes = effects[index]
            before = always | reads | (after & ~writes)
            if caught[index] >= 0:
                before |= live[caught[index]]
            if before != live[index]:
                live[index] = before
                changed = True
    # A frame that waits for a call stands behind it, and what the call raises goes to the call's handler, which need
    # not be that of the next instruction: the RETURN_VALUE of `try: return f()` has none.
    waiting = [0, *(live[handler] if handler >= 0 else 0 for handler in caught)]
    return tuple(mask | also for mask, also in zip(live[:count], waiting[:count], strict=True))


def _handler_index(instruction: Instruction, handlers: tuple[Handler, ...], index_at: dict[int, int]) -> int:
    for handler in handlers:
        if handler.start <= instruction.offset < handler.end or handler.start <= instruction.next - 2 < handler.end:
            return index_at[handler.target]
    return -1


_shim: Callable[..., Any] = lambda call, arguments, keywords: call(*arguments, **keywords)  # noqa: E731


def shim_code(info: CodeInfo, line: int) -> CodeType:
    """The code of `(call, arguments, keywords) -> call(*arguments, **keywords)`, claiming to be `line` of `info`.

    What a break calls is called through it, so that tracebacks, warnings and frame inspection name the user's line.
    """
    code = info.shims.get(line)
    if code is None:
        template = _shim.__code__
        units = len(template.co_code) // 2
        table = bytearray()
        while units > 0:
            length = min(units, 8)
            table += bytes([0x80 | 13 << 3 | length - 1, 0])  # location entries without columns, on one line
            units -= length
        code = info.shims[line] = template.replace(
            co_filename=info.code.co_filename,
            co_name=info.code.co_name,
            co_qualname=info.code.co_qualname,
            co_firstlineno=line,
            co_linetable=bytes(table),
        )
    return code


_RAISES = ("RAISE_VARARGS", "RERAISE")
_LEAVES = ("RETURN_VALUE", "RETURN_CONST", "YIELD_VALUE", "SEND", "FOR_ITER", "RETURN_GENERATOR")


def only_raises(info: CodeInfo, index: int) -> bool:
    """Whether the instructions from here on lead to a `raise` and nowhere else."""
    for instruction in info.instructions[index:]:
        if instruction.name in _RAISES:
            return True
        if instruction.target >= 0 or instruction.name in _LEAVES:
            return False
    return False
