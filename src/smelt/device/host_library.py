"""What PyTorch's library does badly on the processor this runs on, so that other calls replace it.

    slow_products(torch.bfloat16) == True      products of bfloat16 are better done in float32, and rounded
    same_coins(torch.float32) == True          a mask may be drawn as bools: it is the same mask

Facts about hosts, not choices of a compilation: they come from what PyTorch says of the processor and from measured
times, which stand beside them.
"""

import math
import platform
from collections.abc import Sequence
from functools import cache

import torch

from smelt.symbolic.shapes import Size

_ARM = ("aarch64", "arm64")
_BY_CHANNEL_TAPS, _BY_CHANNEL_STRIDE = 128, 8  # the most that kernels have code for
_LEAST_OUTPUTS = 8  # of a group, that tiles of kernels are full
_LEAST_CHANNELS, _MOST_TAPS = 64, 9  # of 3×3 filters that kernels read fast enough with AVX-512
_EXPANDED = 4  # filters for each channel, of 1×1

HOST = torch.device("cpu")  # where PyTorch makes tensors unless somebody says otherwise, and keeps its numbers


def on_host(device: torch.device) -> bool:
    """Whether it is this processor, and PyTorch's library for it, that computes with tensors on a device."""
    return device.type == "cpu"


@cache
def slow_products(dtype: torch.dtype) -> bool:
    """Whether matrix products and attention of `dtype` run one element at a time.

    Without instructions for them, 256×256×256 takes 265 ms in bfloat16 and 320 ms in float16 where float32 takes 1.
    """
    if dtype is torch.bfloat16:
        return not _supported("_is_mkldnn_bf16_supported")
    if dtype is torch.float16:
        # On Arm only convolutions have code for it; the answer of PyTorch is about those.
        return platform.machine() in _ARM or not _supported("_is_mkldnn_fp16_supported")
    return False


@cache
def slow_narrow_convolutions(dtype: torch.dtype) -> bool:
    """Whether convolutions of `dtype` run one element at a time: 1.3 s in bfloat16 where float32 takes 6 ms."""
    if dtype is torch.bfloat16:
        return not _supported("_is_mkldnn_bf16_supported")
    return dtype is torch.float16 and not _supported("_is_mkldnn_fp16_supported")


@cache
def slow_convolutions() -> bool:
    """Whether convolutions are better written as matrix products, and by channel as sums.

    oneDNN has code for x86. On Arm, for 512 channels of 3×3, the gradients take 182 ms, as products 13; the convolution
    itself 8 and 6; 144 channels by themselves 1.7 and 0.3.
    """
    return platform.machine() in _ARM


def slow_by_channel(weight: Sequence[Size], groups: int, stride: Sequence[int], dtype: torch.dtype) -> bool:
    """Whether kernels convolve each channel of a contiguous image by itself, faster than the library and than sums do.

    Measured on Arm with 8 to 960 channels of 5² to 112² and one or four images: 3×3 and 5×5 take 0.3 to 0.8 of the time
    of sums, 7×7 0.2 to 0.4 of the library's.
    """
    if len(weight) != 4 or not slow_convolutions() or dtype is not torch.float32 or stride[-1] > _BY_CHANNEL_STRIDE:
        return False
    if any(not isinstance(size, int) for size in weight) or weight[0] == 1:
        return False
    return groups == weight[0] and weight[1] == 1 and weight[2] * weight[3] <= _BY_CHANNEL_TAPS


def slow_windows(weight: Sequence[Size], groups: int, dtype: torch.dtype) -> bool:
    """Whether kernels convolve a contiguous image faster than the library does, and than products of copied windows.

    Measured on Arm with ResNet's, MobileNet's, ConvNeXt's and ViT's, 3 to 320 channels: 0.4 to 0.95 of the time.
    """
    if len(weight) != 4 or not slow_convolutions() or dtype is not torch.float32:
        return False
    if any(not isinstance(size, int) for size in weight):
        return False
    return int(weight[0]) // groups >= _LEAST_OUTPUTS and int(weight[0]) >= 2 * _LEAST_OUTPUTS


