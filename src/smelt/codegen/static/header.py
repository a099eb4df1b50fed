"""What a C program, or JavaScript, is told of an object without a loader: `model.h`, `model.mjs`."""

import json
import re
from collections.abc import Sequence

from smelt.codegen.static import driver
from smelt.codegen.static.driver import has_loop, raised, rank_of
from smelt.codegen.static.memory import TYPICAL
from smelt.ir.artifact_file import records as r
from smelt.ir.artifact_file.check import of_kind
from smelt.ir.artifact_file.layout import RegisterKind

_CODES = (
    ("OK", driver.OK, "outputs are there"),
    ("WRONG_SIZE", driver.WRONG_SIZE, "input `input` has a size out of bounds in `dimension`; -1: it is too large"),
    ("NO_VARIANT", driver.NO_VARIANT, "nothing was exported for inputs like these"),
    ("NO_MEMORY", driver.NO_MEMORY, "more memory is needed, at least `needed` bytes"),
    ("SMALL_OUTPUT", driver.SMALL_OUTPUT, "an output does not fit where it was to be written"),
    ("MISSING_INPUT", driver.MISSING_INPUT, "input `input` has no data, and is not optional"),
)
_ARRAYS = {
    "bool": "Uint8Array", "uint8": "Uint8Array", "int8": "Int8Array", "int16": "Int16Array", "int32": "Int32Array",
    "int64": "BigInt64Array", "float32": "Float32Array", "float64": "Float64Array", "uint16": "Uint16Array",
    "uint32": "Uint32Array", "uint64": "BigUint64Array",
}  # fmt: skip


def c_name(name: str) -> str:
    """A name as C allows it."""
    made = re.sub(r"\W", "_", name, flags=re.ASCII)
    return made if made and not made[0].isdigit() else f"m_{made}"


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
    given = _rows(f"{upper}_OUTPUT", described)
    codes = [f"    {upper}_{word} = {code},  /* {what} */" for word, code, what in _CODES]
    codes += [
        f"    {upper}_RAISED_{number} = {driver.RAISED + number},  /* {_comment(f'{each.error}: {each.message}')} */"
        for number, each in enumerate(raised(table))
    ]
    grows = " More is needed where they are larger." if has_loop(table) or _varies(inputs) else ""
    enums = "\n".join("\n".join(["enum {", *rows, "};", ""]) for rows in (codes, taken, given) if rows)
    return f"""/* {_comment(table.name)}: weights and code are in the object file beside this. No library is needed.

     static char state[{upper}_STATE_BYTES], memory[{upper}_MEMORY_BYTES];      both aligned to 64 bytes
     {name}_session session;
     {name}_init(&session, state, memory, sizeof memory);
     {name}_tensor inputs[{upper}_INPUTS] = {{{{.data = x, .shape = {{...}}}}}}, outputs[{upper}_OUTPUTS] = {{{{0}}}};
     if ({name}_run(&session, inputs, outputs) == {upper}_OK) ... outputs[0].data, outputs[0].shape

   A session is used by one thread at a time; any number of them may run at once. Elements are contiguous. Without data
   an output is put into the session's memory, and is valid until the next run; with data of so many bytes, it is copied
   there. What a model changes (parameters in training, caches) is in `state`, which may be saved and put back. */
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
    return _comment(f"{register.dtype} {_shape(register.dims)}{choices if register.choices else ''}{optional}")


def _comment(text: str) -> str:
    return " ".join(text.replace("*/", "* /").split())


def javascript_text(name: str, table: r.Table, state_bytes: int) -> str:
    """`model.mjs`: a module for node and browsers beside `model.wasm`."""
    inputs = of_kind(table, RegisterKind.INPUT)
    taken = [each.name for each in inputs]
    given = [
        [each.name or str(place), _ARRAYS.get(each.dtype or "", "Uint8Array"), len(each.dims)]
        for place, each in enumerate(table.outputs)
    ]
    return f"""// {_comment(table.name)}: (await load()).run({{x: {{data: TypedArray, shape: [...]}}, ...}}) → outputs
