"""What a backward reads is what the forward has computed with, or there is an error: tensors that were given other
memory in between, or that hooks bring from elsewhere, and gradients without memory."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import smelt

NEW_MEMORY: dict[str, Callable[[torch.Tensor], Any]] = {
    "alike": lambda weight: torch.ones_like(weight),
    "empty": lambda weight: torch.empty(0),
    "smaller": lambda weight: torch.ones(1),
    "turned": lambda weight: torch.ones(weight.shape[::-1]).t(),
    "turned, alike": lambda weight: weight.detach().t().contiguous().t(),
}


@pytest.mark.parametrize("name", NEW_MEMORY)
def test_a_weight_that_is_given_other_memory_before_the_backward_is_an_error(name: str) -> None:
    layer = nn.Linear(64, 64)
    loss = smelt.compile(layer)(torch.randn(4, 64, requires_grad=True)).square().sum()
    layer.weight.data = NEW_MEMORY[name](layer.weight)
    with pytest.raises(RuntimeError, match="was given a new storage"):
        loss.backward()


def test_a_parameter_may_be_released_and_gathered_again_with_the_same_values() -> None:
    layer = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    x = torch.randn(4, 8, requires_grad=True)
    wanted = torch.autograd.grad(layer(x).sin().sum(), (x, *layer.parameters()))
    shards = [each.detach().clone() for each in layer.parameters()]

    def gather() -> None:  # into parts of one buffer, another each time
        buffer = torch.cat([torch.ones(7), *[shard.flatten() for shard in shards]])
        parts = buffer[7:].split([shard.numel() for shard in shards])
        for parameter, part, shard in zip(layer.parameters(), parts, shards, strict=True):
            parameter.data = part.view(shard.shape)

    compiled = smelt.compile(layer)
    for _ in range(2):
        gather()
        loss = compiled(x).sin().sum()
        for parameter in layer.parameters():
            parameter.data = torch.empty(0)
        gather()
        found = torch.autograd.grad(loss, (x, *layer.parameters()))
        torch.testing.assert_close(found, wanted)


def test_data_that_is_given_other_memory_before_the_backward_is_an_error() -> None:
    @smelt.compile
    def scaled(x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x * scale).sin(), x.exp()

    x, scale = torch.randn(8, requires_grad=True), torch.randn(8)
    sine, power = scaled(x, scale)
    torch.autograd.grad(power.sum(), x)
    scale.data = torch.ones(1)
    with pytest.raises(RuntimeError, match="was given a new storage"):
        sine.sum().backward()


def test_memory_may_be_filled_anew_and_given_between_steps() -> None:
    layer = nn.Linear(8, 8)
    compiled = smelt.compile(layer)
    x = torch.randn(4, 8)
    compiled(x).sum().backward()
    layer.weight.data = torch.ones(8, 8)
    layer.weight.grad = None
    loss = compiled(x).square().sum()
    loss.backward()
    (expected,) = torch.autograd.grad(layer(x).square().sum(), layer.weight)
    torch.testing.assert_close(layer.weight.grad, expected)


def test_memory_may_go_and_come_again_as_when_parameters_are_sharded() -> None:
    layer = nn.Linear(8, 8)
    x = torch.randn(4, 8, requires_grad=True)
    loss = smelt.compile(layer)(x).square().sum()
    (expected,) = torch.autograd.grad(layer(x).square().sum(), x)
    kept, storage = layer.weight.detach().clone(), layer.weight.untyped_storage()
    size = storage.size()
    storage.resize_(0)
    blocks = [torch.randn(8, 8) for _ in range(8)]
    storage.resize_(size)
    layer.weight.data.copy_(kept)
    loss.backward()
    torch.testing.assert_close(x.grad, expected)
    assert len(blocks) == 8


def test_a_hook_on_one_saved_tensor_may_bring_it_from_elsewhere() -> None:
    @smelt.compile
    def scaled(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return x * scale

    x, scale = torch.randn(4, 8, requires_grad=True), torch.randn(4, 8)
    result = scaled(x, scale)
    node: Any = result.grad_fn
    for saved in node._raw_saved_tensors:
        saved.register_hooks(lambda tensor: tensor.t().contiguous(), lambda kept: kept.t())
    result.sum().backward()
    torch.testing.assert_close(x.grad, scale)


def test_a_gradient_without_memory_yields_one_without() -> None:
    @smelt.compile
    def wave(x: torch.Tensor) -> torch.Tensor:
        return x.sin().sum()

    x = torch.randn(8, requires_grad=True)
    loss = wave(x)
    with FakeTensorMode(allow_non_fake_inputs=True):
        loss.backward()
    assert isinstance(x.grad, FakeTensor)
    assert x.grad.shape == x.shape


class Doubling(TorchDispatchMode):
    """Doubles what a cosine yields."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        return result * 2 if function is torch.ops.aten.cos.default else result


@pytest.mark.parametrize("first", [True, False])
def test_a_mode_round_the_backward_sees_its_operators(first: bool) -> None:
    @smelt.compile
    def wave(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 1

    x = torch.randn(8, requires_grad=True)
    if not first:
        wave(x).sum().backward()
        x.grad = None
    loss = wave(x).sum()
    with Doubling():
        loss.backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().cos())