@cache
def packs_filters() -> bool:
    """Whether the library copies filters and images into blocks of channels at every convolution."""
    return platform.machine() == "x86_64" and torch.backends.cpu.get_cpu_capability() == "AVX512"


def slow_followed_windows(weight: Sequence[Size], groups: int, stride: Sequence[int], dtype: torch.dtype) -> bool:
    """Whether kernels convolve a contiguous image and compute the pointwise operations that follow faster than the
    library and another kernel do.

    Measured on a Cascade Lake Xeon, with batch norm and ReLU behind: 3×3 of 64 to 512 channels take 0.55 to 1.05 of
    the time (0.85 in a whole ResNet, with its additions), windows that do not overlap 0.43 to 0.8, 1×1 of four times as
    many filters as channels 0.76 to 0.83. Others take 0.7 to 1.4: 1×1 of fewer filters, few channels, more taps.
    """
    if len(weight) != 4 or not packs_filters() or dtype is not torch.float32 or groups != 1:
        return False
    if any(not isinstance(size, int) for size in weight):
        return False
    filters, channels, *taps = [int(size) for size in weight]
    if filters < 2 * _LEAST_OUTPUTS:
        return False
    if len(stride) == 2 and max(stride) > 1 and all(size <= step for size, step in zip(taps, stride, strict=True)):
        return True
    if math.prod(taps) == 1:
        return channels >= _LEAST_CHANNELS and filters >= _EXPANDED * channels
    return min(filters, channels) >= _LEAST_CHANNELS and math.prod(taps) <= _MOST_TAPS


@cache
def slow_transposed_products() -> bool:
    """Whether products of float32 by a transposed matrix, x @ w.T, are faster transposed, w @ x.T.

    On Arm PyTorch gives the former to oneDNN, which takes 0.3 ms to prepare each: for 10×64×64 it takes 341 µs where
    the latter takes 18, and for 8 of them at once 2.6 ms and 0.08. From 128×256×256 on that is made up for.
    """
    return platform.machine() in _ARM


_ALL_SIDES, _LEAST, _MOST = 8, 8 * 1024, 1 << 23  # what is given to oneDNN: sides longer than this, multiplications


def given_transposed(sides: Sequence[Size], dtypes: set[torch.dtype]) -> bool:
    """Whether products by a transposed matrix, of so many rows, cols and terms, are better given to the library as
    products of the transposes."""
    if dtypes != {torch.float32} or not slow_transposed_products():
        return False
    return min(sides) > _ALL_SIDES and _LEAST < math.prod(sides) <= _MOST


@cache
def same_coins(dtype: torch.dtype) -> bool:
    """Whether coins fall alike in a tensor of `dtype` and in one of bools, and leave the generator alike."""
    generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    tossed = [
        torch.empty(1000, dtype=kind, device="cpu").bernoulli_(0.5, generator=generator)
        for kind, generator in zip((dtype, torch.bool), generators, strict=True)
    ]
    states = [generator.get_state() for generator in generators]
    return torch.equal(tossed[0].to(torch.bool), tossed[1]) and torch.equal(*states)


def may_round_products() -> bool:
    """Whether the library may multiply float32 with less precision, as the process has asked for."""
    ask = getattr(torch._C, "_get_fp32_precision_getter", None)
    if ask is None:
        return torch.get_float32_matmul_precision() != "highest"
    asked = [ask(*each) for each in (("mkldnn", "matmul"), ("mkldnn", "all"), ("generic", "all"))]
    return next((each for each in asked if each != "none"), "ieee") != "ieee"


def _supported(question: str) -> bool:
    ask = getattr(torch.ops.mkldnn, question, None)  # a build without oneDNN does not know the question
    return ask is not None and bool(ask())
