"""Maxima and sums of powers of long rows in one pass: found where they may be, the same numbers whatever the rows."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import smelt
from smelt.base.options import Options
from smelt.codegen import build, compile_kernels
from smelt.codegen.cpu import schedule, schedule_passes
from smelt.codegen.cpu import target as cpu
from smelt.codegen.cpu.addresses import Workspace
from smelt.codegen.cpu.online_softmax import BLOCK, REFERENCES, WORTH
from smelt.codegen.cpu.schedule import LoopSchedule
from smelt.codegen.cpu.schedule_passes import plan
from smelt.ir.kernel import Kernel
from tests.codegen.cpu import test_kernels, test_sizes
from tests.ir.kernels import SOFTMAX, sized
from tests.kernel_text import parse_kernel

INF, NAN = float("inf"), float("nan")
LOWEST = torch.finfo(torch.float32).min

IN_PLACE = SOFTMAX.replace("  scratch e: f32[{cols}]\n", "").replace("e[j]", "y[{cols}*i + j]")
LOG_SOFTMAX = """
kernel log_softmax rows(i:{rows}) cols(j:{cols})
  in x: f32[{total}]
  out y: f32[{total}]
  loop:
    v0 = load x[{cols}*i + j]
    m = reduce max v0
  loop:
    v1 = load x[{cols}*i + j]
    v2 = sub v1, m : f32
    v3 = exp v2 : f32
    s = reduce sum v3
  row:
    l = log s : f32
  loop:
    v4 = load x[{cols}*i + j]
    v5 = sub v4, m : f32
    v6 = sub v5, l : f32
    store y[{cols}*i + j] = v6
"""
LOGSUMEXP = """
kernel logsumexp rows(i:{rows}) cols(j:{cols})
  in x: f32[{total}]
  out y: f32[{rows}]
  row:
    inf = const inf : f32
    zero = const 0.0 : f32
  loop:
    v0 = load x[{cols}*i + j]
    m = reduce max v0
  row:
    a = abs m : f32
    b = eq a, inf : bool
    r = where b, zero, m : f32
  loop:
    v1 = load x[{cols}*i + j]
    v2 = sub v1, r : f32
    v3 = exp v2 : f32
    s = reduce sum v3
  row:
    l = log s : f32
    v4 = add l, r : f32
    store y[i] = v4
