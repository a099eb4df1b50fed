"""Matrix products as kernels of our own: what they read, what joins them, and that programs with them are right."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from smelt.base.errors import SmeltError
from smelt.base.events import collect
from smelt.base.options import Options
from smelt.device import host_costs, host_library
from smelt.device.host_costs import library_costs
from smelt.device.product_costs import MatrixSizes, ProductCosts
from smelt.fuse.lowering import product_choice
from smelt.fuse.lowering.rules import ContractRule, FactorRead
from smelt.fuse.target_choice import TargetChoice
from smelt.ir.kernel import Contract, Role
from smelt.ir.program import Launch, Library, Program
from tests.fuse.running import assert_same, fused
from tests.processes import run

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)


def products(program: Program) -> list[Launch]:
    """The launches of kernels that multiply."""
    return [step for step in program.steps if isinstance(step, Launch) and contraction(step) is not None]


def contraction(step: Launch) -> Contract | None:
    return next((each for each in step.kernel.instructions() if isinstance(each, Contract)), None)


def own(fn: Callable[..., Any], *args: torch.Tensor, count: int = 1, **rest: Any) -> Program:
    """A program with so many kernels that multiply, that computes what eager does."""
    program = assert_same(fn, *args, products="own", **rest)
    assert len(products(program)) == count
    assert not [step for step in program.steps if isinstance(step, Library)]
    return program


def _x(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float32).to(dtype)


def test_library_unless_asked_for() -> None:
    for wanted in ("auto", "library"):
        program = fused(torch.mm, _x(4, 8), _x(8, 16), products=wanted)
        assert [type(step) for step in program.steps] == [Library]


def _library_takes(monkeypatch: pytest.MonkeyPatch, cycles: float | str) -> None:
    """Have the library take so long for every product, or not be known for a reason."""
    costs = cycles if isinstance(cycles, str) else ProductCosts(cycles, 0, 0, 0, 1.0)
    monkeypatch.setattr(product_choice, "library_costs", lambda *_, **__: costs)


@pytest.mark.parametrize(
    ("library", "own", "why"),
    [
        (1e9, True, "computes {mm}: it multiplies 64×48×32 in about 0."),
        (1.03e5, False, "mm is a library call: it multiplies 64×48×32 in about 0.99 of the library's time by a kernel"),
        ("was not measured", False, "mm is a library call: it was not measured"),
    ],
)
def test_chosen_by_cost(monkeypatch: pytest.MonkeyPatch, library: float | str, own: bool, why: str) -> None:
    """By default a product is a kernel where the library is known to take longer, and the reason is told."""
    _library_takes(monkeypatch, library)
    monkeypatch.setattr(TargetChoice, "contraction_cycles", lambda *_: 1e5)
    with collect() as events:
        program = fused(torch.mm, _x(64, 32), _x(32, 48))
    assert bool(products(program)) is own
    assert any(why in event.text for event in events)


def test_little_is_the_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    _library_takes(monkeypatch, 1e9)
    with collect() as events:
        assert not products(fused(torch.mm, _x(4, 8), _x(8, 16)))
    assert any("mm is a library call: it multiplies 4×16×8, which is too little" in event.text for event in events)


def test_what_follows_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that is about as fast is a kernel for the sake of what is done to its sums."""
    _library_takes(monkeypatch, 1.11e6)
    monkeypatch.setattr(TargetChoice, "contraction_cycles", lambda *_: 1.1e6)
    x, w = _x(256, 16), _x(16, 256)
    assert not products(fused(torch.mm, x, w))
    assert products(fused(lambda x, w: torch.relu((x @ w).view(2, 128, 256)), x, w))


@pytest.mark.parametrize(
    ("library", "as_fast", "own"),
    [(1.005e6, True, True), ("does as fast", True, True), ("was not measured", False, False)],
    ids=str,
)
def test_what_the_library_would_be_given_converted_counts(
    monkeypatch: pytest.MonkeyPatch, library: float | str, as_fast: bool, own: bool
) -> None:
    """A kernel reads narrow floats as they are. Where its product is no slower, that is what it saves."""
    _library_takes(monkeypatch, library)
    monkeypatch.setattr(product_choice, "is_as_fast", lambda dtype: as_fast)
    monkeypatch.setattr(TargetChoice, "contraction_cycles", lambda *_: 1e6)
    x, w = _x(8, 256), _x(256, 1024)
    assert not products(fused(torch.mm, x, w))
    narrow = x.bfloat16(), w.bfloat16()
    assert bool(products(fused(lambda x, w: x.float() @ w.float(), *narrow))) is own
    # What twenty others read has been converted anyhow, nearly.
    shared = fused(lambda x, w: (lambda v: (x.float() @ v, *(v + each for each in range(20))))(w.float()), *narrow)
    assert not products(shared)


