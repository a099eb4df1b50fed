"""Random numbers of a program's own as two operators: words that are drawn, and the words that a state makes.

    random_words(count, device=…)              →   count words of 32 bits, from whatever generator there is
    philox_words(seed, offset, count, after)   →   words that Philox makes of a seed and of how many draws were before

Operators that draw are made of the first, where no library may draw for them; a program that keeps a seed and an offset
has the second in its place (`pipeline/own_generator.py`). A draw is a counter of its own: element i has word i % 4 of
the sequence i // 4.
"""

from typing import Any

import torch

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


_library = torch.library.Library("smelt", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(  # type: ignore[no-untyped-call]
    "random_words(SymInt count, *, Device device) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,)
)
_library.define(  # type: ignore[no-untyped-call]
    "philox_words(Tensor seed, Tensor offset, SymInt count, int after) -> Tensor", tags=(torch.Tag.pointwise,)
)
_DEFINED: tuple[tuple[str, Any, Any], ...] = (
    ("random_words", _drawn, _drawn_spec),
    ("philox_words", _words_of, _words_spec),
)
for _name, _impl, _specs in _DEFINED:
    _library.impl(_name, _impl, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    _library.impl(_name, _specs, "Meta")  # type: ignore[no-untyped-call]

RANDOM_WORDS = torch.ops.smelt.random_words.default
PHILOX_WORDS = torch.ops.smelt.philox_words.default
FUNCTIONS = {RANDOM_WORDS: _drawn, PHILOX_WORDS: _words_of}
