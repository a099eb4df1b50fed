"""Derivatives of derivatives through compiled models: a physics-informed network, WGAN-GP, Newton steps, MAML.

    python examples/second_derivatives.py

Each trains twice from the same seed, eagerly and through `smelt.compile`, and the losses of both are printed side by
side. Nothing is said to the compiler: `create_graph=True` is all.
"""

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

import smelt

Compile = Callable[[nn.Module], Any]
STEPS = 20


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for ins, outs in itertools.pairwise(sizes):
        layers += [nn.Linear(ins, outs), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def physics_informed(compiled: Compile, steps: int = STEPS) -> list[float]:
    """Solve u'' = -π² sin(πx), u(-1) = u(1) = 0, whose solution is sin(πx): the loss is made of second derivatives."""
    net = mlp(1, 32, 32, 1)
    model = compiled(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        x = (torch.rand(64, 1) * 2 - 1).requires_grad_()
        u = model(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
        residual = curvature + torch.pi**2 * torch.sin(torch.pi * x)
        ends = model(torch.tensor([[-1.0], [1.0]]))
        losses.append(stepped(optimizer, residual.square().mean() + 10 * ends.square().mean()))
    return losses


def gradient_penalty(compiled: Compile, steps: int = STEPS) -> list[float]:
    """WGAN-GP on points of a ring: the critic's gradient is held to length one, with dropout in its layers."""
    generator_net = mlp(4, 32, 2)
    critic_net = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(32, 1))
    generator, critic = compiled(generator_net), compiled(critic_net)
    for_generator = torch.optim.Adam(generator_net.parameters(), lr=1e-3, betas=(0.5, 0.9))
    for_critic = torch.optim.Adam(critic_net.parameters(), lr=1e-3, betas=(0.5, 0.9))
    losses = []
    for _ in range(steps):
        real = F.normalize(torch.randn(64, 2), dim=1)
        fake = generator(torch.randn(64, 4)).detach()
        between = torch.lerp(real, fake, torch.rand(64, 1)).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        penalty = 10 * (slope.norm(dim=1) - 1).square().mean()
        losses.append(stepped(for_critic, critic(fake).mean() - critic(real).mean() + penalty))
        losses.append(stepped(for_generator, -critic(generator(torch.randn(64, 4))).mean()))
    return losses


def newton(compiled: Compile, steps: int = STEPS) -> list[float]:
    """Newton steps by conjugate gradients, the Hessian never formed: only its products with vectors."""
    net = mlp(3, 8, 1)
    model = compiled(net)
    x = torch.randn(128, 3)
    y = x.sin().sum(1, keepdim=True)
    weights = list(net.parameters())
    losses = []
    for _ in range(steps):
        loss = F.mse_loss(model(x), y)
        slopes = torch.autograd.grad(loss, weights, create_graph=True)
        flat = torch.cat([slope.flatten() for slope in slopes])

        def product(vector: torch.Tensor, flat: torch.Tensor = flat) -> torch.Tensor:
            parts = torch.autograd.grad(flat @ vector, weights, retain_graph=True)
            return torch.cat([part.flatten() for part in parts]) + 0.1 * vector

        direction = conjugate_gradients(product, flat.detach(), rounds=5)
        with torch.no_grad():
            for weight, part in zip(weights, direction.split([w.numel() for w in weights]), strict=True):
                weight.sub_(part.view_as(weight))
        losses.append(loss.item())
    return losses


def conjugate_gradients(
    product: Callable[[torch.Tensor], torch.Tensor], target: torch.Tensor, rounds: int
) -> torch.Tensor:
    """The vector whose product is nearly `target`."""
    found, rest = torch.zeros_like(target), target
    direction, size = rest, rest @ rest
    for _ in range(rounds):
        image = product(direction)
        length = size / (direction @ image)
        found, rest = found + length * direction, rest - length * image
        size, before = rest @ rest, size
        direction = rest + size / before * direction
    return found


def meta_learning(compiled: Compile, steps: int = STEPS) -> list[float]:
    """MAML on sine waves: weights from which one step of gradient descent, differentiated through, does best."""
    net = mlp(1, 32, 32, 1)
    model = compiled(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        total = torch.zeros(())
        for _task in range(4):
            amplitude, phase = torch.rand(1) * 4 + 1, torch.rand(1) * 3
            x, x_later = torch.randn(2, 10, 1)
            weights: dict[str, torch.Tensor] = dict(net.named_parameters())
            inner = F.mse_loss(functional_call(model, weights, (x,)), amplitude * torch.sin(x + phase))
            slopes = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
            adapted = {name: w - 0.01 * g for (name, w), g in zip(weights.items(), slopes, strict=True)}
            later = functional_call(model, adapted, (x_later,))
            total = total + F.mse_loss(later, amplitude * torch.sin(x_later + phase))
        losses.append(stepped(optimizer, total))
    return losses


def stepped(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> float:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


TRAININGS: dict[str, Callable[[Compile, int], list[float]]] = {
    "physics-informed network": physics_informed,
    "WGAN with gradient penalty": gradient_penalty,
    "Newton by Hessian-vector products": newton,
    "MAML": meta_learning,
}


def run(name: str, compiled: Compile, steps: int = STEPS) -> list[float]:
    """In double precision: Newton's steps make much of little."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return TRAININGS[name](compiled, steps)
    finally:
        torch.set_default_dtype(before)


def main() -> None:
    for name in TRAININGS:
        eager, mine = run(name, lambda model: model), run(name, smelt.compile)
        worst = max(abs(one - other) / max(abs(other), 1.0) for one, other in zip(mine, eager, strict=True))
        print(f"{name}: loss {eager[0]:.4f} → {eager[-1]:.4f}, compiled {mine[0]:.4f} → {mine[-1]:.4f}")
        print(f"    largest difference over {len(eager)} losses: {worst:.1e}")


if __name__ == "__main__":
    main()
