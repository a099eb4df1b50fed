"""Training loops as people write them, a step of each in one compiled function: one graph, and the numbers of eager."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from tests.targets import device_type, seeded, there

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
Batch = tuple[torch.Tensor, torch.Tensor]
BACKENDS = ["eager", "aot_eager", "llvm"]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    smelt.reset()


@there()
def _model(out: int = 4) -> Any:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, out))


@there()
def _batch(number: int) -> Batch:
    generator = seeded(number)
    return torch.randn(5, 8, generator=generator), torch.randint(0, 4, (5,), generator=generator)


@there()
def _zeros(count: int) -> torch.Tensor:
    return torch.zeros(count)


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-2)


def _plain(model: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    return loss


def _trained(wrap: Wrap, step: Callable[..., torch.Tensor], model: nn.Module, steps: int = 5) -> list[Any]:
    """Ten numbers tell more than one: losses, parameters, their gradients and the optimizer's state."""
    opt, call = _adam(model), wrap(step)
    losses = [call(model, opt, *_batch(number)).detach() for number in range(steps)]
    return [losses, *_state(model, opt)]


def _state(model: nn.Module, opt: torch.optim.Optimizer) -> list[Any]:
    gradients = [None if each.grad is None else each.grad.clone() for each in model.parameters()]
    return [[each.detach().clone() for each in model.parameters()], gradients, copy.deepcopy(opt.state_dict())]


# What makes leaves.


