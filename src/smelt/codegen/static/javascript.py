"""A WebAssembly model for JavaScript: `model.mjs`, a module for node and browsers, and its types, `model.d.mts`.

    const session = await load();
    const { output } = session.run({ x: { data: new Float32Array(12), shape: [3, 4] }, scale: 0.5 });
    session.state(), session.loadState(state), session.reset()

`model.mjs` is `assets/session.mjs`, the same for all models, and loads `model.wasm`, whose section `smelt` describes
inputs, outputs and state as JSON. The npm package (`tools/packages.py`) is `assets/session.mjs` alone.
"""

import json
from pathlib import Path
from typing import Any

from smelt.codegen.static.header import CODES, RAISED, comment, raised, rank_of
from smelt.ir.artifact_file.artifact import of_kind
from smelt.ir.table import records as r
from smelt.ir.table.records import RegisterKind
from smelt.symbolic.shapes import contiguous_stride

_ASSETS = Path(__file__).parent / "assets"

# As in session.mjs. Elements of 16 and 8 bits that JavaScript has no array of are given as their bits, complex ones as
# pairs.
ARRAYS = {
    "bool": "Uint8Array", "uint8": "Uint8Array", "int8": "Int8Array", "int16": "Int16Array", "int32": "Int32Array",
    "int64": "BigInt64Array", "float16": "Uint16Array", "bfloat16": "Uint16Array", "float32": "Float32Array",
    "float64": "Float64Array", "complex64": "Float32Array", "complex128": "Float64Array", "uint16": "Uint16Array",
    "uint32": "Uint32Array", "uint64": "BigUint64Array", "float8_e4m3fn": "Uint8Array", "float8_e5m2": "Uint8Array",
}  # fmt: skip


def javascript_text(name: str, table: r.Table) -> str:
    """`model.mjs`, beside `model.wasm`."""
    head = f"// {comment(table.name)}: (await load()).run({{ x: {{ data: TypedArray, shape: [...] }}, ... }}) → outputs"
    wasm = f"new URL({json.dumps(f'{name}.wasm')}, import.meta.url)"
    signature = "export async function load(source, memoryBytes"
    session = (_ASSETS / "session.mjs").read_text()
    return f"{head}\n{session.replace(signature, signature.replace('source', f'source = {wasm}'))}"


def description(name: str, table: r.Table, state_bytes: int) -> bytes:
    """What session.mjs has to know of a model: the section `smelt` of its module."""
    codes = {word: code for word, code, _ in CODES}
    errors = {code: f"{word}: {text}" for word, code, text in CODES}
    errors |= {RAISED + number: f"{each.error}: {each.message}" for number, each in enumerate(raised(table))}
    model = {
        "name": name,
        "inputs": [_input(each) for each in of_kind(table, RegisterKind.INPUT)],
        "outputs": [each.name or str(place) for place, each in enumerate(table.outputs)],
        "state": [_state(each) for each in of_kind(table, RegisterKind.STATE)],
        "rank": rank_of(table),
        "stateBytes": state_bytes,
        "errors": errors,
        "noMemory": codes["NO_MEMORY"],
        "wrongSize": codes["WRONG_SIZE"],
    }
    return json.dumps(model, separators=(",", ":")).encode()


def _input(register: r.Register) -> dict[str, Any]:
    dims = [[dim.low, min(dim.high, 2**53 - 1), dim.name] for dim in register.dims]
    choices = list(register.choices)
    return {
        "name": register.name, "dtype": register.dtype, "dims": dims, "optional": register.optional, "choices": choices,
    }  # fmt: skip


def _state(register: r.Register) -> dict[str, Any]:
    sizes = [dim.low for dim in register.dims]
    strides = list(register.strides) or list(contiguous_stride(sizes))
    return {"name": register.name, "dtype": register.dtype, "shape": sizes, "strides": strides, "offset": register.data}


def types_text(table: r.Table) -> str:
    """`model.d.mts`: the types of what `model.mjs` exports."""
    inputs, outputs, state = [], [], []
    for register in of_kind(table, RegisterKind.INPUT):
        kind = f"Given<{ARRAYS[register.dtype]}>"
        if register.choices:
            kind = " | ".join(map(json.dumps, register.choices))
        elif not register.dims:
            kind = f"{_number(register.dtype)} | {kind}"
        inputs.append(f"  {json.dumps(register.name)}{'?' if register.optional else ''}: {kind};")
    for place, output in enumerate(table.outputs):
        array = ARRAYS[output.dtype] if output.dtype else "Elements"
        outputs.append(f"  {json.dumps(output.name or str(place))}: Tensor<{array}> | null;")
    for register in of_kind(table, RegisterKind.STATE):
        state.append(f"  {json.dumps(register.name)}: Tensor<{ARRAYS[register.dtype]}>;")
    arrays = " | ".join(dict.fromkeys(ARRAYS.values()))
    head = [f"// {comment(table.name)}", f"export type Elements = {arrays};"]
    for interface, fields in (("Inputs", inputs), ("Outputs", outputs), ("State", state)):
        head += [f"export interface {interface} {{", *fields, "}"]
    return "\n".join(head) + "\n" + (_ASSETS / "session.d.mts").read_text().replace("source:", "source?:")


def _number(dtype: str) -> str:
    return {"bool": "boolean", "int64": "number | bigint", "uint64": "number | bigint"}.get(dtype, "number")
