"""Compiled calls recorded by the user into a CUDA graph: replayed they compute with what is there then."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from tests.gpu.helpers import CUDA, assert_near, randn


def recorded(call: Callable[[], Any], warm: int = 3) -> tuple[torch.cuda.CUDAGraph, Any]:
    """The graph of a call, made as PyTorch's documentation says: warmed up on a stream of its own."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warm):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call()
    return graph, found


def forward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(F.gelu(x @ w) + x.sum(-1, keepdim=True), -1).cumsum(-1)


def test_a_call_is_recorded_and_replayed() -> None:
    x, w = randn(64, 128), randn(128, 128)
    compiled = smelt.compile(forward)
    graph, found = recorded(lambda: compiled(x, w))
    for seed in range(1, 4):
        x.copy_(randn(64, 128, seed=seed))
        graph.replay()
        assert_near(found, forward(x, w))
    # Calls beside it have memory of their own.
    other = randn(64, 128, seed=9)
    before = found.clone()
    assert_near(compiled(other, w), forward(other, w))
    assert torch.equal(found, before)


def test_a_training_step_is_recorded_and_replayed() -> None:
    def train(record: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).to(CUDA)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        run = smelt.compile(model) if record else model
        x = randn(16, 32)

        def step() -> None:
            opt.zero_grad(set_to_none=False)
            run(x).square().mean().backward()
            opt.step()

        graph = recorded(step)[0] if record else None
        for _ in range(0 if record else 3):
            step()
        for number in range(4):
            x.copy_(randn(16, 32, seed=number))
            graph.replay() if graph is not None else step()
        return [each.detach().clone() for each in model.parameters()]

    assert_near(train(True), train(False))


def test_dropout_draws_anew_at_each_replay_or_says_that_it_cannot() -> None:
    x = torch.ones(10_000, device=CUDA)
    compiled = smelt.compile(lambda x: F.dropout(x * 2, 0.5))
    try:
        graph, found = recorded(lambda: compiled(x))
    except RuntimeError as error:
        assert "captur" in str(error), error
        torch.cuda.synchronize()
        assert 4000 < int((compiled(x) != 0).sum()) < 6000  # and goes on outside
        return
    masks = []
    for _ in range(3):
        graph.replay()
        masks.append(found.clone())
    assert not torch.equal(masks[0], masks[1]) and not torch.equal(masks[1], masks[2]), "the same mask at each replay"


def test_a_first_call_while_recording_works_or_says_why_not() -> None:
    """What is compiled then loads code, which CUDA may refuse while it records."""
    x, w = randn(64, 128), randn(128, 128)
    forward(x, w)
    compiled = smelt.compile(forward)
    try:
        graph, found = recorded(lambda: compiled(x, w), warm=0)
    except RuntimeError as error:
        assert "captur" in str(error), error
    else:
        graph.replay()
        assert_near(found, forward(x, w))
    torch.cuda.synchronize()
    assert_near(smelt.compile(forward)(x, w), forward(x, w))


@pytest.mark.parametrize("rows", [(64, 64), (64, 32)], ids=["one size", "two sizes"])
def test_calls_after_a_recording_leave_its_memory_alone(rows: tuple[int, int]) -> None:
    w = randn(128, 128)
    compiled = smelt.compile(forward)
    x = randn(rows[0], 128)
    graph, found = recorded(lambda: compiled(x, w))
    for seed in range(5):
        other = randn(rows[1], 128, seed=seed)
        assert_near(compiled(other, w), forward(other, w))
        graph.replay()
        assert_near(found, forward(x, w))
