"""Prints grids of the loop form as SPIR-V modules for Vulkan, one per grid.

    Function("k0_0", (%b0, …, %workspace, %size0, …), kind="grid")    →    {"k0_0": b"…"}
    For    →    OpLoopMerge, an OpPhi for each value it carries, the body, and a block that branches back
    If     →    OpSelectionMerge, two blocks, and one in which they meet, with an OpPhi for each result

LLVM's own SPIR-V back end is not used: it aborts on unsupported input, writes unordered comparisons as an instruction
that shaders do not have, does not forbid fusing a product and a sum, and has no addresses, so that each launch would
have to describe each buffer to the driver. Here global memory has 64-bit addresses, as on any GPU.

Launch parameters are 64-bit numbers: of a launch in pieces the number of the first block, then buffers, workspace,
sizes. At most `PUSHED` of them are push constants; a longer list is passed by address.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from smelt.base.errors import SmeltError
from smelt.base.fast_dataclass import dataclass
from smelt.codegen.gpu.spirv.arithmetic import Arithmetic
from smelt.codegen.gpu.spirv.module_words import Capability, ModuleWords, Op, Storage, instruction
from smelt.ir import loops
from smelt.ir.loops import BITS, GLOBAL, POINTER, SHARED, For, Function, If, Module, Node, Repeat, Value

PUSHED = 15  # parameters in the 128 bytes that every device takes with a launch, beside the first block's number

_ATOMIC = {"add": 234, "min": 236, "umin": 237, "max": 238, "umax": 239, "and": 240, "or": 241, "xor": 242}
# Execution modes that a device may have: DenormPreserve, SignedZeroInfNanPreserve, RoundingModeRTE; their capabilities.
_MODES = {"denorm": (4459, 4464), "nan": (4461, 4466), "even": (4462, 4467)}
_BUILT_IN = {"block": 26, "warp": 40, "lane": 41}
_SCOPES = {"device": 1, "block": 2, "warp": 3}
_ORDERED = 0x8 | 0x40 | 0x100  # acquire and release, of buffers and of shared memory
_ALIGNED = 2  # of an access: its alignment follows
_NARROW = {8: Capability.STORAGE_8BIT, 16: Capability.STORAGE_16BIT}


@dataclass(frozen=True, slots=True)
class _Array:
    """Memory that has no address: elements of a variable from `index` on."""

    variable: int
    storage: Storage
    kind: str
    length: int
    index: int


def print_grids(module: Module) -> dict[str, bytes]:
    """The binaries of all grids, by name."""
    return {each.name: _GridModule(module).grid(each) for each in module.functions if each.kind == "grid"}


class _GridModule(ModuleWords):
    """One grid, and the functions it calls."""

    def __init__(self, module: Module) -> None:
        super().__init__()
        self.functions = {each.name: each for each in (*module.helpers, *module.functions)}
        self._helpers: dict[tuple[object, ...], int] = {}

    def array(self, storage: Storage, kind: str, length: int, values: Sequence[Value] = ()) -> _Array:
        """A variable of the module. `values`: what it has from the start."""
        whole, numbers = self.array_type(self.type_of(kind), length), [self.constant_of(each) for each in values]
        initial = self.typed_constant(Op.CONSTANT_COMPOSITE, whole, *numbers) if values else None
        return _Array(self.variable(storage, whole, initial), storage, kind, length, self.word(0))

    def helper(self, name: str, arrays: Sequence[_Array | None]) -> int:
        """A function that is called, for arrays of such lengths."""
        key = (name, *(each and (each.storage, each.kind, each.length) for each in arrays))
        if key not in self._helpers:
            self._helpers[key] = self.new_id()
            _Printer(self, self.functions[name]).function(self._helpers[key], arrays)
        return self._helpers[key]

    def grid(self, function: Function) -> bytes:
        entry = self.new_id()
        _Printer(self, function).function(entry)
        modes = []
        for feature in sorted(set(function.features.split(","))):
            what, bits = feature[1:-2], feature[-2:]
            if what in _MODES and (bits == "32" or Capability.FLOAT64 in self.capabilities):
                number, capability = _MODES[what]
                self.capabilities.add(capability)
                modes.append((number, int(bits)))
        return self.to_bytes(entry, function.name, function.threads, modes)


class _Printer(Arithmetic):
    """The words of one function. What prints a node returns its value, if it has one."""

    m: _GridModule

    def __init__(self, module: _GridModule, function: Function) -> None:
        super().__init__(module)
        self._function = function
        self._arrays: dict[str, _Array] = {}
        for array in function.shared:
            self._arrays[f"@{array.name}"] = module.array(Storage.WORKGROUP, array.kind, array.length)
        for name, values in ((table.name, table.values) for table in function.tables):
            self._arrays[f"@{name}"] = module.array(Storage.PRIVATE, values[0].kind, len(values), values)
        self._locals: list[int] = []
        self._parameters: list[int] = []  # code that loads them
        self._count = function.parameters or len(function.params)
        self._pushed: int | None = None
        self._block = module.new_id()

    def function(self, number: int, arrays: Sequence[_Array | None] = ()) -> None:
        """`arrays`: of a helper, for each parameter the array that is passed by a pointer, or None for a number."""
        m, kinds, head = self.m, list[int](), list[int]()
        for param, array in zip(self._function.params, arrays, strict=False):
            result = self.values[param.name] = m.new_id()
            if array is not None:
                self._arrays[param.name] = replace(array, variable=result)
            kinds.append(m.type_of(param.kind) if array is None else self._pointer(array))
            head += instruction(Op.FUNCTION_PARAMETER, kinds[-1], result)
        head += instruction(Op.LABEL, self._block)
        self._body(self._function.body)
        start = instruction(Op.FUNCTION, m.void_type(), number, 0, m.function_type(m.void_type(), kinds))
        end = instruction(Op.RETURN) + instruction(Op.FUNCTION_END)
        m.code += start + head + self._locals + self._parameters + self.code + end

    def _body(self, nodes: Sequence[Node], values: Sequence[Value] = ()) -> list[int]:
        """Prints nodes. Returns what `values` are after them."""
        node: Any
        for node in nodes:
            if type(node) not in _PRINTERS:
                raise SmeltError("SM030", f"SPIR-V has no {type(node).__name__}")
            result = _PRINTERS[type(node)](self, node)
            if result is not None:
                self.values[node.out.name] = result
        return self._values(values)

    def _values(self, values: Sequence[Value]) -> list[int]:
        return [self.value(each) for each in values]

    def _do(self, op: int, *operands: int) -> None:
        """An instruction without a result."""
        self.code += instruction(op, *operands)

    # What a launch passes.

    def parameter(self, name: str) -> int:
        """Loaded where the function begins."""
        number = [each.name for each in self._function.params].index(name)
        code, self.code = self.code, self._parameters
        result = self._launch_parameter(self.m.integer(64, number))
        self.code = code
        return result

    def _launch_parameter(self, number: int) -> int:
        """The parameter of a number, which need not be a constant."""
        if self._count <= PUSHED:
            return self._push_constant(self.op(Op.IADD, "i64", number, self.m.integer(64, 1)))
        far = self.op(Op.IMUL, "i64", number, self.m.integer(64, 8))
        at = self.op(Op.IADD, "i64", self._push_constant(self.m.word(1)), far)
        return self.op(Op.LOAD, "i64", self._physical("i64", 1, at), _ALIGNED, 8)

    def _push_constant(self, place: int) -> int:
        m, i64 = self.m, self.m.int_type(64)
        if self._pushed is None:
            length = 1 + (self._count if self._count <= PUSHED else 1)
            self._pushed = m.variable(Storage.PUSH_CONSTANT, m.block_type(m.array_type(i64, max(2, length), 8)))
        pointer = m.pointer_type(Storage.PUSH_CONSTANT, i64)
        return self.op(Op.LOAD, i64, self.op(Op.ACCESS_CHAIN, pointer, self._pushed, m.word(0), place))

    # Memory.

    def pack(self, node: loops.Pack) -> int:
        kind = self.m.type_of(node.out.kind, node.out.lanes)
        return self.op(Op.COMPOSITE_CONSTRUCT, kind, *self._values(node.values))

    def extract(self, node: loops.Extract) -> int:
        assert isinstance(node.lane, int)
        return self.op(Op.COMPOSITE_EXTRACT, node.out.kind, self.value(node.vector), node.lane)

    def alloc(self, node: loops.Alloc) -> None:
        array = _Array(self.m.new_id(), Storage.FUNCTION, node.kind, node.length, self.m.word(0))
        self._locals += instruction(Op.VARIABLE, self._pointer(array), array.variable, array.storage)
        self._arrays[node.out.name] = array

    def _pointer(self, array: _Array) -> int:
        return self.m.pointer_type(array.storage, self.m.array_type(self.m.type_of(array.kind), array.length))

    def address(self, node: loops.Address) -> int | None:
        at, is_word = self.value(node.offset), node.offset.kind == "i32"
        if node.base.kind == GLOBAL:
            size, far = max(1, BITS[node.kind] // 8), self.lengthened(at, signed=True) if is_word else at
            far = far if size == 1 else self.op(Op.IMUL, "i64", far, self.m.integer(64, size))
            return self.op(Op.IADD, "i64", self.value(node.base), far)
        array, index = self._arrays[node.base.name], at if is_word else self.op(Op.U_CONVERT, "i32", at)
        assert BITS[node.kind] == BITS[array.kind]
        if array.index != self.m.word(0):
            index = self.op(Op.IADD, "i32", array.index, index)
        self._arrays[node.out.name] = replace(array, index=index)
        return None

    def _physical(self, kind: str, lanes: int, address: int) -> int:
        if BITS[kind] in _NARROW:
            self.m.capabilities.add(_NARROW[BITS[kind]])
        return self.op(Op.CONVERT_U_TO_PTR, self.m.pointer_type(Storage.PHYSICAL, self.m.type_of(kind, lanes)), address)

    def _where(self, pointer: Value, value: Value, align: int) -> tuple[str, int, list[int]]:
        """The kind of what is in memory there, a pointer to it, and notes for an access."""
        if pointer.kind == GLOBAL:
            return value.kind, self._physical(value.kind, value.lanes, self.value(pointer)), [_ALIGNED, align]
        array = self._arrays[pointer.name]
        assert value.lanes == 1
        kind = self.m.pointer_type(array.storage, self.m.type_of(array.kind))
        return array.kind, self.op(Op.ACCESS_CHAIN, kind, array.variable, array.index), []

    def _recast(self, value: int, kind: str, to: str) -> int:
        return value if self.m.type_of(kind) == self.m.type_of(to) else self.op(Op.BITCAST, to, value)

    def load(self, node: loops.Load) -> int:
        kind, where, notes = self._where(node.pointer, node.out, node.align)
        loaded = self.op(Op.LOAD, self.m.type_of(kind, node.out.lanes), where, *notes)
        return self._recast(loaded, kind, node.out.kind)

    def store(self, node: loops.Store) -> None:
        assert node.mask is None
        kind, where, notes = self._where(node.pointer, node.value, node.align)
        self._do(Op.STORE, where, self._recast(self.value(node.value), node.value.kind, kind), *notes)

    def _change(self, op: int, pointer: Value, orders: int, *operands: Value) -> int:
        kind = operands[0].kind
        if kind == "i64":
            self.m.capabilities.add(Capability.INT64_ATOMICS)
        how = [self.m.word(_SCOPES["device"]), *[self.m.word(0)] * orders]
        return self.op(op, kind, self._physical(kind, 1, self.value(pointer)), *how, *self._values(operands))

    def atomic(self, node: loops.Atomic) -> None:
        if node.op not in _ATOMIC:
            raise SmeltError("SM030", f"SPIR-V has no atomic {node.op}")
        self._change(_ATOMIC[node.op], node.pointer, 1, node.value)

    def compare_exchange(self, node: loops.CompareExchange) -> None:
        seen = self._change(Op.ATOMIC_COMPARE_EXCHANGE, node.pointer, 2, node.new, node.expected)
        stored = self.op(Op.I_EQUAL, "i1", seen, self.value(node.expected))
        self.values |= {node.seen.name: seen, node.stored.name: stored}

    # Calls, and threads.

    def call(self, node: loops.Call) -> None:
        if not isinstance(node.callee, str) or node.callee not in self.m.functions or node.out is not None:
            raise SmeltError("SM030", f"no device has the function {node.callee}")
        arrays = [self._arrays[each.name] if each.kind in (POINTER, SHARED) else None for each in node.args]
        assert all(each is None or each.index == self.m.word(0) for each in arrays)
        operands = [each.variable if each else self.value(arg) for each, arg in zip(arrays, node.args, strict=True)]
        self.op(Op.FUNCTION_CALL, self.m.void_type(), self.m.helper(node.callee, arrays), *operands)

    def id(self, node: loops.Id) -> int:
        if node.at is not None:
            return self._launch_parameter(self.value(node.at))
        loaded = self._built_in(node.what)
        if node.what != "block":
            return loaded
        first = self.op(Op.U_CONVERT, "i32", self._push_constant(self.m.word(0)))
        return self.op(Op.IADD, "i32", self.op(Op.COMPOSITE_EXTRACT, "i32", loaded, 0), first)

    def _built_in(self, what: str) -> int:
        if what != "block":
            self.m.capabilities.add(Capability.GROUP)
        kind = self.m.type_of("i32", 3 if what == "block" else 1)
        return self.op(Op.LOAD, kind, self.m.built_in(_BUILT_IN[what], kind))

    def shuffle(self, node: loops.Shuffle) -> int:
        self.m.capabilities |= {Capability.GROUP, Capability.GROUP_SHUFFLE}
        value, lane = self._values((node.value, node.lane))
        if node.mode == "xor":
            lane = self.op(Op.BITWISE_XOR, "i32", self._built_in("lane"), lane)
        elif node.mode == "up":  # any value for the first lanes, but of a lane that is there
            mine = self._built_in("lane")
            behind = self.op(Op.ISUB, "i32", mine, lane)
            lane = self.op(Op.SELECT, "i32", self.op(Op.U_LESS, "i1", mine, lane), mine, behind)
        return self.op(Op.GROUP_SHUFFLE, "i32", self.m.word(_SCOPES["warp"]), value, lane)

    def barrier(self, node: loops.Barrier) -> None:
        if node.scope == "warp":
            self.m.capabilities.add(Capability.GROUP)
        scope = self.m.word(_SCOPES[node.scope])
        self._do(Op.CONTROL_BARRIER, scope, scope, self.m.word(_ORDERED))

    # Control flow.

    def _open(self, label: int) -> None:
        self._do(Op.LABEL, label)
        self._block = label

    def if_(self, node: If) -> None:
        ways = ((node.then, node.then_values), (node.otherwise, node.else_values))
        self._branch(self.value(node.condition), node.results, *(partial(self._body, *way) for way in ways))

    def _branch(self, condition: int, results: Sequence[Value], *ways: Callable[[], list[int]]) -> None:
        """Each way returns its values."""
        labels, end = (self.m.new_id(), self.m.new_id()), self.m.new_id()
        self._do(Op.SELECTION_MERGE, end, 0)
        self._do(Op.BRANCH_CONDITIONAL, condition, *labels)
        came: list[list[tuple[int, int]]] = []  # of each way: its values, and the block that each comes from
        for label, way in zip(labels, ways, strict=True):
            self._open(label)
            values = way()
            came.append([(value, self._block) for value in values])
            self._do(Op.BRANCH, end)
        self._open(end)
        for result, a, b in zip(results, *came, strict=True):
            self.values[result.name] = self.op(Op.PHI, self.m.type_of(result.kind, result.lanes), *a, *b)

    def loop(self, node: For | Repeat) -> None:
        if isinstance(node, For) and node.may_skip:
            some = self.op(Op.S_LESS, "i1", *self._values((node.first, node.last)))
            self._branch(some, node.results, partial(self._loop, node), partial(self._values, node.starts))
        else:
            self._bind(node.results, self._loop(node))

    def _bind(self, names: Sequence[Value], values: Sequence[int]) -> None:
        self.values |= {each.name: value for each, value in zip(names, values, strict=True)}

    def _loop(self, node: For | Repeat) -> list[int]:
        """A loop that runs at least once; what its last run yields. What it carries is known after the body, but comes
        before."""
        m, before = self.m, self._block
        head, inside, again, end = m.new_id(), m.new_id(), m.new_id(), m.new_id()
        carried = (node.index, *node.carried) if isinstance(node, For) else node.carried
        starts = self._values((node.first, *node.starts) if isinstance(node, For) else node.starts)
        self._do(Op.BRANCH, head)
        self._bind(carried, [m.new_id() for _ in carried])
        outer, self.code = self.code, []
        self._open(inside)
        self._body(node.body)
        self._do(Op.BRANCH, again)
        self._open(again)
        yields = following = self._values(node.yields)
        if isinstance(node, For):
            index = self.op(Op.IADD, node.index.kind, self.value(node.index), m.number(node.index.kind, node.step))
            more, following = self.op(Op.S_LESS, "i1", index, self.value(node.last)), [index, *yields]
        else:
            more = self.value(node.condition)
        self._do(Op.BRANCH_CONDITIONAL, more, head, end)
        inner, self.code = self.code, outer
        self._open(head)
        for each, start, value in zip(carried, starts, following, strict=True):
            self._do(Op.PHI, m.type_of(each.kind, each.lanes), self.value(each), start, before, value, again)
        self._do(Op.LOOP_MERGE, end, again, 0)
        self._do(Op.BRANCH, inside)
        self.code += inner
        self._open(end)
        return yields


_PRINTERS: dict[type, Callable[[_Printer, Any], int | None]] = {
    loops.Compute: _Printer.compute, loops.Convert: _Printer.convert, loops.Pack: _Printer.pack,
    loops.Extract: _Printer.extract, loops.Alloc: _Printer.alloc, loops.Address: _Printer.address,
    loops.Load: _Printer.load, loops.Store: _Printer.store, loops.Atomic: _Printer.atomic,
    loops.CompareExchange: _Printer.compare_exchange, loops.Call: _Printer.call, loops.Id: _Printer.id,
    loops.Shuffle: _Printer.shuffle, loops.Barrier: _Printer.barrier, For: _Printer.loop, Repeat: _Printer.loop,
    If: _Printer.if_,
}  # fmt: skip
