"""Products beside the library: what is multiplied, that it is checked, and the cost model that figures give."""

import argparse
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import product_costs, products
from benchmarks.products import Figure, Shape
from smelt.ir.check_kernel import check_kernel
from smelt.ir.text import format_kernel
from smelt.pipeline.calibration.fit import fitted
from tests.kernel_reference import run_kernel

SMALL = (Shape(8, 16, 12), Shape(5, 7, 3))


@pytest.mark.parametrize("form", products.FORMS)
@pytest.mark.parametrize("dtype", products.DTYPES)
def test_a_kernel_multiplies_what_the_library_does(form: str, dtype: str) -> None:
    shape = Shape(5, 7, 3, form, dtype)
    kernel = products.product_kernel(shape)
    check_kernel(kernel, after="writing it")
    x, w, y = products.operands(shape)
    run_kernel(kernel, [each.view(-1) for each in (x, w, y)])
    torch.testing.assert_close(y, (x.t() if form[0] == "t" else x) @ (w.t() if form[1] == "t" else w))


def test_the_kernel_of_a_linear_layer_reads_as_one() -> None:
    text = format_kernel(products.product_kernel(Shape(5, 7, 3, "nt")))
    assert "p = contract (k:3) x[3*i + k], w[3*j + k] : f32" in text


def test_figures_are_taken_of_the_library_and_of_schedules(tmp_path: Path) -> None:
    figures: list[Figure] = []
    for shape in SMALL:
        figures += products.measured(shape, 1, every=True, rounds=2, per_round=1e-6)
    assert {figure.by for figure in figures} > {products.LIBRARY}
    for shape in SMALL:
        assert sum(figure.chosen for figure in figures if figure.shape == shape) == 1
    assert all(figure.seconds > 0 and figure.ratio > 0 for figure in figures)
    products.write(tmp_path / "figures.json", figures)
    assert products.read(tmp_path / "figures.json") == figures
    assert product_costs.report(figures)


def test_a_wrong_product_is_no_figure() -> None:
    wanted = torch.randn(4, 4)
    products._check(wanted.clone(), wanted, "the same")
    with pytest.raises(AssertionError, match="off by"):
        products._check(wanted + 1e-3, wanted, "another")
    with pytest.raises(AssertionError, match="off by"):
        products._check(wanted * torch.nan, wanted, "nothing")


def figure(shape: Shape, by: str, seconds: float, library: float, chosen: bool = False) -> Figure:
    return Figure(shape, 1, by, chosen, seconds, library / seconds)


def test_means_are_of_what_is_chosen() -> None:
    shape = Shape(8, 8, 8)
    turned = replace(shape, form="nt")
    found = [
        figure(shape, "library", 2.0, 2.0),
        figure(shape, "tiled", 1.0, 2.0, chosen=True),
        figure(shape, "dot", 9.0, 2.0),
        figure(turned, "library", 2.0, 2.0),
        figure(turned, "tiled", 4.0, 2.0, chosen=True),
    ]
    found[1] = replace(found[1], own=True)
    assert products.means(found) == [
        "1 thread: geometric mean 1.00 (nn 2.00, nt 0.50, tn –), worst 0.50 at 8×8×8 nt",
        "1 thread: geometric mean 1.41, 1 of 2 by kernels by itself, worst 1.00 at 8×8×8 nt",
    ]
    assert "tiled" in products.line(found[:3]) and products.line(found[:1])


def test_shapes_are_read_or_refused() -> None:
    assert products.parsed("64x32×16") == (64, 32, 16)
    for wrong in ("64", "1x2x0", "axbxc", "1x2x3x4"):
        with pytest.raises(argparse.ArgumentTypeError):
            products.parsed(wrong)


def test_estimates_are_held_against_what_was_measured() -> None:
    """A schedule that is chosen for its estimate, and is slower."""
    shape = Shape(8, 8, 8)
    found = [
        figure(shape, "library", 2e-6, 2e-6),
        replace(figure(shape, "tiled", 4e-6, 2e-6, chosen=True), cycles=8_000),
        replace(figure(shape, "dot", 1e-6, 2e-6), cycles=9_000),
    ]
    lines = product_costs.estimates(found)
    assert [line.split()[:4:3] for line in lines[1:3]] == [["dot,", "0.111"], ["tiled,", "0.500"]]
    assert lines[3].endswith("dot 4.00 times as fast as tiled, which is chosen")


def grid() -> list[Shape]:
    return [Shape(m, n, k) for m in (1, 8, 64, 512) for n in (64, 1024) for k in (64, 512)]


def test_the_fit_finds_the_constants_that_made_the_figures() -> None:
    made = (3e-6, 1 / 36e9, 0.0, 1 / 5e9)
    seconds = [product_costs.predicted(made, shape) for shape in grid()]
    found = fitted([product_costs.terms(shape) for shape in grid()], seconds)
    assert found == pytest.approx(made, rel=1e-6, abs=1e-20)


def test_no_constant_is_negative() -> None:
    falling = [1e-3 / shape.flops for shape in grid()]
    found = fitted([product_costs.terms(shape) for shape in grid()], falling)
    assert min(found) >= 0 and max(found) > 0


def test_the_model_chooses_ours_where_it_is_faster() -> None:
    """A library that takes long to call and is fast then."""
    theirs, ours = (1e-4, 1 / 40e9, 0.0, 0.0), (1e-6, 1 / 20e9, 0.0, 0.0)
    figures = []
    for shape in grid():
        library, mine = (product_costs.predicted(constants, shape) for constants in (theirs, ours))
        figures += [figure(shape, "library", library, library), figure(shape, "tiled", mine, library)]
    chosen = {choice.shape: choice for choice in product_costs.choices(figures, product_costs.fit(figures))}
    assert chosen[Shape(8, 64, 64)].by == "tiled" and chosen[Shape(512, 1024, 512)].by == "library"
    assert all(choice.ratio >= product_costs.LOSS for choice in chosen.values())
    assert not any("a loss" in line for line in product_costs.report(figures))