const inputs = {json.dumps(taken)};
const outputs = {json.dumps(given)};
const rank = {rank_of(table)}, stateBytes = {state_bytes}, align = (n) => Math.ceil(n / 64) * 64;

export async function load(source = new URL("{name}.wasm", import.meta.url), memoryBytes = 1 << 24) {{
  const bytes = source instanceof URL || typeof source === "string" ? await read(source) : source;
  const pow = (a, b) => (a === 1 || (a === -1 && Math.abs(b) === Infinity) ? 1 : a ** b); // as in C
  const {{ instance }} = await WebAssembly.instantiate(bytes, {{ env: {{ pow }} }});
  return new Session(instance.exports, memoryBytes);
}}

async function read(source) {{
  if (String(source).startsWith("file:")) return (await import("node:fs/promises")).readFile(source);
  return (await fetch(source)).arrayBuffer();
}}

class Session {{
  constructor(wasm, memoryBytes) {{
    this.wasm = wasm;
    this.session = align(wasm.__heap_base.value);
    this.state = this.session + 64;
    this.tensors = this.state + align(stateBytes);
    this.data = this.tensors + align((inputs.length + outputs.length) * (16 + 8 * rank));
    this.memoryBytes = memoryBytes;
    this.reserve(this.data + memoryBytes);
    wasm.{name}_init(this.session, this.state, this.data, BigInt(memoryBytes));
  }}

  reserve(end) {{
    const pages = Math.ceil((end - this.wasm.memory.buffer.byteLength) / 65536);
    if (pages > 0) this.wasm.memory.grow(pages);
  }}

  run(given) {{
    const stride = 16 + 8 * rank;
    let place = this.data;
    const places = inputs.map((name) => {{
      const at = place;
      place = align(place + (given[name]?.data.byteLength ?? 0));
      return given[name] ? at : 0;
    }});
    for (let bytes = this.memoryBytes; ; bytes = this.memoryBytes) {{
      this.reserve(place + bytes);
      const view = new DataView(this.wasm.memory.buffer);
      view.setUint32(this.session + 4, place, true);
      view.setBigInt64(this.session + 8, BigInt(bytes), true);
      inputs.forEach((name, i) => {{
        const at = this.tensors + i * stride;
        view.setUint32(at, places[i], true);
        if (!places[i]) return;
        const {{ data, shape = [] }} = given[name];
        const raw = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
        new Uint8Array(this.wasm.memory.buffer, places[i], raw.length).set(raw);
        shape.forEach((size, d) => view.setBigInt64(at + 16 + 8 * d, BigInt(size), true));
      }});
      const first = this.tensors + inputs.length * stride;
      outputs.forEach((_, i) => view.setUint32(first + i * stride, 0, true));
      const code = this.wasm.{name}_run(this.session, this.tensors, first);
      if (code === {driver.NO_MEMORY}) {{
        this.memoryBytes = Math.max(2 * bytes, Number(view.getBigInt64(this.session + 16, true)));
        continue;
      }}
      if (code) throw new Error(`{name}_run: ${{code}}`);
      return this.results(first, stride);
    }}
  }}

  results(first, stride) {{
    const view = new DataView(this.wasm.memory.buffer);
    return Object.fromEntries(outputs.map(([name, kind, length], i) => {{
      const at = first + i * stride, data = view.getUint32(at, true);
      if (!data) return [name, null];
      const bytes = Number(view.getBigInt64(at + 8, true));
      const copy = this.wasm.memory.buffer.slice(data, data + bytes);
      const shape = Array.from({{ length }}, (_, d) => Number(view.getBigInt64(at + 16 + 8 * d, true)));
      return [name, {{ data: new globalThis[kind](copy), shape }}];
    }}));
  }}
}}
"""
