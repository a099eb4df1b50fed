"""Products and convolutions as kernels, written out as text, with what PyTorch makes of the same tensors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# Strides of 1 are written without a number.

LINEAR_GELU = """
kernel linear_gelu rows(i:5) cols(j:6)
  in x: f32[35]
  in w: f32[42]
  in b: f32[6]
  out y: f32[30]
  loop:
    p = contract (k:7) x[7*i + k], w[7*j + k] : f32
    v1 = load b[j]
    v2 = add p, v1 : f32
    v3 = ndtr v2 : f32
    v4 = mul v2, v3 : f32
    store y[6*i + j] = v4
"""

BATCHED_TRANSPOSED = """
kernel batched_transposed rows(b:3, i:5) cols(j:4)
  in x: bf16[105]
  in w: bf16[84]
  out y: bf16[60]
  loop:
    p = contract (k:7) x[35*b + i + 5*k], w[28*b + 7*j + k] : f32
    v1 = cast p : bf16
    store y[20*b + 4*i + j] = v1
"""

CONVOLUTION = """
kernel convolution rows(n:2, o:4) cols(h:3, w:4)
  in x: f32[252]
  in f: f32[108]
  in b: f32[4]
  out y: f32[96]
  loop:
    p = contract (c:3, kh:3, kw:3) f[27*o + 9*c + 3*kh + kw], x[126*n + 14*h + 2*w + 42*c + 7*kh + kw - 8] where 2*h + kh - 1 below 6 and 2*w + kw - 1 below 7 : f32
    v1 = load b[o]
    v2 = add p, v1 : f32
    store y[48*n + 12*o + 4*h + w] = v2
"""  # noqa: E501

DEPTHWISE = """
kernel depthwise rows(n:2, c:3) cols(h:6, w:7)
  in x: f64[252]
  in f: f64[27]
  out y: f64[252]
  loop:
    p = contract (kh:3, kw:3) f[9*c + 3*kh + kw], x[126*n + 42*c + 7*h + w + 14*kh + 2*kw - 16] where h + 2*kh - 2 below 6 and w + 2*kw - 2 below 7 : f64
    store y[126*n + 42*c + 7*h + w] = p
"""  # noqa: E501

GROUPED = """
kernel grouped rows(n:2, h:4, w:5, g:2) cols(o:3)
  in x: f32[336]
  in f: f32[108]
  out y: f32[240]
  loop:
    p = contract (c:2, kh:3, kw:3) x[168*n + 28*h + 4*w + 2*g + c + 28*kh + 4*kw], f[54*g + 18*o + 9*c + 3*kh + kw] : f32
    store y[120*n + 30*h + 6*w + 3*g + o] = p
"""  # noqa: E501


def _channels_last(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, dtype=dtype).contiguous(memory_format=torch.channels_last)


@dataclass(frozen=True)
class Written:
    """A kernel's text, tensors for its inputs, and what PyTorch computes of them."""

    text: str
    inputs: Callable[[], list[Tensor]]
    eager: Callable[..., Tensor]


WRITTEN = {
    "linear_gelu": Written(
        LINEAR_GELU,
        lambda: [torch.randn(5, 7), torch.randn(6, 7), torch.randn(6)],
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
    ),
    "batched_transposed": Written(
        BATCHED_TRANSPOSED,
        lambda: [torch.randn(3, 7, 5).bfloat16(), torch.randn(3, 4, 7).bfloat16()],
        lambda x, w: x.transpose(1, 2) @ w.transpose(1, 2),
    ),
    "convolution": Written(
        CONVOLUTION,
        lambda: [torch.randn(2, 3, 6, 7), torch.randn(4, 3, 3, 3), torch.randn(4)],
        lambda x, f, b: F.conv2d(x, f, b, stride=2, padding=1),
    ),
    "depthwise": Written(
        DEPTHWISE,
        lambda: [torch.randn(2, 3, 6, 7, dtype=torch.float64), torch.randn(3, 1, 3, 3, dtype=torch.float64)],
        lambda x, f: F.conv2d(x, f, padding=2, dilation=2, groups=3),
    ),
    "grouped": Written(
        GROUPED,
        lambda: [_channels_last((2, 4, 6, 7)), torch.randn(6, 2, 3, 3)],
        lambda x, f: F.conv2d(x, f, groups=2).contiguous(memory_format=torch.channels_last),
    ),
}
