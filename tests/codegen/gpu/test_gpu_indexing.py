"""What fusion makes of pooling, resizing, indexing, scatters and scans, as GPUs run it, on the host: results and
gradients are eager's; the same code at every size."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import smelt
from smelt.base import events
from smelt.ir.kernel import Scatter
from smelt.ir.program import Launch, Program
from smelt.ops import scatters
from tests.simt_host.offer import SIMT_HOST
from tests.targets import on_target


@pytest.fixture(autouse=True)
def simt() -> Iterator[None]:
    with on_target(SIMT_HOST):
        yield


def floats(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).requires_grad_()


def places(below: int, *shape: int) -> Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(below))


APART = torch.tensor([7, 3, 0, 9])
PROGRAMS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "max pooling": (lambda x: F.max_pool2d(x, 2) * 2, (floats(2, 3, 8, 8),)),
    "max pooling, padded": (lambda x: F.max_pool2d(x, 3, 2, 1).sin(), (floats(2, 3, 9, 9),)),
    "average pooling": (lambda x: F.avg_pool2d(x, 3, 2, 1).sin(), (floats(2, 3, 9, 9),)),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2) * 2, (floats(2, 3, 8, 8),)),
    "bilinear": (lambda x: F.interpolate(x, size=(13, 5), mode="bilinear").sin(), (floats(2, 3, 8, 8),)),
    "bicubic": (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic").sin(), (floats(1, 2, 6, 6),)),
    "embedding": (lambda w, i: F.embedding(i, w, padding_idx=3).sin(), (floats(10, 8), places(10, 4, 6))),
    "index_select": (lambda x, i: x.index_select(1, i).sin(), (floats(5, 7), places(7, 9))),
    "gather": (lambda x, i: x.gather(1, i).sin(), (floats(5, 7), places(7, 5, 4))),
    "advanced": (lambda x, i, j: x.sin()[i, :, j].exp(), (floats(5, 4, 7), places(5, 6), places(7, 6))),
    "pad": (lambda x: F.pad(x, (1, 2, 3, 0)).sin(), (floats(5, 7),)),
    "reflected": (lambda x: F.pad(x, (1, 2), mode="reflect").sin(), (floats(2, 5, 7),)),
    "roll": (lambda x: x.roll((2, 1), (0, 1)).sin(), (floats(5, 7),)),
    "flip": (lambda x: x.flip(1).sin(), (floats(64, 256),)),
    "scatter_add": (lambda x, i: torch.zeros(10, 5).scatter_add(0, i, x.sin()), (floats(20, 5), places(10, 20, 5))),
    "index_add": (lambda x, i: torch.ones(10, 5).index_add(0, i, x.sin()), (floats(20, 5), places(10, 20))),
    "index_put": (lambda y, x: y.sin().index_put((APART,), x.sin()), (floats(10, 5), floats(4, 5))),
    "accumulated": (
        lambda y, x, i: y.sin().index_put((i,), x.sin(), accumulate=True),
        (floats(10, 5), floats(20, 5), places(10, 20)),
    ),
    "amax": (
        lambda y, x, i: y.detach().scatter_reduce(0, i, x.detach(), "amax"),
        (floats(10, 5), floats(20, 5), places(10, 20, 5)),
    ),
    "counts": (lambda i: torch.zeros(7, dtype=torch.int64).scatter_add(0, i, torch.ones_like(i)), (places(7, 50),)),
    "cumsum": (lambda x: x.cumsum(1).sin().cumsum(0), (floats(50, 30),)),
    "cumprod": (lambda x: x.cumprod(1).sin(), (floats(5, 9),)),
    "logcumsumexp": (lambda x: x.logcumsumexp(1).sin(), (floats(5, 9),)),
    "rows and places": (
        lambda x, i: torch.zeros(4).index_add(0, i, x.softmax(1).square().sum(1)),
        (floats(30, 5), places(4, 30)),
    ),
}


def results(function: Callable[..., Tensor], given: tuple[Tensor, ...]) -> list[Tensor]:
    """And gradients."""
    taken = [x.detach().clone().requires_grad_(x.requires_grad) for x in given]
    out = function(*taken)
    if out.requires_grad:
        (out * torch.linspace(0.5, 1.5, out.numel()).view(out.shape)).sum().backward()
    return [out.detach(), *(x.grad for x in taken if x.grad is not None)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_and_gradients(name: str) -> None:
    function, given = PROGRAMS[name]
    compiled = smelt.compile(function, options={"fallback": False})
    with events.collect() as collected:
        found = results(compiled, given)
    for mine, theirs in zip(found, results(function, given), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    programs = [event.subject for event in collected if isinstance(event.subject, Program)]
    launches = [step for program in programs for step in program.steps if isinstance(step, Launch)]
    assert launches and all(step.target == SIMT_HOST for step in launches)


def test_points_that_meet_may_take_any_order_where_eager_lets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda")
    assert scatters._in_any_order(cuda) and not scatters._in_any_order(torch.device("cpu"))
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert not scatters._in_any_order(cuda)
    monkeypatch.setattr(scatters, "_in_any_order", lambda device: True)
    for name, unordered in (("scatter_add", True), ("index_add", True), ("accumulated", False), ("embedding", False)):
        function, given = PROGRAMS[name]
        with events.collect() as collected:
            found = results(smelt.compile(function, options={"fallback": False}), given)
        for mine, theirs in zip(found, results(function, given), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
        programs = [event.subject for event in collected if isinstance(event.subject, Program)]
        steps = [i for program in programs for kernel in program.kernels for i in kernel.instructions()]
        assert {step.unordered for step in steps if isinstance(step, Scatter)} == {unordered}


DYNAMIC: dict[str, tuple[Callable[..., Tensor], Callable[[int], tuple[Tensor, ...]]]] = {
    "along rows": (lambda x: x.cumsum(-1), lambda n: (floats(3, n),)),
    "down columns": (lambda x: x.cumsum(0).sin(), lambda n: (floats(n, 5),)),
    "elements": (lambda x, i, y: y.scatter_add(0, i, x), lambda n: (floats(n, 5), places(9, n, 5), floats(10, 5))),
    "rows": (lambda x, i, y: y.index_add(0, i, x.sin()), lambda n: (floats(n, 5), places(9, n), floats(10, 5))),
    "cols": (lambda x, i, y: y.index_add(0, i, x.sin()), lambda n: (floats(20, n), places(9, 20), floats(10, n))),
    "last": (lambda x, y: y.index_put((APART,), x), lambda n: (floats(4, n), floats(10, n))),
    "largest": (
        lambda x, i, y: y.scatter_reduce(0, i, x, "amax"),
        lambda n: (floats(n, 5), places(9, n, 5), floats(10, 5)),
    ),
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_the_same_code_at_every_size(name: str) -> None:
    function, make = DYNAMIC[name]
    compiled = smelt.compile(function, options={"fallback": False}, dynamic=True)
    for size in (5, 7, 40, 2, 600):
        given = [x.detach() for x in make(size)]
        torch.testing.assert_close(compiled(*given), function(*given), rtol=1e-4, atol=1e-4)
    assert smelt.counters["sizes_traced"] == 1
