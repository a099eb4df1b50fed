"""Layers that are one operator on the CPU are one on the lazy device, and compile once: attention, batch norm."""

from typing import Any

import pytest
import torch
from torch import nn

import smelt

attention: Any = nn.functional.scaled_dot_product_attention


def _heads(*shape: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(*shape) for _ in range(3)]


MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"is_causal": True},
    "bools": {"attn_mask": torch.ones(6, 6, dtype=torch.bool).tril()},
    "numbers": {"attn_mask": torch.linspace(-1, 1, 36).view(6, 6)},
    "scale": {"scale": 0.3},
}


@pytest.mark.parametrize("options", MASKS.values(), ids=MASKS)
def test_attention_is_one_operator(options: dict[str, Any]) -> None:
    given = [each.requires_grad_() for each in _heads(2, 3, 6, 8)]
    wanted = attention(*given, **options)
    wanted.sum().backward()
    there = [each.detach().to("lazy").requires_grad_() for each in given]
    options = {name: each.to("lazy") if isinstance(each, torch.Tensor) else each for name, each in options.items()}
    smelt.lazy.step()
    before = smelt.lazy.explain().run_count
    found = attention(*there, **options)
    made_a_mask = "attn_mask" in options and options["attn_mask"].dtype is torch.bool
    assert smelt.lazy.explain().pending <= (4 if made_a_mask else 1)
    found.sum().backward()
    assert smelt.lazy.explain().run_count == before
    torch.testing.assert_close(found.cpu(), wanted)
    for mine, theirs in zip(there, given, strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad)


def test_attention_that_the_cpu_has_no_operator_for() -> None:
    query, key, value = _heads(2, 4, 6, 8)
    few = (query, key[:, :2], value[:, :2])
    wanted = attention(*few, enable_gqa=True)
    found = attention(*[each.to("lazy") for each in few], enable_gqa=True)
    torch.testing.assert_close(found.cpu(), wanted)
    mask = torch.zeros(6, 6).requires_grad_()
    theirs = mask.detach().to("lazy").requires_grad_()
    attention(query, key, value, mask).sum().backward()
    attention(*[each.to("lazy") for each in (query, key, value)], theirs).sum().backward()
    assert theirs.grad is not None
    torch.testing.assert_close(theirs.grad.cpu(), mask.grad)


def test_attention_waits_in_a_block() -> None:
    given = _heads(2, 3, 6, 8)
    block: Any = smelt.lazy
    before = smelt.lazy.explain().run_count
    with block():
        found = attention(*[each * 2 for each in given])
        assert smelt.lazy.explain().run_count == before
    torch.testing.assert_close(found, attention(*[each * 2 for each in given]))


def test_batch_norm_is_compiled_once() -> None:
    """An operator that writes without saying so is not compiled with numbers that change: each step was a new graph."""

    def steps(device: str, count: int) -> list[Any]:
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)]
        model = nn.Sequential(*layers).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        x = torch.randn(2, 3, 8, 8).to(device)
        seen = []
        for _ in range(count):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            seen.append({name: smelt.counters[name] for name in ("kernels", "sizes_compiled", "sizes_traced")})
        return [seen, {name: each.cpu() for name, each in model.state_dict().items()}]

    before = smelt.counters["kernels"]
    seen, mine = steps("lazy", 6)
    assert before < seen[0]["kernels"] < seen[1]["kernels"]
    assert seen[2:] == [seen[1]] * 4
    _, theirs = steps("cpu", 6)
    for name, value in theirs.items():
        torch.testing.assert_close(mine[name], value, rtol=1e-4, atol=1e-5)
