"""Kernels of every shape, compiled, against the reference interpreter, on one, two and three threads."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import smelt
from smelt.base.options import Options
from smelt.codegen import compile_kernels
from smelt.codegen.cpu import schedule
from smelt.codegen.cpu.schedule_passes import plan
from smelt.device import find
from smelt.ir.kernel import (
    Accumulate,
    Axis,
    Buffer,
    Cast,
    Compute,
    Const,
    Index,
    Instruction,
    Kernel,
    Load,
    Position,
    Reduce,
    Reduction,
    Role,
    Stage,
    Store,
)
from smelt.symbolic.shapes import contiguous_stride, product
from tests.codegen.running import call
from tests.ir.kernels import COLUMN_SUM, LAYER_NORM, SOFTMAX, sized
from tests.kernel_reference import run_kernel
from tests.kernel_text import parse_kernel


def filled(buffer: Buffer, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if buffer.dtype.is_floating_point:
        return torch.randn(buffer.size, generator=generator).to(buffer.dtype)
    high = 2 if buffer.dtype is torch.bool else 50
    return torch.randint(0, high, (buffer.size,), generator=generator).to(buffer.dtype)


def same_as_reference(kernel: Kernel, threads: tuple[int, ...] = (1, 2, 3), *, repeats: bool = False) -> None:
    """Compile, run on random memory, and compare every element of every buffer with what the interpreter leaves.

    Values are about one in size, so a sum of n of them is off by a few roundings of numbers about √n in size. With
    `repeats`, points read the same elements, and their sums are about n in size.
    """
    allowed = 5e-7 * max(4, kernel.row_count * kernel.col_count) ** (1 if repeats else 0.5)
    compiled = compile_kernels([kernel], Options(check_specs=True))[kernel.name]
    given = [filled(buffer, seed) for seed, buffer in enumerate(kernel.parameters)]
    want = [tensor.clone() for tensor in given]
    run_kernel(kernel, want)
    for count in threads:
        got = [tensor.clone() for tensor in given]
        call(compiled, got, count)
        for buffer, mine, reference in zip(kernel.parameters, got, want, strict=True):
            where = f"buffer {buffer.name}, {count} threads"
            torch.testing.assert_close(
                mine, reference, rtol=2e-6, atol=allowed, equal_nan=True, msg=partial("{}: {}".format, where)
            )


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share out even the smallest kernel between threads."""
    monkeypatch.setattr(schedule, "GRAIN", 1)


SIZES = [(1, 2), (3, 7), (5, 8), (2, 31), (70, 33), (3, 1000)]


@pytest.mark.parametrize(("rows", "cols"), SIZES)
@pytest.mark.parametrize("text", [SOFTMAX, LAYER_NORM, COLUMN_SUM])
def test_row_kernels(text: str, rows: int, cols: int, busy: None) -> None:
    kernel = parse_kernel(sized(text, rows, cols))
    same_as_reference(replace(kernel, name=f"{kernel.name}_{rows}_{cols}_busy"))


def pointwise(name: str, axes: tuple[int, ...], in_stride: tuple[int, ...], rows: int, offset: int = 0) -> Kernel:
    """`y = exp(x) + position`, y dense, x strided; the first `rows` axes are rows."""
    names = [f"a{number}" for number in range(len(axes))]
    every = tuple(Axis(n, size) for n, size in zip(names, axes, strict=True))
    dense = contiguous_stride(axes)

    def index(strides: tuple[int, ...], start: int = 0) -> Index:
        return Index(tuple((n, s) for n, s in zip(names, strides, strict=True) if s), start)

    reach = [s * (size - 1) for s, size in zip(in_stride, axes, strict=True) if size]
    low, high = sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach)
    body: tuple[Instruction, ...] = (
        Load("x", "in0", index(in_stride, offset - low)),
        Compute("e", "exp", ("x",), torch.float32),
        Position("p", index(dense)),
        Cast("q", "p", torch.float32),
        Compute("r", "add", ("e", "q"), torch.float32),
        Store("out0", index(dense), "r"),
    )
    buffers = (
        Buffer("in0", torch.float32, high - low + offset + 1, Role.INPUT),
        Buffer("out0", torch.float32, product(axes), Role.OUTPUT),
    )
    return Kernel(name, every[:rows], every[rows:], buffers, (Stage(True, body),))


