"""Products, convolutions and attention done otherwise than by the operator, as on processors where that is slow."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import smelt
from smelt.base.options import Options
from smelt.ops.decompose import convolutions, products
from smelt.ops.decompositions import DECOMPOSITIONS, decompositions

aten = torch.ops.aten
Tensor = torch.Tensor
ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu
ATTENTION_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that is bad at everything but float32 products."""
    narrow = (torch.bfloat16, torch.float16)
    monkeypatch.setattr(products, "slow_products", lambda dtype: dtype in narrow)
    monkeypatch.setattr(convolutions, "slow_narrow_convolutions", lambda dtype: dtype in narrow)
    monkeypatch.setattr(convolutions, "slow_convolutions", lambda: True)
    monkeypatch.setattr(convolutions, "_OUTPUTS", 4)


def _products(dtype: torch.dtype) -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    a, b = torch.randn(5, 7).to(dtype), torch.randn(7, 6).to(dtype)
    batch, other = torch.randn(3, 5, 7).to(dtype), torch.randn(3, 7, 6).to(dtype)
    yield aten.mm.default, (a, b), {}
    yield aten.mm.default, (b.t(), a.t()), {}
    yield aten.bmm.default, (batch, other), {}
    yield aten.addmm.default, (torch.randn(6).to(dtype), a, b), {}
    yield aten.baddbmm.default, (torch.randn(3, 5, 6).to(dtype), batch, other), {}
    images, kernel = torch.randn(2, 4, 6, 6).to(dtype), torch.randn(8, 4, 3, 3).to(dtype)
    steps = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    yield aten.convolution.default, (images, kernel, torch.randn(8).to(dtype), *steps), {}
    heads = [torch.randn(2, 3, 9, 8).to(dtype) for _ in range(4)]
    yield ATTENTION.default, (*heads[:3], 0.0, True), {}
    mask = torch.randn(9, 9).to(dtype)
    yield ATTENTION.default, (*heads[:3], 0.0, False), {"attn_mask": mask, "scale": 0.3}
    out, sums = ATTENTION.default(*heads[:3], 0.0, True)
    yield ATTENTION_BACKWARD.default, (heads[3], *heads[:3], out, sums, 0.0, True), {}


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) else value


