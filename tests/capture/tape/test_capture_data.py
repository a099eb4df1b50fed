"""`smelt.config.capture_data`: sizes, integers and branches that only data tell, captured without `fullgraph=True`."""

import contextlib
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import smelt

BACKENDS = ("eager", "aot_eager", "llvm")


@pytest.fixture(autouse=True)
def _capture_data() -> Iterator[None]:
    smelt.reset()
    smelt.config.capture_data = True
    yield
    smelt.config.capture_data = False


def kept(x: torch.Tensor) -> torch.Tensor:
    y = x[x > 0]
    return x - 1 if y.shape[0] == 0 else y.sin()


def branches(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        x = x + 1
    if x.max() > 3:
        return x * 2
    return x / max(1, (x > 1).sum())


def drawn(x: torch.Tensor) -> torch.Tensor:
    scales = [1, 2, 3, 4, 5, 6, 7, 8]
    return x * scales[int(x.abs().max().item())]


def one_mask(x: torch.Tensor) -> torch.Tensor:
    mask = x > 0
    (places,) = torch.where(mask)
    best, order = x[mask].topk(min(3, places.shape[0]))
    return best * places[order] + mask.nonzero().sum()


def written_places(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    mask = x > 0
    (places,) = torch.where(mask)
    (others,) = torch.where(mask)
    places.add_(10)
    return places, others, x[mask], mask.nonzero()


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x[x > 0]
    print("between")
    z = y[y > 1]
    return z * 2 if len(z) == 2 else z


def _inputs() -> list[torch.Tensor]:
    torch.manual_seed(0)
    rows = [torch.randn(n) * scale for n in (2, 3, 6) for scale in (0.5, 3.0)]
    return [*rows, -torch.ones(4), torch.ones(4), torch.tensor([-1.0, 2.0, -3.0])]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", [kept, branches, drawn, one_mask, written_places, broken])
def test_calls_are_eagers(function: Callable[..., Any], backend: str) -> None:
    compiled = smelt.compile(function, backend=backend)
    for x in _inputs():
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        with contextlib.redirect_stdout(io.StringIO()):
            got, wanted = compiled(ours), function(theirs)
        torch.testing.assert_close(got, wanted)
        if isinstance(got, torch.Tensor):
            assert got.requires_grad == wanted.requires_grad
            got.sum().backward()
            wanted.sum().backward()
            torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("function", [kept, branches, drawn, one_mask])
def test_nothing_breaks(function: Callable[..., Any]) -> None:
    compiled = smelt.compile(function, backend="eager")
    for x in _inputs():
        compiled(x)
    assert smelt.counters["graph_breaks"] == 0
    assert smelt.counters["graphs"] <= 18  # a few versions for one size, then for sizes as symbols


def test_known_sizes_and_branches_are_captured_once() -> None:
    compiled = smelt.compile(kept, backend="eager")
    compiled(torch.randn(8).abs())
    graphs = smelt.counters["graphs"]
    for _ in range(5):
        compiled(torch.randn(8))
    assert smelt.counters["graphs"] == graphs


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_int_of_what_is_no_number_raises_as_in_python(value: float) -> None:
    compiled = smelt.compile(drawn, backend="eager")
    compiled(torch.ones(3))
    with pytest.raises((OverflowError, ValueError), match="cannot convert float"):
        compiled(torch.tensor([1.0, value]))


def test_branches_break_graphs_without_it() -> None:
    smelt.config.capture_data = False
    smelt.compile(branches, backend="eager")(torch.ones(3))
    assert smelt.counters["graph_breaks"] > 0


def test_an_operator_is_looked_up_after_something_was_written() -> None:
    """`torch.ops.<library>` makes its attributes on demand; it was asked to only where nothing waited to be written."""
    library = torch.library.Library("smelt_tests_lookup", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")
    seen: list[int] = []

    def function(x: torch.Tensor) -> Any:
        seen.append(1)
        return torch.ops.smelt_tests_lookup.twice(x)

    got = smelt.compile(function, backend="eager", fullgraph=True)(torch.ones(2))
    assert got.tolist() == [2.0, 2.0] and seen == [1]


def test_functions_that_are_scripted_if_traced_are_followed() -> None:
    @torch.jit.script_if_tracing
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    def function(x: torch.Tensor) -> Any:
        return inner(x * 2)

    x = torch.randn(3)
    torch.testing.assert_close(smelt.compile(function, backend="eager", fullgraph=True)(x), function(x))


def test_a_loop_is_captured_for_what_its_first_round_met() -> None:
    """Each round tells a size and decides a branch: met once, it is supposed of the other rounds."""

    def rounds(x: torch.Tensor, least: float) -> Any:
        total = x.sum() * 0
        for row in x:
            kept = row[row > least]
            if kept.sum() == 0:
                total = total + 1
            total = total + torch.unique(row).shape[0] + kept.numel()
        return total

    compiled = smelt.compile(rounds, backend="eager")
    x = torch.rand(12, 5)
    for least in (9.0, 9.0):
        torch.testing.assert_close(compiled(x, least), rounds(x, least))
    assert smelt.counters["graph_breaks"] == 0 and smelt.counters["graphs"] <= 4
    for least in (-1.0, 0.5):
        torch.testing.assert_close(compiled(x, least), rounds(x, least))


def test_a_graph_behind_a_break_is_captured_for_other_sizes() -> None:
    finished: list[int] = []

    def backend(module: Any, examples: Any) -> Any:
        def run(*args: Any) -> Any:
            result = module.forward(*args)
            finished.append(len(args))
            return result

        return run

    def function(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = x + 1
        smelt.graph_break()
        kept = y[mask]
        if kept.shape[0] == 0:
            return y.sum()
        return kept.sin().sum() * 2 if kept.shape[0] > 4 else kept.cos().sum()

    compiled, x = smelt.compile(function, backend=backend), torch.randn(8)
    for size in (3, 0, 6, 3, 0, 6, 1, 8):
        mask = torch.arange(8) < size
        finished.clear()
        torch.testing.assert_close(compiled(x, mask), function(x, mask))
        assert len(finished) == 2  # before the break and behind it
    assert smelt.counters["graphs"] == 4 and smelt.counters["graph_breaks"] == 1
