"""Copies between the host and a device in one program, compiled for a GPU that is not here."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from smelt.base.options import Options
from smelt.codegen.cpu.target import describe_host
from smelt.device import register, withdraw
from smelt.device.fusion_limits import Limits
from smelt.ir.program import Launch, Library, Program
from tests.absent_device.ahead import Ahead, compile_ahead, spec_like
from tests.absent_device.stand_in import is_here

aten = torch.ops.aten
CUDA = torch.device("cuda", 0)

pytestmark = pytest.mark.skipif(is_here(CUDA), reason="the device is here, and nothing stands for it")


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    """A target for tensors on CUDA, on request. Its kernels are never run."""
    limits = Limits(host_reads_flags=False)
    register("gpu", lambda: replace(describe_host(), name="gpu"), limits=limits, devices=("cuda",), on_request=True)
    yield
    withdraw("gpu")


def ahead(function: Callable[..., Any], *specs: Any) -> Ahead:
    return compile_ahead(function, specs or (spec_like((8,)),), Options(target="gpu", check_specs=True))


def waiting(program: Program) -> list[bool]:
    """Of each copy between devices, in order: whether the call comes back when the data is there."""
    copies = [step for step in program.steps if isinstance(step, Library) and step.op is aten._to_copy.default]
    return [not dict(step.kwargs).get("non_blocking", False) for step in copies]


def away(x: torch.Tensor) -> torch.Tensor:
    return x.to("cpu", non_blocking=True)


ONLY_LEAVE: dict[str, Callable[[torch.Tensor], Any]] = {
    "alone": away,
    "among kernels": lambda x: (away(x.sin()), x.cos()),
    "as a view": lambda x: away(x * 2).view(2, 4),
    "behind what waits": lambda x: (x.sum().cpu() + 1, away(x * 2)),
}


@pytest.mark.parametrize("name", ONLY_LEAVE)
def test_what_only_leaves_is_copied_as_the_program_says(name: str) -> None:
    assert waiting(ahead(ONLY_LEAVE[name]).forward)[-1] is False


WAITED_FOR: dict[str, Callable[[torch.Tensor], Any]] = {
    "read at once": lambda x: away(x) + 1,
    "read through a view": lambda x: away(x).view(2, 4)[1:].sin(),
    "read by a library call": lambda x: torch.sort(away(x))[0],
    "read and returned": lambda x: ((here := away(x)), here + 1),
    "before a copy that waits": lambda x: (away(x.sin()), x.cos().cpu()),
    "before a number is read": lambda x: (away(x.sin()), x * x.sum().item()),
}


@pytest.mark.parametrize("name", WAITED_FOR)
def test_what_something_waits_for_is_there(name: str) -> None:
    """Kernels run in another order than the program's operators: eager would have waited before the value is read."""
    assert all(waiting(ahead(WAITED_FOR[name]).forward))


def test_copies_to_the_device_do_not_wait() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.arange(8, device="cpu").to("cuda", non_blocking=True) + x

    assert waiting(ahead(program).forward) == [False]


def test_what_was_copied_is_kept_for_the_backward() -> None:
    """To copy it once more would cost more than to keep it, and wait for the device a second time."""

    def program(x: torch.Tensor) -> torch.Tensor:
        here = x.sin().cpu()
        return (here * here.exp()).cuda() * x

    found = ahead(program, replace(spec_like((1024,)), requires_grad=True))
    assert found.backward is not None
    assert waiting(found.forward) == [True, True] and waiting(found.backward) == [True, True]
    for half in (found.forward, found.backward):
        assert {step.target for step in half.steps if isinstance(step, Launch)} == {"cpu", "gpu"}


@pytest.mark.parametrize("make", [torch.empty, torch.zeros, torch.ones], ids=lambda make: make.__name__)
def test_page_locked_memory_is_pytorchs(make: Any) -> None:
    found = ahead(lambda x: (make(8, device="cpu", pin_memory=True), x + 1))
    made = [step for step in found.forward.steps if isinstance(step, Library)]
    assert [dict(step.kwargs).get("pin_memory") for step in made] == [True]
