"""Builds one object file and a header from a table, its weights and its kernels, or a WebAssembly module and its
JavaScript.

    static_model("model", table, weights, written, target)   →   StaticModel(object, header)

`written` is the result of `ahead_of_time.write_for` for the kernels of the table: one module, in the table's order.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from smelt._native import plan_table
from smelt.base.errors import SmeltError
from smelt.base.fast_dataclass import dataclass
from smelt.codegen.ahead_of_time import WrittenKernels
from smelt.codegen.llvm.compile import linked_object, make_all_targets_ready, object_codes
from smelt.codegen.llvm.link import undefined
from smelt.codegen.llvm.print_module import print_module
from smelt.codegen.llvm.support import SUPPORT, support_text
from smelt.codegen.llvm.wasm_module import as_module, undefined_functions
from smelt.codegen.static.float_functions import FLOAT_FUNCTIONS, dispatch_text, float_functions
from smelt.codegen.static.header import c_name, header_text, memory_bytes, raised_codes, rank_of
from smelt.codegen.static.javascript import description, javascript_text, types_text
from smelt.codegen.static.model_text import MARK, ModelData, model_text
from smelt.device import Target
from smelt.ir.artifact_file.artifact import Data
from smelt.ir.loops import Module
from smelt.ir.table import records as r
from smelt.ir.table.write import table_bytes

_CORE = Path(__file__).parent / "core"  # the executor as bitcode; tools/static_core.py makes it


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
    words = table_bytes(table)
    run_bytes, plans = plan_table(words, weights.bytes, state.bytes, len(table.kernels))
    data = ModelData(_content(weights), _content(state), words, plans)
    functions = [op for op in FLOAT_FUNCTIONS if op in data.ops()]
    text = print_module(_joined(written.modules[0], float_functions(functions, target))) + dispatch_text(functions)
    text += model_text(name, data, rank_of(table), [entry.symbol for entry in entries], raised_codes(table))
    object_file = _with_content(_object(name, text, target), data.content())
    header = header_text(name, table, state.bytes, memory_bytes(table, run_bytes))
    if target.pointer_bytes != 4:
        return StaticModel(name, target, object_file, header)
    module = as_module(object_file, {"smelt": description(name, table, state.bytes)})
    return StaticModel(name, target, object_file, header, module, javascript_text(name, table), types_text(table))


def _content(data: Data) -> bytes:
    content = bytearray()
    for begin, part in data.parts.items():
        content += bytes(begin - len(content)) + memoryview(part).cast("B")
    return bytes(content)


def _with_content(object_file: bytes, content: bytes) -> bytes:
    place = object_file.find(MARK)
    if place < 0 or object_file.find(MARK, place + 1) >= 0:
        raise SmeltError("SM030", "the weights have no place in the object file")
    return object_file[:place] + content + object_file[place + len(content) :]


def _joined(one: Module, other: Module) -> Module:
    helpers = {each.name: each for each in (*one.helpers, *other.helpers)}
    return Module((*one.functions, *other.functions), tuple(helpers.values()))


def _object(name: str, text: str, target: Target) -> bytes:
    """Of a model's text and the executor. Only two functions have names for others: objects of several models may be
    linked together."""
    bitcode = (_CORE / f"core{8 * target.pointer_bytes}.bc").read_bytes()
    public = (f"{name}_run", f"{name}_init")
    known = ("__multi3",) if target.pointer_bytes == 4 else ()  # the executor's checks for overflow need it there
    return object_with_support(text, target, lambda each: linked_object(each, bitcode, public, target), known)


def object_with_support(
    text: str, target: Target, build: Callable[[str], bytes] | None = None, known: Sequence[str] = ()
) -> bytes:
    """With the functions that LLVM calls where the processor has no instruction, except those of every C library.
    `build`: makes an object of a text; `known`: functions that it is known to call."""
    build = build or (lambda each: object_codes([each], target)[0])
    object_file = build(_supported(text, known, target))
    missing = _missing(object_file, target)
    return build(_supported(text, [*known, *missing], target)) if missing else object_file


def _supported(text: str, missing: Sequence[str], target: Target) -> str:
    lines = [line for line in text.splitlines() if not _declares(line, missing)]
    return "\n".join(lines) + support_text(missing, target).replace("define hidden", "define weak hidden")


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
