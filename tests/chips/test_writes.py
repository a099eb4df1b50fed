"""Writes into parts of a chip's memory: what is between the elements stays, and the host has no part in it."""

import random

import pytest
import torch

import smelt
from smelt.chips import device_named
from smelt.chips.strided_copies import StridedCopies


@pytest.fixture(autouse=True)
def no_fallbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smelt.config, "chip_fallback", False)


DTYPES = (torch.float32, torch.uint8, torch.complex128, torch.bfloat16, torch.complex64, torch.float64, torch.bool)


def some_layout(draw: random.Random, shape: list[int]) -> tuple[list[int], int]:
    strides, step = [0] * len(shape), draw.choice([1, 1, 2, 3])
    for dim in draw.sample(range(len(shape)), len(shape)):
        strides[dim] = step
        step = step * shape[dim] * draw.choice([1, 1, 2]) + draw.choice([0, 0, 3])
    return strides, draw.choice([0, 0, 5])


@pytest.mark.parametrize("seed", range(40))
def test_copies_between_any_two_layouts(seed: int) -> None:
    draw, copies = random.Random(seed), StridedCopies(device_named("sim"))
    dtype, shape = draw.choice(DTYPES), [draw.randint(1, 6) for _ in range(draw.randint(0, 3))]
    wholes: list[torch.Tensor] = []
    layouts = [some_layout(draw, shape) for _ in range(2)]
    for strides, offset in layouts:
        reach = offset + 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
        wholes.append(torch.randn(reach, generator=torch.Generator().manual_seed(seed)).to(dtype))
    on_chip = [whole.to("sim") for whole in wholes]
    target, source = (
        whole.as_strided(shape, *layout) for whole, layout in zip(on_chip, layouts, strict=True)
    )
    copies.copy(target, source)
    target, source = (whole.as_strided(shape, *layout) for whole, layout in zip(wholes, layouts, strict=True))
    target.copy_(source)
    assert torch.equal(on_chip[0].cpu(), wholes[0])


def written(device: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    x, y = torch.randn(5, 8).to(device), torch.randn(5, 4).to(device)
    x[:, ::2] = y
    x[:, 1::2].mul_(2).add_(y)
    x[1:4, 2:5].exp_()
    x[::2, 0].fill_(7)
    x.t()[3].clamp_(max=0.5)
    x[:, 3:5].copy_(torch.arange(2, device=device))
    torch.add(y, 1, out=x[:, 4:])
    x[3, 1::3].zero_()
    x[1:, :3].copy_(x[:-1, :3].clone())
    rows = [x[:, 0], x[:, 5]]
    torch._foreach_mul_(rows, 3.0)
    return [x]


def test_parts_of_a_tensor_are_written_in_place() -> None:
    (found,), (wanted,) = written("sim"), written("cpu")
    torch.testing.assert_close(found.cpu(), wanted)


def test_kernels_that_copy_serve_all_sizes() -> None:
    x, y = torch.zeros(9, 12, device="sim"), torch.ones(9, 12, device="sim")
    x[:3, ::2] = y[:3, :6]
    before = smelt.counters["kernels_built"]
    x[:5, ::3] = y[:5, :4]
    x[2:8, ::2] = y[2:8, 6:]
    assert smelt.counters["kernels_built"] == before
    assert int(x.sum()) == int(torch.count_nonzero(x.cpu()))


def test_tensors_without_elements_need_no_kernel() -> None:
    x = torch.empty(0, 3, device="sim")
    assert (x.exp() + x).shape == (0, 3)
    assert torch.cat([x, x]).neg_().device.type == "sim"


def test_an_operator_without_a_kernel_is_made_of_others() -> None:
    x = torch.linspace(-2, 2, 12, device="sim").view(1, 2, 6)
    found = torch.nn.functional.interpolate(x, size=9, mode="linear", align_corners=True)
    wanted = torch.nn.functional.interpolate(x.cpu(), size=9, mode="linear", align_corners=True)
    torch.testing.assert_close(found.cpu(), wanted)
    torch.testing.assert_close(torch.permute_copy(x, (2, 0, 1)).cpu(), x.cpu().permute(2, 0, 1))


def test_gradients_of_a_soft_margin_are_precise_where_they_are_small() -> None:
    x = torch.tensor([16.0, 20.0, -3.0], device="sim", requires_grad=True)
    torch.nn.functional.soft_margin_loss(x, torch.ones(3, device="sim"), reduction="sum").backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad.cpu(), -torch.sigmoid(-x.detach().cpu()), rtol=1e-5, atol=0)
