"""Programs through PyTorch's C interface: the same results, errors, modes and memory as through Python."""

import contextlib
import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import smelt
from smelt.ir.program import Library, Operand, Place, Program, ProgramBuffer
from smelt.ir.tensorspec import TensorSpec
from smelt.runtime.program.launch import Executable
from smelt.torch_abi import aoti_shims
from smelt.torch_abi.probe import NotFound, find_body
from smelt.torch_abi.symbols import find_in_bindings, find_symbol
from tests.layout import needs_layout

aten = torch.ops.aten
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def called_for_small_products_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smelt.runtime.program.small_matmul.MULTIPLICATIONS", -1)


def buffer(name: str, place: Place, *shape: int, dtype: torch.dtype = torch.float32) -> ProgramBuffer:
    return ProgramBuffer(name, TensorSpec(shape, tuple(torch.empty(shape).stride()), dtype, CPU), place)


def whole(made: ProgramBuffer) -> Operand:
    return Operand(made.name, made.spec.shape, made.spec.stride)


def products(dtype: torch.dtype = torch.float32) -> Program:
    """(x @ w.T, 2 (x @ w.T) + 3 b)"""
    x, w = buffer("x", Place.INPUT, 2, 3, dtype=dtype), buffer("w", Place.INPUT, 4, 3, dtype=dtype)
    b, out = buffer("b", Place.CONSTANT, 2, 4, dtype=dtype), buffer("out", Place.FRESH, 2, 4, dtype=dtype)
    more = buffer("more", Place.FRESH, 2, 4, dtype=dtype)
    turned = Operand("w", (3, 4), (1, 3))
    steps = (
        Library(aten.mm.out, (whole(x), turned), (), ("out",), ("out",)),
        Library(aten.addmm.out, (whole(b), whole(x), turned), (("beta", 3), ("alpha", 2)), ("more",), ("out",)),
    )
    constant = torch.arange(8).reshape(2, 4).to(dtype)
    return Program("p", (x, w, b, out, more), ("x", "w"), (("b", constant),), steps, (whole(out), whole(more)))


def expected(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    b = torch.arange(8).reshape(2, 4).to(x.dtype)
    return x @ w.t(), torch.addmm(b, x, w.t(), beta=3, alpha=2)


class Watching(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@needs_layout
def test_the_interface_is_there() -> None:
    assert aoti_shims.connect()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.complex64])
def test_products(dtype: torch.dtype) -> None:
    x, w = torch.arange(9).reshape(3, 3).to(dtype)[1:], torch.nn.Parameter(torch.ones(4, 3).to(dtype), False)
    for found, wanted in zip(Executable(products(dtype), {})(x, w), expected(x, w), strict=True):
        assert type(found) is torch.Tensor and not found.requires_grad
        assert (found.dtype, found.stride(), found.device) == (wanted.dtype, wanted.stride(), wanted.device)
        torch.testing.assert_close(found, wanted)


@needs_layout
def test_python_is_called_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smelt.runtime.program.launch._allocate", None)
    monkeypatch.setattr("smelt.runtime.program.launch._view", None)
    monkeypatch.setattr("smelt.runtime.program.flatten.BINDINGS", dict.fromkeys((aten.mm.out, aten.addmm.out)))
    Executable(products(), {})(torch.ones(2, 3), torch.ones(4, 3))


def test_a_dispatch_mode_sees_every_operator() -> None:
    executable = Executable(products(), {})
    x, w = torch.randn(2, 3), torch.randn(4, 3)
    with Watching() as mode:
        found = executable(x, w)
    assert "aten.mm.out" in mode.seen and "aten.addmm.out" in mode.seen
    torch.testing.assert_close(found, expected(x, w))


def test_the_profiler_sees_every_operator() -> None:
    executable = Executable(products(), {})
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        executable(torch.randn(2, 3), torch.randn(4, 3))
    assert {"aten::mm", "aten::addmm"} <= {event.key for event in profile.key_averages()}