POINTWISE = [
    ((), ()), ((1,), (1,)), ((7,), (1,)), ((7,), (0,)), ((9,), (-1,)), ((33,), (3,)), ((0,), (1,)), ((4, 0), (1, 1)),
    ((4, 6), (6, 1)), ((4, 6), (1, 4)), ((5, 1, 7), (7, 0, 1)), ((3, 4, 5), (0, 5, 1)), ((3, 4, 5), (20, 0, 1)),
    ((2, 3, 40), (0, 0, 1)), ((2, 3, 40), (3, 1, 6)), ((3, 700), (1, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("axes", "stride"), POINTWISE)
def test_pointwise_layouts(axes: tuple[int, ...], stride: tuple[int, ...], busy: None) -> None:
    for rows in range(len(axes) + 1):
        same_as_reference(pointwise(f"p{rows}", axes, stride, rows, offset=2))


@pytest.mark.parametrize("cols", [1, 5, 8, 13, 64, 100])
@pytest.mark.parametrize("rows", [1, 3, 80])
def test_update_in_place_runs_every_point_once(rows: int, cols: int, busy: None) -> None:
    index = f"{cols}*i + j" if cols > 1 else "i + j"
    same_as_reference(
        parse_kernel(
            f"kernel k rows(i:{rows}) cols(j:{cols})\n inout x: f32[{rows * cols}]\n loop:\n"
            f" a = load x[{index}]\n one = const 1.0 : f32\n b = add a, one : f32\n store x[{index}] = b"
        )
    )


@pytest.mark.parametrize("cols", [1000, 1024, 2000, 8192, 50000])
@pytest.mark.parametrize("summed", [lambda x: x.sum(1), lambda x: (x * x).mean(1)], ids=["sum", "mean of squares"])
def test_sums_of_equal_numbers_keep_their_digits(summed: Callable[[torch.Tensor], torch.Tensor], cols: int) -> None:
    """Every addition of a row may round the same way: nothing averages out."""
    torch.manual_seed(0)
    x = torch.rand(200, 1).expand(-1, cols).contiguous()
    truth = summed(x.double())
    mine, eager = (((result.double() - truth) / truth).abs().max() for result in (smelt.compile(summed)(x), summed(x)))
    assert mine <= 2 * eager + 4 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "i64", "i32", "i16", "u8"])
def test_every_fold_of_numbers(op: str, dtype: str, busy: None) -> None:
    same_as_reference(
        parse_kernel(
            f"kernel k rows(i:5) cols(j:21)\n in x: {dtype}[105]\n"
            f" out r: {dtype}[5]\n out c: {dtype}[21]\n out t: {dtype}[1]\n"
            f" loop:\n a = load x[21*i + j]\n m = reduce {op} a\n accumulate {op} c[j] = a\n accumulate {op} t[0] = a\n"
            " row:\n store r[i] = m"
        )
    )


@pytest.mark.parametrize("op", ["any", "all"])
def test_every_fold_of_bools(op: str, busy: None) -> None:
    same_as_reference(
        parse_kernel(
            f"kernel k rows(i:5) cols(j:21)\n in x: bool[105]\n out r: bool[5]\n out c: bool[21]\n out t: bool[1]\n"
            f" loop:\n a = load x[21*i + j]\n m = reduce {op} a\n accumulate {op} c[j] = a\n accumulate {op} t[0] = a\n"
            " row:\n store r[i] = m"
        )
    )


