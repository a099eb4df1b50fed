"""Translates LLVM text, as `Builder` writes it for one thread, to SPIR-V modules for Vulkan, one per entry.

    define spir_kernel void @k0_0(ptr addrspace(1) %b0, …, i64 %size0) "threads"="256" "features"="+nan32" {…}
    → {"k0_0": b"…"}

LLVM's own SPIR-V back end is not used: it aborts on unsupported input, writes unordered comparisons as an instruction
that shaders do not have, does not forbid fusing a product and a sum, and has no addresses, so that each launch would
have to describe each buffer to the driver. Here global memory has 64-bit addresses, as on any GPU. float16 is held as
its bits: it is only moved and converted.

Launch parameters are 64-bit numbers: the first block's number, buffers, workspace, sizes. At most `PUSHED` of them are
push constants; a longer list is passed by address.
"""

import re
import struct
from collections.abc import Callable, Sequence

from smelt.base.errors import SmeltError
from smelt.base.fast_dataclass import dataclass
from smelt.codegen.gpu.spirv.control_flow import Block, blocks_of, structured
from smelt.codegen.gpu.spirv.module_words import Capability, ModuleWords, Op, Storage, instruction
from smelt.codegen.gpu.spirv.wide_integers import WideIntegers

PUSHED = 15  # parameters in the 128 bytes that every device takes with a launch, beside the first block's number

_DEFINE = re.compile(r"^define ([^@\n]*)@([\w.$-]+)\(([^\n]*)\)([^()\n]*)\{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_TABLE = re.compile(
    r"^@([\w.$-]+) = internal (?:addrspace\(3\) )?(constant|global) \[(\d+) x (\w+)\](.*)$", re.MULTILINE
)
_ATTRIBUTE = re.compile(r'"(\w+)"="([^"]*)"')

_BINARY = {
    "add": 128, "fadd": 129, "sub": 130, "fsub": 131, "mul": 132, "fmul": 133, "udiv": 134, "sdiv": 135, "fdiv": 136,
    "urem": 137, "srem": 138, "lshr": 194, "ashr": 195, "shl": 196, "or": 197, "xor": 198, "and": 199,
}  # fmt: skip
_OF_BOOLS = {"and": Op.LOGICAL_AND, "or": Op.LOGICAL_OR, "xor": Op.LOGICAL_NOT_EQUAL}
_ICMP = {
    "eq": 170, "ne": 171, "ugt": 172, "sgt": 173, "uge": 174, "sge": 175, "ult": 176, "slt": 177, "ule": 178,
    "sle": 179,
}  # fmt: skip
_FCMP = {
    "oeq": 180, "ueq": 181, "one": 182, "une": 183, "olt": 184, "ult": 185, "ogt": 186, "ugt": 187, "ole": 188,
    "ule": 189, "oge": 190, "uge": 191,
}  # fmt: skip
_CONVERT = {
    "sitofp": Op.CONVERT_S_TO_F, "uitofp": Op.CONVERT_U_TO_F, "fpext": Op.F_CONVERT, "fptrunc": Op.F_CONVERT,
    "ptrtoint": Op.BITCAST, "inttoptr": Op.BITCAST,
    "zext": Op.U_CONVERT, "sext": Op.S_CONVERT, "trunc": Op.U_CONVERT, "bitcast": Op.BITCAST,
}  # fmt: skip
_MATH = {"fabs": 4, "floor": 8, "ceil": 9, "trunc": 3, "roundeven": 2, "sqrt": 31}
_ATOMIC = {"add": 234, "min": 236, "umin": 237, "max": 238, "umax": 239, "and": 240, "or": 241, "xor": 242}
_FLAGS = {"nsz", "nnan", "ninf", "reassoc", "nuw", "nsw", "exact", "fast", "contract", "disjoint"}
# Whose execution modes a device may have: DenormPreserve, SignedZeroInfNanPreserve, RoundingModeRTE.
_MODES = {
    "denorm": (4459, Capability.DENORM_PRESERVE),
    "nan": (4461, Capability.NAN_PRESERVE),
    "even": (4462, Capability.ROUND_TO_EVEN),
}
_BUILT_IN = {
    "llvm.spv.group.id.i32": 26, "llvm.spv.subgroup.id": 40, "llvm.spv.subgroup.local.invocation.id": 41,
}  # fmt: skip
_WORKGROUP, _SUBGROUP, _DEVICE = 2, 3, 1  # scopes
_ORDERED = 0x8 | 0x40 | 0x100  # acquire and release, of buffers and of shared memory


