"""Random products by every schedule that takes them, against float64."""

from dataclasses import replace

import pytest
import torch

from smelt.ir.check_kernel import check_kernel, contraction_of
from smelt.ir.kernel import Cast, Kernel
from smelt.ir.text import format_kernel
from tests.codegen.cpu.products.bounds import differences
from tests.codegen.cpu.products.campaign import CAMPAIGN
from tests.codegen.cpu.products.generated import product_of
from tests.codegen.cpu.products.running import failures_in_symbols, filled, guarded
from tests.kernel_reference import run_kernel
from tests.kernel_text import parse_kernel

# Numbers of products, the same every time, so that a change is judged by itself.
NUMBERS = [range(60), pytest.param(range(60, 1000), marks=pytest.mark.slow)]


@pytest.mark.parametrize("numbers", NUMBERS, ids=str)
def test_schedules_compute_products_in_memory_beside_guards(numbers: range) -> None:
    """In a process of its own: what is read or written past a buffer ends it, and the failure names the product."""
    found = list(CAMPAIGN.outcomes(numbers.start, len(numbers), jobs=1))
    wrong = [each["failure"] for each in found if each["failure"]]
    if wrong:
        pytest.fail("\n\n".join(wrong), pytrace=False)
    assert sum(each["runs"] for each in found) > len(numbers)
    assert not any(each["refused"] for each in found)


@pytest.mark.parametrize("number", [5932, 6863, 2_000_711, 2_005_695, 2_008_751, 2_012_801, 2_020_046])
def test_long_sums_are_as_accurate_as_those_of_the_library(number: int) -> None:
    """Of numbers above zero, for which the library has many sums each: one for all steps rounded more than twice as
    much."""
    taken, wrong = failures_in_symbols(number, alone=True)
    assert taken and not wrong


def test_products_keep_the_rules_and_the_reference_is_exact_enough() -> None:
    for number in range(200):
        kernel = product_of(number)
        check_kernel(kernel)
        assert parse_kernel(format_kernel(kernel)) == kernel
        before = filled(kernel, number)
        after = [each.clone() for each in before]
        run_kernel(kernel, after)
        assert not list(differences(kernel, before, after)), format_kernel(kernel)


def test_every_kind_is_among_them() -> None:
    kernels = [product_of(number) for number in range(300)]
    contractions = [contraction_of(kernel) for kernel in kernels]
    axes = [kernel.rows + kernel.cols + each.axes for kernel, each in zip(kernels, contractions, strict=True) if each]
    assert any(axis.size == 0 for each in axes for axis in each)
    assert {len(each.axes) for each in contractions if each} >= {0, 1, 2, 3}
    factors = [factor for each in contractions if each for factor in each.factors]
    assert any(stride < 0 for factor in factors for _, stride in factor.index.terms)
    assert sum(bool(factor.bounds) for factor in factors) > 50
    read = {kernel.buffer(factor.buffer).dtype for kernel in kernels for factor in contraction_of(kernel).factors}  # type: ignore[union-attr]
    assert read == {torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.uint8}
    assert any(each and each.left.buffer == each.right.buffer for each in contractions)


def _without_last(kernel: Kernel) -> Kernel:
    """A kernel that forgets the last of what it sums."""
    contraction = contraction_of(kernel)
    assert contraction is not None
    shorter = (*contraction.axes[:-1], replace(contraction.axes[-1], size=contraction.axes[-1].size - 1))
    body = tuple(replace(i, axes=shorter) if i is contraction else i for i in kernel.stages[0].body)
    return replace(kernel, stages=(replace(kernel.stages[0], body=body),))


def test_an_error_of_one_element_is_found() -> None:
    found = seen = 0
    for number in range(200):
        kernel = product_of(number)
        contraction = contraction_of(kernel)
        assert contraction is not None
        if not contraction.axes or contraction.axes[-1].size < 2 or not kernel.row_count * kernel.col_count:
            continue
        before = filled(kernel, number)
        after = [each.clone() for each in before]
        run_kernel(_without_last(kernel), after)
        rounded = any(isinstance(i, Cast) for i in kernel.instructions())
        if not rounded and not contraction.left.bounds and not contraction.right.bounds:
            seen += 1
            found += bool(list(differences(kernel, before, after)))
    assert seen > 30 and found >= 0.95 * seen  # zeros and saturated activations hide a few


def test_a_stray_write_is_found() -> None:
    kernel = product_of(3)
    before = filled(kernel, 3)
    after = [each.clone() for each in before]
    run_kernel(kernel, after)
    names = [buffer.name for buffer in kernel.parameters]
    after[names.index("y")][1] += 1  # between two that are written
    assert list(differences(kernel, before, after)) == ["y: written where nothing was to be"]
    after = [each.clone() for each in before]
    run_kernel(kernel, after)
    after[names.index("w")][5] = 9
    assert list(differences(kernel, before, after)) == ["w: written where nothing was to be"]


@pytest.mark.parametrize("at_start", [False, True])
def test_memory_beside_a_guard_is_memory(at_start: bool) -> None:
    for size in (0, 1, 5000):
        made = guarded(size, torch.float32, at_start=at_start)
        assert len(made) == size
        assert torch.equal(made.copy_(torch.arange(size)), torch.arange(size).float())
