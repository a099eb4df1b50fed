"""GPU schedules at their edges: every fold and dtype, NaN, empty axes, updates in place, places that data tells,
several loops with what they keep aside, long rows that many blocks share, sums that stay accurate."""

from typing import Any

import pytest
import torch

from smelt.codegen.gpu import grid_plan
from smelt.codegen.gpu.bodies.rows_body import Rows, RowsBody
from smelt.ir.kernel import Kernel
from smelt.ir.tensorspec import short_name
from tests.codegen.cpu.test_layouts import DTYPES
from tests.codegen.cpu.test_online_softmax import FOLDED, IN_PLACE, LOG_SOFTMAX, LOGSUMEXP
from tests.codegen.cpu.test_transpose_tiles import turned
from tests.codegen.gpu.running import build, same_as_reference, split_more
from tests.ir.kernels import COLUMN_SUM, LAYER_NORM, SOFTMAX, sized
from tests.kernel_reference import run_kernel
from tests.kernel_text import parse_kernel

NUMBERS = ["f64", "f32", "i64", "i32", "i16", "i8", "u8"]


@pytest.fixture
def split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many blocks share even short rows."""
    split_more(monkeypatch)


@pytest.fixture
def no_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a row stays in registers but its first tile."""
    monkeypatch.setattr(grid_plan, "_REGISTERS", 0)
    monkeypatch.setattr(grid_plan, "_MOST_TILES", 1)


# Folds.


def all_folds(op: str, dtype: str, rows: int, cols: int) -> Kernel:
    return parse_kernel(
        f"kernel k rows(i:{rows}) cols(j:{cols})\n in x: {dtype}[{rows * cols}]\n"
        f" out r: {dtype}[{rows}]\n out c: {dtype}[{cols}]\n out t: {dtype}[1]\n"
        f" loop:\n a = load x[{cols}*i + j]\n m = reduce {op} a\n"
        f" accumulate {op} c[j] = a\n accumulate {op} t[0] = a\n row:\n store r[i] = m"
    )


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", NUMBERS)
def test_every_fold_of_numbers(op: str, dtype: str) -> None:
    same_as_reference(all_folds(op, dtype, 5, 21), (4, 32))


@pytest.mark.parametrize("op", ["any", "all"])
def test_every_fold_of_bools(op: str) -> None:
    for rows, cols in ((5, 21), (3, 64)):
        same_as_reference(all_folds(op, "bool", rows, cols))


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
def test_folds_of_columns_alone(op: str) -> None:
    """The kernel is turned: its rows are what is kept."""
    for rows, cols in ((40, 64), (33, 5), (7, 1), (1, 9), (200, 3)):
        kernel = parse_kernel(
            f"kernel k rows(i:{rows}) cols(j:{cols})\n in x: f32[{rows * (cols + 1)}]\n out c: f32[{cols}]\n"
            f" out d: f32[{cols}]\n"
            f" loop:\n a = load x[{cols + (cols == 1)}*i + j]\n accumulate {op} c[j] = a\n"
            " b = mul a, a : f32\n accumulate sum d[j] = b"
        )
        same_as_reference(kernel)


def test_folds_of_rows_alone() -> None:
    """In stages that run once a row, with cols that nothing of this depends on, and with none."""
    for cols in ("", "j:5"):
        same_as_reference(
            parse_kernel(
                f"kernel k rows(a:6, i:9) cols({cols})\n in x: f32[54]\n out c: f32[6]\n row:\n"
                " v = load x[9*a + i]\n accumulate sum c[a] = v"
            )
        )


@pytest.mark.parametrize("op", ["max", "min", "sum"])
def test_nan_wins_folds(op: str) -> None:
    kernel = parse_kernel(
        f"kernel k rows(i:2) cols(j:37)\n in x: f32[74]\n out r: f32[2]\n out c: f32[37]\n"
        f" loop:\n a = load x[37*i + j]\n m = reduce {op} a\n accumulate {op} c[j] = a\n row:\n store r[i] = m"
    )
    built = build(kernel, 8)
    x = torch.randn(2, 37)
    for column in range(37):
        bad = x.clone()
        bad[1, column] = float("nan")
        rows, cols = torch.zeros(2), torch.zeros(37)
        built.run([bad, rows, cols])
        assert rows.isnan().tolist() == [False, True]
        assert cols.isnan().nonzero().flatten().tolist() == [column]


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), -0.0])
def test_special_values_go_through_long_sums(value: float) -> None:
    kernel = parse_kernel(sized(COLUMN_SUM, 3, 700))
    for place in (0, 1, 699):
        x = torch.randn(3, 700)
        x[1, place] = value
        same_as_reference(kernel, (4, 8), given=[x.reshape(-1), torch.zeros(700), torch.zeros(1)])