def _parts(text: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth, begin = [], 0, 0
    for place, letter in enumerate(text):
        if letter in "<([{":
            depth += 1
        elif letter in ">)]}":
            depth -= 1
        elif letter == "," and not depth:
            parts.append(text[begin:place].strip())
            begin = place + 1
    rest = text[begin:].strip()
    return [*parts, rest] if rest else parts


def _typed(text: str) -> tuple[str, str]:
    """Type and name of an operand."""
    kind, _, name = text.rpartition(" ")
    return kind.removesuffix(" noundef"), name


@dataclass(frozen=True, slots=True)
class _Place:
    """Of memory that has no address: a variable, what its elements are, and which of them."""

    variable: int
    storage: Storage
    element: str
    index: int


@dataclass(frozen=True, slots=True)
class _Definition:
    """A function in text."""

    head: str
    name: str
    parameters: list[str]
    attributes: dict[str, str]
    lines: list[str]

    @property
    def is_entry(self) -> bool:
        return "spir_kernel" in self.head


def translated(text: str) -> dict[str, bytes]:
    """The modules of all entries of a text."""
    defined: dict[str, _Definition] = {}
    for head, name, parameters, behind, body in _DEFINE.findall(text):
        attributes = dict(_ATTRIBUTE.findall(behind))
        defined[name] = _Definition(head, name, _parts(parameters), attributes, body.splitlines())
    tables = {name: (kind, int(length), element, rest) for name, kind, length, element, rest in _TABLE.findall(text)}
    return {name: _Module(defined, tables).entry(each) for name, each in defined.items() if each.is_entry}


class _Module:
    """One entry and the functions it calls."""

    def __init__(self, defined: dict[str, _Definition], tables: dict[str, tuple[str, int, str, str]]) -> None:
        self.m = ModuleWords()
        self.defined = defined
        self.tables = tables
        self._variables: dict[str, _Place] = {}
        self._functions: dict[str, int] = {}

    def kind(self, text: str) -> int:
        """The type that LLVM calls this."""
        m = self.m
        if text.startswith("<"):
            lanes, _, element = text[1:-1].partition(" x ")
            return m.vector_type(self.kind(element), int(lanes))
        if text.startswith("ptr"):
            return m.int_type(64)
        match text:
            case "void":
                return m.void_type()
            case "i1":
                return m.bool_type()
            case "float":
                return m.float_type(32)
            case "double":
                return m.float_type(64)
            case "half":
                return m.int_type(16)
        return m.int_type(int(text[1:]))

    def constant(self, kind: str, text: str) -> int:
        m = self.m
        if text in ("poison", "undef", "zeroinitializer"):
            return m.typed_constant(Op.CONSTANT_NULL, self.kind(kind))
        if kind == "i1":
            yes = text in ("true", "1")
            return m.typed_constant(Op.CONSTANT_TRUE if yes else Op.CONSTANT_FALSE, m.bool_type())
        if kind in ("float", "double"):
            bits = int(text, 16) if text.startswith("0x") else struct.unpack("<Q", struct.pack("<d", float(text)))[0]
            if kind == "double":
                return m.constant(m.float_type(64), bits & 0xFFFFFFFF, bits >> 32)
            number = struct.unpack("<d", struct.pack("<Q", bits))[0]
            return m.constant(m.float_type(32), struct.unpack("<I", struct.pack("<f", number))[0])
        if kind == "half":
            return m.integer(16, int(text[3:], 16))
        return m.integer(int(kind[1:]), int(text))

    def table(self, name: str) -> _Place:
        """An array of the module: constants, or shared memory of a group."""
        if name not in self._variables:
            kind, length, element, rest = self.tables[name]
            array = self.m.array_type(self.kind(element), length)
            zero = self.m.word(0)
            if kind == "global":
                place = _Place(self.m.variable(Storage.WORKGROUP, array), Storage.WORKGROUP, element, zero)
            else:
                values = [self.constant(*_typed(each)) for each in _parts(rest.strip()[1:-1])]
                initial = self.m.typed_constant(Op.CONSTANT_COMPOSITE, array, *values)
                place = _Place(self.m.variable(Storage.PRIVATE, array, initial), Storage.PRIVATE, element, zero)
            self._variables[name] = place
        return self._variables[name]

    def helper(self, name: str, room: int) -> int:
        """A function that is called; `room`: how many elements its array has."""
        if name not in self._functions:
            self._functions[name] = self.m.new_id()
            _Function(self, self.defined[name], room).write(self._functions[name])
        return self._functions[name]

    def entry(self, definition: _Definition) -> bytes:
        entry = self.m.new_id()
        features = set(definition.attributes.get("features", "").split(","))
        _Function(self, definition, 0).write(entry)
        modes = []
        for feature in sorted(features):
            match = re.fullmatch(r"\+(denorm|nan|even)(\d+)", feature)
            if match and (match[2] == "32" or Capability.FLOAT64 in self.m.capabilities):
                number, capability = _MODES[match[1]]
                self.m.capabilities.add(capability)
                modes.append((number, int(match[2])))
        return self.m.to_bytes(entry, definition.name, int(definition.attributes["threads"]), modes)


class _Function:
    """One function being written."""

    def __init__(self, module: _Module, definition: _Definition, room: int) -> None:
        self.module = module
        self.m = module.m
        self.definition = definition
        self.room = room
        self.values: dict[str, int] = {}
        self.wide: dict[str, tuple[int, int]] = {}  # of 128 bits: low and high
        self.places: dict[str, _Place] = {}
        self.pairs: dict[str, tuple[int, int]] = {}  # what an exchange found, and whether it was done
        self.locals: list[int] = []
        self.code: list[int] = []
        self._labels: dict[str, int] = {}
        self._pushed: int | None = None
        self.pairs_of_words = WideIntegers(self.m, self.op)
        self._awaited: list[tuple[int, str, str]] = []  # what phis take: where it goes, type and name

    def write(self, function: int) -> None:
        m = self.m
        blocks = structured(blocks_of(self.definition.lines))
        head: list[int] = []
        kinds: list[int] = []
        if self.definition.is_entry:
            self._take_parameters()
        else:
            for each in self.definition.parameters:
                kinds.append(self._parameter(*_typed(each), head))
        begin, self.code = self.code, []
        for number, block in enumerate(blocks):
            self._block(block, begin if number == 0 else [])
        for place, each, name in self._awaited:
            self.code[place] = self.value(each, name)
        kind = m.function_type(m.void_type(), kinds)
        words = instruction(Op.FUNCTION, m.void_type(), function, 0, kind) + head
        m.code += words + self.code[:2] + self.locals + self.code[2:] + instruction(Op.FUNCTION_END)

    def _parameter(self, kind: str, name: str, head: list[int]) -> int:
        """Of a helper: a number, or an array of the caller's."""
        result = self.m.new_id()
        if kind != "ptr":
            head += instruction(Op.FUNCTION_PARAMETER, self.module.kind(kind), result)
            self.values[name] = result
            return self.module.kind(kind)
        element = "i64" if "wide" in self.definition.name else "i32"
        array = self.m.array_type(self.module.kind(element), self.room)
        pointer = self.m.pointer_type(Storage.FUNCTION, array)
        head += instruction(Op.FUNCTION_PARAMETER, pointer, result)
        self.places[name] = _Place(result, Storage.FUNCTION, element, self.m.word(0))
        return pointer

    # What a launch gives.

    def _take_parameters(self) -> None:
        used = " ".join(self.definition.lines)
        for number, each in enumerate(self.definition.parameters):
            _, name = _typed(each)
            if re.search(rf"{re.escape(name)}\b", used):
                self.values[name] = self._given(self.m.integer(64, number))

    @property
    def _count(self) -> int:
        return int(self.definition.attributes.get("parameters", len(self.definition.parameters)))

    def _push_constant(self, place: int) -> int:
        m, i64 = self.m, self.m.int_type(64)
        if self._pushed is None:
            length = 1 + (self._count if self._count <= PUSHED else 1)
            self._pushed = m.variable(Storage.PUSH_CONSTANT, m.block_type(m.array_type(i64, max(2, length), 8)))
        pointer = m.pointer_type(Storage.PUSH_CONSTANT, i64)
        at = self.op(Op.ACCESS_CHAIN, pointer, self._pushed, m.word(0), place)
        return self.op(Op.LOAD, i64, at)

    def _given(self, number: int) -> int:
        """The parameter of a number, which need not be a constant."""
        m, i64 = self.m, self.m.int_type(64)
        if self._count <= PUSHED:
            return self._push_constant(self.op(Op.IADD, i64, number, m.integer(64, 1)))
        first = self._push_constant(m.word(1))
        at = self.op(Op.IADD, i64, first, self.op(Op.IMUL, i64, number, m.integer(64, 8)))
        return self._load_physical("i64", at, 8)

    # Words.

    def op(self, op: int, kind: int, *operands: int) -> int:
        result = self.m.new_id()
        self.code += instruction(op, kind, result, *operands)
        return result

    def label(self, name: str) -> int:
        return self._labels.setdefault(name, self.m.new_id())

    def value(self, kind: str, name: str) -> int:
        if not name.startswith("%"):
            return self.module.constant(kind, name)
        return self.values[name]

    def operand(self, text: str) -> int:
        return self.value(*_typed(text))

    # Blocks.

    def _block(self, block: Block, begin: list[int]) -> None:
        self.code += instruction(Op.LABEL, self.label(block.name)) + begin
        for phi in block.phis:
            name, _, rest = phi.partition(" = phi ")
            kind, _, pairs = rest.partition(" [")
            self.values[name] = self.m.new_id()
            words = [self.module.kind(kind), self.values[name]]
            for pair in f"[{pairs}".split("],"):
                incoming, _, source = pair.strip(" []").partition(", %")
                self._awaited.append((len(self.code) + 1 + len(words), kind, incoming.strip()))
                words += [0, self.label(source.strip())]
            self.code += instruction(Op.PHI, *words)
        for line in block.lines:
            self._line(line)
        if block.repeats:
            self.code += instruction(Op.LOOP_MERGE, self.label(block.merge), self.label(block.repeats), 0)
        elif block.merge:
            self.code += instruction(Op.SELECTION_MERGE, self.label(block.merge), 0)
        self._last(block.last)

    def _last(self, text: str) -> None:
        if text.startswith("ret"):
            self.code += instruction(Op.RETURN)
        elif text.startswith("br label"):
            self.code += instruction(Op.BRANCH, self.label(text.rpartition("%")[2]))
        else:
            condition, then, otherwise = _parts(text.removeprefix("br "))
            targets = [self.label(each.rpartition("%")[2]) for each in (then, otherwise)]
            self.code += instruction(Op.BRANCH_CONDITIONAL, self.operand(condition), *targets)

    def _line(self, line: str) -> None:
        name, equals, text = line.partition(" = ")
        if not equals or not name.startswith("%"):
            name, text = "", line
        what, _, rest = text.partition(" ")
        while rest.partition(" ")[0] in _FLAGS:
            rest = rest.partition(" ")[2]
        result = self._instruction(name, what, rest)
        if result is not None and name:
            self.values[name] = result

    # Instructions.

    def _instruction(self, name: str, what: str, rest: str) -> int | None:
        if what in _BINARY:
            return self._binary(name, what, rest)
        if what in _CONVERT:
            return self._convert(name, what, rest)
        handler: Callable[[str, str], int | None] | None = getattr(self, f"_do_{what}", None)
        if handler is None:
            raise SmeltError("SM030", f"SPIR-V has no {what}: {rest}")
        return handler(name, rest)

    def _binary(self, name: str, what: str, rest: str) -> int | None:
        first, second = _parts(rest)
        kind, left = _typed(first)
        if kind == "i128":
            constant = None if second.startswith("%") else int(second)
            other = self.wide[second] if constant is None else self.pairs_of_words.number(constant)
            self.wide[name] = self.pairs_of_words.compute(what, self.wide[left], other, constant)
            return None
        a, b = self.value(kind, left), self.value(kind, second)
        code = _OF_BOOLS[what] if kind == "i1" else _BINARY[what]
        write = self._exactly if what.startswith("f") else self.op
        return write(code, self.module.kind(kind), a, b)

    def _exactly(self, op: int, kind: int, *operands: int) -> int:
        """Rounded separately: not contracted with neighbouring operations."""
        result = self.op(op, kind, *operands)
        self.m.decorations += instruction(Op.DECORATE, result, 42)
        return result

    def _convert(self, name: str, what: str, rest: str) -> int | None:
        typed, _, to = rest.rpartition(" to ")
        kind, operand = _typed(typed)
        if "i128" in (kind, to):
            i64 = self.m.int_type(64)
            if to == "i128":
                low = self.value(kind, operand)
                low = low if kind == "i64" else self.op(Op.U_CONVERT, i64, low)
                self.wide[name] = (low, self.m.integer(64, 0))
                return None
            low = self.wide[operand][0]
            return low if to == "i64" else self.op(Op.U_CONVERT, self.module.kind(to), low)
        value, into = self.value(kind, operand), self.module.kind(to)
        if kind == "i1":
            one, zero = (self.module.constant(to, text) for text in (("1", "0") if to[0] == "i" else ("1.0", "0.0")))
            return self.op(Op.SELECT, into, value, one, zero)
        if to == "i1":
            bit = self.op(Op.BITWISE_AND, self.module.kind(kind), value, self.module.constant(kind, "1"))
            return self.op(Op.I_NOT_EQUAL, into, bit, self.module.constant(kind, "0"))
        if _CONVERT[what] is Op.BITCAST and self.module.kind(kind) == into:
            return value
        if what in ("sext", "zext") and (kind, to) == ("i32", "i64"):
            return self._lengthened(value, signed=what == "sext")
        return self.op(_CONVERT[what], into, value)

    def _lengthened(self, value: int, *, signed: bool) -> int:
        """32 bits as 64, put together of two words: where a conversion is compared with a constant, Mesa 22.3 compares
        wrongly."""
        m, word = self.m, self.m.int_type(32)
        high = self.op(_BINARY["ashr"], word, value, m.word(31)) if signed else m.word(0)
        pair = self.op(Op.COMPOSITE_CONSTRUCT, m.vector_type(word, 2), value, high)
        return self.op(Op.BITCAST, m.int_type(64), pair)

    def _do_fneg(self, _: str, rest: str) -> int:
        kind, name = _typed(rest)
        bits = 64 if kind == "double" else 32
        whole, m = self.m.int_type(bits), self.m
        pattern = self.op(Op.BITCAST, whole, self.value(kind, name))
        negated = self.op(_BINARY["xor"], whole, pattern, m.integer(bits, 1 << (bits - 1)))
        return self.op(Op.BITCAST, self.module.kind(kind), negated)

    def _do_icmp(self, _: str, rest: str) -> int:
        how, _, operands = rest.partition(" ")
        first, second = _parts(operands)
        kind, left = _typed(first)
        a, b, result = self.value(kind, left), self.value(kind, second), self.m.bool_type()
        if kind == "i1":
            return self.op({"eq": Op.LOGICAL_EQUAL, "ne": Op.LOGICAL_NOT_EQUAL}[how], result, a, b)
        return self.op(_ICMP[how], result, a, b)

    def _do_fcmp(self, _: str, rest: str) -> int:
        how, _, operands = rest.partition(" ")
        first, second = _parts(operands)
        kind, left = _typed(first)
        a, b, result = self.value(kind, left), self.value(kind, second), self.m.bool_type()
        if how in ("uno", "ord"):
            is_nan = self._is_nan(kind, a)
            if a != b:
                is_nan = self.op(Op.LOGICAL_OR, result, is_nan, self._is_nan(kind, b))
            return is_nan if how == "uno" else self.op(Op.LOGICAL_NOT, result, is_nan)
        return self.op(_FCMP[how], result, a, b)

    def _is_nan(self, kind: str, value: int) -> int:
        """By its bits: a compiler that takes numbers for finite cannot leave it out."""
        bits, most = (64, 0x7FF << 52) if kind == "double" else (32, 0xFF << 23)
        whole = self.m.int_type(bits)
        size = self.op(
            Op.BITWISE_AND, whole, self.op(Op.BITCAST, whole, value), self.m.integer(bits, (1 << (bits - 1)) - 1)
        )
        return self.op(Op.U_GREATER, self.m.bool_type(), size, self.m.integer(bits, most))

    def _do_select(self, _: str, rest: str) -> int:
        condition, first, second = _parts(rest)
        kind, _name = _typed(first)
        operands = (self.operand(condition), self.operand(first), self.operand(second))
        return self.op(Op.SELECT, self.module.kind(kind), *operands)

    def _do_extractelement(self, _: str, rest: str) -> int:
        vector, at = _parts(rest)
        kind, name = _typed(vector)
        element = self.module.kind(kind[1:-1].partition(" x ")[2])
        return self.op(Op.COMPOSITE_EXTRACT, element, self.value(kind, name), int(_typed(at)[1]))

    def _do_insertelement(self, _: str, rest: str) -> int:
        vector, value, at = _parts(rest)
        kind, name = _typed(vector)
        place = int(_typed(at)[1])
        return self.op(Op.COMPOSITE_INSERT, self.module.kind(kind), self.operand(value), self.value(kind, name), place)

    def _do_extractvalue(self, _: str, rest: str) -> int:
        pair, at = _parts(rest)
        return self.pairs[_typed(pair)[1]][int(at)]

    # Memory.

    def _do_alloca(self, name: str, rest: str) -> None:
        length, _, element = rest.partition("]")[0][1:].partition(" x ")
        array = self.m.array_type(self.module.kind(element), int(length))
        local = self.m.new_id()
        self.locals += instruction(Op.VARIABLE, self.m.pointer_type(Storage.FUNCTION, array), local, Storage.FUNCTION)
        self.places[name] = _Place(local, Storage.FUNCTION, element, self.m.word(0))
        self.room = int(length)

    def _place(self, name: str) -> _Place:
        return self.places[name] if name in self.places else self.module.table(name[1:])

    def _do_getelementptr(self, name: str, rest: str) -> int | None:
        element, pointer, *indices = _parts(rest)
        kind, base = _typed(pointer)
        index_kind, index = _typed(indices[-1])
        at = self.value(index_kind, index)
        if kind == "ptr addrspace(1)":
            i64, size = self.m.int_type(64), _bytes_of(element)
            wide = at if index_kind == "i64" else self._lengthened(at, signed=True)
            far = wide if size == 1 else self.op(Op.IMUL, i64, wide, self.m.integer(64, size))
            return self.op(Op.IADD, i64, self.value(kind, base), far)
        place, word = self._place(base), self.m.int_type(32)
        narrow = at if index_kind == "i32" else self.op(Op.U_CONVERT, word, at)
        if place.index != self.m.word(0):
            narrow = self.op(Op.IADD, word, place.index, narrow)
        self.places[name] = _Place(place.variable, place.storage, place.element, narrow)
        return None

    def _physical(self, kind: str, address: int) -> int:
        for each, bits, capability in (("i8", 8, Capability.STORAGE_8BIT), ("i16", 16, Capability.STORAGE_16BIT)):
            if each in kind or (bits == 16 and "half" in kind):
                self.m.capabilities.add(capability)
        pointer = self.m.pointer_type(Storage.PHYSICAL, self.module.kind(kind))
        return self.op(Op.CONVERT_U_TO_PTR, pointer, address)

    def _load_physical(self, kind: str, address: int, align: int) -> int:
        return self.op(Op.LOAD, self.module.kind(kind), self._physical(kind, address), 2, align)

    def _element(self, place: _Place) -> int:
        pointer = self.m.pointer_type(place.storage, self.module.kind(place.element))
        return self.op(Op.ACCESS_CHAIN, pointer, place.variable, place.index)

    def _do_load(self, _: str, rest: str) -> int:
        kind, pointer, *notes = _parts(rest)
        space, name = _typed(pointer)
        if space == "ptr addrspace(1)":
            return self._load_physical(kind, self.value(space, name), _alignment(kind, notes))
        place = self._place(name)
        loaded = self.op(Op.LOAD, self.module.kind(place.element), self._element(place))
        if self.module.kind(kind) == self.module.kind(place.element):
            return loaded
        return self.op(Op.BITCAST, self.module.kind(kind), loaded)

    def _do_store(self, _: str, rest: str) -> None:
        typed, pointer, *notes = _parts(rest)
        kind, _name = _typed(typed)
        space, name = _typed(pointer)
        value = self.operand(typed)
        if space == "ptr addrspace(1)":
            where = self._physical(kind, self.value(space, name))
            self.code += instruction(Op.STORE, where, value, 2, _alignment(kind, notes))
            return
        place = self._place(name)
        if self.module.kind(kind) != self.module.kind(place.element):
            value = self.op(Op.BITCAST, self.module.kind(place.element), value)
        self.code += instruction(Op.STORE, self._element(place), value)

    def _do_atomicrmw(self, _: str, rest: str) -> int:
        what, _, operands = rest.partition(" ")
        pointer, value, *_rest = _parts(operands)
        space, name = _typed(pointer)
        kind, operand = _typed(value.partition(" syncscope")[0].partition(" monotonic")[0])
        self._needs_atomics(kind)
        where = self._physical(kind, self.value(space, name))
        scope, order = self.m.word(_DEVICE), self.m.word(0)
        return self.op(_ATOMIC[what], self.module.kind(kind), where, scope, order, self.value(kind, operand))

    def _needs_atomics(self, kind: str) -> None:
        if kind == "i64":
            self.m.capabilities.add(Capability.INT64_ATOMICS)

    def _do_cmpxchg(self, name: str, rest: str) -> None:
        pointer, old, new = _parts(rest)
        space, address = _typed(pointer)
        kind, _name = _typed(old)
        new = new.partition(" syncscope")[0].partition(" monotonic")[0]
        self._needs_atomics(kind)
        where, before = self._physical(kind, self.value(space, address)), self.operand(old)
        scope, order = self.m.word(_DEVICE), self.m.word(0)
        observed = self.op(
            Op.ATOMIC_COMPARE_EXCHANGE, self.module.kind(kind), where, scope, order, order, self.operand(new), before
        )
        self.pairs[name] = observed, self.op(Op.I_EQUAL, self.m.bool_type(), observed, before)

    # Calls.

    def _do_call(self, name: str, rest: str) -> int | None:
        match = re.fullmatch(r"(?:[a-z]+ )*?(\S+) @([\w.$-]+)\((.*)\)", rest)
        if match is None:
            raise SmeltError("SM030", f"SPIR-V has no call {rest}")
        kind, callee, arguments = match[1], match[2], _parts(match[3])
        if callee in _BUILT_IN:
            return self._built_in(callee)
        if callee in self.module.defined:
            self._helper(callee, arguments)
            return None
        if callee == "smelt.first_block":
            return self._push_constant(self.m.word(0))
        if callee == "smelt.parameter":
            return self._given(self.operand(arguments[0]))
        if callee.startswith("llvm.spv."):
            return self._between_threads(callee, kind, arguments)
        return self._math(callee, kind, arguments)

    def _built_in(self, name: str) -> int:
        word = self.m.int_type(32)
        if name != "llvm.spv.group.id.i32":
            self.m.capabilities.add(Capability.GROUP)
            return self.op(Op.LOAD, word, self.m.built_in(_BUILT_IN[name], word))
        vector = self.m.vector_type(word, 3)
        whole = self.op(Op.LOAD, vector, self.m.built_in(_BUILT_IN[name], vector))
        return self.op(Op.COMPOSITE_EXTRACT, word, whole, 0)

    def _helper(self, name: str, arguments: Sequence[str]) -> None:
        operands = []
        for each in arguments:
            kind, operand = _typed(each)
            operands.append(self._place(operand).variable if kind == "ptr" else self.value(kind, operand))
        function = self.module.helper(name, self.room)
        self.op(Op.FUNCTION_CALL, self.m.void_type(), function, *operands)

    def _between_threads(self, name: str, kind: str, arguments: Sequence[str]) -> int | None:
        m = self.m
        match name:
            case "llvm.spv.group.memory.barrier.with.group.sync":
                scope = m.word(_WORKGROUP)
                self.code += instruction(Op.CONTROL_BARRIER, scope, scope, m.word(_ORDERED))
                return None
            case "llvm.spv.subgroup.barrier":
                m.capabilities.add(Capability.GROUP)
                scope = m.word(_SUBGROUP)
                self.code += instruction(Op.CONTROL_BARRIER, scope, scope, m.word(_ORDERED))
                return None
            case "llvm.spv.wave.readlane.i32":
                m.capabilities |= {Capability.GROUP, Capability.GROUP_SHUFFLE}
                value, lane = map(self.operand, arguments)
                return self.op(Op.GROUP_SHUFFLE, self.module.kind(kind), m.word(_SUBGROUP), value, lane)
        raise SmeltError("SM030", f"no device has {name}")

    def _math(self, callee: str, kind: str, arguments: Sequence[str]) -> int:
        match = re.fullmatch(r"llvm\.([a-z]+(?:\.sat)?)\..*", callee)
        what = match[1] if match else callee
        operands = [self.operand(each) for each in arguments]
        into = self.module.kind(kind)
        if what in _MATH:
            return self.op(Op.EXT_INST, into, self.m.math, _MATH[what], *operands)
        if what in ("smin", "smax", "umin", "umax"):
            less = self.op(_ICMP[f"{what[0]}lt"], self.m.bool_type(), *operands)
            first, second = operands if what.endswith("min") else operands[::-1]
            return self.op(Op.SELECT, into, less, first, second)
        if what in ("minimum", "maximum"):
            return self._extreme(what, kind, *operands)
        if what == "copysign":
            return self._copysign(kind, *operands)
        if what == "fptosi.sat":
            return self._saturated(kind, _typed(arguments[0])[0], operands[0])
        raise SmeltError("SM030", f"no device has the function {callee}")

    def _extreme(self, what: str, kind: str, a: int, b: int) -> int:
        """NaN if either is."""
        result = self.m.bool_type()
        first = self.op(_FCMP["olt" if what == "minimum" else "ogt"], result, a, b)
        return self.op(
            Op.SELECT, self.module.kind(kind), self.op(Op.LOGICAL_OR, result, first, self._is_nan(kind, a)), a, b
        )

    def _copysign(self, kind: str, size: int, sign: int) -> int:
        bits = 64 if kind == "double" else 32
        whole, top = self.m.int_type(bits), 1 << (bits - 1)
        kept = self.op(Op.BITWISE_AND, whole, self.op(Op.BITCAST, whole, size), self.m.integer(bits, top - 1))
        mark = self.op(Op.BITWISE_AND, whole, self.op(Op.BITCAST, whole, sign), self.m.integer(bits, top))
        return self.op(Op.BITCAST, self.module.kind(kind), self.op(Op.BITWISE_OR, whole, kept, mark))

    def _saturated(self, kind: str, source: str, value: int) -> int:
        """Saturates large values; NaN becomes zero."""
        bits, result, into = int(kind[1:]), self.m.bool_type(), self.module.kind(kind)
        low, high = -(2.0 ** (bits - 1)), 2.0 ** (bits - 1)
        least, most = (self.module.constant(source, repr(each)) for each in (low, high))
        above = self.op(Op.F_ORD_GREATER_EQUAL, result, value, most)
        below = self.op(Op.F_ORD_LESS, result, value, least)
        beyond = self.op(Op.LOGICAL_OR, result, above, below)
        outside = self.op(Op.LOGICAL_OR, result, beyond, self._is_nan(source, value))
        inside = self.op(Op.SELECT, self.module.kind(source), outside, self.module.constant(source, "0.0"), value)
        converted = self.op(Op.CONVERT_F_TO_S, into, inside)
        converted = self.op(Op.SELECT, into, above, self.m.integer(bits, (1 << (bits - 1)) - 1), converted)
        return self.op(Op.SELECT, into, below, self.m.integer(bits, 1 << (bits - 1)), converted)


def _bytes_of(kind: str) -> int:
    return {"float": 4, "double": 8, "half": 2}.get(kind) or max(1, int(kind[1:]) // 8)


def _alignment(kind: str, notes: Sequence[str]) -> int:
    for note in notes:
        if note.startswith("align "):
            return int(note.removeprefix("align "))
    return _bytes_of(kind)