@pytest.mark.parametrize("op", ["max", "min", "sum"])
def test_nan_wins_folds(op: str) -> None:
    kernel = parse_kernel(
        f"kernel k rows(i:2) cols(j:37)\n in x: f32[74]\n out r: f32[2]\n out c: f32[37]\n"
        f" loop:\n a = load x[37*i + j]\n m = reduce {op} a\n accumulate {op} c[j] = a\n row:\n store r[i] = m"
    )
    compiled = compile_kernels([kernel], Options())["k"]
    x = torch.randn(2, 37)
    for column in range(37):
        bad = x.clone()
        bad[1, column] = float("nan")
        rows, cols = torch.zeros(2), torch.zeros(37)
        call(compiled, [bad, rows, cols])
        assert rows.isnan().tolist() == [False, True]
        assert cols.isnan().nonzero().flatten().tolist() == [column]


PARTIAL = [
    ((3, 4), (0,)), ((3, 4), (1,)), ((20, 3), (0,)), ((3, 20), (1,)),
    ((2, 3, 4), (0, 2)), ((5, 6, 4), (0, 1)), ((0, 3), (1,)),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "named"), PARTIAL)
@pytest.mark.parametrize("cols_named", [True, False])
def test_folds_over_some_rows(rows: tuple[int, ...], named: tuple[int, ...], cols_named: bool, busy: None) -> None:
    """The output has the named row axes and, if said, the columns."""
    cols = 11
    names = [f"i{number}" for number in range(len(rows))]
    strides = contiguous_stride((*rows, cols))
    kept = [number for number in range(len(rows)) if number in named]
    shape = [rows[number] for number in kept] + ([cols] if cols_named else [])
    out_names = [names[number] for number in kept] + (["j"] if cols_named else [])
    out = Index(tuple(zip(out_names, contiguous_stride(shape), strict=True)))
    body: tuple[Instruction, ...] = (
        Load("x", "x", Index((*zip(names, strides[:-1], strict=True), ("j", 1)))),
        Accumulate("y", "sum", out, "x"),
    )
    buffers = (
        Buffer("x", torch.float32, product(rows) * cols, Role.INPUT),
        Buffer("y", torch.float32, product(shape), Role.OUTPUT),
    )
    axes = tuple(Axis(name, size) for name, size in zip(names, rows, strict=True))
    same_as_reference(Kernel("k", axes, (Axis("j", cols),), buffers, (Stage(True, body),)))


def test_folds_over_several_cols(busy: None) -> None:
    same_as_reference(
        parse_kernel(
            "kernel k rows(i:3) cols(a:5, b:19)\n in x: f32[310]\n out r: f32[3]\n out pa: f32[5]\n out pb: f32[19]\n"
            " loop:\n v = load x[100*i + 20*a + b]\n s = reduce sum v\n"
            " accumulate sum pa[a] = v\n accumulate max pb[b] = v\n"
            " row:\n store r[i] = s"
        )
    )


def test_narrow_floats_are_stored_rounded(busy: None) -> None:
    for narrow in ("bf16", "f16"):
        same_as_reference(
            parse_kernel(
                f"kernel k rows(i:3) cols(j:37)\n in x: {narrow}[111]\n"
                f" out y: {narrow}[111]\n out s: {narrow}[37]\n loop:\n"
                " a = load x[37*i + j]\n b = cast a : f32\n c = mul b, b : f32\n"
                f" d = cast c : {narrow}\n store y[37*i + j] = d\n accumulate sum s[j] = c"
            )
        )


@pytest.mark.parametrize(("rows", "cols"), [(2, 100_003), (1, 9001), (100_003, 2)])
def test_long_sums_stay_accurate(rows: int, cols: int) -> None:
    """Their error does not grow with the length: within two ulp of the sum of sizes, in float32."""
    kernel = parse_kernel(sized(COLUMN_SUM, rows, cols))
    x = torch.rand(rows, cols) + 1
    out, total = torch.zeros(cols), torch.zeros(1)
    for threads in (1, 2):
        call(compile_kernels([kernel], Options())["column_sum"], [x, out, total], threads)
        torch.testing.assert_close(out.double(), x.double().sum(0), rtol=1.5e-7, atol=0)
        torch.testing.assert_close(total.double(), x.double().sum().reshape(1), rtol=1.5e-7, atol=0)


