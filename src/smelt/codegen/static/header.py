"""The C header of an object without a loader: `model.h`."""

import re
from collections.abc import Sequence

from smelt.codegen.static import driver
from smelt.codegen.static.driver import has_loop, raised, rank_of
from smelt.codegen.static.memory import TYPICAL
from smelt.ir.artifact_file.check import of_kind
from smelt.ir.table import records as r
from smelt.ir.table.records import RegisterKind

CODES = (
    ("OK", driver.OK, "outputs are there"),
    ("WRONG_SIZE", driver.WRONG_SIZE, "input `input` has a size out of bounds in `dimension`; -1: it is too large"),
    ("NO_VARIANT", driver.NO_VARIANT, "nothing was exported for inputs like these"),
    ("NO_MEMORY", driver.NO_MEMORY, "more memory is needed, at least `needed` bytes"),
    ("SMALL_OUTPUT", driver.SMALL_OUTPUT, "an output does not fit where it was to be written"),
    ("MISSING_INPUT", driver.MISSING_INPUT, "input `input` has no data, and is not optional"),
)


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
        f"    {upper}_RAISED_{number} = {driver.RAISED + number},  /* {comment(f'{each.error}: {each.message}')} */"
        for number, each in enumerate(raised(table))
    ]
    grows = " More is needed where they are larger." if has_loop(table) or _varies(inputs) else ""
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
