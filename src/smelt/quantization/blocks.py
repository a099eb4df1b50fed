"""The block formats of GGUF files, as integers with scales.

    q4_0: 32 weights are a float16 d and 16 bytes; weight = d · (half - 8)   →   QuantizedTensor(bits=4, half_run=16)

Integers of 4 bits stay in the order of the file. `q6_K` becomes bytes.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from smelt.base.fast_dataclass import dataclass
from smelt.quantization.layers import QuantizedTensor


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """Blocks of `weights` in `nbytes` each. `read` gets all blocks of a matrix: rows × blocks × bytes."""

    name: str
    weights: int
    nbytes: int
    read: Callable[[Tensor], QuantizedTensor]


def _half(blocks: Tensor, first: int) -> Tensor:
    """A float16 of each block."""
    return blocks[..., first : first + 2].contiguous().view(torch.float16)[..., 0]


def _joined(parts: Tensor) -> Tensor:
    return parts.reshape(parts.shape[0], -1).contiguous()


def _q8_0(blocks: Tensor) -> QuantizedTensor:
    return QuantizedTensor(_joined(blocks[..., 2:]).view(torch.int8), _half(blocks, 0))


def _q4_0(blocks: Tensor) -> QuantizedTensor:
    return QuantizedTensor(_joined(blocks[..., 2:]), _half(blocks, 0), bits=4, offset=8, half_run=16)


def _q4_1(blocks: Tensor) -> QuantizedTensor:
    return QuantizedTensor(_joined(blocks[..., 4:]), _half(blocks, 0), low=_half(blocks, 2), bits=4, half_run=16)


def _q4_k(blocks: Tensor) -> QuantizedTensor:
    """Eight sub-blocks of 32, with scales and minima of 6 bits in 12 bytes."""
    d, least, packed = _half(blocks, 0).float(), _half(blocks, 2).float(), blocks[..., 4:16]
    first, second, third = (packed[..., start : start + 4] for start in (0, 4, 8))
    scales = torch.cat((first & 63, third & 15 | (first >> 6) << 4), -1).float()
    minima = torch.cat((second & 63, third >> 4 | (second >> 6) << 4), -1).float()
    scale, low = _joined(d[..., None] * scales), _joined(-least[..., None] * minima)
    return QuantizedTensor(_joined(blocks[..., 16:]), scale, low=low, bits=4, half_run=32)


def _q6_k(blocks: Tensor) -> QuantizedTensor:
    """Sixteen sub-blocks of 16: four lower bits of each weight, then two upper ones, then scales of 8 bits."""
    outer = blocks.shape[:-1]
    lower, upper = blocks[..., :128].view(*outer, 2, 2, 32), blocks[..., 128:192].view(*outer, 2, 1, 32)
    nibbles = torch.cat((lower & 15, lower >> 4), -2)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    integers = (nibbles | (upper >> shifts & 3) << 4).to(torch.int8) - 32
    scales = blocks[..., 192:208].contiguous().view(torch.int8).float()
    return QuantizedTensor(_joined(integers), _joined(_half(blocks, 208)[..., None].float() * scales))


FORMATS: dict[int, BlockFormat] = {
    2: BlockFormat("q4_0", 32, 18, _q4_0),
    3: BlockFormat("q4_1", 32, 20, _q4_1),
    8: BlockFormat("q8_0", 32, 34, _q8_0),
    12: BlockFormat("q4_K", 256, 144, _q4_k),
    14: BlockFormat("q6_K", 256, 210, _q6_k),
}
FLOATS = {0: torch.float32, 1: torch.float16, 30: torch.bfloat16}