def _agree(made: Any, eager: Any, exact: Any, dtype: torch.dtype) -> None:
    listed = [value if isinstance(value, tuple | list) else [value] for value in (made, eager, exact)]
    for ours, theirs, truth in zip(*listed, strict=True):
        if truth is None:  # not asked for; the operator may yield it all the same
            assert ours is None
            continue
        assert (ours.shape, ours.stride(), ours.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)
        scale = truth.abs().max()
        ours, theirs = (ours.double() - truth).abs().max(), (theirs.double() - truth).abs().max()
        assert ours <= 2 * theirs + 4 * torch.finfo(dtype).eps * scale


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow_products_round_once(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for op, args, kwargs in _products(dtype):
        made = DECOMPOSITIONS[op](*args, **kwargs)
        assert made is not NotImplemented, op
        exact = op(*map(_double, args), **{name: _double(value) for name, value in kwargs.items()})
        _agree(made, op(*args, **kwargs), exact, dtype)


def test_wide_products_are_left_whole() -> None:
    whole = (aten.mm.default, aten.bmm.default, ATTENTION.default, ATTENTION_BACKWARD.default)
    for op, args, kwargs in _products(torch.float32):
        if op in whole:
            assert DECOMPOSITIONS[op](*args, **kwargs) is NotImplemented, op


# images, channels, size, outputs, kernel, stride, padding, dilation, groups
CONVOLUTIONS = (
    (2, 8, (7, 7), 6, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    (2, 8, (7, 9), 6, (3, 3), (2, 2), (1, 1), (1, 1), 1),
    (2, 4, (8, 7), 6, (3, 2), (2, 1), (1, 0), (1, 2), 1),
    (1, 4, (8, 8), 4, (1, 1), (1, 1), (0, 0), (1, 1), 1),
    (2, 4, (8, 8), 6, (1, 1), (2, 2), (0, 0), (1, 1), 1),
    (2, 4, (8, 8), 6, (1, 1), (1, 1), (1, 1), (1, 1), 1),
    (2, 8, (9, 9), 8, (3, 3), (1, 1), (1, 1), (1, 1), 8),
    (2, 8, (9, 8), 8, (3, 2), (1, 1), (1, 0), (2, 1), 8),
    (2, 8, (9, 9), 8, (3, 3), (1, 1), (3, 3), (1, 1), 8),
    (2, 8, (9, 9), 8, (3, 3), (2, 2), (0, 0), (1, 1), 8),
    (2, 8, (9, 9), 8, (7, 7), (1, 1), (3, 3), (1, 1), 8),
    (2, 8, (9, 9), 4, (3, 3), (1, 1), (1, 1), (1, 1), 2),
    (2, 6, (9, 9), 12, (3, 3), (1, 1), (1, 1), (1, 1), 6),
)


def _gradients_of(case: tuple[Any, ...], dtype: torch.dtype, mask: list[bool]) -> tuple[Any, ...]:
    images, channels, size, outputs, kernel, stride, padding, dilation, groups = case
    x = torch.randn(images, channels, *size).to(dtype)
    weight = torch.randn(outputs, channels // groups, *kernel).to(dtype)
    steps = (list(stride), list(padding), list(dilation), False, [0, 0], groups)
    grad = torch.randn(aten.convolution.default(x, weight, None, *steps).shape).to(dtype)
    return (grad, x, weight, [outputs], *steps, mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_convolutions(case: tuple[Any, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    _, x, weight, _, *steps = _gradients_of(case, dtype, [True, True, True])[:-1]
    last = weight.contiguous(memory_format=torch.channels_last)
    for kernel, bias in ((weight, None), (weight, torch.randn(weight.shape[0]).to(dtype)), (last, None)):
        args = (x, kernel, bias, *steps)
        made = DECOMPOSITIONS[aten.convolution.default](*args)
        if made is NotImplemented:
            # Groups of several channels, large kernels and results that are channels-last are left whole.
            assert kernel is last or (dtype is torch.float32 and (case[-1] in (2, 6) or case[4] == (7, 7)))
            continue
        _agree(made, aten.convolution.default(*args), aten.convolution.default(*map(_double, args)), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_gradients_of_convolutions(case: tuple[Any, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    taken_apart = False
    for mask in itertools.product([True, False], repeat=3):
        args = _gradients_of(case, dtype, list(mask))
        made = DECOMPOSITIONS[aten.convolution_backward.default](*args)
        if made is not NotImplemented:
            taken_apart = True
            exact = aten.convolution_backward.default(*map(_double, args))
            _agree(made, aten.convolution_backward.default(*args), exact, dtype)
    assert taken_apart or case[-1] == 2 or case[3] == 12 or case[4] == (7, 7)  # groups of several; large kernels


def test_windows_that_would_take_much_memory_are_left_whole() -> None:
    args = _gradients_of((1, 64, (200, 200), 2, (3, 3), (1, 1), (1, 1), (1, 1), 1), torch.float32, [True, True, False])
    assert DECOMPOSITIONS[aten.convolution_backward.default](*args) is NotImplemented


@pytest.mark.parametrize("case", CONVOLUTIONS[::3], ids=str)
def test_a_compiled_convolution_trains_as_eager(case: tuple[Any, ...]) -> None:
    """Through the whole compiler: what a decomposition calls is not taken apart without end."""
    images, channels, size, outputs, kernel, stride, padding, dilation, groups = case
    torch.manual_seed(0)
    layer = torch.nn.Conv2d(channels, outputs, kernel, stride, padding, dilation, groups)
    x = torch.randn(images, channels, *size, requires_grad=True)

    def gradients(model: Any) -> list[Tensor]:
        return list(torch.autograd.grad(model(x).sin().sum(), [x, *layer.parameters()]))

    compiled = smelt.compile(layer, options={"fallback": False, "check_specs": True})
    for ours, theirs in zip(gradients(compiled), gradients(layer), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    smelt.reset()


def test_an_export_for_a_gpu_keeps_products_that_the_host_would_widen() -> None:
    a, bias = torch.randn(8, 8, dtype=torch.bfloat16), torch.randn(8, dtype=torch.bfloat16)
    host, gpu = (decompositions(Options.from_user({"library": "none", "target": target})) for target in ("", "sm_90"))
    assert host[aten.mm.default](a, a).dtype is torch.bfloat16
    assert aten.mm.default not in gpu
    assert gpu[aten.addmm.default](bias, a, a) is NotImplemented
    wide = bias.float(), a.float(), a.float()
    assert torch.equal(gpu[aten.addmm.default](*wide), wide[1] @ wide[2] + wide[0])
