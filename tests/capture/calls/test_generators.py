"""`torch.Generator`s of the program in compiled functions: the same numbers, and the same state afterwards."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt

BACKENDS = ["eager", "aot_eager", "llvm"]
SHARED = torch.Generator()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    smelt.reset()


def _noise(x: torch.Tensor, g: torch.Generator, other: torch.Generator) -> Any:
    mask = torch.bernoulli(torch.full_like(x, 0.8), generator=g)
    return x * mask / 0.8 + torch.randn(x.shape, generator=g), torch.randperm(5, generator=g)


def _in_place(x: torch.Tensor, g: torch.Generator, other: torch.Generator) -> Any:
    made = torch.empty_like(x).normal_(0, 0.1, generator=g)
    return made + x.uniform_(generator=g), torch.empty(3).random_(7, generator=g)


def _beside_the_default(x: torch.Tensor, g: torch.Generator, other: torch.Generator) -> Any:
    mixed = F.dropout(x, 0.5) + torch.rand(x.shape, generator=g) + torch.rand(x.shape)
    return mixed, torch.randint(9, (4,), generator=g)


def _of_a_global(x: torch.Tensor, g: torch.Generator, other: torch.Generator) -> Any:
    return x + torch.rand(x.shape, generator=SHARED), torch.rand(2, generator=g)


def _two(x: torch.Tensor, g: torch.Generator, other: torch.Generator) -> Any:
    return torch.rand(3, generator=g) - torch.rand(3, generator=other) + torch.rand(3, generator=g)


def _chosen(x: torch.Tensor, g: torch.Generator, other: torch.Generator) -> Any:
    return torch.multinomial(x.softmax(-1), 2, generator=g)


PROGRAMS = [_noise, _in_place, _beside_the_default, _of_a_global, _two, _chosen]


def _run(program: Callable[..., Any], call: Callable[..., Any], two: bool) -> list[Any]:
    SHARED.manual_seed(5)
    found: list[Any] = []
    for number in range(4):
        torch.manual_seed(number)
        g, other = torch.Generator().manual_seed(number), torch.Generator().manual_seed(9)
        for _ in range(2):
            found.append(call(torch.ones(2, 6), g, other if two else g))
        found += [g.get_state(), other.get_state(), SHARED.get_state(), torch.get_rng_state()]
    return found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__.strip("_"))
def test_generators_of_each_call_are_drawn_from(program: Callable[..., Any], backend: str) -> None:
    compiled = smelt.compile(program, backend=backend, fullgraph=True)
    torch.testing.assert_close(_run(program, compiled, True), _run(program, program, True))
    assert smelt.counters["graphs"] == 1


def test_two_generators_that_are_one() -> None:
    compiled = smelt.compile(_two, fullgraph=True)
    for two in (True, False, True):
        torch.testing.assert_close(_run(_two, compiled, two), _run(_two, _two, two))


def test_a_graph_that_raises_has_drawn_nothing() -> None:
    def f(x: torch.Tensor, at: torch.Tensor, g: torch.Generator) -> Any:
        return torch.rand(3, generator=g) + x[at]

    compiled, g = smelt.compile(f), torch.Generator().manual_seed(1)
    compiled(torch.ones(3), torch.tensor([0, 1, 2]), g)
    once = torch.Generator().manual_seed(1)
    torch.rand(3, generator=once)
    torch.rand(3, generator=once)
    with pytest.raises(IndexError):
        compiled(torch.ones(3), torch.tensor([0, 1, 7]), g)
    assert torch.equal(g.get_state(), once.get_state())  # drawn from once by each call, as in eager


def test_threads_with_generators_of_their_own() -> None:
    def f(x: torch.Tensor, g: torch.Generator) -> torch.Tensor:
        for _ in range(4):
            x = x + torch.rand(x.shape, generator=g)
        return x

    compiled, x = smelt.compile(f), torch.ones(50)
    compiled(x, torch.Generator())
    wrong: list[int] = []

    def work(seed: int) -> None:
        g, eager = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
        for _ in range(20):
            if not torch.equal(compiled(x, g), f(x, eager)):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("name", ["exponential_", "log_normal_", "cauchy_"])
def test_distributions_that_cannot_be_described_are_left_to_python(name: str) -> None:
    def f(x: torch.Tensor, g: torch.Generator) -> Any:
        return getattr(torch.empty_like(x), name)(generator=g) * x

    x = torch.ones(5)
    found = smelt.compile(f)(x, torch.Generator().manual_seed(1))
    torch.testing.assert_close(found, f(x, torch.Generator().manual_seed(1)))
    told = smelt.explain(f, backend="eager")(x, torch.Generator())
    assert told.break_reasons[0].code == "B017" and name in told.break_reasons[0].reason
