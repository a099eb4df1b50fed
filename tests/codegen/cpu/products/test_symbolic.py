"""Products of sizes that are given at launch: compiled once for an example, run at others, by every schedule."""

import itertools
from dataclasses import replace

import pytest
import torch

from smelt.codegen.build import CompiledKernel
from smelt.codegen.cpu.products.plan import PRODUCTS
from smelt.codegen.loops.runtime_sizes import as_integer
from smelt.device import find
from smelt.ir.kernel import Axis, Buffer, Contract, Factor, Index, Kernel, Role, Stage, Store
from smelt.ir.substitute_sizes import resized
from smelt.symbolic.expressions import ShapeEnv, Symbol
from smelt.symbolic.symsize import is_symsize, sym_size
from tests.codegen.cpu.products.running import guarded
from tests.codegen.cpu.products.written import compiled_by, filled, product
from tests.codegen.running import call
from tests.kernel_reference import run_kernel

# Example sizes of m, n, k and the batch; those that are capital vary.
EXAMPLES = {
    "rows": ("M", "n", "k"),
    "batch": ("m", "n", "k", "B"),
    "scores": ("M", "N", "k", "B"),
    "values": ("M", "n", "K", "B"),
    "all": ("M", "N", "K", "B"),
    "cols": ("m", "N", "k"),
    "depth": ("m", "n", "K"),
}
SIZES = {"m": 9, "n": 40, "k": 24, "b": 1}
OTHERS = ((2, 2, 2, 2), (3, 5, 7, 2), (7, 31, 33, 3), (64, 16, 130, 2), (70, 530, 20, 2), (300, 13, 9, 5))


def _sizes(names: tuple[str, ...], example: tuple[int, int, int, int]) -> tuple[list[int], dict[str, Symbol]]:
    shape_env, symbols, found = ShapeEnv(), {}, []
    for letter, size in zip("mnkb", example, strict=True):
        if letter.upper() in names:
            symbols[letter] = shape_env.symbol(letter, size)
            found.append(sym_size(shape_env, symbols[letter]))
        else:
            found.append(SIZES[letter])
    return found, symbols


@pytest.mark.parametrize("in_place", [False, True], ids=["", "in place"])
@pytest.mark.parametrize("layout", ["bik bkj", "bik bjk", "bki bkj"])
@pytest.mark.parametrize("which", EXAMPLES)
def test_one_code_for_all_sizes(which: str, layout: str, in_place: bool) -> None:
    """For an example of few rows, which tiles take over from at more of them, and for one of many."""
    left, right = layout.split()
    for example in ((4, 64, 48, 2), (100, 90, 80, 3), *([(5, 3, 7, 2)] if which == "all" else [])):
        (m, n, k, batch), symbols = _sizes(EXAMPLES[which], example)
        kernel = product(
            m, n, k, batch=batch, left=left, right=right, epilogue=not in_place or which == "all", in_place=in_place
        )
        (compiled,) = compiled_by([kernel])
        assert not next(iter(symbols.values())).shape_env.guards  # type: ignore[union-attr]
        for other in (example, *OTHERS):
            values = {symbols[letter]: size for letter, size in zip("mnkb", other, strict=True) if letter in symbols}
            _is_right(kernel, compiled, values)


def _is_right(kernel: object, compiled: CompiledKernel, values: dict[Symbol, int]) -> None:
    here = resized(kernel, lambda size: size.evaluate(values.__getitem__))
    given = [filled(buffer, seed) for seed, buffer in enumerate(here.parameters)]
    want = [tensor.clone() for tensor in given]
    run_kernel(here, want)
    sizes = torch.tensor([as_integer(size.evaluate(values.__getitem__)) for size in compiled.sizes])
    needed = compiled.per_thread_workspace
    runs = []
    for threads in (1, 2, 3):
        got = [tensor.clone() for tensor in given]
        room = needed.evaluate(values.__getitem__) if is_symsize(needed) else needed  # type: ignore[attr-defined]
        call(compiled, [*got, sizes], threads, per_thread=room)
        runs.append(got)
    for one, right in zip(runs[0], want, strict=True):
        torch.testing.assert_close(one, right, rtol=1e-5, atol=1e-4, msg=lambda text: f"{values}: {text}")
    for other, place in itertools.product(runs[1:], range(len(given))):
        assert torch.equal(other[place], runs[0][place])


