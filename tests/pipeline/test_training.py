"""The two models of the benchmarks, all the way: no break, few kernels, gradients within the numerical rule."""

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt.ir.kernel import Contract
from tests.targets import seeded

Step = Callable[[nn.Module, torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    smelt.reset()
    smelt.config.check_specs = True
    yield
    smelt.config.check_specs = False
    smelt.reset()


class Block(nn.Module):
    """gelu, sin·cos, layer norm, softmax·tanh."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        with torch.no_grad():
            self.norm.weight.uniform_(0.5, 1.5)
            self.norm.bias.uniform_(-0.5, 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(x)
        y = torch.sin(y) * torch.cos(y)
        y = self.norm(y)
        return torch.softmax(y, -1) * torch.tanh(y)


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
    )


def gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Loss, output, and every gradient of a training step."""
    x = x.detach().clone().requires_grad_()
    model.zero_grad()
    out = model(x)
    loss = out.square().mean()
    loss.backward()
    return [loss.detach(), out.detach(), x.grad, *(parameter.grad for parameter in model.parameters())]


def error(values: list[torch.Tensor], exact: list[torch.Tensor]) -> list[float]:
    return [
        ((value.double() - truth).abs().max() / truth.abs().max().clamp_min(1e-30)).item()
        for value, truth in zip(values, exact, strict=True)
    ]


MODELS = {"block": lambda: (Block(1024), (256, 1024)), "mlp": lambda: (mlp(256, 512, 10), (64, 256))}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_training_obeys_the_numerical_rule_without_a_break(name: str, seed: int) -> None:
    torch.manual_seed(seed)
    model, shape = MODELS[name]()
    x = torch.randn(shape)
    exact = gradients(copy.deepcopy(model).double(), x.double())
    eager = error(gradients(copy.deepcopy(model), x), exact)
    compiled = smelt.compile(copy.deepcopy(model), fullgraph=True)
    got = error(gradients(compiled, x), exact)
    few_ulp = 4 * torch.finfo(torch.float32).eps
    for have, allowed in zip(got, eager, strict=True):
        assert have <= 2 * allowed + few_ulp
    assert smelt.counters["graphs"] == 1
    assert smelt.counters["graph_breaks"] == 0


def test_the_pointwise_block_is_one_kernel_forward_and_at_most_three_backward() -> None:
    x = torch.randn(2048, 1024, requires_grad=True)
    told = smelt.explain(Block(1024))(x)
    assert (told.graph_count, told.graph_break_count) == (1, 0)
    forward, backward = told.programs
    assert len(forward.kernels) == 1
    assert len(backward.kernels) <= 3
    assert len(forward.steps) == 1


def test_each_layer_of_the_mlp_has_one_kernel_beside_its_products() -> None:
    told = smelt.explain(mlp(64, 128, 10), options={"products": "library"})(torch.randn(32, 64))
    forward, backward = told.programs
    assert len(forward.kernels) == 3  # bias and relu, twice, then the last bias
    assert len(backward.kernels) == 3  # a bias gradient each, with the relu before it


def test_kernels_that_compute_products_of_the_mlp_take_the_place_of_others() -> None:
    """What is round a product is in its kernel: beside those kernels there are no more than without them."""
    told = smelt.explain(mlp(64, 128, 10))(torch.randn(32, 64))
    for program in told.programs:
        beside = [each for each in program.kernels if not any(isinstance(i, Contract) for i in each.instructions())]
        assert len(beside) <= 3


@pytest.mark.parametrize("budget", [0, 1, 3, 7, 20])
def test_any_rewrite_budget_gives_the_same_answer(budget: int) -> None:
    torch.manual_seed(0)
    model = Block(32)
    x = torch.randn(8, 32)
    expected = gradients(copy.deepcopy(model), x)
    got = gradients(smelt.compile(model, options={"max_rewrites": budget}), x)
    for have, want in zip(got, expected, strict=True):
        torch.testing.assert_close(have, want, rtol=2e-5, atol=1e-6)


def test_training_follows_eager_over_many_steps() -> None:
    torch.manual_seed(0)
    model = mlp(16, 32, 4).double()
    compiled = smelt.compile(copy.deepcopy(model), fullgraph=True)
    losses: dict[str, list[float]] = {}
    for name, net in (("eager", model), ("smelt", compiled)):
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        generator = seeded(1)
        losses[name] = []
        for _ in range(30):
            x = torch.randn(8, 16, generator=generator, dtype=torch.float64)
            y = torch.randint(0, 4, (8,), generator=generator)
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            losses[name].append(loss.item())
    torch.testing.assert_close(losses["smelt"], losses["eager"], rtol=1e-9, atol=1e-9)
    assert smelt.counters["graphs"] == 1


def test_a_graph_that_cannot_be_made_pure_is_run_by_pytorch() -> None:
    def writes(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y.resize_(2)
        return y * w

    x, w = torch.randn(4), torch.randn(2, requires_grad=True)
    torch.testing.assert_close(smelt.compile(writes)(x, w), writes(x, w))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_do_not_change_what_is_computed(threads: int) -> None:
    model = Block(256)
    x = torch.randn(64, 256)
    expected = gradients(copy.deepcopy(model), x)
    got = gradients(smelt.compile(model, options={"threads": threads}), x)
    for have, want in zip(got, expected, strict=True):
        torch.testing.assert_close(have, want, rtol=2e-5, atol=1e-6)


def test_a_part_that_is_written_brings_no_other_memory_along() -> None:
    def row(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = (x * 3).cumsum(0) + x
        y[0].add_(1)
        y[:, 1:].mul_(2)
        y.diagonal().add_(3)
        return y.exp().cumsum(0), y

    x = torch.randn(4, 4)
    wanted, got = row(x), smelt.compile(row)(x)
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs)
        assert mine.storage_offset() == theirs.storage_offset()
        assert mine.untyped_storage().nbytes() == theirs.untyped_storage().nbytes()
