"""Random-number state by device: saved, put back, and asked of the device that an operator draws on."""

from types import SimpleNamespace

import pytest
import torch

import smelt
from smelt.device import random_state


@pytest.fixture
def generators(monkeypatch: pytest.MonkeyPatch) -> list[torch.Generator]:
    """What `torch.cuda` has for two GPUs."""
    made = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
    stub = SimpleNamespace(default_generators=tuple(made), is_initialized=lambda: True, is_available=lambda: True)
    monkeypatch.setattr(random_state.torch, "cuda", stub)
    return made


def test_each_device_has_its_generator(generators: list[torch.Generator]) -> None:
    assert random_state.default_generator(torch.device("cpu")) is torch.default_generator
    assert random_state.default_generator(torch.device("cuda", 1)) is generators[1]
    assert random_state.default_generator(torch.device("cuda")) is generators[0]
    assert {"cpu", "cuda:0", "cuda:1"} <= set(random_state.all_devices())


def test_state_is_saved_and_put_back(generators: list[torch.Generator]) -> None:
    saved = random_state.save(("cpu", "cuda:1"))
    drawn = [torch.rand(2, generator=each) for each in (torch.default_generator, *generators)]
    random_state.restore(saved)
    after = [torch.rand(2, generator=each) for each in (torch.default_generator, *generators)]
    assert [torch.equal(one, other) for one, other in zip(drawn, after, strict=True)] == [True, False, True]


def test_what_is_drawn_inside_was_not_drawn(generators: list[torch.Generator]) -> None:
    before = [each.get_state() for each in (torch.default_generator, *generators)]
    with random_state.kept():
        for each in (torch.default_generator, *generators):
            torch.rand(3, generator=each)
    after = [each.get_state() for each in (torch.default_generator, *generators)]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_a_graph_that_raises_has_drawn_nothing() -> None:
    table = torch.randn(4, 2)

    def noisy(i: torch.Tensor) -> torch.Tensor:
        return torch.rand(2) + table[i]

    compiled = smelt.compile(noisy)
    torch.manual_seed(0)
    compiled(torch.tensor([1]))
    state = torch.get_rng_state()
    with pytest.raises(IndexError):
        compiled(torch.tensor([9]))
    drawn = torch.get_rng_state()
    torch.set_rng_state(state)
    with pytest.raises(IndexError):
        noisy(torch.tensor([9]))
    assert torch.equal(drawn, torch.get_rng_state())
