"""Numbers that a program takes out of tensors and only keeps, or layers compute with: they break no graph."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

BACKENDS = ["eager", "aot_eager", "llvm"]
Program = Callable[..., Any]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    smelt.reset()


class Meter:
    def __init__(self) -> None:
        self.total = 0.0
        self.count: int | float = 0
        self.hits: int | float = 0
        self.seen: list[Any] = []

    def __eq__(self, other: object) -> bool:
        return repr(vars(self)) == repr(vars(other))


def _returned(x: torch.Tensor, meter: Meter) -> Any:
    return x.sum().item(), float(x.mean()), (x > 0).sum().item(), int((x > 0).sum()), float((x > 0).sum())


def _kept_in_an_object(x: torch.Tensor, meter: Meter) -> Any:
    loss = x.pow(2).mean()
    meter.total += loss.item() * x.size(0)
    meter.count += x.size(0)
    meter.hits += (x > 0).sum().item()
    meter.seen.append({"loss": round_of(loss.item()), "bool": (x > 0).any().item()})
    return loss * 2


def round_of(number: float) -> float:
    return -(number * 3 - 1) / 7


def _of_the_moment(x: torch.Tensor, meter: Meter) -> Any:
    total = x.sum()
    before = total.item()
    total.add_(1)
    with torch.no_grad():
        x.mul_(2)
    return before, total.item(), x


def _worded(x: torch.Tensor, meter: Meter) -> Any:
    loss = x.pow(2).mean()
    meter.seen.append(f"loss {loss.item():.3f} {(x > 0).sum().item()} {float(loss)!s}")
    return loss


def _in_between(x: torch.Tensor, meter: Meter) -> Any:
    y = x.sin()
    meter.total = meter.total + y.max().item() - 1
    z = y.cos()
    meter.seen.extend([abs(z.min().item()), z.argmax().item() // 3, z.argmax().item() % 4])
    return z.exp()


def _asked_what_they_are(x: torch.Tensor, meter: Meter) -> Any:
    number = x.sum().item()
    kind = type((x > 0).sum().item())
    return isinstance(number, float), isinstance(number, torch.Tensor), number is None, kind is int


FOLLOWED = [_returned, _kept_in_an_object, _of_the_moment, _worded, _in_between, _asked_what_they_are]


def _branch(x: torch.Tensor, meter: Meter) -> Any:
    if x.sum().item() > 0:
        return x * 2
    return x - 1


def _operand(x: torch.Tensor, meter: Meter) -> Any:
    return x / x.abs().max().item() + 1


def _size(x: torch.Tensor, meter: Meter) -> Any:
    return x[: (x > -9).sum().item()].sin()


def _least(x: torch.Tensor, meter: Meter) -> Any:
    meter.total = min(meter.total, x.min().item())
    return x.sin()


def _function(x: torch.Tensor, meter: Meter) -> Any:
    meter.total = math.exp(x.mean().item())
    return x.sin()


def _divided_by_what_may_be_zero(x: torch.Tensor, meter: Meter) -> Any:
    meter.count += 1
    meter.total = x.sum().item() / meter.count
    return x.cos()


def _made_whole(x: torch.Tensor, meter: Meter) -> Any:
    return int(x.sum()), x.sin()


NEEDED = [_branch, _operand, _size, _least, _function, _divided_by_what_may_be_zero, _made_whole]


def _compare(program: Program, backend: str, **settings: Any) -> None:
    compiled = smelt.compile(program, backend=backend, **settings)
    ours, eagers = Meter(), Meter()
    for seed in range(4):
        torch.manual_seed(seed)
        x = torch.randn(6)
        mine, theirs = x.clone(), x.clone()
        found, expected = compiled(mine, ours), program(theirs, eagers)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
        assert repr(type(found)) == repr(type(expected)) and torch.equal(mine, theirs)
        if backend != "llvm":
            assert ours == eagers


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", FOLLOWED, ids=lambda each: each.__name__.strip("_"))
def test_a_number_that_is_only_kept_breaks_nothing(program: Program, backend: str) -> None:
    _compare(program, backend, fullgraph=True)
    assert smelt.counters["recompiles"] <= 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", NEEDED, ids=lambda each: each.__name__.strip("_"))
def test_a_number_that_is_needed_breaks_where_it_is(program: Program, backend: str) -> None:
    _compare(program, backend)
    told = smelt.explain(program, backend="eager")(torch.randn(6), Meter())
    assert told.graph_break_count == 1 and told.break_reasons[0].code in ("B002", "B004")


def test_a_training_step_that_keeps_its_loss_is_one_graph() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    eager = copy.deepcopy(model)

    def train(model: Any) -> Callable[..., Any]:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        log = {"loss": 0.0, "seen": 0, "hits": 0}

        def step(x: torch.Tensor, y: torch.Tensor) -> Any:
            optimizer.zero_grad()
            out = model(x)
            loss = torch.nn.functional.cross_entropy(out, y)
            loss.backward()
            optimizer.step()
            log["loss"] += loss.item() * x.size(0)
            log["seen"] += x.size(0)
            log["hits"] += (out.argmax(1) == y).sum().item()
            return dict(log)

        return step

    ours, theirs = smelt.compile(train(model), fullgraph=True), train(eager)
    for seed in range(4):
        torch.manual_seed(seed)
        x, y = torch.randn(4, 6), torch.randint(3, (4,))
        found, expected = ours(x, y), theirs(x, y)
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-6)
        assert (found["seen"], found["hits"]) == (expected["seen"], expected["hits"])
    assert smelt.counters["graphs"] == 2  # one where there are no gradients yet


def test_numbers_of_functions_that_run_twice_are_left_to_python() -> None:
    weight = torch.ones(3, requires_grad=True)

    def block(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * x.sum().item()

    def f(x: torch.Tensor) -> Any:
        return torch.utils.checkpoint.checkpoint(block, x * weight, use_reentrant=False)

    x = torch.arange(3.0)
    torch.testing.assert_close(smelt.compile(f)(x), f(x))
    told = smelt.explain(f, backend="eager")(x)
    assert told.break_reasons[0].code == "B024"


def test_a_number_of_more_than_one_element_raises_what_eager_raises() -> None:
    def f(x: torch.Tensor) -> Any:
        return (x * 2).item()

    with pytest.raises(RuntimeError) as expected:
        f(torch.ones(3))
    with pytest.raises(RuntimeError, match=str(expected.value)):
        smelt.compile(f)(torch.ones(3))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_batch_norm_that_averages_all_batches_is_one_graph(backend: str, dtype: torch.dtype) -> None:
    layer = torch.nn.BatchNorm2d(3, momentum=None, dtype=dtype)
    eager = copy.deepcopy(layer)
    compiled = smelt.compile(layer, backend=backend, fullgraph=True)
    for seed in range(5):
        torch.manual_seed(seed)
        x = torch.randn(4, 3, 5, 5, dtype=dtype)
        for module in (compiled, eager):
            module.zero_grad()
            module(x).pow(3).sum().backward()
        assert layer.weight.grad is not None and eager.weight.grad is not None
        torch.testing.assert_close(layer.weight.grad, eager.weight.grad, rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(layer.state_dict(), eager.state_dict(), rtol=1e-6, atol=1e-7)
    assert smelt.counters["graphs"] == 1 and not smelt.counters["eager_graphs"]


def test_a_scheduler_that_compares_losses_breaks_once_behind_the_step() -> None:
    model = torch.nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)

    def step(x: torch.Tensor) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step(loss.detach())
        return loss

    told = smelt.explain(step, backend="eager")(torch.ones(4, 6))
    assert [each.code for each in told.break_reasons] == ["B004"] and told.graph_count == 1