def test_tensors_of_other_classes_go_by_python() -> None:
    seen: list[str] = []

    class Telling(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    x, w = torch.randn(2, 3), torch.randn(4, 3)
    found = Executable(products(), {})(x.as_subclass(Telling), w)
    assert "mm" in seen
    torch.testing.assert_close([torch.Tensor(each) for each in found], list(expected(x, w)))


def test_an_error_has_pytorchs_words() -> None:
    executable = Executable(products(), {})
    with pytest.raises(RuntimeError, match="same dtype"):
        executable(torch.ones(2, 3), torch.ones(4, 3, dtype=torch.float64))
    torch.testing.assert_close(executable(torch.ones(2, 3), torch.ones(4, 3))[0], torch.full((2, 4), 3.0))


def test_what_cannot_be_allocated() -> None:
    x = buffer("x", Place.INPUT, 1)
    huge = ProgramBuffer("out", TensorSpec((1 << 50,), (1,), torch.float32, CPU), Place.FRESH)
    step = Library(aten.neg.out, (whole(x),), (), ("out",), ("out",))
    executable = Executable(Program("p", (x, huge), ("x",), (), (step,), (whole(huge),)), {})
    with pytest.raises(RuntimeError, match="memory"):
        executable(torch.ones(1))


def test_inference_mode_and_grad_mode_are_left_as_they_are() -> None:
    executable = Executable(products(), {})
    x, w = torch.randn(2, 3, requires_grad=True), torch.randn(4, 3)
    with torch.inference_mode():
        assert executable(x.detach(), w)[0].is_inference()
    found = executable(x.detach(), w)[0]
    assert torch.is_grad_enabled() and not found.is_inference() and found.is_leaf


def test_results_can_be_resized_and_written_as_any_other() -> None:
    found = Executable(products(), {})(torch.ones(2, 3), torch.ones(4, 3))[0]
    found.add_(1)
    assert found.untyped_storage().resizable()
    found.resize_(100)
    assert found.shape == (100,)


@contextlib.contextmanager
def steady(limit: int) -> Iterator[None]:
    """Fails if the number of living tensors grows."""

    def count() -> int:
        gc.collect()
        return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())

    before = count()
    yield
    assert count() - before <= limit


def counts(tensor: Any) -> tuple[int, int]:
    """Owners of a tensor and of its memory."""
    return tensor._use_count(), torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


def test_nothing_leaks() -> None:
    executable = Executable(products(), {})
    x, w = torch.ones(2, 3), torch.ones(4, 3)
    before = counts(x), counts(w)
    with steady(0):
        for _ in range(50):
            executable(x, w)
            with pytest.raises(RuntimeError):
                executable(x, w.double())
    assert (counts(x), counts(w)) == before


def test_many_threads_in_one_program() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(8)))
    compiled = smelt.compile(model)
    inputs = [torch.randn(5, 16) for _ in range(4)]
    with torch.no_grad():
        wanted = [model(x) for x in inputs]
        compiled(inputs[0])
    wrong: list[int] = []

    def call(number: int) -> None:
        with torch.no_grad():
            for _ in range(100):
                if not torch.allclose(compiled(inputs[number]), wanted[number], atol=1e-6):
                    wrong.append(number)

    callers = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_without_the_interface_python_does_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smelt.runtime.program.launch._WATCHERS", (lambda: True,))
    x, w = torch.randn(2, 3), torch.randn(4, 3)
    torch.testing.assert_close(Executable(products(), {})(x, w), expected(x, w))


@pytest.mark.parametrize("missing", ["aoti_torch_get_data_ptr", "_Z16THPVariable_Wrap"])
def test_what_is_missing_is_not_used(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aoti_shims, "find_symbol", lambda name: None if name.startswith(missing) else find_symbol(name))
    monkeypatch.setattr(
        aoti_shims, "find_in_bindings", lambda name: None if name.startswith(missing) else find_in_bindings(name)
    )
    with pytest.raises(NotFound, match=missing if missing.startswith("aoti") else "wrap"):
        aoti_shims.find_library()


def test_an_interface_that_answers_wrongly_is_not_used() -> None:
    samples = aoti_shims._samples()
    names = (*aoti_shims._NEEDED,)
    addresses = {name: find_symbol(name) or 0 for name in names}
    addresses["wrap"] = find_in_bindings(aoti_shims._WRAP[0]) or find_in_bindings(aoti_shims._WRAP[1]) or 0
    body = find_body(samples)
    assert aoti_shims._works(addresses, body, samples)
    addresses["aoti_torch_get_data_ptr"] = find_symbol("aoti_torch_get_storage_size") or 0
    assert not aoti_shims._works(addresses, body, samples)
