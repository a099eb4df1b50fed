"""Every optimizer of `torch.optim`, with every combination of flags it accepts, through whole compiled steps."""

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from tests.targets import seeded, there

# Flags and the values they are tried with, where an optimizer has them.
FLAGS: dict[str, tuple[Any, ...]] = {
    "foreach": (None, True, False),
    "fused": (None, True),
    "maximize": (False, True),
    "nesterov": (False, True),
    "amsgrad": (False, True),
    "capturable": (False, True),
    "differentiable": (False, True),
    "centered": (False, True),
    "decoupled_weight_decay": (False, True),
    "momentum": (0, 0.9),
    "weight_decay": (0, 0.1),
}
# SparseAdam wants sparse gradients, and LBFGS runs its closure as often as the loss tells it to: a break.
_APART = (torch.optim.Optimizer, torch.optim.SparseAdam, torch.optim.LBFGS)
OPTIMIZERS = [
    kind
    for kind in vars(torch.optim).values()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind not in _APART
]


@there()
def _model() -> nn.Module:
    """Of matrices alone: Muon takes nothing else."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6, bias=False), nn.Tanh(), nn.Linear(6, 3, bias=False))


def _step(model: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    return loss


@there()
def _batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = seeded(number)
    return torch.randn(5, 4, generator=generator), torch.randint(0, 3, (5,), generator=generator)


def _combinations(kind: Any) -> Iterator[dict[str, Any]]:
    """The combinations of flags that eager accepts."""
    names = [name for name in inspect.signature(kind.__init__).parameters if name in FLAGS]
    for values in itertools.product(*(FLAGS[name] for name in names)):
        flags, model = dict(zip(names, values, strict=True)), _model()
        try:
            opt = kind(model.parameters(), **flags)
            for number in range(2):
                _step(model, opt, *_batch(number))
        except (RuntimeError, ValueError, AssertionError):
            continue
        yield flags


def _as_accurate(kind: Any, flags: dict[str, Any]) -> None:
    """Parameters and state are as near to those of steps in float64 as eager's: at most twice its error, and 4 ulp."""

    def trained(step: Any, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
        model = _model().to(dtype)
        opt = kind(model.parameters(), **flags)
        for number in range(10):
            x, y = _batch(number)
            step(model, opt, x.to(dtype), y)
        state = [value for each in opt.state.values() for value in each.values() if isinstance(value, torch.Tensor)]
        return [tensor.detach().double() for tensor in (*model.parameters(), *state)]

    narrow = torch.Tensor.bfloat16
    torch.Tensor.bfloat16 = torch.Tensor.double  # type: ignore[method-assign, assignment]
    try:
        exact = trained(_step, torch.float64)
    finally:
        torch.Tensor.bfloat16 = narrow  # type: ignore[method-assign]
    eager, ours = trained(_step), trained(smelt.compile(_step, fullgraph=True, backend="llvm"))
    assert any(not torch.equal(one, other) for one, other in zip(exact, eager, strict=True))
    for one, plain, mine in zip(exact, eager, ours, strict=True):
        expected = 2 * (plain - one).abs().max() + 4 * torch.finfo(torch.float32).eps * one.abs().max()
        assert (mine - one).abs().max() <= expected


def _alike(kind: Any, flags: dict[str, Any], backend: str) -> None:
    smelt.reset()
    ours, theirs = _model(), _model()
    mine, plain = kind(ours.parameters(), **flags), kind(theirs.parameters(), **flags)
    compiled = smelt.compile(_step, fullgraph=True, backend=backend)
    # Muon computes its directions in bfloat16, which kernels round at other places; centered RMSprop divides by the
    # root of a difference of nearly equal numbers, of which eager itself has few digits.
    if backend == "llvm" and (kind.__name__ == "Muon" or flags.get("centered")):
        _as_accurate(kind, flags)
        return
    for number in range(10):
        x, y = _batch(number)
        torch.testing.assert_close(compiled(ours, mine, x, y), _step(theirs, plain, x, y))
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other)
        torch.testing.assert_close(one.grad, other.grad)
    kept, expected = mine.state_dict(), plain.state_dict()
    assert kept["param_groups"] == expected["param_groups"]
    torch.testing.assert_close(kept["state"], expected["state"])
    assert all(list(kept["state"][key]) == list(expected["state"][key]) for key in expected["state"])
    # One, one for the state that the first step makes, and RAdam does otherwise from the sixth step on.
    assert smelt.counters["graphs"] <= (3 if kind is torch.optim.RAdam else 2), flags


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
def test_with_each_implementation(kind: Any) -> None:
    """As PyTorch would choose, on lists, and fused: each with nothing else switched on."""
    for flags in _combinations(kind):
        if not any(value for name, value in flags.items() if name not in ("foreach", "fused")):
            _alike(kind, flags, "llvm" if flags.get("foreach") is not False else "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "llvm"])
@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
def test_with_every_combination_of_flags(kind: Any, backend: str) -> None:
    for flags in _combinations(kind):
        _alike(kind, flags, backend)


def test_lbfgs_is_a_break_that_says_why() -> None:
    model = _model()
    opt = torch.optim.LBFGS(model.parameters())
    x, y = _batch(0)

    def closure() -> torch.Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    def step() -> Any:
        return opt.step(closure)

    with pytest.raises(smelt.GraphBreakError, match=r"B002: call of torch.optim.lbfgs.LBFGS.step"):
        smelt.compile(step, fullgraph=True)()


def test_the_closure_of_lbfgs_is_compiled() -> None:
    """Not LBFGS itself, of which each line that asks a loss would be a graph."""

    def train(wrap: Callable[..., Any]) -> list[Any]:
        model = _model()
        opt = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)

        def step(x: torch.Tensor, y: torch.Tensor) -> Any:
            def closure() -> torch.Tensor:
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            return opt.step(closure)

        call = wrap(step)
        return [call(*_batch(number)).detach() for number in range(4)] + list(model.parameters())

    smelt.counters.clear()
    torch.testing.assert_close(train(smelt.compile), train(lambda step: step), rtol=1e-4, atol=1e-5)
    assert smelt.counters["graphs"] <= 3
