"""Each rule of the kernel form, by a kernel or program that breaks just that one."""

import re
from dataclasses import replace

import pytest
import torch

from smelt.base.errors import SpecError
from smelt.ir import check_kernel as check
from smelt.ir import check_program
from smelt.ir.check_kernel import KERNEL_RULES, check_kernel
from smelt.ir.check_kernel import check_program as check_whole
from smelt.ir.kernel import Kernel, KernelGroup
from smelt.ir.program import Launch, Library, Operand, Place, Program, ProgramBuffer
from smelt.ir.tensorspec import TensorSpec
from tests.kernel_text import parse_kernel

GOOD = """
kernel good rows(i:4) cols(j:8)
  in x: f32[32]
  in h: bf16[8]
  out y: f32[32]
  out total: f32[8]
  inout z: f32[32]
  in places: i64[4]
  inout sums: f32[24]
  scratch e: f32[8]
  loop:
    a = load x[8*i + j]
    n = load h[j]
    w = cast n : f32
    b = mul a, w : f32
    store e[j] = b
    s = reduce sum b
    accumulate sum total[j] = b
  row:
    one = const 1.0 : f32
    r = add s, one : f32
    at = load places[i]
  loop:
    c = load e[j]
    d = mul c, r : f32
    up = scan sum d along j
    far = gather x[j] by 8*at below 4
    store y[8*i + j] = d
    scatter sum sums[j] by 8*at below 3 = d
    old = load z[8*i + j]
    new = add old, d : f32
    store z[8*i + j] = new
"""

ATTENTION = """
kernel attention rows(h:2, i:4) cols(j:8)
  in q: f32[24]
  in k: f32[48]
  in v: f32[80]
  out y: f32[40]
  out l: f32[8]
  loop:
    s = contract (e:3) q[12*h + 3*i + e], k[24*h + 3*j + e] : f32
    p, m = softmax s
    weighted sum (d:5) y[20*h + 5*i + d] = p * v[40*h + 5*j + d] : f32
  row:
    store l[4*h + i] = m
"""

RECURRENT = """
kernel recurrent rows(i:4) cols(j:8)
  in x: f32[96]
  in w: f32[64]
  out y: f32[96]
  scratch h: f32[8]
  loop:
    c = const 0.0 : f32
    store h[j] = c
  steps(t:3):
    p = contract (k:8) h[k], w[8*j + k] : f32
    v = load x[8*i + 32*t + j]
    u = add v, p : f32
    store y[8*i + 32*t + j] = u
    store h[j] = u
"""

# rule → (line of GOOD, ATTENTION or RECURRENT, what it becomes)
BROKEN: dict[str, tuple[str, str]] = {
    "axes": ("rows(i:4) cols(j:8)", "rows(i:4, k:1, k:1) cols(j:8)"),
    "buffers": ("in h: bf16[8]", "in h: bf16[8]\n  in h: bf16[8]"),
    "buffers known": ("old = load z[8*i + j]", "old = load z[8*i + j]\n    unknown = load q[j]"),
    "defined once": ("c = load e[j]", "c = load e[j]\n    c = load e[j]"),
    "visible": ("d = mul c, r : f32", "d = mul c, b : f32"),
    "operands": ("b = mul a, w : f32", "b = mul a, w : f32\n    odd = and a, w : f32"),
    "narrow floats": ("w = cast n : f32", "w = cast n : f32\n    nn = neg n : bf16"),
    "constants": ("one = const 1.0 : f32", "one = const 1.0 : f32\n    two = const 300 : u8"),
    "index axes": ("one = const 1.0 : f32", "one = const 1.0 : f32\n    p = position j"),
    "bounds": ("a = load x[8*i + j]", "a = load x[8*i + j + 1]"),
    "gathers": ("far = gather x[j] by 8*at below 4", "far = gather z[j] by 8*at below 4"),
    "scratch columns": ("scratch e: f32[8]", "scratch e: f32[8]\n  scratch g: f32[32]"),
    "inputs kept": ("store y[8*i + j] = d", "store y[8*i + j] = d\n    store x[8*i + j] = d"),
    "outputs written": ("out y: f32[32]", "out y: f32[32]\n  out never: f32[1]"),
    "read back": ("old = load z[8*i + j]", "old = load z[8*i + j]\n    away = load z[j]"),
    "stores": ("new = add old, d : f32", "new = add old, d : f32\n    dd = cast d : f64\n    store y[8*i + j] = dd"),
    "stores apart": ("store y[8*i + j] = d", "store y[8*i + j] = d\n    store y[4*i + j] = d"),
    "reduce in loop": ("r = add s, one : f32", "r = add s, one : f32\n    rr = reduce sum s"),
    "scans": ("up = scan sum d along j", "up = scan sum d along i"),
    "fold dtypes": ("s = reduce sum b", "s = reduce sum b\n    q = reduce any b"),
    "scatters": ("inout sums: f32[24]", "out sums: f32[24]"),
    "accumulate": ("store y[8*i + j] = d", "store y[8*i + j] = d\n    store total[0] = d"),
    "rows left out": ("store e[j] = b", "store e[j] = b\n    accumulate sum each[8*i + j] = b"),
    "contractions": ("c = load e[j]", "c = load e[j]\n    p = contract (k:8) x[8*i + k], x[j] : f32"),
    "steps": ("    store h[j] = c\n", ""),
    "softmax": ("p, m = softmax s", "p, m = softmax s\n    pp = softmax s"),
    "weighted sums": ("y[20*h + 5*i + d] = p", "y[20*h + 4*i + d] = p"),
}