def test_same_threads_same_bits(busy: None) -> None:
    kernel = parse_kernel(sized(COLUMN_SUM, 101, 13))
    compiled = compile_kernels([replace(kernel, name="busy_sum")], Options())["busy_sum"]
    x = torch.randn(101, 13)
    results = []
    for _ in range(20):
        out, total = torch.zeros(13), torch.zeros(1)
        call(compiled, [x, out, total], 3)
        results.append((out, total))
    assert all(torch.equal(out, results[0][0]) and torch.equal(total, results[0][1]) for out, total in results)


@pytest.mark.parametrize("by", ["a row", "a point", "both"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i64", "bool"])
@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (3, 5), (7, 64), (40, 100)])
def test_places_that_only_running_tells(by: str, dtype: str, rows: int, cols: int, busy: None) -> None:
    """Places go from -20 to 29: some are in range, and those that are not are held within."""
    at = {
        "a row": ("load p[i]", f"x[j] by {cols}*at below {rows}"),
        "a point": (f"load q[{cols}*i + j]", f"x[{cols}*i] by 1*at below {cols}"),
        "both": (f"load q[{cols}*i + j]", f"x[0] by {cols}*low below {rows}, 1*at below {cols}"),
    }[by]
    text = f"""kernel k rows(i:{rows}) cols(j:{cols})
      in x: {dtype}[{rows * cols}]
      in p: i64[{rows}]
      in q: i64[{rows * cols}]
      out y: {dtype}[{rows * cols}]
      loop:
        any = {at[0]}
        twenty = const 20 : i64
        at = sub any, twenty : i64
        low = neg at : i64
        v = gather {at[1]}
        store y[{cols}*i + j] = v
    """
    same_as_reference(parse_kernel(text))


def test_many_threads_and_few_rows(busy: None) -> None:
    same_as_reference(parse_kernel(sized(SOFTMAX, 2, 9)), threads=(1, 5, 64))
    same_as_reference(parse_kernel(sized(COLUMN_SUM, 3, 9)), threads=(1, 7, 64))


def test_the_next_row_of_one_array_is_asked_for_where_a_row_takes_several_passes() -> None:
    ahead = replace(find("cpu"), prefetch_next_row=True)
    norm = parse_kernel(sized(LAYER_NORM, 40, 1000))
    assert [load.buffer for load in plan(norm, ahead).fetched] == ["x"]
    assert not plan(norm, replace(ahead, prefetch_next_row=False)).fetched
    assert not plan(parse_kernel(sized(LAYER_NORM, 40, 30)), ahead).fetched
    softmax = plan(parse_kernel(sized(SOFTMAX, 40, 1000)), ahead).kernel
    assert schedule.asking(softmax) is softmax.stages[1]  # its exp leaves memory more time than the loop after it
    two = parse_kernel(
        "kernel k rows(i:9) cols(j:500)\n in x: f32[4500]\n in y: f32[4500]\n out z: f32[4500]\n loop:\n"
        " a = load x[500*i + j]\n b = load y[500*i + j]\n c = mul a, b : f32\n s = reduce sum c\n loop:\n"
        " d = load x[500*i + j]\n e = sub d, s : f32\n store z[500*i + j] = e"
    )
    assert [load.buffer for load in plan(two, ahead).fetched] == ["x"]
    same_as_reference(norm)


# Kernels nobody thought of.


