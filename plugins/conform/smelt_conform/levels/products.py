"""Level `products`: matrix products, convolutions, pooling and attention, by kernels or by the chip's own methods."""

from typing import Any

import torch
import torch.nn.functional as F

from smelt_conform.bench import Bench, compared, numbers
from smelt_conform.check import Check, Level, Measurement
from smelt_conform.programs.functions import product

_SHAPES = ((1, 1, 1), (3, 5, 2), (16, 16, 16), (17, 33, 65), (64, 1, 9), (1, 300, 7), (129, 40, 31))


def _matrices(device: str) -> Any:
    return [numbers(device, m, k) @ numbers(device, k, n, seed=1) / k for m, k, n in _SHAPES]


def _transposed(device: str) -> Any:
    x, y = numbers(device, 17, 9), numbers(device, 17, 9, seed=1)
    return x @ y.t(), x.t() @ y, (x.t() @ y).t() @ x[:9, :], x[::2] @ y[::2].t(), x[:, 1:5] @ y[:, 2:6].t()


def _batches(device: str) -> Any:
    x, y = numbers(device, 5, 7, 6), numbers(device, 5, 6, 8, seed=1)
    return torch.bmm(x, y), x @ y[0], torch.einsum("bij,bjk->ik", x, y), x.transpose(1, 2) @ x


def _vectors(device: str) -> Any:
    x, v = numbers(device, 30, 20), numbers(device, 20, seed=1)
    return x @ v, v @ x.t(), torch.dot(v, v), torch.outer(v, v)


def _linear(device: str) -> Any:
    x, w, b = numbers(device, 4, 6, 10), numbers(device, 12, 10, seed=1), numbers(device, 12, seed=2)
    return F.linear(x, w, b), F.linear(x, w), torch.addmm(b, x[0], w.t(), beta=0.5, alpha=2.0)


def _fused(bench: Bench) -> None:
    def program(device: str) -> Any:
        called = bench.compiled_on(device, product)
        return called(numbers(device, 20, 33), numbers(device, 33, 18, seed=1))

    bench.agrees(program)


def _bfloat16(device: str) -> Any:
    x, y = numbers(device, 20, 30, dtype=torch.bfloat16), numbers(device, 30, 10, dtype=torch.bfloat16, seed=1)
    return (x @ y).float() / 8


def _convolutions(device: str) -> Any:
    x, w = numbers(device, 2, 4, 9, 8), numbers(device, 6, 4, 3, 3, seed=1)
    return F.conv2d(x, w), F.conv2d(x, w, numbers(device, 6), stride=2, padding=1), F.conv2d(x, w, dilation=2)


def _grouped(device: str) -> Any:
    x = numbers(device, 2, 4, 9, 8)
    wide = F.conv1d(x[:, :, 0], numbers(device, 2, 4, 3, seed=3))
    return (
        F.conv2d(x, numbers(device, 8, 1, 3, 3, seed=1), groups=4),
        F.conv2d(x, numbers(device, 6, 2, 1, 1), groups=2),
        wide,
    )


def _transposed_convolution(device: str) -> Any:
    return F.conv_transpose2d(numbers(device, 2, 4, 5, 5), numbers(device, 4, 3, 3, 3, seed=1), stride=2)


def _pooling(device: str) -> Any:
    x = numbers(device, 2, 3, 8, 8)
    return F.max_pool2d(x, 2), F.avg_pool2d(x, 3, 2, 1), F.adaptive_avg_pool2d(x, 1), F.interpolate(x, scale_factor=2)


def _attention(device: str) -> Any:
    q, k, v = (numbers(device, 2, 3, 11, 8, seed=seed) for seed in range(3))
    return F.scaled_dot_product_attention(q, k, v), F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _timed(bench: Bench) -> tuple[Any, int]:
    x, y = torch.ones(512, 512, device=bench.name), torch.ones(512, 512, device=bench.name)
    return lambda: x @ y, 3 * x.nbytes


_KERNELS = "compile(): long kernels; or matmul() of the chip's own, if it has one"
_CONVOLUTION = "compile(): long kernels; Target.warp_size above 1 computes these on the host"

LEVEL = Level(
    "products",
    "Products",
    (
        Check("matrices", "products of matrices of any size", _KERNELS, compared(_matrices)),
        Check("transposed", "products of transposed and strided matrices", _KERNELS, compared(_transposed)),
        Check("batches", "products of batches of matrices", _KERNELS, compared(_batches)),
        Check("vectors", "products with vectors", _KERNELS, compared(_vectors)),
        Check("linear", "linear layers, with and without bias", _KERNELS, compared(_linear)),
        Check("fused", "a product fused with element-wise operators", _KERNELS, _fused),
        Check("bfloat16", "products of bfloat16", _KERNELS, compared(_bfloat16, torch.bfloat16, rtol=2e-2, atol=2e-2)),
        Check("convolutions", "convolutions with strides, padding, dilation", _CONVOLUTION, compared(_convolutions)),
        Check("grouped", "grouped, depthwise and one-dimensional convolutions", _CONVOLUTION, compared(_grouped)),
        Check("transposed_convolution", "transposed convolutions", _CONVOLUTION, compared(_transposed_convolution)),
        Check("pooling", "pooling and resizing of images", "compile(): kernels with several loops", compared(_pooling)),
        Check("attention", "attention, causal too", _KERNELS, compared(_attention)),
    ),
    (Measurement("512³ product", _timed),),
)
