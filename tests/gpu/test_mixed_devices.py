"""Tensors of the host and of a GPU in one function: numbers, indices, copies in both directions."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from tests.gpu.helpers import CUDA, randn


def hold(function: Callable[..., Any], *args: Any, fullgraph: bool = False) -> None:
    """Two calls, of which the second has nothing to compile."""
    compiled = smelt.compile(function, fullgraph=fullgraph)
    for _ in range(2):
        mine, eager = compiled(*args), function(*args)
        torch.testing.assert_close(mine, eager)  # the device too


NUMBERS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "times": lambda x, s: x * s,
    "on the left": lambda x, s: s - x,
    "power": lambda x, s: x.abs() ** s,
    "where": lambda x, s: torch.where(x > s, x, s),
    "minimum": lambda x, s: torch.minimum(x, s),
    "addcmul": lambda x, s: torch.addcmul(x, x, x) * s,
    "in place": lambda x, s: x.clone().mul_(s),
    "a chain": lambda x, s: torch.softmax(x * (s * 2 + 1), -1) / s,
    "filled": lambda x, s: x.masked_fill(x > 0, s),
    "only numbers": lambda x, s: (x.sum(), s * 2, s.exp()),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_the_host(name: str, dtype: torch.dtype) -> None:
    """They take part whatever device they are on, and do not decide the dtype of the result."""
    function = NUMBERS[name]
    compiled = smelt.compile(function)
    x = randn(33, 65)
    for value in (2, 3, 5):  # the value is read at every call
        number = torch.tensor(value, dtype=dtype, device="cpu")
        torch.testing.assert_close(compiled(x, number), function(x, number))


def test_the_gradient_of_a_number_of_the_host_is_on_the_host() -> None:
    found = []
    for run in (lambda x, s: (x * s).sin().sum(), smelt.compile(lambda x, s: (x * s).sin().sum())):
        x, number = randn(40, 50, grad=True), torch.tensor(1.5, device="cpu", requires_grad=True)
        run(x, number).backward()
        found.append((x.grad, number.grad))
    assert found[1][1] is not None and found[1][1].device.type == "cpu"
    torch.testing.assert_close(found[1], found[0])


INDEXED: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "rows": lambda x, i: x[i] * 2,
    "cols": lambda x, i: x[:, i].sin(),
    "both": lambda x, i: x[i, i],
    "put": lambda x, i: x.index_put((i,), x[i] + 1),
    "accumulated": lambda x, i: torch.index_put(x, (i,), x[i], accumulate=True),
    "written": lambda x, i: torch.clone(x).index_put_((i,), torch.zeros((), device=x.device)),
}


@pytest.mark.parametrize("name", INDEXED)
def test_indices_of_the_host(name: str) -> None:
    hold(INDEXED[name], randn(33, 65), torch.tensor([0, 3, 3, -1, 31], device="cpu"))


def test_masks_of_the_host() -> None:
    hold(lambda x, m: x[m] * 2, randn(33, 65), torch.arange(33, device="cpu") % 3 == 0)


MIXED: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "add": (torch.add, (4, 4)),
    "mm": (torch.mm, (4, 4)),
    "cat": (lambda x, y: torch.cat([x, y]), (4, 4)),
    "clamp": (lambda x, s: torch.clamp(x, max=s), ()),
    "clamp_min": (torch.clamp_min, ()),
    "logaddexp": (torch.logaddexp, ()),
    "nextafter": (torch.nextafter, ()),
    "dot": (lambda x, s: torch.dot(x[0], s.expand(4)), ()),
}


@pytest.mark.parametrize("name", MIXED)
def test_what_does_not_mix(name: str) -> None:
    """Whole tensors of two devices, and numbers of the host where PyTorch wants none."""
    function, shape = MIXED[name]
    x, y = randn(4, 4), torch.ones(shape, device="cpu")
    with pytest.raises(RuntimeError) as eager:
        function(x, y)
    with pytest.raises(RuntimeError) as mine:
        smelt.compile(lambda x, y: function(x, y))(x, y)
    assert str(mine.value).splitlines()[0] == str(eager.value).splitlines()[0]


COPIES: dict[str, Callable[[torch.Tensor], Any]] = {
    "to the host": lambda x: (x * 2).cpu() + 1,
    "to the host and back": lambda x: (x.sin().cpu().exp()).to(CUDA) * x,
    "made on the host": lambda x: x + torch.arange(x.shape[-1], device="cpu").to(x.device),
    "as the other": lambda x: torch.ones(x.shape, device="cpu").to(x).mul(x),
    "both": lambda x: (x.cos(), x.cos().cpu()),
    "by methods": lambda x: x.sin().cpu().exp().cuda() * x,
    "numbered": lambda x: x.cpu().cuda(0) + x.cpu().cuda("cuda:0") + x.cpu().to(0),
    "made there": lambda x: torch.tensor([1.0, 2.0], device="cuda").sum() + torch.ones(65, device="cuda") * x,
    "converted": lambda x: x.to("cpu", torch.float64).sin().to("cuda", torch.float16),
    "there already": lambda x: x.cuda() + x.to("cuda") + x.cpu().cpu().cuda(),
    "waited for by another": lambda x: (x.sin().to("cpu", non_blocking=True), x.cos().cpu()),
    "the current one": lambda x: x + torch.cuda.current_device() + torch.cuda.device_count(),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_between_devices(name: str) -> None:
    hold(COPIES[name], randn(33, 65), fullgraph=True)


def test_what_reads_a_copy_that_is_not_waited_for_waits_for_it() -> None:
    """Eager does not: what it computes depends on which is faster."""
    compiled = smelt.compile(lambda x: x.sin().to("cpu", non_blocking=True) + 1, fullgraph=True)
    for seed in range(20):
        x = randn(33, 65, seed=seed)
        torch.testing.assert_close(compiled(x), x.sin().cpu() + 1)


def test_a_result_that_is_not_waited_for_is_page_locked_and_right_in_the_end() -> None:
    compiled = smelt.compile(lambda x: (x.sin() * 3).to("cpu", non_blocking=True), fullgraph=True)
    for seed in range(3):
        x = randn(1000, 1000, seed=seed)
        found = compiled(x)
        torch.cuda.synchronize()
        assert found.is_pinned()
        torch.testing.assert_close(found, (x.sin() * 3).cpu())


def test_a_batch_of_the_host_trains() -> None:
    """A loop that moves its batch inside what is compiled: one graph forward, one backward."""
    model = torch.nn.Linear(64, 8)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(x.cuda(non_blocking=True)), y.to("cuda"))

    found = []
    for run in (loss, smelt.compile(loss, fullgraph=True)):
        model.zero_grad()
        x, y = randn(16, 64).cpu(), torch.arange(16, device="cpu") % 8
        value = run(x, y)
        value.backward()
        found.append((value, model.weight.grad))
    torch.testing.assert_close(found[1], found[0])


def test_gradients_through_copies() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.sin().cpu().square().to(CUDA) * x).sum()

    found = []
    for run in (function, smelt.compile(function)):
        x = randn(33, 65, grad=True)
        run(x).backward()
        found.append(x.grad)
    torch.testing.assert_close(found[1], found[0])


def test_pinned_memory_to_the_gpu() -> None:
    """The copy is not waited for; kernels behind it on the stream see what it brought."""
    compiled = smelt.compile(lambda host: (host.to(CUDA, non_blocking=True) * 2).sin())
    for seed in range(5):
        host = randn(1000, 1000, seed=seed).cpu().pin_memory()
        torch.testing.assert_close(compiled(host), (host.to(CUDA) * 2).sin())


def test_results_into_pinned_memory() -> None:
    room = torch.empty(1000, 1000, device="cpu", pin_memory=True)

    def function(x: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
        return room.copy_(x.sin() * 3, non_blocking=True)

    compiled = smelt.compile(function)
    for seed in range(3):
        x = randn(1000, 1000, seed=seed)
        found = compiled(x, room)
        torch.cuda.synchronize()
        assert found.is_pinned() and found.data_ptr() == room.data_ptr()
        torch.testing.assert_close(room, (x.sin() * 3).cpu())


def test_a_batch_that_is_fetched_ahead() -> None:
    """What a training loop does: the next batch is copied on a stream of its own while this one is computed."""
    compiled = smelt.compile(lambda x: torch.softmax(x @ x.t(), -1).sum(0))
    fetching = torch.cuda.Stream()
    hosts = [randn(512, 512, seed=number).cpu().pin_memory() for number in range(8)]
    wanted = [torch.softmax(host.to(CUDA) @ host.to(CUDA).t(), -1).sum(0) for host in hosts]
    found = []
    for host in hosts:
        with torch.cuda.stream(fetching):
            batch = host.to(CUDA, non_blocking=True)
        torch.cuda.current_stream().wait_stream(fetching)
        batch.record_stream(torch.cuda.current_stream())
        found.append(compiled(batch))
    torch.testing.assert_close(found, wanted)