@st.composite
def kernels(draw: st.DrawFn) -> Kernel:
    """A random chain of stages over random axes: loads with any strides, reductions, scratch, folds over rows."""
    rows = tuple(Axis(f"r{n}", size) for n, size in enumerate(draw(st.lists(st.integers(0, 6), max_size=3))))
    cols = tuple(Axis(f"c{n}", size) for n, size in enumerate(draw(st.lists(st.integers(0, 40), max_size=2))))
    axes = rows + cols
    buffers: list[Buffer] = []
    stages: list[Stage] = []
    lasting: list[str] = []

    def dense(over: tuple[Axis, ...]) -> Index:
        order = draw(st.permutations(range(len(over))))
        strides = [0] * len(over)
        step = 1
        for number in order:
            strides[number] = step
            step *= max(1, over[number].size)
        return Index(tuple((axis.name, stride) for axis, stride in zip(over, strides, strict=True)))

    def loaded(out: str, over: tuple[Axis, ...]) -> Load:
        terms = []
        low = high = 0
        for axis in over:
            stride = draw(st.sampled_from([0, 1, 1, 2, -1, 7]))
            if stride:
                terms.append((axis.name, stride))
                reach = stride * max(0, axis.size - 1)
                low, high = low + min(0, reach), high + max(0, reach)
        name = f"in{len(buffers)}"
        buffers.append(Buffer(name, torch.float32, high - low + 1, Role.INPUT))
        return Load(out, name, Index(tuple(terms), -low))

    for number in range(draw(st.integers(1, 3))):
        loop = draw(st.booleans()) or number == 0
        over = axes if loop else rows
        body: list[Instruction] = [loaded(f"x{number}", over), Const(f"k{number}", 0.5, torch.float32)]
        visible = [f"x{number}", f"k{number}", *lasting]
        for step in range(draw(st.integers(1, 4))):
            op = draw(st.sampled_from(["add", "mul", "maximum", "tanh", "sin", "sub"]))
            args = tuple(draw(st.sampled_from(visible)) for _ in range(1 if op in ("tanh", "sin") else 2))
            body.append(Compute(f"v{number}_{step}", op, args, torch.float32))
            visible.append(f"v{number}_{step}")
        value = visible[-1]
        if loop and draw(st.booleans()):
            op_name: Reduction = draw(st.sampled_from(["sum", "max", "min"]))
            body.append(Reduce(f"s{number}", op_name, value))
        if loop and draw(st.booleans()):
            body.append(Store(f"scratch{number}", dense(cols), value))
            body.append(Load(f"l{number}", f"scratch{number}", body[-1].index))  # type: ignore[union-attr]
            buffers.append(Buffer(f"scratch{number}", torch.float32, product(a.size for a in cols), Role.SCRATCH))
        kept = tuple(axis for axis in over if draw(st.booleans()))
        if rows and not set(rows) <= set(kept) and draw(st.booleans()):
            body.append(Accumulate(f"fold{number}", draw(st.sampled_from(["sum", "max"])), dense(kept), value))
            buffers.append(Buffer(f"fold{number}", torch.float32, product(a.size for a in kept), Role.OUTPUT))
        body.append(Store(f"out{number}", dense(over), value))
        buffers.append(Buffer(f"out{number}", torch.float32, product(a.size for a in over), Role.OUTPUT))
        stages.append(Stage(loop, tuple(body)))
        lasting += [i.out for i in body if isinstance(i, Reduce) or (not loop and isinstance(i, Compute))]
    return Kernel("random", rows, cols, tuple(buffers), tuple(stages))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(kernels(), st.sampled_from([1, 1 << 16]))
def test_random_kernels(kernel: Kernel, grain: int) -> None:
    axes = {axis.name for axis in kernel.rows + kernel.cols}
    repeats = any(isinstance(i, Load) and not axes <= i.index.axes for i in kernel.instructions())
    before, schedule.GRAIN = schedule.GRAIN, grain
    try:
        same_as_reference(replace(kernel, name=f"random_{grain}"), repeats=repeats)
    finally:
        schedule.GRAIN = before
