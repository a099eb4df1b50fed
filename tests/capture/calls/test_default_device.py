"""A default device, of the process or of a block: factories make their tensors there, in compiled functions too."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

import smelt
from tests.capture.contexts import every_backend, same

X = torch.arange(6.0).reshape(2, 3)


@pytest.fixture
def on_meta() -> Iterator[None]:
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@pytest.fixture
def on_cpu() -> Iterator[None]:
    torch.set_default_device("cpu")
    yield
    torch.set_default_device(None)


def factories(x: Any) -> Any:
    made = torch.zeros(2, 3), torch.arange(3), torch.full((2,), 1.5), torch.randn(2), torch.ones(2, device="cpu")
    return [each.device.type for each in made], torch.ones_like(x).device.type, torch.get_default_device().type


def computes(x: Any) -> Any:
    return (x * torch.ones(3, device="cpu")).sin() + torch.eye(3, device="cpu")[0]


def plain(x: Any) -> Any:
    return x * torch.ones(3) + torch.arange(3)


def blocks(x: Any) -> Any:
    with torch.device("meta"):
        a = torch.zeros(3)
        with torch.device("cpu"):
            b = torch.zeros(3)
        c = torch.zeros(3)
    d = torch.zeros(3)
    return [each.device.type for each in (a, b, c, d)], x * b + d


def left_by_exception(x: Any) -> Any:
    try:
        with torch.device("meta"):
            raise ValueError
    except ValueError:
        return x + torch.ones(3)


@pytest.mark.usefixtures("on_cpu")
@every_backend
@pytest.mark.parametrize("function", [plain, computes, factories, blocks, left_by_exception])
def test_under_a_default_device(function: Any, backend: str) -> None:
    same(function, X.clone().requires_grad_(), backend=backend)
    assert smelt.counters["calls_under_modes"] == 0


@pytest.mark.usefixtures("on_meta")
@every_backend
@pytest.mark.parametrize("function", [computes, factories])
def test_under_another_default_device(function: Any, backend: str) -> None:
    with torch.device("cpu"):
        x = X.clone()
    smelt.reset()
    compiled = smelt.compile(function, backend=backend, fullgraph=True)
    for _ in range(2):
        expected, got = function(x), compiled(x)
        assert torch.allclose(got, expected) if isinstance(expected, torch.Tensor) else got == expected
        assert torch.get_default_device() == torch.device("meta")
    assert smelt.counters["graphs"] <= 1 and smelt.counters["graph_breaks"] == 0


@every_backend
@pytest.mark.parametrize("function", [blocks, left_by_exception])
def test_blocks_inside(function: Any, backend: str) -> None:
    same(function, X.clone().requires_grad_(), backend=backend)


def test_another_device_is_noticed() -> None:
    def f(x: Any) -> Any:
        return torch.zeros(3), x + 1

    smelt.reset()
    compiled = smelt.compile(f, backend="eager")
    assert compiled(X)[0].device.type == "cpu"
    with torch.device("meta"):
        assert compiled(X)[0].device.type == "meta"
        with torch.device("cpu"):
            assert compiled(X)[0].device.type == "cpu"
        assert compiled(X)[0].device.type == "meta"
    assert compiled(X)[0].device.type == "cpu"
    assert smelt.counters["graphs"] == 3 and smelt.counters["calls_under_modes"] == 0


@every_backend
def test_a_break_inside_a_block(backend: str) -> None:
    def f(x: Any) -> Any:
        y = x * 2
        with torch.device("meta"):
            a = torch.zeros(3)
            smelt.graph_break()
            b = torch.zeros(3)
            z = y + 1
        return a.device.type, b.device.type, torch.zeros(2).device.type, z

    smelt.reset()
    compiled = smelt.compile(f, backend=backend)
    for _ in range(2):
        got, expected = compiled(X), f(X)
        assert got[:3] == expected[:3] == ("meta", "meta", "cpu") and torch.equal(got[3], expected[3])
        assert torch.get_default_device() == torch.device("cpu")
    assert smelt.counters["graphs"] == 2 and smelt.counters["graph_breaks"] == 1


class Doubling(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.sin else result


def test_other_modes_see_every_operator() -> None:
    smelt.reset()
    compiled = smelt.compile(lambda x: torch.sin(x) + torch.ones(3), backend="eager")
    with torch.device("cpu"), Doubling():
        assert torch.allclose(compiled(X), X.sin() * 2 + 1)
    assert smelt.counters["calls_under_modes"] == 1


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Two GPUs as PyTorch tells of them; the number of the current one can be set."""
    current = [0]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: current[0], raising=False)
    return current


def test_the_current_gpu_is_the_default_device(gpus: list[int]) -> None:
    def f(x: Any) -> Any:
        return torch.get_default_device(), x + 1

    smelt.reset()
    compiled = smelt.compile(f, backend="eager", fullgraph=True)
    x = X.clone()
    with torch.device("cuda"):
        for gpus[0] in (0, 0, 1, 1, 0):
            assert compiled(x)[0] == torch.device("cuda", gpus[0])
    with torch.device("cuda:3"):
        assert compiled(x)[0] == torch.device("cuda:3")
    assert compiled(x)[0] == torch.device("cpu")
    assert smelt.counters["graphs"] == 4 and smelt.counters["graph_breaks"] == 0


@pytest.mark.usefixtures("gpus")
def test_without_a_gpu_pytorch_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    compiled = smelt.compile(lambda x: (torch.get_default_device(), x + 1), backend="eager")
    if torch.backends.cuda.is_built():
        pytest.skip("PyTorch has a GPU to ask")
    with torch.device("cuda"), pytest.raises(AssertionError, match="CUDA"):
        compiled(X)


@torch.jit.script
def made_by_torchscript(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(3) + torch.tensor(x.size(0), dtype=torch.float)


@every_backend
@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_torchscript_knows_of_no_default_device(device: str, backend: str) -> None:
    def f(x: Any) -> Any:
        made = made_by_torchscript(x)
        return made.device.type, torch.zeros(2).device.type, x * made

    smelt.reset()
    compiled = smelt.compile(f, backend=backend, fullgraph=True)
    x = X.clone()
    for _ in range(2):
        with torch.device(device):
            expected, got = f(x), compiled(x)
        assert got[:2] == expected[:2] == ("cpu", device) and torch.equal(got[2], expected[2])


def asks(x: Any) -> Any:
    return x + 1 if torch.overrides.has_torch_function((x,)) else x + 2


def asks_in_a_block(x: Any) -> Any:
    with torch.device("cpu"):
        x = x * (3 if torch.overrides.has_torch_function_unary(x) else 5)
    return x * (3 if torch.overrides.has_torch_function_variadic(x, x) else 5)


def hands_on(x: Any) -> Any:
    if torch.overrides.has_torch_function_unary(x):
        return torch.overrides.handle_torch_function(hands_on, (x,), x)
    return x.unflatten(0, (1, 2)).split(1)[0].norm() + torch.nn.functional.gumbel_softmax(x * 0, hard=True).sum()


@every_backend
@pytest.mark.parametrize("function", [asks, asks_in_a_block, hands_on])
def test_code_that_asks_for_modes_is_told_of_a_default_device(backend: str, function: Any, on_cpu: None) -> None:
    same(function, X, backend=backend)
    torch.set_default_device(None)
    same(function, X, backend=backend)
