"""Attention on lazy tensors is recorded as the kernel that PyTorch would choose on the real device."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt

KERNEL = "aten._scaled_dot_product_flash_attention_for_cpu.default"


def recorded() -> list[str]:
    owner = smelt.lazy._owner
    assert owner is not None
    return [str(step.operator) for step in owner.recorder.now.step.path()]


def trained(device: str, dtype: torch.dtype, options: dict[str, Any], seen: list[str]) -> list[torch.Tensor]:
    """The result and the gradients; `seen` gets what was recorded before the backward."""
    generator = torch.Generator().manual_seed(1)
    given = [torch.randn(2, 3, 8, 4, dtype=dtype, generator=generator).to(device).requires_grad_() for _ in range(3)]
    mask = options.get("attn_mask")
    torch.manual_seed(2)
    made = F.scaled_dot_product_attention(*given, **{**options, "attn_mask": None if mask is None else mask.to(device)})
    seen += recorded()
    made.square().sum().backward()
    return [each.detach().cpu() for each in (made, *(one.grad for one in given if one.grad is not None))]


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.3},
    "a mask of bools": {"attn_mask": torch.arange(64).reshape(8, 8) % 3 > 0},
    "a mask to add": {"attn_mask": torch.arange(64.0).reshape(8, 8) / 64},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_the_kernel_of_the_cpu(case: str, dtype: torch.dtype) -> None:
    seen: list[str] = []
    eager = trained("cpu", dtype, CASES[case], [])
    before = smelt.lazy.explain().fallbacks
    mine = trained("lazy", dtype, CASES[case], seen)
    assert KERNEL in seen and "aten.bmm.default" not in seen
    assert smelt.lazy.explain().fallbacks == before
    assert len(mine) == 4
    for one, other in zip(mine, eager, strict=True):
        torch.testing.assert_close(one, other, rtol=4e-6 if dtype is torch.float32 else 1e-14, atol=1e-6)


def test_dropped_numbers_are_eagers() -> None:
    seen: list[str] = []
    eager = trained("cpu", torch.float32, {"dropout_p": 0.4}, [])
    mine = trained("lazy", torch.float32, {"dropout_p": 0.4}, seen)
    assert KERNEL not in seen
    for one, other in zip(mine, eager, strict=True):
        torch.testing.assert_close(one, other)


def test_settings_of_the_program_hold() -> None:
    seen: list[str] = []
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        trained("lazy", torch.float32, {}, seen)
    assert KERNEL not in seen and "aten.bmm.default" in seen


def test_inference_mode() -> None:
    with torch.inference_mode():
        x = torch.randn(1, 2, 8, 4)
        y = x.to("lazy")
        found = F.scaled_dot_product_attention(y, y, y)
        assert KERNEL in recorded()
    torch.testing.assert_close(found.cpu(), F.scaled_dot_product_attention(x, x, x))


def test_wrong_shapes_raise_at_the_call() -> None:
    x = torch.randn(1, 2, 8, 4, device="lazy")
    with pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(x, x[..., :3], x)


def test_autocast() -> None:
    x = torch.randn(1, 2, 8, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        eager = F.scaled_dot_product_attention(x, x, x)
    with torch.autocast("lazy", dtype=torch.bfloat16):
        y = x.to("lazy")
        found = F.scaled_dot_product_attention(y, y, y)
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found.cpu(), eager, rtol=1e-2, atol=1e-2)
