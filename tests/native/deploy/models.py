"""Small artifacts with machine code of this machine, made of kernels that are written out as text.

    writer = Model("halve", inputs=…)   →   registers, states and kernels by hand   →   `.artifact()`, an `ArtifactFile`

Sizes that differ from call to call are s0, s1, … in a kernel's text, the variant's symbols of those places.
"""

import platform
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from smelt.base.options import Options
from smelt.codegen import compile_kernels
from smelt.ir.artifact_file.artifact import ArtifactFile, Data, TargetPart
from smelt.ir.artifact_file.code import Code, CodeSlot
from smelt.ir.artifact_file.layout import Machine
from smelt.ir.table import records as r
from smelt.ir.table.records import Bind, RegisterKind
from smelt.symbolic.expressions import Expression, Symbol
from smelt.symbolic.postfix import DEPTH, Op
from smelt.symbolic.symsize import SymSize
from tests.kernel_text import parse_kernel

INPUT, STATE, CONSTANT, LOCAL = RegisterKind


def here() -> Machine:
    """The machine that runs the tests."""
    return {"x86_64": Machine.X86_64, "aarch64": Machine.AARCH64, "riscv64": Machine.RISCV64}[platform.machine()]


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


_OPS = {"//": Op.DIV, "%": Op.MOD, "max": Op.MAX, "min": Op.MIN}


def postfix(size: Any) -> r.Expression:
    """A size of a kernel, over symbols named s0, s1, …"""
    if isinstance(size, SymSize):
        size = size.expression
    if not isinstance(size, Expression):
        return r.number(int(size))
    total: r.Expression | None = None
    for atoms, factor in size.terms.items():
        term = r.number(factor)
        for atom in atoms:
            if isinstance(atom, Symbol):
                code = r.symbol(int(atom.text[1:]))
            else:
                code = r.apply(_OPS[atom.function], postfix(atom.left), postfix(atom.right))
            term = r.apply(Op.MUL, term, code)
        total = term if total is None else r.apply(Op.ADD, total, term)
    return total or r.number(0)


