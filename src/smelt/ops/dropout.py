"""The record of dropout's mask as a GPU draws it: Philox of an element's number, compared with a threshold.

    dropout_mask(seed, offset, count, threads, 4, below, after)
    →  quad = shr position, 2 ; turn, thread = quad divided by threads
       philox(seed, thread, offset / 4 + turn, word) < below

Four elements side by side have the four words of one counter: schedules compute those once (`codegen/gpu`). Where a
thread takes two at once, they have the first two. Places are worked out in 32 bits where these hold them.
"""

import torch

from smelt.ir.nodes.philox_draws import AT_ONCE, DROPOUT_MASK
from smelt.ir.nodes.random_words import PHILOX_WORDS
from smelt.ops.pointwise import declare
from smelt.ops.record import TRANSCENDENTAL, Emitter, Scalar


def _divided(e: Emitter, value: Scalar, by: int) -> tuple[Scalar, Scalar]:
    """The quotient and the rest of what is not negative."""
    whole = e.op("floordiv", value, e.const(by, value.dtype))
    return whole, e.op("sub", value, e.op("mul", whole, e.const(by, value.dtype)))


def _shifted(e: Emitter, value: Scalar, bits: int) -> Scalar:
    return e.op("shr", value, e.const(bits, value.dtype))


def _mask(
    e: Emitter,
    seed: Scalar,
    offset: Scalar,
    count: int,
    threads: int,
    at_once: int,
    below: int,
    after: int,
    *,
    device: torch.device,
) -> Scalar:
    wide = torch.int64
    element = e.position(0)
    narrow = e.cast(element, torch.int32) if count < 1 << 31 else element
    if at_once == 1:
        turn, thread = _divided(e, narrow, threads)
        counter, word = _shifted(e, turn, 2), e.op("and", turn, e.const(AT_ONCE - 1, turn.dtype))
    else:
        turn, thread = _divided(e, _shifted(e, narrow, at_once.bit_length() - 1), threads)
        counter, word = turn, e.op("and", narrow, e.const(min(at_once, AT_ONCE) - 1, narrow.dtype))
        for _ in range(at_once // AT_ONCE - 1):  # eight at once are two counters
            second = e.op("and", _shifted(e, narrow, 2), e.const(1, narrow.dtype))
            counter = e.op("add", e.op("mul", turn, e.const(2, turn.dtype)), second)
    begin = _shifted(e, e.op("add", offset, e.const(after, wide)), 2)
    at = e.op("add", begin, e.cast(counter, wide))
    drawn = e.op("philox", seed, e.cast(thread, wide), at, e.cast(word, wide))
    return e.op("lt", drawn, e.const(below, wide))


def _words(e: Emitter, seed: Scalar, offset: Scalar, count: int, after: int) -> Scalar:
    wide = torch.int64
    element = e.position(0)
    sequence, word = _shifted(e, element, 2), e.op("and", element, e.const(AT_ONCE - 1, element.dtype))
    counter = e.op("add", offset, e.const(after, wide))
    return e.op("philox", seed, e.cast(sequence, wide), counter, e.cast(word, wide))


declare(DROPOUT_MASK, emit=_mask, cost=TRANSCENDENTAL, by_position=True)
declare(PHILOX_WORDS, emit=_words, cost=TRANSCENDENTAL, by_position=True)
