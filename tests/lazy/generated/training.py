"""Random training programs: a small model, an optimizer, and a loop with writes, prints and branches in between.

    failure_of(7)   →   None, or what lazy tensors make other than eager

A program is drawn from its number alone and run three times: eagerly, in float64, and on the lazy device. Losses and
parameters may be eight times as far from float64's as eager's are, and a little.
"""

import copy
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import smelt

STEPS = 5
WIDTH = 6

LAYERS: list[Callable[[], nn.Module]] = [
    lambda: nn.Linear(WIDTH, WIDTH),
    lambda: nn.Linear(WIDTH, WIDTH, bias=False),
    lambda: nn.LayerNorm(WIDTH),
    lambda: nn.BatchNorm1d(WIDTH),
    lambda: nn.GroupNorm(2, WIDTH),
    nn.Tanh,
    nn.GELU,
    nn.SiLU,
    nn.Softplus,
    lambda: nn.PReLU(WIDTH),
    lambda: Residual(nn.Linear(WIDTH, WIDTH)),
    lambda: Gated(WIDTH),
]

OPTIMIZERS: list[Callable[[Any, bool], torch.optim.Optimizer]] = [
    lambda given, foreach: torch.optim.SGD(given, lr=0.05, foreach=foreach),
    lambda given, foreach: torch.optim.SGD(given, lr=0.02, momentum=0.9, nesterov=True, foreach=foreach),
    lambda given, foreach: torch.optim.SGD(given, lr=0.02, momentum=0.5, weight_decay=0.1, foreach=foreach),
    lambda given, foreach: torch.optim.AdamW(given, lr=0.01, eps=1e-3, foreach=foreach),
    lambda given, foreach: torch.optim.Adam(given, lr=0.01, eps=1e-3, amsgrad=True, foreach=foreach),
    lambda given, foreach: torch.optim.RMSprop(given, lr=0.01, eps=1e-3, foreach=foreach),
    lambda given, foreach: torch.optim.Adagrad(given, lr=0.02, eps=1e-3, foreach=foreach),
    lambda given, foreach: torch.optim.NAdam(given, lr=0.01, eps=1e-3, foreach=foreach),
]

LOSSES: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
    lambda out, y: nn.functional.mse_loss(out, torch.tanh(y)),
    lambda out, y: nn.functional.cross_entropy(out, y.argmax(1)),
    lambda out, y: nn.functional.smooth_l1_loss(out, y),
    lambda out, y: -(nn.functional.cosine_similarity(out, y, dim=1)).mean(),
    lambda out, y: (out.logsumexp(1) - (out * y.softmax(1)).sum(1)).square().mean(),
]

EVENTS = (
    "print", "item", "branch on the loss", "branch on a weight", "clip", "decay in place", "write a row", "average",
    "change gradients", "mask gradients", "step", "evaluate", "through a view", "copy", "count", "new batch size",
    "keep a view", "scale the rate", "two backwards", "save and load", "swap rows",
)  # fmt: skip


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.inner(x)
        return x + found.sin()


