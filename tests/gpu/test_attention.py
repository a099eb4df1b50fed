"""Attention runs by the kernel that eager would choose, forward and backward; and with a cache of keys and values."""

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import smelt
from tests.gpu.helpers import CUDA, kernels_run, randn

_OF_ATTENTION = re.compile(r"flash|fmha|cudnn.*(sdpa|attn|mha)|attention|AttentionKernel", re.IGNORECASE)
SHAPES = {"64 wide": (2, 8, 256, 64), "128 wide": (2, 4, 512, 128), "80 wide": (2, 4, 128, 80), "short": (4, 2, 7, 32)}
CHOICES = [SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION]
WAYS: dict[str, dict[str, Any]] = {"plain": {}, "causal": {"is_causal": True}, "scaled": {"scale": 0.3}}


def attention_kernels(names: list[str]) -> list[str]:
    """Those of attention, each once, without the arguments of templates."""
    found = [re.sub(r"[<(].*", "", name) for name in names if _OF_ATTENTION.search(name)]
    return sorted(set(found))


def hold(function: Any, inputs: tuple[torch.Tensor, ...], dtype: torch.dtype) -> None:
    compiled = smelt.compile(function, options={"fallback": False})
    results, kernels = [], []
    for run in (function, compiled):

        def step(run: Any = run) -> list[torch.Tensor]:
            given = [each.detach().requires_grad_(each.is_floating_point()) for each in inputs]
            out = run(*given)
            wanted = [each for each in given if each.requires_grad]
            return [out.detach(), *torch.autograd.grad(out.float().square().sum(), wanted)]

        results.append(step())
        step()
        kernels.append(attention_kernels(kernels_run(step)))
    assert kernels[1] == kernels[0], f"ours ran {kernels[1]}, eager {kernels[0]}"
    near = {torch.float32: 2e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}[dtype]
    for mine, eager in zip(results[1], results[0], strict=True):
        assert float((mine - eager).norm()) <= near * float(eager.norm())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernel_that_eager_chooses(shape: str, way: str, dtype: torch.dtype) -> None:
    inputs = tuple(randn(*SHAPES[shape], dtype=dtype, seed=number) for number in range(3))
    hold(lambda q, k, v: F.scaled_dot_product_attention(q * 1.5, k, v, **WAYS[way]).sin(), inputs, dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_with_a_mask(dtype: torch.dtype) -> None:
    inputs = tuple(randn(2, 8, 256, 64, dtype=dtype, seed=number) for number in range(3))
    mask = randn(256, 256, seed=9) > -1
    hold(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), (*inputs, mask), dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_with_fewer_heads_of_keys(dtype: torch.dtype) -> None:
    inputs = tuple(randn(2, heads, 256, 64, dtype=dtype, seed=heads) for heads in (8, 2, 2))
    hold(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True, is_causal=True), inputs, dtype)


@pytest.mark.parametrize("chosen", CHOICES, ids=str)
def test_the_kernel_that_the_user_chooses(chosen: SDPBackend) -> None:
    inputs = tuple(randn(2, 8, 256, 64, dtype=torch.bfloat16, seed=number) for number in range(3))

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel([chosen]):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    hold(function, inputs, torch.bfloat16)


def test_dropout_in_attention_is_eagers() -> None:
    inputs = [randn(2, 8, 256, 64, dtype=torch.bfloat16, seed=number) for number in range(3)]

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.2)

    found = []
    for run in (function, smelt.compile(function)):
        torch.manual_seed(3)
        found.append((run(*inputs), torch.cuda.get_rng_state()))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


class Decoder(nn.Module):
    """A layer with a cache of keys and values that is written in place."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, room: int = 32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.qkv, self.out = nn.Embedding(50, 64), nn.Linear(64, 192), nn.Linear(64, 50)
        self.register_buffer("keys", torch.zeros(2, 4, room, 16))
        self.register_buffer("values", torch.zeros(2, 4, room, 16))
        self.room = room
        self.to(CUDA)

    def forward(self, tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        batch, length = tokens.shape
        parts = self.qkv(self.table(tokens)).view(batch, length, 3, 4, 16).permute(2, 0, 3, 1, 4)
        self.keys.index_copy_(2, places, parts[1])
        self.values.index_copy_(2, places, parts[2])
        seen = torch.arange(self.room, device=tokens.device) <= places[:, None]
        mixed = F.scaled_dot_product_attention(parts[0], self.keys, self.values, attn_mask=seen)
        out: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, 64))
        return out


def generated(wrap: Any) -> list[int]:
    module = Decoder().eval()
    run, tokens, places = wrap(module), torch.arange(10, device=CUDA).view(2, 5), torch.arange(5, device=CUDA)
    told: list[int] = []
    with torch.no_grad():
        for _ in range(20):
            tokens = run(tokens, places)[:, -1:].argmax(-1)
            places = places[-1:] + 1
            told += tokens.flatten().tolist()
    return told


def test_tokens_with_a_cache() -> None:
    assert generated(smelt.compile) == generated(lambda module: module)
    assert smelt.counters["graphs"] <= 3 and smelt.counters["graph_breaks"] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_with_dynamic_head_sizes_that_kernels_pad(dtype: torch.dtype) -> None:
    norm = torch.nn.GroupNorm(2, 4).to("cuda", dtype)

    def program(x: torch.Tensor) -> torch.Tensor:
        y = norm(x)
        return torch.nn.functional.scaled_dot_product_attention(y, y, y)

    compiled = smelt.compile(program, dynamic=True, fullgraph=True)
    for size in (6, 10, 11):
        x = torch.randn(2, 4, 6, size, device="cuda", dtype=dtype)
        torch.testing.assert_close(compiled(x), program(x), rtol=2e-2, atol=4e-2)
