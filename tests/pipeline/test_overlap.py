"""Memory that overlaps: through several storages, through views inside of a graph, through what one call is given.

Each program runs in eager first. Compiled it must leave all memory, all versions and every error as eager does.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import smelt

BACKENDS = ["eager", "aot_eager", "llvm"]
Memory = tuple[Any, torch.Tensor, torch.Tensor]


def slices(at: int = 4) -> Memory:
    memory = np.arange(16, dtype=np.float32)
    return memory, torch.from_numpy(memory[:8]), torch.from_numpy(memory[at : at + 8])


def interleaved() -> Memory:
    memory = np.arange(16, dtype=np.float32)
    return memory, torch.from_numpy(memory[::2]), torch.from_numpy(memory[1::2])


def buffers() -> Memory:
    memory = bytearray(np.arange(16, dtype=np.float32).tobytes())
    first = torch.frombuffer(memory, dtype=torch.float32, count=8)
    return memory, first, torch.frombuffer(memory, dtype=torch.float32, count=8, offset=16)


def exchanged() -> Memory:
    memory = torch.arange(16.0)
    return memory, torch.from_dlpack(memory[:8]), torch.from_dlpack(memory[4:12])


def one_storage() -> Memory:
    memory = torch.arange(16.0)
    first, second = torch.empty(0), torch.empty(0)
    first.set_(memory.untyped_storage(), 0, (8,), (1,))
    second.set_(memory.untyped_storage(), 4, (8,), (1,))
    return memory, first, second


def alternate(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.add_(1)
    seen = y * 2
    y.mul_(3)
    return seen, x + y


def through_data(x: torch.Tensor, y: torch.Tensor) -> Any:
    doubled = x * 2
    x.data.fill_(3)
    return doubled + y


def copied(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.copy_(y)
    x[0] = 7
    return y.sum()


def in_lists(x: torch.Tensor, y: torch.Tensor) -> Any:
    torch._foreach_add_([x, y], 1.0)
    return x * 1


def into(x: torch.Tensor, y: torch.Tensor) -> Any:
    product = x * y
    torch.add(x, 1, out=y)
    return product + y


def cleared(x: torch.Tensor, y: torch.Tensor) -> Any:
    with torch.no_grad():
        x.zero_()
    return y + 1


def run(function: Callable[..., Any], memory: Any, args: list[torch.Tensor]) -> list[Any]:
    try:
        results = function(*args)
        found = [each.tolist() for each in (results if isinstance(results, tuple) else (results,))]
    except RuntimeError as error:
        found = [str(error)]
    return [*found, np.frombuffer(memory, np.float32).tolist(), [each._version for each in args]]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", [alternate, through_data, copied, in_lists, into, cleared])
@pytest.mark.parametrize("make", [slices, lambda: slices(0), interleaved, buffers, exchanged, one_storage])
@pytest.mark.parametrize("apart_first", [False, True])
def test_inputs_that_overlap(
    make: Callable[[], Memory], function: Callable[..., Any], apart_first: bool, backend: str
) -> None:
    compiled = smelt.compile(function, backend=backend)
    for overlapping in (apart_first, not apart_first, apart_first):
        outcomes = []
        for each in (function, compiled):
            memory, *args = slices(8) if not overlapping else make()
            whole = memory.numpy() if isinstance(memory, torch.Tensor) else memory
            outcomes.append(run(each, whole, args))
        assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [33, 1000])
def test_a_result_into_memory_that_another_input_lies_in(size: int, backend: str) -> None:
    def shift(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.add(x, 1, out=y) * 2

    def step(function: Callable[..., Any]) -> list[Any]:
        memory = np.zeros(2 * size, dtype=np.float32)
        function(torch.ones(size), torch.ones(size))
        return run(function, memory, [torch.from_numpy(memory[:size]), torch.from_numpy(memory[1 : size + 1])])

    assert step(smelt.compile(shift, backend=backend)) == step(shift)


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "foreach": True}, {"momentum": 0.9, "foreach": False}])
def test_an_optimizer_whose_parameters_overlap(options: dict[str, Any]) -> None:
    def train(compiled: bool) -> list[Any]:
        memory = np.arange(64, dtype=np.float32)
        parameters = [torch.nn.Parameter(torch.from_numpy(memory[8 * n : 8 * n + 12])) for n in range(4)]
        optimizer = torch.optim.SGD(parameters, lr=0.5, **options)
        step = smelt.compile(optimizer.step) if compiled else optimizer.step
        for number in range(3):
            for place, parameter in enumerate(parameters):
                parameter.grad = torch.full((12,), float(place + number))
            step()
        return [memory.tolist(), [each._version for each in parameters]]

    assert train(True) == train(False)


def test_statistics_that_lie_in_the_memory_of_what_is_normalized() -> None:
    def normalize(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, mean, variance, training=True) + x

    def train(function: Callable[..., Any]) -> list[torch.Tensor]:
        memory = np.linspace(1, 2, 64, dtype=np.float32)
        x, mean = torch.from_numpy(memory[:24]).view(6, 4), torch.from_numpy(memory[22:26])
        results = [function(x, mean, torch.ones(4)) for _ in range(3)]
        return [*results, torch.from_numpy(memory)]

    for made, wanted in zip(train(smelt.compile(normalize)), train(normalize), strict=True):
        torch.testing.assert_close(made, wanted)


def test_a_gradient_in_the_memory_of_a_parameter() -> None:
    def train(compiled: bool, inside: bool) -> list[torch.Tensor]:
        memory = np.linspace(1, 2, 64, dtype=np.float32)
        p, r = (torch.nn.Parameter(torch.full((12,), value)) for value in (1.0, 0.25))
        q = torch.nn.Parameter(torch.from_numpy(memory[40:52]))
        p.grad = torch.from_numpy(memory[36:48])

        def step() -> torch.Tensor:
            first = (r * q).cos()
            loss = (first * (p * q)).sum()
            if inside:
                loss.backward()  # type: ignore[no-untyped-call]
            return loss

        call = smelt.compile(step) if compiled and inside else step
        found = []
        for _ in range(3):
            loss = call()
            if not inside and compiled:
                with smelt.compiled_autograd.enable(smelt.compile):
                    loss.backward()  # type: ignore[no-untyped-call]
            elif not inside:
                loss.backward()  # type: ignore[no-untyped-call]
            found += [loss.detach(), *(each.grad.clone() for each in (p, q, r) if each.grad is not None)]
        return [*found, torch.from_numpy(memory)]

    for inside in (False, True):
        for made, wanted in zip(train(True, inside), train(False, inside), strict=True):
            torch.testing.assert_close(made, wanted)


def test_an_ahead_of_time_function() -> None:
    compiled = smelt.aot_function(alternate, lambda module, _: module)
    for make in (lambda: slices(8), slices, lambda: slices(8)):
        outcomes = []
        for each in (alternate, compiled):
            memory, *args = make()
            outcomes.append(run(each, memory, args))
        assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    "write",
    [
        lambda y: y.as_strided((4, 3), (1, 1)).add_(1),
        lambda y: y.as_strided((4, 3), (1, 1))[:, 1].fill_(5),
        lambda y: y.as_strided((4, 3), (1, 1)).t()[0].sub_(2),
        lambda y: y.as_strided((4, 3), (1, 1)).cumsum_(0),
        lambda y: y.as_strided((4, 3), (1, 1)).put_(torch.tensor([0, 5]), torch.tensor([9.0, 8.0])),
        lambda y: y.as_strided((4, 3), (1, 1)).index_add_(0, torch.tensor([0, 1]), torch.ones(2, 3)),
        lambda y: torch.as_strided(y, (4, 3), (1, 1)).scatter_(0, torch.tensor([[0, 1, 2]]), 7.0),
        lambda y: y.unfold(0, 3, 1).mul_(2),
        lambda y: y.unfold(0, 3, 3).add_(1),  # two elements are in no window
        lambda y: y[:1].expand(4).add_(1),
        lambda y: y.expand(2, 8)[0].add_(1),
        lambda y: y[1:].add_(y[:-1]),
        lambda y: y[1:].copy_(y[:-1]),
        lambda y: y[::2].add_(y[1::2]),
        lambda y: y.view(2, 4)[:, :2].add_(y.view(2, 4)[:, 2:]),
        lambda y: y.add_(y.view_as(y)),
        lambda y: torch.mul(y[:4], 2, out=y[1:5]),
        lambda y: torch.add(y[1:], y[:-1], out=y[:-1]),
        lambda y: torch.add(y, 1, out=y),
        lambda y: torch.add(y[:3], 1, out=y.as_strided((3,), (0,))),
        lambda y: torch.add(y[:3], 1, out=y.as_strided((3,), (2,), 1)),
        lambda y: torch.mm(y.view(2, 4)[:, :2], y.view(2, 4)[:, :2], out=y.view(2, 4)[:, :2]),
        lambda y: torch._foreach_add_([y[:4], y[2:6]], 1.0),
        lambda y: torch._foreach_add_([y[:4], y[4:]], 1.0),
        lambda y: torch._foreach_add_([y[:4]], [y[2:6]]),
        lambda y: torch._foreach_mul_([y, y], 2.0),
    ],
)
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_views_that_overlap(write: Callable[[Any], Any], given: bool, dynamic: bool | None, backend: str) -> None:
    def function(x: torch.Tensor) -> Any:
        y = x if given else x * 1
        view = y.as_strided((4, 3), (1, 1))
        write(y)
        return y * 1, view * 1

    outcomes = []
    for each in (function, smelt.compile(function, backend=backend, dynamic=dynamic)):
        memory = torch.arange(1.0, 9)
        outcomes.append([*run(each, memory.numpy(), [memory]), *run(each, memory.numpy(), [memory])])
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    "make",
    [
        lambda memory: memory[:1].expand(4),
        lambda memory: memory.as_strided((4, 3), (1, 1)),
        lambda memory: memory.unfold(0, 3, 1),
        lambda memory: memory.view(4, 2)[:, :1].expand(4, 3),
    ],
)
@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.add_(1),
        lambda x: x[0].fill_(3),
        lambda x: x[:2].mul_(2),
        lambda x: x.copy_(x.flip(0)),
        lambda x: torch.add(x, 1, out=x),
        lambda x: x.data.add_(1),
        lambda x: torch._foreach_mul_([x], 2.0),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_input_that_overlaps_itself(make: Callable[[Any], Any], write: Callable[[Any], Any], backend: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        write(x)
        return x * 2

    outcomes = []
    for each in (function, smelt.compile(function, backend=backend)):
        memory = torch.arange(1.0, 9)
        outcomes.append(run(each, memory.numpy(), [make(memory)]))
    assert outcomes[0] == outcomes[1]


def test_parts_that_lie_apart_are_compiled() -> None:
    def rotate(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y[..., :4].add_(y[..., 4:])
        y[..., ::2].mul_(y[..., 1::2])
        y[:, 0].copy_(y[:, 1])
        return y

    for size in (8, 9):
        x = torch.rand(3, 2, size)[..., :8]
        torch.testing.assert_close(smelt.compile(rotate, fullgraph=True)(x), rotate(x))
    smelt.reset()
    smelt.compile(rotate, fullgraph=True)(torch.rand(3, 2, 8))
    assert smelt.counters["kernels"] > 0


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
def test_scattering_into_a_copy_that_overlaps_itself(backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        windows = torch.as_strided(x.clone(), (x.shape[0], 2), (1, 1), 0)
        return torch.select_scatter(windows, windows.select(-2, 0) * 2, -2, 2)

    x = torch.arange(42).reshape(6, 7)
    assert smelt.compile(program, backend=backend)(x).equal(program(x))


SCATTERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a place": lambda x: torch.select_scatter(x, x.select(-1, 0) * 2, -1, 3),
    "a place of a vector": lambda x: torch.select_scatter(x[0], x[0, 0] * 2, -1, 3),
    "a slice": lambda x: torch.slice_scatter(x, x[:1] * 2, 0, 2, 3),
    "a slice with steps": lambda x: torch.slice_scatter(x, x[:, :2] * 2, 1, 0, 4, 2),
    "a diagonal": lambda x: torch.diagonal_scatter(x, x.diagonal() * 2),
    "windows": lambda x: torch.as_strided_scatter(x, x[0, :4] * 2, (4,), (4,), 1),
    "rows": lambda x: x.index_copy(0, torch.tensor([2]), x[:1] * 2),
    "indices": lambda x: torch.index_put(x, (torch.tensor([2]),), x[:1] * 2),
}


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
@pytest.mark.parametrize("name", SCATTERS)
def test_gradients_that_show_one_element_everywhere(name: str, backend: str, inside: bool) -> None:
    """The gradient of a sum is one number, expanded; that of a scatter puts zeros into a copy of it."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return SCATTERS[name](x).sum() if inside else SCATTERS[name](x)

    grads = []
    for function in (smelt.compile(program, backend=backend), program):
        for shape in ((4, 4), (4, 5)):
            x = torch.rand(shape, generator=torch.Generator().manual_seed(1)).requires_grad_()
            function(x).sum().backward()
            grads.append(x.grad)
    torch.testing.assert_close(grads[:2], grads[2:])


def norm_in_its_input(x: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, x[0, :, 0].detach(), torch.ones(3), training=True)


def norm_in_repeated_input(x: torch.Tensor) -> torch.Tensor:
    wide = x.expand(4, 3, 5)
    return F.batch_norm(wide, wide[0, :, 0].detach(), torch.ones(3), training=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", [norm_in_its_input, norm_in_repeated_input])
def test_running_statistics_in_the_memory_of_the_input(
    function: Callable[[torch.Tensor], torch.Tensor], backend: str
) -> None:
    """Which no version counts."""
    given = torch.arange(15.0).view(1, 3, 5) - 7
    given[0, 1, 2], given[0, 0, 3] = -0.0, torch.inf
    theirs, ours = given.clone(), given.clone()
    expected, found = function(theirs), smelt.compile(function, backend=backend)(ours)
    torch.testing.assert_close(found, expected, equal_nan=True)
    torch.testing.assert_close(ours, theirs)
    assert torch.equal(ours.signbit(), theirs.signbit())
