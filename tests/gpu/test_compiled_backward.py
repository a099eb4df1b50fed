"""Compiled autograd with gradients on a GPU: on the streams of the forward, with hooks on the engine's thread."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.base import events
from smelt.torch_abi.node_streams import why_not_read_streams
from tests.gpu.helpers import CUDA, assert_near, randn

Hooks = Callable[[nn.Module, torch.Tensor], None]


def left_to_the_engine(call: Callable[[], None]) -> list[str]:
    """What compiled autograd says of backwards that the engine runs."""
    with events.collect() as seen:
        call()
    return [event.text for event in seen if "left to the engine" in event.text]


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 8)).to(CUDA)


def gradients(module: nn.Module, compiled: bool, hooks: Hooks | None = None, times: int = 3) -> list[torch.Tensor]:
    """Gradients that were accumulated over some steps, compiled or by the engine."""
    found: list[torch.Tensor] = []
    module.zero_grad()
    for seed in range(times):
        x = randn(32, 64, seed=seed)
        loss = module(x).square().mean()
        if hooks is not None:
            hooks(module, loss)
        if compiled:
            with smelt.compiled_autograd.enable(smelt.compile()):
                loss.backward()
        else:
            loss.backward()
        torch.cuda.current_stream().synchronize()
        found += [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]
    return found


def test_it_is_known_where_nodes_keep_their_streams() -> None:
    assert why_not_read_streams() is None


def test_as_the_engine_has_it() -> None:
    module = model()
    wanted = gradients(module, compiled=False)
    told = left_to_the_engine(lambda: assert_near(gradients(module, compiled=True), wanted))
    assert told == []


def test_behind_a_compiled_forward() -> None:
    module = model()
    wanted = gradients(module, compiled=False)
    told = left_to_the_engine(lambda: assert_near(gradients(smelt.compile(module), compiled=True), wanted))
    assert told == []


def test_hooks_run_on_the_thread_of_the_engine() -> None:
    """Where the GPU of the gradient is current, as in eager."""
    module, seen = model(), []

    def hooks(module: nn.Module, loss: torch.Tensor) -> None:
        def look(gradient: torch.Tensor) -> torch.Tensor:
            seen.append((threading.get_ident() != threading.main_thread().ident, torch.cuda.current_device()))
            return gradient * 2

        loss.register_hook(look)

    wanted = gradients(module, False, hooks)
    count = len(seen)
    assert left_to_the_engine(lambda: assert_near(gradients(module, True, hooks), wanted)) == []
    assert len(seen) == 2 * count and set(seen) == {(True, 0)}


def test_an_error_in_a_hook_arrives() -> None:
    def refuse(gradient: torch.Tensor) -> None:
        raise KeyError("a hook")

    x = randn(8, 8, grad=True)
    loss = x.sin().sum()
    loss.register_hook(refuse)
    with smelt.compiled_autograd.enable(smelt.compile()), pytest.raises(KeyError, match="a hook"):
        loss.backward()


def test_on_a_stream_of_the_programs() -> None:
    module = model()
    wanted = gradients(module, compiled=False)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())

    def work() -> None:
        with torch.cuda.stream(stream):
            found = gradients(module, compiled=True)
        torch.cuda.current_stream().wait_stream(stream)
        assert_near(found, wanted)

    assert left_to_the_engine(work) == []


def test_a_forward_on_another_stream_is_the_engines() -> None:
    """It runs the backward there, and the caller's stream waits for it."""
    module, other, x = model(), torch.cuda.Stream(), randn(4096, 64)
    module(x).square().mean().backward()
    wanted = [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]

    def work() -> None:
        module.zero_grad()
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            loss = module(x).square().mean()
        with smelt.compiled_autograd.enable(smelt.compile()):
            loss.backward()
        assert_near([parameter.grad for parameter in module.parameters()], wanted)

    told = left_to_the_engine(work)
    assert len(told) == 1 and "another stream" in told[0]


def test_gradients_of_both_sides() -> None:
    """A forward that goes to the host and back."""

    def loss(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return ((x * 2).cpu().sin().to(CUDA) * s).sum().cpu() * 2

    found: list[Any] = []
    for compiled in (False, True):
        x, s = randn(16, 16, grad=True), randn(16, 16, grad=True, seed=1)
        if compiled:
            with smelt.compiled_autograd.enable(smelt.compile()):
                loss(x, s).backward()
        else:
            loss(x, s).backward()
        found.append((x.grad, s.grad))
    assert_near(found[1], found[0])


def test_a_flag_without_dimensions_is_not_read() -> None:
    """Masks of one element are saved as tensors: asking for their value would wait for the GPU."""
    x, mask = randn(64, 64, grad=True), torch.tensor(True, device=CUDA)
    y = torch.where(mask, x, x * 2).sum()
    with smelt.compiled_autograd.enable(smelt.compile()):
        y.backward()
    assert_near(x.grad, torch.ones(64, 64, device=CUDA))