def test_sizes_are_counted_by_factor() -> None:
    rule = ContractRule((7,), FactorRead((35, 7, 0, 0), (1,)), FactorRead((21, 0, 3, 0), (1,)))
    assert rule.sides((2, 5, 3, 4)) == (8, 5, 3, 7)
    assert rule.cols((2, 5, 3, 4), (60, 12, 4, 1)) == 4


def test_costs_grow_with_sizes() -> None:
    costs = ProductCosts(100, 0.1, 0.2, 0.3, 1.0)
    assert costs.cycles(MatrixSizes(1, 2, 3, 4), 4) == pytest.approx(100 + 2.4 + 16 * 5 * 0.2 + 24 * 0.3)
    assert costs.cycles(MatrixSizes(8, 2, 3, 4), 4) > costs.cycles(MatrixSizes(1, 2, 3, 4), 4)
    assert isinstance(library_costs(MatrixSizes(1, 64, 64, 64), torch.int64, along=True), str)


@pytest.mark.parametrize(
    ("sizes", "along", "known"),
    [
        ((1, 8, 1024, 1024), False, "few rows"),
        ((1, 8, 1024, 1024), True, "few rows along"),
        ((1, 256, 256, 256), True, "many rows along"),
        ((1, 64, 64, 64), True, "many rows swapped"),  # the library is given the transposes
        ((1, 256, 256, 256), False, "many rows"),
        ((1, 1, 256, 1024), True, "vector along"),
        ((1, 1, 256, 1024), False, "vector"),
        ((1, 1, 1024, 1024), True, None),  # memory is waited for, by whoever multiplies
        ((1, 4, 3072, 1024), False, None),
        ((1, 4, 3072, 1024), True, "few rows along"),
        ((1, 1024, 1, 1024), True, None),
        ((12, 256, 256, 256), True, None),
    ],
)
def test_costs_are_known_where_measured(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int, int, int], along: bool, known: str | None
) -> None:
    monkeypatch.setattr(host_costs, "_processor", lambda: "aarch64 without SVE")
    monkeypatch.setattr(host_library, "slow_transposed_products", lambda: True)
    found = library_costs(MatrixSizes(*sizes), torch.float32, along=along)
    table = host_costs.defaults().products
    assert found == table[f"float32 {known}"] if known else isinstance(found, str) and "nobody has measured" in found
    assert host_costs.is_as_fast(torch.float32) and not host_costs.is_as_fast(torch.float64)
    wide = library_costs(MatrixSizes(*sizes), torch.float64, along=along)
    assert isinstance(wide, str) is (known != "few rows along")


def test_unknown_choice_is_refused() -> None:
    with pytest.raises(SmeltError, match="unknown products"):
        Options.from_user({"products": "ours"})


CALLS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "mm": (torch.mm, [(5, 7), (7, 3)]),
    "bmm": (torch.bmm, [(2, 5, 7), (2, 7, 3)]),
    "mv": (torch.mv, [(5, 7), (7,)]),
    "dot": (torch.dot, [(7,), (7,)]),
    "vdot": (torch.vdot, [(7,), (7,)]),
    "addmm": (torch.addmm, [(5, 3), (5, 7), (7, 3)]),
    "addmm of a row": (torch.addmm, [(3,), (5, 7), (7, 3)]),
    "addmm of a column": (torch.addmm, [(5, 1), (5, 7), (7, 3)]),
    "addmm of a number": (torch.addmm, [(), (5, 7), (7, 3)]),
    "baddbmm": (torch.baddbmm, [(2, 5, 3), (2, 5, 7), (2, 7, 3)]),
    "baddbmm of a row": (torch.baddbmm, [(3,), (2, 5, 7), (2, 7, 3)]),
    "addmv": (torch.addmv, [(5,), (5, 7), (7,)]),
    "matmul": (torch.matmul, [(2, 3, 5, 7), (2, 3, 7, 4)]),
    "matmul broadcast": (torch.matmul, [(2, 1, 5, 7), (3, 7, 4)]),
    "linear": (torch.nn.functional.linear, [(2, 5, 7), (3, 7), (3,)]),
    "einsum": (lambda a, b: torch.einsum("bhid,bhjd->bhij", a, b), [(2, 3, 5, 7), (2, 3, 4, 7)]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_operators(name: str, dtype: torch.dtype) -> None:
    fn, shapes = CALLS[name]
    own(fn, *(_x(*shape, dtype=dtype) for shape in shapes))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.complex64], ids=str)