def broken(rule: str) -> Kernel:
    old, new = BROKEN[rule]
    good = next(text for text in (GOOD, ATTENTION, RECURRENT) if old in text)
    assert old in good
    text = good.replace(old, new)
    if rule == "rows left out":
        text = text.replace("  out total", "  out each: f32[32]\n  out total")
    if rule == "scratch columns":
        text = text.replace("store e[j] = b", "store e[j] = b\n    store g[8*i + j] = b")
    return parse_kernel(text)


def test_good_kernel_passes() -> None:
    check_kernel(parse_kernel(GOOD))
    check_kernel(parse_kernel(ATTENTION))
    check_kernel(parse_kernel(RECURRENT))


@pytest.mark.parametrize(
    ("line", "becomes", "fault"),
    [
        ("steps(t:3):\n", "steps(i:3):\n", "two axes are named i"),
        ("load x[8*i + 32*t + j]", "load x[8*i + 48*t + j]", "positions 0 to 127 of a buffer of 96"),
        ("store y[8*i + 32*t + j] = u", "store y[8*i + j] = u", "leaves out axis t"),
        ("load x[8*i + 32*t + j]", "load y[8*i + 32*t + j]", "y is read before"),
        ("store h[j] = c\n", "store h[j] = c\n    z = load x[8*i + 32*t + j]\n", "no axis t runs here"),
    ],
)
def test_steps(line: str, becomes: str, fault: str) -> None:
    assert line in RECURRENT
    with pytest.raises(SpecError, match=re.escape(fault)):
        check_kernel(parse_kernel(RECURRENT.replace(line, becomes)))


@pytest.mark.parametrize(
    ("line", "becomes", "fault"),
    [
        ("p * v[40*h + 5*j + d] : f32", "p * v[40*h + 5*j + d] : f64", "v is f32: it is not summed in f64"),
        ("y[20*h + 5*i + d] = p", "y[160*h + 40*i + 5*j + d] = p", "the index leaves no axis out"),
        ("out y: f32[40]", "inout y: f32[40]", "y is no output"),
        ("p * v[40*h", "p * w[40*h", "there is no buffer w"),
        ("out y: f32[40]", "out y: f32[39]", "positions 0 to 39 of a buffer of 39"),
        ("in v: f32[80]", "in v: f32[79]", "positions 0 to 79 of a buffer of 79"),
        ("in v: f32[80]", "in v: i32[80]", "v is i32: it is not summed in f32"),
        ("store l[4*h + i] = m", "store l[4*h + i] = p", "p is not visible here"),
        ("store l[4*h + i] = m", "store l[4*h + i] = m\n  row:\n    o = const 1 : i32", "the only one of its kernel"),
        ("p, m = softmax s", "p, m = softmax s\n    r = reduce sum s", "no other fold stands beside a contraction"),
        ("p, m = softmax s", "p, m = softmax s\n    m = const 1 : i32", "m is defined twice"),
    ],
)
def test_what_is_weighed(line: str, becomes: str, fault: str) -> None:
    assert line in ATTENTION
    text = ATTENTION.replace(line, becomes)
    if "5*j + d] = p" in becomes:
        text = text.replace("out y: f32[40]", "out y: f32[320]")
    with pytest.raises(SpecError, match=re.escape(fault)):
        check_kernel(parse_kernel(text))


def test_every_rule_has_a_case() -> None:
    assert set(BROKEN) == set(KERNEL_RULES)


