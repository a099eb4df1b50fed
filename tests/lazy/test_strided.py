"""Views that outlive a run: found by their layouts in the next one, they are slices of their memory there."""

import random
from collections.abc import Callable

import pytest
import torch

import smelt
from smelt.lazy.paths.strided import calls_of


def _another(view: torch.Tensor, chance: random.Random) -> torch.Tensor:
    dim = chance.randrange(max(view.dim(), 1))
    match chance.choice(["narrow", "select", "transpose", "unsqueeze", "expand", "unflatten", "flatten", "steps"]):
        case "narrow" if view.dim():
            begin = chance.randrange(view.shape[dim])
            return view.narrow(dim, begin, chance.randint(1, view.shape[dim] - begin))
        case "select" if view.dim():
            return view.select(dim, chance.randrange(view.shape[dim]))
        case "transpose" if view.dim():
            return view.transpose(dim, chance.randrange(view.dim()))
        case "unsqueeze":
            return view.unsqueeze(dim)
        case "expand":
            return view.unsqueeze(dim).expand(*view.shape[:dim], 3, *view.shape[dim:])
        case "unflatten" if view.dim() and view.shape[dim] % 2 == 0:
            return view.unflatten(dim, (2, -1))
        case "flatten" if view.is_contiguous():
            return view.view(-1)
        case "steps" if view.dim():
            return view[::2]
    return view


def test_layouts_as_slices() -> None:
    chance = random.Random(0)
    found = 0
    for _ in range(500):
        shape = [chance.choice([1, 2, 3, 4, 6]) for _ in range(chance.randint(1, 4))]
        order = sorted(range(len(shape)), key=lambda _: chance.random())
        whole = torch.empty_permuted(shape, order).copy_(torch.arange(float(torch.Size(shape).numel())).reshape(shape))
        view = whole
        for _ in range(chance.randint(1, 4)):
            view = _another(view, chance)
        calls = calls_of(whole.shape, whole.stride(), view.shape, view.stride(), view.storage_offset())
        made = whole
        for operator, args in calls or ():
            made = operator(made, *args)
        assert calls is None or torch.equal(made, view)
        found += calls is not None
    assert found > 450


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a row": lambda x: x[1],
    "a column": lambda x: x[:, 2],
    "a block": lambda x: x[1:3, 1:4],
    "steps": lambda x: x[1::2, ::3],
    "a transpose": lambda x: x.t()[1:],
    "parts of a row": lambda x: x.view(4, 2, 3)[:, 1],
    "one number": lambda x: x[2, 3],
    "another axis": lambda x: x[2:, None],
    "flat": lambda x: x.view(-1)[6:18],
}


LEFT_TO_PYTORCH = ("a column", "steps")
"""A graph that writes an input in steps of more than one is run by PyTorch as a whole."""


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_an_earlier_run_are_compiled(name: str) -> None:
    def rounds(device: str) -> list[torch.Tensor]:
        x = torch.arange(24.0, device=device).reshape(4, 6) + 1
        view = VIEWS[name](x)
        found = []
        for _ in range(3):
            view.mul_(2)
            y = (view + 1).relu()
            found.append((y.sum() + x.sum()).cpu())
        return [*found, x.cpu()]

    smelt.reset()  # other tests record the same operators
    before = smelt.lazy.explain().run_count
    found = rounds("lazy")
    runs = smelt.lazy.explain().runs[before - smelt.lazy.explain().run_count :]
    for mine, theirs in zip(found, rounds("cpu"), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert [run.how for run in runs] == ["compiled", "compiled", "cached"]
    assert name in LEFT_TO_PYTORCH or all(run.kernels for run in runs[:2])


def test_a_reshape_of_what_the_graph_lays_out_otherwise() -> None:
    """PyTorch calls it with strides on devices like this one; inside of a graph the memory may be another."""

    def reshaped(a: torch.Tensor, b: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        turned = (torch.bmm(a, b).view(2, 2, 8, 8) * 0.35).transpose(-2, -1).transpose(1, 2)
        alias: torch.Tensor = torch.ops.aten._reshape_alias(turned, [2, 8, 16], [128, 1, 8])
        return alias.clone(memory_format=torch.contiguous_format).view(16, 16).t() @ weight

    given = torch.randn(4, 8, 6), torch.randn(4, 6, 8), torch.randn(16, 16)
    wanted = reshaped(*given)
    torch.testing.assert_close(smelt.compile(reshaped)(*given), wanted)
    torch.testing.assert_close(reshaped(*(each.to("lazy") for each in given)).cpu(), wanted)


@pytest.mark.parametrize("shape", [(3, 0), (2, 0, 4), (0, 3)])
def test_strides_of_tensors_without_elements(shape: tuple[int, ...]) -> None:
    """Those of eager and of compiled functions, too."""
    functions: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: x + 1,
        lambda x: x.clone(),
        lambda x: x.cumsum(0),
        *(lambda x, dim=dim: x.sum(dim, keepdim=True) for dim in range(len(shape))),
        *(lambda x, dim=dim: x.amax(dim, keepdim=True) for dim, size in enumerate(shape) if size),
        *(lambda x, dim=dim: x.max(dim, keepdim=True)[1] for dim, size in enumerate(shape) if size),
    ]
    for function in functions:
        expected = function(torch.empty(shape)).stride()
        assert function(torch.empty(shape, device="lazy")).stride() == expected
        assert smelt.compile(function)(torch.empty(shape)).stride() == expected
