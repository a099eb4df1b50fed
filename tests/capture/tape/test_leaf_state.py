"""Leaves of the program that it changes inside a compiled function: `p.data = …`, `p.requires_grad_(…)`."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from tests.capture.programs import compare

BACKENDS = ["eager", "aot_eager", "llvm"]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    smelt.reset()


class World:
    """What programs work on: a model, another like it, and what they keep."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model: Any = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        self.other: Any = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.before = [each.data for each in self.model.parameters()]
        self.kept: list[Any] = []

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.model(x), torch.arange(len(x)) % 3)

    def told(self) -> list[Any]:
        found: list[Any] = [*self.before, *self.kept]
        for module in (self.model, self.other):
            for each in module.parameters():
                found += [each.detach(), each.grad, each.requires_grad, each._version]
        return found


def _by_hand(world: World, x: torch.Tensor) -> Any:
    loss = world.loss(x)
    loss.backward()
    for each in world.model.parameters():
        assert each.grad is not None
        each.data = each.data - 0.1 * each.grad.data
        each.grad = None
    return loss.detach()


def _averaged(world: World, x: torch.Tensor) -> Any:
    for mean, each in zip(world.other.parameters(), world.model.parameters(), strict=True):
        mean.data = 0.9 * mean.data + 0.1 * each.data
    return x.sin()


def _twice(world: World, x: torch.Tensor) -> Any:
    for each in world.model.parameters():
        each.data = each.data * 0.5
        each.data = each.data + 1
        each.data.clamp_(0.9, 1.1)
    return x + 1


def _clipped_in_no_grad(world: World, x: torch.Tensor) -> Any:
    with torch.no_grad():
        for each in world.model.parameters():
            each.data = each.clamp(-0.1, 0.1)
    return world.model[0].weight


def _frozen(world: World, x: torch.Tensor) -> Any:
    y = x.cos()
    for each in world.model[0].parameters():
        each.requires_grad_(False)
    for each in world.other.parameters():
        each.requires_grad = not each.requires_grad
    return y, world.model[0].weight.requires_grad, world.other[0].bias.requires_grad


def _frozen_and_back(world: World, x: torch.Tensor) -> Any:
    for flag in (False, True, False):
        for each in world.model.parameters():
            each.requires_grad_(flag)
    return x.cos()


def _shared_with_what_is_kept(world: World, x: torch.Tensor) -> Any:
    made = world.model[0].bias.detach() * 2
    world.model[0].bias.data = made
    made.add_(1)
    world.kept.append(made)
    return made


WHOLE = [_by_hand, _averaged, _twice, _clipped_in_no_grad, _frozen, _frozen_and_back, _shared_with_what_is_kept]


def _used_again(world: World, x: torch.Tensor) -> Any:
    _averaged(world, x)
    return world.other(x)


def _sharpness_aware(world: World, x: torch.Tensor) -> Any:
    world.loss(x).backward()
    olds = []
    with torch.no_grad():
        for each in world.model.parameters():
            assert each.grad is not None
            olds.append(each.data.clone())
            each.add_(each.grad * 0.05)
    world.opt.zero_grad()
    loss = world.loss(x)
    loss.backward()
    for each, old in zip(world.model.parameters(), olds, strict=True):
        each.data = old
    world.opt.step()
    return loss.detach()


def _trained_in_part(world: World, x: torch.Tensor) -> Any:
    for each in world.model[0].parameters():
        each.requires_grad_(False)
    world.opt.zero_grad()
    loss = world.loss(x)
    loss.backward()
    world.opt.step()
    for each in world.model[0].parameters():
        each.requires_grad_(True)
    return loss.detach()


def _gone_back_to_afterwards(world: World, x: torch.Tensor) -> Any:
    loss = (world.model[0].bias * x.sum()).exp().sum()
    world.model[0].bias.data = world.model[0].bias.data * 2
    loss.backward()
    return loss.detach()


def _by_another_name(world: World, x: torch.Tensor) -> Any:
    world.model[0].bias.data = world.model[0].bias.data * 2
    again: Any = world.opt.param_groups[0]["params"][1]
    return again * 3


def _of_another_size(world: World, x: torch.Tensor) -> Any:
    world.kept[:] = [nn.Parameter(torch.zeros(2))]
    world.model[0].bias.data = world.model[0].bias.data.double()
    world.model[0].bias.data = world.model[0].bias.data.float()
    return x + 1


def _shares_the_memory_of_another(world: World, x: torch.Tensor) -> Any:
    world.model[0].bias.data = world.other[0].bias.data
    with torch.no_grad():
        world.model[0].bias.add_(1)
    return x + 1


def _out_of_one_vector(world: World, x: torch.Tensor) -> Any:
    vector = nn.utils.parameters_to_vector(world.model.parameters()).detach() * 2
    nn.utils.vector_to_parameters(vector, world.model.parameters())
    vector.mul_(0.5)
    return vector


BREAKING = [
    _used_again,
    _sharpness_aware,
    _trained_in_part,
    _gone_back_to_afterwards,
    _by_another_name,
    _of_another_size,
    _shares_the_memory_of_another,
    _out_of_one_vector,
]


def _run(program: Callable[..., Any], wrap: Callable[..., Any]) -> list[Any]:
    world, call = World(), wrap(program)
    found: list[Any] = []
    for number in range(4):
        torch.manual_seed(number)
        result = call(world, torch.randn(5, 6))
        found += result if isinstance(result, tuple) else [result]
        found = [each.detach().clone() if isinstance(each, torch.Tensor) else each for each in found]
    return [*found, *world.told()]


def _same(ours: list[Any], theirs: list[Any]) -> None:
    for mine, eager in zip(ours, theirs, strict=True):
        if isinstance(eager, torch.Tensor):
            assert mine.requires_grad == eager.requires_grad and type(mine) is type(eager)
            torch.testing.assert_close(mine, eager, rtol=1e-5, atol=1e-6)
        else:
            assert mine == eager


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", WHOLE, ids=lambda each: each.__name__.strip("_"))
def test_leaves_are_changed_after_one_graph(program: Callable[..., Any], backend: str) -> None:
    ours = _run(program, lambda each: smelt.compile(each, backend=backend, fullgraph=True))
    _same(ours, _run(program, lambda each: each))
    assert smelt.counters["graphs"] <= 3  # by what the calls find


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", BREAKING, ids=lambda each: each.__name__.strip("_"))
def test_a_leaf_that_is_used_again_is_what_it_has_become(program: Callable[..., Any], backend: str) -> None:
    ours = _run(program, lambda each: smelt.compile(each, backend=backend))
    _same(ours, _run(program, lambda each: each))


def test_a_change_of_all_parameters_is_at_most_one_break() -> None:
    for program in (_used_again, _sharpness_aware):
        smelt.reset()
        told = smelt.explain(program, backend="eager")(World(), torch.randn(5, 6))
        assert [each.code for each in told.break_reasons] == ["B015"]
        assert "before a tensor is used again" in told.break_reasons[0].reason


def test_resizing_to_the_same_size_breaks_no_graph() -> None:
    def program(x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        buffer.resize_(x.shape)
        buffer.copy_(x)
        return buffer.resize_(2, 3) + 1

    runner = compare(program, torch.randn(2, 3), torch.zeros(3, 2).t())
    assert runner.breaks == []
    assert compare(program, torch.randn(2, 3), torch.zeros(0)).break_codes == ["B015"]