class Gated(nn.Module):
    """Reads one weight twice, as a view and by its transpose."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight.t()) * torch.sigmoid(x * self.weight[0])


class Training:
    """One program on one device."""

    def __init__(self, seed: int, device: str, dtype: torch.dtype) -> None:
        self.chance = random.Random(seed)
        self.device, self.dtype = device, dtype
        torch.manual_seed(seed)
        layers = [self.chance.choice(LAYERS)() for _ in range(self.chance.randint(1, 4))]
        self.model = nn.Sequential(nn.Linear(4, WIDTH), *layers, nn.Linear(WIDTH, 3)).to(device, dtype)
        self.batches = [(torch.randn(size, 4), torch.randn(size, 3)) for size in (5, 7)]
        make = self.chance.choice(OPTIMIZERS)
        self.optimizer = make(self.model.parameters(), self.chance.random() < 0.5)
        self.loss = self.chance.choice(LOSSES)
        self.events = {event: self.chance.random() for event in self.chance.sample(EVENTS, 5)}
        self.thresholds = [self.chance.random() for _ in range(STEPS)]
        self.average = [each.detach().clone() for each in self.model.parameters()]
        self.counter = torch.zeros(3, device=device, dtype=dtype)
        self.kept = self.counter[1:]
        self.found: list[torch.Tensor] = []
        self.decisions: list[bool] = []

    def happens(self, event: str) -> bool:
        return event in self.events and self.chance.random() < self.events[event]

    def run(self) -> "Training":
        for number in range(STEPS):
            which = 1 if self.happens("new batch size") else 0
            x, y = (each.to(self.device, self.dtype) for each in self.batches[which])
            self.optimizer.zero_grad(set_to_none=self.chance.random() < 0.5)
            loss = self.loss(self.model(x), y)
            self.before(loss, number)
            loss.backward(retain_graph=(twice := self.happens("two backwards")))
            if twice:
                (loss * 0.5).backward()
            self.between()
            self.optimizer.step()
            self.after(x)
            self.found.append(loss.detach().clone())
        parameters = [each.detach() for each in (*self.model.parameters(), *self.model.buffers())]
        last = [*self.found, *parameters, *self.average, self.counter, self.kept]
        self.results = [each.cpu().double() for each in last]
        return self

    def before(self, loss: torch.Tensor, number: int) -> None:
        if self.happens("print"):
            str(loss)
        if self.happens("item"):
            loss.item()
        if self.happens("branch on the loss") and self.decide(loss > self.thresholds[number]):
            with torch.no_grad():
                self.first.mul_(0.9)

    @property
    def first(self) -> torch.Tensor:
        found: torch.Tensor = next(iter(self.model.parameters()))
        return found

    def decide(self, value: torch.Tensor) -> bool:
        self.decisions.append(bool(value))
        return self.decisions[-1]

    def between(self) -> None:
        """After the backward, before the step."""
        grad = self.first.grad
        assert grad is not None
        if self.happens("clip"):
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        if self.happens("change gradients"):
            grad.add_(self.first.detach(), alpha=0.01)
        if self.happens("mask gradients"):
            grad[:, 1:3].masked_fill_(grad[:, 1:3] > 0.2, 0.1)
        if self.happens("step"):
            smelt.lazy.step()

    @torch.no_grad()
    def after(self, x: torch.Tensor) -> None:
        if self.happens("decay in place"):
            for each in self.model.parameters():
                each.mul_(0.99)
        if self.happens("write a row"):
            self.first[1] = self.first[0] * 0.5
        if self.happens("swap rows"):
            self.first[[0, 1]] = self.first[[1, 0]]
        if self.happens("through a view"):
            self.first.t()[1:].add_(0.01)
        if self.happens("average"):
            torch._foreach_lerp_(self.average, [each.detach() for each in self.model.parameters()], 0.3)
        if self.happens("count"):
            self.counter += 1
            self.counter[0] = x.sum()
        if self.happens("keep a view"):
            self.kept.mul_(2).sub_(x.mean())
        if self.happens("branch on a weight") and self.decide(self.first.sum() > self.thresholds[0] - 0.5):
            self.counter[2] += 1
        if self.happens("evaluate"):
            self.model.eval()
            self.found.append(self.model(x).mean())
            self.model.train()
        if self.happens("scale the rate"):
            for group in self.optimizer.param_groups:
                group["lr"] *= 0.8
        if self.happens("copy"):
            self.found.append(next(iter(copy.deepcopy(self.model).parameters())).detach() * 2)
        if self.happens("save and load"):
            self.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
            self.model.load_state_dict(copy.deepcopy(self.model.state_dict()))


def failure_of(seed: int) -> str | None:
    """What lazy tensors make other than eager; decisions that float64 makes otherwise tell nothing."""
    smelt.lazy.enable(background=False)  # before any backward: autograd's engine knows the devices of its first one
    smelt.reset()
    true = Training(seed, "cpu", torch.float64).run()
    eager = Training(seed, "cpu", torch.float32).run()
    lazy = Training(seed, "lazy", torch.float32).run()
    if eager.decisions != lazy.decisions:
        return None if eager.decisions != true.decisions else f"decisions {lazy.decisions}, eager {eager.decisions}"
    if true.decisions != eager.decisions:
        true = eager
    for number, (mine, theirs, exact) in enumerate(zip(lazy.results, eager.results, true.results, strict=True)):
        if mine.shape != theirs.shape:
            return f"result {number}: {tuple(mine.shape)}, eager {tuple(theirs.shape)}"
        scale = float(exact.abs().max()) if exact.numel() else 0.0
        allowed = 8 * float((theirs - exact).abs().max()) + 2e-4 * max(scale, 1e-2) if exact.numel() else 0.0
        off = float((mine - exact).abs().max()) if exact.numel() else 0.0
        if not off <= allowed:
            return f"result {number} of {len(lazy.results)}: off by {off:.3g}, allowed {allowed:.3g} ({lazy.events})"
    return None
