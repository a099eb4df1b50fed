"""Chains of short launches on a GPU, as for a token: side by side and beginning early."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import smelt
from smelt.base.options import Options
from smelt.device.fusion_limits import Limits
from smelt.fuse import target_choice
from smelt.ir.kernel import Contract, Kernel, KernelGroup
from smelt.ir.program import Launch, Program
from tests.absent_device.ahead import compile_ahead, spec_like
from tests.simt_host.offer import SIMT_HOST

BF16 = torch.bfloat16


def program(function: Callable[..., Any], *shapes: tuple[int, ...], target: str = "sm_90", **options: Any) -> Program:
    specs = [spec_like(shape, BF16 if len(shape) > 1 else torch.int64) for shape in shapes]
    with torch.no_grad():
        return compile_ahead(function, specs, Options(target=target, **options)).forward


def launched(found: Program) -> list[Any]:
    return [step.kernel for step in found.steps if isinstance(step, Launch)]


def heads(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    x = F.rms_norm(x, x.shape[-1:])
    return F.linear(x, q), F.linear(x, k), F.linear(x, v)


HEADS = ((1, 2048), (2048, 2048), (512, 2048), (512, 2048))


def test_products_of_one_row_are_launched_together_and_read_weights_early() -> None:
    norm, products = launched(program(heads, *HEADS))
    assert isinstance(norm, Kernel) and norm.early == ("in0",)
    assert isinstance(products, KernelGroup) and len(products.kernels) == 3
    for each in products.kernels:
        (contract,) = (i for i in each.instructions() if isinstance(i, Contract))
        assert each.early == (contract.right.buffer,)


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_only_chains_of_products_begin_early(target: str) -> None:
    found = program(lambda x: torch.softmax(x.sin(), -1), (8, 2048), target=target)
    assert all(kernel.early is None for kernel in found.kernels)


def test_the_budget_ends_before_launches_are_joined() -> None:
    found = program(heads, *HEADS, max_rewrites=0)
    assert not any(isinstance(kernel, KernelGroup) or kernel.early is not None for kernel in launched(found))


def test_weights_that_the_program_writes_are_not_read_early() -> None:
    def step(x: Tensor, w: Tensor) -> Tensor:
        y = F.linear(x, w)
        w.mul_(2)
        return F.linear(y, w)

    for kernel in launched(program(step, (1, 2048), (2048, 2048))):
        assert kernel.early is None or not any("in1" in name for name in kernel.early)


def test_what_depends_on_what_is_launched_apart() -> None:
    found = program(lambda x, v, w: F.linear(F.linear(x, v), w), (1, 2048), (2048, 2048), (2048, 2048))
    assert [type(kernel) for kernel in launched(found)] == [Kernel, Kernel]


def test_many_weights_are_not_read_early() -> None:
    found = program(lambda x, w: F.linear(x.sin(), w), (1, 4096), (8192, 4096))
    sine, product = launched(found)
    assert sine.early == ("in0",) and product.early is None


def test_results_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    limits_of = target_choice.limits_of

    def overlapping(name: str) -> Limits:
        return replace(limits_of(name), overlaps_launches=True) if name == SIMT_HOST else limits_of(name)

    monkeypatch.setattr(target_choice, "limits_of", overlapping)
    inputs = [torch.randn(1, 256), torch.randn(96, 256), torch.randn(40, 256), torch.randn(40, 256)]
    compiled = smelt.compile(heads, options={"target": SIMT_HOST, "products": "own", "check_specs": True})
    for found, expected in zip(compiled(*inputs), heads(*inputs), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