# Empty axes, and those of one.


@pytest.mark.parametrize(("rows", "cols"), [(0, 5), (5, 0), (0, 0), (1, 1), (1, 5), (5, 1)])
@pytest.mark.parametrize("op", ["sum", "max", "prod"])
def test_empty_and_single_axes(rows: int, cols: int, op: str) -> None:
    same_as_reference(
        parse_kernel(
            f"kernel k rows(i:{rows}) cols(j:{cols})\n in x: f32[{rows * cols + 64}]\n out y: f32[{rows * cols + 64}]\n"
            f" out r: f32[{rows}]\n out c: f32[{cols}]\n out t: f32[1]\n out u: f32[1]\n loop:\n a = load x[7*i + j]\n"
            f" m = reduce {op} a\n accumulate {op} c[j] = a\n accumulate {op} t[0] = a\n store y[7*i + j] = a\n"
            f" row:\n store r[i] = m\n accumulate {op} u[0] = m"
        )
    )


# Updates in place.


@pytest.mark.parametrize("cols", [1, 5, 8, 13, 64, 100])
@pytest.mark.parametrize("rows", [1, 3, 80])
def test_update_in_place_runs_every_point_once(rows: int, cols: int) -> None:
    index = f"{cols}*i + j" if cols > 1 else "i + j"
    same_as_reference(
        parse_kernel(
            f"kernel k rows(i:{rows}) cols(j:{cols})\n inout x: f32[{rows * cols}]\n loop:\n"
            f" a = load x[{index}]\n one = const 1.0 : f32\n b = add a, one : f32\n store x[{index}] = b"
        )
    )


@pytest.mark.parametrize("cols", [3, 40, 700])
def test_what_a_row_updates_is_read_by_all_of_its_threads_first(cols: int) -> None:
    """Whoever is first stores the new number: the others may come later, and are to compute with the old one."""
    text = f"""kernel k rows(i:5) cols(j:{cols})
      in x: f32[{5 * cols}]
      inout r: f32[5]
      inout q: f32[5]
      out y: f32[{5 * cols}]
      row:
        old = load r[i]
      loop:
        a = load x[{cols}*i + j]
        s = reduce sum a
        past = load q[i]
        b = mul a, past : f32
        store y[{cols}*i + j] = b
      row:
        new = add old, s : f32
        store r[i] = new
        older = load q[i]
        newer = add older, new : f32
        store q[i] = newer
      loop:
        c = load x[{cols}*i + j]
        d = load y[{cols}*i + j]
        e = fma c, newer, d : f32
        store y[{cols}*i + j] = e
    """
    same_as_reference(parse_kernel(text), orders=("forward", "reverse", "shuffled"), rtol=2e-5)


def test_columns_that_update_what_they_read() -> None:
    """Neighbouring threads along rows, whose warps share the cols."""
    text = """kernel k rows(i:40) cols(j:90)
      in x: f32[3600]
      inout r: f32[40]
      out y: f32[3600]
      loop:
        a = load x[i + 40*j]
        old = load r[i]
        b = mul a, old : f32
        store y[i + 40*j] = b
      row:
        zero = const 0.0 : f32
        store r[i] = zero
    """
    kernel = parse_kernel(text)
    rows = build(kernel, 8).plan.phases[0]
    assert isinstance(rows, Rows) and rows.along_rows
    same_as_reference(kernel, orders=("forward", "reverse", "shuffled"))


# Layouts and dtypes.


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64", "i8", "bool"])
@pytest.mark.parametrize(("rows", "cols"), [(16, 16), (129, 16), (40, 70), (3, 200), (200, 3)])
def test_transposes(rows: int, cols: int, dtype: str) -> None:
    same_as_reference(turned(rows, cols, dtype), (4, 32))
    same_as_reference(turned(rows, cols, dtype, pitch=rows + 3), (8,))


@pytest.mark.parametrize("cols", [2, 16, 37, 200])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8"])
def test_flipped_reads_and_writes(cols: int, dtype: str) -> None:
    last = cols - 1
    head = f"kernel k rows(i:3) cols(j:{cols})\n in x: {dtype}[{3 * cols}]\n out y: {dtype}[{3 * cols}]\n loop:\n"
    same_as_reference(parse_kernel(f"{head} a = load x[{cols}*i - j + {last}]\n store y[{cols}*i + j] = a"), (8,))
    same_as_reference(parse_kernel(f"{head} a = load x[{cols}*i + j]\n store y[{cols}*i - j + {last}] = a"), (8,))


