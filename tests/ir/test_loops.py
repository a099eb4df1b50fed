"""The loop form: its text, each rule of its checker by a function that breaks just that one, and its interpreter."""

import ctypes
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.base.errors import SmeltError
from smelt.codegen.cpu.target import describe_host
from smelt.codegen.loops.builder import Builder, param
from smelt.ir import loops
from smelt.ir.loops import (
    GLOBAL,
    SHARED,
    Address,
    Barrier,
    Call,
    Compute,
    Convert,
    Extract,
    For,
    Function,
    Id,
    If,
    Load,
    Mma,
    Module,
    Node,
    Pack,
    Permute,
    Reduce,
    Repeat,
    Return,
    SharedArray,
    Shuffle,
    Splat,
    Store,
    Table,
    Value,
)
from smelt.ir.loops.check import check_function, check_module
from smelt.ir.loops.text import format_function, format_module, node_text
from tests.loop_reference import Fault, run, run_grid

P, N = param("p", "ptr"), param("n")
F, V, B = param("f", "f32"), Value("%v", "f32", 8), param("b", "i1")
PARAMS = (P, N, F, V, B)


def const(kind: str, number: Any, lanes: int = 1) -> Value:
    return Value("", kind, lanes, 0, number)


ZERO, ONE, EIGHT = (const("i64", number) for number in (0, 1, 8))


def largest() -> Function:
    """The absolute value of the largest of so many numbers, eight at a time."""
    b, x, n = Builder(describe_host()), param("x", "ptr"), param("n")
    loop = b.begin(ZERO, n, 8, [const("f32", -math.inf, 8)], guard=True)
    value = b.load(b.element(x, "f32", loop.index), "f32", 8)
    (most,) = loop.end(b.intrinsic("maximum", loop.values[0], value))
    whole = b.reduce_lanes("fmaximum", most)
    (size,) = b.choice(b.fcmp("olt", whole, 0.0), lambda: [b.fneg(whole)], lambda: [whole])
    b.give(size)
    return b.function("largest", [x, n], result="f32")


# The text.

LARGEST = """\
function @largest(ptr %x, i64 %n) → f32
  %t6 = for %t2 in 0 … %n step 8, carry %t1 = -inf f32x8, may skip:
    %p3 = address %x + %t2 f32
    %t4 = load f32x8 %p3 align 4
    %t5 = maximum f32x8 %t1, %t4
    yield %t5
  %t7 = reduce fmaximum f32x8 %t6
  %t8 = fcmp olt f32 %t7, 0.0
  %t10 = if %t8:
    %t9 = fneg f32 %t7
    yield %t9
  else:
    yield %t7
  return f32 %t10"""


def test_text_of_a_function() -> None:
    assert format_function(largest()) == LARGEST


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (Permute(V, V, None, (1, 0)), "%v = permute f32x8 %v by 1 0"),
        (Extract(F, V, N), "%f = extract f32x8 %v lane %n"),
        (Store(V, P, 4, nontemporal=True), "store f32x8 %v to %p align 4 nontemporal"),
        (Store(F, P, 4, mask=B), "store f32 %f to %p align 4 where %b"),
        (Compute(V, "select", (const("i1", (True, False) * 4, 8), V, V)), "%v = select f32x8 (10101010), %v, %v"),
        (Call(None, P, (N,)), "call %p(i64 %n)"),
        (Call(N, "f.part", (P, ONE)), "%n = call i64 @f.part(ptr %p, i64 1)"),
        (Repeat((), (), [], B, (), ()), "repeat:"),
        (Id(N, "parameter", ONE), "%n = id parameter 1"),
        (Barrier("block"), "barrier block"),
        (
            Mma((F, F, F, F), "f16", (N,) * 4, (N, N), (F,) * 4),
            "%f, %f, %f, %f = mma f16 (%n, %n, %n, %n) * (%n, %n) + (%f, %f, %f, %f)",
        ),
        (Reduce(F, "fadd", V, F, "reassoc"), "%f = reduce fadd reassoc f32x8 %v from %f"),
    ],
)
def test_text_of_nodes(node: Node, text: str) -> None:
    assert node_text(node) == text