# Positions of which none is below what it has to be, whatever the sizes are, and the sum.
NOTHING = {
    "channels": (-2, {"i": -1}, ("c",)),
    "steps": (-4, {"i": -1, "k": -1}, ("k", "c")),
    "bounded": (-3, {"c": -1}, ("c",)),
}


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("which", NOTHING)
def test_factors_without_an_element(which: str, size: int) -> None:
    """What is out of bounds for all sizes that there are is not read: there may be no memory, or less than a run."""
    offset, strides, summed = NOTHING[which]
    shape_env = ShapeEnv()
    rows, depth = (sym_size(shape_env, shape_env.symbol(name, 20)) for name in ("m", "n"))
    i, j = Axis("i", rows), Axis("j", 12)
    axes = tuple(Axis(name, 3 if name == "k" else depth) for name in summed)
    position = Index(tuple((axis.name, strides[axis.name]) for axis in (i, *axes) if axis.name in strides), offset)
    left = Factor("x", Index((("i", 500), *((name, 1) for name in summed))), ((position, 9),))
    right = Factor("w", Index((("j", 1), *((name, 12) for name in summed))))
    length = depth * 12 + 3 * 12
    buffers = [("x", size, Role.INPUT), ("w", length, Role.INPUT), ("y", rows * 12, Role.OUTPUT)]
    body = Contract("p", axes, left, right, torch.float32), Store("y", Index((("i", 12), ("j", 1))), "p")
    made = tuple(Buffer(name, torch.float32, count, role) for name, count, role in buffers)
    kernel = Kernel("nothing", (i,), (j,), made, (Stage(True, body),))
    (compiled,) = compiled_by([kernel], ["tiled"])
    for sizes in ((20, 20), (2, 130), (40, 7)):
        values = dict(zip(shape_env.symbols, sizes, strict=True))
        here = resized(kernel, lambda size: size.evaluate(values.__getitem__))  # noqa: B023
        given = [guarded(each.size, each.dtype, at_start=False).fill_(3.0) for each in here.parameters]
        numbers = torch.tensor([as_integer(each.evaluate(values.__getitem__)) for each in compiled.sizes])
        needed = compiled.per_thread_workspace
        room = needed.evaluate(values.__getitem__) if is_symsize(needed) else needed  # type: ignore[attr-defined]
        call(compiled, [*given, numbers], 1, per_thread=room)
        assert not given[2].any()


def test_tiles_take_more_rows_and_shorter_ones_than_a_schedule_is_good_for() -> None:
    shape_env = ShapeEnv()
    rows, cols = (sym_size(shape_env, shape_env.symbol(name, size)) for name, size in (("m", 3), ("n", 240)))
    plan = PRODUCTS.plan(product(rows, cols, 256, right="bjk"), find("cpu"))
    assert plan.schedule.name == "dot"
    ((least,), (most,), _) = plan.limits
    assert (str(least[0]), least[1]) == ("n", "sge")
    assert (str(most[0]), most[1]) == ("m", "sle") and 3 <= most[2] <= 512
    assert not shape_env.guards


def test_tiles_take_products_that_are_larger_all_round_than_the_example() -> None:
    shape_env = ShapeEnv()
    sizes = [sym_size(shape_env, shape_env.symbol(name, size)) for name, size in (("m", 5), ("n", 3), ("k", 7))]
    target = replace(find("cpu"), vector_bits=128, vector_registers=32)
    plan = PRODUCTS.plan(product(*sizes), target)
    assert plan.schedule.name != "tiled"
    crowd = plan.limits[-1]
    assert [str(size) for size, _, _ in crowd] == ["m", "n", "k"]
    assert all(7 <= count <= 64 for _, _, count in crowd)
    assert not shape_env.guards
