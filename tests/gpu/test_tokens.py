"""What generating text token by token is made of, on a GPU: products of few rows and attention of few queries."""

import pytest
import torch
import torch.nn.functional as F

import smelt
from tests.gpu.helpers import CUDA, kernels_run, made_for_gpu, randn
from tests.ops_db.comparing import compare

Tensor = torch.Tensor


def gated(x: Tensor, gate: Tensor, up: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    return residual + F.silu(F.linear(x, gate, bias)) * F.linear(x, up)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8])
def test_products_of_few_rows(rows: int, dtype: torch.dtype) -> None:
    shapes = ((rows, 2048), (1032, 2048), (1032, 2048), (1032,), (rows, 1032))
    inputs = tuple(randn(*shape, dtype=dtype, seed=number) / 4 for number, shape in enumerate(shapes))
    with torch.no_grad(), made_for_gpu():
        found = compare(gated, inputs, {})
        assert found.wrong == [] and found.fallbacks == []
        compiled = smelt.compile(gated)
        compiled(*inputs)
        if rows <= (4 if dtype is torch.float32 else 8):  # others are the library's
            assert len(kernels_run(lambda: compiled(*inputs))) == 2


@pytest.mark.parametrize("rows", [1, 4])
def test_integers_are_read_as_they_are(rows: int) -> None:
    weights = torch.randint(-128, 128, (1024, 2048), dtype=torch.int8, device=CUDA)
    scale = randn(1024, dtype=torch.bfloat16).abs() / 500

    def layer(x: Tensor) -> Tensor:
        return F.linear(x, weights.to(x.dtype)) * scale

    x = randn(rows, 2048, dtype=torch.bfloat16)
    with torch.no_grad(), made_for_gpu():
        compiled = smelt.compile(layer)
        exact = (x.double() @ weights.double().t()) * scale.double()
        assert float((compiled(x).double() - exact).abs().max()) <= 2**-8 * float(exact.abs().max())
        assert len(kernels_run(lambda: compiled(x))) == 1


@pytest.mark.parametrize("rows", [1, 4])
def test_weights_of_four_bits_are_read_as_they_are(rows: int) -> None:
    packed = torch.randint(0, 256, (1024, 1024), dtype=torch.uint8, device=CUDA)
    scale = randn(1024, 32, dtype=torch.bfloat16).abs() / 100

    def layer(x: Tensor, packed: Tensor, scale: Tensor) -> Tensor:
        halves = torch.stack((packed & 15, packed >> 4), -1).view(1024, 32, 64)
        return F.linear(x, ((halves.to(x.dtype) - 8) * scale[:, :, None]).view(1024, 2048))

    x = randn(rows, 2048, dtype=torch.bfloat16)
    with torch.no_grad(), made_for_gpu():
        compiled = smelt.compile(layer)
        exact = layer(x.double(), packed, scale.double())
        assert float((compiled(x, packed, scale).double() - exact).abs().max()) <= 2**-8 * float(exact.abs().max())
        assert len(kernels_run(lambda: compiled(x, packed, scale))) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shared", [1, 4])
@pytest.mark.parametrize("keys", [63, 512, 4000])
def test_attention_of_a_token(shared: int, keys: int, dtype: torch.dtype) -> None:
    q, k, v = randn(2, 8, 1, 128, dtype=dtype), *(randn(2, 8 // shared, keys, 128, dtype=dtype, seed=n) for n in (1, 2))
    mask = torch.zeros(2, 1, 1, keys, dtype=dtype, device=CUDA)
    mask[1, ..., keys // 2 :] = -torch.inf

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        first, second = (each[:, :, None].expand(2, 8 // shared, shared, keys, 128) for each in (k, v))
        first, second = first.reshape(2, 8, keys, 128), second.reshape(2, 8, keys, 128)
        return F.scaled_dot_product_attention(q, first, second, attn_mask=mask)

    exact = attend(*(each.double() for each in (q, k, v, mask)))
    with torch.no_grad(), made_for_gpu():
        compiled = smelt.compile(attend)
        errors = [float((run(q, k, v, mask).double() - exact).abs().max()) for run in (compiled, attend)]
        assert errors[0] <= 2 * errors[1] + torch.finfo(dtype).eps * float(exact.abs().max())
        assert not any("fmha" in name or "sdpa" in name for name in kernels_run(lambda: compiled(q, k, v, mask)))