"""
FOLDED = SOFTMAX.replace("  out y: f32[{total}]\n", "  out y: f32[{cols}]\n  out z: f32[{rows}]\n").replace(
    "    store y[{cols}*i + j] = v5\n",
    "    accumulate sum y[j] = v5\n    q = mul v5, v5 : f32\n    t = reduce sum q\n  row:\n    store z[i] = t\n",
)
FORMS = {
    "put aside": (SOFTMAX, True),
    "put where the result goes": (IN_PLACE, True),
    "folded further": (FOLDED, True),
    "read again": (LOG_SOFTMAX, False),
    "relative to a chosen number": (LOGSUMEXP, False),
}
# The least there is, whole blocks, whole vectors, and neither; vectors have 4 to 64 elements.
WIDTHS = [8193, 8256, 8320, 12288, 12289, 12351, 16384]


def planned(kernel: Kernel) -> LoopSchedule:
    return plan(kernel, cpu.describe_host())


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_equals_the_reference(form: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "GRAIN", 1)  # on several threads, each with its references
    text, aside = FORMS[form]
    kernel = parse_kernel(sized(text, 3, width))
    made = planned(kernel)
    assert made.online is not None and (made.online.third is not None) is aside
    assert (REFERENCES in Workspace.of_loops(made).places) is aside
    test_kernels.same_as_reference(kernel)


def test_as_many_blocks_as_there_may_be() -> None:
    """Their references end where the workspace does, as `call` makes sure."""
    test_kernels.same_as_reference(parse_kernel(sized(SOFTMAX, 2, 300 * BLOCK + 7)), (1,))


def test_the_next_block_is_asked_for_while_powers_are_computed() -> None:
    target = replace(cpu.describe_host(), prefetch_distance=256)  # which a loop for itself would ask for
    kernel = parse_kernel(sized(LOGSUMEXP, 3, 16384))
    lines = [line for line in build.module_text([kernel], target).splitlines() if "call" in line or "getelem" in line]
    asked = [number for number, line in enumerate(lines) if "call void @llvm.prefetch" in line]
    assert len(asked) == plan(kernel, target).lanes * 4 // 64
    assert f"i64 {4 * BLOCK}" in "".join(lines[asked[0] - 2 : asked[0]])


def test_loops_carry_what_is_theirs() -> None:
    """The first its maxima, the second its sums and what it reads early, the third nothing."""
    target = replace(cpu.describe_host(), hoist_loads_over_stores=True)
    kernel = parse_kernel(sized(SOFTMAX, 3, 16384))
    lanes = plan(kernel, target).lanes
    assert build.module_text([kernel], target).count(f"phi <{lanes} x float>") == 3


def test_powers_below_a_chosen_number_are_below_the_maximum_of_their_block() -> None:
    """So their exp need not be bounded above, nor scaled twice."""
    chosen, plain = (
        build.module_text([parse_kernel(sized(text, 3, 16384))], cpu.describe_host())
        for text in (LOGSUMEXP, LOG_SOFTMAX)
    )
    for operation in ("fmul", "llvm.minimum", "llvm.minnum"):
        assert chosen.count(operation) == plain.count(operation)


OTHERWISE = {
    "powers that are left behind": (IN_PLACE, "    store y[{cols}*i + j] = v5\n", "    store w[{cols}*i + j] = v5\n"),
    "powers read twice": (SOFTMAX, "    v5 = div v4, s", "    v9 = load e[j]\n    v5 = div v9, s"),
    "powers left beside the result": (
        IN_PLACE.replace("out y: f32[{total}]", "out y: f32[34000]"),
        "    store y[{cols}*i + j] = v5\n",
        "    store y[{cols}*i + j + 17000] = v5\n",
    ),
    "powers read where they are made": (
        IN_PLACE,
        "    s = reduce sum v3\n  loop:\n    v4 = load y",
        "    v9 = load y[{cols}*i + j]\n    s = reduce sum v3\n  loop:\n    v4 = load x",
    ),
    "powers put in two places": (SOFTMAX, "store e[j] = v3", "store e[j] = v3\n    store w[{cols}*i + j] = v3"),
    "powers put where something else was": (
        SOFTMAX,
        "  loop:\n    v0 = load x[{cols}*i + j]\n",
        "  loop:\n    v = load x[{cols}*i + j]\n    store e[j] = v\n  loop:\n    v0 = load e[j]\n",
    ),
    "other things put aside": (SOFTMAX, "store e[j] = v3", "store e[j] = v2"),
    "something put over them": (SOFTMAX, "  loop:\n    v4 =", "  loop:\n    store e[j] = zero\n  loop:\n    v4 ="),
    "the maximum of something else": (SOFTMAX, "m = reduce max v0", "n = neg v0 : f32\n    m = reduce max n"),
    "a minimum": (SOFTMAX, "reduce max", "reduce min"),
    "a product": (LOG_SOFTMAX, "reduce sum", "reduce prod"),
    "powers of something else": (SOFTMAX, "v3 = exp v2", "v9 = add v2, v1 : f32\n    v3 = exp v9"),
    "powers of the other sign": (SOFTMAX, "sub v1, m", "sub m, v1"),
    "powers of two": (LOG_SOFTMAX, "exp v2", "exp2 v2"),
    "a distance from something else": (LOGSUMEXP, "where b, zero, m", "where b, zero, a"),
    "a second sum": (SOFTMAX, "    s = reduce sum v3", "    s = reduce sum v3\n    t = reduce sum v2"),
    "another use of the maximum": (LOG_SOFTMAX, "s = reduce sum v3", "v9 = neg m : f32\n    s = reduce sum v3"),
    "chosen numbers for powers put aside": (
        SOFTMAX,
        "  loop:\n    v1 = load x[{cols}*i + j]\n    v2 = sub v1, m",
        "  row:\n    a = abs m : f32\n    b = eq a, m : bool\n    r = where b, zero, m : f32\n"
        "  loop:\n    v1 = load x[{cols}*i + j]\n    v2 = sub v1, r",
    ),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_is_something_else_is_left_as_it_is(name: str) -> None:
    text, one, other = OTHERWISE[name]
    assert text.count(one) == 1
    text = text.replace(one, other)
    if " w[" in text:
        text = text.replace("  out y: f32[{total}]\n", "  out y: f32[{total}]\n  out w: f32[{total}]\n")
    if "zero" in text and "zero =" not in text:
        text = text.replace("  loop:\n", "  row:\n    zero = const 0.0 : f32\n  loop:\n", 1)
    kernel = parse_kernel(sized(text, 2, 8500))
    assert planned(kernel).online is None
    test_kernels.same_as_reference(kernel, (1,))


def test_rows_that_stay_close_and_other_dtypes_are_left_as_they_are() -> None:
    assert planned(parse_kernel(sized(SOFTMAX, 3, WORTH))).online is None
    assert planned(parse_kernel(sized(SOFTMAX, 3, WORTH + 1).replace("f32", "f64"))).online is None


@pytest.mark.parametrize("form", FORMS)
def test_one_piece_of_code_for_all_long_rows(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "GRAIN", 1)
    text = FORMS[form][0].format(rows="s0", cols="s1", total="s0*s1")
    build.forget()
    before = smelt.counters["kernels_built"]
    for s1 in (9000, 8193, 12288, 16411, 8192):
        sizes = {"s0": 3, "s1": s1}
        kernel = parse_kernel(text, sizes)
        made = planned(parse_kernel(text, sizes))
        assert (made.online is not None) is (s1 > WORTH)
        compiled = compile_kernels([kernel], Options())[kernel.name]
        test_sizes.same_as_reference(kernel, compiled, sizes)
    assert smelt.counters["kernels_built"] - before == 2  # for rows up to 8,192 another
    build.forget()


# Whole programs, against eager and against float64.


def rows(width: int) -> Tensor:
    """Rows whose maxima come early, late, in every block, in the last vector; of numbers that overflow, and none."""
    torch.manual_seed(1)
    spread = torch.linspace(-50, 50, width)
    found = [torch.randn(width), torch.randn(width) * 10, spread, spread.flip(0), torch.linspace(0, 1, width) + 1000]
    found += [torch.randn(width) * 1e6, torch.full((width,), 3.0e38), torch.full((width,), LOWEST)]
    for place, value in ((0, 60.0), (5000, 60.0), (-1, 60.0), (-1, INF), (0, INF), (7000, -INF), (7000, NAN)):
        found.append(torch.randn(width))
        found[-1][place] = value
    for first, last in ((0, 4096), (0, 8192), (4096, width), (100, width), (0, width - 1), (0, width)):
        found.append(torch.randn(width))
        found[-1][first:last] = -INF
    found.append(torch.full((width,), LOWEST))
    found[-1][-1] = 0
    return torch.stack(found)


def softmax(x: Tensor) -> Tensor:
    return F.softmax(x, 1)


def log_softmax(x: Tensor) -> Tensor:
    return F.log_softmax(x, 1)


def logsumexp(x: Tensor) -> Tensor:
    return torch.logsumexp(x, 1, keepdim=True)


def safe_softmax(x: Tensor) -> Tensor:
    result: Tensor = torch.ops.aten._safe_softmax(x, 1)
    return result


def changed(x: Tensor) -> Tensor:
    """With what is computed before and after it in the same loops."""
    return F.softmax(x * 0.5 + 1, 1) * 2


def likeliest(x: Tensor) -> Tensor:
    """With a fold in the loop that reads the powers."""
    return F.softmax(x, 1).amax(1, keepdim=True)


PROGRAMS = (softmax, log_softmax, logsumexp, safe_softmax, changed, likeliest)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of kernels whose loops ran as one."""
    names: list[str] = []
    real = schedule_passes.online

    def online(kernel: Kernel) -> tuple[Kernel, object]:
        made, loops = real(kernel)
        names.extend([kernel.name] if loops else [])
        return made, loops

    monkeypatch.setattr(schedule_passes, "online", online)
    build.forget()
    return names