@pytest.mark.parametrize("rule", BROKEN)
def test_rule_finds_its_fault(rule: str) -> None:
    faults = list(KERNEL_RULES[rule](broken(rule)))
    assert faults
    with pytest.raises(SpecError, match="SM022"):
        check_kernel(broken(rule))


@pytest.mark.parametrize("rule", sorted(set(BROKEN) - {"accumulate"}))
def test_nothing_else_finds_it(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a rule cannot be dropped without a test that fails."""
    monkeypatch.delitem(KERNEL_RULES, rule)
    check_kernel(broken(rule))


def test_powers_are_of_floats() -> None:
    text = (
        "kernel k rows(i:4) cols(j:8)\n in x: {0}[32]\n out y: {0}[32]\n"
        " loop:\n a = load x[8*i + j]\n b = scan logaddexp a along j\n store y[8*i + j] = b"
    )
    check_kernel(parse_kernel(text.format("f64")))
    with pytest.raises(SpecError, match="logaddexp does not fold i64"):
        check_kernel(parse_kernel(text.format("i64")))


def test_accumulate_owns_its_buffer() -> None:
    faults = [fault for _, fault in KERNEL_RULES["accumulate"](broken("accumulate"))]
    assert faults == ["total is written elsewhere too"]


def test_accumulate_leaves_rows_out() -> None:
    kernel = parse_kernel(
        "kernel k rows(i:4) cols(j:8)\n in x: f32[32]\n out y: f32[4]\n"
        " loop:\n a = load x[8*i + j]\n accumulate sum y[i] = a"
    )
    with pytest.raises(SpecError, match="leaves no row axis out"):
        check_kernel(kernel)


def test_unknown_operation_arity_and_mixed_operands() -> None:
    def operand_fault(line: str) -> str:
        text = f"kernel k rows() cols()\n in x: f32[1]\n in n: i32[1]\n row:\n a = load x[0]\n b = load n[0]\n {line}"
        return next(iter(fault for _, fault in KERNEL_RULES["operands"](parse_kernel(text))), "")

    assert operand_fault("c = frobnicate a : f32") == "there is no operation frobnicate"
    assert operand_fault("c = add a : f32") == "add takes 2 operands"
    assert operand_fault("c = add a, b : f32") == "operands of add differ: f32, i32"
    assert operand_fault("c = lt a, a : f32") == "lt of f32 gives bool"
    assert operand_fault("c = where a, b, b : i32") == "where chooses by a bool, not by f32"
    assert operand_fault("c = exp b : i32") == "exp is not defined on i32"
    assert operand_fault("c = add b, b : i32") == ""


def test_fault_shows_the_lines_round_it() -> None:
    with pytest.raises(SpecError) as caught:
        check_kernel(broken("visible"), after="some pass")
    text = str(caught.value)
    assert 'kernel good breaks rule "visible" after some pass: b is not visible here' in text
    assert ">     d = mul c, b : f32" in text
    assert "c = load e[j]" in text


# Programs.

CPU = torch.device("cpu")
ADD = parse_kernel(
    "kernel add rows() cols(j:8)\n in x: f32[8]\n out y: f32[8]\n"
    " loop:\n a = load x[j]\n b = add a, a : f32\n store y[j] = b"
)


def spec(size: int, dtype: torch.dtype = torch.float32) -> TensorSpec:
    return TensorSpec((size,), (1,), dtype, CPU)


def elsewhere(size: int) -> TensorSpec:
    return replace(spec(size), device=torch.device("cuda", 0))


def whole(name: str, size: int = 8) -> Operand:
    return Operand(name, (size,), (1,))


PROGRAM = Program(
    name="p",
    buffers=(
        ProgramBuffer("x", spec(8), Place.INPUT),
        ProgramBuffer("c", spec(8), Place.CONSTANT),
        ProgramBuffer("t", spec(8), Place.ARENA, 0),
        ProgramBuffer("u", spec(8), Place.ARENA, 32),
        ProgramBuffer("y", spec(8), Place.FRESH),
        ProgramBuffer("l", spec(8), Place.LIBRARY),
    ),
    inputs=("x",),
    constants=(("c", torch.zeros(8)),),
    steps=(
        Launch(ADD, ("x", "t")),
        Library(torch.ops.aten.mul.Tensor, (whole("t"), whole("c")), (), ("l",)),
        Launch(ADD, ("t", "u")),
        Library(torch.ops.aten.add.out, (whole("u"), whole("l")), (), ("y",), ("out",)),
    ),
    outputs=(whole("y"), None),
    arena_bytes=64,
)


def with_buffer(name: str, buffer: ProgramBuffer) -> Program:
    return replace(PROGRAM, buffers=tuple(buffer if old.name == name else old for old in PROGRAM.buffers))


def with_step(number: int, *steps: Launch | Library) -> Program:
    return replace(PROGRAM, steps=PROGRAM.steps[:number] + steps + PROGRAM.steps[number + 1 :])



def group(*args: str, second: Kernel = ADD) -> Launch:
    return Launch(KernelGroup("both", (ADD, second)), args)


BROKEN_PROGRAMS: dict[str, list[Program]] = {
    "buffers": [
        replace(PROGRAM, buffers=(*PROGRAM.buffers, ProgramBuffer("x", spec(8), Place.INPUT))),
        replace(PROGRAM, buffers=(*PROGRAM.buffers, ProgramBuffer("q", spec(8), Place.INPUT))),
        replace(PROGRAM, buffers=(*PROGRAM.buffers, ProgramBuffer("q", spec(8), Place.CONSTANT))),
    ],
    "defined": [
        replace(PROGRAM, steps=PROGRAM.steps[1:2] + PROGRAM.steps[:1] + PROGRAM.steps[2:]),
        replace(PROGRAM, steps=PROGRAM.steps[:3]),
        with_step(0, Launch(ADD, ("nowhere", "t"))),
    ],
    "arguments": [
        with_step(0, Launch(ADD, ("x",)), Launch(ADD, ("x", "t"))),
        with_buffer("x", ProgramBuffer("x", spec(8, torch.float64), Place.INPUT)),
        with_buffer("x", ProgramBuffer("x", spec(7), Place.INPUT)),
    ],
    "distinct": [
        with_step(2, Launch(ADD, ("t", "u")), Launch(ADD, ("u", "u"))),
        with_step(2, Launch(ADD, ("t", "u")), group("u", "u", "x", "t")),
    ],
    "groups": [
        with_step(2, group("t", "u", "x", "t")),  # one reads what the other writes
        with_step(2, group("x", "t", "t", "u")),
        with_step(2, group("t", "u", "x", "u")),  # both write
        with_step(2, group("t", "u", "x", "y", second=replace(ADD, target="simt-host"))),
    ],
    "views": [replace(PROGRAM, outputs=(Operand("y", (8,), (1,), 1),))],
    "results": [
        with_step(2, Launch(ADD, ("t", "u")), Launch(ADD, ("t", "c"))),
        with_step(2, Launch(ADD, ("t", "u")), Launch(ADD, ("t", "l"))),
    ],
    "arena": [
        replace(PROGRAM, arena_bytes=63),
        with_buffer("u", ProgramBuffer("u", spec(8), Place.ARENA, 31)),
        with_buffer("u", ProgramBuffer("u", spec(8), Place.ARENA, 28)),
        replace(PROGRAM, buffers=(*PROGRAM.buffers, ProgramBuffer("v", elsewhere(8), Place.ARENA, 0))),
    ],
    "one device": [with_buffer("x", ProgramBuffer("x", elsewhere(8), Place.INPUT))],
    "outputs leave": [replace(PROGRAM, outputs=(whole("u"),))],
}


def test_good_program_passes() -> None:
    check_whole(PROGRAM)
    check_whole(with_step(2, group("t", "u", "t", "y")))  # what both read is passed twice


def test_every_program_rule_has_a_case() -> None:
    assert set(BROKEN_PROGRAMS) == set(check_program.PROGRAM_RULES) == set(check.PROGRAM_RULES)


@pytest.mark.parametrize(("rule", "program"), [(rule, each) for rule, all_ in BROKEN_PROGRAMS.items() for each in all_])
def test_program_rule_finds_its_fault(rule: str, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing else finds it, so no rule can be dropped without a test that fails."""
    with pytest.raises(SpecError, match=f'rule "{rule}"'):
        check_whole(program)
    monkeypatch.delitem(check.PROGRAM_RULES, rule)
    check_whole(program)


def test_program_checks_its_kernels() -> None:
    bad = replace(ADD, stages=ADD.stages * 2)
    with pytest.raises(SpecError, match="defined once"):
        check_whole(with_step(0, Launch(bad, ("x", "t"))))


def test_reuse_of_the_arena_after_death_is_allowed() -> None:
    reuse = replace(
        PROGRAM,
        buffers=(*PROGRAM.buffers, ProgramBuffer("v", spec(8), Place.ARENA, 0)),
        steps=(*PROGRAM.steps, Launch(ADD, ("x", "v"))),
    )
    check_whole(reuse)