def test_what_only_the_library_multiplies(dtype: torch.dtype) -> None:
    x = torch.ones(4, 4, dtype=dtype)
    program = fused(torch.mm, x, x, products="own")
    assert [type(step) for step in program.steps] == [Library]


SIZES = [(1, 1, 1), (1, 5, 1), (5, 1, 3), (1, 7, 3), (5, 7, 1), (1, 1, 4)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sides_of_one(sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    own(lambda a, b, c: torch.relu(a @ b + c), _x(m, k), _x(k, n), _x(n))
    own(torch.bmm, _x(1, m, k), _x(1, k, n))


@pytest.mark.parametrize("sizes", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)], ids=str)
def test_sides_of_zero(sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    assert_same(lambda a, b: a @ b + 1, _x(m, k), _x(k, n), products="own")


LAYOUTS: dict[str, Callable[[int, int], torch.Tensor]] = {
    "rows": _x,
    "columns": lambda m, n: _x(n, m).t(),
    "slice of rows": lambda m, n: _x(m + 3, n)[2:-1],
    "slice of columns": lambda m, n: _x(m, n + 4)[:, 1:-3],
    "every other": lambda m, n: _x(2 * m, 3 * n)[::2, ::3],
    "one row": lambda m, n: _x(1, n).expand(m, n),
    "one column": lambda m, n: _x(m, 1).expand(m, n),
    "one number": lambda m, n: _x(1, 1).expand(m, n),
    "of three": lambda m, n: _x(m, 4, n)[:, 2],
}


@pytest.mark.parametrize(("left", "right"), list(itertools.product(LAYOUTS, LAYOUTS)))
def test_views_of_factors(left: str, right: str) -> None:
    """Each is a stride of the kernel's: nothing is copied."""
    torch.manual_seed(0)
    program = own(torch.mm, LAYOUTS[left](4, 6), LAYOUTS[right](6, 5))
    assert len(program.steps) == 1


def test_views_inside_the_graph() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        p = (x @ w).view(3, 4, 2, 2, 5).permute(2, 0, 3, 1, 4)
        return p[0] @ p[1].transpose(-1, -2)

    own(fn, _x(12, 6), _x(6, 20), count=2)


COPIES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "transposed": (lambda a, b: a.t().contiguous() @ b, [(4, 6), (4, 5)]),
    "heads": (
        lambda a, b: a.view(2, 3, 4, 5).transpose(1, 2) @ b.view(2, 7, 4, 5).permute(0, 2, 3, 1),
        [(6, 20), (14, 20)],
    ),
    "sum over two dims": (lambda a, b: a.permute(1, 0, 2).reshape(3, 20) @ b, [(4, 3, 5), (20, 6)]),
    "both": (
        lambda a, b: a.permute(2, 0, 1).reshape(5, 12) @ b.permute(2, 1, 0).reshape(12, 7),
        [(4, 3, 5), (7, 3, 4)],
    ),
    "rows of two dims": (lambda a, b: a.permute(2, 0, 1).reshape(20, 3) @ b, [(4, 3, 5), (3, 6)]),
    "slice of a copy": (lambda a, b: a.t().contiguous()[1:4, 2:] @ b, [(6, 5), (4, 3)]),
    "broadcast": (lambda a, b: a.expand(3, 4, 5).reshape(12, 5) @ b, [(4, 5), (5, 2)]),
    "copy of a copy": (lambda a, b: a.t().contiguous().t().contiguous() @ b, [(4, 6), (6, 5)]),
    "wider": (lambda a, b: a.bfloat16().float() @ b.double().float(), [(4, 6), (6, 5)]),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_of_factors(name: str) -> None:
    fn, shapes = COPIES[name]
    own(fn, *(_x(*shape) for shape in shapes))


@pytest.mark.parametrize("name", ["transposed", "heads", "sum over two dims", "both", "broadcast", "copy of a copy"])
def test_copies_of_factors_are_not_made(name: str) -> None:
    fn, shapes = COPIES[name]
    assert len(fused(fn, *(_x(*shape) for shape in shapes), products="own").steps) == 1


def test_wider_copies_are_not_made() -> None:
    """What a library without code for bfloat16 is given: float32 of it."""
    program = own(lambda a, b: (a.float() @ b.float()).bfloat16(), _x(4, 6).bfloat16(), _x(6, 5).bfloat16())
    assert len(program.steps) == 1


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("floats", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_small_integers_are_read_by_products(dtype: torch.dtype, floats: torch.dtype) -> None:
    """Quantized weights: no copy of them as floats."""
    weight = torch.randint(*(0, 256) if dtype is torch.uint8 else (-128, 128), (24, 40)).to(dtype)
    scale = torch.rand(24).to(floats)
    fn = lambda x, w, s: torch.nn.functional.linear(x, w.to(x.dtype)) * s  # noqa: E731
    for rows in (1, 3, 70):
        assert len(own(fn, (_x(rows, 40) / 128).to(floats), weight, scale).steps) == 1


def test_larger_integers_are_converted_before_products() -> None:
    """Floats do not represent all of them."""
    weight = torch.randint(-9, 10, (24, 40), dtype=torch.int32)
    assert len(own(lambda x, w: torch.mm(x, w.float().t()), _x(3, 40), weight).steps) == 2


@pytest.mark.parametrize(("cycles", "reads_integers"), [(2e5, True), (3e5, False)])
def test_quantized_weights_are_multiplied_where_converting_them_takes_longer(
    monkeypatch: pytest.MonkeyPatch, cycles: float, reads_integers: bool
) -> None:
    """Whatever the library takes for the product itself, which is unknown."""
    _library_takes(monkeypatch, "was not measured")
    monkeypatch.setattr(product_choice, "is_as_fast", lambda dtype: False)
    monkeypatch.setattr(TargetChoice, "contraction_cycles", lambda *_: cycles)
    weight = torch.randint(-128, 128, (1024, 256), dtype=torch.int8)
    program = fused(lambda x, w: torch.mm(x, w.float().t()), _x(1, 256), weight)
    assert bool(products(program)) is reads_integers


def test_copies_that_others_read_are_made() -> None:
    program = own(lambda a, b: (lambda c: (c @ b, c))(a.t().contiguous()), _x(4, 6), _x(4, 5))
    assert len(program.steps) == 2


@pytest.mark.parametrize("alpha", [1, 0, 2.5])
@pytest.mark.parametrize("beta", [1, 0, 0.5])
def test_scaled_sums(alpha: float, beta: float) -> None:
    def fn(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return aten.addmm.default(c, a, b, alpha=alpha, beta=beta)

    own(fn, _x(4, 5), _x(4, 6), _x(6, 5))


def test_what_is_added_zero_times_is_not_read() -> None:
    def fn(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return aten.addmm.default(c, a, b, beta=0)

    program = own(fn, torch.full((4, 5), float("nan")), _x(4, 6), _x(6, 5))
    assert "x0" not in products(program)[0].args


EPILOGUES: dict[str, Callable[..., Any]] = {
    "bias": lambda p, b, r, s: p + b,
    "activation": lambda p, b, r, s: torch.nn.functional.gelu(p + b),
    "residual": lambda p, b, r, s: torch.relu(p + b) + r,
    "scale of each row": lambda p, b, r, s: p * s + b,
    "cast": lambda p, b, r, s: (p + b).bfloat16(),
    "two results": lambda p, b, r, s: (torch.relu(p + b), torch.sigmoid(p)),
    "the sums too": lambda p, b, r, s: (p, torch.tanh(p + b)),
    "mask": lambda p, b, r, s: torch.where(torch.arange(6)[:, None] >= torch.arange(8), p, float("-inf")),
    "residual computed here": lambda p, b, r, s: p + torch.sin(r) * s,
    "twice": lambda p, b, r, s: p * torch.sigmoid(p),
    "view": lambda p, b, r, s: torch.relu(p.view(2, 3, 8) + b) + r.view(2, 3, 8),
}


@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues(name: str) -> None:
    """What follows at the same points is in the kernel of the product, all of it one loop."""

    def fn(a: torch.Tensor, w: torch.Tensor, b: torch.Tensor, r: torch.Tensor, s: torch.Tensor) -> Any:
        return EPILOGUES[name](a @ w.t(), b, r, s)

    program = own(fn, _x(6, 5), _x(8, 5), _x(8), _x(6, 8), _x(6, 1))
    assert len(program.steps) == 1
    assert [stage.loop for stage in products(program)[0].kernel.stages] == [True]


APART: dict[str, tuple[Callable[..., Any], int]] = {
    "fold": (lambda p: p.sum(0), 2),
    "softmax": (lambda p: torch.exp(p - p.amax(-1, keepdim=True)), 2),
    "scan": (lambda p: p.cumsum(0), 2),
    "transposed": (lambda p: p.t() + p, 2),
    "both": (lambda p: (torch.relu(p), torch.relu(p).sum(1)), 2),
}


@pytest.mark.parametrize("name", APART)
def test_what_has_a_kernel_of_its_own(name: str) -> None:
    """What is read elsewhere is stored, and nothing is multiplied twice."""
    follow, steps = APART[name]
    program = own(lambda a, b: follow(a @ b), _x(6, 5), _x(5, 6))
    assert len(program.steps) == steps


def test_what_folds_read_is_stored_once() -> None:
    """Of what follows a product as much is computed with it as leaves one thing for others to read."""

    def fn(a: torch.Tensor, b: torch.Tensor, r: torch.Tensor, x: torch.Tensor) -> Any:
        h = a @ b + r
        g = h * x[0]
        return h - g.mean(-1, keepdim=True) - x * (g * x).mean(-1, keepdim=True), (h * x).sum(0)

    program = own(fn, _x(6, 5), _x(5, 7), _x(6, 7), _x(6, 7))
    (product,) = products(program)
    assert [buffer.role for buffer in product.kernel.buffers].count(Role.OUTPUT) == 1


def test_products_do_not_join() -> None:
    own(lambda a, b, c: a @ b + a @ c, _x(4, 5), _x(5, 6), _x(5, 6), count=2)
    own(lambda a, b, c: torch.relu(a @ b) @ c, _x(4, 5), _x(5, 6), _x(6, 7), count=2)
    own(lambda a: (a @ a) @ a, _x(5, 5), count=2)


def test_read_by_many_is_multiplied_once() -> None:
    def fn(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        p = a @ b
        return (p + 1).t().contiguous(), (p * c).sum(0), p.sum(), torch.relu(p + c)

    own(fn, _x(6, 5), _x(5, 7), _x(7))


def test_a_factor_is_not_written_over() -> None:
    """The last reading of a factor is in a kernel whose result is as long: other points need it still."""

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = torch.sin(x) @ w
        return torch.relu((torch.tanh(h) @ w) * 2) + 1

    program = own(fn, _x(8, 8), _x(8, 8), count=2)
    for step in products(program):
        factors = {each.buffer for each in contraction(step).factors}  # type: ignore[union-attr]
        assert not factors & {buffer.name for buffer in step.kernel.buffers if buffer.role is not Role.INPUT}


def test_a_residual_may_be_written_over() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        r = torch.exp(x - x.amax(-1, keepdim=True))
        return (x @ w + r).sum(0)

    program = own(fn, _x(8, 8), _x(8, 8))
    assert [buffer.role for buffer in products(program)[0].kernel.buffers if buffer.role is Role.INOUT]


@pytest.mark.parametrize("budget", range(6))
def test_small_rewrite_budgets(budget: int) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(x.bfloat16() @ w.bfloat16() + b.bfloat16()).float().t() @ x

    own(fn, _x(6, 5), _x(5, 7), _x(7), count=2, budget=budget, atol=0.2, rtol=0.05)


RESULTS: dict[str, tuple[Callable[..., Any], int]] = {
    "transposed": (lambda p: p.transpose(1, 2).contiguous(), 1),
    "heads": (lambda p: p.view(2, 3, 4, 6).transpose(1, 2).reshape(2, 4, 18), 1),
    "split": (lambda p: p.view(2, 3, 4, 2, 3).permute(0, 3, 2, 1, 4).contiguous(), 1),
    "part": (lambda p: p[:, 1:3, 2:].permute(2, 0, 1).contiguous(), 1),
    "copied and followed": (lambda p: torch.relu(p.transpose(1, 2).contiguous() + 1), 1),
    "copied and kept": (lambda p: (p.transpose(1, 2).contiguous(), p), 2),
    "copied twice": (lambda p: (p.transpose(1, 2).contiguous(), p.permute(2, 0, 1).contiguous()), 2),
    "spread": (lambda p: p[:, :, None].expand(6, 4, 2, 6).contiguous(), 2),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_are_computed_where_they_are_copied_to(name: str) -> None:
    follow, most = RESULTS[name]
    program = own(lambda a, b: follow(torch.bmm(a, b)), _x(6, 4, 5), _x(6, 5, 6))
    assert len(program.steps) <= most


@pytest.mark.parametrize(("dearer", "steps"), [(10, 1), (1_000, 2)])
def test_results_are_copied_where_computing_them_there_takes_longer(
    monkeypatch: pytest.MonkeyPatch, dearer: float, steps: int
) -> None:
    def cycles(self: TargetChoice, device: torch.device, kernel: Any) -> float:
        return dearer if kernel.cols[-1].size == 4 else 0.0  # rows of the transposed result

    monkeypatch.setattr(TargetChoice, "contraction_cycles", cycles)
    program = own(lambda a, b: torch.mm(a, b).t().contiguous(), _x(4, 5), _x(5, 6))
    assert len(program.steps) == steps


def test_results_in_columns() -> None:
    """Whichever dim is innermost, rows of the kernel are what lies together."""

    def fn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return aten.mm.default(a, b)

    own(fn, _x(6, 5), _x(7, 5).t())
    own(lambda a, b: aten.bmm.default(a, b).transpose(1, 2).contiguous(), _x(3, 6, 5), _x(3, 5, 7))


@pytest.mark.parametrize(
    "change", ['torch.set_float32_matmul_precision("medium")', 'torch.backends.mkldnn.matmul.fp32_precision = "bf16"']
)
def test_library_may_round(change: str) -> None:
    """Either way to allow that is seen. In a process of its own, for PyTorch does not undo all of it."""
    done = run(f"""
import torch
from smelt.device.host_library import may_round_products
assert not may_round_products()
{change}
assert may_round_products()
""")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("rounds", "count"), [(True, 0), (False, 1)])
def test_rounded_products_are_the_librarys(monkeypatch: pytest.MonkeyPatch, rounds: bool, count: int) -> None:
    _library_takes(monkeypatch, 1e9)
    monkeypatch.setattr(product_choice, "may_round_products", lambda: rounds)
    monkeypatch.setattr(TargetChoice, "contraction_cycles", lambda *_: 1.0)
    assert len(products(fused(torch.mm, _x(64, 32), _x(32, 48)))) == count
    assert len(products(fused(torch.mm, _x(64, 32).double(), _x(32, 48).double()))) == 1


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs(seed: int) -> None:
    """Products and pointwise work among views, in any order."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    sizes = [rng.choice((1, 2, 3, 5, 8)) for _ in range(4)]

    def matrix(m: int, n: int) -> torch.Tensor:
        return LAYOUTS[rng.choice(list(LAYOUTS))](m, n)

    given = [matrix(m, n) for m, n in itertools.product(sizes, sizes)]
    plan = rng.random()

    def fn(*args: torch.Tensor) -> Any:
        choice = random.Random(plan)
        made = list(args)
        for _ in range(6):
            a = choice.choice(made)
            kind = choice.randrange(5)
            if kind <= 2:
                b = choice.choice([each for each in made if each.shape[0] == a.shape[1]] or [a.t()])
                made.append(a @ b)
            elif kind == 3:
                b = choice.choice([each for each in made if each.shape == a.shape])
                made.append(torch.tanh(a) + b * 0.5)
            else:
                summed = a.sum(choice.randrange(2), keepdim=True)
                made.append(a.t() if choice.random() < 0.5 else torch.relu(a) + summed)
        return tuple(made[len(args) :])

    assert_same(fn, *given, products="own", rtol=1e-3, atol=1e-3)
