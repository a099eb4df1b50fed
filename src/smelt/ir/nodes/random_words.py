"""Random numbers of a program's own as two operators: words that are drawn, and the words that a state makes.

    random_words(count, device=…)              →   count words of 32 bits, from whatever generator there is
    philox_words(seed, offset, count, after)   →   words that Philox makes of a seed and of how many draws were before

Operators that draw are made of the first, where no library may draw for them; a program that keeps a seed and an offset
has the second in its place (`pipeline/own_generator.py`). A draw is a counter of its own: element i has word i % 4 of
the sequence i // 4.
"""

import torch

from smelt.ir.nodes import define
from smelt.ir.scalar import SCALAR_OPS


def _drawn(count: int, *, device: torch.device) -> torch.Tensor:
    return torch.randint(0, 1 << 32, (count,), device=device)


def _words_of(seed: torch.Tensor, offset: torch.Tensor, count: int, after: int) -> torch.Tensor:
    element = torch.arange(count, device=seed.device)
    return SCALAR_OPS["philox"].reference(seed, element >> 2, offset + after, element & 3)


def _drawn_spec(count: int, *, device: torch.device) -> torch.Tensor:
    return torch.empty(count, dtype=torch.int64, device="meta")


def _words_spec(seed: torch.Tensor, offset: torch.Tensor, count: int, after: int) -> torch.Tensor:
    return torch.empty(count, dtype=torch.int64, device="meta")


RANDOM_WORDS = define(
    "random_words(SymInt count, *, Device device) -> Tensor", _drawn, _drawn_spec, torch.Tag.nondeterministic_seeded
)
PHILOX_WORDS = define(
    "philox_words(Tensor seed, Tensor offset, SymInt count, int after) -> Tensor", _words_of, _words_spec,
    torch.Tag.pointwise,
)  # fmt: skip
FUNCTIONS = {RANDOM_WORDS: _drawn, PHILOX_WORDS: _words_of}
