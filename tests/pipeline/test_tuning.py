"""`mode="max-speed"`: what is tried, what is kept, what is remembered, and that the numbers stay the same."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.base.errors import SmeltError
from smelt.base.options import CONVOLUTIONS, Options, config
from smelt.ir.graph import GraphLevel, Traced
from smelt.ir.tensorspec import TensorSpec, set_spec
from smelt.pipeline import tuning
from smelt.pipeline.cache.entries import CacheEntry
from smelt.pipeline.tuning import tuned
from smelt.runtime.cache import CacheFile


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("SMELT_CACHE", "1")
    monkeypatch.setattr(config, "disk_cache_dir", str(tmp_path))
    smelt.reset()
    yield tmp_path
    smelt.reset()


class Machine:
    """A clock and a compiler whose code takes as long as it is told, by the options it is compiled with."""

    def __init__(self, cost: Callable[[Options], float]) -> None:
        self.now = 0.0
        self.cost = cost
        self.compiled: list[Options] = []

    def clock(self) -> float:
        return self.now

    def compile(self, traced: Traced, options: Options) -> Callable[..., Any]:
        self.compiled.append(options)

        def run(*inputs: Any) -> tuple[Any, ...]:
            self.now += self.cost(options)
            return ()

        return run


def convolution() -> Traced:
    """A graph that convolves and is trained through."""
    graph = torch.fx.Graph()
    x, weight = graph.placeholder("x"), graph.placeholder("weight")
    set_spec(x, TensorSpec.of(torch.randn(2, 3, 8, 8)))
    set_spec(weight, TensorSpec.of(torch.randn(16, 3, 3, 3, requires_grad=True)))
    found = graph.call_function(nn.functional.conv2d, (x, weight))
    set_spec(found, TensorSpec.of(torch.randn(2, 16, 6, 6)))
    graph.output((found,))
    return Traced(graph, GraphLevel.TORCH, {})


def product() -> Traced:
    """A graph that multiplies."""
    graph = torch.fx.Graph()
    x, weight = graph.placeholder("x"), graph.placeholder("weight")
    set_spec(x, TensorSpec.of(torch.randn(8, 32)))
    set_spec(weight, TensorSpec.of(torch.randn(16, 32)))
    found = graph.call_function(nn.functional.linear, (x, weight))
    set_spec(found, TensorSpec.of(torch.randn(8, 16)))
    graph.output((found,))
    return Traced(graph, GraphLevel.TORCH, {})


@pytest.mark.parametrize("speed", [0.5, 2.0])
def test_kernels_for_products_are_kept_where_they_are_faster(
    cache: Path, monkeypatch: pytest.MonkeyPatch, speed: float
) -> None:
    machine = Machine(lambda options: speed if options.products == "own" else 1.0)
    monkeypatch.setattr(tuning, "clock", machine.clock)
    tried = tuned(product(), Options(tune=True), machine.compile)
    assert tried.products == ("own" if speed < 1 else "auto")


def on(machine: Machine, monkeypatch: pytest.MonkeyPatch, options: Options | None = None) -> Options:
    monkeypatch.setattr(tuning, "clock", machine.clock)
    return tuned(convolution(), options or Options(tune=True), machine.compile)


def faster_by_products(options: Options) -> float:
    return (0.5 if options.convolutions == "products" else 1.0) * (1.0 if options.recompute else 0.99)


def test_the_fastest_is_kept_and_what_wins_by_a_hair_is_not(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(faster_by_products)
    assert on(machine, monkeypatch) == Options(convolutions="products")
    assert {each.convolutions for each in machine.compiled} == set(CONVOLUTIONS)
    assert any(not each.recompute and each.convolutions == "products" for each in machine.compiled)
    assert smelt.counters["tuned_graphs"] == 1


def test_a_choice_is_remembered_and_nothing_is_timed_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = on(Machine(faster_by_products), monkeypatch)
    again = Machine(lambda options: pytest.fail("it was timed again"))
    assert on(again, monkeypatch) == first
    assert not again.compiled


def test_a_record_that_no_search_could_have_left_is_not_believed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = on(Machine(faster_by_products), monkeypatch)
    entry = CacheEntry.of(convolution(), Options())
    assert entry is not None
    key = f"{entry.key}\nchosen on {torch.get_num_threads()} threads"
    for chosen in ("[", {"max_rewrites": 3}, {"convolutions": "guessed"}, {"convolutions": []}, [3]):
        assert entry.store.get(key) is not None and entry.store.put(key, CacheFile({"chosen": chosen}))
        again = Machine(faster_by_products)
        assert on(again, monkeypatch) == first
        assert again.compiled


def test_what_the_user_has_settled_is_not_tried(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(faster_by_products)
    given = Options(tune=True, convolutions="library", memory_budget=0.5)
    assert on(machine, monkeypatch, given).convolutions == "library"
    assert {(each.convolutions, each.recompute) for each in machine.compiled} <= {("library", True)}


def test_a_graph_that_cannot_run_on_drawn_numbers_is_compiled_as_by_default(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(options: Options) -> float:
        raise ValueError("no such index")

    assert on(Machine(fails), monkeypatch) == Options()
    assert smelt.counters["tuned_graphs"] == 0


def test_what_is_not_pytorchs_own_is_not_run_on_drawn_numbers(cache: Path) -> None:
    seen: list[float] = []

    with torch.library._scoped_library("smelt_tuning_test", "FRAGMENT") as library:
        library.define("noted(Tensor x) -> Tensor")

        def noted(x: torch.Tensor) -> torch.Tensor:
            seen.append(float(x.sum()))
            return x + 1

        library.impl("noted", noted, "CPU")
        library.impl("noted", lambda x: torch.empty_like(x), "Meta")
        weight = torch.ones(3, requires_grad=True)  # so that there is a choice, however many threads there are
        compiled = smelt.compile(lambda x, w: torch.ops.smelt_tuning_test.noted(x).sin() * w, mode="max-speed")
        torch.testing.assert_close(compiled(torch.ones(3), weight).detach(), torch.full((3,), 2.0).sin())
    assert seen == [3.0]
    assert smelt.counters["tuned_graphs"] == 0


def test_explaining_shows_one_way_and_times_nothing(cache: Path) -> None:
    explained = smelt.explain(Net(), mode="max-speed")(torch.randn(2, 3, 12, 12))
    assert explained.graph_count == 1
    assert smelt.counters["tuned_graphs"] == 0


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16)
        self.each, self.last = nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        found: torch.Tensor = self.last(self.each(x).mean((2, 3))).square().mean()
        return found


def trained(**settings: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    net, x = Net(), torch.randn(2, 3, 12, 12, requires_grad=True)
    model = smelt.compile(net, **settings) if settings else net
    model(x).backward()
    assert x.grad is not None
    return [x.grad, *(p.grad for p in net.parameters() if p.grad is not None), net.norm.running_mean]  # type: ignore[list-item]


@pytest.mark.parametrize("how", CONVOLUTIONS)
def test_every_way_to_convolve_gives_the_same_numbers(how: str) -> None:
    found = trained(options={"convolutions": how, "fallback": False})
    torch.testing.assert_close(found, trained(), rtol=1e-4, atol=1e-5)


def test_max_speed_trains_as_eager_does_and_leaves_random_numbers_where_they_were(cache: Path) -> None:
    expected = trained()
    state = torch.get_rng_state()
    found = trained(mode="max-speed", options={"fallback": False})
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(state, torch.get_rng_state())
    assert smelt.counters["tuned_graphs"] == 1
    smelt.reset()
    torch.testing.assert_close(trained(mode="max-speed", options={"fallback": False}), expected, rtol=1e-4, atol=1e-5)
    assert smelt.counters["tuned_graphs"] == 0 and smelt.counters["cache_hits"]


def test_by_default_nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "tuned", lambda *given: pytest.fail("something was timed"))
    trained(mode="default", options={"fallback": False})


def test_an_unknown_way_to_convolve_is_refused_at_once() -> None:
    with pytest.raises(SmeltError, match="products"):
        smelt.compile(Net(), options={"convolutions": "fast"})