@pytest.mark.parametrize("dtype", list(dict.fromkeys(DTYPES)), ids=str)
@pytest.mark.parametrize("cols", [64, 4096])
def test_vectors_of_all_dtypes(dtype: torch.dtype, cols: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several at once, with another dtype beside that has other widths."""
    monkeypatch.setattr(grid_plan, "_ENOUGH_BLOCKS", 1)
    name = short_name(dtype)
    kernel = parse_kernel(
        f"kernel k rows(i:8) cols(j:{cols})\n in x: {name}[{8 * cols}]\n in w: f32[{cols}]\n"
        f" out y: {name}[{8 * cols}]\n out z: f32[{8 * cols}]\n loop:\n"
        f" a = load x[{cols}*i + j]\n store y[{cols}*i + j] = a\n b = cast a : f32\n"
        f" c = load w[j]\n d = add b, c : f32\n store z[{cols}*i + j] = d"
    )
    assert build(kernel, 8).plan.phases[0].width > 1
    same_as_reference(kernel)


def test_narrow_floats_are_stored_rounded() -> None:
    for narrow in ("bf16", "f16"):
        for cols in (37, 64):
            same_as_reference(
                parse_kernel(
                    f"kernel k rows(i:3) cols(j:{cols})\n in x: {narrow}[{3 * cols}]\n"
                    f" out y: {narrow}[{3 * cols}]\n out s: {narrow}[{cols}]\n out r: {narrow}[3]\n loop:\n"
                    f" a = load x[{cols}*i + j]\n b = cast a : f32\n c = mul b, b : f32\n"
                    f" d = cast c : {narrow}\n store y[{cols}*i + j] = d\n accumulate sum s[j] = c\n t = reduce sum c\n"
                    f" row:\n u = cast t : {narrow}\n store r[i] = u"
                )
            )


def test_folds_over_several_cols() -> None:
    same_as_reference(
        parse_kernel(
            "kernel k rows(i:3) cols(a:5, b:19)\n in x: f32[310]\n out r: f32[3]\n out pa: f32[5]\n out pb: f32[19]\n"
            " loop:\n v = load x[100*i + 20*a + b]\n s = reduce sum v\n"
            " accumulate sum pa[a] = v\n accumulate max pb[b] = v\n"
            " row:\n store r[i] = s"
        )
    )


@pytest.mark.parametrize("kept", ["b", "i", "j", "b j", "i j", ""])
@pytest.mark.parametrize("reduced", [False, True])
def test_folds_that_keep_some_rows_and_cols(kept: str, reduced: bool) -> None:
    """With a fold of the row beside it, nothing can be turned: what is folded is kept aside."""
    sizes = {"b": 3, "i": 10, "j": 21}
    names = kept.split()
    place, size = [], 1
    for name in reversed(names):
        place.insert(0, f"{size}*{name}" if size > 1 else name)
        size *= sizes[name]
    fold = f" accumulate sum c[{' + '.join(place) or 0}] = v\n"
    text = f"kernel k rows(b:3, i:10) cols(j:21)\n in x: f32[630]\n out c: f32[{size}]\n"
    if reduced:
        text += f" out r: f32[30]\n loop:\n v = load x[210*b + 21*i + j]\n{fold} m = reduce max v\n row:\n"
        text += " store r[10*b + i] = m"
    else:
        text += f" loop:\n v = load x[210*b + 21*i + j]\n{fold}"
    same_as_reference(parse_kernel(text))


# Places that depend on data, and positions.


@pytest.mark.parametrize("by", ["a row", "a point", "both"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i64", "bool"])
@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (3, 5), (7, 64), (40, 100)])
def test_places_that_only_running_tells(by: str, dtype: str, rows: int, cols: int) -> None:
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
    same_as_reference(parse_kernel(text), (8,))


def test_huge_places_read_nothing_outside() -> None:
    kernel = parse_kernel(
        "kernel k rows(i:6) cols(j:9)\n in x: f32[54]\n in p: i64[6]\n out y: f32[54]\n loop:\n a = load p[i]\n"
        " v = gather x[j] by 9*a below 6\n store y[9*i + j] = v"
    )
    places = torch.tensor([2**62, -(2**62), -(2**63), 2**63 - 1, 3, 6])
    same_as_reference(kernel, given=[torch.randn(54), places, torch.zeros(54)])


def test_positions_past_32_bits() -> None:
    """They are numbers, not places in a buffer: small buffers do not say that they are small."""
    kernel = parse_kernel(
        "kernel k rows(i:9) cols(j:7)\n out y: i64[63]\n loop:\n p = position 900000000*i - 800000000*j + 5\n"
        " store y[7*i + j] = p"
    )
    same_as_reference(kernel)


# Several loops, rows that are stored, and what is kept aside.


FORMS = {
    "softmax": SOFTMAX, "in place": IN_PLACE, "folded": FOLDED, "log softmax": LOG_SOFTMAX, "logsumexp": LOGSUMEXP,
    "layer norm": LAYER_NORM, "column sum": COLUMN_SUM,
}  # fmt: skip


@pytest.mark.parametrize("cols", [7, 64, 333])
@pytest.mark.parametrize("form", FORMS)
def test_rows_in_memory(form: str, cols: int, no_registers: None) -> None:
    same_as_reference(parse_kernel(sized(FORMS[form], 3, cols)))


@pytest.mark.parametrize("cols", [64, 333, 1000])
@pytest.mark.parametrize("form", FORMS)
def test_rows_that_blocks_share(form: str, cols: int, split: None) -> None:
    kernel = parse_kernel(sized(FORMS[form], 2, cols))
    assert len(build(kernel, 4).plan.phases) > 2
    same_as_reference(kernel, (4, 8))


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_the_usual_thresholds_that_blocks_share(form: str) -> None:
    kernel = parse_kernel(sized(FORMS[form], 2, 100_003))
    assert len(build(kernel, 8).plan.phases) > 2
    same_as_reference(kernel, (8,), rtol=1e-5)


SEVERAL_ROW_STAGES = """
kernel k rows(i:{rows}) cols(j:{cols})
  in x: f32[{total}]
  in w: f32[{rows}]
  out y: f32[{total}]
  out early: f32[{rows}]
  out late: f32[{rows}]
  scratch e: f32[{cols}]
  scratch f: f32[{cols}]
  row:
    a = load w[i]
    store early[i] = a
  row:
    two = const 2.0 : f32
    b = mul a, two : f32
  loop:
    v0 = load x[{cols}*i + j]
    v1 = mul v0, b : f32
    store e[j] = v1
    store f[j] = v0
    m = reduce max v1
    n = reduce min v0
  row:
    c = sub m, n : f32
  row:
    d = add c, b : f32
    store late[i] = d
  loop:
    v2 = load e[j]
    v3 = load f[j]
    v4 = fma v2, d, v3 : f32
    store e[j] = v4
    s = reduce sum v4
  loop:
    v5 = load e[j]
    back = load late[i]
    v6 = add v5, back : f32
    v7 = add v6, s : f32
    store y[{cols}*i + j] = v7
"""


@pytest.mark.parametrize("cols", [5, 64, 500])
def test_several_stages_of_rows(cols: int) -> None:
    same_as_reference(parse_kernel(sized(SEVERAL_ROW_STAGES, 3, cols)), rtol=1e-5)


def test_several_stages_of_rows_that_blocks_share(split: None) -> None:
    text = sized(SEVERAL_ROW_STAGES, 3, 500).replace("    back = load late[i]\n", "").replace("v5, back", "v5, d")
    kernel = parse_kernel(text)
    assert len(build(kernel, 4).plan.phases) > 3
    same_as_reference(kernel, (4, 8), rtol=1e-5)


@pytest.mark.parametrize(("rows", "cols"), [(2000, 8), (5000, 3), (3000, 64)])
def test_columns_that_blocks_share(rows: int, cols: int, split: None) -> None:
    """Turned, then split along what were rows; the last part is shorter than the others."""
    text = (
        f"kernel k rows(i:{rows}) cols(j:{cols})\n in x: f32[{rows * cols}]\n out c: f32[{cols}]\n out d: f32[{cols}]\n"
        f" loop:\n a = load x[{cols}*i + j]\n accumulate sum c[j] = a\n accumulate max d[j] = a"
    )
    kernel = parse_kernel(text)
    assert len(build(kernel, 4).plan.phases) == 2
    same_as_reference(kernel)


@pytest.mark.parametrize("rows, cols", [(3001, 64), (2900, 128), (5003, 32)])
def test_masks_only_the_last_turn_of_a_part(
    rows: int, cols: int, split: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    whole_turns = RowsBody._whole_turns

    def seen(body: RowsBody, *args: Any) -> Any:
        found.append(whole_turns(body, *args))
        return found[-1]

    monkeypatch.setattr(RowsBody, "_whole_turns", seen)
    text = (
        f"kernel k rows(i:{rows}) cols(j:{cols})\n in x: f32[{rows * cols}]\n out c: f32[{cols}]\n out d: f32[{cols}]\n"
        f" loop:\n a = load x[{cols}*i + j]\n accumulate sum c[j] = a\n accumulate max d[j] = a"
    )
    same_as_reference(parse_kernel(text))
    assert any(each is not None for each in found)


def test_more_folds_than_shared_memory_has_room_for() -> None:
    """Eight at once along rows, sixteen warps: each array is 16 KiB, and a block has 48."""
    count = 6
    names = range(count)
    head = "kernel k rows(i:900) cols(j:256)\n in x: bf16[230400]\n" + "".join(f" out c{n}: f32[256]\n" for n in names)
    body = " loop:\n v = load x[256*i + j]\n w = cast v : f32\n" + "".join(
        f" k{n} = const {n}.0 : f32\n a{n} = add w, k{n} : f32\n"
        f" accumulate {'sum' if n % 2 else 'max'} c{n}[j] = a{n}\n"
        for n in names
    )
    kernel = parse_kernel(head + body)
    built = build(kernel, 32)
    assert all(phase.shared_bytes <= 48 << 10 for phase in built.code.phases)
    same_as_reference(kernel, (32,), orders=("forward", "reverse", "shuffled"))


# Accuracy.


@pytest.mark.parametrize(("rows", "cols"), [(2, 100_003), (1, 9001), (100_003, 2), (20_000, 128)])
def test_long_sums_stay_accurate(rows: int, cols: int) -> None:
    """Their error does not grow with the length: within two ulp of the sum of sizes, in float32."""
    built = build(parse_kernel(sized(COLUMN_SUM, rows, cols)), 32)
    x = torch.rand(rows, cols) + 1
    out, total = torch.zeros(cols), torch.zeros(1)
    built.run([x, out, total])
    torch.testing.assert_close(out.double(), x.double().sum(0), rtol=2e-7, atol=0)
    torch.testing.assert_close(total.double(), x.double().sum().reshape(1), rtol=2e-7, atol=0)


ROW_SUM = """
kernel k rows(i:{rows}) cols(j:{cols})
  in x: f32[{total}]
  out y: f32[{rows}]
  loop:
    a = load x[{cols}*i + j]
    s = reduce sum a
  row:
    store y[i] = s
"""


@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize("kind", ["equal", "uniform", "normal"])
@pytest.mark.parametrize("cols", [1000, 8192, 1_000_000])
def test_sums_are_as_accurate_as_eager(cols: int, kind: str, splits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every addition of a row of equal numbers may round the same way: nothing averages out."""
    if not splits:
        monkeypatch.setattr(grid_plan, "_WORTH_SPLITTING", 1 << 40)
    rows = 4 if cols > 10_000 else 50
    torch.manual_seed(0)
    drawn = torch.randn(rows, cols) if kind == "normal" else torch.rand(rows, 1 if kind == "equal" else cols)
    x, y = drawn.expand(-1, cols).contiguous(), torch.empty(rows)
    built = build(parse_kernel(sized(ROW_SUM, rows, cols)), 32)
    assert (len(built.plan.phases) > 1) is (splits and cols > 10_000)
    built.run([x, y])
    truth = x.double().sum(1)
    scale = x.double().abs().sum(1)
    mine, eager = (((result.double() - truth) / scale).abs().max() for result in (y, x.sum(1)))
    assert mine <= 2 * eager + 4 * torch.finfo(torch.float32).eps


def test_the_same_bits_each_time(split: None) -> None:
    kernel = parse_kernel(sized(COLUMN_SUM, 101, 300))
    built = build(kernel, 8)
    x = torch.randn(101, 300)
    results = []
    for order in ("forward", "reverse", "shuffled"):
        out, total = torch.zeros(300), torch.zeros(1)
        built.run([x, out, total], order)  # type: ignore[arg-type]
        results.append((out, total))
    assert all(torch.equal(out, results[0][0]) and torch.equal(total, results[0][1]) for out, total in results)
    want = [x, torch.zeros(300), torch.zeros(1)]
    run_kernel(kernel, want)
    torch.testing.assert_close(results[0][0], want[1], rtol=1e-5, atol=1e-5)