def test_text_of_a_module_has_tables_and_all_functions() -> None:
    table = Table("numbers", tuple(const("i64", number) for number in range(10)))
    text = format_module(Module((Function("k", (), [], "entry", tables=(table,)),), (largest(),)))
    assert "entry function @k()\n  table @numbers: i64 0, i64 1" in text and "… 2 more" in text
    assert text.startswith(LARGEST)


# The checker.


def function(*nodes: Node, result: str = "", tables: Sequence[Table] = ()) -> Function:
    return Function("f", PARAMS, list(nodes), result=result, tables=tuple(tables))


def a_loop(
    *body: Node,
    index: Value | None = None,
    carried: Sequence[Value] = (),
    starts: Sequence[Value] = (),
    yields: Sequence[Value] = (),
    results: Sequence[Value] = (),
    step: int = 1,
) -> For:
    lists = [tuple(each) for each in (carried, starts, yields, results)]
    return For(index or param("i"), ZERO, N, step, lists[0], lists[1], list(body), lists[2], lists[3], True)


X, Y, W = param("x", "f32"), param("y", "f32"), Value("%w", "f32", 8)
WORD = const("i32", 1)
DEFINE_X = Compute(X, "fadd", (F, F))
FAULTS: dict[str, tuple[Function, str]] = {
    "used after its loop": (function(a_loop(DEFINE_X), Store(X, P, 4)), "%x is used outside the body that defines it"),
    "index used after its loop": (function(a_loop(), Store(param("i"), P, 8)), "%i is used outside the body"),
    "used in the other branch": (function(If(B, [DEFINE_X], [Store(X, P, 4)])), "%x is used outside the body"),
    "result of the wrong branch": (function(If(B, [DEFINE_X], [], (Y,), (F,), (X,))), "%x is used outside the body"),
    "used before": (function(Store(X, P, 4), DEFINE_X), "%x is used before it is defined"),
    "result used in its own loop": (
        function(a_loop(Store(Y, P, 4), carried=[X], starts=[F], yields=[X], results=[Y])), "%y is used before",
    ),
    "defined twice": (function(DEFINE_X, DEFINE_X), "%x is defined twice"),
    "defined in two bodies": (function(If(B, [DEFINE_X], [DEFINE_X])), "%x is defined twice"),
    "a parameter defined again": (function(Compute(F, "fadd", (F, F))), "%f is defined twice"),
    "used as another kind": (function(Store(Value("%f", "i32"), P, 4)), "%f is defined as f32 and used as i32"),
    "no register": (function(Compute(Value("x", "f32"), "fadd", (F, F))), "'x' of type f32 is no register"),
    "no such table": (function(Load(X, Value("@numbers", "ptr"), 4)), "@numbers is neither a table nor a function"),
    "lanes of operands": (function(Compute(W, "fadd", (V, F))), "this compute do not fit: f32x8, f32 → f32x8"),
    "kinds of operands": (function(Compute(X, "fadd", (F, const("f64", 1.0)))), "this compute do not fit"),
    "integers of floats": (function(Compute(X, "add", (F, F))), "this compute do not fit"),
    "number of operands": (function(Compute(X, "fma", (F, F))), "this compute do not fit"),
    "lanes of a condition": (function(Compute(W, "select", (B, V, V))), "this compute do not fit"),
    "result of a comparison": (function(Compute(X, "fcmp olt", (F, F))), "this compute do not fit"),
    "no such comparison": (function(Compute(param("c", "i1"), "icmp olt", (N, N))), "this compute do not fit"),
    "truncated to more": (function(Convert(param("j", "i128"), "trunc", N)), "this convert do not fit: i64 → i128"),
    "extended to less": (function(Convert(param("j", "i32"), "sext", N)), "this convert do not fit"),
    "bits of another size": (function(Convert(W, "bitcast", N)), "this convert do not fit"),
    "splat of a vector": (function(Splat(W, V)), "this splat do not fit"),
    "too few scalars": (function(Pack(Value("%w", "f32", 4), (F, F))), "this pack do not fit"),
    "a lane past the end": (function(Extract(X, V, 8)), "this extract do not fit"),
    "permuted past the end": (function(Permute(Value("%w", "f32", 2), V, None, (7, 8))), "this permute do not fit"),
    "reduced without a start": (function(Reduce(X, "fadd", V)), "this reduce do not fit"),
    "address of a number": (function(Address(param("q", "ptr"), N, "f32", ONE)), "this address do not fit"),
    "load from a number": (function(Load(X, N, 4)), "this load do not fit"),
    "store to a number": (function(Store(F, N, 4)), "this store do not fit"),
    "addresses and elements": (function(Load(W, Value("%p", "ptr", 4), 4)), "%p is defined as ptr and used as ptrx4"),
    "an odd alignment": (function(Load(X, P, 6)), "this load do not fit"),
    "a mask for another pointer": (function(Store(V, P, 4, mask=Value("%m", "i1", 8))), "%m is used before"),
    "bounds of another kind": (function(a_loop(index=param("i", "i32"))), "this for do not fit"),
    "no step": (function(a_loop(step=0)), "this for do not fit"),
    "carried of another type": (
        function(a_loop(carried=[X], starts=[V], yields=[X], results=[Y])), "this for do not fit",
    ),
    "nothing yielded": (function(a_loop(carried=[X], starts=[F], results=[Y])), "this for do not fit"),
    "results of branches": (function(If(B, [], [], (X,), (F,), (N,))), "this if do not fit"),
    "a condition that is a number": (function(If(N, [], [])), "this if do not fit"),
    "a number to go on by": (function(Repeat((), (), [], N, (), ())), "this repeat do not fit"),
    "a condition from outside the repeat's scope": (
        function(a_loop(Compute(param("c", "i1"), "or", (B, B))), Repeat((), (), [], param("c", "i1"), (), ())),
        "%c is used outside the body",
    ),
    "arguments": (function(Call(None, "f", (P,))), "@f takes (ptr, i64, f32, f32x8, i1) and returns nothing"),
    "a result where none is": (function(Call(X, "f", PARAMS)), "f32x8, i1) and returns nothing"),
    "a call of a number": (function(Call(None, N, ())), "this call do not fit"),
    "a return before the end": (function(Return(F), DEFINE_X, Return(F), result="f32"), "not the last node"),
    "a return in a loop": (function(a_loop(Return(F)), Return(F), result="f32"), "not the last node"),
    "no return": (function(DEFINE_X, result="f32"), "returns f32 ends with no return"),
    "a return of nothing": (function(Return(F)), "returns nothing ends with f32"),
    "a constant that does not fit": (function(Store(const("i8", 256), P, 1)), "256 is no constant of type i8"),
    "a fraction": (function(Compute(param("j"), "add", (N, const("i64", 0.5)))), "0.5 is no constant of type i64"),
    "numbers for other lanes": (function(Store(const("f32", (1.0, 2.0), 8), P, 4)), "no constant of type f32x8"),
    "a product of matrices that lacks words": (
        function(Mma((X, Y, param("z", "f32"), param("u", "f32")), "bf16", (WORD,) * 3, (WORD, WORD), (F,) * 4)),
        "this mma do not fit",
    ),
    "a product of matrices of wide floats": (
        function(Mma((X, Y, param("z", "f32"), param("u", "f32")), "f32", (WORD,) * 4, (WORD, WORD), (F,) * 4)),
        "this mma do not fit",
    ),
    "a barrier of nobody": (function(Barrier("host")), "this barrier do not fit"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_function_is_refused(name: str) -> None:
    broken, message = FAULTS[name]
    with pytest.raises(SmeltError) as error:
        check_module(Module((broken,)))
    assert error.value.code == "SM030" and message in str(error.value)
    assert "function @f breaks the loop form" in str(error.value)


def test_an_excerpt_shows_the_lines_round_a_fault() -> None:
    with pytest.raises(SmeltError) as error:
        check_function(function(a_loop(DEFINE_X), Store(X, P, 4)))
    assert str(error.value).splitlines()[-4:] == [
        "  function @f(ptr %p, i64 %n, f32 %f, f32x8 %v, i1 %b)",
        "    for %i in 0 … %n, may skip:",
        "      %x = fadd f32 %f, %f",
        ">   store f32 %x to %p align 4",
    ]


def test_functions_that_keep_the_rules_pass() -> None:
    check_function(largest())
    check_module(Module((function(Call(X, "largest", (P, N)), Store(X, P, 4)),), (largest(),)))
    check_function(function(Load(X, Value("@numbers", "ptr"), 4)))  # may be in its module
    with pytest.raises(SmeltError, match="two functions of a module are named @largest"):
        check_module(Module((largest(), largest())))


# The interpreter.


def computed(write: Callable[..., Value], *args: Any, kinds: Sequence[str] = ("i64",)) -> Any:
    """What a function returns that `write` writes, with parameters of these kinds."""
    b, params = Builder(describe_host()), [param(f"a{place}", kind) for place, kind in enumerate(kinds)]
    result = write(b, *params)
    b.give(result)
    module = Module((b.function("f", params, result=result.kind),))
    check_module(module)
    return run(module, "f", *args)


def binary(op: str, kind: str, *args: Any) -> Any:
    return computed(lambda b, *params: b.compute(op, kind, 1, *params), *args, kinds=[kind] * len(args))


@pytest.mark.parametrize(
    ("op", "kind", "a", "b", "result"),
    [
        ("add", "i8", 200, 100, 44), ("sub", "i16", 0, 1, 0xFFFF), ("mul", "i32", 1 << 31, 3, 1 << 31),
        ("udiv", "i8", 250, 7, 35), ("sdiv", "i8", 256 - 7, 2, 256 - 3), ("srem", "i8", 256 - 7, 2, 255),
        ("ashr", "i8", 0x80, 3, 0xF0), ("lshr", "i8", 0x80, 3, 0x10), ("shl", "i8", 0x81, 1, 2),
        ("smax", "i8", 255, 1, 1), ("umax", "i8", 255, 1, 255), ("smin", "i64", 5, 3, 3), ("xor", "i1", 1, 1, 0),
        ("fadd", "f32", 16777216.0, 1.0, 16777216.0), ("fadd", "f64", 16777216.0, 1.0, 16777217.0),
        ("fdiv", "f64", 1.0, -0.0, -math.inf), ("fmul", "f32", 2.0**100, 2.0**100, math.inf),
        ("copysign", "f32", 3.0, -0.0, -3.0),
    ],
)  # fmt: skip
def test_arithmetic(op: str, kind: str, a: Any, b: Any, result: Any) -> None:
    assert binary(op, kind, a, b) == result


@pytest.mark.parametrize("op", ["minimum", "maximum"])
def test_nan_wins_and_zeros_have_an_order(op: str) -> None:
    assert math.isnan(binary(op, "f32", math.nan, 1.0)) and math.isnan(binary(op, "f32", 1.0, math.nan))
    for pair in ((0.0, -0.0), (-0.0, 0.0)):
        assert math.copysign(1.0, binary(op, "f64", *pair)) == (-1.0 if op == "minimum" else 1.0)


@pytest.mark.parametrize(
    ("op", "number", "result"),
    [
        ("roundeven", 2.5, 2.0), ("roundeven", -0.4, -0.0), ("floor", -0.5, -1.0), ("floor", math.inf, math.inf),
        ("trunc", -1.7, -1.0), ("ceil", 0.2, 1.0), ("sqrt", 2.0, 1.4142135381698608), ("fneg", 0.0, -0.0),
        ("fabs", -3.0, 3.0),
    ],
)  # fmt: skip
def test_functions_of_one_number(op: str, number: float, result: float) -> None:
    actual = binary(op, "f32", number)
    assert actual == result and math.copysign(1.0, actual) == math.copysign(1.0, result)


@pytest.mark.parametrize(
    ("op", "kind", "a", "b", "message"),
    [
        ("udiv", "i32", 1, 0, "division by zero, in @f: %t1 = udiv i32"), ("srem", "i32", 1, 0, "division by zero"),
        ("shl", "i32", 1, 32, "a shift of i32 by 32"), ("ashr", "i8", 1, 255, "a shift of i8 by 255"),
        ("sdiv", "i8", 0x80, 0xFF, "-128 / -1 is no i8"),
    ],
)  # fmt: skip
def test_what_is_not_defined_is_a_fault(op: str, kind: str, a: int, b: int, message: str) -> None:
    with pytest.raises(Fault, match=message):
        binary(op, kind, a, b)


def bits(form: str, number: float) -> int:
    return int.from_bytes(struct.pack(form, number), "little")


@given(st.tuples(*[st.floats(width=32, allow_nan=False)] * 3))
def test_fma_of_float32_rounds_once(args: tuple[float, float, float]) -> None:
    fma = ctypes.CDLL(None).fmaf
    fma.restype, fma.argtypes = ctypes.c_float, [ctypes.c_float] * 3
    expected, actual = fma(*args), binary("fma", "f32", *args)
    assert bits("<f", actual) == bits("<f", expected) or (math.isnan(actual) and math.isnan(expected))


@given(st.tuples(*[st.floats(allow_nan=False)] * 3))
def test_fma_of_float64_rounds_once(args: tuple[float, float, float]) -> None:
    fma = ctypes.CDLL(None).fma
    fma.restype, fma.argtypes = ctypes.c_double, [ctypes.c_double] * 3
    expected, actual = fma(*args), binary("fma", "f64", *args)
    assert bits("<d", actual) == bits("<d", expected) or (math.isnan(actual) and math.isnan(expected))


def test_an_fma_with_an_infinite_addend_is_infinite() -> None:
    """Though the product alone, rounded to a double, would be infinite too, of the other sign."""
    assert binary("fma", "f64", 2.0**600, 2.0**600, -math.inf) == -math.inf


def test_an_fma_near_a_tie_is_not_rounded_twice() -> None:
    """The product is 2⁻²⁴ - 2⁻⁷⁰: less than half an ulp, but float64 cannot tell, and a tie would go up to even."""
    product, odd = (2.0**-12 * (1 + 2.0**-23), 2.0**-12 * (1 - 2.0**-23)), 1 + 2.0**-23
    assert ctypes.c_float(product[0] * product[1] + odd).value == 1 + 2.0**-22
    assert binary("fma", "f32", *product, odd) == odd


@pytest.mark.parametrize(
    ("op", "kind", "to", "number", "result"),
    [
        ("sext", "i8", "i32", 0x80, 0xFFFFFF80), ("zext", "i8", "i32", 0x80, 0x80), ("trunc", "i64", "i8", 0x1FF, 0xFF),
        ("sitofp", "i64", "f32", (1 << 64) - 3, -3.0),
        ("uitofp", "i64", "f32", (1 << 63) + (1 << 39) + 1, 2.0**63 + 2.0**40),  # by way of float64 it would be 2⁶³
        ("fptosi.sat", "f32", "i32", -1.9, 0xFFFFFFFF), ("fptosi.sat", "f32", "i32", 1e20, 0x7FFFFFFF),
        ("fptosi.sat", "f64", "i64", math.nan, 0), ("fptosi", "f32", "i32", -1.9, 0xFFFFFFFF),
        ("fptrunc", "f64", "f32", 0.1, 0.10000000149011612),
        ("fptrunc", "f32", "bf16", 1.00390625, 1.0), ("bitcast", "f32", "i32", -2.0, 0xC0000000),
        ("bitcast", "i16", "f16", 0x3C00, 1.0),
    ],
)  # fmt: skip
def test_conversions(op: str, kind: str, to: str, number: Any, result: Any) -> None:
    assert computed(lambda b, value: b.convert(op, value, to), number, kinds=[kind]) == result


def test_loops_branches_and_vectors() -> None:
    module, numbers = Module((largest(),)), [float(-place) - 1 for place in range(24)]
    memory = bytearray(struct.pack("<24f", *numbers))
    assert run(module, "largest", memory, 24) == 1.0
    assert run(module, "largest", (memory, 32), 16) == 9.0
    assert run(module, "largest", memory, 0) == math.inf


def test_a_loop_without_a_guard_runs_once() -> None:
    def count(b: Builder, n: Value) -> Value:
        loop = b.begin(ZERO, n, 2, [ZERO, ONE], guard=False)
        first, second = loop.values
        return b.add(*loop.end(second, b.add(first, second)))

    assert [computed(count, number) for number in (0, 2, 3, 8)] == [2, 2, 3, 8]


def test_repeat_goes_on_while_its_condition_is_true() -> None:
    def halved(b: Builder, n: Value) -> Value:
        def once(number: Value, steps: Value) -> tuple[Value, list[Value]]:
            half = b.lshr(number, 1)
            return b.icmp("ne", half, 0), [half, b.add(steps, 1)]

        return b.repeat([n, ZERO], once)[1]

    assert computed(halved, 1000) == 10


def test_lanes_are_moved_by_their_numbers() -> None:
    def moved(b: Builder, n: Value) -> Value:
        vector = b.gathered([b.add(n, place) for place in range(4)])
        other = b.permute(b.permute(vector, [3, 2, 5, 4], b.splat(n, 4)), [0, 4, 2, 3], b.const("i64", 100, 4))
        halves = b.reinterpret(other, "i32")
        return b.add(b.extract(other, 0), b.convert("zext", b.extract(halves, 2), "i64"))

    assert computed(moved, 7) == 10 + 100


def stored(kind: str, offset: int, align: int = 0) -> Module:
    b = Builder(describe_host())
    b.store(const(kind, 1), b.element(P, "i8", const("i64", offset)), align)
    return Module((b.function("f", [P]),))


@pytest.mark.parametrize(
    ("offset", "align", "message"),
    [
        (9, 1, "writes 4 bytes at 9 of argument 0, which has 12, in @f: store i32 1 to"),
        (-4, 1, "where no memory is"),
        (6, 4, "the address is 2 past a multiple of 4"),
    ],
)
def test_accesses_are_checked(offset: int, align: int, message: str) -> None:
    memory = bytearray(12)
    run(stored("i32", 8), "f", memory)
    assert memory == b"\0" * 8 + b"\1\0\0\0"
    with pytest.raises(Fault, match=message):
        run(stored("i32", offset, align), "f", memory)


def test_memory_on_the_stack_ends_with_its_function() -> None:
    inner, outer = Builder(describe_host(), "inner"), Builder(describe_host(), "outer")
    inner.give(inner.stack("room", "f32", 4, 16))
    place = outer.call("inner", result="ptr")
    outer.store(const("f32", 1.0), place)
    module = Module((inner.function("inner", [], result="ptr"), outer.function("f", [])))
    with pytest.raises(Fault, match="where no memory is"):
        run(module, "f")


def test_tables_are_read_and_not_written() -> None:
    table = Table("numbers", (const("i64", 7), const("f32", 1.5, 2)))
    at, second = Value("@numbers", "ptr"), param("second", "ptr")
    nodes: list[Node] = [Address(second, at, "i8", const("i64", 12)), Load(X, second, 4), Return(X)]
    assert run(Module((Function("f", (), nodes, result="f32", tables=(table,)),)), "f") == 1.5
    with pytest.raises(Fault, match="writes to @numbers"):
        run(Module((Function("f", (), [Store(ONE, at, 8)], tables=(table,)),)), "f")


def test_parallel_for_runs_all_chunks_in_workspaces_of_their_own() -> None:
    part, entry = Builder(describe_host()), Builder(describe_host())
    params = (param("buffers", "ptr"), param("mine", "ptr"), param("first"), param("last"), param("ends", "i1"))
    buffers, mine, first, last, ends = params
    part.store(first, mine)
    part.store(last, part.element(mine, "i64", 1))
    part.store(part.convert("zext", ends, "i64"), part.load(buffers, "ptr"))
    counts = [const("i64", number) for number in (3, 10, 16)]
    chunks = entry.call("smelt_parallel_for", Value("@part", "ptr"), P, param("w", "ptr"), N, *counts, result="i64")
    entry.give(chunks)
    module = Module((part.function("part", params), entry.function("f", (P, param("w", "ptr"), N), result="i64")))
    check_module(module)
    for threads, bounds in ((1, [(0, 10)]), (2, [(0, 5), (5, 10)]), (5, [(0, 3), (3, 6), (6, 10)])):
        ended, workspace = bytearray(8), bytearray(16 * len(bounds))
        assert run(module, "f", [ended], workspace, threads) == len(bounds)
        assert struct.unpack(f"<{2 * len(bounds)}q", workspace) == tuple(bound for pair in bounds for bound in pair)
        assert ended[0] == 1


# Grids.

S = Value("@words", SHARED)
THREAD = param("thread", "i32")
OUT = param("out", GLOBAL)


def a_grid(write: Callable[[Builder], None], threads: int = 64, cluster: int = 1) -> Module:
    b = Builder(describe_host())
    b.prologue.append(Id(THREAD, "thread"))
    write(b)
    function = b.function("g", [OUT], "grid")
    function.threads, function.cluster, function.shared = threads, cluster, (SharedArray("words", "i32", 0),)
    module = Module((function,))
    check_module(module)
    return module


def launched(module: Module, words: int, blocks: int = 1) -> list[int]:
    memory = bytearray(4 * words)
    run_grid(module, "g", memory, blocks=blocks, shared_bytes=256)
    return list(struct.unpack(f"<{words}i", memory))


def turned_round(b: Builder, *, waits: bool = True) -> None:
    """Thread t leaves its number for thread 63 - t."""
    b.store(THREAD, b.element(S, "i32", THREAD))
    if waits:
        b.body.append(Barrier("block"))
    word = b.load(b.element(S, "i32", b.sub(const("i32", 63), THREAD)), "i32")
    b.store(word, b.element(OUT, "i32", THREAD))


def test_threads_see_what_others_stored_before_a_barrier() -> None:
    assert launched(a_grid(turned_round), 64) == list(range(63, -1, -1))


def test_a_missing_barrier_is_a_race() -> None:
    with pytest.raises(Fault, match=r"threads \d+ and \d+ touch byte \d+ of @words without a barrier"):
        launched(a_grid(lambda b: turned_round(b, waits=False)), 64)


def test_a_barrier_of_a_warp_orders_its_own_threads_only() -> None:
    def write(b: Builder, apart: int) -> None:
        b.store(THREAD, b.element(S, "i32", THREAD))
        b.body.append(Barrier("warp"))
        word = b.load(b.element(S, "i32", b.xor(THREAD, const("i32", apart))), "i32")
        b.store(word, b.element(OUT, "i32", THREAD))

    assert launched(a_grid(lambda b: write(b, 31)), 64) == [thread ^ 31 for thread in range(64)]
    with pytest.raises(Fault, match="without a barrier"):
        launched(a_grid(lambda b: write(b, 32)), 64)


@pytest.mark.parametrize(
    ("mode", "by", "source"),
    [
        ("xor", 5, lambda lane: lane ^ 5),
        ("up", 3, lambda lane: lane - 3 if lane >= 3 else lane),
        ("from", 7, lambda lane: 7),
    ],
)
def test_shuffles_read_other_lanes(mode: str, by: int, source: Callable[[int], int]) -> None:
    def write(b: Builder) -> None:
        out = b.fresh("i32")
        b.body.append(Shuffle(out, b.mul(THREAD, 10), mode, const("i32", by)))
        b.store(out, b.element(OUT, "i32", THREAD))

    expected = [10 * (thread // 32 * 32 + source(thread % 32)) for thread in range(64)]
    assert launched(a_grid(write), 64) == expected


def test_a_warp_multiplies_matrices() -> None:
    """A of numbers by row and col, times a matrix that picks two of its columns, added to the lane's number."""
    lane = [divmod(thread, 4) for thread in range(32)]

    def word(low: float, high: float) -> int:
        return int.from_bytes(struct.pack("<2e", low, high), "little")

    def by_lane(b: Builder, words: list[int]) -> Value:
        b.store(THREAD, b.element(S, "i32", THREAD))  # any value: what is chosen is known by the lane
        value = const("i32", 0)
        for thread, each in enumerate(words):
            value = b.select(b.icmp("eq", THREAD, thread), const("i32", each), value)
        return value

    def write(b: Builder) -> None:
        rows, firsts = (0, 8, 0, 8), (0, 0, 8, 8)
        a = [
            by_lane(b, [word(16 * (g + row) + 2 * t + first, 16 * (g + row) + 2 * t + first + 1) for g, t in lane])
            for row, first in zip(rows, firsts, strict=True)
        ]
        other = [  # one where the term is twice the column
            by_lane(b, [word(*(float(2 * t + first + way == 2 * g) for way in (0, 1))) for g, t in lane])
            for first in (0, 8)
        ]
        sums = [b.convert("sitofp", THREAD, "f32")] * 4
        results = [b.fresh("f32") for _ in range(4)]
        b.body.append(Mma(tuple(results), "f16", tuple(a), tuple(other), tuple(sums)))
        for place, each in enumerate(results):
            at = b.add(b.mul(THREAD, 4), place)
            b.store(b.convert("fptosi.sat", each, "i32"), b.element(OUT, "i32", at))

    found = launched(a_grid(write, 32), 128)
    for thread, (g, t) in enumerate(lane):
        wanted = [16 * (g + row) + 2 * (2 * t + col) + thread for row in (0, 8) for col in (0, 1)]
        assert found[4 * thread : 4 * thread + 4] == wanted


def test_a_barrier_that_not_all_threads_reach_is_a_fault() -> None:
    def write(b: Builder) -> None:
        with b.when(b.icmp("slt", THREAD, 40)):
            b.body.append(Barrier("block"))

    with pytest.raises(Fault, match="thread 0 waits for others that do not come: barrier block"):
        launched(a_grid(write), 64)


def test_atomics_and_compare_exchange() -> None:
    def write(b: Builder) -> None:
        b.body.append(loops.Atomic("add", OUT, THREAD))
        second = b.element(OUT, "i32", 1)

        def attempt(old: Value) -> tuple[Value, list[Value]]:
            seen, was_stored = b.fresh("i32"), b.fresh("i1")
            b.body.append(loops.CompareExchange(seen, was_stored, second, old, b.intrinsic("smax", old, THREAD)))
            return b.not_(was_stored), [seen]

        b.repeat([b.load(second, "i32")], attempt)

    assert launched(a_grid(write), 2, blocks=3) == [3 * sum(range(64)), 63]


def test_blocks_of_a_cluster_read_each_others_shared_memory() -> None:
    def write(b: Builder, *, waits: bool) -> None:
        block, address = param("block", "i32"), param("there", loops.CLUSTER)
        b.prologue.append(Id(block, "block"))
        b.store(b.mul(block, 100), b.element(S, "i32", THREAD))
        b.body += [Barrier("cluster")] if waits else []
        own = b.element(S, "i32", THREAD)
        b.body.append(loops.Remote(address, own, b.xor(block, const("i32", 1))))
        b.store(b.load(address, "i32"), b.element(OUT, "i32", b.add(b.mul(block, 4), THREAD)))
        b.body += [Barrier("leave")] if waits else []

    assert launched(a_grid(lambda b: write(b, waits=True), 4, 2), 8, blocks=2) == [100] * 4 + [0] * 4
    with pytest.raises(Fault, match="without a barrier"):
        launched(a_grid(lambda b: write(b, waits=False), 4, 2), 8, blocks=2)
