"""Builds one object file and a header from a table, its weights and its kernels, or a WebAssembly module and its
JavaScript.

    static_model("model", table, weights, written, target)   →   StaticModel(object, header)

`written` is the result of `ahead_of_time.write_for` for the kernels of the table: one module, in the table's order.
"""

from collections.abc import Sequence
from dataclasses import replace

from smelt.base.errors import SmeltError
from smelt.base.fast_dataclass import dataclass
from smelt.codegen.ahead_of_time import WrittenKernels
from smelt.codegen.llvm.compile import make_all_targets_ready, object_codes
from smelt.codegen.llvm.link import undefined
from smelt.codegen.llvm.print_module import print_module
from smelt.codegen.llvm.support import SERIAL_PARALLEL_FOR, SUPPORT, support_text
from smelt.codegen.llvm.wasm_module import as_module, undefined_functions
from smelt.codegen.static.driver import driver_text
from smelt.codegen.static.expressions import size_module
from smelt.codegen.static.header import c_name, header_text
from smelt.codegen.static.javascript import javascript_text, types_text
from smelt.codegen.static.memory import memory_bytes
from smelt.device import Target
from smelt.ir.artifact_file.check import check_table
from smelt.ir.artifact_file.layout import ALIGN, Data
from smelt.ir.loops import Module
from smelt.ir.table import records as r
from smelt.ir.table.write import table_bytes
from smelt.torch_abi.symbols import PARALLEL_FOR

# What stands at the start of the weights until they are put there: LLVM need not read them as text.
_MARK = b"smelt: weights\x00\x01\x02\x03\x04\x05\x06\x07are put here\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09"


@dataclass(frozen=True, slots=True)
class StaticModel:
    """An object file of the target's format, and its header. Of WebAssembly: the module too, its JavaScript and its
    types."""

    name: str
    target: Target
    object: bytes
    header: str
    module: bytes | None = None
    javascript: str | None = None
    types: str | None = None


def static_model(
    name: str,
    table: r.Table,
    weights: Data,
    state: Data,
    written: WrittenKernels,
    target: Target,
    *,
    kernels: Sequence[int] | None = None,
) -> StaticModel:
    """`kernels`: which entry of the module each kernel of the table is; the first is the first where it is None."""
    make_all_targets_ready()
    name = c_name(name)
    if len(written.modules) != 1:
        raise SmeltError("SM030", "the kernels of an object without a loader are in one module")
    entries = [written.entries[each] for each in (range(len(table.kernels)) if kernels is None else kernels)]
    content = _content(weights) + _content(state)
    content += bytes(max(0, len(_MARK) - len(content)))
    check_table(table_bytes(table), weights.bytes, state.bytes, len(table.kernels))
    driver, sizes = driver_text(name, table, [entry.symbol for entry in entries], weights.bytes, state.bytes)
    text = "\n".join([
        print_module(_internal(written.modules[0], size_module(sizes.items(), target))),
        SERIAL_PARALLEL_FOR.replace("define hidden", "define internal"),
        _weights_text(name, len(content)),
        driver,
    ])  # fmt: skip
    object_file = _with_weights(object_with_support(_once_declared(text), target), content)
    header = header_text(name, table, state.bytes, memory_bytes(table))
    if target.pointer_bytes != 4:
        return StaticModel(name, target, object_file, header)
    javascript = javascript_text(name, table, state.bytes)
    return StaticModel(name, target, object_file, header, as_module(object_file), javascript, types_text(table))


def _content(data: Data) -> bytes:
    """The bytes, up to where more may begin."""
    content = bytearray()
    for begin, part in data.parts.items():
        content += bytes(begin - len(content)) + memoryview(part).cast("B")
    return bytes(content) + bytes(-len(content) % ALIGN)


def _weights_text(name: str, size: int) -> str:
    mark = "".join(f"\\{byte:02x}" for byte in _MARK)
    rest = size - len(_MARK)
    marked, empty = f"[{len(_MARK)} x i8]", f"[{rest} x i8]"
    values = f'<{{ {marked} c"{mark}", {empty} zeroinitializer }}>'
    return f"@{name}.weights = internal constant <{{ {marked}, {empty} }}> {values}, align {ALIGN}"


def _with_weights(object_file: bytes, content: bytes) -> bytes:
    place = object_file.find(_MARK)
    if place < 0 or object_file.find(_MARK, place + 1) >= 0:
        raise SmeltError("SM030", "the weights have no place in the object file")
    return object_file[:place] + content + object_file[place + len(content) :]


def _internal(kernels: Module, sizes: Module) -> Module:
    """One module. Kernels are nobody else's: objects of several models may be linked together."""
    own = [replace(each, kind="internal", text="") for each in kernels.functions]
    helpers = {each.name: each for each in (*kernels.helpers, *sizes.helpers)}
    return Module((*own, *sizes.functions), tuple(helpers.values()))


def _once_declared(text: str) -> str:
    """Declarations of several parts, each once, but for the function that is defined here."""
    lines, seen = [], {line for line in text.splitlines() if _declares(line, (PARALLEL_FOR,))}
    for line in text.splitlines():
        if line.startswith("declare "):
            if line in seen:
                continue
            seen.add(line)
        lines.append(line)
    return "\n".join(lines)


def object_with_support(text: str, target: Target) -> bytes:
    """With the functions that LLVM calls where the processor has no instruction, except those of every C library."""
    (object_file,) = object_codes([text], target)
    missing = _missing(object_file, target)
    if not missing:
        return object_file
    lines = [line for line in text.splitlines() if not _declares(line, missing)]
    support = support_text(missing, target).replace("define hidden", "define weak hidden")
    return object_codes(["\n".join(lines) + support], target)[0]


def _missing(object_file: bytes, target: Target) -> list[str]:
    if target.pointer_bytes == 4:
        names = undefined_functions(object_file)
    elif object_file[:4] == b"\x7fELF":
        names = undefined(object_file)
    else:
        names = tuple(name for name in SUPPORT if f"{name}\0".encode() in object_file)
    return [name for name in names if name in SUPPORT]


def _declares(line: str, names: Sequence[str]) -> bool:
    return line.startswith("declare ") and line.partition("@")[2].partition("(")[0] in names