def _gradient_penalty(wrap: Wrap) -> list[Any]:
    def step(model: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        opt.zero_grad()
        made = x.flip(0).sin()
        mixed = (0.25 * x + 0.75 * made).requires_grad_()
        judged = model(mixed)
        (slope,) = torch.autograd.grad(judged, mixed, torch.ones_like(judged), create_graph=True, retain_graph=True)
        loss: torch.Tensor = model(made).mean() - model(x).mean() + 10 * ((slope.norm(2, dim=1) - 1) ** 2).mean()
        loss.backward()
        opt.step()
        return loss

    return _trained(wrap, step, _model(1))


def _penalty_at_the_data(wrap: Wrap) -> list[Any]:
    def step(model: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        opt.zero_grad()
        x = x.detach().requires_grad_()
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        loss = F.cross_entropy(out, y) + slope.pow(2).sum(1).mean()
        loss.backward()
        opt.step()
        return loss

    return _trained(wrap, step, _model())


def _attacked(wrap: Wrap) -> list[Any]:
    def step(model: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        delta = torch.zeros_like(x).requires_grad_(True)
        for _ in range(2):
            F.cross_entropy(model(x + delta), y).backward()
            assert delta.grad is not None
            delta = (delta + 0.05 * delta.grad.sign()).clamp(-0.1, 0.1).detach().requires_grad_(True)
        return _plain(model, opt, x + delta.detach(), y)

    return _trained(wrap, step, _model())


# What goes through `.data`.


def _clipped_weights(wrap: Wrap) -> list[Any]:
    def step(model: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = _plain(model, opt, x, y)
        for each in model.parameters():
            each.data.clamp_(-0.2, 0.2)
        return loss

    return _trained(wrap, step, _model())


def _averaged_weights(wrap: Wrap) -> list[Any]:
    average = _model()

    def step(model: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = _plain(model, opt, x, y)
        for mean, each in zip(average.parameters(), model.parameters(), strict=True):
            mean.data.mul_(0.9).add_(each.data, alpha=0.1)
        return loss

    return [*_trained(wrap, step, _model()), list(average.parameters())]


# What has several optimizers, or parameters without gradients.


def _two_optimizers_under_one_scaler(wrap: Wrap) -> list[Any]:
    maker, judge = _model(8), _model(1)
    scaler = torch.amp.GradScaler(device_type(), init_scale=64.0)
    of_maker, of_judge = _adam(maker), _adam(judge)

    def step(x: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        of_judge.zero_grad()
        made = maker(noise)
        lost = F.softplus(-judge(x)).mean() + F.softplus(judge(made.detach())).mean()
        scaler.scale(lost).backward()
        scaler.step(of_judge)
        of_maker.zero_grad()
        fooled = F.softplus(-judge(made)).mean()
        scaler.scale(fooled).backward()
        scaler.step(of_maker)
        scaler.update()
        return lost, fooled

    call, losses = wrap(step), []
    for number in range(5):
        x, noise = _batch(number)[0], _batch(100 + number)[0]
        if number == 3:
            x[0, 0] = float("inf")  # the judge's step is left out
        losses.append([loss.detach() for loss in call(x, noise)])
    return [losses, *_state(maker, of_maker), *_state(judge, of_judge), scaler.state_dict()]


def _zeros_for_what_is_not_used(wrap: Wrap) -> list[Any]:
    model, unused = _model(), _zeros(3).requires_grad_()

    def step(model: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(x), y)
        parameters = [*model.parameters(), unused]
        gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
        with torch.no_grad():
            for each, gradient in zip(parameters, gradients, strict=True):
                each.sub_(0.1 * gradient + 0.01)
        return loss

    return [*_trained(wrap, step, model), unused.detach()]


# What has hooks.


def _scaled_by_hooks(wrap: Wrap) -> list[Any]:
    model = _model()
    for each in model.parameters():
        each.register_hook(lambda gradient: gradient * 0.5)
    return _trained(wrap, _plain, model)


def _masked_by_a_hook(wrap: Wrap) -> list[Any]:
    model, mask = _model(), _zeros(128).add(1).cumsum(0).view(16, 8) % 3 > 0
    model[0].weight.register_hook(lambda gradient: gradient * mask)
    return _trained(wrap, _plain, model)


def _written_by_a_hook(wrap: Wrap) -> list[Any]:
    model = _model()

    def halve(gradient: torch.Tensor) -> None:
        gradient.mul_(0.5)

    model[0].weight.register_hook(halve)
    return _trained(wrap, _plain, model)


def _kept_by_a_hook(wrap: Wrap) -> list[Any]:
    model, kept = _model(), list[torch.Tensor]()
    model[0].weight.register_hook(kept.append)
    trained = _trained(wrap, _plain, model)
    return [*trained, kept, kept[-1] is model[0].weight.grad]


def _updated_in_the_backward(wrap: Wrap) -> list[Any]:
    model = _model()
    optimizers: dict[torch.Tensor, Any] = {each: torch.optim.Adam([each], lr=1e-2) for each in model.parameters()}

    def update(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for each in model.parameters():
        each.register_post_accumulate_grad_hook(update)

    def step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    call = wrap(step)
    losses = [call(model, *_batch(number)).detach() for number in range(5)]
    return [losses, [_state(model, each) for each in optimizers.values()]]


def _hooks_in_order(wrap: Wrap) -> list[Any]:
    """Each hook sees which leaves have had their gradients."""
    model = _model()
    seen: list[Any] = []
    parameters = list(model.parameters())

    def look(name: str) -> Callable[[torch.Tensor], None]:
        return lambda _: seen.append((name, [each.grad is None for each in parameters]))

    for name, each in model.named_parameters():
        each.register_hook(look(name))
        each.register_post_accumulate_grad_hook(look(f"after {name}"))

    def step(model: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        opt.zero_grad()
        F.cross_entropy(model(x.sin()), y).backward()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss

    return [*_trained(wrap, step, model, 3), seen]


class _Tied(nn.Module):
    """A weight by two names, at both ends."""

    @there()
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.middle = nn.Linear(8, 8, bias=False), nn.Linear(8, 8)
        self.last, self.out = nn.Linear(8, 8, bias=False), nn.Linear(8, 4)
        self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(self.last(self.middle(self.first(x).tanh()).tanh()))
        return found


def _a_hook_on_a_weight_with_two_names(wrap: Wrap) -> list[Any]:
    model, seen = _Tied(), list[str]()

    def halved(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
        def hook(gradient: torch.Tensor) -> torch.Tensor:
            seen.append(name)
            return gradient * 0.5

        return hook

    for name, each in model.named_parameters():
        each.register_hook(halved(name))
    return [*_trained(wrap, _plain, model, 3), seen]


ONE_GRAPH = [
    _a_hook_on_a_weight_with_two_names,
    _gradient_penalty,
    _penalty_at_the_data,
    _attacked,
    _clipped_weights,
    _averaged_weights,
    _two_optimizers_under_one_scaler,
    _zeros_for_what_is_not_used,
    _scaled_by_hooks,
    _masked_by_a_hook,
    _written_by_a_hook,
    _kept_by_a_hook,
    _updated_in_the_backward,
    _hooks_in_order,
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("recipe", ONE_GRAPH)
def test_a_recipe_is_one_graph(recipe: Callable[[Wrap], list[Any]], backend: str) -> None:
    ours = recipe(lambda step: smelt.compile(step, fullgraph=True, backend=backend))
    _same(ours, recipe(lambda step: step))
    assert smelt.counters["graphs"] <= 2, "one for the first step, which makes the optimizer's state"


def _same(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            _same(one[key], other[key])
    elif isinstance(one, list | tuple):
        for each, its in zip(one, other, strict=True):
            _same(each, its)
    elif isinstance(one, torch.Tensor):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    else:
        assert one == other


# What is not one graph.


def _logged_by_a_hook(wrap: Wrap) -> list[Any]:
    model, log = _model(), []
    model[0].weight.register_hook(lambda gradient: log.append(round(gradient.norm().item(), 4)))
    return [*_trained(wrap, _plain, model), log]


def _hooks_on_nodes(wrap: Wrap) -> list[Any]:
    """PyTorch keeps these where no tensor shows them."""
    model, log = _model(), []
    nodes = [torch.autograd.graph.get_gradient_edge(each).node for each in model.parameters()]
    for number, node in enumerate(nodes):
        node.register_hook(lambda *gradients, number=number: log.append(number))
        node.register_prehook(lambda gradients, number=number: log.append(-number))
    return [*_trained(wrap, _plain, model), log]


def _a_hook_on_several_gradients(wrap: Wrap) -> list[Any]:
    model, log = _model(), []
    torch.autograd.graph.register_multi_grad_hook(
        tuple(model.parameters()), lambda gradients: log.append([each.shape for each in gradients])
    )
    return [*_trained(wrap, _plain, model), log]


def _hooks_that_come_and_go(wrap: Wrap) -> list[Any]:
    model = _model()
    opt, call = _adam(model), wrap(_plain)
    node = torch.autograd.graph.get_gradient_edge(model[0].weight).node
    losses, log = [], []
    handle: Any = None
    for number in range(8):
        if number == 2:
            handle = model[0].weight.register_hook(lambda gradient: gradient * 2)
        if number == 4:
            handle.remove()
            handle = node.register_hook(lambda *gradients: log.append(1))
        if number == 6:
            handle.remove()
        losses.append(call(model, opt, *_batch(number)).detach())
    return [losses, *_state(model, opt), log]


BREAKING = [_logged_by_a_hook, _hooks_on_nodes, _a_hook_on_several_gradients, _hooks_that_come_and_go]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("recipe", BREAKING)
def test_a_recipe_with_breaks_is_right(recipe: Callable[[Wrap], list[Any]], backend: str) -> None:
    _same(recipe(lambda step: smelt.compile(step, backend=backend)), recipe(lambda step: step))


CYCLES: dict[str, dict[str, Any]] = {
    "triangular": {},
    "triangular2": {"mode": "triangular2"},
    "exp_range": {"mode": "exp_range", "gamma": 0.99},
    "own": {"scale_fn": lambda cycle: [0.5, 0.25][cycle % 2], "scale_mode": "cycle"},
    "own by steps": {"scale_fn": lambda step: 0.99**step, "scale_mode": "iterations"},
}


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("name", CYCLES)
def test_cycles_are_no_versions(name: str, kind: Any) -> None:
    """Each was one, and after eight the step ran in Python."""

    def train(wrap: Wrap) -> list[Any]:
        model = _model()
        opt = kind(model.parameters(), lr=0.1, **({"momentum": 0.9} if kind is torch.optim.SGD else {}))
        scheduler = torch.optim.lr_scheduler.CyclicLR(opt, 0.01, 0.1, step_size_up=2, step_size_down=3, **CYCLES[name])

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = _plain(model, opt, x, y)
            scheduler.step()
            return loss

        call, seen = wrap(step), []
        for number in range(30):
            loss = call(*_batch(number)).detach()
            group = opt.param_groups[0]
            seen.append((loss, group["lr"], group.get("momentum"), group.get("betas"), scheduler.last_epoch))
        return [seen, scheduler.get_last_lr()]

    _same(train(lambda step: smelt.compile(step, backend="eager")), train(lambda step: step))
    assert smelt.counters["recompiles"] <= 4 or name == "own"


@pytest.mark.parametrize("wrong", [lambda gradient: gradient[:2], lambda gradient: 3], ids=["size", "kind"])
def test_what_a_hook_gives_is_checked_as_by_pytorch(wrong: Callable[[torch.Tensor], Any]) -> None:
    errors = []
    for wrap in (smelt.compile, lambda step: step):
        model = _model()
        model[0].weight.register_hook(wrong)
        with pytest.raises((RuntimeError, TypeError)) as caught:
            wrap(_plain)(model, _adam(model), *_batch(0))
        errors.append((type(caught.value), str(caught.value)))
    assert errors[0] == errors[1]
