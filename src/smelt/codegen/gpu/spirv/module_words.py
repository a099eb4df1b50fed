"""`ModuleWords` writes a SPIR-V module as the words of its sections.

    m = ModuleWords(); f32 = m.type_of("f32"); one = m.number("f32", 1.0)       each type and constant is there once
    m.code += instruction(Op.IMUL, m.type_of("i64"), m.new_id(), a, b)
    m.to_bytes()

Opcode numbers are those of the SPIR-V specification, version 1.5, which Vulkan 1.2 accepts.
"""

import math
import struct
from collections.abc import Sequence
from enum import IntEnum

from smelt.ir.loops import BITS, GLOBAL, Number, Value

_BITS = {**BITS, GLOBAL: 64}
_FLOATS = {"f16": "<e", "f32": "<f", "f64": "<d"}
_MAGIC, _VERSION = 0x07230203, 0x00010500


class Op(IntEnum):
    """Instructions, but for those that are operators of the loop form."""

    EXT_INST_IMPORT = 11
    EXT_INST = 12
    MEMORY_MODEL = 14
    ENTRY_POINT = 15
    EXECUTION_MODE = 16
    CAPABILITY = 17
    TYPE_VOID = 19
    TYPE_BOOL = 20
    TYPE_INT = 21
    TYPE_FLOAT = 22
    TYPE_VECTOR = 23
    TYPE_ARRAY = 28
    TYPE_STRUCT = 30
    TYPE_POINTER = 32
    TYPE_FUNCTION = 33
    CONSTANT_TRUE = 41
    CONSTANT_FALSE = 42
    CONSTANT = 43
    CONSTANT_COMPOSITE = 44
    FUNCTION = 54
    FUNCTION_PARAMETER = 55
    FUNCTION_END = 56
    FUNCTION_CALL = 57
    VARIABLE = 59
    LOAD = 61
    STORE = 62
    ACCESS_CHAIN = 65
    DECORATE = 71
    MEMBER_DECORATE = 72
    COMPOSITE_CONSTRUCT = 80
    COMPOSITE_EXTRACT = 81
    CONVERT_F_TO_S = 110
    U_CONVERT = 113
    CONVERT_U_TO_PTR = 120
    BITCAST = 124
    IADD = 128
    ISUB = 130
    IMUL = 132
    LOGICAL_OR = 166
    LOGICAL_NOT = 168
    SELECT = 169
    I_EQUAL = 170
    U_LESS = 176
    S_LESS = 177
    BITWISE_OR = 197
    BITWISE_XOR = 198
    BITWISE_AND = 199
    CONTROL_BARRIER = 224
    ATOMIC_COMPARE_EXCHANGE = 230
    PHI = 245
    LOOP_MERGE = 246
    SELECTION_MERGE = 247
    LABEL = 248
    BRANCH = 249
    BRANCH_CONDITIONAL = 250
    RETURN = 253
    GROUP_SHUFFLE = 345


class Storage(IntEnum):
    """The storage class of a pointer."""

    INPUT = 1
    WORKGROUP = 4
    PRIVATE = 6
    FUNCTION = 7
    PUSH_CONSTANT = 9
    PHYSICAL = 5349


class Capability(IntEnum):
    SHADER = 1
    FLOAT64 = 10
    INT64 = 11
    INT64_ATOMICS = 12
    INT16 = 22
    INT8 = 39
    GROUP = 61
    GROUP_SHUFFLE = 65
    STORAGE_16BIT = 4433
    STORAGE_8BIT = 4448
    PHYSICAL_ADDRESSES = 5347


def string_words(text: str) -> list[int]:
    """Letters four in a word, closed by a zero."""
    data = text.encode() + b"\0"
    data += b"\0" * (-len(data) % 4)
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def instruction(op: int, *operands: int) -> list[int]:
    return [(len(operands) + 1) << 16 | op, *operands]


def float_bits(kind: str, number: float) -> int:
    """There is one NaN."""
    form = _FLOATS[kind]
    try:
        data = struct.pack(form, math.nan if math.isnan(number) else number)
    except OverflowError:
        data = struct.pack(form, math.copysign(math.inf, number))
    return int.from_bytes(data, "little")


