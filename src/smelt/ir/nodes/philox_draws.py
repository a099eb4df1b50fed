"""The masks of dropout on CUDA as two operators: what is drawn of the generator, and the mask that follows from it.

    kept = native_dropout(x, 0.1, True)[1]   →   seed, offset = philox_state([], device, words, blocks, 16)
                                                 kept = dropout_mask(seed, offset, count, threads, 4, below, after, …)

A CUDA generator has a seed and an offset. PyTorch's kernel of dropout has `threads` of them draw, each its own sequence
of the seed's numbers, from `offset / 4` on; the offset then moves by as many words as each drew at most. So what an
element gets follows from its number alone (`Draws`), and a kernel can compute it, in the backward once more. Only
`philox_state` draws. Several masks share one: the first is `after` 0 words, the next after those of the first.
"""

import functools
from collections.abc import Sequence

import torch

from smelt.base.errors import UnexpectedResult
from smelt.base.fast_dataclass import dataclass
from smelt.ir.nodes import define
from smelt.ir.scalar import SCALAR_OPS

BLOCK = 256  # threads of PyTorch's kernels that draw
AT_ONCE = 4  # words of a counter
_STEP = 2.0**-32

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Draws:
    """How PyTorch shares out `count` elements that are drawn. `at_once`: how many side by side a thread takes, 1 where
    it takes one of each quarter of what all threads take in a round. Dropout takes sixteen bytes, or half or a quarter
    of that where the count is no multiple. `rand` and `bernoulli` take 1."""

    count: int
    threads: int
    at_once: int

    @classmethod
    def of(cls, count: int, multiprocessors: int, threads_each: int, at_once: int = 1) -> "Draws":
        """On a GPU with so many multiprocessors, each of which runs so many threads."""
        return cls.by_blocks(count, multiprocessors * (threads_each // BLOCK), at_once)

    @classmethod
    def by_blocks(cls, count: int, most: int, at_once: int = 1) -> "Draws":
        """On a GPU that runs at most so many blocks at the same time."""
        return cls(count, min(-(-count // BLOCK), most) * BLOCK, at_once)

    @property
    def words(self) -> int:
        """What the generator's offset moves by: four for every round of four elements a thread, however many a thread
        takes side by side."""
        return -(-self.count // (self.threads * AT_ONCE)) * AT_ONCE


def widest(dtype: torch.dtype) -> int:
    """How many elements side by side a thread of dropout takes at most: sixteen bytes."""
    return 16 // dtype.itemsize


def taken_at_once(count: int, dtype: torch.dtype) -> int:
    """How many elements side by side a thread of dropout takes, of memory that is aligned to all of them."""
    width = widest(dtype)
    while width > 1 and count % width:
        width //= 2
    return width


@functools.cache
def threshold(kept: float, dtype: torch.dtype) -> int:
    """The words that are below it stand for numbers below `kept`, in the arithmetic of PyTorch's kernel: a float32 from
    each word, compared with a float32, or with a float64 for elements of that."""
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    bound = torch.tensor(kept, dtype=torch.float64, device="cpu").to(wide)

    def is_below(word: int) -> bool:
        return bool(_uniform(torch.tensor([word], device="cpu"))[0].to(wide) < bound)

    low, high = 0, 1 << 32
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if is_below(middle) else (low, middle)
    return low


def _uniform(words: torch.Tensor) -> torch.Tensor:
    """Above 0 and at most 1, in one rounding: word · 2⁻³² + 2⁻³³."""
    return (words.float().double() * _STEP + _STEP / 2).float()


# What draws.


def moved(device: torch.device, words: int) -> tuple[int, int]:
    """The seed and the offset of a device's generator, which then is so many words further on."""
    generators: Sequence[torch.Generator] = getattr(torch, device.type).default_generators
    generator = generators[device.index or 0]
    offset = generator.get_offset()
    generator.set_offset(offset + words)
    return generator.initial_seed(), offset


def most_blocks(device: torch.device) -> int:
    """Blocks of a kernel that draws, of a GPU that is here."""
    properties = getattr(torch, device.type).get_device_properties(device)
    return int(properties.multi_processor_count) * (int(properties.max_threads_per_multi_processor) // BLOCK)


def _is_recorded(device: torch.device) -> bool:
    backend = getattr(torch, device.type)
    return bool(backend.is_current_stream_capturing())


def _why_not(tensors: Tensors, device: torch.device, blocks: int, alignment: int) -> str | None:
    """Why PyTorch's own kernel would draw otherwise than masks were computed for, or may not be left out."""
    if _is_recorded(device):
        return "a CUDA graph is recorded, which draws new numbers each time it is run"
    if most_blocks(device) != blocks:
        return f"{device} has other dropout than the GPU that the graph was compiled for"
    if any(each.data_ptr() % alignment for each in tensors):
        return "what dropout is given begins at another place of memory than most tensors do"
    return None


def _state(
    tensors: Tensors, device: torch.device, words: int, blocks: int, alignment: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Its seed and its offset before, as numbers of the host: kernels are given them when they are launched."""
    reason = _why_not(tensors, device, blocks, alignment)
    if reason is not None:
        raise UnexpectedResult("SM023", reason)
    seed, offset = moved(device, words)
    signed = seed - (1 << 64) if seed >> 63 else seed
    drawn = torch.tensor([signed, offset], dtype=torch.int64, device="cpu")
    return drawn[0], drawn[1]


def _state_specs(
    tensors: Tensors, device: torch.device, words: int, blocks: int, alignment: int
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty((), dtype=torch.int64, device="meta"), torch.empty((), dtype=torch.int64, device="meta")


# What follows from it.


def mask(
    seed: torch.Tensor,
    offset: torch.Tensor,
    count: int,
    threads: int,
    at_once: int,
    below: int,
    after: int,
    *,
    device: torch.device,
) -> torch.Tensor:
    """Which of `count` elements in a line are kept: those whose word is below."""
    seed, offset, element = seed.to(device), offset.to(device), torch.arange(count, device=device)
    if at_once == 1:
        turn, thread = element // threads, element % threads
        counter, word = turn >> 2, turn & 3
    else:
        shift = at_once.bit_length() - 1
        turn, thread = (element >> shift) // threads, (element >> shift) % threads
        counter = turn * max(1, at_once // AT_ONCE) + ((element & (at_once - 1)) >> 2)
        word = element & (min(at_once, AT_ONCE) - 1)  # of two at once the other words are left
    counter = counter + ((offset + after) >> 2)
    return SCALAR_OPS["philox"].reference(seed, thread, counter, word) < below


def _mask_spec(
    seed: torch.Tensor, offset: torch.Tensor, count: int, *how: int, device: torch.device
) -> torch.Tensor:
    return torch.empty(count, dtype=torch.bool, device="meta")


PHILOX_STATE = define(
    "philox_state(Tensor[] given, Device device, int words, int blocks, int alignment) -> (Tensor, Tensor)",
    _state, _state_specs, torch.Tag.nondeterministic_seeded,
)  # fmt: skip
DROPOUT_MASK = define(
    "dropout_mask(Tensor seed, Tensor offset, int count, int threads, int at_once, int below, int after, *, "
    "Device device) -> Tensor",
    mask, _mask_spec, torch.Tag.pointwise,
)  # fmt: skip
FUNCTIONS = {PHILOX_STATE: _state, DROPOUT_MASK: mask}
