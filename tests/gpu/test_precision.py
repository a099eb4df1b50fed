"""Precision as the user's settings say: autocast with a GradScaler, TF32, sums of products in 16 bits."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from tests.gpu.helpers import CUDA, randn, relative_error


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(64, 256), nn.LayerNorm(256), nn.Linear(256, 10)
        self.to(CUDA)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(F.gelu(self.norm(self.first(x))))
        return out


def trained(wrap: Callable[[Any], Any], dtype: torch.dtype, infinite: int | None, whole: bool) -> tuple[Any, ...]:
    """Losses, scales and parameters of ten steps under autocast, with infinite gradients at one of them."""
    module = Net()
    opt = torch.optim.AdamW(module.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(CUDA, init_scale=2.0**12, growth_interval=3)

    def forward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast(CUDA, dtype=dtype):
            return F.cross_entropy(module(x), y)

    def update(loss: torch.Tensor) -> None:
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        opt.zero_grad()
        loss = forward(x, y)
        update(loss)
        return loss

    if whole:
        run = wrap(step)
    else:
        compiled = wrap(forward)

        def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            opt.zero_grad()
            loss: torch.Tensor = compiled(x, y)
            update(loss)
            return loss

    losses, scales = [], []
    for number in range(10):
        x, y = randn(32, 64, seed=number), torch.arange(32, device=CUDA) % 10
        if number == infinite:
            x[0, 0] = torch.inf
        losses.append(float(run(x, y).detach()))
        scales.append(scaler.get_scale())
    return losses, scales, torch.cat([each.detach().flatten() for each in module.parameters()])


@pytest.mark.parametrize("whole", [False, True], ids=["forward compiled", "whole step compiled"])
@pytest.mark.parametrize("infinite", [None, 4])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_training_under_autocast_with_a_scaler(dtype: torch.dtype, infinite: int | None, whole: bool) -> None:
    losses, scales, found = trained(smelt.compile, dtype, infinite, whole)
    wanted, their_scales, theirs = trained(lambda call: call, dtype, infinite, whole)
    assert scales == their_scales
    near = 2e-2 if dtype is torch.bfloat16 else 4e-3
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(wanted), rtol=near, atol=near, equal_nan=True)
    assert relative_error(found, theirs) < near


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_dtypes_under_autocast_are_eagers(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast(CUDA, dtype=dtype):
            product = x @ w
            return product, torch.softmax(product, -1), F.layer_norm(product, (64,)), product.sum(), product + x

    x, w = randn(64, 64), randn(64, 64)
    mine, eager = smelt.compile(function)(x, w), function(x, w)
    assert [each.dtype for each in mine] == [each.dtype for each in eager]
    torch.testing.assert_close(mine, eager, rtol=2e-2, atol=2e-2)


@pytest.fixture
def settings() -> Iterator[None]:
    """What the tests below set, put back afterwards."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    kept = matmul.allow_tf32, cudnn.allow_tf32
    reduced = matmul.allow_bf16_reduced_precision_reduction, matmul.allow_fp16_reduced_precision_reduction
    yield
    matmul.allow_tf32, cudnn.allow_tf32 = kept
    matmul.allow_bf16_reduced_precision_reduction, matmul.allow_fp16_reduced_precision_reduction = reduced


def hold_errors(function: Callable[..., Any], args: tuple[torch.Tensor, ...], switch: Callable[[bool], None]) -> None:
    """One compiled function under both settings, in turns: each time as exact as eager, no more and no less."""
    compiled = smelt.compile(function)
    exact = function(*(each.double() for each in args))
    errors = []
    for on in (False, True, False, True):
        switch(on)
        mine, eager = (relative_error(run(*args), exact) for run in (compiled, function))
        errors.append(eager)
        assert 0.5 * eager <= mine <= 2 * eager, f"with {on}: {mine:.2g}, eager {eager:.2g}"
    assert errors[0] == errors[2] and errors[1] == errors[3]


@pytest.mark.usefixtures("settings")
def test_tf32_in_products() -> None:
    def switch(on: bool) -> None:
        torch.backends.cuda.matmul.allow_tf32 = on

    hold_errors(lambda x, y: (x @ y) * 2 + 1, (randn(512, 512), randn(512, 512, seed=1)), switch)


@pytest.mark.usefixtures("settings")
def test_tf32_in_convolutions() -> None:
    def switch(on: bool) -> None:
        torch.backends.cudnn.allow_tf32 = on

    images, weight = randn(4, 64, 32, 32), randn(64, 64, 3, 3)
    hold_errors(lambda x, w: F.conv2d(x, w, padding=1).mul(2), (images, weight), switch)


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sums_of_products_in_16_bits(dtype: torch.dtype) -> None:
    name = f"allow_{'fp16' if dtype is torch.float16 else 'bf16'}_reduced_precision_reduction"
    x, y = randn(128, 8192, dtype=dtype) / 64, randn(8192, 128, dtype=dtype, seed=1) / 64
    hold_errors(lambda x, y: (x @ y) * 2, (x, y), lambda on: setattr(torch.backends.cuda.matmul, name, on))


@pytest.mark.parametrize("precision", ["highest", "high"])
def test_the_word_for_it(precision: str) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        x, y = randn(512, 512), randn(512, 512, seed=1)
        exact = x.double() @ y.double()
        mine, eager = relative_error(smelt.compile(torch.mm)(x, y), exact), relative_error(x @ y, exact)
        assert 0.5 * eager <= mine <= 2 * eager, f"{mine:.2g}, eager {eager:.2g}"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("length", [6, 64, 1023, 1024, 4097])
def test_rms_norm_of_rows_with_infinities(length: int, dtype: torch.dtype) -> None:
    """Which elements are NaN depends on the kernel that eager takes for such a row."""
    x, weight = randn(5, length, dtype=dtype), randn(length, dtype=dtype, seed=1)
    x[1, 2], x[2, 0], x[2, -1], x[3, 1], x[4, 3] = (float(each) for each in ("inf", "-inf", "inf", "nan", "1e4"))

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (length,), weight)

    eager, found = norm(x, weight), smelt.compile(norm)(x, weight)
    torch.testing.assert_close(found, eager, equal_nan=True, rtol=2e-2 if dtype.itemsize == 2 else 1e-4, atol=1e-5)