class ModuleWords:
    """A module: declarations, and the words of its functions."""

    def __init__(self) -> None:
        self._last = 0
        self._once: dict[tuple[int, ...], int] = {}
        self.capabilities: set[int] = {Capability.SHADER, Capability.PHYSICAL_ADDRESSES, Capability.INT64}
        self.decorations: list[int] = []
        self.declarations: list[int] = []  # types, constants and variables of the module
        self.code: list[int] = []
        self.math = self.new_id()
        self._interface: list[int] = []

    def new_id(self) -> int:
        self._last += 1
        return self._last

    # Types. A global address is an integer, and so is a float16.

    def type_of(self, kind: str, lanes: int = 1) -> int:
        if lanes > 1:
            return self._declared(Op.TYPE_VECTOR, self.type_of(kind), lanes)
        if kind == "i1":
            return self._declared(Op.TYPE_BOOL)
        if kind == "f64":
            self.capabilities.add(Capability.FLOAT64)
        return self._declared(Op.TYPE_FLOAT, BITS[kind]) if kind in ("f32", "f64") else self.int_type(_BITS[kind])

    def _declared(self, op: int, *operands: int) -> int:
        """Of a type or constant that is the same wherever it is needed: its result comes first."""
        key = (op, *operands)
        if key not in self._once:
            result = self._once[key] = self.new_id()
            self.declarations += instruction(op, result, *operands)
        return self._once[key]

    def void_type(self) -> int:
        return self._declared(Op.TYPE_VOID)

    def int_type(self, bits: int) -> int:
        needs = {8: Capability.INT8, 16: Capability.INT16, 64: Capability.INT64}
        if bits in needs:
            self.capabilities.add(needs[bits])
        return self._declared(Op.TYPE_INT, bits, 0)

    def array_type(self, element: int, length: int, stride: int = 0) -> int:
        """`stride`: bytes from element to element, of arrays that the host writes."""
        key = (Op.TYPE_ARRAY, element, length, stride)
        if key not in self._once:
            size = self.word(length)
            result = self._once[key] = self.new_id()
            self.declarations += instruction(Op.TYPE_ARRAY, result, element, size)
            if stride:
                self.decorations += instruction(Op.DECORATE, result, 6, stride)
        return self._once[key]

    def pointer_type(self, storage: Storage, element: int) -> int:
        return self._declared(Op.TYPE_POINTER, storage, element)

    def function_type(self, result: int, parameters: Sequence[int]) -> int:
        return self._declared(Op.TYPE_FUNCTION, result, *parameters)

    def block_type(self, member: int) -> int:
        """A struct of one member, as the host lays it out."""
        key = (Op.TYPE_STRUCT, member)
        if key not in self._once:
            result = self._declared(Op.TYPE_STRUCT, member)
            self.decorations += instruction(Op.DECORATE, result, 2) + instruction(Op.MEMBER_DECORATE, result, 0, 35, 0)
        return self._once[key]

    # Constants and variables.

    def constant_of(self, value: Value) -> int:
        assert value.number is not None and not isinstance(value.number, tuple)
        return self.number(value.kind, value.number)

    def number(self, kind: str, number: Number) -> int:
        """A constant of a kind."""
        if kind == "i1":
            return self.typed_constant(Op.CONSTANT_TRUE if number else Op.CONSTANT_FALSE, self.type_of(kind))
        value = float_bits(kind, number) if kind in _FLOATS else int(number)
        return self._of_bits(self.type_of(kind), _BITS[kind], value)

    def word(self, value: int) -> int:
        """A constant of 32 bits."""
        return self.integer(32, value)

    def integer(self, bits: int, value: int) -> int:
        return self._of_bits(self.int_type(bits), bits, value)

    def _of_bits(self, kind: int, bits: int, value: int) -> int:
        value &= (1 << bits) - 1
        words = (value,) if bits <= 32 else (value & 0xFFFFFFFF, value >> 32)
        return self.typed_constant(Op.CONSTANT, kind, *words)

    def typed_constant(self, op: int, kind: int, *operands: int) -> int:
        """A number, true, false, or a composite."""
        key = (op, kind, *operands)
        if key not in self._once:
            result = self._once[key] = self.new_id()
            self.declarations += instruction(op, kind, result, *operands)
        return self._once[key]

    def variable(self, storage: Storage, element: int, initial: int | None = None) -> int:
        """Of the module; each call another one."""
        kind, result = self.pointer_type(storage, element), self.new_id()
        initializer = () if initial is None else (initial,)
        self.declarations += instruction(Op.VARIABLE, kind, result, storage, *initializer)
        self._interface.append(result)
        return result

    def built_in(self, what: int, element: int) -> int:
        """A variable that the device fills."""
        key = (-1, what)
        if key not in self._once:
            result = self._once[key] = self.variable(Storage.INPUT, element)
            self.decorations += instruction(Op.DECORATE, result, 11, what)
        return self._once[key]

    def to_bytes(self, entry: int, name: str, threads: int, modes: Sequence[tuple[int, ...]]) -> bytes:
        """The module with one entry point, for groups of so many threads."""
        head: list[int] = []
        for each in sorted(self.capabilities):
            head += instruction(Op.CAPABILITY, each)
        head += instruction(Op.EXT_INST_IMPORT, self.math, *string_words("GLSL.std.450"))
        head += instruction(Op.MEMORY_MODEL, 5348, 1)  # addresses of 64 bits, and GLSL's order of memory
        head += instruction(Op.ENTRY_POINT, 5, entry, *string_words(name), *self._interface)
        head += instruction(Op.EXECUTION_MODE, entry, 17, threads, 1, 1)
        for mode in modes:
            head += instruction(Op.EXECUTION_MODE, entry, *mode)
        words = [_MAGIC, _VERSION, 0, self._last + 1, 0]
        words += head + self.decorations + self.declarations + self.code
        return struct.pack(f"<{len(words)}I", *words)
