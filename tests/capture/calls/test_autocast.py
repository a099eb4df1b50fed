"""`torch.autocast` inside captured functions: the same casts in every backend, forward and backward."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from tests.capture.contexts import every_backend, same

BF16 = 2e-2  # kernels keep intermediates in float32 where eager rounds each to bfloat16


def data() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    return torch.randn(4, 8), torch.randn(8, 8, requires_grad=True)


def block(x: Any, w: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = F.relu(x @ w)
        z = F.softmax(y @ w, dim=-1)
    return y, z, x @ w, torch.is_autocast_enabled("cpu")


def amp_block(x: Any, w: Any) -> Any:
    with torch.amp.autocast("cpu"):
        return x @ w, torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")


def off(x: Any, w: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
        return x @ w


def nested(x: Any, w: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a = x @ w
        with torch.autocast("cpu", enabled=False):
            b = a.float() @ w
            with torch.autocast("cpu", dtype=torch.bfloat16):
                c = b @ w
            d = c.float() @ w
        e = x @ w + d
    return a, b, c, d, e


def not_cached(x: Any, w: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        return x @ w + (x + 1) @ w, torch.is_autocast_cache_enabled()


def cached(x: Any, w: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ w + (x + 1) @ w


@torch.autocast("cpu", dtype=torch.bfloat16)
def decorated(x: Any, w: Any) -> Any:
    return x @ w


def calls_decorated(x: Any, w: Any) -> Any:
    return decorated(x, w), x @ w


SHARED = torch.autocast("cpu", dtype=torch.bfloat16)


def shared_manager(x: Any, w: Any) -> Any:
    with SHARED:
        y = x @ w
    return y, x @ w


def with_no_grad(x: Any, w: Any) -> Any:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ w
        with torch.enable_grad():
            z = y @ w
    return y, z, x @ w


def left_by_exception(x: Any, w: Any) -> Any:
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
            raise ValueError("out")
    except ValueError as error:
        return y, x @ w, str(error), torch.is_autocast_enabled("cpu")


def empty_block(x: Any, w: Any) -> Any:
    with torch.autocast("cpu"):
        pass
    return x @ w


@contextlib.contextmanager
def without_gradients() -> Iterator[None]:
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        yield


def own_manager(x: Any, w: Any) -> Any:
    with without_gradients():
        y = x @ w
    return y, x @ w


FUNCTIONS = [
    own_manager,
    block, amp_block, off, nested, not_cached, cached, decorated, calls_decorated, with_no_grad, left_by_exception,
    empty_block, shared_manager,
]  # fmt: skip


@every_backend
@pytest.mark.parametrize("function", FUNCTIONS)
def test_as_eager(function: Any, backend: str) -> None:
    same(function, *data(), backend=backend, tolerance=BF16)


@every_backend
@pytest.mark.parametrize("function", [block, nested, off, decorated, cached])
def test_inside_an_autocast_of_the_caller(function: Any, backend: str) -> None:
    x, w = data()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same(function, x, w, backend=backend, tolerance=BF16, exact=False)  # eager shares one cast with its caller


def broken(x: Any, w: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ w
        smelt.graph_break()
        z = y.float() @ w
    return y, z, z.float() @ w, torch.is_autocast_enabled("cpu")


def broken_twice(x: Any, w: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.autocast("cpu", enabled=False):
            y = x @ w
            smelt.graph_break()
            z = y @ w
        smelt.graph_break()
        q = z @ w
    return y, z, q


def left_broken(x: Any, w: Any) -> Any:
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
            smelt.graph_break()
            raise ValueError("out")
    except ValueError:
        return y, x @ w


def broken_in_callee(x: Any, w: Any) -> Any:
    return (*broken(x, w), x @ w)


@every_backend
@pytest.mark.parametrize("function,graphs", [(broken, 2), (broken_twice, 3), (left_broken, 2), (broken_in_callee, 2)])
def test_a_break_inside_keeps_the_setting(function: Any, graphs: int, backend: str) -> None:
    # Eager sums the gradients of a weight that it cast once before it casts them back.
    same(function, *data(), backend=backend, graphs=graphs, breaks=graphs - 1, tolerance=BF16, exact=False)


@every_backend
def test_an_exception_leaves_the_function(backend: str) -> None:
    def f(x: Any, w: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            (x @ w).sum()
            raise KeyError("gone")

    compiled = smelt.compile(f, backend=backend)
    for _ in range(2):
        with pytest.raises(KeyError, match="gone"):
            compiled(*data())
        assert not torch.is_autocast_enabled("cpu")


@every_backend
def test_an_operator_that_fails_leaves_autocast_as_it_was(backend: str) -> None:
    def f(x: Any, w: Any, index: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (x @ w)[index]

    compiled, (x, w) = smelt.compile(f, backend=backend), data()
    compiled(x, w, torch.tensor([0]))
    for _ in range(2):
        with pytest.raises(IndexError):
            compiled(x, w, torch.tensor([9]))
        assert not torch.is_autocast_enabled("cpu")
        with torch.no_grad():
            w.mul_(2)
    got = compiled(x, w, torch.tensor([1]))
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got, f(x, w, torch.tensor([1])))


@every_backend
def test_weights_are_cast_anew_at_each_call(backend: str) -> None:
    smelt.reset()
    compiled, (x, w) = smelt.compile(cached, backend=backend), data()
    for _ in range(3):
        torch.testing.assert_close(compiled(x, w), cached(x, w), rtol=BF16, atol=BF16)
        with torch.no_grad():
            w.mul_(2)


def test_settings_that_are_read_are_guarded() -> None:
    def f(x: Any, w: Any) -> Any:
        with torch.autocast("cpu"):
            return x @ w

    smelt.reset()
    compiled, (x, w) = smelt.compile(f, backend="eager"), data()
    before = torch.get_autocast_dtype("cpu")
    try:
        for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
            torch.set_autocast_dtype("cpu", dtype)
            assert compiled(x, w).dtype == dtype
            assert torch.get_autocast_dtype("cpu") == dtype
    finally:
        torch.set_autocast_dtype("cpu", before)
    with torch.autocast("cpu", dtype=torch.float16, enabled=False):
        assert compiled(x, w).dtype == f(x, w).dtype == torch.float16
        assert torch.get_autocast_dtype("cpu") == torch.float16


def test_a_custom_backend_sees_the_casts() -> None:
    seen: list[Any] = []

    def backend(module: Any, examples: Any) -> Any:
        module.graph.eliminate_dead_code()
        module.recompile()
        seen.append(module)
        return module

    x, w = data()
    got = smelt.compile(block, backend=backend)(x, w)
    assert got[0].dtype == torch.bfloat16 and got[2].dtype == torch.float32
    names = [node.target.__name__ for node in seen[0].graph.nodes if node.op == "call_function"]
    assert names[0] == "set_autocast" and "forget_casts" in names
    assert seen[0](x, w)[0].dtype == torch.bfloat16 and not torch.is_autocast_enabled("cpu")


@every_backend
def test_a_model_trains_under_autocast_inside(backend: str) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)

        def forward(self, x: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return F.cross_entropy(self.last(F.gelu(self.norm(self.first(x)))), torch.tensor([0, 1, 2, 3]))

    torch.manual_seed(0)
    same(Model(), data()[0], backend=backend, tolerance=4e-2)