def error(mine: Tensor, truth: Tensor) -> Tensor:
    """Of each row: the largest deviation, in parts of the largest value; of what is finite."""
    finite = torch.isfinite(truth) & torch.isfinite(mine)
    apart = torch.where(finite, mine.double() - truth, 0).abs().amax(1)
    return apart / torch.where(finite, truth, 0).abs().amax(1).clamp(min=1e-30)


@pytest.mark.parametrize("width", [8193, 12345])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("program", PROGRAMS)
def test_rows_of_every_kind(
    program: Callable[[Tensor], Tensor], dtype: torch.dtype, width: int, found: list[str]
) -> None:
    x = rows(width).to(dtype)
    mine, eager, truth = smelt.compile(program)(x), program(x), program(x.double())
    assert bool(found) is (dtype is not torch.float64)
    assert mine.dtype is dtype
    assert torch.equal(mine.isnan(), eager.isnan())
    assert torch.equal(mine.isinf(), eager.isinf()) and torch.equal(mine == INF, eager == INF)
    ulps = 4 if dtype is not torch.float64 else 100  # eager is the truth itself there: sums in another order are not
    assert bool((error(mine, truth) <= 2 * error(eager, truth) + ulps * torch.finfo(dtype).eps).all())


def test_small_powers_keep_their_digits() -> None:
    """Each element, not each row: those of the first blocks are put right by a factor of e⁻⁸⁰ and less."""
    x = torch.stack([torch.linspace(-80, 0, 12345), torch.linspace(0, -80, 12345), torch.linspace(-300, 0, 12345)])
    truth = softmax(x.double())
    apart = (x.double() - x.double().amax(1, keepdim=True)).abs()
    allowed = truth * (4 + apart) * 2**-23 + 2**-148  # what rounding x - m does to its exp; and denormal numbers
    assert bool(((smelt.compile(softmax)(x).double() - truth).abs() <= allowed).all())


