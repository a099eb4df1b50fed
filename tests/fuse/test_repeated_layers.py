"""Groups of repeated layers share a kernel if they are alike in all that it follows from; cycles are found wherever
merging has put groups."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from smelt.fuse.groups import Group, Groups
from smelt.fuse.target_choice import TargetChoice
from tests.fuse.running import assert_same, fused

Tensor = torch.Tensor


def zeros(x: Tensor) -> Any:
    return (x * 0.0).sum(-1), (x * -0.0).sum(-1), torch.atan2(x * 0.0, x - 1), torch.atan2(x * -0.0, x - 1)


def numbers(x: Tensor) -> Any:
    return (x + 1).amax(-1), (x + 2).amax(-1), (x + 1.5).amax(-1), (x + 1).amax(-1, keepdim=True)


def dtypes(x: Tensor) -> Any:
    return x.exp().sum(-1), x.double().exp().sum(-1), x.bfloat16().exp().sum(-1), x.exp().sum(-1, dtype=torch.float64)


def layouts(x: Tensor) -> Any:
    return x.exp().sum(-1), x.t().exp().sum(-1), x[:, ::2].exp().sum(-1), x[2:].exp().sum(-1), x.exp().sum(0)


def folds(x: Tensor) -> Any:
    return x.exp().sum(-1), x.exp().amax(-1), x.exp().mean(-1), x.exp().prod(-1)


def stored(x: Tensor) -> Any:
    first, second = x.exp(), x.sin().exp()
    return first.sum(-1), first, second.sum(-1)


def wired(x: Tensor) -> Any:
    y = x.flip(0)
    return (x - y).sum(-1), (y - x).sum(-1), (x - x.t()).sum(-1), (x.t() - x).sum(-1)


@pytest.mark.parametrize("program", [zeros, numbers, dtypes, layouts, folds, stored, wired], ids=lambda p: p.__name__)
def test_layers_that_differ_in_one_thing(program: Callable[..., Any]) -> None:
    assert_same(program, torch.randn(6, 6))


def test_equal_layers_share_kernels() -> None:
    def layers(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(6):
            x = (x @ w).tanh()
            x = x / x.exp().sum(-1, keepdim=True)
        return x

    program = fused(layers, torch.randn(8, 8), torch.randn(8, 8))
    assert len(program.kernels) == 6  # one for each launch
    assert len(set(program.kernels)) == 1


@pytest.mark.parametrize("seed", range(40))
def test_cycles_are_found_wherever_groups_stand(seed: int) -> None:
    """Groups of a random graph, merged as long as that closes no cycle, against a search of the whole graph."""
    source = random.Random(seed)
    groups = Groups(TargetChoice())
    made: list[Group] = []
    for number in range(24):
        group = Group(number, merged=[number])
        groups.by_id[number] = group
        groups._depend(group, source.sample(made, min(len(made), source.randrange(3))))
        made.append(group)
    for _ in range(60):
        one, other = source.sample(made, 2)
        closes = groups.closes_cycle(one, other)
        assert closes is (_leads(one, other) or _leads(other, one))
        if not closes:
            groups.absorb(one, other)
            made.remove(other)
            assert set(groups.by_id.values()) == set(made)
        for group in made:
            assert all(before.place < group.place and group in before.successors for before in group.predecessors)
        assert len({group.place for group in made}) == len(made)
        if len(made) < 3:
            break


def _leads(one: Group, other: Group) -> bool:
    """Whether there is a way from one group to another through a third."""
    pending = [group for group in one.successors if group is not other]
    seen = {one}
    while pending:
        group = pending.pop()
        if group is other:
            return True
        if group not in seen:
            seen.add(group)
            pending.extend(group.successors)
    return False
