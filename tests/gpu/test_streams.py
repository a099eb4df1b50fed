"""Streams, events, devices and threads: compiled code runs on the stream that is current, and waits for nothing."""

import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from tests.gpu.helpers import CUDA, assert_near, made_for_gpu, randn

LONG = 200_000_000
"""Cycles of the GPU: a tenth of a second or so, in which the host gets far ahead."""


def several_kernels(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Intermediates in an arena, products by the library between kernels of ours."""
    hidden = F.gelu(F.layer_norm(x @ w, w.shape[1:]))
    return (torch.softmax((hidden * 0.1) @ w.t() / w.shape[0] ** 0.5, -1) * w.shape[0]).sin().cumsum(-1)


def wait_long() -> None:
    torch.cuda._sleep(LONG)


@pytest.fixture
def compiled() -> Any:
    made = smelt.compile(several_kernels, options={"fallback": False})
    with made_for_gpu():
        made(randn(256, 512), randn(512, 512))
    torch.cuda.synchronize()
    return made


def test_a_stream_other_than_the_default(compiled: Any) -> None:
    """What is written on that stream before the call is seen by it."""
    x, w, new = randn(256, 512), randn(512, 512), randn(256, 512, seed=1)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        wait_long()
        x.copy_(new)
        found = compiled(x, w)
    stream.synchronize()
    assert_near(found, several_kernels(new, w))


def test_what_comes_behind_an_event(compiled: Any) -> None:
    x, w, new = randn(256, 512), randn(512, 512), randn(256, 512, seed=1)
    stream, event = torch.cuda.Stream(), torch.cuda.Event()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        wait_long()
        x.copy_(new)
        event.record()
    torch.cuda.current_stream().wait_event(event)
    found = compiled(x, w)
    assert_near(found, several_kernels(new, w))


def test_a_call_does_not_wait_for_the_gpu(compiled: Any) -> None:
    x, w = randn(256, 512), randn(512, 512)
    compiled(x, w)
    torch.cuda.synchronize()
    for _ in range(5):
        wait_long()
    found = compiled(x, w)
    assert not torch.cuda.current_stream().query(), "the call came back after the GPU had done what was before it"
    assert_near(found, several_kernels(x, w))


def test_two_streams_at_once(compiled: Any) -> None:
    """Arenas are not shared between streams: one would write what the other still reads."""
    w = randn(512, 512)
    streams = [torch.cuda.Stream() for _ in range(2)]
    inputs = [[randn(256, 512, seed=10 * number + each) for each in range(20)] for number in range(2)]
    wanted = [[several_kernels(x, w) for x in each] for each in inputs]
    torch.cuda.synchronize()
    found: list[list[torch.Tensor]] = [[], []]
    for round_number in range(20):
        for number, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                if round_number % 5 == number:
                    torch.cuda._sleep(LONG // 20)  # so that now one is behind, now the other
                found[number].append(compiled(inputs[number][round_number], w))
    torch.cuda.synchronize()
    for number in range(2):
        for place, (mine, theirs) in enumerate(zip(found[number], wanted[number], strict=True)):
            assert_near(mine, theirs, f"stream {number}, call {place}")


def test_memory_of_a_stream_is_not_reused_too_soon(compiled: Any) -> None:
    """What a call let go on one stream, another may only have once the first is done with it."""
    w, stream = randn(512, 512), torch.cuda.Stream()
    x, y = randn(256, 512), randn(256, 512, seed=3)
    wanted = several_kernels(x, w), several_kernels(y, w)
    torch.cuda.synchronize()
    for _ in range(20):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(LONG // 50)
            mine = compiled(x, w)
        other = compiled(y, w)
        torch.cuda.synchronize()
        assert_near((mine, other), wanted)


def test_the_current_device(compiled: Any) -> None:
    x, w = randn(64, 512), randn(512, 512)
    for device in range(torch.cuda.device_count()):
        with torch.cuda.device(device):
            there = x.to(f"cuda:{device}"), w.to(f"cuda:{device}")
            assert_near(compiled(*there), several_kernels(*there))
            assert torch.cuda.current_device() == device


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_device_that_is_not_the_current_one(compiled: Any) -> None:
    there = randn(64, 512).to("cuda:1"), randn(512, 512).to("cuda:1")
    found = compiled(*there)
    assert torch.cuda.current_device() == 0 and found.device.index == 1
    assert_near(found, several_kernels(*there))


def gradients(run: Any, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    run(x, w).square().sum().backward()
    return x.grad, w.grad


def test_backward_on_the_thread_of_the_engine() -> None:
    """PyTorch runs backwards of CUDA tensors on a thread of its own, which has neither a default device nor a stream of
    the user's."""
    compiled = smelt.compile(several_kernels, options={"fallback": False})
    x, w = randn(64, 128), randn(128, 128)
    threads = []
    leaf = x.detach().requires_grad_()
    leaf.register_hook(lambda gradient: threads.append(threading.get_ident()))
    compiled(leaf, w).sum().backward()
    assert threads and threads[0] != threading.get_ident()
    assert_near(gradients(compiled, x, w), gradients(several_kernels, x, w))


def test_backward_on_the_stream_of_its_forward() -> None:
    compiled = smelt.compile(several_kernels, options={"fallback": False})
    x, w, new = randn(64, 128), randn(128, 128), randn(64, 128, seed=1)
    gradients(compiled, x, w)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    leaf = x.clone().requires_grad_()
    with torch.cuda.stream(stream):
        wait_long()
        with torch.no_grad():
            leaf.copy_(new)
        loss = compiled(leaf, w).square().sum()
    torch.cuda.current_stream().wait_stream(stream)
    loss.backward()
    assert_near(leaf.grad, gradients(several_kernels, new, w)[0])


@pytest.mark.parametrize("own_streams", [False, True], ids=["one stream", "a stream each"])
def test_several_threads(own_streams: bool) -> None:
    compiled = smelt.compile(several_kernels)
    w = randn(128, 128)
    inputs = [randn(64 + number, 128) for number in range(8)]
    wanted = [(several_kernels(x, w), *gradients(several_kernels, x, w)) for x in inputs]
    torch.cuda.synchronize()
    found: list[Any] = [None] * len(inputs)

    def work(number: int) -> None:
        try:
            stream = torch.cuda.Stream() if own_streams else torch.cuda.default_stream()
            with torch.cuda.stream(stream):
                for _ in range(5):
                    found[number] = (compiled(inputs[number], w), *gradients(compiled, inputs[number], w))
            stream.synchronize()
        except BaseException as error:
            found[number] = error

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
        assert not isinstance(mine, BaseException), f"thread {number}: {mine!r}"
        assert_near(mine, theirs, f"thread {number}")


def test_tensors_made_within_are_on_the_device_that_is_asked_for() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + torch.arange(x.shape[0], device=x.device) + torch.ones(x.shape[0], device=CUDA)

    found = smelt.compile(function)(torch.zeros(9, device=CUDA))
    assert found.is_cuda and torch.equal(found, torch.arange(1.0, 10.0, device=CUDA))
