"""The layout of a flat program: the header, and the records of each section, field by field.

    bytes    header │ strings │ dtypes │ … │ calls │ drops │ steps │ the bytes of all strings
    header   magic, version, …, then of each section (first word, records, words of a record)

Everything is a signed 64-bit word in the byte order of the machine. A record refers to others by number, to text by the
number of a string, and to Python's objects by their place in a tuple that comes beside the table. There are no
addresses: the same bytes are good in another process. Kernels, operators, dtypes and devices are named, native calls
are written out: only what Python itself does needs the objects.

`csrc/flat/table.h` declares the same records and says what each number must keep to; a table of another version, or
with records of another width, is refused there.
"""

from enum import IntEnum
from typing import Any, NamedTuple

MAGIC = int.from_bytes(b"smeltprg", "little")
VERSION = 1


class Header(NamedTuple):
    """What a program is as a whole. Values are numbered: inputs, constants, what steps make, what the arena lends."""

    magic: int
    version: int
    bytes: int  # of the whole table
    blob: int  # where the bytes of strings begin
    name: int
    inputs: int
    constants: int  # the first of the objects
    arena: int
    arena_bytes: int
    consuming: int
    output: int  # an item
    writes_from: int  # the first step that writes an input; -1: none does


class StringRecord(NamedTuple):
    """UTF-8 in the blob, with a zero byte behind it."""

    offset: int
    length: int


class DtypeRecord(NamedTuple):
    """`code`: its number in PyTorch's C interface; -1: Python is to be asked."""

    name: int
    code: int
    object: int


class DeviceRecord(NamedTuple):
    """`kind`: the number of such devices in PyTorch's C interface; -1: Python is to be asked. `number`: which of them
    it is; -1: the current one."""

    name: int
    kind: int
    number: int
    object: int


class NumberRecord(NamedTuple):
    """A size, stride or offset, or a part of what a native call is given."""

    number: int


class ValueRecord(NamedTuple):
    """A tensor in the layout that steps rely on: at `numbers` are `rank` sizes, as many strides, and an offset in
    elements. `arena_offset`: where its buffer begins in the arena, in bytes."""

    name: int
    dtype: int
    device: int
    numbers: int
    rank: int
    arena_offset: int


class ReferenceRecord(NamedTuple):
    """A value in a list of values; -1 is a result that nobody reads."""

    value: int


class ItemRecord(NamedTuple):
    """A part of an argument list or of the results; see `Item` for what the fields mean."""

    kind: int
    what: int
    length: int
    numbers: int


class KernelRecord(NamedTuple):
    """Machine code by its name, what it runs on, and how many values it takes. What else a launch must know is said
    with the code (`ir.kernel_code`)."""

    name: int
    target: int
    object: int
    buffers: int


class LaunchRecord(NamedTuple):
    """A kernel runs on values, which are references."""

    kernel: int
    values: int
    value_count: int


class NativeRecord(NamedTuple):
    """A library call without Python; see `NativeCall`. `beta` and `alpha` are the bits of doubles."""

    name: int
    overload: int
    tensors: int
    tensor_count: int
    code: int
    code_count: int
    returns: int
    product: int
    product_count: int
    beta: int
    alpha: int


class CallRecord(NamedTuple):
    """A library call; see `CallStep`. Arguments are items, results references, `names` is an object."""

    name: int
    function: int
    arguments: int
    argument_count: int
    names: int
    results: int
    result_count: int
    is_one: int
    native: int
    unless: int


class DropRecord(NamedTuple):
    """Values that nobody needs any more: references."""

    values: int
    value_count: int


class StepRecord(NamedTuple):
    """A step: `place` is the number of a value, a launch, a call or a drop."""

    kind: int
    place: int


class Item(IntEnum):
    """What an item stands for."""

    OBJECT = 0  # `what`: the place of an object
    VALUE = 1  # `what`: a value; if `numbers` is not -1, a view of it, with its layout there and `length` the rank
    TUPLE = 2  # `length` items from `what` on, which come later in the table
    LIST = 3
    NONE = 4
    BOOL = 5  # `what`: the number, or the bits of a double
    INTEGER = 6
    DOUBLE = 7


class StepKind(IntEnum):
    """What a step does."""

    ALLOCATE = 0
    LAUNCH = 1
    CALL = 2
    DROP = 3


# In the order in which they stand in a table.
SECTIONS: dict[str, type[Any]] = {
    "strings": StringRecord,
    "dtypes": DtypeRecord,
    "devices": DeviceRecord,
    "numbers": NumberRecord,
    "values": ValueRecord,
    "references": ReferenceRecord,
    "items": ItemRecord,
    "kernels": KernelRecord,
    "launches": LaunchRecord,
    "natives": NativeRecord,
    "calls": CallRecord,
    "drops": DropRecord,
    "steps": StepRecord,
}

HEADER_WORDS = len(Header._fields) + 3 * len(SECTIONS)