@dataclass
class Model:
    """An artifact in the making."""

    name: str
    examples: Mapping[str, int] = field(default_factory=dict)
    registers: list[r.Register] = field(default_factory=list)
    outputs: list[r.Output] = field(default_factory=list)
    states: list[r.State] = field(default_factory=list)
    weights: Data = field(default_factory=Data)
    state: Data = field(default_factory=Data)
    kernels: list[r.Kernel] = field(default_factory=list)
    _image: bytearray = field(default_factory=bytearray)
    _entries: list[int] = field(default_factory=list)
    _slots: list[CodeSlot] = field(default_factory=list)
    _compiled: list[Any] = field(default_factory=list)

    def register(self, name: str, kind: RegisterKind, dtype: str, *dims: int | r.Dim, **more: Any) -> int:
        data = more.pop("data", None)
        made = [each if isinstance(each, r.Dim) else r.Dim(each, each) for each in dims]
        if data is not None:
            more |= {"data": (self.state if kind == STATE else self.weights).add(data), "bytes": len(data)}
        self.registers.append(r.Register(name, kind, dtype, tuple(made), **more))
        return len(self.registers) - 1

    def kernel(self, text: str) -> int:
        """The number of a kernel, compiled for this machine."""
        parsed = parse_kernel(text, dict(self.examples))
        compiled = compile_kernels([parsed], Options())[parsed.name]
        image = compiled.built.image
        start = -(-len(self._image) // 4096) * 4096
        self._image += bytes(start - len(self._image)) + image.code
        self._entries.append(start + dict(image.symbols)[compiled.symbol])
        for slot in image.slots:
            addend = slot.addend if slot.name else slot.addend + start
            self._slots.append(CodeSlot(slot.offset + start, slot.name, addend))
        self._compiled.append(compiled)
        self.kernels.append(r.Kernel(parsed.name, compiled.buffers))
        return len(self.kernels) - 1

    def launch(self, kernel: int, values: Sequence[int], variant_values: list[r.Value]) -> r.Launch:
        """A launch of a kernel; sizes that its code takes become one more value."""
        compiled = self._compiled[kernel]
        given = list(values)
        if compiled.sizes:
            variant_values.append(r.SizesValue(tuple(postfix(each) for each in compiled.sizes)))
            given.append(len(variant_values) - 1)
        return r.Launch(kernel, tuple(given), per_thread=postfix(compiled.per_thread_workspace))

    def facts(self, kernel: int) -> tuple[r.Check, ...]:
        """What a kernel's code relies on."""
        ops = {"==": Op.EQ, "!=": Op.NE, "<": Op.LT, "<=": Op.LE, ">": Op.GT, ">=": Op.GE}
        return tuple(
            r.Check(r.apply(ops[fact.relation], postfix(fact.expression), r.number(0)), str(fact))
            for fact in self._compiled[kernel].facts
        )

    def artifact(self, features: int = 0) -> ArtifactFile:
        table = r.Table(
            self.name, tuple(self.registers), tuple(self.outputs), tuple(self.kernels), tuple(self.states)
        )
        code = Code(bytes(self._image) or bytes(16), tuple(self._entries), tuple(self._slots))
        target = TargetPart(here(), features, table, code)
        return ArtifactFile({"name": self.name}, (target,), self.weights, self.state)


AFFINE = """
kernel affine rows(i:s0) cols(j:4)
  in x: f32[4*s0]
  in w: f32[4]
  in b: f32[4]
  out y: f32[4*s0]
  loop:
    v = load x[4*i + j]
    a = load w[j]
    c = load b[j]
    u = fma v, a, c : f32
    store y[4*i + j] = u
"""


def affine() -> Model:
    """y = x * w + b of x[rows, 4], 2 to 4096 rows."""
    model = Model("affine", {"s0": 7})
    x = model.register("x", INPUT, "float32", r.Dim(2, 4096, "rows"), 4)
    w = model.register("w", CONSTANT, "float32", 4, data=floats(1, 2, 3, 4))
    b = model.register("b", CONSTANT, "float32", 4, data=floats(10, 20, 30, 40))
    y = model.register("y", LOCAL, "float32", r.Dim(0), 4)
    size = r.apply(Op.MUL, r.symbol(0), r.number(16))
    values: list[r.Value] = [
        r.RegisterValue(x, size),
        r.RegisterValue(w, r.number(16)),
        r.RegisterValue(b, r.number(16)),
        r.ProducedValue(0, size),
    ]
    kernel = model.kernel(AFFINE)
    steps = (model.launch(kernel, (0, 1, 2, 3), values),)
    variant = r.Variant(
        "affine",
        r.Return((r.Returned(y),)),
        symbols=(r.Symbol("rows", Bind.SIZE, x, 0, 2),),
        checks=model.facts(kernel),
        produced=(r.Produced(y, (r.symbol(0), r.number(4))),),
        values=tuple(values),
        steps=steps,
    )
    model.states = [r.State("entry", (variant,))]
    model.outputs = [r.Output("y", "float32", (r.Dim(2, 4096, "rows"), r.Dim(4, 4)))]
    return model


MORE = """
kernel more rows() cols(j:4)
  in y: f32[4]
  out more: bool[1]
  loop:
    v = load y[j]
    s = reduce sum v
  row:
    one = const 1.0 : f32
    m = gt s, one : bool
    store more[0] = m
"""
HALVE = """
kernel halve rows() cols(j:4)
  in y: f32[4]
  out z: f32[4]
  loop:
    v = load y[j]
    h = const 0.5 : f32
    u = mul v, h : f32
    store z[j] = u
"""
COUNT = """
kernel count rows() cols(j:1)
  inout n: i64[1]
  loop:
    v = load n[0]
    one = const 1 : i64
    u = add v, one : i64
    store n[0] = u
"""


def loop() -> Model:
    """while x.sum() > 1: x = x / 2; count += 1 (which is state); return x."""
    model = Model("loop")
    x = model.register("x", INPUT, "float32", 4)
    count = model.register("count", STATE, "int64", data=struct.pack("<q", 0))
    y = model.register("y", LOCAL, "float32", 4)
    more = model.register("more", LOCAL, "bool")
    sixteen, one = r.number(16), r.number(1)
    begin = r.Variant(
        "begin",
        r.Jump(1),
        produced=(r.Produced(y, (r.number(4),)),),
        values=(r.RegisterValue(x, sixteen), r.ProducedValue(0, sixteen)),
        steps=(r.Copy(1, 0, sixteen),),
    )
    condition = r.Variant(
        "condition",
        r.Branch(more, 2, 3),
        produced=(r.Produced(more),),
        values=(r.RegisterValue(y, sixteen), r.ProducedValue(0, one)),
        steps=(r.Launch(model.kernel(MORE), (0, 1)),),
    )
    body = r.Variant(
        "body",
        r.Jump(1),
        produced=(r.Produced(y, (r.number(4),)),),
        values=(
            r.RegisterValue(y, sixteen),
            r.ProducedValue(0, sixteen),
            r.RegisterValue(count, r.number(8), writes=True),
        ),
        steps=(r.Launch(model.kernel(HALVE), (0, 1)), r.Launch(model.kernel(COUNT), (2,))),
    )
    end = r.Variant("end", r.Return((r.Returned(y), r.Returned(count))))
    names = ("entry", "while", "body", "end")
    model.states = [
        r.State(name, (variant,)) for name, variant in zip(names, (begin, condition, body, end), strict=True)
    ]
    model.outputs = [r.Output("y", "float32", (r.Dim(4, 4),)), r.Output("count", "int64")]
    return model


SOFTMAX = """
kernel softmax rows(i:s0) cols(j:s1)
  in x: f32[s0*s1]
  out y: f32[s0*s1]
  scratch e: f32[s1]
  loop:
    v0 = load x[s1*i + j]
    m = reduce max v0
  loop:
    v1 = load x[s1*i + j]
    v2 = sub v1, m : f32
    v3 = exp v2 : f32
    store e[j] = v3
    s = reduce sum v3
  loop:
    v4 = load e[j]
    v5 = div v4, s : f32
    store y[s1*i + j] = v5
"""
DOUBLE = """
kernel double rows() cols(j:s0*s1)
  in x: f32[s0*s1]
  out y: f32[s0*s1]
  loop:
    v = load x[j]
    w = add v, v : f32
    store y[j] = w
"""


def softmax() -> Model:
    """softmax(x + x) of x[n, m], by way of the arena; returned whole, transposed, and its first column."""
    model = Model("softmax", {"s0": 300, "s1": 70})
    x = model.register("x", INPUT, "float32", r.Dim(2, 1 << 20, "n"), r.Dim(2, 1 << 20, "m"))
    y = model.register("y", LOCAL, "float32", r.Dim(0), r.Dim(0))
    n, m = r.symbol(0), r.symbol(1)
    size = r.apply(Op.MUL, r.apply(Op.MUL, n, m), r.number(4))
    values: list[r.Value] = [
        r.RegisterValue(x, size),
        r.ArenaValue(r.number(128), size),
        r.ProducedValue(0, size),
    ]
    double, normalize = model.kernel(DOUBLE), model.kernel(SOFTMAX)
    steps = (model.launch(double, (0, 1), values), model.launch(normalize, (1, 2), values))
    transposed = r.Returned(y, (m, n), (r.number(1), m), r.ZERO)
    column = r.Returned(y, (n,), (m,), r.number(0))
    variant = r.Variant(
        "softmax",
        r.Return((r.Returned(y), transposed, column)),
        symbols=(r.Symbol("n", Bind.SIZE, x, 0, 2), r.Symbol("m", Bind.SIZE, x, 1, 2)),
        checks=(*model.facts(double), *model.facts(normalize)),
        produced=(r.Produced(y, (n, m)),),
        values=tuple(values),
        steps=steps,
        arena_bytes=r.apply(Op.ADD, size, r.number(128)),
    )
    model.states = [r.State("entry", (variant,))]
    dims = (r.Dim(2, 1 << 20, "n"), r.Dim(2, 1 << 20, "m"))
    shapes = {"y": dims, "t": dims[::-1], "c": dims[:1]}
    model.outputs = [r.Output(name, "float32", shape) for name, shape in shapes.items()]
    return model


RELU = """
kernel relu rows() cols(j:s0)
  in x: f32[s0]
  out y: f32[s0]
  loop:
    v = load x[j]
    z = const 0.0 : f32
    w = maximum v, z : f32
    store y[j] = w
"""
NEGATE = """
kernel negate rows() cols(j:s0)
  in x: f32[s0]
  out y: f32[s0]
  loop:
    v = load x[j]
    w = neg v : f32
    store y[j] = w
"""
SCALE = """
kernel scale rows() cols(j:s0)
  inout x: f32[s0]
  in s: f64[1]
  loop:
    v = load x[j]
    f = load s[0]
    g = cast f : f32
    w = mul v, g : f32
    store x[j] = w
"""


def arguments() -> Model:
    """Python's arguments: mode in {"relu", "neg"}; flag: bool; scale: float or None, which scales x in place."""
    model = Model("arguments", {"s0": 5})
    x = model.register("x", INPUT, "float32", r.Dim(2, 1000), written=True)
    mode = model.register("mode", INPUT, "int64", choices=("relu", "neg"))
    flag = model.register("flag", INPUT, "bool")
    scale = model.register("scale", INPUT, "float64", optional=True)
    y = model.register("y", LOCAL, "float32", r.Dim(0))
    size = r.apply(Op.MUL, r.symbol(0), r.number(4))
    n = r.Symbol("n", Bind.SIZE, x, 0, 2)
    chosen, is_set = r.Symbol("mode", Bind.VALUE, mode), r.Symbol("flag", Bind.VALUE, flag)
    given = r.Symbol("scale given", Bind.GIVEN, scale)

    def same(place: int, value: int, text: str) -> r.Check:
        return r.Check(r.apply(Op.EQ, r.symbol(place), r.number(value)), text)

    values: list[r.Value] = [r.RegisterValue(x, size, writes=True), r.RegisterValue(scale, r.number(8))]
    scaling = model.kernel(SCALE)
    steps = (model.launch(scaling, (0, 1), values),)
    scaled = r.Variant(
        "scaled", r.Jump(1), (n, given), (same(1, 1, "scale is given"), *model.facts(scaling)), (), tuple(values), steps
    )
    as_it_is = r.Variant("as it is", r.Jump(1), (n, given), (same(1, 0, "scale is None"),))
    variants = []
    for number, text in enumerate((RELU, NEGATE)):
        values = [r.RegisterValue(x, size), r.ProducedValue(0, size)]
        kernel = model.kernel(text)
        steps = (model.launch(kernel, (0, 1), values),)
        checks = (same(1, number, f"mode == {number}"), same(2, 1, "flag"), *model.facts(kernel))
        produced = (r.Produced(y, (r.symbol(0),)),)
        variants.append(
            r.Variant("", r.Return((r.Returned(y),)), (n, chosen, is_set), checks, produced, tuple(values), steps)
        )
    off = r.Variant("off", r.Return((r.Returned(None),)), (n, chosen, is_set), (same(2, 0, "not flag"),))
    fail = r.Variant("fail", r.Raise("ValueError", "mode has no such value"))
    model.states = [r.State("scale", (scaled, as_it_is)), r.State("mode", (*variants, off, fail))]
    model.outputs = [r.Output("y", "float32", (r.Dim(2, 1000),))]
    return model


STEP = """
kernel step rows() cols(j:4)
  inout w: f32[4]
  in x: f32[4]
  in lr: f32[1]
  loop:
    a = load w[j]
    b = load x[j]
    r = load lr[0]
    d = sub a, b : f32
    g = mul d, r : f32
    u = sub a, g : f32
    store w[j] = u
"""


def training() -> Model:
    """w -= lr * (w - x), and a view of the same state, every second element; returns w."""
    model = Model("training")
    x = model.register("x", INPUT, "float32", 4)
    w = model.register("w", STATE, "float32", 4, data=floats(1, 2, 3, 4))
    model.registers.append(
        r.Register("odd", RegisterKind.STATE, "float32", (r.Dim(2, 2),), 4, 12, strides=(2,))
    )
    lr = model.register("lr", CONSTANT, "float32", 1, data=floats(0.5))
    sixteen = r.number(16)
    variant = r.Variant(
        "step",
        r.Return((r.Returned(w),)),
        values=(
            r.RegisterValue(w, sixteen, writes=True),
            r.RegisterValue(x, sixteen),
            r.RegisterValue(lr, r.number(4)),
        ),
        steps=(r.Launch(model.kernel(STEP), (0, 1, 2)),),
    )
    model.states = [r.State("entry", (variant,))]
    model.outputs = [r.Output("w", "float32", (r.Dim(4, 4),))]
    return model


def copies() -> Model:
    """Copies alone: x by way of the arena and of state to y, sizes to another output, one sum as deep as may be."""
    model = Model("copies")
    x = model.register("x", INPUT, "float32", r.Dim(1, 64, "n"), r.Dim(1, 8))
    kept = model.register("kept", STATE, "float32", 64, 8, data=bytes(2048))
    y = model.register("y", LOCAL, "float32", r.Dim(0), r.Dim(0))
    sizes = model.register("sizes", LOCAL, "int64", r.Dim(0))
    n, m = r.symbol(0), r.symbol(1)
    size = r.apply(Op.MUL, r.apply(Op.MUL, n, m), r.number(4))
    deep = tuple(r.Instruction(Op.SYMBOL, place % 2) for place in range(DEPTH))
    deep += tuple(r.Instruction(Op.ADD) for _ in range(DEPTH - 1))
    symbols = (r.Symbol("n", Bind.SIZE, x, 0), r.Symbol("m", Bind.SIZE, x, 1))
    store = r.Variant(
        "store",
        r.Jump(1),
        symbols,
        (r.Check(r.apply(Op.LT, n, r.number(60)), "n < 60"),),
        values=(r.RegisterValue(x, size), r.ArenaValue(r.number(64), size), r.RegisterValue(kept, size, writes=True)),
        steps=(r.Copy(1, 0, size), r.Copy(2, 1, size)),
        arena_bytes=r.apply(Op.ADD, size, r.number(64)),
    )
    refuse = r.Variant("refuse", r.Raise("ValueError", "n is too large"))
    load = r.Variant(
        "load",
        r.Return((r.Returned(y), r.Returned(y, (m, n), (r.number(1), m), r.ZERO), r.Returned(sizes), r.Returned(kept))),
        symbols,
        produced=(r.Produced(y, (n, m)), r.Produced(sizes, (r.number(2),))),
        values=(
            r.RegisterValue(kept, size),
            r.ProducedValue(0, size),
            r.SizesValue((n, deep)),
            r.ProducedValue(1, r.number(16)),
        ),
        steps=(r.Copy(1, 0, size), r.Copy(3, 2, r.number(16))),
    )
    model.states = [r.State("store", (store, refuse)), r.State("load", (load,))]
    two = (r.Dim(0), r.Dim(0))
    shapes = {"y": two, "t": two, "sizes": two[:1], "kept": (r.Dim(64, 64), r.Dim(8, 8))}
    model.outputs = [r.Output(name, "int64" if name == "sizes" else "float32", dims) for name, dims in shapes.items()]
    return model


class _WithGrids:
    """A model with a second target, for GPUs: the same state machine with grids for kernels, and text for code."""

    def __init__(self, made: Model) -> None:
        self._made = made

    def artifact(self) -> ArtifactFile:
        found = self._made.artifact()
        (part,) = found.targets
        kernels = []
        for number, kernel in enumerate(part.table.kernels):
            launches = [
                (variant, step)
                for state in part.table.states
                for variant in state.variants
                for step in variant.steps
                if isinstance(step, r.Launch) and step.kernel == number
            ]
            last = [variant.values[step.values[-1]] for variant, step in launches]
            counts = {len(each.numbers) if isinstance(each, r.SizesValue) else 0 for each in last}
            sizes = counts.pop() if len(counts) == 1 else 0
            pointers = kernel.buffers - bool(sizes)
            kinds = ((0, "float32"), (pointers, "float32"), (pointers - 1, "float16"))
            operands = tuple(r.Operand(place, dtype, 4, 8, 1, 0, -sizes) for place, dtype in kinds)
            product = r.Product(-bool(sizes), 8, 3, 1, 2, 2, operands) if pointers else None
            grids = (
                r.Grid(f"k{number}_0", 3, -1, 128, 1024, product),
                r.Grid(f"k{number}_1", 0, sizes - 1, 256),
            )
            kernels.append(replace(kernel, sizes=sizes, grids=grids))
        entries = (0,) * len(kernels)
        text = Code(b".version 7.0\n.target sm_80\n.address_size 64\n\0", entries)
        grids = TargetPart(Machine.CUDA, 80, replace(part.table, kernels=tuple(kernels)), text)
        return replace(found, targets=(grids, part))


def grids() -> _WithGrids:
    """`affine`, whose kernel takes sizes."""
    return _WithGrids(affine())


def grids_of_a_loop() -> _WithGrids:
    return _WithGrids(loop())


MODELS = {
    "grids": grids,
    "grids of a loop": grids_of_a_loop,
    "copies": copies,
    "affine": affine,
    "loop": loop,
    "softmax": softmax,
    "arguments": arguments,
    "training": training,
}
