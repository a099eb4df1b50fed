"""The C header of an object without a loader: `model.h`."""

import math
import re
import struct
from collections.abc import Iterator, Sequence

from smelt import _native
from smelt.ir.artifact_file.artifact import of_kind
from smelt.ir.artifact_file.layout import ALIGN
from smelt.ir.table import records as r
from smelt.ir.table.dtypes import DTYPES
from smelt.ir.table.records import Bind, RegisterKind
from smelt.symbolic.postfix import encode

# What NAME_run returns, as csrc/static/static.c numbers it.
CODES = (
    ("OK", 0, "outputs are there"),
    ("WRONG_SIZE", 1, "input `input` has a size out of bounds in `dimension`; -1: it is too large"),
    ("NO_VARIANT", 2, "nothing was exported for inputs like these"),
    ("NO_MEMORY", 3, "more memory is needed, at least `needed` bytes"),
    ("SMALL_OUTPUT", 4, "an output does not fit where it was to be written"),
    ("MISSING_INPUT", 5, "input `input` has no data, and is not optional"),
)
RAISED = 16  # the first error of a model's own
TYPICAL = 128  # what a size that varies is taken for, if its bounds allow it


def c_name(name: str) -> str:
    """A name as C allows it."""
    identifier = re.sub(r"\W", "_", name, flags=re.ASCII)
    return identifier if identifier and not identifier[0].isdigit() else f"m_{identifier}"


def _shape(dims: Sequence[r.Dim]) -> str:
    words = [str(dim.low) if dim.low == dim.high else f"{dim.name or '?'} from {dim.low}" for dim in dims]
    return f"[{', '.join(words)}]"


def _rows(prefix: str, described: Sequence[tuple[str, str]]) -> list[str]:
    """Of an enumeration: names of inputs or outputs, those that C cannot tell apart with their numbers."""
    names = [c_name(name).upper() for name, _ in described]
    rows = []
    for place, (name, (_, what)) in enumerate(zip(names, described, strict=True)):
        unique = name if names.count(name) == 1 else f"{name}_{place}"
        rows.append(f"    {prefix}_{unique} = {place},  /* {what} */")
    return rows


def header_text(name: str, table: r.Table, state_bytes: int, memory_bytes: int) -> str:
    """`model.h`."""
    upper = name.upper()
    inputs = of_kind(table, RegisterKind.INPUT)
    taken = _rows(f"{upper}_INPUT", [(each.name, _described(each)) for each in inputs])
    described = [(each.name, f"{each.dtype or 'any'} {_shape(each.dims)}") for each in table.outputs]
    returned = _rows(f"{upper}_OUTPUT", described)
    codes = [f"    {upper}_{word} = {code},  /* {what} */" for word, code, what in CODES]
    codes += [
        f"    {upper}_RAISED_{number} = {RAISED + number},  /* {comment(f'{each.error}: {each.message}')} */"
        for number, each in enumerate(raised(table))
    ]
    grows = " More is needed where they are larger." if _has_loop(table) or _varies(inputs) else ""
    enums = "\n".join("\n".join(["enum {", *rows, "};", ""]) for rows in (codes, taken, returned) if rows)
    return f"""/* {comment(table.name)}: weights and code are in the object file beside this. No library is needed.

     static char state[{upper}_STATE_BYTES], memory[{upper}_MEMORY_BYTES];      both aligned to 64 bytes
     {name}_session session;
     {name}_init(&session, state, memory, sizeof memory);
     {name}_tensor inputs[{upper}_INPUTS] = {{{{.data = x, .shape = {{...}}}}}}, outputs[{upper}_OUTPUTS] = {{{{0}}}};
     if ({name}_run(&session, inputs, outputs) == {upper}_OK) ... outputs[0].data, outputs[0].shape

   A session is used by one thread at a time; any number of them may run at once. Elements are contiguous. Without data
   an output is put into the session's memory, and is valid until the next run; with data of so many bytes, it is copied
   there. What a model changes (parameters in training, caches) is in `state`, which may be saved and put back. A run
   that fails leaves it as it was. */
#ifndef {upper}_H
#define {upper}_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {{
#endif

#define {upper}_STATE_BYTES {max(1, state_bytes)}
#define {upper}_MEMORY_BYTES {memory_bytes} /* for sizes of at most {TYPICAL}, or fixed ones.{grows} */
#define {upper}_INPUTS {max(1, len(inputs))}
#define {upper}_OUTPUTS {max(1, len(table.outputs))}

{enums}
typedef struct {{
    void *data;
    int64_t bytes; /* of an output: room before the run, used after it */
    int32_t rank;  /* of an output, set by the run, and its dtype as smelt.h numbers them (-1: there is none) */
    int32_t dtype;
    int64_t shape[{rank_of(table)}];
}} {name}_tensor;

typedef struct {{
    void *state;
    void *memory;
    int64_t bytes;
    int64_t needed;
    int32_t input;
    int32_t dimension;
}} {name}_session;

/* State as it was exported, in `state`; runs may use `bytes` of `memory`. */
void {name}_init({name}_session *session, void *state, void *memory, int64_t bytes);

int {name}_run({name}_session *session, const {name}_tensor *inputs, {name}_tensor *outputs);

#ifdef __cplusplus
}}
#endif
#endif
"""


