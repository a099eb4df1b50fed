"""Contractions of the kernel form: what they mean, their text, their rules, and who refuses them."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.base.errors import SpecError
from smelt.codegen.axes import indices, is_pointwise, merged, without_unit_axes
from smelt.codegen.cpu.shared_bodies import families
from smelt.codegen.loops.sign_analysis import never_positive
from smelt.fuse.buffer_reuse import is_safe
from smelt.ir import check_kernel as check
from smelt.ir.check_kernel import check_kernel, contraction_of, factor_range
from smelt.ir.kernel import Axis, Contract, Factor, Index, Kernel
from smelt.ir.serialize import dump, parse
from smelt.ir.substitute_sizes import resized, shape_env_of
from smelt.ir.text import format_kernel
from tests.golden import golden
from tests.ir.products import BATCHED_TRANSPOSED, CONVOLUTION, LINEAR_GELU, WRITTEN
from tests.ir.test_text import AXES, DTYPES, INDICES, NAMES
from tests.kernel_reference import run_kernel
from tests.kernel_text import parse_kernel


@pytest.mark.parametrize("name", WRITTEN)
def test_means_what_pytorch_computes(name: str) -> None:
    torch.manual_seed(0)
    written = WRITTEN[name]
    inputs = written.inputs()
    expected = written.eager(*inputs)
    kernel = parse_kernel(written.text)
    check_kernel(kernel)
    got = torch.empty_like(expected)
    run_kernel(kernel, [*inputs, got])
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("name", WRITTEN)
def test_prints_as_written_and_reads_back(name: str) -> None:
    kernel = parse_kernel(WRITTEN[name].text)
    golden(f"ir/products/{name}.txt", format_kernel(kernel))
    assert format_kernel(kernel) == WRITTEN[name].text.strip()
    assert parse(dump(kernel)) == kernel


FACTORS = st.builds(Factor, NAMES, INDICES, st.lists(st.tuples(INDICES, st.integers(0, 2**40)), max_size=2).map(tuple))


@settings(deadline=None)
@given(st.builds(Contract, NAMES, AXES, FACTORS, FACTORS, DTYPES))
def test_any_contraction_reads_back(contraction: Contract) -> None:
    kernel = replace(parse_kernel(LINEAR_GELU), buffers=())
    kernel = replace(kernel, stages=(replace(kernel.stages[0], body=(contraction,)),))
    assert parse_kernel(format_kernel(kernel)) == kernel


@pytest.mark.parametrize(
    "line",
    [
        "p = contract (k:7) x[k] : f32",
        "p = contract (k:7) x[k], y[k], z[k] : f32",
        "p = contract (k:7) x[k] where k, y[k] : f32",
        "p = contract (k) x[k], y[k] : f32",
        "p = contract (k:7) x[k], y[k]",
    ],
)
def test_what_is_no_contraction_is_named(line: str) -> None:
    with pytest.raises(SpecError, match=r"not an? "):
        parse_kernel(f"kernel k rows() cols()\n loop:\n {line}")


SIZED = """kernel k rows(i:s0) cols(j:8)
  in x: f32[s0*s1]
  in w: f32[8*s1]
  out y: f32[8*s0]
  loop:
    p = contract (k:s1) x[(s1)*i + k] where i + k - 1 below s1 and (s0)*k below s0, w[(s1)*j + k] : f32
    store y[8*i + j] = p"""


def test_sizes_that_vary_are_found_printed_and_replaced() -> None:
    kernel = parse_kernel(SIZED, {"s0": 7, "s1": 5})
    assert format_kernel(kernel) == SIZED
    shape_env = shape_env_of(kernel)
    assert shape_env is not None
    bound = resized(kernel, int)
    assert format_kernel(bound) == format_kernel(parse_kernel(SIZED.replace("s0", "7").replace("s1", "5"), {"s9": 3}))
    assert shape_env_of(bound) is None


def only_contraction_varies() -> Iterator[Kernel]:
    for line in (
        "p = contract (k:s0) x[0], w[0] : f32",
        "p = contract (k:4) x[(s0)*k], w[0] : f32",
        "p = contract (k:4) x[0], w[(s0)] : f32",
        "p = contract (k:4) x[0] where (s0)*k below 3, w[0] : f32",
        "p = contract (k:4) x[0], w[0] where k below s0 : f32",
    ):
        yield parse_kernel(f"kernel k rows() cols()\n in x: f32[1]\n in w: f32[1]\n loop:\n {line}", {"s0": 5})


def test_a_size_anywhere_in_a_contraction_is_found() -> None:
    for kernel in only_contraction_varies():
        found = shape_env_of(kernel)
        assert found is not None, format_kernel(kernel)
        assert shape_env_of(resized(kernel, int)) is None


# Rules. Each is broken by one line of a good kernel; nothing else finds it.

BROKEN = {
    "axes": [("(k:7)", "(k:7, z:2, z:3)"), ("(k:7)", "(k:7, z:-1)")],
    "buffers known": [("x[35*b + i + 5*k]", "q[35*b + i + 5*k]")],
    "index axes": [
        ("x[35*b + i + 5*k]", "x[35*b + 5*k + i]"),
        ("x[35*b + i + 5*k]", "x[35*b + i + 5*z]"),
        ("x[35*b + i + 5*k]", "x[35*b + i + 0*k]"),
        ("w[28*b + 7*j + k]", "w[28*b + 7*j + k] where k + j below 99"),
    ],
    "bounds": [
        ("x[35*b + i + 5*k]", "x[35*b + i + 5*k + 1]"),
        ("w[28*b + 7*j + k]", "w[28*b + 7*j + k - 1]"),
        ("w[28*b + 7*j + k]", "w[28*b + 7*j + k - 1] where k below 7"),
        ("(k:7)", "(k:8)"),
    ],
    "contractions": [
        ("v1 = cast", "q = contract (k:7) x[k], w[k] : f32\n    v1 = cast"),
        ("v1 = cast", "q = reduce sum p\n    v1 = cast"),
        ("v1 = cast", "q = scan sum p along j\n    v1 = cast"),
        ("out y: bf16[60]", "inout x2: bf16[105]\n  out y: bf16[60]"),
        (": f32", ": bf16"),
        (": f32", ": f64"),
        ("in w: bf16[84]", "in w: i64[84]"),
        ("in w: bf16[84]", "in w: f64[84]"),
        ("  loop:\n", "  row:\n    one = const 1.0 : f32\n  loop:\n"),
    ],
}


def broken(old: str, new: str) -> Kernel:
    assert BATCHED_TRANSPOSED.count(old) == 1
    text = BATCHED_TRANSPOSED.replace(old, new)
    if "x2" in new:
        text = text.replace("x[35*b + i + 5*k]", "x2[35*b + i + 5*k]")
        text += "    one = const 1.0 : bf16\n    store x2[35*b + 5*i + j] = one\n"
    return parse_kernel(text, {"s0": 2} if "-1)" in new or "0*" in new else None)


@pytest.mark.parametrize(("rule", "old", "new"), [(rule, *each) for rule, all_ in BROKEN.items() for each in all_])
def test_rule_finds_its_fault_and_nothing_else_does(
    rule: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = broken(old, new)
    with pytest.raises(SpecError, match=f'rule "{rule}"'):
        check_kernel(kernel)
    others = {name: each for name, each in check.KERNEL_RULES.items() if name != rule}
    monkeypatch.setattr(check, "KERNEL_RULES", others)
    check_kernel(kernel)


def test_axes_of_its_own_have_names_of_their_own() -> None:
    with pytest.raises(SpecError, match="two axes are named j"):
        check_kernel(broken("(k:7)", "(k:7, j:1)"))


def test_a_contraction_stands_in_a_loop() -> None:
    text = (
        "kernel k rows(i:2) cols()\n in x: f32[2]\n out y: f32[2]\n row:\n"
        " p = contract () x[i], x[i] : f32\n store y[i] = p"
    )
    with pytest.raises(SpecError, match="stands in a loop"):
        check_kernel(parse_kernel(text))
    check_kernel(parse_kernel(text.replace("row:", "loop:")))


# What a factor reads.


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_range_of_a_padded_convolution_is_what_it_reads(data: st.DataObject) -> None:
    """Exactly so, for whatever stride, dilation, padding and layout: no image is taken to be larger than it is."""
    number = st.integers(1, 6)
    height, width, kernel, stride, dilation = (data.draw(number) for _ in range(5))
    padding = data.draw(st.integers(0, 4))
    out = data.draw(st.integers(0, 9))
    last = data.draw(st.booleans())
    step_h, step_w, step_c = (3 * width, 3, 1) if last else (width, 1, height * width)
    axes = (Axis("h", out), Axis("w", out), Axis("c", 3), Axis("kh", kernel), Axis("kw", kernel))
    terms = (("h", stride * step_h), ("w", stride * step_w), ("c", step_c), ("kh", dilation * step_h))
    index = Index((*terms, ("kw", dilation * step_w)), -padding * (step_h + step_w))
    bounds = (
        (Index((("h", stride), ("kh", dilation)), -padding), height),
        (Index((("w", stride), ("kw", dilation)), -padding), width),
    )
    found = factor_range(Factor("x", index, bounds), axes)
    read = [
        c * step_c + ih * step_h + iw * step_w
        for c in range(3)
        for h in range(out) for kh in range(kernel) if 0 <= (ih := stride * h + dilation * kh - padding) < height
        for w in range(out) for kw in range(kernel) if 0 <= (iw := stride * w + dilation * kw - padding) < width
    ]  # fmt: skip
    if found is None:
        assert not read
    elif read:
        assert found[0] >= 0 and found[1] < 3 * height * width
        assert found[0] <= min(read) and found[1] >= max(read)


# What others make of them.


def test_memory_of_a_factor_is_not_written_over() -> None:
    kernel = parse_kernel(
        "kernel k rows(i:4) cols(j:4)\n in x: f32[16]\n in r: f32[16]\n out y: f32[16]\n loop:\n"
        " p = contract (k:4) x[4*i + k], x[4*k + j] : f32\n a = load r[4*i + j]\n b = load x[4*i + j]\n"
        " c = add p, a : f32\n d = add c, b : f32\n store y[4*i + j] = d".replace("4*k + j", "j + 4*k")
    )
    check_kernel(kernel)
    assert not is_safe(kernel, kernel.buffer("x"), kernel.buffer("y"))
    assert is_safe(kernel, kernel.buffer("r"), kernel.buffer("y"))


def test_axes_of_factors_and_bounds_count() -> None:
    kernel = parse_kernel(CONVOLUTION)
    assert not is_pointwise(kernel)
    assert len(indices(kernel)) == 6
    assert merged(merged(kernel, cols=True), cols=False) == kernel  # h and w are padded each on its own
    unit = parse_kernel(CONVOLUTION.replace("n:2", "n:1"))
    fewer = without_unit_axes(unit)
    contraction = contraction_of(fewer)
    assert contraction is not None
    assert [axis.name for axis in fewer.rows] == ["o"] and "n" not in contraction.right.index.axes
    check_kernel(fewer)
    outputs = []
    inputs = WRITTEN["convolution"].inputs()
    for each in (unit, fewer):
        outputs.append(torch.zeros(96))
        run_kernel(each, [*inputs, outputs[-1]])
    assert torch.equal(*outputs)


def test_nothing_is_known_of_their_sign() -> None:
    text = LINEAR_GELU.replace("ndtr v2", "exp v2")
    assert not never_positive(parse_kernel(text)) & {"p", "v2"}


def test_they_share_no_bodies() -> None:
    text = LINEAR_GELU.replace("i:5", "i:128").replace("f32[35]", "f32[896]").replace("f32[30]", "f32[768]")
    longer = text.replace("i:128", "i:256").replace("896", "1792").replace("768", "1536").replace("linear", "longer")
    assert not families([parse_kernel(text), parse_kernel(longer)])


def test_an_empty_sum_is_zero() -> None:
    text = (
        "kernel k rows(i:2) cols(j:3)\n in x: f32[{0}]\n in w: f32[{0}]\n out y: f32[6]\n loop:\n"
        " p = contract ({1}) x[{2}], w[{2}] : f32\n store y[3*i + j] = p"
    )
    for size, axes, index in ((0, "k:0", "k"), (1, "k:0", "0"), (1, "k:3, l:0", "0")):
        y = torch.ones(6)
        kernel = parse_kernel(text.format(size, axes, index))
        check_kernel(kernel)
        run_kernel(kernel, [torch.full((size,), torch.inf), torch.ones(size), y])
        assert y.tolist() == [0] * 6
    y = torch.empty(6)
    run_kernel(parse_kernel(text.format(1, "k:4, l:3", "0")), [torch.full((1,), 2.0), torch.full((1,), 0.5), y])
    assert y.tolist() == [12] * 6
