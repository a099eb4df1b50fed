"""torch.distributions inside compiled functions: followed like any other Python, their checks of values included."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import distributions as d
from torch import nn

import smelt

Make = Callable[[], d.Distribution]


@pytest.fixture(autouse=True)
def count_from_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    smelt.counters.clear()
    monkeypatch.setattr(d.Distribution, "_validate_args", True)  # some libraries switch it off when they are imported


def _positive(*shape: int) -> torch.Tensor:
    return torch.rand(*shape) + 0.5


MADE: dict[str, Make] = {
    "Bernoulli": lambda: d.Bernoulli(logits=torch.randn(4)),
    "Bernoulli of probabilities": lambda: d.Bernoulli(torch.rand(4)),
    "Categorical": lambda: d.Categorical(logits=torch.randn(4, 3)),
    "Categorical of probabilities": lambda: d.Categorical(_positive(4, 3)),
    "Cauchy": lambda: d.Cauchy(torch.randn(4), _positive(4)),
    "Chi2": lambda: d.Chi2(_positive(4)),
    "ContinuousBernoulli": lambda: d.ContinuousBernoulli(torch.rand(3) * 0.8 + 0.1),
    "Exponential": lambda: d.Exponential(_positive(4)),
    "FisherSnedecor": lambda: d.FisherSnedecor(_positive(3), _positive(3)),
    "Gamma": lambda: d.Gamma(_positive(4), _positive(4)),
    "Geometric": lambda: d.Geometric(torch.rand(4) * 0.8 + 0.1),
    "Gumbel": lambda: d.Gumbel(torch.randn(3), _positive(3)),
    "HalfCauchy": lambda: d.HalfCauchy(_positive(3)),
    "HalfNormal": lambda: d.HalfNormal(_positive(3)),
    "Independent": lambda: d.Independent(d.Normal(torch.randn(3, 2), _positive(3, 2)), 1),
    "Kumaraswamy": lambda: d.Kumaraswamy(_positive(3), _positive(3)),
    "Laplace": lambda: d.Laplace(torch.randn(3), _positive(3)),
    "LogNormal": lambda: d.LogNormal(torch.randn(3), _positive(3)),
    "MixtureSameFamily": lambda: d.MixtureSameFamily(
        d.Categorical(_positive(3)), d.Normal(torch.randn(3), _positive(3))
    ),
    "NegativeBinomial": lambda: d.NegativeBinomial(3.0, torch.rand(3) * 0.8),
    "Normal": lambda: d.Normal(torch.randn(4), _positive(4)),
    "Normal of numbers": lambda: d.Normal(0.0, 2.0),
    "OneHotCategorical": lambda: d.OneHotCategorical(_positive(3, 4)),
    "Pareto": lambda: d.Pareto(_positive(3), _positive(3)),
    "Poisson": lambda: d.Poisson(_positive(4)),
    "RelaxedBernoulli": lambda: d.RelaxedBernoulli(torch.tensor(0.7), torch.rand(3)),
    "StudentT": lambda: d.StudentT(_positive(3)),
    "TransformedDistribution": lambda: d.TransformedDistribution(
        d.Normal(torch.randn(3), _positive(3)), [d.TanhTransform(cache_size=1), d.AffineTransform(1.0, 2.0)]
    ),
    "Uniform": lambda: d.Uniform(torch.randn(3), torch.randn(3) + 5),
    "Weibull": lambda: d.Weibull(_positive(3), _positive(3)),
}
BREAKING: dict[str, Make] = {  # for what they do with data: rejection, early returns, an operator without meta kernel
    "Beta": lambda: d.Beta(_positive(4), _positive(4)),
    "Binomial": lambda: d.Binomial(5, torch.rand(4)),
    "Dirichlet": lambda: d.Dirichlet(_positive(3, 4)),
    "LKJCholesky": lambda: d.LKJCholesky(3),
    "Multinomial": lambda: d.Multinomial(5, _positive(4)),
    "MultivariateNormal": lambda: d.MultivariateNormal(torch.randn(3), torch.eye(3) * 2),
    "VonMises": lambda: d.VonMises(torch.randn(3), _positive(3)),
}
# PyTorch 2.11 has no meta kernel for gamma's draws, and its transforms keep weak references to their inverses.
OLD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)
BREAKING_THERE = {"Chi2", "FisherSnedecor", "Gamma", "Gumbel", "Kumaraswamy", "LogNormal", "NegativeBinomial", "Pareto"}
BREAKING_THERE |= {"RelaxedBernoulli", "StudentT", "TransformedDistribution", "Weibull"}


def use(make: Make) -> list[torch.Tensor]:
    made = make()
    drawn = made.rsample() if made.has_rsample else made.sample()
    found = [drawn, made.log_prob(drawn)]
    for ask in (lambda: made.entropy(), lambda: made.mean):
        try:
            found.append(ask())
        except NotImplementedError:
            found.append(drawn)
    return found


@pytest.mark.parametrize("name", [*MADE, *BREAKING])
def test_draws_and_densities_are_eagers(name: str) -> None:
    make = {**MADE, **BREAKING}[name]
    torch.manual_seed(5)
    plain = use(make)
    torch.manual_seed(5)
    mine = smelt.compile(use, backend="eager")(make)
    for one, other in zip(mine, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    breaks = name in BREAKING or (OLD and name in BREAKING_THERE)
    assert (smelt.counters["graph_breaks"] > 0) == breaks


def test_parameters_out_of_range_raise_as_in_eager() -> None:
    def density(scale: torch.Tensor, value: torch.Tensor) -> Any:
        return d.Normal(torch.zeros(2), scale).log_prob(value)

    compiled = smelt.compile(density, fullgraph=True)
    good, bad, missing = torch.ones(2), torch.tensor([1.0, -1.0]), torch.tensor([1.0, float("nan")])
    torch.testing.assert_close(compiled(good, good), density(good, good))
    for arguments in ((bad, good), (good, missing)):
        with pytest.raises(ValueError) as plain:
            density(*arguments)
        with pytest.raises(ValueError) as mine:
            compiled(*arguments)
        assert str(mine.value) == str(plain.value)


def _policy_step(compiled: bool) -> tuple[list[Any], list[torch.Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)

    def act(seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            policy = d.Categorical(logits=model(seen))
            action = policy.sample()
            return action, policy.log_prob(action)

    def update(seen: torch.Tensor, action: torch.Tensor, before: torch.Tensor, gain: torch.Tensor) -> Any:
        policy = d.Categorical(logits=model(seen))
        ratio = (policy.log_prob(action) - before).exp()
        loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean() - 0.01 * policy.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    if compiled:
        act, update = smelt.compile(act, fullgraph=True), smelt.compile(update, fullgraph=True)
    found: list[Any] = []
    for _ in range(4):
        seen, gain = torch.randn(16, 8), torch.randn(16)
        action, before = act(seen)
        found += [action, update(seen, action, before, gain)]
    return found, [parameter.detach() for parameter in model.parameters()]


def test_a_policy_gradient_step_is_one_graph() -> None:
    plain, weights = _policy_step(compiled=False)
    mine, learned = _policy_step(compiled=True)
    torch.testing.assert_close(mine, plain)
    torch.testing.assert_close(learned, weights)
    assert smelt.counters["graph_breaks"] == 0