@pytest.mark.parametrize("scale", [1.0, 5.0, 10.0])
def test_logarithms_near_zero_have_as_many_digits_as_eager(scale: float) -> None:
    """Where one power is nearly all of the sum, a row is right by chance: so of many, the mean and the worst."""
    torch.manual_seed(3)
    x = torch.randn(128, 8193) * scale
    truth = log_softmax(x.double())

    def relative(result: Tensor) -> Tensor:
        return ((result.double() - truth) / truth).abs().amax(1)

    mine, eager = relative(smelt.compile(log_softmax)(x)), relative(log_softmax(x))
    assert mine.mean() <= 1.5 * eager.mean() and mine.max() <= 2 * eager.max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [8193, 12345])
def test_gradients_and_losses(width: int, dtype: torch.dtype, found: list[str]) -> None:
    torch.manual_seed(0)
    values, target, weight = torch.randn(5, width), torch.randint(0, width, (5,)), torch.randn(5, width).to(dtype)
    target[2] = -100

    def cross_entropy(x: Tensor) -> Tensor:
        return F.cross_entropy(x, target, label_smoothing=0.1)

    def weighted(x: Tensor) -> Tensor:
        return (F.softmax(x, 1) * weight).sum(1).square().sum()

    def distance(x: Tensor) -> Tensor:
        return torch.logsumexp(x * 3, 1).square().mean() + (F.log_softmax(x, 1) * weight).mean()

    for loss in (cross_entropy, weighted, distance):
        found.clear()
        results: list[tuple[Tensor, Tensor]] = []
        for run, kind in ((smelt.compile(loss), dtype), (loss, dtype), (loss, torch.float64)):
            x = values.to(dtype).to(kind).requires_grad_()
            value = run(x)
            (slope,) = torch.autograd.grad(value, x)
            results.append((value.detach().reshape(1, 1), slope))
        for mine, eager, truth in zip(*results, strict=True):
            allowed = 2 * error(eager, truth) + 4 * torch.finfo(dtype).eps
            assert bool((error(mine, truth) <= allowed).all()), loss
        assert found, loss


@pytest.mark.parametrize("program", [softmax, log_softmax, logsumexp])
def test_row_lengths_that_change(program: Callable[[Tensor], Tensor], found: list[str]) -> None:
    compiled = smelt.compile(program, dynamic=True)
    for width in (9000, 8193, 12345, 700, 16384):
        x = torch.randn(3, width) * 4
        truth = program(x.double())
        allowed = 2 * error(program(x), truth) + 4 * torch.finfo(torch.float32).eps
        assert bool((error(compiled(x), truth) <= allowed).all()), width
    assert len(found) == 1  # one piece of code for all long rows