def _varies(inputs: Sequence[r.Register]) -> bool:
    return any(dim.low != dim.high for each in inputs for dim in each.dims)


def _described(register: r.Register) -> str:
    choices = f", one of {', '.join(f'{place}: {each}' for place, each in enumerate(register.choices))}"
    optional = ", may have no data" if register.optional else ""
    return comment(f"{register.dtype} {_shape(register.dims)}{choices if register.choices else ''}{optional}")


def comment(text: str) -> str:
    """A text inside of a comment, on one line."""
    return " ".join(text.replace("*/", "* /").split())


# --- what the interface needs to know of a table ---


def rank_of(table: r.Table) -> int:
    """How many sizes the interface has room for in each tensor."""
    views = [each.dims for variant in _variants(table) for each in _outputs(variant)]
    dims = [each.dims for each in table.registers], [each.dims for each in table.outputs], views
    return max([1, *(len(each) for group in dims for each in group)])


def raised(table: r.Table) -> list[r.Raise]:
    """The errors that a run may end with; the first is code `RAISED`."""
    return list(dict.fromkeys(each.next for each in _variants(table) if isinstance(each.next, r.Raise)))


def raised_codes(table: r.Table) -> list[int]:
    """Of each variant the code of the error that it raises; 0: none."""
    codes: dict[object, int] = {each: RAISED + number for number, each in enumerate(raised(table))}
    return [codes.get(variant.next, 0) for variant in _variants(table)]


def memory_bytes(table: r.Table, run_bytes: int) -> int:
    """How much memory a run takes at most; for sizes that vary: where they are `TYPICAL`, or at their bounds.
    `run_bytes`: what the executor's arrays take."""
    requests: dict[tuple[str, int], set[int]] = {}
    for variant in _variants(table):
        for block, count in _requests(table, variant):
            requests.setdefault(block, set()).add(count)
    copies = 2 if _has_loop(table) else 1  # a register has two blocks, so that it can be produced anew
    totals = (_grown(sizes) * (copies if kind == "register" else 1) for (kind, _), sizes in requests.items())
    return run_bytes + sum(totals) + ALIGN


def _grown(sizes: set[int]) -> int:
    """All memory of a block that has these sizes in turn, as `smelt_block_fits` of csrc/executor/run allocates it."""
    total = room = 0
    for size in sorted(sizes):
        if size > room:
            room = -(-max(size, room + room // 2) // ALIGN) * ALIGN
            total += room + ALIGN
    return total


def _variants(table: r.Table) -> list[r.Variant]:
    return [variant for state in table.states for variant in state.variants]


def _outputs(variant: r.Variant) -> Sequence[r.Returned]:
    return variant.next.outputs if isinstance(variant.next, r.Return) else ()


def _has_loop(table: r.Table) -> bool:
    """Whether a state may come again."""
    edges = [
        (number, after)
        for number, state in enumerate(table.states)
        for variant in state.variants
        for after in r.successors(variant.next)
    ]
    return any(after <= number for number, after in edges)


def _requests(table: r.Table, variant: r.Variant) -> Iterator[tuple[tuple[str, int], int]]:
    """The blocks of memory that a variant uses, and their bytes."""
    values = [_typical(table, symbol) for symbol in variant.symbols]
    symbols = struct.pack(f"<{len(values)}q", *values)

    def evaluate(size: r.Expression) -> int:
        return _native.evaluate(encode(size), symbols) or 0

    def elements(register: int, dims: Sequence[r.Expression]) -> int:
        return DTYPES[table.registers[register].dtype] * math.prod(max(0, evaluate(dim)) for dim in dims)

    yield ("arena", 0), evaluate(variant.arena_bytes)
    launches = [step for step in variant.steps if isinstance(step, r.Launch)]
    spaces = [evaluate(step.fixed) + evaluate(step.per_thread) for step in launches]
    yield ("workspace", 0), max([0, *spaces])
    for produced in variant.produced:
        yield ("register", produced.register), elements(produced.register, produced.dims)
    for place, output in enumerate(_outputs(variant)):
        register = None if output.register is None else table.registers[output.register]
        if register is None or (output.offset is None and register.kind == RegisterKind.LOCAL):
            continue  # returned where it is
        whole = [r.number(_within(dim.low, dim.high)) for dim in register.dims]
        yield ("output", place), elements(output.register or 0, whole if output.offset is None else output.dims)
    for value in variant.values:  # a run that fails after this variant puts back what it wrote
        if isinstance(value, r.RegisterValue) and value.writes and not isinstance(variant.next, r.Return):
            register = table.registers[value.register]
            if register.kind == RegisterKind.STATE:
                yield ("saved", value.register), register.bytes


def _typical(table: r.Table, symbol: r.Symbol) -> int:
    low, high = symbol.low, symbol.high
    dims = table.registers[symbol.register].dims
    if symbol.bind == Bind.SIZE:
        low, high = max(low, dims[symbol.dimension].low), min(high, dims[symbol.dimension].high)
    return _within(low, high)


def _within(low: int, high: int) -> int:
    return max(low, min(high, TYPICAL))
